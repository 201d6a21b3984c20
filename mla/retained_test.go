package mla_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// watched are slices of a caller, with whether the collector has found them free.
type watched map[string]chan struct{}

// watch is x, of more than the few bytes of which the runtime puts several into one object.
func watch[T any](w watched, name string, x []T) []T {
	free := make(chan struct{})
	w[name] = free
	runtime.AddCleanup(&x[0], func(free chan struct{}) { close(free) }, free)
	return x
}

// rows is n values of a type that nobody but the call holds.
func (w watched) rows(name, kind string, n int) mla.Rows {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(i%13)/13 - 0.5
	}
	if kind == "f32" {
		return mla.RowsF32(watch(w, name, x))
	}
	r := mla.RowsBF16(watch(w, name, make([]uint16, n)))
	r.Narrow(0, x)
	return r
}

// released fails unless all are free.
func (w watched) released(t *testing.T, call string) {
	t.Helper()
	for name, free := range w {
		for deadline := time.Now().Add(10 * time.Second); ; {
			runtime.GC()
			select {
			case <-free:
			case <-time.After(time.Millisecond):
				require.True(t, time.Now().Before(deadline), "%s is still held after %s", name, call)
				continue
			}
			break
		}
	}
}

// TestNothingIsRetained: a workspace holds nothing of a caller's once the call has returned.
func TestNothingIsRetained(t *testing.T) {
	const h, width, v = 2, 24, 16
	for _, compute := range computes {
		for _, n := range []int{70, 300} { // queries of one tile, and of several
			for _, kind := range []string{"f32", "bf16"} {
				core, err := newCore(mla.CoreConfig{Heads: h, Width: width, V: v, Scale: 0.2, Compute: compute},
					mla.Limits{Tokens: 300, Seqs: 2, Context: n}, nil)
				require.NoError(t, err)
				w := watched{}
				require.NoError(t, core.Prefill(context.Background(), w.rows("out", kind, n*h*v), w.rows("q", kind, n*h*width),
					w.rows("k", kind, n*h*width), w.rows("v", kind, n*h*v), &mla.PrefillArgs{
						Sink: watch(w, "sink", make([]float32, 64))[:h], LSE: watch(w, "lse", make([]float32, n*h)),
					}))
				w.released(t, "Prefill")

				w = watched{}
				indices := func() []int32 {
					x := watch(w, "indices", make([]int32, 700))
					for i := range x {
						x[i] = int32(i % n)
					}
					return x
				}
				require.NoError(t, core.SparsePrefill(context.Background(), w.rows("out", kind, h*v), w.rows("q", kind, h*width),
					w.rows("kv", kind, n*width), &mla.SparsePrefillArgs{Indices: indices(), Stride: 700}))
				w.released(t, "SparsePrefill")

				w = watched{}
				cache, _ := filled(t, floats(rand.New(rand.NewPCG(1, 7)), n*width, 1), width, 9, kvpaged.F32)
				require.NoError(t, core.SparseDecode(context.Background(), w.rows("out", kind, h*v), w.rows("q", kind, h*width),
					&mla.SparseDecodeArgs{Seqs: 1, Tokens: 1, Cache: cache, Indices: indices(), Stride: 700}))
				w.released(t, "SparseDecode")
				require.NoError(t, core.Close())
			}
		}
	}
	for _, form := range bothForms {
		m := small().make(t)
		p := m.plan(t, m.limits(), nil)
		w := watched{}
		b := m.batch()
		b.Forms = watch(w, "forms", make([]mla.Form, 64))[:len(m.seqs)]
		for i := range b.Forms {
			b.Forms[i] = form
		}
		b.Freqs = mla.RowsF32(watch(w, "freqs", append([]float32(nil), m.freqs...)))
		require.NoError(t, p.Forward(context.Background(), w.rows("out", "f32", m.tokens*m.cfg.Heads*m.cfg.V),
			w.rows("q", "bf16", len(m.q)), w.rows("kv", "f32", len(m.kvs)), b))
		b = mla.Batch{}
		w.released(t, "Forward, "+form.String())
		runtime.KeepAlive(p)
	}
}
