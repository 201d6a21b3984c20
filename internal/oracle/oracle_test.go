package oracle

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const tight = 1e-12

func TestMasksByHand(t *testing.T) {
	// Query position 5, eight keys: a 1 for every key that is seen.
	for _, c := range []struct {
		mask Mask
		want string
	}{
		{Mask{}, "11111100"},
		{Mask{Kind: "causal"}, "11111100"},
		{Mask{Kind: "null"}, "11111111"},
		{Mask{Kind: "chunked", Window: 4}, "00001111"},
		{Mask{Kind: "chunked", Window: 3}, "00011100"},
		{Mask{Kind: "sliding_window_causal", Window: 2}, "00001100"},
		{Mask{Kind: "sliding_window_causal", Window: 100}, "11111100"},
		{Mask{Kind: "sliding_window_noncausal", Window: 2}, "00001111"},
		{Mask{Kind: "chunked_causal", Window: 4}, "00001100"},
	} {
		var got []byte
		for k := range 8 {
			if c.mask.Keep(5, k) {
				got = append(got, '1')
			} else {
				got = append(got, '0')
			}
		}
		assert.Equal(t, c.want, string(got), "%+v", c.mask)
	}
	assert.Equal(t, []int{4, 5}, Mask{Kind: "chunked_causal", Window: 4}.Visible(5, 8))
	assert.Panics(t, func() { Mask{Kind: "round"}.Keep(0, 0) })
}

// Two keys with scores ln 1 and ln 3: weights 1/4 and 3/4.
func TestAttendByHand(t *testing.T) {
	ln3 := math.Log(3)
	q := []float64{1, 0}
	rows := []float64{0, 8, 2 * ln3, 4}
	r := Attend(q, Table(rows, len(q)), []int{0, 1}, 0.5, NoSink, 2)
	assert.InDelta(t, 0.75*2*ln3, r.Out[0], tight)
	assert.InDelta(t, 5, r.Out[1], tight)
	assert.InDelta(t, math.Log(4), r.LSE, tight)
	assert.InDelta(t, ln3, r.MaxLogit, tight)
	assert.InDelta(t, ln3, r.MaxAbs, tight)
	assert.InDelta(t, 5, r.Largest(), tight)
	assert.InDelta(t, 5, r.Size(), tight)
	// Scores of size 0 and ln 3, values 3 below 5 and 1 above, and 1/4 and 3/4 of each.
	assert.InDelta(t, 2e-6*5+1.5e-6*0.75*ln3, r.CoreBound(), 1e-18)
	assert.InDelta(t, 2*r.CoreBound(), r.LayerBound(), 1e-18)

	// A sink of ln 4 doubles the denominator and changes nothing else.
	s := Attend(q, Table(rows, len(q)), []int{0, 1}, 0.5, math.Log(4), 2)
	assert.InDelta(t, 2.5, s.Out[1], tight)
	assert.Equal(t, r.LSE, s.LSE)
	assert.Equal(t, r.MaxLogit, s.MaxLogit)
	assert.Equal(t, []float64{0, 0}, Attend(q, Table(rows, len(q)), []int{0, 1}, 0.5, math.Inf(1), 2).Out)

	// Key 1 twice: weights 1/7, 3/7, 3/7.
	assert.InDelta(t, (8+3*4+3*4)/7.0, Attend(q, Table(rows, len(q)), []int{0, 1, 1}, 0.5, NoSink, 2).Out[1], tight)
}

