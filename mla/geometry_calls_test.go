package mla_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
)

// rand is a source of numbers for one purpose, the same in every variant.
func (g *geometry) rand(purpose uint64) *rand.Rand { return rand.New(rand.NewPCG(g.seed, purpose)) }

// values is n values of the geometry's class, rounded to the caller's type.
func (g *geometry) values(r *rand.Rand, n int) []float32 { return rounded(g.kv, g.class.Make(r, n)) }

// fill replaces what a world draws by values of the class.
func (g *geometry) fill(m *made) {
	r := g.rand(21)
	m.q, m.kvs = g.values(r, len(m.q)), g.values(r, len(m.kvs))
	for b := range m.firstRow {
		g.class.Fill(r, m.firstRow[b])
	}
	m.freqs = rounded(g.freqsOf, m.freqs)
	switch g.sinkOf {
	case withoutOne:
		m.sinks[0] = float32(math.Inf(-1))
	case withAll:
		m.sinks[0] = float32(math.Inf(1))
	}
}

// rows is a made world without a layer: sequences whose queries come absorbed.
func (g *geometry) rows() *made {
	m := &made{world: g.world, offsets: []uint32{0}}
	r := g.rand(22)
	for b, n := range g.fresh {
		m.tokens += n
		m.offsets = append(m.offsets, uint32(m.tokens))
		m.firstRow = append(m.firstRow, make([]float32, g.cached[b]*g.width()))
	}
	m.q = make([]float32, m.tokens*g.cfg.Heads*g.width())
	if g.sink {
		m.sinks = floats(r, g.cfg.Heads, 2)
	}
	g.fill(m)
	return m
}

// in is the world of a call with a cache of its own, of the variant's page size, in which no new
// row is written yet.
func (g *geometry) in(t testing.TB, m *made, v variant) *made {
	t.Helper()
	c := *m
	c.seqs, c.page = nil, g.pages[v.page]
	c.openCache(t, g.rand(23))
	return &c
}

// limits that just fit the call, or leave room.
func (g *geometry) limits(m *made, v variant) mla.Limits {
	lim := m.limits()
	lim.Buffer = g.buffers[v.buffer]
	lim.Tokens += 5 * v.buffer
	lim.Seqs = len(m.cached) + v.buffer
	lim.Context += 77 * v.buffer
	return lim
}

