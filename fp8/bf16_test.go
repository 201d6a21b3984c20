package fp8_test

import (
	"context"
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

// nearestBF16 is the nearer of the two bf16 around x, of two as near the even one. Inf is
// what comes after the largest.
func nearestBF16(x float32) float32 {
	bits := math.Float32bits(x)
	if x != x || bits&0xFFFF == 0 {
		return x
	}
	low, high := bits&^0xFFFF, bits&^0xFFFF+0x10000
	value := func(bits uint32) float64 {
		if bits&0x7FFFFFFF == 0x7F800000 {
			return math.Copysign(0x1p128, float64(x))
		}
		return float64(math.Float32frombits(bits))
	}
	below, above := math.Abs(float64(x)-value(low)), math.Abs(value(high)-float64(x))
	if below < above || below == above && low&0x10000 == 0 {
		return math.Float32frombits(low)
	}
	return math.Float32frombits(high)
}

// asActivation and asWeight are what ComputeBF16 makes of a value.
func asActivation(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-60 {
		return 0
	}
	return nearestBF16(x)
}

func asWeight(x float32) float32 {
	if x = nearestBF16(x); math.Abs(float64(x)) < 0x1p-52 {
		return 0
	}
	return x
}

// ends are the k at which the sums of a product are cut, for borders at multiples of
// each of these, and of 256.
func ends(k int, borders ...int) (at []int) {
	for end := 1; end <= k; end++ {
		cut := end == k || end%256 == 0
		for _, b := range borders {
			cut = cut || end%b == 0
		}
		if cut {
			at = append(at, end)
		}
	}
	return at
}

// pairPart is the sum of the terms k0 .. k1 of a and w, the second of a pair first.
func pairPart(fma func(a, b, c float32) float32, a, w func(k int) float32, k0, k1 int) (part float32) {
	for k := k0; k < k1; k += 2 {
		if k+1 < k1 {
			part = fma(a(k+1), w(k+1), part)
		}
		part = fma(a(k), w(k), part)
	}
	return part
}

// inPairs is inOrder of ComputeBF16.
func inPairs(fma func(a, b, c float32) float32, x []float32, w fp8.Matrix, j, step int) (total float32) {
	scales, fold := step >= 16, step > 0 && step < 16
	a := func(k int) float32 {
		if fold {
			return asActivation(float32(x[k] * w.Scale(j, k)))
		}
		return asActivation(x[k])
	}
	weight := func(k int) float32 { return asWeight(w.Code(j, k)) }
	cuts := ends(len(x))
	if scales {
		cuts = ends(len(x), step)
	}
	k0 := 0
	for _, k1 := range cuts {
		part := pairPart(fma, a, weight, k0, k1)
		switch {
		case scales:
			total = fma(part, w.Scale(j, k0), total)
		case k0 == 0:
			total = part
		default:
			total += part
		}
		k0 = k1
	}
	return total
}

// inPairsOfCodes is inOrderCodes of ComputeBF16.
func inPairsOfCodes(fma func(a, b, c float32) float32, x, sx []float32, group int, w fp8.Matrix, j, step int) (total float32) {
	a := func(k int) float32 { return x[k] }
	weight := func(k int) float32 { return w.Code(j, k) }
	k0 := 0
	for _, k1 := range ends(len(x), step, group) {
		part := pairPart(fma, a, weight, k0, k1)
		total = fma(part, float32(sx[k0/group]*w.Scale(j, k0)), total)
		k0 = k1
	}
	return total
}

// wantPairs are the outputs [batch][m][n] by inPairs.
func (p product) wantPairs(fma func(a, b, c float32) float32) (y []float32) {
	step := 0
	if p.ms[0].Scaled() {
		step = p.stepOf()
	}
	for b, w := range p.ms {
		for i := range p.m {
			for j := range w.Rows() {
				y = append(y, inPairs(fma, p.row(b, i), w, j, step))
			}
		}
	}
	return y
}

// wantQuantPairs are the outputs [batch][m][n] by inPairsOfCodes.
func (p product) wantQuantPairs(fma func(a, b, c float32) float32, group int) (y []float32) {
	codes, scales := p.quantised(group)
	k := p.ms[0].Cols()
	groups := blocks(k, group)
	for b, w := range p.ms {
		for i := range p.m {
			row := b*p.m + i
			x := make([]float32, k)
			fp8.ToFloat32s(x, fp8.Cast[fp8.E4M3](codes[row*k:][:k]))
			for j := range w.Rows() {
				y = append(y, inPairsOfCodes(fma, x, scales[row*groups:][:groups], group, w, j, p.stepOf()))
			}
		}
	}
	return y
}

// gotPairs are the outputs [batch][m][n] by Mul.
func (p product) gotPairs(t testing.TB, pool *fp8.Pool, group int) []float32 {
	t.Helper()
	w := p.pack(t)
	y := make([]float32, w.Batch()*p.m*w.N())
	fill(y, float32(math.NaN()))
	require.NoError(t, w.Mul(context.Background(), pool, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{Compute: fp8.ComputeBF16, Group: group}))
	return y
}

// Every element type, kind of scales and step, at odd sizes: bit for bit the definition,
// and as near the exact sum as bf16 operands can be.
func TestMulBF16InOrder(t *testing.T) {
	r := newRand(71)
	elems := []fp8.Elem{fp8.ElemE4M3, fp8.ElemE5M2, fp8.ElemE4M3FNUZ, fp8.ElemE5M2FNUZ, fp8.ElemBF16, fp8.ElemF16, fp8.ElemF32}
	sizes := [][3]int{{1, 1, 1}, {2, 49, 270}, {3, 16, 257}, {1, 5, 600}, {5, 33, 24}, {2, 31, 513}, {300, 20, 40}, {17, 230, 512}}
	kinds := []string{"none", "f32", "bf16", "e8m0"}
	if testing.Short() {
		sizes, kinds = sizes[:2], kinds[:2]
	}
	turn := 0
	for _, size := range sizes {
		m, n, k := size[0], size[1], size[2]
		for _, blockCols := range []int{1, 8, 16, 17, 24, 64, 128, 300, k} {
			for _, kind := range kinds {
				turn++
				elem := elems[turn%len(elems)]
				if kind != "none" {
					elem = elems[turn%len(codeElems)]
				}
				blockRows := []int{1, 7, n}[turn%3]
				p := product{m: m, x: normal(r, m*k, 1)}
				p.ms = []fp8.Matrix{someMatrix(t, r, elem, kind, n, k, blockRows, blockCols)}
				got := p.gotPairs(t, nil, 0)
				name := fmt.Sprintf("%v, %s scales in blocks of %dx%d, [%d, %d, %d]", elem, kind, blockRows, blockCols, m, n, k)
				kerneltest.Equal(t, p.wantPairs(simd.Fma), got, "%s", name)
				for i := range m {
					for j := range n {
						sum, size := exact(p.row(0, i), p.ms[0], j)
						if math.Abs(float64(got[i*n+j])-sum) > size*0x1.1p-7 { // half a unit of either operand
							t.Fatalf("%s: y[%d][%d] is %v, want %v", name, i, j, got[i*n+j], sum)
						}
					}
				}
			}
		}
	}
}

// All kinds of weights at one size, so that none is left out by turns.
func TestMulBF16Elems(t *testing.T) {
	r := newRand(72)
	const m, n, k = 3, 35, 260
	for _, elem := range []fp8.Elem{fp8.ElemE4M3, fp8.ElemE5M2, fp8.ElemE4M3FNUZ, fp8.ElemE5M2FNUZ, fp8.ElemBF16, fp8.ElemF16, fp8.ElemF32} {
		kinds := []string{"none"}
		if elem.Size() == 1 {
			kinds = append(kinds, "f32")
		}
		for _, kind := range kinds {
			for _, cols := range []int{8, 20, 26} {
				p := product{m: m, x: normal(r, m*k, 1)}
				p.ms = []fp8.Matrix{someMatrix(t, r, elem, kind, n, k, 5, cols)}
				kerneltest.Equal(t, p.wantPairs(simd.Fma), p.gotPairs(t, nil, 0), "%v, %s scales, steps of %d", elem, kind, cols)
			}
		}
	}
}

// The same against a fused multiply-add in big.Float: activations and weights around
// what counts as zero, very large ones, infinities and NaN.
func TestMulBF16Extremes(t *testing.T) {
	r := newRand(73)
	const m, n, k = 2, 3, 270
	below, above := math.Nextafter32(0x1p-60, 0), math.Nextafter32(0x1p-60, 1)
	special := []float32{0x1p-60, below, above, -below, -0x1p-60, 0x1.01p0, 0x1.03p0, 0x1.FFFFFEp127, float32(math.Copysign(0, -1)), 1e-45}
	for _, size := range []float64{1, 1e-38, 0x1p-60, 1e-17, 1e30} {
		for _, c := range []struct {
			elem fp8.Elem
			kind string
			cols int
		}{{fp8.ElemE4M3, "none", 0}, {fp8.ElemE4M3, "f32", 64}, {fp8.ElemE4M3, "e8m0", 8}, {fp8.ElemF32, "none", 0}, {fp8.ElemBF16, "none", 0}} {
			p := product{m: m, x: normal(r, m*k, size)}
			copy(p.x[5:], special)
			w := someMatrix(t, r, c.elem, c.kind, n, k, 2, c.cols)
			switch c.elem { // weights around 2^-52
			case fp8.ElemF32:
				values := normal(r, n*k, 0x1p-52)
				copy(values[20:], []float32{0x1p-52, math.Nextafter32(0x1p-52, 0), 0x1.FEp-53, 0x1.FFp-53, 1, -0x1p-52})
				w = must(t)(fp8.PlainF32(n, k, values))
			case fp8.ElemBF16:
				values := make([]uint16, n*k)
				fp8.RowsBF16(values).Narrow(0, normal(r, n*k, 0x1p-52))
				w = must(t)(fp8.PlainBF16(n, k, values))
			}
			p.ms = []fp8.Matrix{w}
			kerneltest.Equal(t, p.wantPairs(kerneltest.BigFma), p.gotPairs(t, nil, 0), "%v, %s scales, activations of %v", c.elem, c.kind, size)
		}
	}
}

// A NaN code, a NaN activation and an infinity reach the outputs that use them, and no
// others; the lanes that pad a panel reach none.
func TestMulBF16NaN(t *testing.T) {
	r := newRand(74)
	for _, kind := range []string{"none", "f32", "e8m0"} {
		for _, step := range []int{8, 128} {
			for _, nan := range []bool{true, false} {
				codes := someCodes(r, fp8.ElemE4M3, 5*40)
				if nan {
					codes[3*40+17] = 0xFF
				}
				m := must(t)(fp8.New(fp8.ElemE4M3, 5, 40, codes, someScales(r, kind, 5*blocks(40, step)), 1, step))
				p := product{ms: []fp8.Matrix{m}, m: 3, x: normal(r, 3*40, 1)}
				p.x[40+5] = float32(math.Inf(1))
				p.x[80+39] = float32(math.NaN())
				got := p.gotPairs(t, nil, 0)
				kerneltest.Equal(t, p.wantPairs(simd.Fma), got, "%s", kind)
				for i, y := range got {
					row, j := i/5, i%5
					if row != 1 { // Inf times a code that is zero is NaN
						assert.Equal(t, row == 2 || nan && j == 3, y != y, "%s scales, y[%d][%d] = %v", kind, row, j, y)
					}
				}
			}
		}
	}
}

// Quantised activations: every code type, steps and groups of any size.
func TestMulQuantBF16InOrder(t *testing.T) {
	r := newRand(75)
	sizes := [][3]int{{2, 17, 270}, {1, 1, 1}, {35, 16, 40}, {1, 5, 600}, {3, 33, 24}}
	groups := []int{1, 5, 16, 64, 100, 128, 300, 1 << 40}
	if testing.Short() {
		sizes, groups = sizes[:2], groups[1:4]
	}
	turn := 0
	for _, size := range sizes {
		m, n, k := size[0], size[1], size[2]
		for _, blockCols := range []int{1, 8, 24, 64, 128, k} {
			for _, group := range groups {
				turn++
				elem, kind := codeElems[turn%len(codeElems)], []string{"f32", "bf16", "e8m0"}[turn%3]
				blockRows := []int{1, 7, n}[turn/2%3]
				p := product{m: m, x: normal(r, m*k, 1)}
				p.ms = []fp8.Matrix{someMatrix(t, r, elem, kind, n, k, blockRows, blockCols)}
				kerneltest.Equal(t, p.wantQuantPairs(simd.Fma, group), p.gotPairs(t, nil, group), "%v, %s scales in blocks of %dx%d, groups of %d, [%d, %d, %d]",
					elem, kind, blockRows, blockCols, group, m, n, k)
			}
		}
	}
	p := product{m: 2, x: normal(r, 2*70, 1e-30)}
	p.ms = []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 3, 70, 2, 20)}
	kerneltest.Equal(t, p.wantQuantPairs(kerneltest.BigFma, 14), p.gotPairs(t, nil, 14), "big.Float")
}

