package mla_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// filled is a cache of one layer whose rows, by physical index, are rows.
func filled(t testing.TB, rows []float32, width, page int, format kvpaged.Format) (*kvpaged.Cache, []float32) {
	t.Helper()
	n := len(rows) / width
	pages := (n + page - 1) / page
	cfg := kvpaged.Config{Layers: 1, PageTokens: page, Width: width, Format: format, Pages: pages, Adopted: true}
	if format == kvpaged.FP8Token {
		cfg.Group = 7
	}
	c, err := kvpaged.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	table := make([]int32, pages)
	for i := range table {
		table[i] = int32(i)
	}
	s, err := c.Adopt(table, 0, n)
	require.NoError(t, err)
	require.NoError(t, s.WriteRows(0, 0, rows))
	require.NoError(t, s.Commit(n))
	back := make([]float32, len(rows))
	require.NoError(t, s.ReadRows(back, 0, 0, n))
	return c, back
}

// TestTwoCachesVector meets the group two_caches bit for bit: lists with holes,
// a second cache, sinks; on one worker and on three, and any page size.
func TestTwoCachesVector(t *testing.T) {
	q, qShape := vector(t, "two_caches.q")
	rows, _ := vector(t, "two_caches.cache")
	extra, _ := vector(t, "two_caches.extra")
	scale, _ := vector(t, "two_caches.scale")
	sink, _ := vector(t, "two_caches.sink")
	out, oShape := vector(t, "two_caches.output")
	lse, _ := vector(t, "two_caches.lse")
	ints := func(name string) []int32 {
		x, _ := vector(t, name)
		y := make([]int32, len(x))
		for i, v := range x {
			y[i] = int32(v)
		}
		return y
	}
	indices, extraIndices := ints("two_caches.indices"), ints("two_caches.extra_indices")
	h, width, v := qShape[0], qShape[1], oShape[1]
	for _, workers := range []int{1, 3} {
		for _, page := range []int{1, 5, 100} {
			cache, _ := filled(t, rows, width, page, kvpaged.F32)
			second, _ := filled(t, extra, width, 9, kvpaged.F32)
			pool := mla.NewPool(workers)
			core, err := newCore(mla.CoreConfig{Heads: h, Width: width, V: v, Scale: scale[0]}, mla.Limits{Tokens: 1, Seqs: 1, Context: 1}, pool)
			require.NoError(t, err)
			a := mla.SparseDecodeArgs{Seqs: 1, Tokens: 1, Cache: cache, Indices: indices, Stride: len(indices), Sink: sink,
				Extra: &mla.Extra{Cache: second, Indices: extraIndices, Stride: len(extraIndices)}, LSE: make([]float32, h)}
			got := make([]float32, len(out))
			require.NoError(t, core.SparseDecode(context.Background(), mla.RowsF32(got), mla.RowsF32(q), &a))
			sameBits(t, answer{out: out, lse: lse}, answer{out: got, lse: a.LSE}, fmt.Sprintf("%d workers, page %d", workers, page))
			require.NoError(t, core.Close())
			require.NoError(t, pool.Close())
		}
	}
}

// picks is a list of n entries: rows below limit, repeats, holes and garbage.
// It returns the list, the valid ones in order, and how many are garbage.
func picks(r *rand.Rand, n, limit int) (list []int32, valid []int, garbage int) {
	for range n {
		switch k := r.IntN(12); {
		case k == 0:
			list = append(list, -1)
		case k == 1:
			list = append(list, []int32{math.MinInt32, math.MaxInt32, -2, int32(limit), int32(limit) + 77}[r.IntN(5)])
			garbage++
		case k == 2 && len(valid) > 0:
			list = append(list, int32(valid[0]))
			valid = append(valid, valid[0])
		default:
			x := r.IntN(limit)
			list = append(list, int32(x))
			valid = append(valid, x)
		}
	}
	return list, valid, garbage
}

