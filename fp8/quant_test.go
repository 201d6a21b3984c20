package fp8_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// inOrderCodes is one output of a product with quantised activations, in the order
// of roundings of the package comment: x are the values of codes.
func inOrderCodes(fma func(a, b, c float32) float32, x, sx []float32, group int, w fp8.Matrix, j, step int) float32 {
	var total, part float32
	for k := range x {
		part = fma(x[k], w.Code(j, k), part)
		next := k + 1
		if next == len(x) || next%256 == 0 || next%step == 0 || next%group == 0 {
			total = fma(part, float32(sx[k/group]*w.Scale(j, k)), total)
			part = 0
		}
	}
	return total
}

// stepOf is the step at which the packed product is cut.
func (p product) stepOf() int {
	if p.step > 0 {
		return p.step
	}
	return p.ms[0].BlockCols()
}

// quantised are the codes [batch][m][k] of the rows and the scales
// [batch][m][ceil(k/group)].
func (p product) quantised(group int) (codes []byte, scales []float32) {
	k := p.ms[0].Cols()
	groups := blocks(k, group)
	codes, scales = make([]byte, len(p.x)), make([]float32, len(p.x)/k*groups)
	for i := range len(p.x) / k {
		simd.QuantDynamic(codes[i*k:][:k], scales[i*groups:][:groups], p.x[i*k:][:k], group)
	}
	return codes, scales
}

// wantQuant are the outputs [batch][m][n] by inOrderCodes.
func (p product) wantQuant(fma func(a, b, c float32) float32, group int) (y []float32) {
	codes, scales := p.quantised(group)
	k := p.ms[0].Cols()
	groups := blocks(k, group)
	for b, w := range p.ms {
		for i := range p.m {
			row := b*p.m + i
			x := make([]float32, k)
			fp8.ToFloat32s(x, fp8.Cast[fp8.E4M3](codes[row*k:][:k]))
			for j := range w.Rows() {
				y = append(y, inOrderCodes(fma, x, scales[row*groups:][:groups], group, w, j, p.stepOf()))
			}
		}
	}
	return y
}

// gotQuant are the outputs [batch][m][n] by Mul.
func (p product) gotQuant(t testing.TB, pool *fp8.Pool, group int) []float32 {
	t.Helper()
	w := p.pack(t)
	y := make([]float32, w.Batch()*p.m*w.N())
	fill(y, float32(math.NaN()))
	require.NoError(t, w.Mul(context.Background(), pool, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{Group: group}))
	return y
}

// Every code type and kind of scales, steps on both sides of where an unquantised
// product folds, and groups that do and do not meet them.
func TestMulQuantInOrder(t *testing.T) {
	r := newRand(41)
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
				kerneltest.Equal(t, p.wantQuant(simd.Fma, group), p.gotQuant(t, nil, group), "%v, %s scales in blocks of %dx%d, groups of %d, [%d, %d, %d]",
					elem, kind, blockRows, blockCols, group, m, n, k)
			}
		}
	}
}

// The same against a fused multiply-add in big.Float, on edge data; a result is near
// the exact sum of what was quantised.
func TestMulQuantBig(t *testing.T) {
	r := newRand(42)
	const m, n, k = 2, 3, 270
	for _, size := range []float64{1, 1e-38, 1e-30, 1e30} {
		for _, c := range []struct{ step, group int }{{64, 48}, {8, 128}, {300, 12}} {
			p := product{m: m, x: normal(r, m*k, size)}
			p.ms = []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 2, c.step)}
			got := p.gotQuant(t, nil, c.group)
			kerneltest.Equal(t, p.wantQuant(kerneltest.BigFma, c.group), got, "step %d, groups of %d, activations of %v", c.step, c.group, size)
			if size > 1e-31 && size < 1e29 {
				for i, y := range got {
					sum, terms := exact(p.row(0, i/n), p.ms[0], i%n)
					assert.InDelta(t, sum, y, terms*0x1p-4, "activations of %v, y[%d]", size, i) // half a step of E4M3
				}
			}
		}
	}
}

