package mla_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// An attention block, from hidden states of 24 values to hidden states: a prompt of
// three tokens, then one more. Package checkpoint makes configuration and weights of
// the files of a model.
func ExampleBlock() {
	plain := func(rows, cols int) fp8.Matrix {
		m, err := fp8.PlainF32(rows, cols, wave(rows*cols))
		check(err)
		return m
	}
	cfg := mla.BlockConfig{Core: mla.Config{Heads: 2, Nope: 8, Rope: 8, V: 8, Latent: 16, Scale: 0.25}, Hidden: 24, QLora: 12}
	block, err := mla.NewBlock(cfg, mla.BlockWeights{
		QA: plain(12, 24), QGamma: mla.RowsF32(ones(12)), QB: plain(2*(8+8), 12), // q_a_proj, q_a_layernorm, q_b_proj
		KVA: plain(16+8, 24), O: plain(24, 2*8), // kv_a_proj_with_mqa, o_proj
		Core: mla.Weights{KVB: plain(2*(8+8), 16), Gamma: mla.RowsF32(ones(16))}, // kv_b_proj, kv_a_layernorm
	})
	check(err)
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 16, Width: 16 + 8, Format: kvpaged.BF16, Pages: 4})
	check(err)
	plan, err := bindBlock(block, mla.Limits{Tokens: 8, Seqs: 1, Context: 64}, nil)
	check(err)
	seq, err := cache.NewSeq()
	check(err)
	for _, n := range []int{3, 1} {
		hidden, out := wave(n*24), make([]float32, n*24)
		check(seq.Reserve(n))
		check(plan.Forward(context.Background(), mla.RowsF32(out), mla.RowsF32(hidden), mla.Batch{
			Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, uint32(n)}, Freqs: mla.RowsF32(freqs),
		}))
		check(seq.Commit(n))
		fmt.Printf("%d of %d tokens: out[0] = %.3f\n", n, seq.Len(), out[0])
	}
	check(errors.Join(plan.Close(), cache.Close(), block.Close()))
	// Output:
	// 3 of 3 tokens: out[0] = -0.247
	// 1 of 4 tokens: out[0] = -0.159
}