// TestSparseDecodeOracle walks shapes, formats, lengths, sinks and second caches
// against float64. Rows that no list selects are NaN, and so is what lies past a
// length.
func TestSparseDecodeOracle(t *testing.T) {
	type shape struct {
		b, s, h, width, v, topk, xtopk int
		format, xformat                kvpaged.Format
		sink, fold, perToken           bool
	}
	for i, c := range []shape{
		{b: 2, s: 1, h: 3, width: 24, v: 16, topk: 70},
		{b: 1, s: 1, h: 1, width: 8, v: 8, topk: 1},
		{b: 2, s: 3, h: 5, width: 40, v: 40, topk: 130, sink: true, format: kvpaged.BF16},
		{b: 3, s: 2, h: 17, width: 36, v: 20, topk: 600, xtopk: 90, sink: true, format: kvpaged.F16},
		{b: 2, s: 2, h: 4, width: 300, v: 290, topk: 65, xtopk: 520, perToken: true},
		{b: 2, s: 4, h: 40, width: 20, v: 12, topk: 100, xtopk: 30, fold: true, format: kvpaged.FP8Unit},
		{b: 1, s: 2, h: 150, width: 16, v: 16, topk: 520, sink: true},
		{b: 2, s: 1, h: 2, width: 16, v: 8, topk: 0, xtopk: 20},
		{b: 1, s: 1, h: 3, width: 576, v: 512, topk: 70, xtopk: 9, format: kvpaged.DSMLA656, xformat: kvpaged.DSMLA656},
		{b: 1, s: 2, h: 2, width: 512, v: 512, topk: 66, xtopk: 70, format: kvpaged.V4_584, xformat: kvpaged.V4_584, sink: true},
		{b: 1, s: 1, h: 2, width: 512, v: 512, topk: 40, xtopk: 33, format: kvpaged.V41_528Interleaved, xformat: kvpaged.V41FP4_288Interleaved},
		{b: 2, s: 1, h: 2, width: 512, v: 512, topk: 40, xtopk: 33, format: kvpaged.V41_528Planar, xformat: kvpaged.V41FP4_288Planar},
		{b: 1, s: 3, h: 2, width: 30, v: 20, topk: 70, xtopk: 70, format: kvpaged.FP8Token, xformat: kvpaged.FP8Unit},
	} {
		if testing.Short() && i%4 != 1 { // 1, 5 and 9: odd sizes, folded lists, packed records
			continue
		}
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			if i < 8 { // formats that a shape leaves open
				c.xformat = kvpaged.BF16
			}
			if i == 0 || i == 1 || i == 4 || i == 6 || i == 7 {
				c.format = kvpaged.F32
			}
			scale := float32(0.2)
			if c.width > 500 {
				scale = 0.05 // scores of ordinary size
			}
			r := rand.New(rand.NewPCG(uint64(i), 5))
			const n, nx = 90, 50
			tokens := c.b * c.s
			q := floats(r, tokens*c.h*c.width, 1)
			args := mla.SparseDecodeArgs{Seqs: c.b, Tokens: c.s, Layer: 0, Stride: c.topk + 3, FoldShared: c.fold}
			if c.sink {
				args.Sink = floats(r, c.h, 1)
				args.Sink[0] = float32(math.Inf(-1))
			}
			x := &mla.Extra{Stride: c.xtopk + 2, LengthsPer: mla.TopKPerToken}
			lists, xlists := make([][]int, tokens), make([][]int, tokens)
			used, xused := map[int]bool{}, map[int]bool{}
			garbage := 0
			for tok := range tokens {
				if c.fold && tok%c.s != 0 {
					args.Indices = append(args.Indices, args.Indices[len(args.Indices)-args.Stride:]...)
					x.Indices = append(x.Indices, x.Indices[len(x.Indices)-x.Stride:]...)
					lists[tok], xlists[tok] = lists[tok-1], xlists[tok-1]
				} else {
					l, valid, bad := picks(r, c.topk, n)
					args.Indices = append(append(args.Indices, l...), 0, math.MaxInt32, 3) // past the length
					lists[tok], garbage = valid, garbage+bad*map[bool]int{true: c.s, false: 1}[c.fold]
					l, valid, bad = picks(r, c.xtopk, nx)
					x.Indices = append(append(x.Indices, l...), 1, math.MinInt32)
					xlists[tok], garbage = valid, garbage+bad*map[bool]int{true: c.s, false: 1}[c.fold]
				}
				x.Lengths = append(x.Lengths, int32(c.xtopk))
			}
			lengths := c.b
			if c.perToken {
				args.LengthsPer, lengths = mla.TopKPerToken, tokens
			}
			for range lengths {
				args.Lengths = append(args.Lengths, int32(c.topk))
			}
			for tok := range tokens {
				for _, k := range lists[tok] {
					used[k] = true
				}
				for _, k := range xlists[tok] {
					xused[k] = true
				}
			}
			poison := func(count int, used map[int]bool) []float32 {
				rows := floats(r, count*c.width, 1)
				for k := range count {
					if !used[k] {
						for i := range c.width {
							rows[k*c.width+i] = float32(math.NaN())
						}
					}
				}
				return rows
			}
			cache, rows := filled(t, poison(n, used), c.width, 9, c.format)
			args.Cache = cache
			second, xrows := filled(t, poison(nx, xused), c.width, 10, c.xformat)
			if c.xtopk > 0 {
				x.Cache, args.Extra = second, x
			} else {
				for tok := range tokens {
					xlists[tok] = nil
				}
			}
			all := float64s(append(slices.Clone(rows), xrows...))

			args.LSE, args.MaxLogit = make([]float32, tokens*c.h), make([]float32, tokens*c.h)
			core, err := newCore(mla.CoreConfig{Heads: c.h, Width: c.width, V: c.v, Scale: scale}, mla.Limits{Tokens: tokens, Seqs: c.b, Context: 1}, nil)
			require.NoError(t, err)
			out := make([]float32, tokens*c.h*c.v)
			require.NoError(t, core.SparseDecode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), &args))
			if c.xtopk > 0 || garbage == 0 {
				require.EqualValues(t, garbage, args.Ignored)
			}
			for tok := range tokens {
				visible := slices.Clone(lists[tok])
				for _, k := range xlists[tok] {
					visible = append(visible, n+k)
				}
				for h := range c.h {
					sink := oracle.NoSink
					if c.sink {
						sink = float64(args.Sink[h])
					}
					row := tok*c.h + h
					want := oracle.Attend(float64s(q[row*c.width:(row+1)*c.width]), oracle.Table(all, c.width), visible, float64(scale), sink, c.v)
					for k, y := range want.Out {
						require.LessOrEqual(t, math.Abs(y-float64(out[row*c.v+k])), want.CoreBound()+1e-38, "token %d head %d value %d", tok, h, k)
					}
					at := (tok/c.s*c.h+h)*c.s + tok%c.s // [b, h, s_q]
					sameLogit(t, want.LSE, args.LSE[at], want.MaxAbs, "lse")
					sameLogit(t, want.MaxLogit, args.MaxLogit[at], want.MaxAbs, "max logit")
				}
			}

			// The same bits on several workers, and on folded and separate lists.
			for _, workers := range []int{2, 5} {
				pool := mla.NewPool(workers)
				many, err := newCore(mla.CoreConfig{Heads: c.h, Width: c.width, V: c.v, Scale: scale}, mla.Limits{Tokens: tokens, Seqs: c.b, Context: 1}, pool)
				require.NoError(t, err)
				again := args
				again.FoldShared = false
				again.LSE, again.MaxLogit = make([]float32, tokens*c.h), make([]float32, tokens*c.h)
				got := make([]float32, len(out))
				require.NoError(t, many.SparseDecode(context.Background(), mla.RowsF32(got), mla.RowsF32(q), &again))
				sameBits(t, answer{out, args.LSE, args.MaxLogit}, answer{got, again.LSE, again.MaxLogit}, fmt.Sprintf("%d workers", workers))
				require.Equal(t, args.Ignored, again.Ignored)
				require.NoError(t, many.Close())
				require.NoError(t, pool.Close())
			}
			require.Zero(t, allocsPerRun(5, func() {
				if err := core.SparseDecode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), &args); err != nil {
					t.Error(err)
				}
			}))
			require.NoError(t, core.Close())
		})
	}
}

