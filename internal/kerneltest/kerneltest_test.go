package kerneltest_test

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestCheck(t *testing.T) {
	assert.NoError(t, kerneltest.Check("", []string{"generic"}, nil))
	assert.NoError(t, kerneltest.Check(" generic ", []string{"avx2", "generic"}, nil))
	assert.ErrorContains(t, kerneltest.Check("avx2 generic", []string{"generic"}, nil), "avx2")
	fault := errors.New("fault")
	assert.ErrorIs(t, kerneltest.Check("", []string{"generic"}, fault), fault)
}

func TestFenced(t *testing.T) {
	for _, at := range kerneltest.Edges {
		for _, n := range []int{0, 1, 3, 1023, 1024, 5000} {
			x := kerneltest.Fenced[float32](t, n, at)
			require.Len(t, x, n)
			for i := range x {
				require.Zero(t, x[i])
				x[i] = float32(i)
			}
		}
	}
	assert.Equal(t, []uint16{1, 2, 3}, kerneltest.FencedCopy(t, []uint16{1, 2, 3}, kerneltest.Front))
}

func TestBigFma(t *testing.T) {
	ulp := float32(0x1p-23)
	inf := float32(math.Inf(1))
	for _, c := range []struct{ a, b, c, want float32 }{
		{2, 3, 4, 10},
		{1 + ulp, 1 + ulp, -1, 2*ulp + 0x1p-46},   // the product keeps all its bits
		{0x1p-30, 0x1p-30, 0x1p-149, 0x1p-60},     // the small term is lost
		{1 + ulp, 0x1p-24, 1, 1 + ulp},            // just above half-way
		{1, 0x1p-24, 1, 1},                        // half-way, to even
		{0x1p-75, 0x1p-75, 0, 0},                  // half of the smallest subnormal, to even
		{0x1p-75, 0x1p-75 + 0x1p-98, 0, 0x1p-149}, // a little more
		{0x1p127, 2, 0, inf},                      // overflow
		{0x1p127, 2, -0x1p127, 0x1p127},           // only of the product
		{inf, 1, -5, inf},                         // infinity
		{float32(math.Copysign(0, -1)), 1, 0, 0},  // -0 + 0
		{1, 1, -1, 0},                             // exact zero
	} {
		assert.Equal(t, c.want, kerneltest.BigFma(c.a, c.b, c.c), "%v", c)
	}
	assert.True(t, math.IsNaN(float64(kerneltest.BigFma(inf, 0, 1))))
}

func TestSameBits(t *testing.T) {
	nan := float32(math.NaN())
	assert.True(t, kerneltest.SameBits(nan, math.Float32frombits(0xFFC00001)))
	assert.False(t, kerneltest.SameBits(nan, 1))
	assert.False(t, kerneltest.SameBits(0, float32(math.Copysign(0, -1))))
}

func TestClasses(t *testing.T) {
	for _, c := range kerneltest.Classes {
		x, y := c.Make(kerneltest.Rand(1), 100), c.Make(kerneltest.Rand(1), 100)
		kerneltest.Equal(t, x, y, "%s", c.Name)
	}
}
