package kerneltest

import (
	"math"
	"math/big"
	"testing"
)

// BigFma is a*b + c with one rounding, by exact arithmetic of big numbers.
func BigFma(a, b, c float32) float32 {
	plain := float64(a)*float64(b) + float64(c)
	if plain == 0 || math.IsInf(plain, 0) || math.IsNaN(plain) {
		return float32(plain) // exact, with the sign of a zero as IEEE 754 has it
	}
	// 48 bits of product and 24 of addend lie within 2^-298 and 2^257.
	sum := new(big.Float).SetPrec(640).Mul(big.NewFloat(float64(a)), big.NewFloat(float64(b)))
	sum.Add(sum, big.NewFloat(float64(c)))
	y, _ := sum.Float32()
	return y
}

// SameBits tells whether a and b are the same value to the bit; all NaN are one.
func SameBits(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// Equal fails the test unless got has the bits of want, and tells the first place where it has not.
func Equal(t testing.TB, want, got []float32, format string, args ...any) {
	t.Helper()
	if len(want) != len(got) {
		t.Fatalf(format+": %d values, want %d", append(args, len(got), len(want))...)
	}
	for i := range want {
		if !SameBits(want[i], got[i]) {
			args = append(args, i, len(want), got[i], math.Float32bits(got[i]), want[i], math.Float32bits(want[i]))
			t.Fatalf(format+": value %d of %d is %g (%08x), want %g (%08x)", args...)
		}
	}
}
