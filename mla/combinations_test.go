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

// formats is every cache format, with the latent and rope widths of a row that
// fits it.
var formats = []struct {
	format       kvpaged.Format
	latent, rope int
}{
	{kvpaged.BF16, 40, 6}, {kvpaged.F16, 33, 4}, {kvpaged.F32, 40, 6}, {kvpaged.FP8Unit, 24, 2},
	{kvpaged.FP8Tensor, 40, 6}, {kvpaged.FP8Token, 50, 0}, {kvpaged.DSMLA656, 512, 64}, {kvpaged.V4_584, 448, 64},
	{kvpaged.V41_528Interleaved, 480, 32}, {kvpaged.V41_528Planar, 448, 64},
	{kvpaged.V41FP4_288Interleaved, 448, 64}, {kvpaged.V41FP4_288Planar, 512, 0},
}

// secondRow numbers the rows of a second cache for the oracle.
const secondRow = 1 << 30

// TestEveryCombination crosses every mask, form, cache format, and dense, sparse
// and sparse with a second cache, on odd sizes, against float64.
func TestEveryCombination(t *testing.T) {
	for fi, f := range formats {
		for mi, mask := range allMasks {
			if testing.Short() && (fi+mi)%len(allMasks) != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%v/%v", f.format, mask), func(t *testing.T) {
				w := small()
				w.cfg = mla.Config{Heads: 3, Nope: 12, Rope: f.rope, V: 7, Latent: f.latent, Scale: 0.1, Mask: mask}
				w.weight = weightKind{bn: 5, bk: 40}
				w.format, w.group, w.seed = f.format, 9, uint64(fi*10+mi)
				w.cached, w.fresh, w.unread = []int{21, 0, 4}, []int{2, 5, 0}, true
				if fi+mi > 5 { // every format and every mask in both
					w.cfg.Compute = computes[(fi+mi)%2]
				}
				if fi%2 == 1 {
					w.kv, w.gamma, w.sink = "bf16", "bf16", true
				}
				m := w.make(t)
				p := m.plan(t, m.limits(), nil)
				for _, form := range bothForms {
					m.check(t, m.forward(t, p, form))
				}
				// Lists may name what no mask hides, so the cache holds no poison here.
				w.unread = false
				m = w.make(t)
				p = m.plan(t, m.limits(), nil)
				for _, extra := range []bool{false, true} {
					m.checkSparse(t, p, extra, formats[(fi+mi)%len(formats)].format)
				}
			})
		}
	}
}

// checkSparse runs the layer over random lists of positions, and of rows of a
// second cache of the format given where it fits, against float64.
func (m *made) checkSparse(t *testing.T, p *bound, extra bool, second kvpaged.Format) {
	t.Helper()
	r := rand.New(rand.NewPCG(m.seed, 11))
	const stride, xstride, xrows = 70, 13, 35 // whole pages of 7
	sp := &mla.Sparse{Logical: true, Stride: stride}
	lists := make([][]int, m.tokens)
	for b := range m.seqs {
		for tok := int(m.offsets[b]); tok < int(m.offsets[b+1]); tok++ {
			list, valid, _ := picks(r, stride, m.cached[b]+tok-int(m.offsets[b])+1)
			sp.Indices = append(sp.Indices, list...)
			lists[tok] = valid
		}
	}
	var back []float32
	if extra {
		if (second != kvpaged.F32) && m.width() != 512 && m.width() != 576 {
			second = kvpaged.F16
		}
		if _, err := kvpaged.ArenaBytes(kvpaged.Config{Layers: 1, PageTokens: 7, Width: m.width(), Format: second, Pages: 1}); err != nil {
			second = kvpaged.BF16 // a record of another width
		}
		cache, rows := filled(t, floats(r, xrows*m.width(), 1), m.width(), 7, second)
		back = rows
		sp.Extra = &mla.Extra{Cache: cache, Stride: xstride}
		for tok := range m.tokens {
			list, valid, _ := picks(r, xstride, xrows)
			sp.Extra.Indices = append(sp.Extra.Indices, list...)
			for _, k := range valid {
				lists[tok] = append(lists[tok], secondRow+k)
			}
		}
	}
	rows := m.tokens * m.cfg.Heads
	a := answer{lse: make([]float32, rows), top: make([]float32, rows)}
	out := rowsOf(m.kv, make([]float32, rows*m.cfg.V))
	b := m.batch()
	b.Sparse, b.LSE, b.MaxLogit = sp, a.lse, a.top
	require.NoError(t, p.Forward(context.Background(), out, rowsOf(m.kv, m.q), rowsOf(m.kv, m.kvs), b))
	a.out = values(out)

	call := m.oracle(t)
	call.Select = func(tok int) []int { return lists[tok] }
	call.Fetch = func(seq, pos int) []float64 {
		width := m.width()
		if pos >= secondRow {
			k := pos - secondRow
			return float64s(back[k*width : (k+1)*width])
		}
		return call.Rows[seq][pos*width : (pos+1)*width]
	}
	m.checkWith(t, call, a)
}
