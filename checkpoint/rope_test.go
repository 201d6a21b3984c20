package checkpoint_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const bits = 400

func float(x float64) *big.Float { return new(big.Float).SetPrec(bits).SetFloat64(x) }

// bigPi is 16*artan(1/5) - 4*artan(1/239).
func bigPi() *big.Float {
	artan := func(n int64) *big.Float {
		sum, square := new(big.Float).SetPrec(bits), float(float64(n*n))
		term := new(big.Float).SetPrec(bits).Quo(float(1), float(float64(n)))
		for k := int64(1); term.MantExp(nil) > -bits; k += 2 {
			t := new(big.Float).SetPrec(bits).Quo(term, float(float64(k)))
			if k%4 == 3 {
				t.Neg(t)
			}
			sum.Add(sum, t)
			term.Quo(term, square)
		}
		return sum
	}
	a := artan(5)
	b := artan(239)
	return a.Sub(a.Mul(a, float(16)), b.Mul(b, float(4)))
}

// bigSin is the sine of x, by its series, less a whole number of turns.
func bigSin(x, pi *big.Float) *big.Float {
	turn := new(big.Float).SetPrec(bits).Mul(pi, float(2))
	n, _ := new(big.Float).SetPrec(bits).Quo(x, turn).Int(nil)
	x = new(big.Float).SetPrec(bits).Sub(x, turn.Mul(turn, new(big.Float).SetPrec(bits).SetInt(n)))
	sum, term, square := float(0), new(big.Float).SetPrec(bits).Set(x), new(big.Float).SetPrec(bits).Mul(x, x)
	for k := int64(1); term.Sign() != 0 && (k == 1 || term.MantExp(nil) > sum.MantExp(nil)-300); k += 2 {
		sum.Add(sum, term)
		term.Mul(term, square)
		term.Neg(term.Quo(term, float(float64((k+1)*(k+2)))))
	}
	return sum
}

// ulps is how far got is from want, in units of the last place of want.
func ulps(got float64, want *big.Float) float64 {
	w, _ := want.Float64()
	d, _ := new(big.Float).SetPrec(bits).Sub(float(got), want).Float64()
	return math.Abs(d) / (math.Nextafter(math.Abs(w), math.Inf(1)) - math.Abs(w))
}

func TestSincos(t *testing.T) {
	pi := bigPi()
	half := new(big.Float).SetPrec(bits).Quo(pi, float(2))
	r := rand.New(rand.NewPCG(1, 2))
	points := []float64{0, 1, math.Pi / 4, math.Pi / 2, math.Pi, 355, 1e-300, 5e-324, 1<<31 - 1}
	for range 1500 {
		points = append(points, float64(r.IntN(1<<20))*math.Exp(-14*r.Float64()), r.Float64())
	}
	for range 200 { // near multiples of pi/2, where most cancels
		points = append(points, float64(r.IntN(1<<21))*(math.Pi/2))
	}
	worst := 0.0
	for _, x := range points {
		sin, cos := checkpoint.Sincos(x)
		s, c := ulps(sin, bigSin(float(x), pi)), ulps(cos, bigSin(new(big.Float).SetPrec(bits).Add(float(x), half), pi))
		if x == 0 {
			s, c = math.Abs(sin), math.Abs(cos-1)
		}
		worst = max(worst, s, c)
		require.Less(t, max(s, c), 1.0, "sincos(%v) = %v, %v", x, sin, cos)
	}
	t.Logf("%.3f ulp", worst)
}

func TestLogAndPow(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		x := math.Exp(40*r.Float64() - 20)
		assert.InEpsilon(t, math.Log(x), checkpoint.Log(x), 4e-16, "log(%v)", x)
		num, den := int64(r.IntN(128)-64), int64(1+r.IntN(64))
		want := math.Pow(x, float64(num)/float64(den))
		if want > 1e-290 && want < 1e290 {
			// An exponent that is rounded first is wrong by more than its result is.
			assert.InEpsilon(t, want, checkpoint.Pow(x, num, den), 1e-15*(1+math.Abs(math.Log(want))), "%v^(%d/%d)", x, num, den)
		}
	}
	for x, want := range map[float64]float64{1: 0, 2: 0x1.62e42fefa39efp-01, 10: 0x1.26bb1bbb55516p+01, 10000: 0x1.26bb1bbb55516p+03, 0.75: -0x1.269621134db92p-02} {
		assert.Equal(t, want, checkpoint.Log(x), "log(%v)", x)
	}
	for _, x := range []float64{0, -1, math.Inf(1), math.NaN()} {
		assert.True(t, math.IsNaN(checkpoint.Log(x)), "log(%v)", x)
	}
	assert.Equal(t, 100.0, checkpoint.Pow(10000, 32, 64))
	assert.Equal(t, 1e-4, checkpoint.Pow(10000, -64, 64))
	assert.Equal(t, 1024.0, checkpoint.Pow(2, 10, 1))
	assert.Equal(t, 1.0, checkpoint.Pow(50000, 0, 64))
	assert.Equal(t, 0.0, checkpoint.Pow(10, -400, 1))
	assert.Equal(t, math.Inf(1), checkpoint.Pow(10, 400, 1))
	assert.Equal(t, math.SmallestNonzeroFloat64, checkpoint.Pow(2, -1074, 1))
}
