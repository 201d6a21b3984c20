package simd_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

// Every kernel has a benchmark of its own, named after it, whose names below are
// keys and values, the last being the instruction set:
//
//	BenchmarkWidenE4M3/n=576/simd=generic

// bench times a kernel of which one call does work units, which unit names.
func bench(b *testing.B, keys string, work int, unit string, kernel func()) {
	b.Run(fmt.Sprintf("%s/simd=%s", keys, simd.Level()), func(b *testing.B) {
		for b.Loop() {
			kernel()
		}
		b.ReportMetric(float64(work)*float64(b.N)/b.Elapsed().Seconds()/1e9, unit)
	})
}

// row is a row of a cache.
const row = 576

// normal is the plain class of data.
var normal = kerneltest.Classes[0]

func benchWiden[T byte | uint16](b *testing.B, kernel func(dst []float32, src []T)) {
	src, r := make([]T, row), kerneltest.Rand(1)
	for i := range src {
		src[i] = T(r.Uint32())
	}
	dst := make([]float32, row)
	bench(b, fmt.Sprintf("n=%d", row), row, "Gvalue/s", func() { kernel(dst, src) })
}

func benchNarrow[T byte | uint16](b *testing.B, kernel func(dst []T, src []float32)) {
	dst, src := make([]T, row), normal.Make(kerneltest.Rand(1), row)
	bench(b, fmt.Sprintf("n=%d", row), row, "Gvalue/s", func() { kernel(dst, src) })
}

// blockScale is a scale that is no power of two.
const blockScale = 0x1.8ee0fcp-3

func BenchmarkWidenBF16(b *testing.B)     { benchWiden(b, simd.WidenBF16) }
func BenchmarkWidenF16(b *testing.B)      { benchWiden(b, simd.WidenF16) }
func BenchmarkWidenE4M3(b *testing.B)     { benchWiden(b, simd.WidenE4M3) }
func BenchmarkWidenE5M2(b *testing.B)     { benchWiden(b, simd.WidenE5M2) }
func BenchmarkWidenE4M3FNUZ(b *testing.B) { benchWiden(b, simd.WidenE4M3FNUZ) }
func BenchmarkWidenE5M2FNUZ(b *testing.B) { benchWiden(b, simd.WidenE5M2FNUZ) }

func BenchmarkWidenE4M3Scaled(b *testing.B) {
	benchWiden(b, func(dst []float32, src []byte) { simd.WidenE4M3Scaled(dst, src, blockScale) })
}

// benchGroups times rows of values that have scales in groups, some values a byte.
func benchGroups(b *testing.B, values int, kernel func(dst []float32, src []byte, scales []float32, group int), groups ...int) {
	src, r := make([]byte, latent/values), kerneltest.Rand(1)
	for i := range src {
		src[i] = byte(r.Uint32())
	}
	dst := make([]float32, latent)
	for _, group := range groups {
		scales := normal.Make(r, latent/group)
		bench(b, fmt.Sprintf("n=%d/group=%d", latent, group), latent, "Gvalue/s", func() { kernel(dst, src, scales, group) })
	}
}

func BenchmarkWidenE4M3Groups(b *testing.B) { benchGroups(b, 1, simd.WidenE4M3Groups, 32, 64, 128) }
func BenchmarkWidenE2M1Groups(b *testing.B) { benchGroups(b, 2, simd.WidenE2M1Groups, 16, 32) }

func BenchmarkNarrowBF16(b *testing.B)     { benchNarrow(b, simd.NarrowBF16) }
func BenchmarkNarrowF16(b *testing.B)      { benchNarrow(b, simd.NarrowF16) }
func BenchmarkNarrowE4M3(b *testing.B)     { benchNarrow(b, simd.NarrowE4M3) }
func BenchmarkNarrowE5M2(b *testing.B)     { benchNarrow(b, simd.NarrowE5M2) }
func BenchmarkNarrowE4M3FNUZ(b *testing.B) { benchNarrow(b, simd.NarrowE4M3FNUZ) }
func BenchmarkNarrowE5M2FNUZ(b *testing.B) { benchNarrow(b, simd.NarrowE5M2FNUZ) }

func BenchmarkNarrowE4M3Scaled(b *testing.B) {
	benchNarrow(b, func(dst []byte, src []float32) { simd.NarrowE4M3Scaled(dst, src, blockScale) })
}

