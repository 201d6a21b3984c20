package fp8_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// kernels are both ways to read a code, by whether it is the one of binary16.
var kernels = map[string]bool{"words": false, "halves": true}

// Which weights are decoded in registers.
func TestDecodes(t *testing.T) {
	r := newRand(61)
	for _, c := range []struct {
		elem    fp8.Elem
		kind    string
		k, cols int
		want    bool
	}{
		{fp8.ElemE4M3, "f32", 40, 16, true},
		{fp8.ElemE4M3, "e8m0", 40, 1000, true},
		{fp8.ElemE4M3, "bf16", 40, 41, true}, // one step holds all k
		{fp8.ElemE4M3, "f32", 40, 8, false},
		{fp8.ElemE4M3, "f32", 40, 18, false},
		{fp8.ElemE4M3, "f32", 42, 16, false},
		{fp8.ElemE4M3, "none", 40, 16, false},
		{fp8.ElemE4M3FNUZ, "f32", 40, 16, false},
		{fp8.ElemBF16, "none", 40, 16, false},
	} {
		p := product{m: 3, x: normal(r, 3*c.k, 1)}
		p.ms = []fp8.Matrix{someMatrix(t, r, c.elem, c.kind, 19, c.k, 7, c.cols)}
		w := p.pack(t)
		assert.Equal(t, c.want, fp8.Decodes(w), "%+v", c)
		assert.Equal(t, c.want, fp8.Prescaled(p.activated(t, w, fp8.Product{}, 0)), "%+v", c)
		kerneltest.Equal(t, p.want(simd.Fma), p.got(t, nil), "%+v", c)
	}
}

// Numbers of rows, outputs, k and steps that take every path, on both kernels: Mul and MulPanels give
// the bits of the definition, also from rows that other weights of the same K have left as they are.
func TestMulDecoded(t *testing.T) {
	r := newRand(62)
	sizes := [][3]int{{1, 70, 280}, {2, 1, 4}, {3, 33, 1000}, {5, 16, 256}, {13, 100, 36}, {17, 31, 64}, {75, 17, 40}, {4, 800, 16}, {19, 20, 5600}, {7, 17, 17000}}
	if testing.Short() {
		sizes = sizes[:3]
	}
	for _, size := range sizes {
		m, n, k := size[0], size[1], size[2]
		for _, step := range []int{16, 20, 128, 300, k} {
			p := product{m: m, step: max(step, 16), x: normal(r, m*k, 1)}
			p.ms = []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 7, p.step)}
			w, want := p.pack(t), p.want(simd.Fma)
			require.True(t, fp8.Decodes(w))
			name := fmt.Sprintf("[%d, %d, %d], step %d", m, n, k, step)
			y := make([]float32, m*n)
			other := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemBF16, "none", 1, k, 0, 0)}}.pack(t)
			w.MulPanels(0, y, n, p.activated(t, other, fp8.Product{}, 0), m, 0, n)
			kerneltest.Equal(t, want, y, "MulPanels %s", name)
			for kernel, half := range kernels {
				fp8.UseHalf(w, half)
				fill(y, float32(math.NaN()))
				require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}))
				kerneltest.Equal(t, want, y, "%s, %s", name, kernel)

				a := p.activated(t, w, fp8.Product{}, 0)
				require.True(t, fp8.Prescaled(a))
				n0 := n / 2 / simd.Lanes * simd.Lanes
				width := n - n0
				part := make([]float32, m*(width+2))
				fill(part, -77)
				w.MulPanels(0, part, width+2, a, m, n0, n)
				for i := range m {
					kerneltest.Equal(t, want[i*n+n0:][:width], part[i*(width+2):][:width], "%s, %s, columns from %d, row %d", name, kernel, n0, i)
					require.Equal(t, []float32{-77, -77}, part[i*(width+2)+width:][:2], "beyond")
				}
			}
		}
	}
}

