package mla_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// A prompt of five tokens, then one more, through one small layer. DeepSeek-V3
// is Heads: 128, Nope: 128, Rope: 64, V: 128, Latent: 512.
func Example() {
	cfg := mla.Config{Heads: 4, Nope: 16, Rope: 8, V: 16, Latent: 32, Scale: 0.2}
	kvb, err := fp8.New(fp8.ElemE4M3, 4*(16+16), 32, codes, fp8.ScalesF32(scales), 128, 128) // kv_b_proj
	check(err)
	layer, err := mla.New(cfg, mla.Weights{KVB: kvb, Gamma: mla.RowsF32(gamma)}) // packs a copy
	check(err)
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 64, Width: 32 + 8, Format: kvpaged.BF16, Pages: 16})
	check(err)
	pool := mla.NewPool(0) // one worker per CPU
	ws, err := mla.NewWorkspace(mla.Limits{Tokens: 64, Seqs: 8, Context: 1024}, pool, layer)
	check(err)

	seq, err := cache.NewSeq()
	check(err)
	for _, n := range []int{5, 1} { // a prompt, then one token
		q, kv := wave(n*4*(16+8)), wave(n*(32+8)) // [n, Heads, Nope+Rope] and [n, Latent+Rope]
		out := make([]float32, n*4*16)            // [n, Heads, V]

		check(seq.Reserve(n)) // all or nothing
		check(layer.Forward(context.Background(), ws, mla.RowsF32(out), mla.RowsF32(q), mla.RowsF32(kv), mla.Batch{
			Cache: cache, Layer: 0, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, uint32(n)}, Freqs: mla.RowsF32(freqs),
		}))
		check(seq.Commit(n)) // visible from now on
		fmt.Printf("%d new of %d tokens, form %v: out[0] = %.4f\n", n, seq.Len(), layer.Form(n, seq.Len()), out[0])
	}

	check(errors.Join(ws.Close(), pool.Close(), cache.Close(), layer.Close()))
	// Output:
	// 5 new of 5 tokens, form prefill: out[0] = 5.3995
	// 1 new of 6 tokens, form decode: out[0] = 2.4340
}

// What a checkpoint and a model would give.
var (
	codes  = codesOf(wave(4 * (16 + 16) * 32)) // [Heads*(Nope+V), Latent]
	scales = []float32{0.25}                   // one block of 128 x 128
	gamma  = ones(32)                          // [Latent]
	freqs  = angles(1024, 8)                   // [positions, Rope]
)

func codesOf(x []float32) []byte {
	c := make([]byte, len(x))
	for i, v := range x {
		c[i] = fp8.E4M3FromFloat32(v, fp8.Saturate).Bits()
	}
	return c
}

// wave is n smooth values between -1 and 1.
func wave(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.Sin(float64(i) * 0.7))
	}
	return x
}

func ones(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// angles is a rope table: cosine and sine of pos * 10000^(-2i/P), in turn.
func angles(positions, p int) []float32 {
	t := make([]float32, 0, positions*p)
	for pos := range positions {
		for i := range p / 2 {
			sin, cos := math.Sincos(float64(pos) * math.Pow(10000, -2*float64(i)/float64(p)))
			t = append(t, float32(cos), float32(sin))
		}
	}
	return t
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