// kinds are data of full mantissas and of short ones, which pure Go takes in
// different loops.
var kinds = []struct {
	name  string
	class kerneltest.Class
}{{"f32", normal}, {"fp8", kerneltest.Classes[1]}}

// The part of a product that Part benchmarks take, with one row or with partM.
const partM, partN, partK = 64, 32, 256

// operands are what a Part kernel takes. Their strides are those of whole arrays.
type operands struct {
	y, x, b     []float32
	lanes, each []float32 // a scale for each output, and for each weight
	rows        []float32 // a scale for each row
	m           int
}

const partLD = simd.Lanes * partK

func benchPart(b *testing.B, kernel func(p *operands)) {
	for _, kind := range kinds {
		r := kerneltest.Rand(1)
		p := operands{
			y: make([]float32, partM*partN), x: kind.class.Make(r, partM*partK), b: kind.class.Make(r, partN*partK),
			lanes: kind.class.Make(r, partN), each: kind.class.Make(r, partN*partK),
			rows: kind.class.Make(r, partM),
		}
		for _, p.m = range []int{1, partM} {
			keys := fmt.Sprintf("m=%d/n=%d/k=%d/data=%s", p.m, partN, partK, kind.name)
			bench(b, keys, 2*p.m*partN*partK, "GFLOP/s", func() { kernel(&p) })
		}
	}
}

func BenchmarkPartSet(b *testing.B) {
	benchPart(b, func(p *operands) { simd.PartSet(p.y, partN, p.x, partK, p.b, partLD, p.m, partN, partK) })
}

func BenchmarkPartAdd(b *testing.B) {
	benchPart(b, func(p *operands) { simd.PartAdd(p.y, partN, p.x, partK, p.b, partLD, p.m, partN, partK) })
}

func BenchmarkPartScale(b *testing.B) {
	benchPart(b, func(p *operands) {
		simd.PartScale(p.y, partN, p.x, partK, p.b, partLD, p.lanes, p.m, partN, partK)
	})
}

func BenchmarkPartScaleRows(b *testing.B) {
	benchPart(b, func(p *operands) {
		simd.PartScaleRows(p.y, partN, p.x, partK, p.b, partLD, p.rows, 1, p.lanes, p.m, partN, partK)
	})
}

func BenchmarkPartFoldSet(b *testing.B) {
	benchPart(b, func(p *operands) {
		simd.PartFoldSet(p.y, partN, p.x, partK, p.b, partLD, p.each, partLD, p.m, partN, partK)
	})
}

func BenchmarkPartFoldAdd(b *testing.B) {
	benchPart(b, func(p *operands) {
		simd.PartFoldAdd(p.y, partN, p.x, partK, p.b, partLD, p.each, partLD, p.m, partN, partK)
	})
}

// benchGemm times a call as package fp8 makes them.
func benchGemm(b *testing.B, by float32, kernel func(y []float32, ldy int, x []float32, ldx int, codes []byte, ldc int, scale []float32, lds, m, n, k0, k, step, bypass int)) {
	const n, k, step = 64, 512, 128
	r := kerneltest.Rand(1)
	codes := make([]byte, n*k)
	for i := range codes {
		codes[i] = byte(r.IntN(0x7F) | r.IntN(2)<<7)
	}
	x, y, scale := normal.Make(r, 12*k), make([]float32, 12*n), normal.Make(r, n*k/step)
	simd.Lift(x, k, x, k, 12, k, by)
	for _, m := range []int{1, 2, 3, 4, 5, 12} {
		bench(b, fmt.Sprintf("m=%d/n=%d/k=%d/step=%d", m, n, k, step), 2*m*n*k, "GFLOP/s", func() {
			kernel(y, n, x, k, codes, simd.Lanes*k, scale, simd.Lanes*k/step, m, n, 0, k, step, 0)
		})
	}
}

func BenchmarkGemmE4M3(b *testing.B)     { benchGemm(b, 0x1p120, simd.GemmE4M3) }
func BenchmarkGemmE4M3Half(b *testing.B) { benchGemm(b, 0x1p8, simd.GemmE4M3Half) }

func BenchmarkPackRows(b *testing.B) {
	const n, k = 16, 512
	dst, src := make([]float32, n*k), normal.Make(kerneltest.Rand(1), n*k)
	bench(b, fmt.Sprintf("n=%d/k=%d", n, k), 8*n*k, "GB/s", func() { simd.PackRows(dst, simd.Lanes*k, src, k, n, k) })
}

