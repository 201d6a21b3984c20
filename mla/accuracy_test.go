package mla_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// pairBound is what the second arithmetic may err by, of a row's largest output, where queries are bf16.
const pairBound = 2e-3

// TestPairAccuracy holds dense calls in the second arithmetic to float64 on the same values of queries and cache.
func TestPairAccuracy(t *testing.T) {
	const heads, width, dv = 2, 576, 512
	scale := float32(1 / math.Sqrt(192))
	for _, c := range []struct {
		format kvpaged.Format
		keys   int
	}{
		{kvpaged.BF16, 1}, {kvpaged.BF16, 100}, {kvpaged.BF16, 1024}, {kvpaged.DSMLA656, 1024}, {kvpaged.BF16, 4096}, {kvpaged.BF16, 16384},
	} {
		if testing.Short() && c.keys > 1024 {
			continue
		}
		t.Run(fmt.Sprintf("%v/keys=%d", c.format, c.keys), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(c.keys), 2))
			cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 64, Width: width, Format: c.format, Pages: (c.keys + 63) / 64})
			require.NoError(t, err)
			defer func() { require.NoError(t, cache.Close()) }()
			s, err := cache.NewSeq()
			require.NoError(t, err)
			require.NoError(t, s.Reserve(c.keys))
			require.NoError(t, s.WriteRows(0, 0, floats(r, c.keys*width, 1)))
			require.NoError(t, s.Commit(c.keys))
			rows := make([]float32, c.keys*width)
			require.NoError(t, s.ReadRows(rows, 0, 0, c.keys))
			q := rounded("bf16", floats(r, heads*width, 1))

			core, err := newCore(mla.CoreConfig{Heads: heads, Width: width, V: dv, Scale: scale, Compute: mla.ComputeBF16},
				mla.Limits{Tokens: 1, Seqs: 1, Context: c.keys}, nil)
			require.NoError(t, err)
			defer core.Close()
			out, lse := make([]float32, heads*dv), make([]float32, heads)
			b := mla.Batch{Cache: cache, Seqs: []*kvpaged.Seq{s}, Offsets: []uint32{0, 1}, LSE: lse}
			require.NoError(t, core.Decode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), b))

			visible := make([]int, c.keys)
			for i := range visible {
				visible[i] = i
			}
			key := func(j int) []float64 { return float64s(rows[j*width:][:width]) }
			for h := range heads {
				want, worst := oracle.Attend(float64s(q[h*width:][:width]), key, visible, float64(scale), oracle.NoSink, dv), 0.0
				for i, x := range want.Out {
					worst = math.Max(worst, math.Abs(x-float64(out[h*dv+i]))/want.Largest())
				}
				t.Logf("head %d: %.2e of the largest output", h, worst)
				require.LessOrEqual(t, worst, pairBound, "head %d", h)
				require.InDelta(t, want.LSE, lse[h], 2e-3, "lse of head %d", h)
			}
		})
	}
}

// TestCancelling holds attention to its bound where all outputs of a row cancel: two keys of nearly the same score and
// opposite values, in rows of one and two values. What float32 rounds does not cancel, so the error is a multiple of what
// rows of many values may have of their largest output, and within what docs/arithmetic.md allows such rows.
func TestCancelling(t *testing.T) {
	for _, c := range []struct {
		width, dv int
		sigma     float64 // of the scores
		calls     int
	}{
		{2, 1, 3, 40}, {66, 2, 1, 40}, {66, 2, 30, 40}, {576, 1, 100, 20}, {576, 2, 3, 20},
	} {
		t.Run(fmt.Sprintf("%d of %d values, scores of %g", c.dv, c.width, c.sigma), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(c.width), uint64(c.dv)))
			cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 2, Width: c.width, Format: kvpaged.F32, Pages: 1})
			require.NoError(t, err)
			defer func() { require.NoError(t, cache.Close()) }()
			core, err := newCore(mla.CoreConfig{Heads: 1, Width: c.width, V: c.dv, Scale: 1}, mla.Limits{Tokens: 1, Seqs: 1, Context: 2}, nil)
			require.NoError(t, err)
			defer core.Close()
			passed := 0.0
			for range c.calls {
				q, rows := floats(r, c.width, c.sigma/math.Sqrt(float64(c.width))), floats(r, 2*c.width, 1)
				oppose(r, q, rows[:c.width], rows[c.width:], c.dv)
				seq, err := cache.NewSeq()
				require.NoError(t, err)
				require.NoError(t, seq.Reserve(2))
				require.NoError(t, seq.WriteRows(0, 0, rows))
				require.NoError(t, seq.Commit(2))
				out := make([]float32, c.dv)
				b := mla.Batch{Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, 1}}
				require.NoError(t, core.Decode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), b))
				require.NoError(t, seq.Free())
				want := oracle.Attend(float64s(q), oracle.Table(float64s(rows), c.width), []int{0, 1}, 1, oracle.NoSink, c.dv)
				plain := (2e-6 + 1.2e-7*want.MaxAbs) * want.Largest()
				for i, x := range want.Out {
					diff := math.Abs(x - float64(out[i]))
					require.LessOrEqual(t, diff, want.CoreBound(), "value %d is %v, want %v", i, out[i], x)
					passed = math.Max(passed, diff/plain)
				}
			}
			t.Logf("%.2g times the bound of rows of many values", passed)
			require.Greater(t, passed, 3.0)
		})
	}
}

// oppose gives the second of two rows the values of the first with the other sign, and a score close to the first's.
func oppose(r *rand.Rand, q, first, second []float32, dv int) {
	score, square := 0.0, 0.0
	for i, x := range q {
		if i < dv {
			second[i] = -first[i]
		} else {
			square += float64(x) * float64(x)
		}
		score += float64(x) * (float64(first[i]) - float64(second[i]))
	}
	for i, x := range q[dv:] {
		second[dv+i] += float32((score + 0.01*r.NormFloat64()) / square * float64(x))
	}
}
