package mla_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/mla"
)

// TestNaNReachesWhoSeesIt poisons the kv of one token: rows that see it get NaN
// in out, lse and max logit, all other rows the bits they had.
func TestNaNReachesWhoSeesIt(t *testing.T) {
	for i, mask := range allMasks {
		if testing.Short() && i%3 != 0 {
			continue
		}
		for j, form := range slices.Concat(bothForms, bothForms) {
			arithmetic := computes[j/len(bothForms)]
			t.Run(fmt.Sprintf("%v/%v/%v", mask, form, arithmetic), func(t *testing.T) {
				w := small()
				w.cfg.Mask, w.cfg.Compute = mask, arithmetic
				w.cached, w.fresh = []int{3, 20}, []int{21, 6}
				clean := w.make(t)
				want := clean.forward(t, clean.plan(t, clean.limits(), nil), form)

				const bad = 7 // a token of the first sequence, at position 10
				m := w.make(t)
				m.kvs[bad*w.width()+2] = float32(math.NaN())
				got := m.forward(t, m.plan(t, m.limits(), nil), form)
				m.check(t, got)
				call := m.oracle(t)
				poisoned := 0
				h, v := w.cfg.Heads, w.cfg.V
				for row := range m.tokens * h {
					tok := row / h
					sees := tok < 21 && call.Mask.Keep(3+tok, 10)
					require.Equal(t, sees, isNaN(got.lse[row]), "lse of token %d", tok)
					require.Equal(t, sees, isNaN(got.top[row]), "max logit of token %d", tok)
					for i := range v {
						x := got.out[row*v+i]
						if sees {
							require.True(t, isNaN(x), "token %d sees the NaN", tok)
							poisoned++
							continue
						}
						require.True(t, kerneltest.SameBits(want.out[row*v+i], x), "token %d does not see the NaN", tok)
					}
				}
				require.NotZero(t, poisoned)
			})
		}
	}
}

func isNaN(x float32) bool { return x != x }

// TestExtremeScores: a score of +Inf makes its row NaN, a row whose scores are
// all -Inf saw nothing, and one that mixes -Inf with numbers ignores the former.
func TestExtremeScores(t *testing.T) {
	for i, form := range slices.Concat(bothForms, bothForms) {
		w := small()
		w.cfg.Compute = computes[i/len(bothForms)]
		w.cfg.Heads, w.cfg.Nope, w.cfg.Rope, w.cfg.V, w.cfg.Latent, w.cfg.Scale = 1, 4, 2, 4, 4, 1
		w.weight = weightKind{fp8.ElemE4M3, 4, 4}
		w.cached, w.fresh = []int{0}, []int{3}
		big, small, delta := float32(3e38), float32(1e-38), 1e-3
		if w.cfg.Compute == mla.ComputeBF16 { // which reads what is that small as 0
			small, delta = 0x1p-40, 3.0/256
			w.cfg.Scale = 3 / (big * small)
		}
		m := w.make(t)
		for i := range m.q {
			m.q[i] = 0
		}
		// The rope parts alone make the scores: key 0 gets -Inf, key 1 +-Inf.
		for tok := range 3 {
			for i := range m.freqs {
				m.freqs[i] = float32(1 - i%2) // cos 1, sin 0
			}
			m.q[tok*6+4], m.q[tok*6+5] = big, 0
			m.kvs[tok*6+4], m.kvs[tok*6+5] = []float32{-big, -big, small}[tok], 0
		}
		got := m.forward(t, m.plan(t, m.limits(), nil), form)
		for _, row := range []int{0, 1} { // all they see is -Inf
			require.Equal(t, make([]float32, 4), got.out[row*4:row*4+4], "%v row %d", form, row)
			require.True(t, math.IsInf(float64(got.lse[row]), 1), "%v lse %v", form, got.lse[row])
			require.True(t, math.IsInf(float64(got.top[row]), -1), "%v max logit %v", form, got.top[row])
		}
		// Row 2 sees key 2 as well, whose score is about 3: it alone counts.
		require.InDelta(t, 3, float64(got.lse[2]), delta, "%v", form)
		require.Equal(t, got.top[2], got.lse[2], "%v", form)

		m.kvs[1*6+4] = big // key 1 now scores +Inf
		got = m.forward(t, m.plan(t, m.limits(), nil), form)
		for _, row := range []int{1, 2} {
			require.True(t, isNaN(got.out[row*4]) && isNaN(got.lse[row]) && isNaN(got.top[row]), "%v row %d", form, row)
		}
		require.Equal(t, make([]float32, 4), got.out[:4], "%v: row 0 does not see it", form)
	}
}