// TestCalls: whatever the sizes, no call has more multiply-adds than a level allows, and
// together they take every row, whole panels, and whole pieces of k.
func TestCalls(t *testing.T) {
	levels := []struct{ fma, tile int }{
		{simd.Blocks().CallFMA, simd.Blocks().RowTile}, {simd.Blocks().CallPairs, simd.Blocks().RowTile},
		{1 << 19, 6}, {1 << 18, 6}, {5 << 18, 8}, {5 << 17, 8}, {100_000, 8}, {50_000, 8}, // avx2, avx512, neon, and in pairs
	}
	for _, l := range levels {
		for _, group := range []int{fp8.GroupRows, fp8.PairGroup} {
			for k := 4; k <= 32768; k += 4 {
				for _, m := range []int{1, 2, 3, 4, 5, 6, 7, 9, 11, 12, 13, 17, 18, 23, 24, 37, 132} {
					smallest := m
					for left := m; left > 0; {
						rows := fp8.CallRows(l.fma, l.tile, k, left, group)
						width := fp8.CallWidth(l.fma, l.tile, k, rows)
						if rows < 1 || rows > left || width < simd.Lanes || width%simd.Lanes != 0 {
							t.Fatalf("%+v, k %d: a call of %d of %d rows by %d outputs", l, k, rows, left, width)
						}
						terms := fp8.CallTerms(l.fma, l.tile, k, rows, width)
						calls, fewest := (k-1)/terms+1, (rows*width*k-1)/l.fma+1
						if terms < 1 || terms < k && terms%256 != 0 || rows*width*min(terms, k) > l.fma {
							t.Fatalf("%+v, k %d: a call of %d rows by %d outputs by %d terms, want whole pieces and at most %d multiply-adds", l, k, rows, width, terms, l.fma)
						}
						if calls > fewest+fewest/4+1 || calls > 1 && (rows > 4 || width > simd.Lanes) {
							t.Fatalf("%+v, k %d: %d rows by %d outputs in calls of %d terms", l, k, rows, width, terms)
						}
						left -= rows
						smallest = min(smallest, rows)
					}
					if smallest < min(m, 2) {
						t.Fatalf("%+v, k %d: of %d rows, one is alone", l, k, m)
					}
				}
				if k <= 512 && l.fma >= 100_000 {
					require.Equal(t, fp8.GroupRows, fp8.CallRows(l.fma, l.tile, k, 132, fp8.GroupRows), "%+v, k %d", l, k)
				}
			}
		}
	}
	require.Equal(t, 512, fp8.CallTerms(100_000, 8, 512, 4, 16), "one call")
	require.Equal(t, 8192, fp8.CallTerms(1<<19, 6, 16384, 4, 16), "two calls")
	require.Equal(t, 1536, fp8.CallTerms(100_000, 8, 16384, 4, 16), "eleven calls")
	// Long sums take whole register tiles.
	require.Equal(t, 8, fp8.CallRows(5<<18, 8, 7168, 132, fp8.GroupRows))
	require.Equal(t, 5, fp8.CallRows(5<<18, 8, 16384, 132, fp8.GroupRows))
	require.Equal(t, 6, fp8.CallRows(1<<19, 6, 4096, 132, fp8.GroupRows))
	require.Equal(t, 4, fp8.CallRows(1<<19, 6, 16384, 132, fp8.GroupRows))
}

// TestMulLongSums: sums that take several calls on every level, in both arithmetics.
func TestMulLongSums(t *testing.T) {
	r := newRand(64)
	const m, n, k = 5, 17, 20744
	for _, step := range []int{128, 300, k} {
		p := product{m: m, x: normal(r, m*k, 1)}
		p.ms = []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 7, step)}
		w, want, y := p.pack(t), p.want(simd.Fma), make([]float32, m*n)
		require.True(t, fp8.Decodes(w))
		for kernel, half := range map[string]bool{"GemmE4M3": false, "GemmE4M3Half": true} {
			fp8.UseHalf(w, half)
			fill(y, float32(math.NaN()))
			require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}))
			kerneltest.Equal(t, want, y, "%s, step %d", kernel, step)
		}
		kerneltest.Equal(t, p.wantPairs(simd.Fma), p.gotPairs(t, nil, 0), "pairs, step %d", step)
	}
}

// TestPieceCalls: no call of the kernels that take a piece of k is longer than a level
// allows, and together they take every row, in calls of about one size.
func TestPieceCalls(t *testing.T) {
	b := simd.Blocks()
	most := []int{b.CallFMA, b.CallFMA / 2, b.CallPairs, b.CallFolds,
		1 << 19, 1 << 18, (1 << 19) / 10, 5 << 18, 5 << 17, (5 << 18) / 10, 100_000, 50_000, 10_000} // avx2, avx512, neon
	for _, most := range most {
		for _, outputs := range []int{1, 7, 15, 16, 17, 32} {
			whole := (outputs + simd.Lanes - 1) / simd.Lanes * simd.Lanes // lanes of panels
			for k := 1; k <= 256; k++ {
				for _, m := range []int{1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 24, 25, 31, 32, 37, 64, 132, 256, 1000} {
					rows := fp8.PieceRows(m, most, outputs, k)
					calls := (m + rows - 1) / rows
					fewest := (m-1)/(most/(whole*k)) + 1
					if rows < 1 || rows*whole*k > most || calls > fewest {
						t.Fatalf("%d outputs by %d terms: calls of %d of %d rows, want at most %d multiply-adds and %d calls", outputs, k, rows, m, most, fewest)
					}
				}
			}
		}
	}
	require.Equal(t, 22, fp8.PieceRows(64, 100_000, simd.Lanes, 256))
	require.Equal(t, 2, fp8.PieceRows(64, 10_000, simd.Lanes, 256))
	require.Equal(t, 64, fp8.PieceRows(64, 1<<19, simd.Lanes, 256))
}