// TestSparseLayer runs the whole layer over index lists, logical and physical:
// the same bits, and the oracle's answer; a list of every position a token sees
// gives the dense bits.
func TestSparseLayer(t *testing.T) {
	w := small()
	w.cached, w.fresh = []int{40, 0, 7}, []int{2, 5, 1}
	m := w.make(t)
	p := m.plan(t, m.limits(), nil)
	dense := m.forward(t, p, mla.FormAbsorbed)
	r := rand.New(rand.NewPCG(9, 9))

	logical := &mla.Sparse{Logical: true, Stride: 60}
	everything := &mla.Sparse{Logical: true, Stride: 60}
	lists := make([][]int, m.tokens)
	ignored := int64(0)
	for b := range m.seqs {
		for tok := int(m.offsets[b]); tok < int(m.offsets[b+1]); tok++ {
			own := m.cached[b] + tok - int(m.offsets[b])
			keys := m.cached[b] + m.fresh[b]
			for i := range 60 {
				entry := int32(-1)
				switch r.IntN(5) {
				case 0:
					entry = int32(own + 1 + r.IntN(3)) // later, or no position at all
					if int(entry) >= keys {
						ignored++
					}
				case 1:
					entry = math.MinInt32
					ignored++
				case 2, 3:
					entry = int32(r.IntN(own + 1))
					lists[tok] = append(lists[tok], int(entry))
				}
				logical.Indices = append(logical.Indices, entry)
				all := int32(-1)
				if i <= own {
					all = int32(i)
				}
				everything.Indices = append(everything.Indices, all)
			}
		}
	}
	run := func(p *bound, sp *mla.Sparse) answer {
		b := m.batch()
		b.Sparse = sp
		rows := m.tokens * w.cfg.Heads
		a := answer{out: make([]float32, rows*w.cfg.V), lse: make([]float32, rows), top: make([]float32, rows)}
		b.LSE, b.MaxLogit = a.lse, a.top
		require.NoError(t, p.Forward(context.Background(), mla.RowsF32(a.out), mla.RowsF32(m.q), mla.RowsF32(m.kvs), b))
		return a
	}
	sameBits(t, dense, run(p, everything), "a list of everything")
	got := run(p, logical)
	require.Equal(t, ignored, logical.Ignored)

	call := m.oracle(t)
	call.Select = func(tok int) []int { return lists[tok] }
	for row, want := range call.All() {
		for i, x := range want.Out {
			require.LessOrEqual(t, math.Abs(x-float64(got.out[row*w.cfg.V+i])), want.LayerBound()+1e-38, "row %d value %d", row, i)
		}
		sameLogit(t, want.LSE, got.lse[row], want.MaxAbs, "lse")
	}

	physical := &mla.Sparse{Stride: 60, Indices: slices.Clone(logical.Indices)}
	for b, s := range m.seqs {
		pages := s.Pages()
		for tok := int(m.offsets[b]); tok < int(m.offsets[b+1]); tok++ {
			own := m.cached[b] + tok - int(m.offsets[b])
			for i := range 60 {
				at := &physical.Indices[tok*60+i]
				if pos := int(*at); pos >= 0 && pos <= own {
					*at = pages[pos/w.page]*int32(w.page) + int32(pos%w.page)
				} else {
					*at = -1
				}
			}
		}
	}
	sameBits(t, got, run(p, physical), "physical")
	require.Zero(t, physical.Ignored)
	pool := mla.NewPool(3)
	defer func() { require.NoError(t, pool.Close()) }()
	sameBits(t, got, run(m.plan(t, m.limits(), pool), logical), "3 workers")
}

