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
	m           int
}

const partLD = simd.Lanes * partK

func benchPart(b *testing.B, kernel func(p *operands)) {
	for _, kind := range kinds {
		r := kerneltest.Rand(1)
		p := operands{
			y: make([]float32, partM*partN), x: kind.class.Make(r, partM*partK), b: kind.class.Make(r, partN*partK),
			lanes: kind.class.Make(r, partN), each: kind.class.Make(r, partN*partK),
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

func BenchmarkPackRows(b *testing.B) {
	const n, k = 16, 512
	dst, src := make([]float32, n*k), normal.Make(kerneltest.Rand(1), n*k)
	bench(b, fmt.Sprintf("n=%d/k=%d", n, k), 8*n*k, "GB/s", func() { simd.PackRows(dst, simd.Lanes*k, src, k, n, k) })
}

// A tile of attention: the keys of a tile, the rows of a panel, and the latent
// values of a cache row.
const tileKeys, tileRows, tileCols = 64, 16, 512

func BenchmarkSoftmaxTile(b *testing.B) {
	dots, s := normal.Make(kerneltest.Rand(1), tileKeys*tileRows), make([]float32, tileKeys*tileRows)
	lo, hi := make([]int32, tileRows), slices.Repeat([]int32{tileKeys}, tileRows)
	m, l, alpha := make([]float32, tileRows), make([]float32, tileRows), make([]float32, tileRows)
	bench(b, fmt.Sprintf("keys=%d/rows=%d", tileKeys, tileRows), tileKeys*tileRows, "Gexp/s", func() {
		copy(s, dots)
		simd.SoftmaxTile(s, tileRows, tileKeys, tileRows, lo, hi, 1, m, l, alpha)
	})
}

func BenchmarkValueTile(b *testing.B) {
	for _, kind := range kinds {
		r := kerneltest.Rand(1)
		o, v, p := make([]float32, tileRows*tileCols), kind.class.Make(r, tileKeys*row), make([]float32, tileKeys*tileRows)
		for i := range p {
			p[i] = r.Float32()
		}
		alpha := slices.Repeat([]float32{0.5}, tileRows)
		keys := fmt.Sprintf("keys=%d/rows=%d/cols=%d/data=%s", tileKeys, tileRows, tileCols, kind.name)
		bench(b, keys, 2*tileKeys*tileRows*tileCols, "GFLOP/s", func() {
			simd.ValueTile(o, tileCols, p, tileRows, v, row, alpha, tileKeys, tileRows, tileCols)
		})
	}
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
		simd.FinishRows(out, tileCols, O, tileCols, M, L, L, lse, logit, tileRows, tileCols)
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