// Activations at the limits of what can be multiplied by the power of two and beyond, which a NaN or
// an infinity among the results tells: the same bits, whatever they are.
func TestMulDecodedExtremes(t *testing.T) {
	r := newRand(63)
	const m, n, k, step = 7, 35, 272, 64
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	negativeZero := float32(math.Copysign(0, -1))
	special := func(x ...float32) func(x []float32) {
		return func(all []float32) {
			for i, v := range x {
				all[(37*i+1)%len(all)] = v
			}
		}
	}
	sized := func(size float64) func(x []float32) {
		return func(x []float32) { copy(x, normal(r, len(x), size)) }
	}
	for _, c := range []struct {
		name  string
		exact bool // for both kernels
		set   func(x []float32)
	}{
		{"1e-45", true, sized(1e-45)},
		{"1e-38", true, sized(1e-38)},
		{"1e-30", true, sized(1e-30)},
		{"1e30", false, sized(1e30)},
		{"300", false, special(300)},
		{"255", true, special(255.99998, -255.99998)},
		{"256", false, special(256)},
		{"-0", true, func(x []float32) { fill(x, negativeZero) }},
		{"NaN", false, special(nan)},
		{"Inf", false, special(inf)},
		{"-Inf and NaN", false, special(-inf, nan)},
		{"largest", false, special(math.MaxFloat32, -math.MaxFloat32)},
	} {
		p := product{m: m, x: normal(r, m*k, 1)}
		c.set(p.x)
		p.ms = []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 5, step)}
		w, want := p.pack(t), p.want(kerneltest.BigFma)
		exact := true
		for kernel, half := range kernels {
			fp8.UseHalf(w, half)
			exact = fp8.Prescaled(p.activated(t, w, fp8.Product{}, 0)) && exact
			y := make([]float32, m*n)
			require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}))
			kerneltest.Equal(t, want, y, "%s, %s", c.name, kernel)
		}
		assert.Equal(t, c.exact, exact, "%s", c.name)
	}
}

// Every code but the NaNs is read alike by both kernels; a NaN code takes the
// product away from all matrices packed with it, and their bits stay.
func TestMulDecodedCodes(t *testing.T) {
	r := newRand(64)
	const m, n, k = 3, 4, 256
	codes := make([]byte, n*k)
	for i := range codes {
		if codes[i] = byte(i); codes[i]&0x7F == 0x7F {
			codes[i] = 0x80
		}
	}
	matrix := func() fp8.Matrix {
		own := append([]byte(nil), codes...)
		return must(t)(fp8.New(fp8.ElemE4M3, n, k, own, fp8.ScalesF32([]float32{1, 0.3}), n, 128))
	}
	finite, broken := matrix(), fp8.Matrix{}
	codes[2*k+100] = 0xFF
	broken = matrix()
	for _, ms := range [][]fp8.Matrix{{finite}, {broken}, {finite, broken}} {
		p := product{ms: ms, m: m, x: normal(r, len(ms)*m*k, 1)}
		w, want := p.pack(t), p.want(simd.Fma)
		assert.Equal(t, len(ms) == 1 && ms[0].Code(2, 100) == ms[0].Code(2, 100), fp8.Decodes(w))
		for kernel, half := range kernels {
			fp8.UseHalf(w, half)
			y := make([]float32, len(want))
			require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}))
			kerneltest.Equal(t, want, y, "%d matrices, %s", len(ms), kernel)
		}
	}
}

// bf16 and f16 rows are widened and multiplied in place; those too large are not.
func TestMulDecodedNarrowRows(t *testing.T) {
	r := newRand(65)
	const m, n, k = 35, 20, 260
	for _, size := range []float64{1, 1e4} {
		p := product{m: m, x: normal(r, m*k, size)}
		p.ms = []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "bf16", n, k, 8, 20)}
		w := p.pack(t)
		require.True(t, fp8.Decodes(w))
		halves := make([]uint16, len(p.x))
		for _, x := range []fp8.Rows{fp8.RowsBF16(halves), fp8.RowsF16(halves)} {
			x.Narrow(0, p.x)
			x.Widen(p.x, 0, len(p.x))
			y := make([]float32, m*n)
			require.NoError(t, w.Mul(nil, nil, y, x, p.shape(), fp8.Product{}))
			kerneltest.Equal(t, p.want(simd.Fma), y, "%v of size %v", x.Kind(), size)
		}
	}
}

func TestMulDecodedAllocs(t *testing.T) {
	r := newRand(66)
	pool := workpool.New(3)
	defer pool.Close()
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 50, 40, 8, 20)}, m: 2, x: normal(r, 2*40, 1)}
	w, y, halves := p.pack(t), make([]float32, 100), make([]uint16, len(p.x))
	for _, x := range []fp8.Rows{fp8.RowsF32(p.x), fp8.RowsBF16(halves)} {
		for name, pool := range map[string]*fp8.Pool{"no pool": nil, "3 workers": pool} {
			assert.Zero(t, testing.AllocsPerRun(50, func() {
				if err := w.Mul(nil, pool, y, x, p.shape(), fp8.Product{}); err != nil {
					t.Error(err)
				}
			}), "Mul of %v, %s", x.Kind(), name)
		}
	}
	a := p.activated(t, w, fp8.Product{}, 0)
	require.True(t, fp8.Prescaled(a))
	assert.Zero(t, testing.AllocsPerRun(50, func() {
		w.Activate(a, p.x, 40, 2)
		w.MulPanels(0, y, 50, a, 2, 0, 50)
	}), "MulPanels")
}