// TestFoldShared: one list for all tokens of a sequence, by logical position:
// every token still sees only what came before it.
func TestFoldShared(t *testing.T) {
	w := small()
	w.cached, w.fresh = []int{30}, []int{6}
	m := w.make(t)
	p := m.plan(t, m.limits(), nil)
	list := []int32{35, 3, 30, -1, 31, 31, 0, 34, 200, 32}
	sp := &mla.Sparse{Logical: true, Stride: len(list), FoldShared: true}
	for range m.tokens {
		sp.Indices = append(sp.Indices, list...)
	}
	b := m.batch()
	b.Sparse = sp
	run := func() ([]float32, int64, error) {
		out := make([]float32, m.tokens*w.cfg.Heads*w.cfg.V)
		err := p.Forward(context.Background(), mla.RowsF32(out), mla.RowsF32(m.q), mla.RowsF32(m.kvs), b)
		return out, sp.Ignored, err
	}
	folded, n, err := run()
	require.NoError(t, err)
	require.EqualValues(t, m.tokens, n, "position 200, once a token")
	sp.FoldShared = false
	apart, n, err := run()
	require.NoError(t, err)
	require.EqualValues(t, m.tokens, n)
	require.Equal(t, apart, folded)

	sp.FoldShared = true
	sp.Indices[len(list)*2+4] = 1
	_, _, err = run()
	require.ErrorIs(t, err, mla.ErrShape)
	require.ErrorContains(t, err, "Sparse.Indices[4] is 31 for token 0 and 1 for token 2")
	sp.Lengths = []int32{4} // the difference lies past the length
	_, _, err = run()
	require.NoError(t, err)
}

