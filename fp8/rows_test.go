package fp8_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lamina-ml/lamina/bf16"
	"github.com/lamina-ml/lamina/fp8"
)

func TestRows(t *testing.T) {
	x := []float32{1, -2.5, 0.1, 1e30, 70000}
	floats := make([]float32, 5)
	brains, halves := make([]bf16.BF16, 5), make([]uint16, 5)
	inf := float32(math.Inf(1))
	for _, c := range []struct {
		rows fp8.Rows
		kind fp8.Elem
		want []float32
	}{
		{fp8.RowsF32(floats), fp8.ElemF32, x},
		{fp8.RowsBF16(brains), fp8.ElemBF16, []float32{1, -2.5, 0.10009765625, 0x1.94p99, 70144}},
		{fp8.RowsF16(halves), fp8.ElemF16, []float32{1, -2.5, 0.099975586, inf, inf}},
	} {
		assert.Equal(t, c.kind, c.rows.Kind())
		assert.Equal(t, 5, c.rows.Len())
		c.rows.Narrow(0, x[:1])
		c.rows.Narrow(1, x[1:])
		got := make([]float32, 6)
		c.rows.Widen(got, 0, 5)
		assert.Equal(t, append(c.want, 0), got, "%v", c.kind)
		c.rows.Widen(got, 3, 2)
		assert.Equal(t, c.want[3:], got[:2], "%v", c.kind)
		for i, w := range c.want {
			assert.Equal(t, w, c.rows.Float32(i))
		}
		assert.Equal(t, c.kind == fp8.ElemF32, c.rows.F32() != nil)
	}
	assert.Zero(t, fp8.Rows{}.Len())
	assert.Equal(t, fp8.ElemF32, fp8.Rows{}.Kind())
}

func TestOverlaps(t *testing.T) {
	f, h := make([]float32, 10), make([]uint16, 10)
	for _, c := range []struct {
		a, b fp8.Rows
		want bool
	}{
		{fp8.RowsF32(f), fp8.RowsF32(f), true},
		{fp8.RowsF32(f[:5]), fp8.RowsF32(f[4:]), true},
		{fp8.RowsF32(f[:5]), fp8.RowsF32(f[5:]), false},
		{fp8.RowsBF16(h[:5]), fp8.RowsF16(h[4:]), true},
		{fp8.RowsBF16(h[:5]), fp8.RowsF16(h[5:]), false},
		{fp8.RowsBF16(h), fp8.RowsF32(f), false},
		{fp8.RowsF32(f[3:3]), fp8.RowsF32(f), false},
		{fp8.Rows{}, fp8.Rows{}, false},
	} {
		assert.Equal(t, c.want, c.a.Overlaps(c.b))
		assert.Equal(t, c.want, c.b.Overlaps(c.a))
	}
}
