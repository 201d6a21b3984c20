package mla_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// forkFormats are the formats of cache rows and the widths that they want.
var forkFormats = map[kvpaged.Format]int{
	kvpaged.BF16: 24, kvpaged.F16: 24, kvpaged.F32: 24, kvpaged.FP8Unit: 24, kvpaged.FP8Tensor: 24, kvpaged.FP8Token: 24,
	kvpaged.DSMLA656: 576, kvpaged.V4_584: 512, kvpaged.V41_528Interleaved: 512, kvpaged.V41_528Planar: 512,
	kvpaged.V41FP4_288Interleaved: 512, kvpaged.V41FP4_288Planar: 512,
}

// TestDecodeOverFork: attention over a fork has the bits of attention over a sequence
// into which the same rows were written anew, after parent and fork have both gone on.
func TestDecodeOverFork(t *testing.T) {
	const layers, page, tokens, more, heads = 2, 5, 13, 3, 2
	ctx := context.Background()
	for format, width := range forkFormats {
		r := rand.New(rand.NewPCG(41, uint64(format)))
		cfg := kvpaged.Config{Layers: layers, PageTokens: page, Width: width, Format: format, Pages: 30}
		switch format {
		case kvpaged.FP8Tensor:
			cfg.Scale = 0.03
		case kvpaged.FP8Token:
			cfg.Group = 7
		}
		cache, err := kvpaged.New(cfg)
		require.NoError(t, err)
		add := func(s *kvpaged.Seq, rows [layers][]float32, from, to int) {
			at := s.Len()
			require.NoError(t, s.Reserve(to-from))
			for l := range layers {
				require.NoError(t, s.WriteRows(l, at, rows[l][from*width:to*width]))
			}
			require.NoError(t, s.Commit(to-from))
		}
		var rows, after, other [layers][]float32
		for l := range layers {
			rows[l], after[l], other[l] = floats(r, tokens*width, 1), floats(r, more*width, 1), floats(r, more*width, 3)
		}
		parent, err := cache.NewSeq()
		require.NoError(t, err)
		add(parent, rows, 0, tokens)
		for _, n := range []int{0, 4, 5, 12, 13} {
			fork, err := parent.Fork(n)
			require.NoError(t, err)
			add(parent, other, 0, more)
			add(fork, after, 0, more)
			anew, err := cache.NewSeq()
			require.NoError(t, err)
			add(anew, rows, 0, n)
			add(anew, after, 0, more)
			q := mla.RowsF32(floats(r, heads*width, 1))
			for _, arithmetic := range []mla.Compute{mla.ComputeF32, mla.ComputeBF16} {
				core, err := newCore(mla.CoreConfig{Heads: heads, Width: width, V: width - 8, Scale: 0.1, Compute: arithmetic},
					mla.Limits{Tokens: 1, Seqs: 1, Context: tokens + more}, nil)
				require.NoError(t, err)
				for l := range layers {
					decode := func(s *kvpaged.Seq) answer {
						a := answer{out: make([]float32, heads*(width-8)), lse: make([]float32, heads)}
						require.NoError(t, core.Decode(ctx, mla.RowsF32(a.out), q,
							mla.Batch{Cache: cache, Layer: l, Seqs: []*kvpaged.Seq{s}, Offsets: []uint32{0, 1}, LSE: a.lse}))
						return a
					}
					sameBits(t, decode(anew), decode(fork), fmt.Sprintf("%v, %v, %d tokens, layer %d", format, arithmetic, n, l))
				}
				require.NoError(t, core.Close())
			}
			require.NoError(t, parent.Truncate(tokens))
			require.NoError(t, anew.Free())
			require.NoError(t, fork.Free())
		}
		require.NoError(t, cache.Close())
	}
}

// TestForwardOverFork: a layer that goes on from a fork stores and answers as one
// that was given the whole prompt.
func TestForwardOverFork(t *testing.T) {
	w := small()
	w.cached, w.fresh = []int{7}, []int{7}
	m := w.make(t)
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 4, Width: w.width(), Format: kvpaged.BF16, Pages: 12})
	require.NoError(t, err)
	p := m.plan(t, m.limits(), nil)
	forward := func(s *kvpaged.Seq) answer {
		a := m.args()
		b := mla.Batch{Cache: cache, Seqs: []*kvpaged.Seq{s}, Offsets: []uint32{0, 7}, Freqs: mla.RowsF32(m.freqs), LSE: make([]float32, 7*w.cfg.Heads)}
		require.NoError(t, s.Reserve(7))
		require.NoError(t, p.Forward(a.ctx, a.out, a.q, a.kv, b))
		require.NoError(t, s.Commit(7))
		out := make([]float32, a.out.Len())
		a.out.Widen(out, 0, len(out))
		return answer{out: out, lse: b.LSE}
	}
	parent, err := cache.NewSeq()
	require.NoError(t, err)
	forward(parent)
	fork, err := parent.Fork(7)
	require.NoError(t, err)
	want := forward(parent)
	sameBits(t, want, forward(fork), "the same tokens after the same prompt")
	whole, err := parent.Export(0, 0, 14)
	require.NoError(t, err)
	stored, err := fork.Export(0, 0, 14)
	require.NoError(t, err)
	require.Equal(t, whole, stored)
	require.NoError(t, cache.Close())
}
