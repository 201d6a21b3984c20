package fp8_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

func TestParseCompute(t *testing.T) {
	for _, c := range []fp8.Compute{fp8.ComputeF32, fp8.ComputeBF16} {
		got, err := fp8.ParseCompute(c.String())
		require.NoError(t, err)
		assert.Equal(t, c, got)
	}
	_, err := fp8.ParseCompute("f16")
	assert.ErrorIs(t, err, fp8.ErrCompute)
	assert.ErrorContains(t, err, `"f16" is none of f32, bf16`)
	assert.Equal(t, "Compute(9)", fp8.Compute(9).String())
}

func TestActivationErrors(t *testing.T) {
	const huge = math.MaxInt/8 + 1
	for _, c := range []struct {
		spec fp8.ActivationSpec
		want error
		says string
	}{
		{fp8.ActivationSpec{Rows: -1, K: 8}, fp8.ErrShape, "activations [-1, 8]"},
		{fp8.ActivationSpec{Rows: 1}, fp8.ErrShape, "activations [1, 0]"},
		{fp8.ActivationSpec{Rows: huge, K: 1}, fp8.ErrShape, "more than an int counts"},
		{fp8.ActivationSpec{Rows: 1, K: huge}, fp8.ErrShape, "more than an int counts"},
		{fp8.ActivationSpec{Rows: 0, K: math.MaxInt}, fp8.ErrShape, "more than an int counts"},
		{fp8.ActivationSpec{Rows: 1, K: 8, Product: fp8.Product{Group: -3}}, fp8.ErrShape, "groups of -3 columns"},
		{fp8.ActivationSpec{Rows: 1, K: 8, Product: fp8.Product{Compute: 255}}, fp8.ErrCompute, "Compute(255), want at most"},
	} {
		err := new(fp8.Activation).Init(c.spec, make([]float32, 99))
		assert.ErrorIs(t, err, c.want, "%+v", c.spec)
		assert.ErrorContains(t, err, c.says, "%+v", c.spec)
		assert.Zero(t, c.spec.Floats(), "%+v", c.spec)
	}
	r := newRand(91)
	w := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 6, 8, 6, 8)}}.pack(t)
	y := make([]float32, 6)
	assert.ErrorIs(t, w.Mul(nil, nil, y, fp8.RowsF32(make([]float32, 8)), fp8.Shape{M: 1}, fp8.Product{Compute: 255}), fp8.ErrCompute)
	assert.Equal(t, make([]float32, 6), y)

	var a fp8.Activation
	assert.Panics(t, func() { w.Activate(&a, make([]float32, 8), 8, 1) }, "the zero Activation")
	assert.Panics(t, func() { w.MulPanels(0, y, 6, &a, 1, 0, 6) }, "the zero Activation")
	spec := fp8.ActivationSpec{Rows: 2, K: 8}
	require.NoError(t, a.Init(spec, make([]float32, spec.Floats())))
	assert.Panics(t, func() { w.Activate(&a, make([]float32, 24), 8, 3) }, "more rows than it is for")
	w.Activate(&a, make([]float32, 8), 8, 1)
	assert.Panics(t, func() { w.MulPanels(0, make([]float32, 12), 6, &a, 2, 0, 6) }, "more rows than were activated")
	other := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemF32, "none", 6, 9, 0, 0)}}.pack(t)
	assert.Panics(t, func() { other.Activate(&a, make([]float32, 9), 9, 1) }, "another K")
	assert.Panics(t, func() { other.MulPanels(0, y, 6, &a, 1, 0, 6) }, "another K")
}

// TestActivationMemory: every kind takes what Floats says and no more, starts from any garbage, may
// be made again of fewer rows, and serves all matrices.
func TestActivationMemory(t *testing.T) {
	r := newRand(92)
	const m, n, k = 5, 35, 45
	for _, step := range []int{8, 20} {
		ms := []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 7, step), someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 7, step)}
		x := normal(r, m*k, 1)
		p := product{ms: ms, m: m, x: append(append([]float32(nil), x...), x...)}
		w := p.pack(t)
		for _, how := range []fp8.Product{{}, {Compute: fp8.ComputeBF16}, {Group: 16}, {Compute: fp8.ComputeBF16, Group: 7}, {Group: 1 << 40}} {
			var want []float32
			switch {
			case how.Compute == fp8.ComputeF32 && how.Group == 0:
				want = p.want(simd.Fma)
			case how.Compute == fp8.ComputeF32:
				want = p.wantQuant(simd.Fma, how.Group)
			case how.Group == 0:
				want = p.wantPairs(simd.Fma)
			default:
				want = p.wantQuantPairs(simd.Fma, how.Group)
			}
			for _, at := range kerneltest.Edges {
				spec := fp8.ActivationSpec{Product: how, Rows: m, K: k}
				require.Positive(t, spec.Floats())
				buf := kerneltest.Fenced[float32](t, spec.Floats(), at)
				fill(buf, float32(math.NaN()))
				a := new(fp8.Activation)
				require.ErrorIs(t, a.Init(spec, buf[1:]), fp8.ErrShape)
				require.NoError(t, a.Init(spec, buf))
				for _, rows := range []int{m, 2, 0} {
					w.Activate(a, kerneltest.FencedCopy(t, x[:rows*k], at), k, rows)
					for b := range ms {
						y := make([]float32, rows*n)
						w.MulPanels(b, y, n, a, rows, 0, n)
						kerneltest.Equal(t, want[b*m*n:][:rows*n], y, "%+v, step %d, %d rows, matrix %d, %v", how, step, rows, b, at)
					}
				}
			}
		}
	}
}

// TestMulKeepsNoRows: memory of a product stays with the weights, but nothing of its caller's, and
// serves products of other sizes, kinds and numbers of workers.
func TestMulKeepsNoRows(t *testing.T) {
	r := newRand(93)
	const most, n, k = 40, 35, 40
	for _, step := range []int{8, 20} {
		p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 7, step)}, m: most, x: normal(r, most*k, 1)}
		halves := fp8.RowsBF16(make([]uint16, most*k))
		halves.Narrow(0, p.x)
		halves.Widen(p.x, 0, most*k)
		w, f32, bf16 := p.pack(t), p.want(simd.Fma), p.wantPairs(simd.Fma)
		for _, workers := range []int{1, 3, 2, 4} {
			pool := workpool.New(workers)
			for _, m := range []int{3, most, 1} {
				for _, x := range []fp8.Rows{halves, fp8.RowsF32(p.x)} {
					for how, want := range map[fp8.Product][]float32{{}: f32, {Compute: fp8.ComputeBF16}: bf16} {
						y := make([]float32, m*n)
						require.NoError(t, w.Mul(nil, pool, y, x, fp8.Shape{M: m}, how))
						kerneltest.Equal(t, want[:m*n], y, "%+v, step %d, %d rows of %v, %d workers", how, step, m, x.Kind(), workers)
						held, all := fp8.KeptRows(w)
						require.Equal(t, workers, all)
						require.Zero(t, held)
					}
				}
			}
			require.NoError(t, pool.Close())
		}
	}
}
