package mla_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// TestTwice: a sequence is in a batch that writes it at most once, whatever it brings, be it nothing; Decode, which only
// reads, takes it any number of times, and gives each the answer that it has alone.
func TestTwice(t *testing.T) {
	w := small()
	w.cached, w.fresh = []int{9, 4, 6}, []int{0, 2, 0}
	m := w.make(t)
	p := m.plan(t, mla.Limits{Tokens: 12, Seqs: 8, Context: 20}, nil)
	a := m.args()
	for _, seqs := range [][]*kvpaged.Seq{
		{m.seqs[0], m.seqs[1], m.seqs[0]}, // neither brings a token
		{m.seqs[1], m.seqs[1], m.seqs[0]},
		{m.seqs[0], m.seqs[1], m.seqs[1]},
	} {
		a.b.Seqs = seqs
		require.ErrorIs(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b), mla.ErrShape)
	}
	none := a.b
	none.Offsets = []uint32{0, 0, 0, 0}
	empty := mla.Rows{}
	require.ErrorIs(t, p.Forward(a.ctx, empty, empty, empty, none), mla.ErrShape, "in a batch without tokens")
	a.b.Seqs = m.seqs
	require.NoError(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b))

	h := m.cfg.Heads
	decode := func(seqs []*kvpaged.Seq, q []float32) []float32 {
		out, b := make([]float32, len(q)/m.width()*m.cfg.Latent), mla.Batch{Cache: m.cache, Layer: m.layer, Seqs: seqs, Offsets: []uint32{0}}
		for i := range seqs {
			b.Offsets = append(b.Offsets, uint32(2*(i+1)))
		}
		require.NoError(t, p.Decode(nil, mla.RowsF32(out), mla.RowsF32(q), b))
		return out
	}
	q := floats(rand.New(rand.NewPCG(2, 3)), 8*h*m.width(), 1)
	half := func(i int) []float32 { return q[i*len(q)/4 : (i+1)*len(q)/4] }
	var want []float32
	order := []*kvpaged.Seq{m.seqs[0], m.seqs[2], m.seqs[0], m.seqs[0]}
	for i, s := range order {
		want = append(want, decode([]*kvpaged.Seq{s}, half(i))...)
	}
	sameBits(t, answer{out: want}, answer{out: decode(order, q)}, "a sequence three times")
}

// TestTwiceInABlock is TestTwice of a block.
func TestTwiceInABlock(t *testing.T) {
	m := lightBlock([]int{3, 5}, []int{1, 0}).make(t)
	p, err := bindBlock(m.block, mla.Limits{Tokens: 2, Seqs: 2, Context: 9}, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	b := m.batch()
	b.Seqs = []*kvpaged.Seq{b.Seqs[0], b.Seqs[0]}
	b.Offsets = []uint32{0, 1, 1}
	e := m.block.Config().Hidden
	require.ErrorIs(t, p.Forward(nil, mla.RowsF32(make([]float32, e)), mla.RowsF32(make([]float32, e)), b), mla.ErrShape)
}