// TestSparsePrefill holds FlashMLA's prefill shapes to the oracle.
func TestSparsePrefill(t *testing.T) {
	const s, h, width, v, n, topk = 7, 3, 20, 12, 33, 50
	for _, kind := range []string{"f32", "bf16", "f16"} {
		r := rand.New(rand.NewPCG(4, 4))
		q, kv := rounded(kind, floats(r, s*h*width, 1)), rounded(kind, floats(r, n*width, 1))
		a := mla.SparsePrefillArgs{Stride: topk, LSE: make([]float32, s*h), MaxLogit: make([]float32, s*h), Sink: floats(r, h, 1)}
		lists := make([][]int, s)
		garbage := 0
		for tok := range s {
			l, valid, bad := picks(r, topk, n)
			a.Indices = append(a.Indices, l...)
			lists[tok], garbage = valid, garbage+bad
			a.Lengths = append(a.Lengths, topk+int32(tok)) // beyond the stride: the stride
		}
		a.Lengths[3] = -5 // sees nothing
		lists[3] = nil
		core, err := newCore(mla.CoreConfig{Heads: h, Width: width, V: v, Scale: -0.3}, mla.Limits{Tokens: s, Seqs: 1, Context: 1}, nil)
		require.NoError(t, err)
		out := rowsOf(kind, make([]float32, s*h*v))
		require.NoError(t, core.SparsePrefill(context.Background(), out, rowsOf(kind, q), rowsOf(kind, kv), &a))
		require.Positive(t, a.Ignored)
		got := values(out)
		step := map[string]float64{"f32": 0, "bf16": 1.0 / 256, "f16": 1.0 / 2048}[kind]
		for row := range s * h {
			want := oracle.Attend(float64s(q[row*width:(row+1)*width]), oracle.Table(float64s(kv), width), lists[row/h], float64(float32(-0.3)), float64(a.Sink[row%h]), v)
			for i, x := range want.Out {
				require.LessOrEqual(t, math.Abs(x-float64(got[row*v+i])), want.CoreBound()+step*math.Abs(x)+step*0x1p-24, "%s row %d", kind, row)
			}
			sameLogit(t, want.LSE, a.LSE[row], want.MaxAbs, "lse")
			sameLogit(t, want.MaxLogit, a.MaxLogit[row], want.MaxAbs, "max logit")
		}
		require.NoError(t, core.Close())
	}
}

