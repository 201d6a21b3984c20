package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"math"
	"os"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

const prompt, tokens = 12, 16 // so many at once, then one by one up to so many

func main() {
	if len(os.Args) != 2 {
		log.Fatal("usage: layer DIR")
	}
	run(os.Args[1], os.Stdout)
}

func run(dir string, w io.Writer) {
	model := must(checkpoint.OpenModel(dir))
	block := must(model.Block(0)) // read and packed
	e, width := block.Config().Hidden, block.Config().Core.Width()
	cache := must(kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 16, Width: width, Format: kvpaged.BF16, Pages: 1}))
	freqs := must(model.Config.Rope.Table(tokens)) // cosines and sines of every position
	pool := mla.NewPool(0)                         // one worker per CPU
	ws := must(mla.NewWorkspace(mla.Limits{Tokens: prompt, Seqs: 1, Context: tokens}, pool, block))
	seq := must(cache.NewSeq())
	for n := prompt; seq.Len() < tokens; n = 1 {
		hidden, out := make([]float32, n*e), make([]float32, n*e) // [n, hidden]
		for i := range hidden {
			hidden[i] = float32(math.Sin(0.7 * float64(seq.Len()*e+i))) // what a model would give
		}
		check(seq.Reserve(n)) // all or nothing
		check(block.Forward(context.Background(), ws, mla.RowsF32(out), mla.RowsF32(hidden), mla.Batch{
			Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, uint32(n)}, Freqs: mla.RowsF32(freqs),
		}))
		check(seq.Commit(n)) // visible from now on
		fmt.Fprintf(w, "%2d new of %2d tokens, %v: %.4f\n", n, seq.Len(), block.Form(n, seq.Len()), out[(n-1)*e:][:min(e, 4)])
	}
	check(errors.Join(ws.Close(), pool.Close(), cache.Close(), block.Close(), model.Close()))
}

func must[T any](x T, err error) T {
	check(err)
	return x
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
