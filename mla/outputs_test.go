package mla_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// outputSize is a call of some queries, as many keys, and outputs of heads*v values each.
type outputSize struct{ tokens, heads, v int }

func (s outputSize) values() int { return s.tokens * s.heads * s.v }

// TestOutputsAreNarrowedOnce holds outputs in 16 bits to those in float32, narrowed, bit for bit: rows of no whole lines,
// outputs so large that they are written past the caches, rows that saw nothing and rows of NaN.
func TestOutputsAreNarrowedOnce(t *testing.T) {
	small := outputSize{70, 3, 18}
	for name, c := range map[string]struct {
		make  func(*testing.T, outputSize, mla.Compute) func(mla.Rows)
		sizes []outputSize // the first in both computes
	}{
		"prefill":  {prefillOutputs, []outputSize{small, {2, 512, 4096}, {2, 511, 4105}}},
		"decode":   {decodeOutputs, []outputSize{small, {2, 2048, 1024}, {2, 1999, 1050}}},
		"expanded": {expandedOutputs, []outputSize{small, {32, 512, 256}}},
	} {
		for i, arithmetic := range computes {
			for j, size := range c.sizes {
				if arithmetic == mla.ComputeF32 && j > 1 { // as the others but for the width
					continue
				}
				require.True(t, j == 0 || size.values() >= 1<<22, "not past the caches")
				t.Run(fmt.Sprintf("%s/%d/%+v", name, i, size), func(t *testing.T) { outputsAreNarrowed(t, c.make(t, size, arithmetic), size) })
			}
		}
	}
}

func outputsAreNarrowed(t *testing.T, run func(mla.Rows), size outputSize) {
	wide := make([]float32, size.values())
	run(mla.RowsF32(wide))
	var nothing, nans int
	for row := range slices.Chunk(wide, size.v) {
		switch {
		case slices.ContainsFunc(row, isNaN):
			nans++
		case !slices.ContainsFunc(row, func(x float32) bool { return x != 0 }):
			nothing++
		}
	}
	require.True(t, nothing > 0 && nans > 0 && nothing+nans < size.values()/size.v, "%d rows saw nothing, %d are NaN", nothing, nans)
	for _, kind := range []string{"bf16", "f16"} {
		want := make([]uint16, len(wide))
		got := slices.Repeat([]uint16{0x4242}, len(wide))
		if kind == "bf16" {
			mla.RowsBF16(want).Narrow(0, wide)
			run(mla.RowsBF16(got))
		} else {
			mla.RowsF16(want).Narrow(0, wide)
			run(mla.RowsF16(got))
		}
		for i, u := range want {
			if got[i] != u {
				require.Failf(t, "bits differ", "%s: out[%d] is %04x, want %04x, of %v", kind, i, got[i], u, wide[i])
			}
		}
	}
}

// someFloats are n values, of which not all are drawn anew.
func someFloats(r *rand.Rand, n int) []float32 {
	x := floats(r, min(n, 4099), 1)
	for len(x) < n {
		x = append(x, x[:min(len(x), n-len(x))]...)
	}
	return x
}

// outputQueries has rows that see nothing, where closeKeys has closed all keys, and rows of NaN.
func outputQueries(r *rand.Rand, rows, width int) []float32 {
	q := someFloats(r, rows*width)
	blind(q, width, 1)
	for row := 5; row < rows; row += 7 {
		q[row*width] = float32(math.NaN())
	}
	return q
}

func prefillOutputs(t *testing.T, s outputSize, arithmetic mla.Compute) func(mla.Rows) {
	r, width, rows := rand.New(rand.NewPCG(1, 6)), s.v+1, s.tokens*s.heads
	q, k, v := outputQueries(r, rows, width), someFloats(r, rows*width), someFloats(r, rows*s.v)
	closeKeys(k, width, s.heads, s.tokens)
	core := outputCore(t, s, width, arithmetic)
	return func(out mla.Rows) {
		core.Poison()
		require.NoError(t, core.Prefill(nil, out, mla.RowsF32(q), rowsOf("bf16", k), rowsOf("bf16", v), nil))
	}
}

func outputCore(t *testing.T, s outputSize, width int, arithmetic mla.Compute) *boundCore {
	core, err := newCore(mla.CoreConfig{Heads: s.heads, Width: width, V: s.v, Scale: 0.3, Mask: mla.Mask{Kind: mla.MaskCausal}, Compute: arithmetic},
		mla.Limits{Tokens: s.tokens, Seqs: 1, Context: s.tokens}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, core.Close()) })
	return core
}

func decodeOutputs(t *testing.T, s outputSize, arithmetic mla.Compute) func(mla.Rows) {
	r, width := rand.New(rand.NewPCG(2, 6)), s.v+1
	q, rows := outputQueries(r, s.tokens*s.heads, width), someFloats(r, s.tokens*width)
	closeKeys(rows, width, 1, s.tokens)
	cache, _ := filled(t, rows, width, 8, kvpaged.BF16)
	b := mla.Batch{Cache: cache, Seqs: []*kvpaged.Seq{cacheSeq(t, cache, s.tokens)}, Offsets: []uint32{0, uint32(s.tokens)}}
	core := outputCore(t, s, width, arithmetic)
	return func(out mla.Rows) {
		core.Poison()
		require.NoError(t, core.Decode(context.Background(), out, mla.RowsF32(q), b))
	}
}

// expandedOutputs hides keys with the first term of their rope parts, which nothing turns.
func expandedOutputs(t *testing.T, s outputSize, arithmetic mla.Compute) func(mla.Rows) {
	const nope, rope, latent = 2, 2, 4
	w := small()
	w.cfg = mla.Config{Heads: s.heads, Nope: nope, Rope: rope, V: s.v, Latent: latent, Scale: 0.3, Compute: arithmetic}
	w.weight, w.format = weightKind{elem: fp8.ElemF32}, kvpaged.BF16
	w.cached, w.fresh = []int{0}, []int{s.tokens}
	m := w.make(t)
	for i := range m.freqs {
		m.freqs[i] = float32(1 - i%2) // cos 1, sin 0
	}
	for i := latent; i < len(m.kvs); i += latent + rope {
		m.kvs[i] = -30
	}
	for row := range s.tokens * s.heads {
		q := m.q[row*(nope+rope):]
		q[nope] = [...]float32{0, 3e38, 0}[row%3]
		if row%7 == 5 {
			q[0] = float32(math.NaN())
		}
	}
	p := m.plan(t, m.limits(), nil)
	b := m.batch()
	b.Forms = []mla.Form{mla.FormExpanded}
	return func(out mla.Rows) {
		p.Poison()
		require.NoError(t, p.Forward(context.Background(), out, mla.RowsF32(m.q), mla.RowsF32(m.kvs), b))
	}
}