// TestSparseErrors lists what a sparse call refuses.
func TestSparseErrors(t *testing.T) {
	m := small().make(t)
	p := m.plan(t, m.limits(), nil)
	narrow, _ := filled(t, make([]float32, 8), 8, 1, kvpaged.F32)
	good := func() *mla.Sparse { return &mla.Sparse{Stride: 2, Indices: make([]int32, 2*m.tokens)} }
	for name, c := range map[string]struct {
		spoil func(*mla.Sparse)
		says  string
	}{
		"indices short":  {func(s *mla.Sparse) { s.Indices = s.Indices[:3] }, "Sparse.Indices has 3 values, want T*stride = 15*2"},
		"stride":         {func(s *mla.Sparse) { s.Stride = -1 }, "stride -1"},
		"stride huge":    {func(s *mla.Sparse) { s.Stride = math.MaxInt }, "Sparse.Indices has stride"},
		"lengths":        {func(s *mla.Sparse) { s.Lengths = make([]int32, 3) }, "3 lengths, want B = 4 or T = 15"},
		"lengths empty":  {func(s *mla.Sparse) { s.Lengths = []int32{} }, "0 lengths"},
		"per sequence":   {func(s *mla.Sparse) { s.Lengths, s.LengthsPer = make([]int32, 15), mla.TopKPerSequence }, "one per sequence = 4"},
		"per token":      {func(s *mla.Sparse) { s.Lengths, s.LengthsPer = make([]int32, 4), mla.TopKPerToken }, "one per token = 15"},
		"per what":       {func(s *mla.Sparse) { s.LengthsPer = 9 }, "LengthsPer 9"},
		"no extra cache": {func(s *mla.Sparse) { s.Extra = &mla.Extra{} }, "Sparse.Extra.Cache is nil"},
		"extra width":    {func(s *mla.Sparse) { s.Extra = &mla.Extra{Cache: narrow} }, "Sparse.Extra.Cache has rows of 8 values"},
		"extra layer":    {func(s *mla.Sparse) { s.Extra = &mla.Extra{Cache: m.cache, Layer: 5} }, "Sparse.Extra.Layer is 5"},
		"extra indices":  {func(s *mla.Sparse) { s.Extra = &mla.Extra{Cache: m.cache, Stride: 1} }, "Extra.Indices has 0 values"},
	} {
		t.Run(name, func(t *testing.T) {
			a := m.args()
			a.b.Sparse = good()
			c.spoil(a.b.Sparse)
			err := p.Forward(a.ctx, a.out, a.q, a.kv, a.b)
			require.ErrorIs(t, err, mla.ErrShape)
			require.ErrorContains(t, err, c.says)
		})
	}
	a := m.args()
	a.b.Sparse, a.b.Forms = good(), []mla.Form{mla.FormExpanded, 0, 0, 0}
	require.ErrorContains(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b), "index lists want the absorbed form")
	a.b.Forms = nil
	require.NoError(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b))

	for _, c := range []mla.CoreConfig{{}, {Heads: 1, Width: 4, V: 5, Scale: 1}, {Heads: 1, Width: 4, V: 0, Scale: 1}, {Heads: 1, Width: 4, V: 4},
		{Heads: 1, Width: math.MaxInt, V: 4, Scale: 1}} {
		_, err := newCore(c, mla.Limits{Tokens: 1, Seqs: 1, Context: 1}, nil)
		require.ErrorIs(t, err, mla.ErrConfig, "%+v", c)
	}
	core, err := newCore(mla.CoreConfig{Heads: 1, Width: 4, V: 2, Scale: 1}, mla.Limits{Tokens: 3, Seqs: 2, Context: 1}, nil)
	require.NoError(t, err)
	ctx, f := context.Background(), func(n int) mla.Rows { return mla.RowsF32(make([]float32, n)) }
	require.ErrorContains(t, core.SparseDecode(ctx, f(2), f(4), &mla.SparseDecodeArgs{Seqs: 1, Tokens: 1}), "Cache is nil")
	require.ErrorIs(t, core.SparseDecode(ctx, f(2), f(4), &mla.SparseDecodeArgs{Seqs: 4, Tokens: 1, Cache: m.cache}), mla.ErrLimit)
	require.ErrorIs(t, core.SparseDecode(ctx, f(2), f(4), &mla.SparseDecodeArgs{Seqs: 2, Tokens: 2, Cache: m.cache}), mla.ErrLimit)
	require.ErrorIs(t, core.SparseDecode(ctx, f(2), f(4), &mla.SparseDecodeArgs{Seqs: -1, Tokens: 2, Cache: m.cache}), mla.ErrShape)
	require.ErrorContains(t, core.SparseDecode(ctx, f(2), f(4), &mla.SparseDecodeArgs{Seqs: 1, Tokens: 1, Cache: m.cache}), "rows of 82 values")
	require.ErrorContains(t, core.SparsePrefill(ctx, f(2), f(5), f(4), &mla.SparsePrefillArgs{}), "q has 5 values")
	require.ErrorContains(t, core.SparsePrefill(ctx, f(2), f(4), f(5), &mla.SparsePrefillArgs{}), "kv has 5 values")
	require.ErrorIs(t, core.SparsePrefill(ctx, f(2), f(4), f(4), nil), mla.ErrShape)
	require.ErrorIs(t, core.SparseDecode(ctx, f(2), f(4), nil), mla.ErrShape)
	kv := make([]float32, 8)
	require.ErrorContains(t, core.SparsePrefill(ctx, f(2), f(4), mla.RowsF32(kv), &mla.SparsePrefillArgs{LSE: kv[7:]}), "Batch.LSE overlaps kv")
	require.ErrorContains(t, core.SparsePrefill(ctx, mla.RowsF32(kv[:2]), f(4), mla.RowsF32(kv), &mla.SparsePrefillArgs{}), "out overlaps kv")
	require.NoError(t, core.SparsePrefill(ctx, f(0), f(0), f(5*4), &mla.SparsePrefillArgs{}))
	require.NoError(t, core.Close())
}

