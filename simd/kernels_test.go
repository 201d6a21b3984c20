package simd_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
	"github.com/lamina-ml/lamina/simd/ref"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

// body is a set of kernels: the door, or the reference.
type body struct {
	packRows                  func(dst []float32, ldd int, src []float32, lds int, n, k int)
	partSet, partAdd          func(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, m, n, k int)
	partScale                 func(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, scale []float32, m, n, k int)
	partFoldSet, partFoldAdd  func(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, scale []float32, lds int, m, n, k int)
	softmaxTile               func(s []float32, lds, keys, n int, lo, hi []int32, scale float32, m, l, alpha []float32)
	valueTile                 func(o []float32, ldo int, p []float32, ldp int, v []float32, ldv int, alpha []float32, keys, n, cols int)
	foldRows                  func(O []float32, ldO int, M, L []float32, o []float32, ldo int, m, l []float32, n, cols int)
	finishRows                func(out []float32, ldout int, O []float32, ldO int, M, L, sink, lse, maxlogit []float32, n, cols int)
	mergeRows                 func(out []float32, lse []float32, parts []float32, partsLSE []float32, p, n, d int)
	norm, normBF16, normF16   func(dst, x, gamma []float32, eps float32)
	ropeInterleaved, ropeHalf func(dst, x, freqs []float32)
	fma                       func(a, b, c float32) float32
	exp, log                  func(x float32) float32
	sumSquares                func(x []float32) float32
	quantDynamic              func(codes []byte, scales []float32, x []float32, group int)
}

var door = body{
	simd.PackRows, simd.PartSet, simd.PartAdd, simd.PartScale, simd.PartFoldSet, simd.PartFoldAdd,
	simd.SoftmaxTile, simd.ValueTile, simd.FoldRows, simd.FinishRows, simd.MergeRows,
	simd.RMSNorm, simd.RMSNormBF16, simd.RMSNormF16, simd.RopeInterleaved, simd.RopeHalf,
	simd.Fma, simd.Exp, simd.Log, simd.SumSquares, simd.QuantDynamic,
}

var reference = body{
	ref.PackRows, ref.PartSet, ref.PartAdd, ref.PartScale, ref.PartFoldSet, ref.PartFoldAdd,
	ref.SoftmaxTile, ref.ValueTile, ref.FoldRows, ref.FinishRows, ref.MergeRows,
	ref.RMSNorm, ref.RMSNormBF16, ref.RMSNormF16, ref.RopeInterleaved, ref.RopeHalf,
	ref.Fma, ref.Exp, ref.Log, ref.SumSquares, ref.QuantDynamic,
}

// run is what every kernel of the body makes of one seed, in fenced buffers.
func run(t *testing.T, b body, class kerneltest.Class, at kerneltest.Edge, m, n, k int) (results []float32) {
	r := kerneltest.Rand(uint64(m + 100*n + 10000*k))
	array := func(count int) []float32 { return kerneltest.FencedCopy(t, class.Make(r, count), at) }
	keep := func(outputs ...[]float32) { results = append(results, slices.Concat(outputs...)...) }
	panels := (n + simd.Lanes - 1) / simd.Lanes
	x, w, scale := array(m*k), array(n*k), array(n)
	packed, folded := array(panels*simd.Lanes*k), array(panels*simd.Lanes*k)
	ldb := simd.Lanes * k

	b.packRows(packed, ldb, w, k, n, k)
	set, add, scaled, foldSet, foldAdd := array(m*n), array(m*n), array(m*n), array(m*n), array(m*n)
	b.partSet(set, n, x, k, packed, ldb, m, n, k)
	b.partAdd(add, n, x, k, packed, ldb, m, n, k)
	b.partScale(scaled, n, x, k, packed, ldb, scale, m, n, k)
	b.partFoldSet(foldSet, n, x, k, packed, ldb, folded, ldb, m, n, k)
	b.partFoldAdd(foldAdd, n, x, k, packed, ldb, folded, ldb, m, n, k)
	keep(packed, set, add, scaled, foldSet, foldAdd)

	lo, hi := make([]int32, n), make([]int32, n)
	for j := range hi {
		lo[j], hi[j] = int32(r.IntN(m+1)-1), int32(r.IntN(m+3))
	}
	top, sum, alpha, o := array(n), array(n), array(n), array(n*k)
	b.softmaxTile(set, n, m, n, lo, hi, 0.5, top, sum, alpha)
	keep(set, top, sum, alpha)
	b.valueTile(o, k, set, n, x, k, alpha, m, n, k)
	keep(o)
	M, L, O := array(n), array(n), array(n*k)
	b.foldRows(O, k, M, L, o, k, top, sum, n, k)
	keep(O, M, L)
	out, lse, logit := array(n*k), array(n), array(n)
	b.finishRows(out, k, O, k, M, L, scale, lse, logit, n, k)
	keep(out, lse, logit)
	b.mergeRows(out, lse, packed, scale, 1, n, k)
	keep(out, lse)

	gamma, row := array(k), array(k)
	b.norm(row, x[:k], gamma, 1e-6)
	keep(row)
	b.normBF16(row, x[:k], gamma, 1e-6)
	keep(row)
	b.normF16(row, x[:k], gamma, 1e-6)
	keep(row)
	even := k / 2 * 2
	b.ropeInterleaved(row[:even], x[:even], gamma)
	keep(row)
	b.ropeHalf(row[:even], x[:even], gamma)
	keep(row)
	for i := 2; i < k; i++ {
		keep([]float32{b.fma(x[i], x[i-1], x[i-2]), b.exp(x[i]), b.log(x[i])})
	}
	keep([]float32{b.sumSquares(x)})

	const group = 7
	codes, scales := kerneltest.Fenced[byte](t, len(x), at), array((len(x)+group-1)/group)
	b.quantDynamic(codes, scales, x, group)
	keep(scales)
	for _, c := range codes {
		keep([]float32{float32(c)})
	}
	return results
}

// TestDoor holds every kernel at the level in use to the bits of the reference.
func TestDoor(t *testing.T) {
	shapes := [][3]int{{1, 1, 2}, {3, 17, 20}, {64, 16, 33}, {7, 31, 64}}
	if testing.Short() {
		shapes = shapes[:2]
	}
	for _, class := range kerneltest.Classes {
		for _, shape := range shapes {
			m, n, k := shape[0], shape[1], shape[2]
			want := run(t, reference, class, kerneltest.Back, m, n, k)
			for _, at := range kerneltest.Edges {
				kerneltest.Equal(t, want, run(t, door, class, at, m, n, k), "%s, %v, %v", class.Name, at, shape)
			}
		}
	}
}

// TestKernelsDoNotAllocate holds calls through the door to no allocation.
func TestKernelsDoNotAllocate(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		var y, x, b [simd.Lanes * 4]float32 // escape if a kernel is called through a variable
		simd.PackRows(b[:], len(b), x[:], 4, simd.Lanes, 4)
		simd.PartSet(y[:], simd.Lanes, x[:], 4, b[:], len(b), 4, simd.Lanes, 4)
		simd.ValueTile(y[:], 4, x[:], simd.Lanes, b[:], 4, b[:], 4, simd.Lanes, 4)
		simd.RMSNorm(y[:], x[:], b[:], 1)
		var codes [simd.Lanes * 4]byte
		simd.QuantDynamic(codes[:], y[:], x[:], 16)
	}))
}
