package ref_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

var (
	inf     = float32(math.Inf(1))
	nan     = float32(math.NaN())
	negZero = float32(math.Copysign(0, -1))
)

// samples is n, or a fiftieth of it in a short run.
func samples(n int) int {
	if testing.Short() {
		return n / 50
	}
	return n
}

// hardSums are operands of an fma whose sum is next to, or on, a half-way point of f32.
var hardSums = map[string]func(r *rand.Rand) (a, b, c float32){
	"half a unit of the addend": func(r *rand.Rand) (a, b, c float32) {
		c = kerneltest.Classes[r.IntN(4)].Value(r)
		unit := math.Abs(float64(math.Nextafter32(c, inf) - c))
		a = float32(math.Ldexp(1, r.IntN(20)-10)) * (1 + float32(r.IntN(3))*0x1p-23)
		return a, float32(unit/2/float64(a)) * (1 - float32(r.IntN(3))*0x1p-24), c
	},
	"subnormal": func(r *rand.Rand) (a, b, c float32) {
		c = math.Float32frombits(r.Uint32N(1<<uint(1+r.IntN(24))) | r.Uint32N(2)<<31)
		if r.IntN(2) == 0 {
			return float32(1+r.IntN(64)) * 0x1p-80, float32(1+r.IntN(64)) * 0x1p-75, c
		}
		// 2^-150, or twice or four times that, with or without a last bit 2^-46 below
		return 0x1p-75 * (1 + float32(r.IntN(2))*0x1p-23), float32(math.Ldexp(1, r.IntN(3)-75)) * (1 - float32(r.IntN(2))*0x1p-23), c
	},
	"the product alone": func(r *rand.Rand) (a, b, c float32) {
		return float32(1+r.IntN(1<<13)) * 0x1p-76, float32(1+r.IntN(1<<13)) * 0x1p-80, float32(r.IntN(3)-1) * 0x1p-149
	},
	"overflow": func(r *rand.Rand) (a, b, c float32) {
		c = math.Float32frombits(0x7F7FFFFF - r.Uint32N(3))
		return 0x1p60 * (1 + float32(r.IntN(3)-1)*0x1p-23), 0x1p43 * float32(1+r.IntN(3)), c
	},
	"cancellation": func(r *rand.Rand) (a, b, c float32) {
		a, b = float32(r.NormFloat64()), float32(r.NormFloat64())
		c = -float32(a * b)
		return a, b, math.Float32frombits(math.Float32bits(c) + r.Uint32N(3) - 1)
	},
	"a product half-way": func(r *rand.Rand) (a, b, c float32) { // 97 * 172961 is 2^24 + 1
		return float32(math.Ldexp(97, r.IntN(20))), 172961, float32(math.Ldexp(float64(r.IntN(3)-1), 10-r.IntN(100)))
	},
	"far apart": func(r *rand.Rand) (a, b, c float32) {
		c = float32(1 + r.IntN(1<<24))
		return (1 + float32(r.IntN(2))*0x1p-23), float32(math.Ldexp(float64(r.IntN(3)-1), -r.IntN(60))), c + 0.5
	},
}

func checkFma(t *testing.T, name string, a, b, c float32) {
	for range 2 {
		want, got := kerneltest.BigFma(a, b, c), ref.Fma(a, b, c)
		if !kerneltest.SameBits(want, got) {
			t.Fatalf("%s: fma(%x, %x, %x) = %x, want %x", name, a, b, c, got, want)
		}
		a, c = -a, -c
	}
}

func TestFma(t *testing.T) {
	r := kerneltest.Rand(1)
	classes := kerneltest.Classes
	for _, ca := range classes {
		for _, cc := range classes {
			for range samples(2000) {
				checkFma(t, ca.Name+"*"+ca.Name+"+"+cc.Name, ca.Value(r), ca.Value(r), cc.Value(r))
			}
		}
	}
	for name, operands := range hardSums {
		for range samples(50000) {
			a, b, c := operands(r)
			checkFma(t, name, a, b, c)
		}
	}
	special := []float32{0, negZero, 1, -1, inf, -inf, nan, math.MaxFloat32, math.SmallestNonzeroFloat32}
	for _, a := range special {
		for _, b := range special {
			for _, c := range special {
				checkFma(t, "special", a, b, c)
			}
		}
	}
}