// The bits do not depend on the number of workers, on the type of the activations nor
// on how rows lie; what lies between them is left alone.
func TestMulBF16Rows(t *testing.T) {
	r := newRand(76)
	const batch, m, n, k = 2, 67, 40, 72
	for _, step := range []int{8, 64} {
		var ms []fp8.Matrix
		for range batch {
			ms = append(ms, someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 32, step))
		}
		p := product{ms: ms, m: m, x: normal(r, batch*m*k, 1)}
		halves := make([]uint16, len(p.x))
		for _, x := range []fp8.Rows{fp8.RowsF16(halves), fp8.RowsBF16(halves), fp8.RowsF32(p.x)} {
			if x.Kind() != fp8.ElemF32 {
				x.Narrow(0, p.x)
				x.Widen(p.x, 0, len(p.x))
			}
			want, w := p.wantPairs(simd.Fma), p.pack(t)
			for _, workers := range []int{1, 2, 3, 7} {
				pool := workpool.New(workers)
				y := make([]float32, batch*m*n)
				require.NoError(t, w.Mul(nil, pool, y, x, p.shape(), fp8.Product{Compute: fp8.ComputeBF16}))
				kerneltest.Equal(t, want, y, "step %d, %v, %d workers", step, x.Kind(), workers)
				require.NoError(t, pool.Close())
			}
			const ldy = batch*n + 3
			y := make([]float32, m*ldy)
			fill(y, -77)
			require.NoError(t, w.Mul(nil, nil, y, x, fp8.Shape{M: m, StrideX: m * k, LdY: ldy, StrideY: n}, fp8.Product{Compute: fp8.ComputeBF16}))
			for i := range m {
				for b := range batch {
					kerneltest.Equal(t, want[(b*m+i)*n:][:n], y[i*ldy+b*n:][:n], "step %d, %v, matrix %d, row %d", step, x.Kind(), b, i)
				}
				kerneltest.Equal(t, []float32{-77, -77, -77}, y[i*ldy+batch*n:][:3], "behind row %d", i)
			}
		}
	}
}