func BenchmarkLift(b *testing.B) {
	const m, k = 16, 512
	dst, x := make([]float32, m*k), normal.Make(kerneltest.Rand(1), m*k)
	bench(b, fmt.Sprintf("m=%d/k=%d", m, k), 8*m*k, "GB/s", func() { simd.Lift(dst, k, x, k, m, k, 0x1p120) })
}

// BenchmarkScores times PartSet and PartAdd on a tile of attention: its keys, in rows of a stride of 592, by the rows of
// 128 heads.
func BenchmarkScores(b *testing.B) {
	const lanes, ldx, ldy = 128, 592, 144
	r := kerneltest.Rand(1)
	for _, k := range []int{192, 576} {
		y, x, q := make([]float32, tileKeys*ldy), normal.Make(r, tileKeys*ldx), normal.Make(r, lanes*k)
		bench(b, fmt.Sprintf("m=%d/n=%d/k=%d", tileKeys, lanes, k), 2*tileKeys*lanes*k, "GFLOP/s", func() {
			ldq := simd.Lanes * k
			simd.PartSet(y, ldy, x, ldx, q, ldq, tileKeys, lanes, min(k, partK))
			for k0 := partK; k0 < k; k0 += partK {
				simd.PartAdd(y, ldy, x[k0:], ldx, q[k0*simd.Lanes:], ldq, tileKeys, lanes, min(k-k0, partK))
			}
		})
	}
}

func BenchmarkFmaLoop(b *testing.B) {
	const n = 1000
	x := normal.Make(kerneltest.Rand(1), 192)
	bench(b, fmt.Sprintf("n=%d", n), 2*len(x)*n, "GFLOP/s", func() { simd.FmaLoop(x, 0.5, 0.25, n) })
}

func BenchmarkXorWords(b *testing.B) {
	for _, kb := range []int{16, 256, 4 << 10, 256 << 10} {
		x := make([]uint64, kb<<10/8)
		for i := range x {
			x[i] = uint64(i)
		}
		bench(b, fmt.Sprintf("KB=%d", kb), 8*len(x), "GB/s", func() { simd.XorWords(x) })
	}
}

func BenchmarkPrefetch(b *testing.B) {
	x := make([]byte, 2*row)
	bench(b, fmt.Sprintf("n=%d", len(x)), len(x), "GB/s", func() { simd.Prefetch(x, 0, len(x), 1) })
}

// A tile of attention: the keys of a tile, the rows of a panel, and the latent
// values of a cache row.
const tileKeys, tileRows, tileCols = 64, 16, 512

// softmaxStride is the stride of the scores of softmaxRows rows: an odd number of cache lines.
const softmaxRows, softmaxStride = 128, 144

// BenchmarkSoftmaxTile takes the probabilities of one call for the scores of the next.
func BenchmarkSoftmaxTile(b *testing.B) {
	for _, kind := range []struct {
		mask string
		seen func(row int) int32
	}{
		{"none", func(int) int32 { return tileKeys }},
		{"causal", func(row int) int32 { return int32(row%tileKeys + 1) }},
	} {
		for _, n := range []int{softmaxRows, tileRows, 5} {
			s := normal.Make(kerneltest.Rand(1), tileKeys*softmaxStride)
			lo, hi := make([]int32, n), make([]int32, n)
			for j := range hi {
				hi[j] = kind.seen(j)
			}
			m, l, alpha := make([]float32, n), make([]float32, n), make([]float32, n)
			bench(b, fmt.Sprintf("keys=%d/rows=%d/mask=%s", tileKeys, n, kind.mask), tileKeys*n, "Gexp/s", func() {
				simd.SoftmaxTile(s, softmaxStride, tileKeys, n, lo, hi, 1, m, l, alpha)
			})
		}
	}
}

// valueShapes are the rows and columns of a call: decoding a token with 128, 16 and 5 heads and with one, prefilling.
var valueShapes = []struct{ rows, cols int }{{128, 128}, {96, 128}, {16, tileCols}, {5, tileCols}, {1, tileCols}}

// The strides of outputs, of probabilities of 128 rows and of values, each an odd number of cache lines.
const outStride, probStride, valueStride = 528, 144, 592