// What is allowed where the terms of outputs cancel, by hand: p is 1/2 for both keys.
func TestBoundsByHand(t *testing.T) {
	const core = 2e-6 + 1.2e-7*6
	q := []float64{2, 2}
	rows := []float64{4, -1, -4, 7} // scores 6 and 6, of terms 8 and -2, -8 and 14
	r := Attend(q, Table(rows, 2), []int{0, 1}, 1, NoSink, 1)
	assert.InDelta(t, 6, r.MaxAbs, tight)
	assert.InDelta(t, 0, r.Out[0], tight)
	size := math.Sqrt(4 + 4)                  // terms 2 and -2
	moves := math.Sqrt(4*(64+4) + 4*(64+196)) // the same, times the sizes of their scores
	assert.InDelta(t, size, r.Size(), tight)
	assert.InDelta(t, 2e-6*size+1.5e-6*moves, r.CoreBound(), 1e-18)

	// A value that does not cancel, and is so large that the first line is the greater one.
	rows = []float64{4, 100, -4, 108}
	r = Attend([]float64{0.5, 0}, Table(rows, 2), []int{1}, 3, NoSink, 2)
	assert.InDelta(t, core*108, r.CoreBound(), 1e-15)

	// Products: 3*4 - 3*4, where the first factors are of the sizes 3 and 5.
	r = Row{Out: []float64{3, 3}, sizes: []float64{3, 5}, moves: []float64{1, 2}, MaxAbs: 6}
	y := r.Product([]float64{4, -4}, 1)
	assert.Equal(t, []float64{0}, y.Out)
	assert.InDelta(t, math.Sqrt(12*12+20*20), y.Size(), tight)
	assert.InDelta(t, 2e-6*y.Size()+1.5e-6*math.Sqrt(4*4+8*8), y.CoreBound(), 1e-18)
	y = y.Plus([]float64{100})
	assert.Equal(t, []float64{100}, y.Out)
	assert.InDelta(t, core*100, y.CoreBound(), 1e-15)
	assert.Equal(t, y, y.Plus(nil))

	all := Join(r, Row{Out: []float64{7}, sizes: []float64{8}, moves: []float64{9}, MaxAbs: 5})
	assert.Equal(t, Row{Out: []float64{3, 3, 7}, sizes: []float64{3, 5, 8}, moves: []float64{1, 2, 9}, MaxAbs: 6}, all)

	sum, of := Sum([]float64{3, 4}, []float64{4, -3})
	assert.InDelta(t, 0, sum, tight)
	assert.InDelta(t, math.Sqrt(144+144), of, tight)
	sum, of = Sum([]float64{3, 4}, []float64{4, 3})
	assert.Equal(t, []float64{24, 24}, []float64{sum, of})
}

func TestEmptyRows(t *testing.T) {
	inf := math.Inf(1)
	rows := []float64{-inf, 3}
	for _, visible := range [][]int{nil, {0}} { // nothing to see; only a score of -Inf
		r := Attend([]float64{1, 1}, Table(rows, 2), visible, 1, inf, 2)
		assert.Equal(t, []float64{0, 0}, r.Out)
		assert.Equal(t, inf, r.LSE)
		assert.Equal(t, -inf, r.MaxLogit)
	}
}

func TestNaN(t *testing.T) {
	rows := []float64{1, math.NaN(), 2, 3}
	r := Attend([]float64{1, 1}, Table(rows, 2), []int{0, 1}, 1, NoSink, 2)
	for _, x := range append(r.Out, r.LSE, r.MaxLogit) {
		assert.True(t, math.IsNaN(x))
	}
	r = Attend([]float64{1, 1}, Table(rows, 2), []int{1}, 1, NoSink, 2)
	assert.Equal(t, []float64{2, 3}, r.Out, "an unseen row has no effect")

	r = Attend([]float64{1}, Table([]float64{math.Inf(1), 0}, 1), []int{0, 1}, 1, NoSink, 1)
	assert.True(t, math.IsNaN(r.Out[0]), "a visible +Inf score")
	r = Attend([]float64{1}, Table([]float64{math.Inf(-1), 7}, 1), []int{0, 1}, 1, NoSink, 1)
	assert.Equal(t, 7.0, r.Out[0], "a visible -Inf score counts as masked")
}

func TestMergeByHand(t *testing.T) {
	inf := math.Inf(1)
	o, lse := Merge([][]float64{{4}, {8}}, []float64{0, math.Log(3)})
	assert.InDelta(t, 7, o[0], tight)
	assert.InDelta(t, math.Log(4), lse, tight)

	o, lse = Merge([][]float64{{math.NaN()}, {8}, {math.Inf(1)}}, []float64{inf, 0.5, -inf})
	assert.Equal(t, 8.0, o[0], "dead parts cannot leak")
	assert.Equal(t, 0.5, lse)

	o, lse = Merge([][]float64{{math.NaN()}, {8}}, []float64{inf, -inf})
	assert.Equal(t, 0.0, o[0])
	assert.Equal(t, inf, lse)

	o, lse = Merge([][]float64{{1}, {8}}, []float64{math.NaN(), 0})
	assert.True(t, math.IsNaN(o[0]) && math.IsNaN(lse))
}

