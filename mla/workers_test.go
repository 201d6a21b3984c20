package mla_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// late holds back the first items of a stage that are even, or odd, until their neighbours are
// likely to be over: what two items write into one place then stays as either of them left it.
func late(parity int) func(worker, item int) {
	return func(_, item int) {
		if item < 4 && item%2 == parity {
			time.Sleep(200 * time.Microsecond)
		}
	}
}

// oddLayer is a layer of the sizes given, with two sequences of new tokens.
func oddLayer(heads, nope, rope, v, latent int) world {
	w := small()
	w.cfg = mla.Config{Heads: heads, Nope: nope, Rope: rope, V: v, Latent: latent, Scale: 0.3}
	w.weight = weightKind{elem: fp8.ElemF32}
	w.cached, w.fresh, w.page = []int{0, 66}, []int{2, 3}, 7
	return w
}

// TestWorkersWithOddSizes cuts every stage of a layer among workers where no size is a multiple
// of a pair, a word, a vector or a cache line: neighbours in such a unit then belong to different
// items. One worker gives the bits that all must give.
func TestWorkersWithOddSizes(t *testing.T) {
	worlds := map[string]world{
		"one head, two panels and a value": oddLayer(1, 1, 2, 1, 17),
		"two panels but a value":           oddLayer(1, 3, 2, 5, 31),
		"three panels":                     oddLayer(2, 13, 6, 33, 33),
		"nine heads":                       oddLayer(9, 7, 2, 17, 19),
		"no rope":                          oddLayer(1, 5, 0, 3, 49),
		"k cut":                            oddLayer(1, 259, 2, 19, 257),
	}
	w := oddLayer(1, 9, 2, 17, 35)
	w.kv, w.gamma, w.format = "bf16", "bf16", kvpaged.BF16
	worlds["bf16 rows"] = w
	w = oddLayer(3, 9, 2, 17, 35)
	w.kv, w.format, w.weight = "f16", kvpaged.FP8Unit, weightKind{fp8.ElemE4M3, 7, 5}
	worlds["f16 rows, fp8 cache, folded scales"] = w
	w = oddLayer(3, 20, 4, 12, 36)
	w.format, w.group, w.weight = kvpaged.FP8Token, 3, weightKind{fp8.ElemE4M3, 16, 20}
	worlds["fp8 with short groups, lifted weights"] = w
	w = oddLayer(1, 33, 2, 17, 35)
	w.cfg.ActQuant, w.cfg.ActBlockQ, w.cfg.ActBlockLatent = mla.ActDynamic, 7, 5
	w.weight = weightKind{fp8.ElemE4M3, 16, 20}
	worlds["quantised activations"] = w
	for name, w := range worlds {
		for _, arithmetic := range computes {
			for _, form := range bothForms {
				t.Run(fmt.Sprintf("%s/%v/%v", name, form, arithmetic), func(t *testing.T) {
					w := w
					w.cfg.Compute = arithmetic
					m := w.make(t)
					want := m.forward(t, m.plan(t, m.limits(), nil), form)
					if w.cfg.ActQuant == mla.ActNone && arithmetic == mla.ComputeF32 {
						m.check(t, want)
					}
					for _, workers := range []int{2, 7} {
						pool := mla.NewPool(workers)
						p, err := bind(m.layer_, m.limits(), pool)
						require.NoError(t, err)
						for parity := range 2 {
							pool.SetHook(late(parity))
							sameBits(t, want, m.forward(t, p, form), fmt.Sprintf("%d workers, items %d late", workers, parity))
						}
						var meet workpool.Meet
						pool.SetHook(meet.Wait)
						sameBits(t, want, m.forward(t, p, form), fmt.Sprintf("%d workers that meet", workers))
						require.GreaterOrEqual(t, meet.Workers(), 2, "workers that did work")
						require.NoError(t, p.Close())
						require.NoError(t, pool.Close())
					}
				})
			}
		}
	}
}