// Rows of outputs far apart, which are computed aside, and results so large that they are written
// past the caches: the bits of few rows at a time.
func TestMulBF16Tiles(t *testing.T) {
	r := newRand(80)
	sizes := [][3]int{{35, 210, 4200}, {1200, 3600, 3600 + 512}, {1200, 3600, 4099}}
	if testing.Short() {
		sizes = sizes[:1]
	}
	for _, size := range sizes {
		m, n, ldy := size[0], size[1], size[2]
		const k = 20
		p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 7, 16)}, m: m, x: normal(r, m*k, 1)}
		w, y := p.pack(t), make([]float32, m*ldy)
		fill(y, -77)
		require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x), fp8.Shape{M: m, LdY: ldy}, fp8.Product{Compute: fp8.ComputeBF16}))
		few := make([]float32, 16*n)
		for i := 0; i < m; i += 16 {
			rows := min(16, m-i)
			require.NoError(t, w.Mul(nil, nil, few, fp8.RowsF32(p.x[i*k:]), fp8.Shape{M: rows}, fp8.Product{Compute: fp8.ComputeBF16}))
			for j := range rows {
				kerneltest.Equal(t, few[j*n:][:n], y[(i+j)*ldy:][:n], "%v, row %d", size, i+j)
				require.Equal(t, float32(-77), y[(i+j)*ldy+n], "beyond row %d", i+j)
			}
		}
	}
}

