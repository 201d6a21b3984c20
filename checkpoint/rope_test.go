package checkpoint_test

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
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

// FuzzRope demands of any rope, taken from bits, that it is refused with an error of the package
// or has frequencies that are right and a table that is: sines and cosines of those angles.
func FuzzRope(f *testing.F) {
	pi := bigPi()
	half := new(big.Float).SetPrec(bits).Quo(pi, float(2))
	f.Add(uint8(1), 64, 10000.0, 1.0, 4096, 40.0, 32.0, 1.0, false, 1.0, 1.0, 163840, 100)
	f.Add(uint8(1), 64, 50000.0, 1.0, 4096, 32.0, 1.0, 1.0, true, 1.0, 1.0, 131072, 131071)
	f.Add(uint8(2), 32, 10000.0, 1.19, 512, 1.0, 1.0, 1.0, false, 1.06, 16.9, 513, 512)
	f.Add(uint8(2), 2, 10000.0, 1.0, 4096, 1.0, 1.0, 1.0, false, 1e-12, 1e-12, 4096, 2148)
	f.Add(uint8(0), 2, 1.0000000000000002, 1e12, 0, 0.0, 0.0, 0.0, false, 0.0, 0.0, -1, -1)
	f.Add(uint8(0), 64, 1e6, 1.0, 0, 0.0, 0.0, 0.0, false, 0.0, 0.0, math.MaxInt, 1<<25)
	f.Fuzz(func(t *testing.T, kind uint8, dim int, theta, magnitude float64, original int, factor, fast, slow float64, exact bool, short, long float64, positions, position int) {
		r := checkpoint.Rope{Kind: checkpoint.RopeKind(kind % 4), Dim: dim % 130, Theta: theta, Magnitude: magnitude, Original: original, Factor: factor, BetaFast: fast, BetaSlow: slow, Exact: exact}
		if n := r.Dim / 2; n > 0 {
			r.Short, r.Long = make([]float64, n), make([]float64, n)
			for i := range n {
				r.Short[i], r.Long[i] = short*float64(i+1), long*float64(n-i)
			}
		}
		freqs, err := r.Frequencies(positions)
		if err != nil {
			require.True(t, errors.Is(err, checkpoint.ErrConfig) || errors.Is(err, checkpoint.ErrLimit), "%v", err)
			require.Nil(t, freqs)
			_, tableErr := r.Table(positions)
			require.Error(t, tableErr)
			return
		}
		require.GreaterOrEqual(t, positions, 0)
		require.Len(t, freqs, r.Dim/2)
		for i, got := range freqs {
			base := math.Pow(r.Theta, -2*float64(i)/float64(r.Dim))
			switch r.Kind {
			case checkpoint.RopeYaRN: // between the two, wherever the ramp is
				low, high := min(base, base/r.Factor), max(base, base/r.Factor)
				require.True(t, got >= low*(1-1e-13) && got <= high*(1+1e-13), "frequency %d is %v, and the base %v: %+v", i, got, base, r)
			case checkpoint.RopeLong:
				factors := r.Short
				if positions > r.Original {
					factors = r.Long
				}
				require.InEpsilon(t, base/factors[i], got, 1e-13)
			default:
				require.InEpsilon(t, base, got, 1e-13)
			}
		}
		if r.Dim > 0 && positions > 1<<18/r.Dim && positions <= math.MaxInt32/r.Dim {
			positions = 1<<18/r.Dim + positions%7 // for a table that takes no seconds
			freqs, err = r.Frequencies(positions)
			require.NoError(t, err)
		}
		fastest := slices.Max(append(freqs, 0))
		table, err := r.Table(positions)
		switch {
		case err != nil:
			require.ErrorIs(t, err, checkpoint.ErrLimit)
			require.True(t, r.Dim > 0 && (positions > math.MaxInt32/r.Dim || float64(positions-1)*fastest >= 1<<31*(1-1e-13)), "%v: %+v", err, r)
			return
		case r.Dim == 0:
			require.Nil(t, table)
			return
		}
		require.Len(t, table, positions*r.Dim)
		if positions == 0 {
			return
		}
		p := int(uint(position) % uint(positions))
		row := table[p*r.Dim:][:r.Dim]
		for i, f := range freqs {
			angle := float(float64(f * float64(p)))
			sin, _ := bigSin(angle, pi).Float64()
			cos, _ := bigSin(new(big.Float).SetPrec(bits).Add(angle, half), pi).Float64()
			require.InDelta(t, cos*r.Magnitude, row[2*i], 6.1e-8*r.Magnitude, "cosine %d at %d: %+v", i, p, r)
			require.InDelta(t, sin*r.Magnitude, row[2*i+1], 6.1e-8*r.Magnitude, "sine %d at %d: %+v", i, p, r)
		}
	})
}
