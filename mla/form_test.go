package mla_test

import (
	"context"
	"math"
	"math/big"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// TestFormRule holds Layer.Form to the inequality of arithmetic.md in big
// integers, huge sizes included.
func TestFormRule(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	seen := map[mla.Form]int{}
	for _, mask := range []mla.Mask{{}, {Kind: mla.MaskNull}, {Kind: mla.MaskChunked, Window: 3}} {
		w := small()
		w.cfg.Mask = mask
		l := w.make(t).layer_
		c := l.Config()
		for range 2000 {
			n := 1 + r.IntN(1<<r.IntN(31))
			s := 1 + r.IntN(min(n, 1<<24))
			b := func(x int) *big.Int { return big.NewInt(int64(x)) }
			mul := func(x ...*big.Int) *big.Int {
				p := b(1)
				for _, v := range x {
					p.Mul(p, v)
				}
				return p
			}
			pairs := new(big.Int).Add(mul(b(s), b(n-s)), new(big.Int).Rsh(mul(b(s), b(s+1)), 1))
			if mask.Kind == mla.MaskNull {
				pairs = mul(b(s), b(n))
			}
			nv := mul(b(c.Latent), b(c.Nope+c.V))
			left := new(big.Int).Add(mul(pairs, b(c.Width()+c.Latent)), mul(b(s), nv))
			right := new(big.Int).Add(mul(pairs, b(c.Nope+c.Rope+c.V)), mul(b(n), nv))
			want := mla.FormExpanded
			if left.Cmp(right) <= 0 {
				want = mla.FormAbsorbed
			}
			require.Equal(t, want, l.Form(s, n), "%d new of %d", s, n)
			seen[want]++
		}
	}
	require.Positive(t, seen[mla.FormAbsorbed])
	require.Positive(t, seen[mla.FormExpanded])
}

// TestFormRules: auto takes the rule per sequence, FormRuleMAX one form for the
// batch, Batch.Forms beats both. The bits tell which form ran.
func TestFormRules(t *testing.T) {
	w := small()
	w.cached, w.fresh = []int{60, 0}, []int{1, 12}
	m := w.make(t)
	require.Equal(t, mla.FormAbsorbed, m.layer_.Form(1, 61))
	require.Equal(t, mla.FormExpanded, m.layer_.Form(12, 12))
	run := func(m *made, form mla.Form) answer { return m.forward(t, m.plan(t, m.limits(), nil), form) }
	absorbed, expanded := run(m, mla.FormAbsorbed), run(m, mla.FormExpanded)
	one := w.cfg.Heads * w.cfg.V
	require.NotEqual(t, absorbed.out[:one], expanded.out[:one])
	require.NotEqual(t, absorbed.out[one:], expanded.out[one:])

	auto := run(m, mla.FormAuto)
	require.Equal(t, absorbed.out[:one], auto.out[:one])
	require.Equal(t, expanded.out[one:], auto.out[one:])

	w.cfg.FormRule = mla.FormRuleMAX
	require.Equal(t, expanded.out, run(w.make(t), mla.FormAuto).out, "12 tokens are above MAX's 8")
	w.cfg.MAXThreshold = 12
	require.Equal(t, absorbed.out, run(w.make(t), mla.FormAuto).out)
	require.Equal(t, expanded.out, run(w.make(t), mla.FormExpanded).out)
}

// TestMasks holds the visible ranges to the oracle's predicate through Forward's
// own eyes: max logit over keys whose score is their position.
func TestMasks(t *testing.T) {
	for _, mask := range append(allMasks, mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 1},
		mla.Mask{Kind: mla.MaskChunked, Window: math.MaxInt}, mla.Mask{Kind: mla.MaskSlidingWindowNonCausal, Window: math.MaxInt},
		mla.Mask{Kind: mla.MaskChunkedCausal, Window: 1}) {
		w := small()
		w.cfg = mla.Config{Heads: 1, Nope: 1, Rope: 2, V: 1, Latent: 1, Scale: 1, Mask: mask}
		w.weight = weightKind{}
		const n = 40
		w.cached, w.fresh = nil, nil
		m := w.make(t)
		want := oracle.Mask{Kind: maskKind(mask), Window: mask.Window}
		for _, sign := range []float32{1, -1} {
			rows := make([]float32, n*3)
			for pos := range n {
				rows[pos*3+1] = float32(pos)
			}
			cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 7, Width: 3, Format: kvpaged.F32, Pages: 6})
			require.NoError(t, err)
			seq, err := cache.NewSeq()
			require.NoError(t, err)
			require.NoError(t, seq.Reserve(n))
			require.NoError(t, seq.WriteRows(0, 0, rows))
			require.NoError(t, seq.Commit(n))
			q, out, top := make([]float32, n*3), make([]float32, n), make([]float32, n)
			for i := range n {
				q[i*3+1] = sign
			}
			p := m.plan(t, mla.Limits{Tokens: n, Seqs: 1, Context: n}, nil)
			require.NoError(t, p.Decode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), mla.Batch{
				Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, n}, MaxLogit: top}))
			require.NoError(t, cache.Close())
			for i := range n {
				seen := want.Visible(i, n)
				edge := seen[len(seen)-1]
				if sign < 0 {
					edge = seen[0]
				}
				require.Equal(t, sign*float32(edge), top[i], "%v, query %d", mask, i)
			}
		}
	}
}

func TestParseMask(t *testing.T) {
	for _, m := range allMasks {
		got, err := mla.ParseMask(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	for _, s := range []string{"", "Causal", "causal:3", "null:0", "chunked", "chunked:", "chunked:x", "chunked:0", "chunked:-4", "chunked:99999999999999999999", "chunked:3:4"} {
		_, err := mla.ParseMask(s)
		require.ErrorIs(t, err, mla.ErrConfig, "%q", s)
	}
}
