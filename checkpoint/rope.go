package checkpoint

import (
	"fmt"
	"math"
)

// RopeKind is the family of a [Rope]'s frequencies.
type RopeKind uint8

const (
	// RopeDefault has the frequencies theta^(-2i/P).
	RopeDefault RopeKind = iota
	// RopeYaRN divides the low ones by a factor, and some in between in part.
	RopeYaRN
	// RopeLong divides each by a factor of its own, of two sets: LongRoPE.
	RopeLong
)

// String is the name that configurations have for the kind.
func (k RopeKind) String() string {
	switch k {
	case RopeDefault:
		return "default"
	case RopeYaRN:
		return "yarn"
	case RopeLong:
		return "longrope"
	}
	return fmt.Sprintf("RopeKind(%d)", uint8(k))
}

// Rope says by which angle each pair of a rope part is rotated at each position:
// position * frequency. Frequencies and tables have the same bits on every machine.
type Rope struct {
	Kind  RopeKind
	Dim   int     // P, values of a rope part; even
	Theta float64 // above 1

	// Magnitude is what cosines and sines are multiplied by: 1, or near it.
	Magnitude float64

	// Original is the longest context before it was extended, of YaRN and LongRoPE.
	Original int
	// Factor is YaRN's s, by which the context was extended.
	Factor float64
	// BetaFast and BetaSlow are YaRN's: pairs that turn more often than BetaFast times in
	// Original positions keep their frequency, those that turn less often than BetaSlow
	// times have it divided by Factor.
	BetaFast, BetaSlow float64
	// Exact leaves out rounding the borders between these pairs to whole ones
	// (truncate: false).
	Exact bool

	// Short and Long, [P/2] each, divide LongRoPE's frequencies: Long in a table that
	// reaches past Original positions, Short in others.
	Short, Long []float64
}

// maxRope bounds P: computing a frequency takes tens of microseconds.
const maxRope = 1 << 14

// maxParameter is past what any parameter of a rope is; a number above 0 is also above its
// inverse. Within these bounds nothing overflows.
const maxParameter = 1e12

