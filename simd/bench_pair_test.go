package simd_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

func BenchmarkNarrowActBF16(b *testing.B)   { benchNarrow(b, simd.NarrowActBF16) }
func BenchmarkNarrowValueBF16(b *testing.B) { benchNarrow(b, simd.NarrowValueBF16) }

// benchBF16 is n values as caches and packed queries hold them.
func benchBF16(n int) []uint16 {
	dst := make([]uint16, n)
	simd.NarrowValueBF16(dst, normal.Make(kerneltest.Rand(1), n))
	return dst
}

func BenchmarkFlushBF16(b *testing.B) {
	dst, src := make([]uint16, row), benchBF16(row)
	bench(b, fmt.Sprintf("n=%d", row), row, "Gvalue/s", func() { simd.FlushBF16(dst, src) })
}

func BenchmarkTinyBF16(b *testing.B) {
	src := benchBF16(tileKeys * row)
	for _, cols := range []int{rope, row} {
		bench(b, fmt.Sprintf("rows=%d/cols=%d", tileKeys, cols), tileKeys*cols, "Gvalue/s", func() { simd.TinyBF16(src, row, tileKeys, cols) })
	}
}

// pairStride is the stride of values in pairs, an odd number of cache lines.
const pairStride = 1056

func BenchmarkInterleaveBF16(b *testing.B) {
	dst, src := make([]uint16, tileKeys/2*pairStride), benchBF16(tileKeys*row)
	bench(b, fmt.Sprintf("keys=%d/cols=%d", tileKeys, tileCols), tileKeys*tileCols, "Gvalue/s", func() {
		simd.InterleaveBF16(dst, pairStride, src, row, tileKeys, tileCols)
	})
}

func BenchmarkPackPairs(b *testing.B) {
	const n, k = 16, 512
	dst, src := make([]uint16, n*k), normal.Make(kerneltest.Rand(1), n*k)
	bench(b, fmt.Sprintf("n=%d/k=%d", n, k), n*k, "Gvalue/s", func() { simd.PackPairs(dst, simd.Lanes*k, src, k, n, k) })
}

func BenchmarkPairPanel(b *testing.B) {
	dst, src := make([]uint16, partLD), normal.Make(kerneltest.Rand(1), partLD)
	bench(b, fmt.Sprintf("k=%d", partK), partLD, "Gvalue/s", func() { simd.PairPanel(dst, src, partK) })
}

func BenchmarkPairPanelBF16(b *testing.B) {
	dst, src := make([]uint16, partLD), benchBF16(partLD)
	bench(b, fmt.Sprintf("k=%d", partK), partLD, "Gvalue/s", func() { simd.PairPanelBF16(dst, src, partK) })
}

func BenchmarkCopyRows(b *testing.B) {
	const rows, cols, lds = 16, 192, 208
	dst, src := make([]float32, rows*cols), normal.Make(kerneltest.Rand(1), rows*lds)
	bench(b, fmt.Sprintf("rows=%d/cols=%d", rows, cols), 8*rows*cols, "GB/s", func() { simd.CopyRows(dst, cols, src, lds, rows, cols, 0) })
}

func BenchmarkWidenE4M3Pairs(b *testing.B) {
	dst, codes := make([]uint16, partLD), make([]byte, partLD)
	for i := range codes {
		codes[i] = byte(i)
	}
	bench(b, fmt.Sprintf("k=%d", partK), partLD, "Gvalue/s", func() { simd.WidenE4M3Pairs(dst, codes) })
}

// pairOperands are operands whose x and b are bf16.
type pairOperands struct {
	operands
	x, b []uint16
}

func benchPair(b *testing.B, kernel func(p *pairOperands)) {
	r := kerneltest.Rand(1)
	p := pairOperands{x: benchBF16(partM * partK), b: benchBF16(partN * partK)}
	p.operands = operands{
		y: make([]float32, partM*partN), x: normal.Make(r, partM*partK),
		lanes: normal.Make(r, partN), each: normal.Make(r, partN*partK), rows: normal.Make(r, partM),
	}
	for _, p.m = range []int{1, partM} {
		bench(b, fmt.Sprintf("m=%d/n=%d/k=%d", p.m, partN, partK), 2*p.m*partN*partK, "GFLOP/s", func() { kernel(&p) })
	}
}

func BenchmarkPairSet(b *testing.B) {
	benchPair(b, func(p *pairOperands) { simd.PairSet(p.y, partN, p.x, partK, p.b, partLD, p.m, partN, partK) })
}

func BenchmarkPairAdd(b *testing.B) {
	benchPair(b, func(p *pairOperands) { simd.PairAdd(p.y, partN, p.x, partK, p.b, partLD, p.m, partN, partK) })
}

func BenchmarkPairScale(b *testing.B) {
	benchPair(b, func(p *pairOperands) {
		simd.PairScale(p.y, partN, p.x, partK, p.b, partLD, p.lanes, p.m, partN, partK)
	})
}

func BenchmarkPairScaleRows(b *testing.B) {
	benchPair(b, func(p *pairOperands) {
		simd.PairScaleRows(p.y, partN, p.x, partK, p.b, partLD, p.rows, 1, p.lanes, p.m, partN, partK)
	})
}

func BenchmarkPairFoldSet(b *testing.B) {
	benchPair(b, func(p *pairOperands) {
		simd.PairFoldSet(p.y, partN, p.operands.x, partK, p.b, partLD, p.each, partLD, p.m, partN, partK)
	})
}

