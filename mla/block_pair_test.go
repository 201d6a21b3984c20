package mla_test

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// integers are values below size that no mathematical function had a part in, which differ
// between architectures: of eight bits, and every third of all that float32 has.
func integers(state *uint64, n int, size float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		*state = *state*6364136223846793005 + 1442695040888963407
		v := int32(*state>>40) - 1<<23
		if i%3 != 0 {
			v &^= 1<<16 - 1
		}
		x[i] = float32(float32(v) * 0x1p-23 * size)
	}
	return x
}

// TestPairBlockBits: a block in the second arithmetic has these bits on every instruction
// set, in both forms and with quantised activations. Projections of every kind are in it,
// longer than a piece of k.
func TestPairBlockBits(t *testing.T) {
	for name, want := range map[string]string{
		"decode":  "8a8e88933b834d5e29cc5f12310407ff6bb209b7f943d2433fbe8b1f546d3c6b",
		"prefill": "4573544b2e3c1b820d725ee62ab6eda52187f2b79c2bfb4cf53f05986d69fdd2",
		"dynamic": "71bb940000930ad3a39d67d13524ebed49d9444d9dcf51416f61438a9931c6e6",
	} {
		t.Run(name, func(t *testing.T) {
			state := uint64(8)
			of := func(k weightKind, rows, cols int) fp8.Matrix {
				return k.matrix(t, rows, cols, integers(&state, rows*cols, 0.25))
			}
			cfg := mla.BlockConfig{
				Core:   mla.Config{Heads: 3, Nope: 32, Rope: 8, V: 96, Latent: 64, Scale: 0.125, Compute: mla.ComputeBF16},
				Hidden: 300, QLora: 44, QScale: 1.25, QBeta: 0.125, QContext: 4,
			}
			if name == "dynamic" {
				cfg.Core.ActQuant = mla.ActDynamic
			}
			gamma := func(n int) mla.Rows {
				x := integers(&state, n, 0.25)
				for i := range x {
					x[i]++
				}
				return mla.RowsF32(x)
			}
			c := cfg.Core
			block, err := mla.NewBlock(cfg, mla.BlockWeights{
				QA: of(weightKind{fp8.ElemE4M3, 32, 32}, 44, 300), QB: of(weightKind{elem: fp8.ElemBF16}, 3*40, 44),
				KVA: of(weightKind{fp8.ElemE4M3FNUZ, 1, 8}, c.Width(), 300), O: of(weightKind{fp8.ElemE4M3, 128, 128}, 300, 3*96),
				QGamma: gamma(44), Core: mla.Weights{KVB: of(weightKind{fp8.ElemE4M3, 32, 32}, 3*(32+96), 64), Gamma: gamma(64)},
				QABias: mla.RowsF32(integers(&state, 44, 0.5)), OBias: mla.RowsF32(integers(&state, 300, 0.5)),
			})
			require.NoError(t, err)
			defer func() { require.NoError(t, block.Close()) }()
			const tokens = 70
			cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 16, Width: c.Width(), Format: kvpaged.BF16, Pages: 5})
			require.NoError(t, err)
			defer func() { require.NoError(t, cache.Close()) }()
			seq, err := cache.NewSeq()
			require.NoError(t, err)
			plan, err := bindBlock(block, mla.Limits{Tokens: tokens, Seqs: 1, Context: tokens}, nil)
			require.NoError(t, err)
			defer func() { require.NoError(t, plan.Close()) }()
			form := mla.FormAbsorbed
			if name == "prefill" {
				form = mla.FormExpanded
			}
			freqs := mla.RowsF32(integers(&state, tokens*8, 1))
			sum := sha256.New()
			for _, n := range []int{tokens - 3, 1, 2} {
				require.NoError(t, seq.Reserve(n))
				hidden, out := integers(&state, n*300, 2), make([]float32, n*300)
				require.NoError(t, plan.Forward(context.Background(), mla.RowsF32(out), mla.RowsF32(hidden), mla.Batch{
					Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, uint32(n)}, Freqs: freqs, Forms: []mla.Form{form},
				}))
				require.NoError(t, seq.Commit(n))
				for _, x := range out {
					require.False(t, isNaN(x))
					binary.Write(sum, binary.LittleEndian, math.Float32bits(x))
				}
			}
			require.Equal(t, want, hex.EncodeToString(sum.Sum(nil)))
		})
	}
}