// Halves of a row's keys, merged, are the whole row.
func TestMergeIsAttention(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	q, rows := normal(rng, 7), normal(rng, 7*9)
	all := Attend(q, Table(rows, len(q)), []int{0, 1, 2, 3, 4, 5, 6, 7, 8}, 0.7, NoSink, 4)
	a := Attend(q, Table(rows, len(q)), []int{0, 2, 4, 6, 8}, 0.7, NoSink, 4)
	b := Attend(q, Table(rows, len(q)), []int{7, 5, 3, 1}, 0.7, NoSink, 4)
	o, lse := Merge([][]float64{a.Out, b.Out}, []float64{a.LSE, b.LSE})
	assert.InDeltaSlice(t, all.Out, o, tight)
	assert.InDelta(t, all.LSE, lse, tight)
}

func TestProductByHand(t *testing.T) {
	y := Product([]float64{1, 2, 3, 4, 5, 6}, []float64{1, 0, -1, 2, 2, 2}, 2, 2, 3)
	assert.Equal(t, []float64{-2, 12, -2, 30}, y)
	assert.Equal(t, 55.0, dot([]float64{1, 2, 3, 4, 5}, []float64{1, 2, 3, 4, 5}))
}

func TestNormByHand(t *testing.T) {
	c := Config{Latent: 2, Epsilon: 0.5, Gamma: []float64{1, 3}}
	// mean(x^2) + eps = 12.5 + 0.5 ... with x = (3, 4): r = 1/sqrt(13)
	assert.InDeltaSlice(t, []float64{3 / math.Sqrt(13), 12 / math.Sqrt(13)}, c.Norm([]float64{3, 4}), tight)
	c.NormRound = math.Round
	assert.Equal(t, []float64{1, 3}, c.Norm([]float64{3, 4}), "0.83 and 1.11 are rounded before gamma")
}

func TestRoPEByHand(t *testing.T) {
	// Position 1 turns pair 0 by a right angle and pair 1 by half a turn.
	c := Call{Config: Config{Rope: 4}, Freqs: []float64{1, 0, 1, 0, 0, 1, -1, 0}}
	x := []float64{1, 2, 3, 4}
	assert.Equal(t, x, c.RoPE(x, 0))
	assert.Equal(t, []float64{-2, 1, -3, -4}, c.RoPE(x, 1))
	c.HalfRope = true
	assert.Equal(t, []float64{-3, -2, 1, -4}, c.RoPE(x, 1))
}

// One head, N = R = V = 1, P = 0, two new tokens after one cached: small enough
// to follow. UK = 2, UV = 10, rows 0, 1, 1; q = ln(3)/2 makes a key of 1 weigh 3.
func TestLayerByHand(t *testing.T) {
	c := Call{
		Config: Config{
			Heads: 1, Nope: 1, V: 1, Latent: 1, Scale: 1,
			Head: SplitKVB([]float64{2, 10}, 1, 1, 1),
		},
		Q:       []float64{math.Log(3) / 2, math.Log(3) / 2},
		Offsets: []int{0, 0, 2},
		Cached:  []int{5, 1},
		Rows:    [][]float64{nil, {0, 1, 1}},
	}
	all := c.All()
	require.Len(t, all, 2)
	assert.InDelta(t, 10*3.0/4, all[0].Out[0], tight)
	assert.InDelta(t, 10*6.0/7, all[1].Out[0], tight)
	assert.InDelta(t, math.Log(7), all[1].LSE, tight)

	c.Mask = Mask{Kind: "null"}
	assert.InDelta(t, 10*6.0/7, c.Row(0, 0).Out[0], tight)
	c.Sink = []float64{math.Log(7)}
	assert.InDelta(t, 10*6.0/14, c.Row(0, 0).Out[0], tight)
}