// Parts of the outputs, for callers that split work themselves, from rows that the weights
// themselves have readied and that others have, whose scales are folded into A or not.
func TestMulBF16Panels(t *testing.T) {
	r := newRand(77)
	const m, n, k, group = 3, 70, 280, 128
	bf16, quantised := fp8.Product{Compute: fp8.ComputeBF16}, fp8.Product{Compute: fp8.ComputeBF16, Group: group}
	folds := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 3, k, 32, 8)}}.pack(t)
	plain := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemBF16, "none", 3, k, 0, 0)}}.pack(t)
	for _, step := range []int{0, 8, 25, 64} {
		kind := "f32"
		if step == 0 {
			kind = "none"
		}
		p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, kind, n, k, 32, step), someMatrix(t, r, fp8.ElemE4M3, kind, n, k, 32, step)}, m: m, x: normal(r, 2*m*k, 1)}
		want, w := p.wantPairs(simd.Fma), p.pack(t)
		assert.Equal(t, step == 8, fp8.FoldsIntoA(w))
		for _, cols := range [][2]int{{0, 70}, {16, 32}, {32, 41}, {64, 70}, {48, 48}} {
			n0, n1 := cols[0], cols[1]
			width := n1 - n0
			y := make([]float32, m*(width+2))
			check := func(a *fp8.Activation, want []float32, what string) {
				t.Helper()
				fill(y, -77)
				w.MulPanels(1, y, width+2, a, m, n0, n1)
				for i := range m {
					kerneltest.Equal(t, want[(m+i)*n+n0:][:width], y[i*(width+2):][:width], "%s, step %d, columns %v, row %d", what, step, cols, i)
					kerneltest.Equal(t, []float32{-77, -77}, y[i*(width+2)+width:][:2], "beyond columns %v", cols)
				}
			}
			for name, by := range map[string]*fp8.Packed{"its own": w, "folding": folds, "plain": plain} {
				check(p.activated(t, by, bf16, 1), want, "rows of "+name)
			}
			codes := p.activated(t, w, quantised, 1)
			if w.Scaled() {
				check(codes, p.wantQuantPairs(simd.Fma, group), "codes")
			} else {
				assert.Panics(t, func() { w.MulPanels(1, y, n, codes, 1, 0, n) })
			}
		}
		w.MulPanels(0, nil, 0, p.activated(t, w, bf16, 0), 0, 0, n)
	}
}