func BenchmarkPairFoldAdd(b *testing.B) {
	benchPair(b, func(p *pairOperands) {
		simd.PairFoldAdd(p.y, partN, p.operands.x, partK, p.b, partLD, p.each, partLD, p.m, partN, partK)
	})
}

// BenchmarkPairScores is BenchmarkScores in pairs, on rows as a cache has them.
func BenchmarkPairScores(b *testing.B) {
	const lanes, ldx, ldy = 128, row, 144
	for _, k := range []int{192, row} {
		y, x, q := make([]float32, tileKeys*ldy), benchBF16(tileKeys*ldx), benchBF16(lanes*k)
		bench(b, fmt.Sprintf("m=%d/n=%d/k=%d", tileKeys, lanes, k), 2*tileKeys*lanes*k, "GFLOP/s", func() {
			ldq := simd.Lanes * k
			simd.PairSet(y, ldy, x, ldx, q, ldq, tileKeys, lanes, min(k, partK))
			for k0 := partK; k0 < k; k0 += partK {
				simd.PairAdd(y, ldy, x[k0:], ldx, q[k0*simd.Lanes:], ldq, tileKeys, lanes, min(k-k0, partK))
			}
		})
	}
}

func BenchmarkGemmE4M3Pairs(b *testing.B) {
	const n, k, step = 64, 512, 128
	codes := make([]byte, n*k)
	for i := range codes {
		codes[i] = byte(i*37) &^ 1
	}
	x, y, scale := benchBF16(16*k), make([]float32, 16*n), normal.Make(kerneltest.Rand(1), n*k/step)
	for _, m := range []int{1, 2, 3, 4, 5, 8, 12, 16} {
		bench(b, fmt.Sprintf("m=%d/n=%d/k=%d/step=%d", m, n, k, step), 2*m*n*k, "GFLOP/s", func() {
			simd.GemmE4M3Pairs(y, n, x, k, codes, simd.Lanes*k, scale, simd.Lanes*k/step, m, n, 0, k, step)
		})
	}
}

// BenchmarkSoftmaxTilePairs takes the scores of one call for the dots of the next.
func BenchmarkSoftmaxTilePairs(b *testing.B) {
	for _, n := range []int{softmaxRows, tileRows, 5} {
		s, p := normal.Make(kerneltest.Rand(1), tileKeys*softmaxStride), make([]uint16, tileKeys*softmaxStride)
		lo, hi := make([]int32, n), slices.Repeat([]int32{tileKeys}, n)
		m, l, alpha := make([]float32, n), make([]float32, n), make([]float32, n)
		bench(b, fmt.Sprintf("keys=%d/rows=%d", tileKeys, n), tileKeys*n, "Gexp/s", func() {
			simd.SoftmaxTilePairs(p, 2*softmaxStride, s, softmaxStride, tileKeys, n, lo, hi, 1, m, l, alpha)
		})
	}
}

type valuePairKernel func(o []float32, ldo int, p []uint16, ldp int, v []uint16, ldv int, alpha []float32, pairs, n, cols int)

// benchValuePairs times a tile of values in which row j sees the first seen(j) keys, the only ones that count.
func benchValuePairs(b *testing.B, data string, seen func(j int) int, kernel valuePairKernel) {
	const ldp = 2 * probStride
	for _, s := range valueShapes {
		o, v, p := make([]float32, s.rows*outStride), benchBF16(tileKeys/2*pairStride), benchBF16(tileKeys/2*ldp)
		alpha, work := slices.Repeat([]float32{0.5}, s.rows), 0
		for j := range s.rows {
			for key := range tileKeys {
				at := key/2*ldp + 2*j + key%2
				p[at] &= math.MaxInt16
				if key >= seen(j) {
					p[at] = 1 << 15
				}
			}
			work += 2 * min(seen(j), tileKeys) * s.cols
		}
		bench(b, fmt.Sprintf("keys=%d/rows=%d/cols=%d/data=%s", tileKeys, s.rows, s.cols, data), work, "GFLOP/s", func() {
			kernel(o, outStride, p, ldp, v, pairStride, alpha, tileKeys/2, s.rows, s.cols)
		})
	}
}

func BenchmarkValueTilePairs(b *testing.B) {
	kernel := func(o []float32, ldo int, p []uint16, ldp int, v []uint16, ldv int, alpha []float32, pairs, n, cols int) {
		simd.ValueTilePairs(o, ldo, p, ldp, v, ldv, alpha, pairs, n, cols, nil)
	}
	benchValuePairs(b, "normal", allKeys, kernel)
}

func BenchmarkValueTilePairsMasked(b *testing.B) {
	benchValuePairs(b, "seen", allKeys, simd.ValueTilePairsMasked)
	benchValuePairs(b, "causal", func(j int) int { return j + 1 }, simd.ValueTilePairsMasked)
}

func BenchmarkValueTilePairsCausal(b *testing.B) {
	kernel := func(o []float32, ldo int, p []uint16, ldp int, v []uint16, ldv int, alpha []float32, pairs, n, cols int) {
		simd.ValueTilePairsCausal(o, ldo, p, ldp, v, ldv, alpha, pairs, n, cols, 1)
	}
	benchValuePairs(b, "causal", func(j int) int { return j + 1 }, kernel)
}

func BenchmarkPairLoop(b *testing.B) {
	const n, half, quarter = 1000, 0x3F003F00, 0x3E803E80
	x := normal.Make(kerneltest.Rand(1), 192)
	bench(b, fmt.Sprintf("n=%d", n), 4*len(x)*n, "GFLOP/s", func() { simd.PairLoop(x, half, quarter, n) })
}