// Bits of a model of the arithmetic in another language. Its x are values with more
// bits than codes have.
func TestMulQuantVectors(t *testing.T) {
	tensor := tensors(t, "testdata/gemm.safetensors")
	x, shape := tensor("gemm_sxsw.x")
	sx, sxShape := tensor("gemm_sxsw.x_scale")
	values, wShape := tensor("gemm_sxsw.weight_values")
	sw, swShape := tensor("gemm_sxsw.weight_scale")
	want, _ := tensor("gemm_sxsw.y")
	m, n, k := shape[0], wShape[0], wShape[1]
	group, step := k/sxShape[1], k/swShape[1]
	w := must(t)(fp8.PlainF32(n, k, values))
	w = must(t)(fp8.Scaled(w, fp8.ScalesF32(sw), n, step))

	inOrder := make([]float32, m*n)
	for i := range inOrder {
		row := i / n
		inOrder[i] = inOrderCodes(simd.Fma, x[row*k:][:k], sx[row*sxShape[1]:], group, w, i%n, step)
	}
	kerneltest.Equal(t, want, inOrder, "in order")

	p := product{ms: []fp8.Matrix{w}}
	y := make([]float32, m*n)
	fp8.MulQuantValues(p.pack(t), y, x, sx, group, m)
	kerneltest.Equal(t, want, y, "packed")
}

// Zeros, infinities and NaN: a NaN reaches all outputs of its row and no other row,
// an infinity is a large number, even where the weights are zero.
func TestMulQuantSpecial(t *testing.T) {
	r := newRand(43)
	const m, n, k, group = 5, 18, 40, 16
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, step := range []int{8, 40} {
		codes := someCodes(r, fp8.ElemE4M3, n*k)
		clear(codes[3*k:][:k])
		w := must(t)(fp8.New(fp8.ElemE4M3, n, k, codes, someScales(r, "f32", blocks(k, step)), n, step))
		p := product{ms: []fp8.Matrix{w}, m: m, x: normal(r, m*k, 1)}
		p.x[1*k+39] = nan
		p.x[2*k+5], p.x[2*k+39] = inf, -inf
		clear(p.x[3*k:][:k])
		p.x[4*k] = 1e-45
		got := p.gotQuant(t, nil, group)
		kerneltest.Equal(t, p.wantQuant(kerneltest.BigFma, group), got, "step %d", step)
		for i, y := range got {
			row, j := i/n, i%n
			assert.Equal(t, row == 1, y != y, "y[%d][%d] = %v", row, j, y)
			assert.False(t, math.IsInf(float64(y), 0), "y[%d][%d]", row, j)
			if row == 3 || j == 3 && row != 1 {
				assert.Zero(t, y, "y[%d][%d]", row, j)
			}
		}
		p.x[2*k+5], p.x[2*k+39] = 1200, -1200
		kerneltest.Equal(t, got[2*n:][:n], p.gotQuant(t, nil, group)[2*n:][:n], "Inf counts as 1200")
	}
}

// A NaN code of the weights reaches its output, and no other.
func TestMulQuantNaNWeight(t *testing.T) {
	r := newRand(44)
	const n, k = 5, 40
	codes := someCodes(r, fp8.ElemE4M3, n*k)
	codes[3*k+17] = 0xFF
	p := product{m: 3, x: normal(r, 3*k, 1)}
	p.ms = []fp8.Matrix{must(t)(fp8.New(fp8.ElemE4M3, n, k, codes, someScales(r, "f32", n), 1, k))}
	for i, y := range p.gotQuant(t, nil, 16) {
		assert.Equal(t, i%n == 3, y != y, "y[%d][%d] = %v", i/n, i%n, y)
	}
}

