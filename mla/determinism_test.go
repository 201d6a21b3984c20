package mla_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// light is a layer small enough for long contexts in pure Go.
func light(cached, fresh []int) world {
	w := small()
	w.cfg = mla.Config{Heads: 2, Nope: 8, Rope: 4, V: 8, Latent: 16, Scale: 0.3}
	w.weight = weightKind{fp8.ElemE4M3, 8, 16}
	w.format, w.kv, w.page, w.layers, w.layer = kvpaged.BF16, "bf16", 64, 1, 0
	w.cached, w.fresh = cached, fresh
	return w
}

// TestSameBits is the promise of docs/arithmetic.md where it can fail: contexts
// around tiles and partitions, both forms, any number of workers, page sizes and
// expansion buffers. Two workers at least must have done work, or the test
// shows nothing.
func TestSameBits(t *testing.T) {
	contexts := []int{63, 64, 65, 511, 512, 513, 1025, 4097}
	if testing.Short() {
		contexts = []int{65, 513}
	}
	for _, n := range contexts {
		for i, form := range slices.Concat(bothForms, bothForms) {
			arithmetic := computes[i/len(bothForms)]
			t.Run(fmt.Sprintf("keys=%d/%v/arithmetic=%v", n, form, arithmetic), func(t *testing.T) {
				w := light([]int{n - 3}, []int{3})
				w.cfg.Compute = arithmetic
				m := w.make(t)
				want := m.forward(t, m.plan(t, m.limits(), nil), form)
				if n < 2000 {
					m.check(t, want)
				}
				for _, workers := range []int{1, 2, 3, 7} {
					pool := mla.NewPool(workers)
					var meet workpool.Meet
					pool.SetHook(meet.Wait)
					p, err := bind(m.layer_, m.limits(), pool)
					require.NoError(t, err)
					sameBits(t, want, m.forward(t, p, form), fmt.Sprintf("%d workers", workers))
					if workers > 1 {
						require.GreaterOrEqual(t, meet.Workers(), 2, "workers that did work")
					}
					require.NoError(t, p.Close())
					require.NoError(t, pool.Close())
				}
				for _, page := range []int{1, 3, 16, 128} {
					w := w
					w.page = page
					m := w.make(t)
					sameBits(t, want, m.forward(t, m.plan(t, m.limits(), nil), form), fmt.Sprintf("page size %d", page))
				}
				if form == mla.FormExpanded {
					for _, buffer := range []int{1, 5, 63, 64, 65, 500, 513} {
						if buffer < 60 && n > 600 {
							continue
						}
						lim := m.limits()
						lim.Buffer = buffer
						sameBits(t, want, m.forward(t, m.plan(t, lim, nil), form), fmt.Sprintf("buffer of %d rows", buffer))
					}
				}
			})
		}
	}
}

// TestBatchMix runs sequences together and alone: equal bits, in the forms that
// the rule picks.
func TestBatchMix(t *testing.T) {
	for _, arithmetic := range computes {
		t.Run(arithmetic.String(), func(t *testing.T) { batchMix(t, arithmetic) })
	}
}

func batchMix(t *testing.T, arithmetic mla.Compute) {
	w := light([]int{0, 700, 64, 5, 0, 33}, []int{40, 2, 0, 70, 1, 1})
	w.cfg.Compute = arithmetic
	m := w.make(t)
	pool := mla.NewPool(3)
	defer func() { require.NoError(t, pool.Close()) }()
	p := m.plan(t, mla.Limits{Tokens: 200, Seqs: 8, Context: 1024}, pool)
	all := m.forward(t, p, mla.FormAuto)
	m.check(t, all)
	hd, hv, h := w.cfg.Heads*(w.cfg.Nope+w.cfg.Rope), w.cfg.Heads*w.cfg.V, w.cfg.Heads
	for b := range m.seqs {
		t0, t1 := int(m.offsets[b]), int(m.offsets[b+1])
		one := *m
		one.q, one.kvs = m.q[t0*hd:t1*hd], m.kvs[t0*w.width():t1*w.width()]
		one.seqs, one.offsets, one.tokens = m.seqs[b:b+1], []uint32{0, uint32(t1 - t0)}, t1-t0
		got := one.forward(t, p, mla.FormAuto)
		sameBits(t, answer{all.out[t0*hv : t1*hv], all.lse[t0*h : t1*h], all.top[t0*h : t1*h]}, got, fmt.Sprintf("sequence %d alone", b))
	}
}

