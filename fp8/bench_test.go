package fp8_test

import (
	"fmt"
	"testing"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/simd"
)

// e4m3 is what the benchmarks of package bench call E4M3 weights.
const e4m3 = "fp8_e4m3"

// BenchmarkGemm is y[M,N] = x[M,K] * W[N,K]^T with scales for blocks of 128 x 128,
// in one goroutine: small weights of three types, and E4M3 weights of the size of a
// projection for all heads, which pure Go would take minutes for.
func BenchmarkGemm(b *testing.B) {
	for _, elem := range []fp8.Elem{fp8.ElemE4M3, fp8.ElemBF16, fp8.ElemF32} {
		benchGemm(b, elem, 512, 1, 4, 16, 64)
	}
	if simd.Level() != simd.Generic {
		benchGemm(b, fp8.ElemE4M3, 16384, 1, 4, 16, 64, 512)
	}
}

func benchGemm(b *testing.B, elem fp8.Elem, n int, rows ...int) {
	const k = 512
	weights := elem.String()
	if elem == fp8.ElemE4M3 {
		weights = e4m3
	}
	r := newRand(31)
	p := product{ms: []fp8.Matrix{someMatrix(b, r, elem, "f32", n, k, 128, 128)}}
	w := p.pack(b)
	for _, m := range rows {
		x, y := fp8.RowsF32(normal(r, m*k, 1)), make([]float32, m*n)
		for _, how := range []fp8.Product{{}, {Compute: fp8.ComputeBF16}} {
			b.Run(fmt.Sprintf("m=%d/n=%d/k=%d/weights=%s/arithmetic=%s/simd=%s", m, n, k, weights, how.Compute, simd.Level()), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := w.Mul(nil, nil, y, x, fp8.Shape{M: m}, how); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(2*float64(m*n*k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				b.ReportMetric(float64(n*k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "Gcode/s")
			})
		}
	}
}

// BenchmarkGemmQuant is BenchmarkGemm with activations quantised in groups of 128.
func BenchmarkGemmQuant(b *testing.B) {
	const n, k = 512, 512
	r := newRand(50)
	for _, m := range []int{1, 16} {
		p := product{ms: []fp8.Matrix{someMatrix(b, r, fp8.ElemE4M3, "f32", n, k, 128, 128)}, m: m, x: normal(r, m*k, 1)}
		w, y := p.pack(b), make([]float32, m*n)
		b.Run(fmt.Sprintf("m=%d/n=%d/k=%d/weights=%s/group=128/simd=%s", m, n, k, e4m3, simd.Level()), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := w.Mul(nil, nil, y, fp8.RowsF32(p.x), fp8.Shape{M: m}, fp8.Product{Group: 128}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(2*float64(m*n*k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}

// BenchmarkPack packs the codes of eight heads, as they lie and transposed.
func BenchmarkPack(b *testing.B) {
	const rows, cols = 128, 512
	r := newRand(32)
	for _, transposed := range []bool{false, true} {
		var ms []fp8.Matrix
		for range 8 {
			m := someMatrix(b, r, fp8.ElemE4M3, "f32", rows, cols, 128, 128)
			if transposed {
				m = m.Transpose()
			}
			ms = append(ms, m)
		}
		b.Run(fmt.Sprintf("heads=8/n=%d/k=%d/weights=%s/simd=%s", ms[0].Rows(), ms[0].Cols(), e4m3, simd.Level()), func(b *testing.B) {
			b.SetBytes(8 * rows * cols)
			for b.Loop() {
				w, err := fp8.Pack(ms, fp8.PackOptions{})
				if err != nil {
					b.Fatal(err)
				}
				if err := w.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