// Batches with strides, rows that all matrices share, more rows than are quantised
// at a time, bf16 and f16 rows, and any number of workers: the same bits.
func TestMulQuantWorkers(t *testing.T) {
	r := newRand(45)
	const batch, m, n, k, group = 2, 300, 20, 24, 10
	var ms []fp8.Matrix
	for range batch {
		ms = append(ms, someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 4, 16))
	}
	p := product{ms: ms, m: m, x: normal(r, batch*m*k, 1)}
	if testing.Short() {
		p.m, p.x = 3, p.x[:batch*3*k]
	}
	halves := make([]uint16, len(p.x)+1)
	for _, x := range []fp8.Rows{fp8.RowsBF16(halves), fp8.RowsF16(halves), fp8.RowsF32(p.x)} {
		x.Narrow(0, p.x)
		x.Widen(p.x, 0, len(p.x))
		want, w := p.wantQuant(simd.Fma, group), p.pack(t)
		for _, workers := range []int{0, 1, 2, 3, 7} {
			var pool *fp8.Pool
			var meet workpool.Meet
			if workers > 0 {
				pool = workpool.New(workers)
				pool.SetHook(meet.Wait)
			}
			y := make([]float32, len(want))
			require.NoError(t, w.Mul(context.Background(), pool, y, x, p.shape(), fp8.Product{Group: group}))
			kerneltest.Equal(t, want, y, "%v rows, %d workers", x.Kind(), workers)
			if workers > 1 {
				assert.GreaterOrEqual(t, meet.Workers(), 2, "workers that did work, of %d", workers)
			}
			require.NoError(t, pool.Close())
		}
	}

	shared := product{ms: ms, m: 2, x: append(append([]float32(nil), p.x[:2*k]...), p.x[:2*k]...)}
	w := shared.pack(t)
	y := make([]float32, batch*2*n)
	require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x[:2*k]), fp8.Shape{M: 2}, fp8.Product{Group: group}))
	kerneltest.Equal(t, shared.wantQuant(simd.Fma, group), y, "shared rows")

	s := fp8.Shape{M: 2, LdX: k + 3, LdY: batch * (n + 1), StrideX: 2 * (k + 3), StrideY: n + 1}
	x, y := make([]float32, batch*s.StrideX), make([]float32, 2*s.LdY)
	fill(x, float32(math.NaN()))
	fill(y, -77)
	for b := range batch {
		for i := range 2 {
			copy(x[b*s.StrideX+i*s.LdX:][:k], shared.row(b, i))
		}
	}
	require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(x), s, fp8.Product{Group: group}))
	for b := range batch {
		for i := range 2 {
			row := y[b*s.StrideY+i*s.LdY:][:n+1]
			kerneltest.Equal(t, shared.wantQuant(simd.Fma, group)[(b*2+i)*n:][:n], row[:n], "strides, matrix %d, row %d", b, i)
			assert.Equal(t, float32(-77), row[n], "beyond matrix %d, row %d", b, i)
		}
	}
}

// Slices that end where the last element does, at memory that may not be touched.
func TestMulQuantPanels(t *testing.T) {
	r := newRand(46)
	const m, n, k = 34, 37, 280
	for _, c := range []struct{ step, group int }{{64, 48}, {8, 280}} {
		p := product{m: m, x: normal(r, 2*m*k, 1)}
		p.ms = []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 32, c.step), someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 32, c.step)}
		codes, scales := p.quantised(c.group)
		want, w, groups := p.wantQuant(simd.Fma, c.group), p.pack(t), blocks(k, c.group)
		require.NoError(t, w.Acquire())
		for _, at := range kerneltest.Edges {
			a := p.activated(t, w, fp8.Product{Group: c.group}, 1)
			gotCodes, gotScales := fp8.Codes(a)
			require.Equal(t, codes[m*k:], gotCodes[:m*k])
			kerneltest.Equal(t, scales[m*groups:], gotScales, "scales")
			fp8.PutCodes(a, kerneltest.FencedCopy(t, codes[m*k:], at), kerneltest.FencedCopy(t, scales[m*groups:], at))
			for _, cols := range [][2]int{{0, 37}, {16, 32}, {32, 33}, {32, 32}} {
				n0, n1 := cols[0], cols[1]
				width := n1 - n0
				y := kerneltest.Fenced[float32](t, m*(width+2)-2, at)
				fill(y, -77)
				w.MulPanels(1, y, width+2, a, m, n0, n1)
				for i := range m {
					kerneltest.Equal(t, want[(m+i)*n+n0:][:width], y[i*(width+2):][:width], "columns %v, row %d, %v", cols, i, at)
					if i < m-1 {
						kerneltest.Equal(t, []float32{-77, -77}, y[i*(width+2)+width:][:2], "beyond columns %v", cols)
					}
				}
			}
		}
		w.MulPanels(0, nil, 0, p.activated(t, w, fp8.Product{Group: c.group}, 0), 0, 0, n)
		w.Release()
	}
}