// TestIndicesReach: an int32 names 2^31 rows. A cache of more serves dense calls, to
// lists of physical rows it is an error. Its memory is never touched, but for a page.
func TestIndicesReach(t *testing.T) {
	for _, rows := range []int{0, 1, 1 << 31} {
		require.NoError(t, mla.CheckReach(rows), rows)
	}
	for _, rows := range []int{1<<31 + 1, 1 << 32, math.MaxInt} {
		require.ErrorIs(t, mla.CheckReach(rows), mla.ErrShape, rows)
	}
	if testing.Short() {
		t.Skip("maps 4 GiB")
	}
	const page = 1 << 20
	open := func(pages int) *kvpaged.Cache {
		c, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: page, Width: 2, Format: kvpaged.FP8Unit, Pages: pages})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, c.Close()) })
		return c
	}
	large, little := open(1<<31/page+1), open(1)
	s, err := large.NewSeq()
	require.NoError(t, err)
	require.NoError(t, s.Reserve(3))
	require.NoError(t, s.WriteRows(0, 0, []float32{1, 2, 3, 4, 5, 6}))
	require.NoError(t, s.Commit(3))
	core, err := newCore(mla.CoreConfig{Heads: 1, Width: 2, V: 1, Scale: 1}, mla.Limits{Tokens: 1, Seqs: 1, Context: 3}, nil)
	require.NoError(t, err)
	ctx, out, q := context.Background(), mla.RowsF32(make([]float32, 1)), mla.RowsF32([]float32{1, 1})

	batch := mla.Batch{Cache: large, Seqs: []*kvpaged.Seq{s}, Offsets: []uint32{0, 1}}
	require.NoError(t, core.Decode(ctx, out, q, batch))
	batch.Sparse = &mla.Sparse{Indices: []int32{2, 0}, Stride: 2, Logical: true}
	require.NoError(t, core.Decode(ctx, out, q, batch), "positions are not physical rows")
	batch.Sparse = &mla.Sparse{Indices: []int32{2, 0}, Stride: 2}
	err = core.Decode(ctx, out, q, batch)
	require.ErrorIs(t, err, mla.ErrShape)
	require.ErrorContains(t, err, "Sparse.Indices are physical rows as int32, which reach 2^31 = 2147483648 of them, but there are 2148532224")

	indices := []int32{2, 0}
	err = core.SparseDecode(ctx, out, q, &mla.SparseDecodeArgs{Seqs: 1, Tokens: 1, Cache: large, Indices: indices, Stride: 2})
	require.ErrorIs(t, err, mla.ErrShape)
	a := &mla.SparseDecodeArgs{Seqs: 1, Tokens: 1, Cache: little, Indices: indices, Stride: 2}
	require.NoError(t, core.SparseDecode(ctx, out, q, a))
	a.Extra = &mla.Extra{Cache: large, Indices: indices, Stride: 2}
	err = core.SparseDecode(ctx, out, q, a)
	require.ErrorIs(t, err, mla.ErrShape)
	require.ErrorContains(t, err, "Extra.Indices")
	require.NoError(t, core.Close())
}