// TestSinkExtremes: -Inf is no sink, +Inf makes the output 0, and neither
// touches lse or max logit.
func TestSinkExtremes(t *testing.T) {
	for i, form := range slices.Concat(bothForms, bothForms) {
		w := small()
		w.cfg.Compute = computes[i/len(bothForms)]
		m := w.make(t)
		p := m.plan(t, m.limits(), nil)
		want := m.forward(t, p, form)
		inf := float32(math.Inf(1))
		m.sinks = []float32{-inf, -inf, -inf}
		sameBits(t, want, m.forward(t, p, form), "sink -Inf")
		m.sinks = []float32{-1e38, -1e38, -1e38}
		sameBits(t, want, m.forward(t, p, form), "sink -1e38")
		m.sinks = []float32{inf, inf, inf}
		got := m.forward(t, p, form)
		for i, x := range got.out {
			require.Zero(t, x, "out[%d]", i)
		}
		sameBits(t, answer{lse: want.lse, top: want.top}, answer{lse: got.lse, top: got.top}, "sink +Inf")
	}
}

// TestNothingSeenIsZero: a row that saw nothing is 0, also where the weights hold
// NaN, which reach every other row.
func TestNothingSeenIsZero(t *testing.T) {
	w := small()
	w.cached, w.fresh = []int{4}, []int{2}
	w.weight = weightKind{elem: fp8.ElemF32}
	m := w.make(t)
	c := w.cfg
	kvb := make([]float32, m.kvb.Rows()*c.Latent)
	for h := range c.Heads {
		kvb[(h*(c.Nope+c.V)+c.Nope+3)*c.Latent] = float32(math.NaN()) // value 3
	}
	mat, err := fp8.PlainF32(m.kvb.Rows(), c.Latent, kvb)
	require.NoError(t, err)
	l, err := mla.New(c, mla.Weights{KVB: mat, Gamma: mla.RowsF32(m.gammas)})
	require.NoError(t, err)
	p, err := bind(l, m.limits(), nil)
	require.NoError(t, err)
	a := m.args()
	a.b.Sparse = &mla.Sparse{Stride: 1, Logical: true, Indices: []int32{-1, 2}}
	require.NoError(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b))
	row := c.Heads * c.V
	require.Equal(t, make([]float32, row), a.out.F32()[:row])
	require.True(t, isNaN(a.out.F32()[row+3]))
	require.NoError(t, p.Close())
	require.NoError(t, l.Close())
}

// TestMergeEdges follows section 3 of the contract.
func TestMergeEdges(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	out, lse := make([]float32, 2), make([]float32, 1)
	run := func(parts, partsLSE []float32) {
		require.NoError(t, mla.Merge(out, lse, parts, partsLSE, len(partsLSE), 1, 2))
	}
	run([]float32{nan, nan, nan, inf}, []float32{inf, -inf})
	require.Equal(t, []float32{0, 0}, out, "no live part")
	require.Equal(t, []float32{inf}, lse)
	run([]float32{nan, nan, 3, -4, inf, nan}, []float32{-inf, 0.5, inf})
	require.Equal(t, []float32{3, -4}, out, "one live part comes back unchanged")
	require.Equal(t, []float32{0.5}, lse)
	run([]float32{1, 2, 3, 4}, []float32{nan, 0})
	require.True(t, isNaN(out[0]) && isNaN(out[1]) && isNaN(lse[0]), "a NaN lse makes the row NaN")
	run([]float32{1, 2, nan, nan}, []float32{0, -1000})
	require.Equal(t, []float32{1, 2}, out, "a part of no weight is not read")
	run(nil, nil)
	require.Equal(t, []float32{0, 0}, out)
	require.Equal(t, []float32{inf}, lse)
}