// nans is n values that no call has written.
func nans(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

// outcome is everything that a call gives.
type outcome struct {
	answer
	rows    []float32 // of the cache
	ignored int64
	check   func(t testing.TB) // against float64; nil where there is nothing to compare with
}

// blank is an outcome that nobody has written to, and its outputs in the caller's type.
func (g *geometry) blank(rows, values int) (outcome, mla.Rows) {
	return outcome{answer: answer{lse: nans(rows), top: nans(rows)}}, rowsOf(g.kv, nans(values))
}

// batch is the batch of a call with sequences, and what it writes to besides out.
func (g *geometry) batch(t testing.TB, m *made, l *[2]listing, v variant, o *outcome) mla.Batch {
	t.Helper()
	b := m.batch()
	b.Freqs = rowsOf(g.freqsOf, m.freqs)
	b.LSE, b.MaxLogit = o.lse, o.top
	if g.forms > 0 {
		for i := range m.seqs {
			b.Forms = append(b.Forms, formsOf[(g.forms+i*(g.forms/len(formsOf)))%len(formsOf)])
		}
	}
	if g.lists == noLists {
		return b
	}
	first := &l[0]
	b.Sparse = &mla.Sparse{
		Indices: first.entries, Stride: first.stride, Lengths: first.lengths, LengthsPer: first.per,
		Logical: g.lists == logicalLists, FoldShared: g.shared, Extra: g.secondCache(t, &l[1], v),
	}
	if !b.Sparse.Logical {
		b.Sparse.Indices = g.physical(m, first)
	}
	return b
}

// keys is how many rows sequence b has for a query to see.
func (g *geometry) keys(b int) int {
	if g.call.core {
		return g.cached[b]
	}
	return g.cached[b] + g.fresh[b]
}

// listing is the index lists of all tokens, entries as positions.
type listing struct {
	stride  int
	entries []int32
	lengths []int32
	per     mla.TopKPer
}

// listings draws the lists of the first cache and of the second.
func (g *geometry) listings() *[2]listing {
	if g.lists == noLists {
		return &[2]listing{}
	}
	r := g.rand(24)
	return &[2]listing{
		g.listing(r, g.stride, func(b, i int) int { return g.keys(b) - g.fresh[b] + i + 1 }),
		g.listing(r, g.xstride, func(int, int) int { return secondRows }),
	}
}

// listing draws lists of entries below limit, which is asked for a token of a sequence, and
// others that are invalid.
func (g *geometry) listing(r *rand.Rand, stride int, limit func(b, i int) int) listing {
	l := listing{stride: stride, per: g.lengths}
	length := func() int32 {
		return []int32{int32(stride), int32(stride / 2), -1, 0, 1, int32(stride) + 5}[r.IntN(6)]
	}
	for b, n := range g.fresh {
		for i := range n {
			switch {
			case g.shared && i > 0:
				l.entries = append(l.entries, l.entries[len(l.entries)-stride:]...)
			case g.shared:
				list, _, _ := picks(r, stride, limit(b, n-1))
				l.entries = append(l.entries, list...)
			default:
				list, _, _ := picks(r, stride, limit(b, i))
				l.entries = append(l.entries, list...)
			}
			if g.lengths == mla.TopKPerToken {
				l.lengths = append(l.lengths, length())
			}
		}
		if g.lengths == mla.TopKPerSequence {
			l.lengths = append(l.lengths, length())
		}
	}
	return l
}

// physical is the entries as rows of the pages that the sequences have in this cache. What is
// invalid is so in a cache of any page size.
func (g *geometry) physical(m *made, l *listing) []int32 {
	rows := slices.Clone(l.entries)
	for b, s := range m.seqs {
		pages := s.Pages()
		for i := int(m.offsets[b]) * l.stride; i < int(m.offsets[b+1])*l.stride; i++ {
			switch pos := int(rows[i]); {
			case pos >= g.keys(b):
				rows[i] = math.MaxInt32
			case pos >= 0:
				rows[i] = pages[pos/m.page]*int32(m.page) + int32(pos%m.page)
			}
		}
	}
	return rows
}

// secondRows is the rows of a second cache.
const secondRows = 35

// secondCache is a second cache of the variant's page size, nil where the geometry has none.
func (g *geometry) secondCache(t testing.TB, l *listing, v variant) *mla.Extra {
	t.Helper()
	if !g.extra {
		return nil
	}
	x := g.class.Make(g.rand(25), secondRows*g.width())
	cache, _ := filled(t, x, g.width(), g.pages[1-v.page], g.second)
	rows := slices.Clone(l.entries)
	for i, x := range rows {
		if x >= secondRows { // past the rows, but perhaps not past the last page
			rows[i] = math.MaxInt32
		}
	}
	return &mla.Extra{
		Cache: cache, Indices: rows, Stride: l.stride, Lengths: l.lengths, LengthsPer: l.per,
	}
}

// stored is the rows of all sequences with new tokens.
func (o *outcome) stored(t testing.TB, m *made) {
	t.Helper()
	for b := range m.seqs {
		if m.fresh[b] > 0 {
			o.rows = append(o.rows, m.stored(t, b)...)
		}
	}
}

func (o *outcome) take(out mla.Rows, b *mla.Batch) {
	o.out = values(out)
	if b.Sparse != nil {
		o.ignored = b.Sparse.Ignored
	}
}

// layerCall is Layer.Forward.
func (g *geometry) layerCall(t testing.TB) run {
	m := g.world.make(t)
	g.fill(m)
	lists := g.listings()
	return func(t testing.TB, v variant) outcome {
		c := g.in(t, m, v)
		p, err := bind(c.layer_, g.limits(c, v), v.pool)
		require.NoError(t, err)
		p.Poison()
		o, out := g.blank(c.tokens*c.cfg.Heads, c.tokens*c.cfg.Heads*c.cfg.V)
		b := g.batch(t, c, lists, v, &o)
		q, kv := rowsOf(g.kv, c.q), rowsOf(g.kv, c.kvs)
		require.NoError(t, p.Forward(context.Background(), out, q, kv, b))
		require.NoError(t, p.Close())
		o.take(out, &b)
		o.stored(t, c)
		o.check = g.oracleOf(c, &lists[0], o.answer)
		return o
	}
}

// bounded reports whether there is a bound for the distance to float64. Rows of few values may
// cancel, and so do values of extreme classes; quantised activations are another function.
func (g *geometry) bounded() bool {
	return g.class.Name == "normal" && g.cfg.ActQuant == mla.ActNone && g.cfg.Latent >= 15 &&
		(g.cfg.V >= 8 || g.call.core) && !g.extra
}

// oracleOf compares a layer's answer with float64.
func (g *geometry) oracleOf(m *made, l *listing, a answer) func(testing.TB) {
	if !g.bounded() {
		return nil
	}
	return func(t testing.TB) {
		call := m.oracle(t)
		if g.lists != noLists {
			call.Select = func(tok int) []int { return g.selected(m, l, tok) }
		}
		if g.cfg.Compute == mla.ComputeF32 {
			m.checkWith(t, call, a)
			return
		}
		checkCoarsely(t, call.All(), a, g.cfg.V)
	}
}

// oracleOfCore compares the answer of a core over a cache with float64.
func (g *geometry) oracleOfCore(m *made, l *listing, a answer) func(testing.TB) {
	if !g.bounded() {
		return nil
	}
	return func(t testing.TB) {
		mask := oracle.Mask{Kind: maskKind(g.cfg.Mask), Window: g.cfg.Mask.Window}
		width, h := g.width(), g.cfg.Heads
		var all []oracle.Row
		for b, s := range m.seqs {
			keys := g.keys(b)
			rows := make([]float32, keys*width)
			if keys > 0 {
				require.NoError(t, s.ReadRows(rows, m.layer, 0, keys))
			}
			for tok := int(m.offsets[b]); tok < int(m.offsets[b+1]); tok++ {
				visible := mask.Visible(keys-int(m.offsets[b+1])+tok, keys)
				if g.lists != noLists {
					visible = g.selected(m, l, tok)
				}
				for head := range h {
					sink := oracle.NoSink
					if m.sinks != nil {
						sink = float64(m.sinks[head])
					}
					q := float64s(m.q[(tok*h+head)*width:][:width])
					key := oracle.Table(float64s(rows), width)
					all = append(all, oracle.Attend(q, key, visible, float64(g.cfg.Scale), sink, g.cfg.Latent))
				}
			}
		}
		checkCoarsely(t, all, a, g.cfg.Latent)
	}
}

// checkCoarsely compares with float64 where roundings, to bf16 perhaps, have few others to cancel
// with: of the largest output and score of the call, not of the row, and with room. A value that
// is lost or taken from elsewhere is off by more.
func checkCoarsely(t testing.TB, all []oracle.Row, a answer, v int) {
	t.Helper()
	const coarse = 0x1p-4
	var out, score float64
	for _, row := range all {
		out, score = max(out, row.Largest()), max(score, row.MaxAbs)
	}
	near := func(want float64, got float32, bound float64, what string, row int) {
		if math.IsInf(want, 0) {
			require.Equal(t, float32(want), got, "%s, row %d", what, row)
			return
		}
		require.InDelta(t, want, float64(got), bound, "%s, row %d", what, row)
	}
	for row, want := range all {
		for i, x := range want.Out {
			near(x, a.out[row*v+i], coarse*out*(1+score), "out", row)
		}
		near(want.LSE, a.lse[row], coarse*(1+score), "lse", row)
		near(want.MaxLogit, a.top[row], coarse*(1+score), "max logit", row)
	}
}

// selected is the positions that the list of a token selects.
func (g *geometry) selected(m *made, l *listing, tok int) (positions []int) {
	b := 0
	for int(m.offsets[b+1]) <= tok {
		b++
	}
	n := l.stride
	switch l.per {
	case mla.TopKPerSequence:
		n = min(max(int(l.lengths[b]), 0), n)
	case mla.TopKPerToken:
		n = min(max(int(l.lengths[tok]), 0), n)
	}
	last := g.keys(b) - 1
	if g.lists == logicalLists { // what comes after the token itself is not there yet
		last = g.keys(b) - int(m.offsets[b+1]) + tok
	}
	for _, x := range l.entries[tok*l.stride:][:n] {
		if x >= 0 && int(x) <= last {
			positions = append(positions, int(x))
		}
	}
	return positions
}

// blockCall is Block.Forward.
func (g *geometry) blockCall(t testing.TB) run {
	m := g.blockWorld.make(t)
	g.fill(m.made)
	m.states = g.values(g.rand(26), len(m.states))
	lists := g.listings()
	return func(t testing.TB, v variant) outcome {
		c := g.in(t, m.made, v)
		p, err := bindBlock(m.block, g.limits(c, v), v.pool)
		require.NoError(t, err)
		p.Poison()
		o, out := g.blank(c.tokens*c.cfg.Heads, c.tokens*m.hidden)
		b := g.batch(t, c, lists, v, &o)
		require.NoError(t, p.Forward(context.Background(), out, rowsOf(g.kv, m.states), b))
		require.NoError(t, p.Close())
		o.take(out, &b)
		o.stored(t, c)
		// The oracle's norm of a low-rank query knows the default epsilon and no rounding to f16.
		plain := g.lora == 0 || g.lora > 1 && g.cfg.Epsilon == 0 && g.cfg.NormRounding != mla.NormAsGamma
		dense := g.lists == noLists && g.cfg.Compute == mla.ComputeF32
		if g.bounded() && plain && dense && g.hidden >= 16 {
			of := *m
			of.made = c
			o.check = func(t testing.TB) { of.check(t, o.answer, true) }
		}
		return o
	}
}

// core runs a call of a core for a variant.
func (g *geometry) core(t testing.TB, m *made, v variant, call func(c *boundCore)) {
	t.Helper()
	cfg := mla.CoreConfig{
		Heads: g.cfg.Heads, Width: g.width(), V: g.cfg.Latent,
		Scale: g.cfg.Scale, Mask: g.cfg.Mask, Compute: g.cfg.Compute,
	}
	c, err := newCore(cfg, g.limits(m, v), v.pool)
	require.NoError(t, err)
	c.Poison()
	call(c)
	require.NoError(t, c.Close())
}

// decodeCall is Core.Decode.
func (g *geometry) decodeCall(testing.TB) run {
	m, lists := g.rows(), g.listings()
	return func(t testing.TB, v variant) outcome {
		c := g.in(t, m, v)
		o, out := g.blank(c.tokens*c.cfg.Heads, c.tokens*c.cfg.Heads*c.cfg.Latent)
		b := g.batch(t, c, lists, v, &o)
		g.core(t, c, v, func(core *boundCore) {
			require.NoError(t, core.Decode(context.Background(), out, rowsOf(g.kv, c.q), b))
		})
		o.take(out, &b)
		o.check = g.oracleOfCore(c, &lists[0], o.answer)
		return o
	}
}

// sparseDecodeCall is Core.SparseDecode.
func (g *geometry) sparseDecodeCall(testing.TB) run {
	m, lists := g.rows(), g.listings()
	return func(t testing.TB, v variant) outcome {
		c := g.in(t, m, v)
		o, out := g.blank(c.tokens*c.cfg.Heads, c.tokens*c.cfg.Heads*c.cfg.Latent)
		b := g.batch(t, c, lists, v, &o)
		a := mla.SparseDecodeArgs{
			Seqs: len(c.seqs), Tokens: g.fresh[0], Cache: c.cache, Layer: c.layer,
			Indices: b.Sparse.Indices, Stride: b.Sparse.Stride,
			Lengths: b.Sparse.Lengths, LengthsPer: b.Sparse.LengthsPer,
			FoldShared: b.Sparse.FoldShared, Extra: b.Sparse.Extra,
			Sink: b.Sink, LSE: o.lse, MaxLogit: o.top,
		}
		g.core(t, c, v, func(core *boundCore) {
			require.NoError(t, core.SparseDecode(context.Background(), out, rowsOf(g.kv, c.q), &a))
		})
		o.out, o.ignored = values(out), a.Ignored
		// The last two answers are [b, h, s_q]; as [b, s_q, h] they go by rows.
		byRow := answer{out: o.out, lse: make([]float32, len(o.lse)), top: make([]float32, len(o.top))}
		h, n := g.cfg.Heads, g.fresh[0]
		for row := range o.lse {
			at := (row/h/n*h+row%h)*n + row/h%n
			byRow.lse[row], byRow.top[row] = o.lse[at], o.top[at]
		}
		o.check = g.oracleOfCore(c, &lists[0], byRow)
		return o
	}
}

// sparsePrefillCall is Core.SparsePrefill.
func (g *geometry) sparsePrefillCall(testing.TB) run {
	m, l := g.rows(), &g.listings()[0]
	kv := rounded(g.kv, m.firstRow[0])
	return func(t testing.TB, v variant) outcome {
		o, out := g.blank(m.tokens*m.cfg.Heads, m.tokens*m.cfg.Heads*m.cfg.Latent)
		a := mla.SparsePrefillArgs{
			Indices: l.entries, Stride: l.stride, Lengths: l.lengths,
			Sink: m.sinks, LSE: o.lse, MaxLogit: o.top,
		}
		q, kv := rowsOf(g.kv, m.q), rowsOf(g.kv, kv)
		g.core(t, m, v, func(core *boundCore) {
			require.NoError(t, core.SparsePrefill(context.Background(), out, q, kv, &a))
		})
		o.out, o.ignored = values(out), a.Ignored
		return o
	}
}

// prefillCall is Core.Prefill, whose keys and values lie with NaN between their rows.
func (g *geometry) prefillCall(testing.TB) run {
	m, h := g.rows(), g.cfg.Heads
	keys, ends := 0, []uint32{0}
	for b := range g.fresh {
		keys += g.keys(b)
		ends = append(ends, uint32(keys))
	}
	r := g.rand(27)
	lay := func(n, pad int) (x []float32, ld, head int) {
		ld, head = h*(n+pad), n+pad
		if g.headMajor {
			ld, head = n+pad, keys*(n+pad)
		}
		x = nans(keys * h * (n + pad))
		for key := range keys {
			for hd := range h {
				copy(x[key*ld+hd*head:], g.values(r, n))
			}
		}
		return x, ld, head
	}
	a := mla.PrefillArgs{Offsets: m.offsets, Keys: ends, Sink: m.sinks}
	k, ldk, headK := lay(g.width(), g.padK)
	v, ldv, headV := lay(g.cfg.Latent, g.padV)
	a.LdK, a.StrideK, a.LdV, a.StrideV = ldk, headK, ldv, headV
	return func(t testing.TB, vr variant) outcome {
		o, out := g.blank(m.tokens*h, m.tokens*h*g.cfg.Latent)
		a := a
		a.LSE, a.MaxLogit = o.lse, o.top
		q, k, v := rowsOf(g.kv, m.q), rowsOf(g.kv, k), rowsOf(g.kv, v)
		g.core(t, m, vr, func(core *boundCore) {
			require.NoError(t, core.Prefill(context.Background(), out, q, k, v, &a))
		})
		o.out = values(out)
		return o
	}
}