type valueKernel func(o []float32, ldo int, p []float32, ldp int, v []float32, ldv int, alpha []float32, keys, n, cols int)

// benchValue times a tile of values in which row j sees the first seen(j) keys, the only ones that count.
func benchValue(b *testing.B, data string, class kerneltest.Class, seen func(j int) int, kernel valueKernel) {
	for _, s := range valueShapes {
		r := kerneltest.Rand(1)
		o, v := make([]float32, s.rows*outStride), class.Make(r, tileKeys*valueStride)
		p, alpha := make([]float32, tileKeys*probStride), slices.Repeat([]float32{0.5}, s.rows)
		work := 0
		for j := range s.rows {
			for key := range tileKeys {
				p[key*probStride+j] = r.Float32()
				if key >= seen(j) {
					p[key*probStride+j] = float32(math.Copysign(0, -1))
				}
			}
			work += 2 * min(seen(j), tileKeys) * s.cols
		}
		keys := fmt.Sprintf("keys=%d/rows=%d/cols=%d/data=%s", tileKeys, s.rows, s.cols, data)
		bench(b, keys, work, "GFLOP/s", func() {
			kernel(o, outStride, p, probStride, v, valueStride, alpha, tileKeys, s.rows, s.cols)
		})
	}
}

func allKeys(int) int { return tileKeys }

func BenchmarkValueTile(b *testing.B) {
	for _, kind := range kinds {
		benchValue(b, kind.name, kind.class, allKeys, simd.ValueTile)
	}
}

func BenchmarkValueTileMasked(b *testing.B) {
	benchValue(b, "seen", normal, allKeys, simd.ValueTileMasked)
	benchValue(b, "causal", normal, func(j int) int { return j + 1 }, simd.ValueTileMasked)
}

func BenchmarkValueTileCausal(b *testing.B) {
	kernel := func(o []float32, ldo int, p []float32, ldp int, v []float32, ldv int, alpha []float32, keys, n, cols int) {
		simd.ValueTileCausal(o, ldo, p, ldp, v, ldv, alpha, keys, n, cols, 1)
	}
	benchValue(b, "causal", normal, func(j int) int { return j + 1 }, kernel)
}

// partial is what tileRows rows have gathered of a partition: their maxima, sums
// and values.
func partial(seed uint64) (m, l, o []float32) {
	r := kerneltest.Rand(seed)
	m, l, o = normal.Make(r, tileRows), make([]float32, tileRows), normal.Make(r, tileRows*tileCols)
	for j := range l {
		l[j] = float32(math.Exp(r.Float64()))
	}
	return m, l, o
}

var tileShape = fmt.Sprintf("rows=%d/cols=%d", tileRows, tileCols)

func BenchmarkFoldRows(b *testing.B) {
	M, L, O := partial(1)
	m, l, o := partial(2)
	bench(b, tileShape, 3*tileRows*tileCols, "GFLOP/s", func() {
		simd.FoldRows(O, tileCols, M, L, o, tileCols, m, l, tileRows, tileCols)
	})
}

func BenchmarkFinishRows(b *testing.B) {
	M, L, O := partial(1)
	out, lse, logit := make([]float32, len(O)), make([]float32, tileRows), make([]float32, tileRows)
	bench(b, tileShape, tileRows*tileCols, "GFLOP/s", func() {
		simd.FinishRows(out, tileCols, O, tileCols, M, L, L, lse, logit, tileRows, tileCols, 0)
	})
}

func BenchmarkFinishRowsBF16(b *testing.B) {
	M, L, O := partial(1)
	out, lse, logit := make([]uint16, len(O)), make([]float32, tileRows), make([]float32, tileRows)
	bench(b, tileShape, tileRows*tileCols, "GFLOP/s", func() {
		simd.FinishRowsBF16(out, tileCols, O, tileCols, M, L, L, lse, logit, tileRows, tileCols, 0)
	})
}

func BenchmarkMergeRows(b *testing.B) {
	const parts, n = 2, tileRows / 2
	lse, _, from := partial(1)
	out, total := make([]float32, n*tileCols), make([]float32, n)
	bench(b, fmt.Sprintf("parts=%d/rows=%d/cols=%d", parts, n, tileCols), 2*parts*n*tileCols, "GFLOP/s", func() {
		simd.MergeRows(out, total, from, lse, parts, n, tileCols)
	})
}