func normal(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

func randomCall(rng *rand.Rand, heads, nope, rope, v, latent int) *Call {
	c := &Call{
		Config: Config{
			Heads: heads, Nope: nope, Rope: rope, V: v, Latent: latent,
			Scale: 1 / math.Sqrt(float64(nope+rope)), Epsilon: 1e-6,
			Gamma: normal(rng, latent),
			Head:  SplitKVB(normal(rng, heads*(nope+v)*latent), nope, v, latent),
		},
		Offsets: []int{0, 1, 1, 6},
		Cached:  []int{12, 3, 4},
		Q:       normal(rng, 6*heads*(nope+rope)),
		Sink:    normal(rng, heads),
	}
	for pos := range 16 {
		for i := range rope / 2 {
			sin, cos := math.Sincos(float64(pos) / float64(i+1))
			c.Freqs = append(c.Freqs, cos, sin)
		}
	}
	for b, cached := range c.Cached {
		var rows []float64
		for pos := range cached + c.Offsets[b+1] - c.Offsets[b] {
			rows = append(rows, c.CacheRow(normal(rng, latent+rope), pos)...)
		}
		c.Rows = append(c.Rows, rows)
	}
	return c
}

// The two forms are one function: absorbed and expanded agree to the last
// digits over geometries, masks and rope styles.
func TestFormsAgree(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	masks := []Mask{
		{Kind: "causal"}, {Kind: "null"}, {Kind: "sliding_window_causal", Window: 3},
		{Kind: "sliding_window_noncausal", Window: 3}, {Kind: "chunked", Window: 4}, {Kind: "chunked_causal", Window: 4},
	}
	for _, g := range [][5]int{{2, 8, 4, 8, 16}, {3, 6, 2, 10, 5}, {1, 5, 0, 3, 12}} {
		c := randomCall(rng, g[0], g[1], g[2], g[3], g[4])
		for _, c.Mask = range masks {
			for _, c.HalfRope = range []bool{false, true} {
				name := fmt.Sprint(g, c.Mask, c.HalfRope)
				for i, a := range c.All() {
					e := c.expanded(i/c.Heads, i%c.Heads)
					largest := math.Max(1, a.Largest())
					assert.InDeltaSlice(t, e.Out, a.Out, tight*largest, name)
					assert.InDelta(t, e.LSE, a.LSE, tight*math.Max(1, math.Abs(a.LSE)), name)
					assert.InDelta(t, e.MaxAbs, a.MaxAbs, tight*math.Max(1, a.MaxAbs), name)
					assert.Equal(t, e.Visible, a.Visible, name)
					fetched := *c
					width := c.Latent + c.Rope
					fetched.Rows, fetched.Fetch = nil, func(seq, pos int) []float64 { return c.Rows[seq][pos*width:][:width] }
					assert.Equal(t, a, fetched.Row(i/c.Heads, i%c.Heads), name)
				}
			}
		}
	}
}

func TestWiden(t *testing.T) {
	assert.Equal(t, []float64{0.5, -2}, Widen([]float32{0.5, -2}))
}

// A block whose products are picks of single values, so that its parts show.
func TestBlockByHand(t *testing.T) {
	c := &Config{Heads: 1, Nope: 1, Rope: 0, V: 1, Latent: 1, Gamma: []float64{2}, LatentScale: 3}
	b := &Block{
		Hidden: 2, QLora: 2, QA: []float64{0, 1, 1, 0}, QGamma: []float64{1, 10}, QABias: []float64{1, 0},
		QB: []float64{1, 1}, KVA: []float64{0, 5}, KVABias: []float64{7}, O: []float64{2, -1}, OBias: []float64{0, 1},
		QScale: 4, QBeta: 0.5, QContext: 3,
	}
	// q_a swaps the values and adds 1 to the first: 4, 4; normed 1, 1; by gamma 1, 10.
	assert.InDeltaSlice(t, []float64{4 * 11}, b.Query(c, []float64{4, 3}, 2), tight)
	assert.InDeltaSlice(t, []float64{4 * 11 * (1 + 0.5*math.Log(3))}, b.Query(c, []float64{4, 3}, 8), tight)
	assert.InDeltaSlice(t, []float64{5*3 + 7}, b.KV(c, []float64{4, 3}), tight)
	assert.InDeltaSlice(t, []float64{2 * 3}, (&Call{Config: *c}).CacheRow([]float64{22}, 0), tight)
	c.NormRound = math.Round
	c.Gamma[0] = 1.4 // normed 1, rounded 1; times gamma 1.4, rounded 1; times 3
	assert.InDeltaSlice(t, []float64{3}, (&Call{Config: *c}).CacheRow([]float64{22}, 0), tight)
	assert.InDeltaSlice(t, []float64{6, -2}, b.Output([]float64{3}), tight)
	b = &Block{Hidden: 2, QB: []float64{1, 2}}
	assert.InDeltaSlice(t, []float64{10}, b.Query(c, []float64{4, 3}, 8), tight)
}