// TestExpError holds Exp against math.Exp in units of the last place, and neighbours in order, over its whole domain.
func TestExpError(t *testing.T) {
	const largest = 0.8905
	step := uint32(1_000_003 / samples(300)) // a number of samples; the exhaustive figures are in the spec of exp
	for _, sign := range []uint32{0, 1 << 31} {
		for b := sign; b < sign|0x42D00000; b += step {
			x := math.Float32frombits(b)
			y := ref.Exp(x)
			next := ref.Exp(math.Float32frombits(b + 1))
			if sign == 0 {
				y, next = next, y
				x = math.Float32frombits(b + 1)
			}
			require.LessOrEqual(t, next, y, "exp is not monotone at %g", x)
			exact := math.Exp(float64(x))
			if exact >= math.MaxFloat32 {
				continue
			}
			unit := math.Max(math.Ldexp(1, int(math.Floor(math.Log2(exact)))-23), 0x1p-149)
			if e := math.Abs(float64(y)-exact) / unit; e > largest {
				t.Fatalf("exp(%g) = %g is off by %.4f units", x, y, e)
			}
		}
	}
}

func TestExpSpecial(t *testing.T) {
	assert.Equal(t, float32(0), ref.Exp(-inf))
	assert.Equal(t, inf, ref.Exp(inf))
	assert.Equal(t, float32(1), ref.Exp(negZero))
	for _, bits := range []uint32{0x7FC00000, 0xFFC12345, 0x7F800001, 0xFF812345} {
		got := math.Float32bits(ref.Exp(math.Float32frombits(bits)))
		assert.Equal(t, bits|0x00400000, got, "%08x", bits)
	}
	for _, s := range []float32{0, 0x1p-149, 0x1p-25, -0x1p-25} {
		assert.Equal(t, float32(1), ref.Exp(s))
	}
}

// bigLog is log x with 120 bits: 2*atanh((m-1)/(m+1)) + e*log 2, log 2 = 2*atanh(1/3).
func bigLog(x float32) *big.Float {
	const precision = 120
	num := func(v float64) *big.Float { return new(big.Float).SetPrec(precision).SetFloat64(v) }
	twoAtanh := func(f *big.Float) *big.Float {
		sum, term, square := num(0), num(0).Add(f, f), num(0).Mul(f, f)
		for k := 1.0; term.Sign() != 0 && term.MantExp(nil) > -precision; k += 2 {
			sum.Add(sum, num(0).Quo(term, num(k)))
			term.Mul(term, square)
		}
		return sum
	}
	m, e := math.Frexp(float64(x))
	f := num(0).Quo(num(m-1), num(m+1))
	third := num(0).Quo(num(1), num(3))
	return num(0).Add(twoAtanh(f), num(0).Mul(twoAtanh(third), num(float64(e))))
}

func TestLog(t *testing.T) {
	assert.Equal(t, -inf, ref.Log(0))
	assert.Equal(t, -inf, ref.Log(negZero))
	assert.Equal(t, inf, ref.Log(inf))
	assert.Equal(t, float32(0), ref.Log(1))
	assert.False(t, math.Signbit(float64(ref.Log(1))))
	for _, x := range []float32{nan, -1, -inf, -0x1p-149} {
		assert.True(t, math.IsNaN(float64(ref.Log(x))), "%g", x)
	}

	check := func(x float32) {
		exact := bigLog(x)
		want, _ := exact.Float64()
		got := ref.Log64(x)
		e, _ := new(big.Float).Sub(exact, new(big.Float).SetFloat64(got)).Float64()
		unit := math.Nextafter(math.Abs(want), math.Inf(1)) - math.Abs(want)
		if math.Abs(e) > 2*unit {
			t.Fatalf("log(%x) = %x is off by %.2f units of float64", x, got, e/unit)
		}
		require.Equal(t, float32(got), ref.Log(x))
	}
	r := kerneltest.Rand(2)
	for range samples(5000) {
		check(math.Float32frombits(1 + r.Uint32N(0x7F7FFFFF)))
		check(float32(1 + (r.Float64()-0.5)*math.Ldexp(1, -r.IntN(24))))
		check(float32(1 + 511*r.Float64())) // sums of a softmax
	}
	for _, x := range []float32{math.SmallestNonzeroFloat32, math.MaxFloat32, 0x1p-126, math.Sqrt2, math.Sqrt2 / 2, 2, 0.5} {
		for _, y := range []float32{x, math.Nextafter32(x, 1)} {
			if y != 1 {
				check(y)
			}
		}
	}
}