// benchRow times a kernel on one row of n values, made of x and y.
func benchRow(b *testing.B, n, work int, kernel func(dst, x, y []float32)) {
	r := kerneltest.Rand(1)
	dst, x, y := make([]float32, n), normal.Make(r, n), normal.Make(r, n)
	bench(b, fmt.Sprintf("n=%d", n), work*n, "GFLOP/s", func() { kernel(dst, x, y) })
}

const latent, rope = 512, 64

func benchNorm(b *testing.B, kernel func(dst, x, gamma []float32, eps float32)) {
	benchRow(b, latent, 4, func(dst, x, gamma []float32) { kernel(dst, x, gamma, 1e-6) })
}

func BenchmarkSumSquares(b *testing.B) {
	benchRow(b, latent, 2, func(dst, x, _ []float32) { dst[0] = simd.SumSquares(x) })
}

func BenchmarkRMSNorm(b *testing.B)         { benchNorm(b, simd.RMSNorm) }
func BenchmarkRMSNormBF16(b *testing.B)     { benchNorm(b, simd.RMSNormBF16) }
func BenchmarkRMSNormF16(b *testing.B)      { benchNorm(b, simd.RMSNormF16) }
func BenchmarkRopeInterleaved(b *testing.B) { benchRow(b, rope, 3, simd.RopeInterleaved) }
func BenchmarkRopeHalf(b *testing.B)        { benchRow(b, rope, 3, simd.RopeHalf) }

func BenchmarkQuantDynamic(b *testing.B) {
	const group = 128
	x, codes, scales := normal.Make(kerneltest.Rand(1), latent), make([]byte, latent), make([]float32, latent/group)
	bench(b, fmt.Sprintf("n=%d/group=%d", latent, group), latent, "Gvalue/s", func() { simd.QuantDynamic(codes, scales, x, group) })
}

// benchScalar times a function of one value over a row of them.
func benchScalar(b *testing.B, unit string, f func(x float32) float32) {
	dst, x := make([]float32, row), make([]float32, row)
	for i := range x {
		x[i] = float32(i+1) / row
	}
	bench(b, fmt.Sprintf("n=%d", row), row, unit, func() {
		for i, v := range x {
			dst[i] = f(v)
		}
	})
}

func BenchmarkExp(b *testing.B) { benchScalar(b, "Gexp/s", simd.Exp) }
func BenchmarkLog(b *testing.B) { benchScalar(b, "Glog/s", simd.Log) }
func BenchmarkFma(b *testing.B) {
	benchScalar(b, "Gfma/s", func(x float32) float32 { return simd.Fma(x, x, 0.3) })
}

// TestEveryKernelHasABenchmark reads the source: for every kernel X of this
// package there is a BenchmarkX, and it names simd.X.
func TestEveryKernelHasABenchmark(t *testing.T) {
	files, err := os.ReadDir(".")
	require.NoError(t, err)
	var kernels []string
	called := map[string][]string{} // by a benchmark: the functions of simd
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), f.Name(), nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			switch f, ok := d.(*ast.FuncDecl); {
			case !ok:
			case file.Name.Name == "simd_test":
				called[f.Name.Name] = namesOf(f)
			case isKernel(f):
				kernels = append(kernels, f.Name.Name)
			}
		}
	}
	require.Contains(t, kernels, "PartSet")
	require.Contains(t, kernels, "WidenE4M3")
	require.Contains(t, kernels, "SumSquares")
	require.NotContains(t, kernels, "Level")
	for _, kernel := range kernels {
		assert.Contains(t, called["Benchmark"+kernel], kernel, "simd.%s has no Benchmark%s that runs it", kernel, kernel)
	}
}

// isKernel reports whether a function is exported and takes lanes.
func isKernel(f *ast.FuncDecl) bool {
	return f.Name.IsExported() && f.Recv == nil && slices.ContainsFunc(f.Type.Params.List, func(p *ast.Field) bool {
		_, slice := p.Type.(*ast.ArrayType)
		return slice
	})
}

// namesOf is the X of every simd.X in a function.
func namesOf(f *ast.FuncDecl) (names []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if pkg, ok := sel.X.(*ast.Ident); ok && pkg.Name == "simd" {
				names = append(names, sel.Sel.Name)
			}
		}
		return true
	})
	return names
}