// TestCutPrompt feeds a prompt in one call and in calls of 1, 7 and 64 tokens:
// in one fixed form the bits are equal.
func TestCutPrompt(t *testing.T) {
	const n = 150
	for i, form := range slices.Concat(bothForms, bothForms) {
		w := light([]int{0}, []int{n})
		w.cfg.Compute = computes[i/len(bothForms)]
		m := w.make(t)
		want := m.forward(t, m.plan(t, m.limits(), nil), form)
		for _, step := range []int{1, 7, 64} {
			m := w.make(t)
			p := m.plan(t, m.limits(), nil)
			got := answer{}
			hd := w.cfg.Heads * (w.cfg.Nope + w.cfg.Rope)
			for at := 0; at < n; at += step {
				k := min(step, n-at)
				part := *m
				part.q, part.kvs = m.q[at*hd:(at+k)*hd], m.kvs[at*w.width():(at+k)*w.width()]
				part.offsets, part.tokens = []uint32{0, uint32(k)}, k
				a := part.forward(t, p, form)
				got.out, got.lse, got.top = append(got.out, a.out...), append(got.lse, a.lse...), append(got.top, a.top...)
				require.NoError(t, m.seqs[0].Commit(k))
			}
			sameBits(t, want, got, fmt.Sprintf("%v, calls of %d tokens", form, step))
		}
	}
}

// TestManyWaves forces more rows than one wave holds through the absorbed form.
func TestManyWaves(t *testing.T) {
	w := small()
	w.cfg.Latent, w.cfg.Heads, w.cfg.Nope, w.cfg.V = 512, 128, 8, 8
	w.cached, w.fresh, w.format, w.kv = []int{1, 0}, []int{70, 75}, kvpaged.BF16, "bf16"
	w.weight = weightKind{fp8.ElemE4M3, 8, 128}
	if testing.Short() {
		t.Log("-short: 20 heads, which fit one wave")
		w.cfg.Heads = 20
		w.fresh = []int{7, 5}
	}
	m := w.make(t)
	p := m.plan(t, m.limits(), nil)
	got := m.forward(t, p, mla.FormAbsorbed)
	call := m.oracle(t)
	v := w.cfg.V
	for _, tok := range []int{0, 5, m.tokens / 2, m.tokens - 1} {
		for h := 0; h < w.cfg.Heads; h += 19 {
			want := call.Row(tok, h)
			for i, x := range want.Out {
				y := float64(got.out[(tok*w.cfg.Heads+h)*v+i])
				require.LessOrEqual(t, math.Abs(x-y), want.LayerBound()+math.Abs(x)/256, "token %d head %d value %d", tok, h, i)
			}
		}
	}
}

// TestSteadyStateAllocatesNothing holds Forward and Decode to 0 allocations, on
// one worker and on several, in both forms.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	for i, workers := range []int{1, 3, 1, 3} {
		pool := mla.NewPool(workers)
		defer func() { require.NoError(t, pool.Close()) }()
		w := light([]int{600, 0, 3}, []int{2, 9, 0})
		w.cfg.Compute = computes[i/2]
		m := w.make(t)
		p := m.plan(t, m.limits(), pool)
		rows := m.tokens * m.cfg.Heads
		b := m.batch()
		b.Forms = make([]mla.Form, len(m.seqs))
		b.LSE, b.MaxLogit = make([]float32, rows), make([]float32, rows)
		b.Sink = make([]float32, m.cfg.Heads)
		q, kv, out := rowsOf(m.kv, m.q), rowsOf(m.kv, m.kvs), rowsOf(m.kv, make([]float32, rows*m.cfg.V))
		ctx := context.Background()
		for _, form := range append(bothForms, mla.FormAuto) {
			for i := range b.Forms {
				b.Forms[i] = form
			}
			got := allocsPerRun(20, func() {
				if err := p.Forward(ctx, out, q, kv, b); err != nil {
					t.Error(err)
				}
			})
			require.Zero(t, got, "%d workers, form %v", workers, form)
		}
		core := mla.RowsF32(make([]float32, 2*m.cfg.Heads*m.width()))
		latent := mla.RowsF32(make([]float32, 2*m.cfg.Heads*m.cfg.Latent))
		one := mla.Batch{Cache: m.cache, Layer: m.layer, Seqs: m.seqs[:1], Offsets: []uint32{0, 2}}
		got := allocsPerRun(20, func() {
			if err := p.Decode(ctx, latent, core, one); err != nil {
				t.Error(err)
			}
		})
		require.Zero(t, got, "%d workers, Decode", workers)
	}
}