// check returns why r has no table, or nil.
func (r Rope) check() error {
	above := func(name string, x, low float64) error {
		if !(x > low && x >= 1/maxParameter && x <= maxParameter) {
			return fmt.Errorf("%w: rope: %s is %v, want a number above %v, from %v to %v", ErrConfig, name, x, low, 1/maxParameter, maxParameter)
		}
		return nil
	}
	if r.Dim < 0 || r.Dim > maxRope || r.Dim%2 != 0 {
		return fmt.Errorf("%w: rope: %d values, want an even number from 0 to %d", ErrConfig, r.Dim, maxRope)
	}
	if err := above("theta", r.Theta, 1); err != nil {
		return err
	}
	if err := above("attention factor", r.Magnitude, 0); err != nil {
		return err
	}
	switch r.Kind {
	case RopeDefault:
		return nil
	case RopeYaRN:
		for _, x := range []struct {
			name string
			v    float64
		}{{"factor", r.Factor}, {"beta_fast", r.BetaFast}, {"beta_slow", r.BetaSlow}, {"original_max_position_embeddings", float64(r.Original)}} {
			if err := above(x.name, x.v, 0); err != nil {
				return err
			}
		}
		return nil
	case RopeLong:
		if err := above("original_max_position_embeddings", float64(r.Original), 0); err != nil {
			return err
		}
		for _, x := range []struct {
			name string
			v    []float64
		}{{"short_factor", r.Short}, {"long_factor", r.Long}} {
			if len(x.v) != r.Dim/2 {
				return fmt.Errorf("%w: rope: %s has %d values, want P/2 = %d", ErrConfig, x.name, len(x.v), r.Dim/2)
			}
			for i, f := range x.v {
				if err := above(fmt.Sprintf("%s[%d]", x.name, i), f, 0); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return fmt.Errorf("%w: rope: %v is unknown", ErrConfig, r.Kind)
}

// Frequencies are the P/2 angles from one position to the next, for a context of so many
// positions, which tells LongRoPE which of its sets to take. ErrConfig if r describes no
// rotation, ErrLimit for less than 0 positions.
//
//	default   f[i] = theta^(-2i/P)
//	yarn      f[i]/s * ramp[i] + f[i] * (1 - ramp[i]),  ramp[i] = clamp((i-low)/(high-low), 0, 1)
//	          low, high = P*ln(L/(2*pi*beta))/(2*ln(theta)) for beta = BetaFast, BetaSlow,
//	          rounded down and up and cut to 0 .. P-1; L = Original, s = Factor
//	longrope  f[i] / factor[i]
func (r Rope) Frequencies(positions int) ([]float64, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	if positions < 0 {
		return nil, fmt.Errorf("%w: a context of %d positions, want 0 or more", ErrLimit, positions)
	}
	f := make([]float64, r.Dim/2)
	theta := powersOf(r.Theta)
	for i := range f {
		f[i] = theta.of(-2*int64(i), int64(r.Dim))
	}
	switch r.Kind {
	case RopeYaRN:
		low, high := r.ramp()
		for i := range f {
			t := min(max((float64(i)-low)/(high-low), 0), 1)
			f[i] = float64(f[i]/r.Factor*t) + float64(f[i]*(1-t))
		}
	case RopeLong:
		factors := r.Short
		if positions > r.Original {
			factors = r.Long
		}
		for i := range f {
			f[i] /= factors[i]
		}
	}
	return f, nil
}

// ramp is where YaRN's ramp begins and ends.
func (r Rope) ramp() (low, high float64) {
	border := func(beta float64) float64 {
		turns := float64(r.Original) / float64(float64(beta*2)*math.Pi)
		return float64(float64(r.Dim)*log(turns)) / float64(2*log(r.Theta))
	}
	low, high = border(r.BetaFast), border(r.BetaSlow)
	if !r.Exact {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, float64(r.Dim-1))
	if low == high {
		high += 0.001
	}
	return low, high
}

// Table is what [mla.Batch].Freqs wants: [positions, P], row-major, for the positions from 0
// on; columns 2i and 2i+1 are the cosine and sine of pair i times Magnitude, computed in
// float64 and rounded once. Rows do not hang on how many there are, but for LongRoPE: a table
// that reaches past Original has other frequencies, in all its rows, so take it as long as
// the longest context that will be. Errors: ErrConfig, and ErrLimit for more than 2^31
// values, positions that are no number of them, and angles of 2^31 and more, of which so little
// is left in a turn that no model has them.
func (r Rope) Table(positions int) ([]float32, error) {
	f, err := r.Frequencies(positions)
	if err != nil {
		return nil, err
	}
	if r.Dim == 0 {
		return nil, nil
	}
	if positions > math.MaxInt32/r.Dim {
		return nil, fmt.Errorf("%w: a table of %d positions of %d values, want 0 to 2^31 values", ErrLimit, positions, r.Dim)
	}
	for i, f := range f {
		if angle := float64(float64(positions-1) * f); angle >= 1<<31 {
			return nil, fmt.Errorf("%w: the angle of pair %d at position %d is %v, want less than 2^31", ErrLimit, i, positions-1, angle)
		}
	}
	out := make([]float32, positions*r.Dim)
	for p := range positions {
		r.row(out[p*r.Dim:][:r.Dim], f, p)
	}
	return out, nil
}

// row is one row of a table.
func (r Rope) row(dst []float32, f []float64, position int) {
	for i, f := range f {
		sin, cos := sincos(float64(float64(position) * f))
		dst[2*i] = float32(float64(cos * r.Magnitude))
		dst[2*i+1] = float32(float64(sin * r.Magnitude))
	}
}

// yarnScale is 0.1*x*ln(s) + 1, and 1 if s is at most 1.
func yarnScale(s, x float64) float64 {
	if s <= 1 {
		return 1
	}
	return float64(float64(0.1*x)*log(s)) + 1
}