// Errors are those of ComputeF32.
func TestMulBF16Errors(t *testing.T) {
	r := newRand(78)
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "none", 6, 8, 0, 0)}}
	w := p.pack(t)
	y := []float32{-77, -77, -77, -77, -77, -77}
	x := fp8.RowsF32(make([]float32, 8))
	assert.ErrorIs(t, w.Mul(nil, nil, y, x, fp8.Shape{M: 2}, fp8.Product{Compute: fp8.ComputeBF16}), fp8.ErrShape)
	assert.ErrorIs(t, w.Mul(nil, nil, y[:5], x, fp8.Shape{M: 1}, fp8.Product{Compute: fp8.ComputeBF16}), fp8.ErrShape)
	assert.ErrorIs(t, w.Mul(nil, nil, y, x, fp8.Shape{M: 1}, fp8.Product{Compute: fp8.ComputeBF16, Group: 4}), fp8.ErrScale)
	assert.Equal(t, []float32{-77, -77, -77, -77, -77, -77}, y)
	assert.NoError(t, w.Mul(nil, nil, nil, fp8.Rows{}, fp8.Shape{}, fp8.Product{Compute: fp8.ComputeBF16}), "no rows, nothing to do")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, w.Mul(ctx, nil, y, x, fp8.Shape{M: 1}, fp8.Product{Compute: fp8.ComputeBF16}), context.Canceled)
	require.NoError(t, w.Close())
	assert.ErrorIs(t, w.Mul(nil, nil, y, x, fp8.Shape{M: 1}, fp8.Product{Compute: fp8.ComputeBF16}), fp8.ErrClosed)
	assert.ErrorIs(t, w.Mul(nil, nil, y, x, fp8.Shape{M: 1}, fp8.Product{Compute: fp8.ComputeBF16, Group: 4}), fp8.ErrClosed)
}

func TestMulBF16Allocs(t *testing.T) {
	r := newRand(79)
	pool := workpool.New(3)
	defer pool.Close()
	const m, n, k = 2, 50, 40
	for _, c := range []struct {
		elem fp8.Elem
		kind string
		cols int
	}{{fp8.ElemE4M3, "f32", 20}, {fp8.ElemE4M3, "f32", 8}, {fp8.ElemE4M3, "none", 0}, {fp8.ElemBF16, "none", 0}, {fp8.ElemF32, "none", 0}} {
		p := product{ms: []fp8.Matrix{someMatrix(t, r, c.elem, c.kind, n, k, 8, c.cols)}, m: m, x: normal(r, m*k, 1)}
		w := p.pack(t)
		y, halves := make([]float32, m*n), make([]uint16, m*k)
		for _, x := range []fp8.Rows{fp8.RowsF32(p.x), fp8.RowsBF16(halves)} {
			for name, pool := range map[string]*fp8.Pool{"no pool": nil, "3 workers": pool} {
				assert.Zero(t, testing.AllocsPerRun(50, func() {
					if err := w.Mul(nil, pool, y, x, p.shape(), fp8.Product{Compute: fp8.ComputeBF16}); err != nil {
						t.Error(err)
					}
					if !w.Scaled() {
						return
					}
					if err := w.Mul(nil, pool, y, x, p.shape(), fp8.Product{Compute: fp8.ComputeBF16, Group: 16}); err != nil {
						t.Error(err)
					}
				}), "%+v by %v, %s", c, x.Kind(), name)
			}
		}
		a := p.activated(t, w, fp8.Product{Compute: fp8.ComputeBF16}, 0)
		assert.Zero(t, testing.AllocsPerRun(50, func() {
			w.Activate(a, p.x, k, m)
			w.MulPanels(0, y, n, a, m, 0, n)
		}), "%+v", c)
	}
}
