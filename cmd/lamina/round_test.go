package main

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/simd"
	"github.com/stretchr/testify/require"
)

// TestRoundTo compares with the library's conversions where float32 loses nothing, and then
// stands beside every midpoint, where a second rounding would show.
func TestRoundTo(t *testing.T) {
	bf16 := func(bits uint16) float64 { return float64(simd.BF16ToF32(bits)) }
	f16 := func(bits uint16) float64 { return float64(simd.F16ToF32(bits)) }
	for _, c := range []struct {
		dtype checkpoint.DType
		value func(uint16) float64
		inf   uint16
	}{{checkpoint.BF16, bf16, 0x7F80}, {checkpoint.F16, f16, 0x7C00}} {
		for bits := uint16(0); bits < c.inf; bits++ {
			if testing.Short() && bits > 200 && bits < c.inf-200 && bits%97 != 0 {
				continue
			}
			x, next := c.value(bits), c.value(bits+1)
			if bits+1 == c.inf {
				next = 2*x - c.value(bits-1) // as if the exponent went on
			}
			middle := (x + next) / 2
			even := x
			if bits%2 == 1 {
				even = next
			}
			if bits+1 == c.inf {
				next, even = math.Inf(1), math.Inf(1)
			}
			for _, sign := range []float64{1, -1} {
				require.Equal(t, sign*x, roundTo(c.dtype, sign*x))
				require.Equal(t, sign*x, roundTo(c.dtype, sign*math.Nextafter(middle, 0)))
				require.Equal(t, sign*even, roundTo(c.dtype, sign*middle))
				require.Equal(t, sign*next, roundTo(c.dtype, sign*math.Nextafter(middle, math.Inf(1))))
			}
		}
		require.True(t, math.IsNaN(roundTo(c.dtype, math.NaN())))
		require.Equal(t, math.Inf(-1), roundTo(c.dtype, math.Inf(-1)))
		require.Equal(t, math.Inf(1), roundTo(c.dtype, math.MaxFloat64))
		require.Zero(t, roundTo(c.dtype, math.SmallestNonzeroFloat64))
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		x := math.Float32frombits(rng.Uint32())
		if x != x {
			continue
		}
		require.Equal(t, float64(x), roundTo(checkpoint.F32, float64(x)))
		require.Equal(t, bf16(simd.F32ToBF16(x)), roundTo(checkpoint.BF16, float64(x)), "%x", x)
		require.Equal(t, f16(simd.F32ToF16(x)), roundTo(checkpoint.F16, float64(x)), "%x", x)
	}
	// 1 + 2^-8 is midway between two bf16; float32 cannot hold what makes this one more.
	require.Equal(t, 1+0x1p-7, roundTo(checkpoint.BF16, 1+0x1p-8+0x1p-40))
}