func TestMulQuantConcurrent(t *testing.T) {
	r := newRand(47)
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE5M2, "e8m0", 20, 64, 8, 32)}, m: 3, x: normal(r, 3*64, 1)}
	want, w := p.wantQuant(simd.Fma, 24), p.pack(t)
	pool := workpool.New(3)
	defer pool.Close()
	concurrently(t, want, func(y []float32) error {
		return w.Mul(context.Background(), pool, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{Group: 24})
	})
}

func TestMulQuantAllocs(t *testing.T) {
	r := newRand(48)
	pool := workpool.New(3)
	defer pool.Close()
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 50, 40, 8, 8)}, m: 2, x: normal(r, 2*40, 1)}
	w, y, halves := p.pack(t), make([]float32, 100), make([]uint16, len(p.x))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for _, x := range []fp8.Rows{fp8.RowsF32(p.x), fp8.RowsBF16(halves)} {
		for name, pool := range map[string]*fp8.Pool{"no pool": nil, "3 workers": pool} {
			assert.Zero(t, testing.AllocsPerRun(50, func() {
				if err := w.Mul(ctx, pool, y, x, p.shape(), fp8.Product{Group: 16}); err != nil {
					t.Error(err)
				}
			}), "MulQuant of %v, %s", x.Kind(), name)
		}
	}
	require.NoError(t, w.Acquire())
	a := p.activated(t, w, fp8.Product{Group: 16}, 0)
	assert.Zero(t, testing.AllocsPerRun(50, func() {
		w.Activate(a, p.x, 40, 2)
		w.MulPanels(0, y, 50, a, 2, 0, 50)
	}), "MulPanels")
	w.Release()
}

func TestMulQuantErrors(t *testing.T) {
	r := newRand(49)
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 6, 8, 6, 8)}, m: 3, x: normal(r, 3*8, 1)}
	plain := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemBF16, "none", 6, 8, 0, 0)}}.pack(t)
	w, y, x := p.pack(t), make([]float32, 18), fp8.RowsF32(p.x)
	fill(y, -77)

	assert.True(t, w.Scaled())
	assert.False(t, plain.Scaled())
	err := plain.Mul(nil, nil, y, x, p.shape(), fp8.Product{Group: 8})
	assert.ErrorIs(t, err, fp8.ErrScale)
	assert.ErrorContains(t, err, "[1, 6, 8] of bf16 have none")
	assert.ErrorIs(t, plain.Mul(nil, nil, y, x, p.shape(), fp8.Product{Compute: fp8.ComputeBF16, Group: -1}), fp8.ErrScale)
	assert.Panics(t, func() { plain.MulPanels(0, y, 6, p.activated(t, w, fp8.Product{Group: 8}, 0), 3, 0, 6) })
	err = w.Mul(nil, nil, y, x, p.shape(), fp8.Product{Group: -1})
	assert.ErrorIs(t, err, fp8.ErrShape)
	assert.ErrorContains(t, err, "groups of -1 columns")
	assert.ErrorIs(t, w.Mul(nil, nil, y[:17], x, p.shape(), fp8.Product{Group: 8}), fp8.ErrShape)
	for i := range y {
		require.Equal(t, float32(-77), y[i], "an error in the shape writes nothing")
	}
	assert.NoError(t, w.Mul(nil, nil, nil, fp8.Rows{}, fp8.Shape{}, fp8.Product{Group: 8}), "no rows, nothing to do")

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	assert.ErrorIs(t, w.Mul(ctx, nil, y, x, p.shape(), fp8.Product{Group: 8}), context.Canceled)
	require.NoError(t, w.Mul(nil, nil, y, x, p.shape(), fp8.Product{Group: 8}), "the next product is unharmed")
	kerneltest.Equal(t, p.wantQuant(simd.Fma, 8), y, "after a cancelled product")
	ctx = during{context.Background(), func() { assert.ErrorIs(t, w.Close(), fp8.ErrBusy) }}
	require.NoError(t, w.Mul(ctx, nil, y, x, p.shape(), fp8.Product{Group: 8}))
	require.NoError(t, w.Close())
	assert.ErrorIs(t, w.Mul(nil, nil, y, x, p.shape(), fp8.Product{Group: 8}), fp8.ErrClosed)
}
