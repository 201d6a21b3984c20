package mla_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd/ref"
)

// place is a place of a sequence or of a list: a key and its value, in bf16 as the second arithmetic reads them. A place
// without a key is masked.
type place struct{ key, value []float32 }

// readAs is x as keys and values are read.
func readAs(x []float32) []float32 {
	u, y := make([]uint16, len(x)), make([]float32, len(x))
	ref.NarrowValueBF16(u, x)
	ref.WidenBF16(y, u)
	return y
}

// pairDot is a score before it is scaled: pieces of 256 terms, in each of them pairs, the second term first.
func pairDot(key, q []float32) (total float32) {
	for k0 := 0; k0 < len(q); k0 += 256 {
		k1, part := min(k0+256, len(q)), float32(0)
		for k := k0; k < k1; k += 2 {
			if k+1 < k1 {
				part = ref.Fma(key[k+1], q[k+1], part)
			}
			part = ref.Fma(key[k], q[k], part)
		}
		if k0 == 0 {
			total = part
		} else {
			total += part
		}
	}
	return total
}

// state is a row of attention: of a partition, or all of them.
type state struct {
	m, l float32
	o    []float32
}

func newState(n int) *state { return &state{m: float32(math.Inf(-1)), o: make([]float32, n)} }

// tile takes at most 64 places, as docs/arithmetic.md has it, value by value.
func (s *state) tile(q []float32, places []place, scale float32) {
	negInf := float32(math.Inf(-1))
	t, top, seen := make([]float32, len(places)+1), s.m, false
	for i := range t {
		t[i] = negInf
		if i < len(places) && places[i].key != nil {
			t[i] = float32(pairDot(places[i].key, q) * scale)
		}
		if t[i] != negInf {
			seen = true
			if t[i] != t[i] || t[i] > top {
				top = t[i]
			}
			if top != top {
				top = float32(math.NaN())
			}
		}
	}
	if !seen {
		return
	}
	alpha, sum := ref.Exp(s.m-top), float32(0)
	p := make([]float32, len(t))
	for i, x := range t {
		if x != negInf {
			u := make([]uint16, 1)
			ref.NarrowActBF16(u, []float32{ref.Exp(x - top)})
			p[i] = ref.BF16ToF32(u[0])
			sum += p[i]
		}
	}
	s.m, s.l = top, ref.Fma(s.l, alpha, sum)
	for c := range s.o {
		x := float32(s.o[c] * alpha)
		if math.Abs(float64(x)) < 0x1p-95 {
			x = 0
		}
		for i := 0; i < len(places); i += 2 {
			if t[i] == negInf && t[i+1] == negInf {
				continue
			}
			for _, k := range []int{i + 1, i} {
				v := float32(0)
				if t[k] != negInf {
					v = places[k].value[c]
				}
				x = ref.Fma(p[k], v, x)
			}
		}
		s.o[c] = x
	}
}

// pairModel is attention of one row over lists of places, which are fold after fold.
func pairModel(query []float32, lists [][]place, scale float32, sink []float32, dv int) (out []float32, lse, top float32) {
	u, q := make([]uint16, len(query)), make([]float32, len(query))
	ref.NarrowActBF16(u, query)
	ref.WidenBF16(q, u)
	all := newState(dv)
	m, l := []float32{all.m}, []float32{all.l}
	for _, places := range lists {
		for ; len(places) > 0; places = places[min(512, len(places)):] {
			part := newState(dv)
			for k := 0; k < min(512, len(places)); k += 64 {
				part.tile(q, places[k:min(k+64, len(places))], scale)
			}
			ref.FoldRows(all.o, dv, m, l, part.o, dv, []float32{part.m}, []float32{part.l}, 1, dv)
		}
	}
	out = make([]float32, dv)
	ends := [2][]float32{make([]float32, 1), make([]float32, 1)}
	ref.FinishRows(out, dv, all.o, dv, m, l, sink, ends[0], ends[1], 1, dv, 0)
	return out, ends[0][0], ends[1][0]
}

// lots draws values of many sizes, some of them too small to be read.
func lots(r *rand.Rand, n int) []float32 {
	x := floats(r, n, 1)
	for i := range x {
		if r.IntN(9) == 0 {
			x[i] = float32(math.Ldexp(float64(x[i]), -60+r.IntN(20)))
		}
	}
	return x
}

// blind gives some queries a last term that hides, with scores of -Inf, all keys whose last term closeKeys has made negative;
// the others do not look at that term.
func blind(q []float32, width int, scale float64) {
	for row := range len(q) / width {
		q[(row+1)*width-1] = [...]float32{0, float32(math.Copysign(3e38, scale)), 0}[row%3]
	}
}

// closeKeys closes rows, those of a key one after the other, but for some of the keys from a certain one on: rows of
// attention that blind has made begin there.
func closeKeys(rows []float32, width, heads, from int) {
	for i := range len(rows) / width {
		key := i / heads
		rows[(i+1)*width-1] = -30
		if key >= from && key%5 == 0 {
			rows[(i+1)*width-1] = 0
		}
	}
}

// closedTo is where blind rows may begin in a sequence of n keys: in its second tile or its second partition.
func closedTo(n int) int {
	if n > 520 {
		return 520
	}
	return 64
}

// requireBlind demands that some rows saw nothing.
func requireBlind(t *testing.T, want answer) {
	t.Helper()
	require.True(t, slices.Contains(want.lse, float32(math.Inf(1))), "no row is blind")
}

// windows are masks whose borders fall into pairs.
var windows = []mla.Mask{
	{Kind: mla.MaskCausal}, {Kind: mla.MaskNull},
	{Kind: mla.MaskSlidingWindowCausal, Window: 70}, {Kind: mla.MaskSlidingWindowCausal, Window: 3}, {Kind: mla.MaskSlidingWindowNonCausal, Window: 9},
	{Kind: mla.MaskChunked, Window: 37}, {Kind: mla.MaskChunkedCausal, Window: 13},
}

// visibleTo are the positions among keys that a query at position pos sees.
func visibleTo(m mla.Mask, pos, keys int) map[int]bool {
	seen := map[int]bool{}
	o := oracle.Mask{Kind: maskKind(m), Window: m.Window}
	for _, k := range o.Visible(pos, keys) {
		seen[k] = true
	}
	return seen
}

// TestPairDecode holds dense calls of every cache format to the model, bit for bit: borders of masks and of sequences in
// the middle of pairs, pages of which a tile is one run or many, and NaN wherever nobody looks.
func TestPairDecode(t *testing.T) {
	for fi, f := range formats {
		for mi, mask := range windows {
			if testing.Short() && (fi+mi)%len(windows) != 0 {
				continue
			}
			for _, page := range []int{1, 9, 64, 128}[(fi+mi)%3:][:2] {
				t.Run(fmt.Sprintf("%v/%v/page=%d", f.format, mask, page), func(t *testing.T) {
					pairDecode(t, f.format, f.latent, f.rope, mask, page, uint64(100*fi+mi))
				})
			}
		}
	}
}

func pairDecode(t *testing.T, format kvpaged.Format, latent, rope int, mask mla.Mask, page int, seed uint64) {
	const heads, scale = 3, 0.2
	width := latent + rope
	r := rand.New(rand.NewPCG(seed, 3))
	cached, fresh := []int{140, 5, 66, 1}, []int{3, 5, 1, 0}
	if width < 100 {
		cached[0], fresh[0] = 600, 20 // more rows than a panel has, more keys than a partition
	}
	pages := 0
	for _, n := range cached {
		pages += (n + page - 1) / page
	}
	cfg := kvpaged.Config{Layers: 1, PageTokens: page, Width: width, Format: format, Pages: pages, Adopted: true}
	switch format {
	case kvpaged.FP8Tensor:
		cfg.Scale = 0.037
	case kvpaged.FP8Token:
		cfg.Group = 9
	}
	size, err := kvpaged.ArenaBytes(cfg)
	require.NoError(t, err)
	cfg.Arena = bytes.Repeat([]byte{0xFF}, int(size)) // NaN
	cache, err := kvpaged.New(cfg)
	require.NoError(t, err)
	defer func() { require.NoError(t, cache.Close()) }()

	b := mla.Batch{Cache: cache, Offsets: []uint32{0}, Sink: floats(r, heads, 1)}
	order, next := r.Perm(pages), 0
	rows := make([][]float32, len(cached)) // as the cache has them
	tokens := 0
	for i, n := range cached {
		table := make([]int32, (n+page-1)/page)
		for j := range table {
			table[j] = int32(order[next])
			next++
		}
		s, err := cache.Adopt(table, 0, n)
		require.NoError(t, err)
		written := lots(r, n*width)
		closeKeys(written, width, 1, closedTo(n))
		require.NoError(t, s.WriteRows(0, 0, written))
		require.NoError(t, s.Commit(n))
		rows[i] = make([]float32, n*width)
		require.NoError(t, s.ReadRows(rows[i], 0, 0, n))
		unseen := 0
		for o := (oracle.Mask{Kind: maskKind(mask), Window: mask.Window}); fresh[i] > 0 && unseen < n && !o.Keep(n-fresh[i], unseen); {
			unseen++
		}
		require.NoError(t, s.Free())
		for j := range unseen / page { // these pages are gone
			table[j] = -1
		}
		s, err = cache.Adopt(table, n, 0)
		require.NoError(t, err)
		tokens += fresh[i]
		b.Seqs, b.Offsets = append(b.Seqs, s), append(b.Offsets, uint32(tokens))
	}
	q := lots(r, tokens*heads*width)
	blind(q, width, scale)
	b.LSE, b.MaxLogit = make([]float32, tokens*heads), make([]float32, tokens*heads)

	var want answer
	for i, n := range cached {
		places := make([]place, n)
		for tok := range fresh[i] {
			seen := visibleTo(mask, n-fresh[i]+tok, n)
			for k := range places {
				places[k] = place{}
				if row := rows[i][k*width:][:width]; seen[k] {
					row = readAs(row)
					places[k] = place{row, row}
				}
			}
			for h := range heads {
				at := (int(b.Offsets[i])+tok)*heads + h
				out, lse, top := pairModel(q[at*width:][:width], [][]place{places}, scale, b.Sink[h:h+1], latent)
				want.out, want.lse, want.top = append(want.out, out...), append(want.lse, lse), append(want.top, top)
			}
		}
	}
	requireBlind(t, want)
	for _, workers := range []int{1, 3} {
		pool := mla.NewPool(workers)
		core, err := newCore(mla.CoreConfig{Heads: heads, Width: width, V: latent, Scale: scale, Mask: mask, Compute: mla.ComputeBF16},
			mla.Limits{Tokens: tokens, Seqs: len(cached), Context: 700}, pool)
		require.NoError(t, err)
		for _, poison := range []bool{true, false} { // the second call on what the first has left
			out := make([]float32, len(want.out))
			if poison {
				core.Poison()
			}
			require.NoError(t, core.Decode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), b))
			sameBits(t, want, answer{out, b.LSE, b.MaxLogit}, fmt.Sprintf("%d workers", workers))
		}
		require.NoError(t, core.Close())
		require.NoError(t, pool.Close())
	}
}

// TestPairLists holds index lists with holes in all places to the model, bit for bit: physical and logical ones, of one
// token and shared, with a second cache of another format, and plain rows.
func TestPairLists(t *testing.T) {
	const width, dv, n, nx, scale = 37, 21, 150, 60, 0.3
	r := rand.New(rand.NewPCG(8, 8))
	for i, c := range []struct {
		b, s, h, topk, xtopk int
		fold, negative       bool
		none                 int // so many entries are none for the last token, or sequence
		format, xformat      kvpaged.Format
	}{
		{b: 2, s: 1, h: 3, topk: 70, xtopk: 9, format: kvpaged.BF16, xformat: kvpaged.F32},
		{b: 1, s: 2, h: 40, topk: 601, xtopk: 65, format: kvpaged.F32, xformat: kvpaged.BF16},
		{b: 2, s: 3, h: 5, topk: 131, fold: true, format: kvpaged.FP8Token, xformat: kvpaged.F16},
		{b: 1, s: 2, h: 2, topk: 64, xtopk: 1, negative: true, format: kvpaged.F16, xformat: kvpaged.FP8Unit},
		{b: 2, s: 1, h: 3, topk: 70, xtopk: 9, none: 70, format: kvpaged.BF16, xformat: kvpaged.BF16},
		{b: 2, s: 3, h: 5, topk: 560, fold: true, none: 515, format: kvpaged.F16, xformat: kvpaged.F16},
		{b: 1, s: 1, h: 1, topk: 0, xtopk: 3, format: kvpaged.BF16, xformat: kvpaged.BF16},
	} {
		scale := float32(scale)
		if c.negative {
			scale = -scale
		}
		tokens := c.b * c.s
		written, more := lots(r, n*width), lots(r, nx*width)
		closeKeys(written, width, 1, n/2) // half of a list, which is in no order
		closeKeys(more, width, 1, nx/2)
		cache, rows := filled(t, written, width, 9, c.format)
		second, xrows := filled(t, more, width, 64, c.xformat)
		a := mla.SparseDecodeArgs{Seqs: c.b, Tokens: c.s, Cache: cache, Stride: c.topk, FoldShared: c.fold, Sink: floats(r, c.h, 1),
			Extra: &mla.Extra{Cache: second, Stride: c.xtopk}, LSE: make([]float32, tokens*c.h), MaxLogit: make([]float32, tokens*c.h)}
		q := lots(r, tokens*c.h*width)
		blind(q, width, float64(scale))
		want := answer{lse: make([]float32, tokens*c.h), top: make([]float32, tokens*c.h)}
		for tok := range tokens {
			if c.fold && tok%c.s != 0 {
				a.Indices = append(a.Indices, a.Indices[len(a.Indices)-c.topk:]...)
				a.Extra.Indices = append(a.Extra.Indices, a.Extra.Indices[len(a.Extra.Indices)-c.xtopk:]...)
			} else {
				list, extra := holed(r, c.topk, n), holed(r, c.xtopk, nx)
				if tok/c.s == c.b-1 && c.none > 0 {
					copy(list, slices.Repeat([]int32{-1}, c.none))
					copy(extra, slices.Repeat([]int32{-1}, c.none))
				}
				a.Indices = append(a.Indices, list...)
				a.Extra.Indices = append(a.Extra.Indices, extra...)
			}
			lists := [][]place{
				placesOf(a.Indices[tok*c.topk:][:c.topk], rows, width),
				placesOf(a.Extra.Indices[tok*c.xtopk:][:c.xtopk], xrows, width),
			}
			for h := range c.h {
				at := (tok/c.s*c.h+h)*c.s + tok%c.s
				var out []float32
				out, want.lse[at], want.top[at] = pairModel(q[(tok*c.h+h)*width:][:width], lists, scale, a.Sink[h:h+1], dv)
				want.out = append(want.out, out...)
			}
		}
		for _, workers := range []int{1, 4} {
			pool := mla.NewPool(workers)
			core, err := newCore(mla.CoreConfig{Heads: c.h, Width: width, V: dv, Scale: scale, Compute: mla.ComputeBF16},
				mla.Limits{Tokens: tokens, Seqs: c.b, Context: 1}, pool)
			require.NoError(t, err)
			out := make([]float32, len(want.out))
			core.Poison()
			require.NoError(t, core.SparseDecode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), &a))
			sameBits(t, want, answer{out, a.LSE, a.MaxLogit}, fmt.Sprintf("case %d, %d workers", i, workers))
			if workers == 1 {
				require.Zero(t, allocsPerRun(3, func() {
					if err := core.SparseDecode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), &a); err != nil {
						t.Error(err)
					}
				}))
			}

			// The first lists alone, over rows that are not paged: of all types.
			for _, kind := range []string{"f32", "bf16", "f16"} {
				if c.s != 1 && !c.fold || c.topk == 0 {
					continue
				}
				kv := rounded(kind, append([]float32(nil), rows...))
				p := mla.SparsePrefillArgs{Indices: a.Indices, Stride: c.topk, Sink: a.Sink}
				core.Poison()
				require.NoError(t, core.SparsePrefill(context.Background(), mla.RowsF32(out), mla.RowsF32(q), rowsOf(kind, kv), &p))
				for tok := range tokens {
					list := placesOf(a.Indices[tok*c.topk:][:c.topk], kv, width)
					for h := range c.h {
						row := tok*c.h + h
						one, _, _ := pairModel(q[row*width:][:width], [][]place{list}, scale, a.Sink[h:h+1], dv)
						sameBits(t, answer{out: one}, answer{out: out[row*dv:][:dv]}, fmt.Sprintf("case %d, %s rows, row %d", i, kind, row))
					}
				}
			}
			require.NoError(t, core.Close())
			require.NoError(t, pool.Close())
		}
	}
}

// holed is a list of n entries, half of the pairs with one that is none, some with two.
func holed(r *rand.Rand, n, limit int) (list []int32) {
	none := []int32{-1, -1, -7, int32(limit) + 99, math.MaxInt32}
	for range n {
		if r.IntN(3) == 0 {
			list = append(list, none[r.IntN(len(none))])
		} else {
			list = append(list, int32(r.IntN(limit)))
		}
	}
	for i := 70; i < min(n, 140); i++ { // a tile without an end, or without any
		list[i] = -1
	}
	return list
}

func placesOf(list []int32, rows []float32, width int) []place {
	places := make([]place, len(list))
	for i, x := range list {
		if x >= 0 && int(x) < len(rows)/width {
			row := readAs(rows[int(x)*width:][:width])
			places[i] = place{row, row}
		}
	}
	return places
}

// TestPairLogicalLists: lists by position, shared by the tokens of a sequence or not, hide what comes after a token, which
// may be one half of a pair.
func TestPairLogicalLists(t *testing.T) {
	const width, dv, heads, n, s, scale = 24, 24, 20, 90, 4, -0.4
	r := rand.New(rand.NewPCG(6, 1))
	written := lots(r, n*width)
	closeKeys(written, width, 1, n)
	cache, rows := filled(t, written, width, 7, kvpaged.BF16)
	seq := cacheSeq(t, cache, n)
	list := holed(r, 66, n)
	for i := range 12 {
		list[r.IntN(len(list))] = int32(n - 1 - i%s)
	}
	for i := range 64 { // a tile of which all tokens but the last see nothing, before the others
		list = slices.Insert(list, i, int32(n-1))
	}
	q := lots(r, s*heads*width)
	blind(q, width, scale)
	sp := &mla.Sparse{Logical: true, Stride: len(list)}
	b := mla.Batch{Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, s}, Sparse: sp,
		LSE: make([]float32, s*heads), MaxLogit: make([]float32, s*heads)}
	var want answer
	for tok := range s {
		sp.Indices = append(sp.Indices, list...)
		places := placesOf(list, rows, width)
		for i, x := range list {
			if int(x) > n-s+tok {
				places[i] = place{}
			}
		}
		for h := range heads {
			out, lse, top := pairModel(q[(tok*heads+h)*width:][:width], [][]place{places}, scale, nil, dv)
			want.out, want.lse, want.top = append(want.out, out...), append(want.lse, lse), append(want.top, top)
		}
	}
	requireBlind(t, want)
	core, err := newCore(mla.CoreConfig{Heads: heads, Width: width, V: dv, Scale: scale, Compute: mla.ComputeBF16}, mla.Limits{Tokens: s, Seqs: 1, Context: n}, nil)
	require.NoError(t, err)
	defer core.Close()
	for _, fold := range []bool{false, true} {
		sp.FoldShared = fold
		out := make([]float32, len(want.out))
		core.Poison()
		require.NoError(t, core.Decode(context.Background(), mla.RowsF32(out), mla.RowsF32(q), b))
		sameBits(t, want, answer{out, b.LSE, b.MaxLogit}, fmt.Sprintf("fold shared: %v", fold))
	}
}

// cacheSeq is a sequence of the first n rows of a cache of one layer.
func cacheSeq(t *testing.T, c *kvpaged.Cache, n int) *kvpaged.Seq {
	t.Helper()
	page := c.Config().PageTokens
	table := make([]int32, (n+page-1)/page)
	for i := range table {
		table[i] = int32(i)
	}
	s, err := c.Adopt(table, n, 0)
	require.NoError(t, err)
	return s
}

// TestPairPrefill holds ready keys and values to the model, bit for bit, of every type and with NaN where nobody looks.
func TestPairPrefill(t *testing.T) {
	for i, mask := range windows {
		for j, kind := range []string{"f32", "bf16", "f16"} {
			if testing.Short() && (i+j)%3 != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%v/%s", mask, kind), func(t *testing.T) { pairPrefill(t, mask, kind, uint64(i)) })
		}
	}
}

func pairPrefill(t *testing.T, mask mla.Mask, kind string, seed uint64) {
	const heads, width, dv, scale = 2, 35, 18, 0.3
	r := rand.New(rand.NewPCG(seed, 4))
	queries, keys := []int{70, 5, 1}, []int{141, 5, 90}
	offsets, ends := []uint32{0, 70, 75, 76}, []uint32{0, 141, 146, 236}
	q, k, v := lots(r, 76*heads*width), rounded(kind, lots(r, 236*heads*width)), rounded(kind, lots(r, 236*heads*dv))
	blind(q, width, scale)
	for b, n := range keys {
		closeKeys(k[int(ends[b])*heads*width:][:n*heads*width], width, heads, 64)
	}
	a := &mla.PrefillArgs{Offsets: offsets, Keys: ends, LSE: make([]float32, 76*heads), MaxLogit: make([]float32, 76*heads), Sink: floats(r, heads, 1)}
	var want answer
	for b := range queries {
		read := make([]bool, keys[b])
		for i := range queries[b] {
			seen := visibleTo(mask, keys[b]-queries[b]+i, keys[b])
			for j := range seen {
				read[j] = true
			}
			for h := range heads {
				places := make([]place, keys[b])
				for j := range places {
					if at := (int(ends[b])+j)*heads + h; seen[j] {
						places[j] = place{readAs(k[at*width:][:width]), readAs(v[at*dv:][:dv])}
					}
				}
				row := (int(offsets[b])+i)*heads + h
				out, lse, top := pairModel(q[row*width:][:width], [][]place{places}, scale, a.Sink[h:h+1], dv)
				want.out, want.lse, want.top = append(want.out, out...), append(want.lse, lse), append(want.top, top)
			}
		}
		for j, seen := range read {
			for i := range heads * width {
				if at := (int(ends[b]) + j) * heads * width; !seen {
					k[at+i], v[(at+i)/width*dv] = float32(math.NaN()), float32(math.NaN())
				}
			}
		}
	}
	requireBlind(t, want)
	for _, workers := range []int{1, 3} {
		pool := mla.NewPool(workers)
		core, err := newCore(mla.CoreConfig{Heads: heads, Width: width, V: dv, Scale: scale, Mask: mask, Compute: mla.ComputeBF16},
			mla.Limits{Tokens: 76, Seqs: 3, Context: 200}, pool)
		require.NoError(t, err)
		out, rows := make([]float32, len(want.out)), [2]mla.Rows{rowsOf(kind, k), rowsOf(kind, v)}
		run := func() error { return core.Prefill(nil, mla.RowsF32(out), mla.RowsF32(q), rows[0], rows[1], a) }
		for _, poison := range []bool{true, false} {
			if poison {
				core.Poison()
			}
			require.NoError(t, run())
			sameBits(t, want, answer{out, a.LSE, a.MaxLogit}, fmt.Sprintf("%d workers", workers))
		}
		require.Zero(t, allocsPerRun(3, func() {
			if err := run(); err != nil {
				t.Error(err)
			}
		}))
		require.NoError(t, core.Close())
		require.NoError(t, pool.Close())
	}
}

// TestPairPrefillBlocks has blocks of all sizes, of which more workers take smaller ones: the smallest are those that
// TestPairPrefill holds to the model. A block of the largest goes over several partitions, and sees nothing of some tiles.
func TestPairPrefillBlocks(t *testing.T) {
	const heads, width, dv, tokens, scale = 5, 6, 5, 460, 0.3
	offsets, ends := []uint32{0, 450, 460}, []uint32{0, 661, 700} // blocks of 256 and 194, and of 10
	for i, mask := range windows {
		t.Run(mask.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(i), 5))
			queries, rows := lots(r, tokens*heads*width), lots(r, 700*heads*width)
			blind(queries, width, scale)
			closeKeys(rows, width, heads, 520)
			closeKeys(rows[661*heads*width:], width, heads, 39)
			q, k, v := mla.RowsF32(queries), rowsOf("bf16", rows), rowsOf("bf16", lots(r, 700*heads*dv))
			var want answer
			for _, workers := range []int{9, 4, 2, 1} { // blocks of 64, 128, 256, 256
				pool := mla.NewPool(workers)
				core, err := newCore(mla.CoreConfig{Heads: heads, Width: width, V: dv, Scale: scale, Mask: mask, Compute: mla.ComputeBF16},
					mla.Limits{Tokens: tokens, Seqs: 2, Context: 700}, pool)
				require.NoError(t, err)
				a := &mla.PrefillArgs{Offsets: offsets, Keys: ends, LSE: make([]float32, tokens*heads), MaxLogit: make([]float32, tokens*heads)}
				got := answer{make([]float32, tokens*heads*dv), a.LSE, a.MaxLogit}
				for _, poison := range []bool{true, false} {
					if poison {
						core.Poison()
					}
					require.NoError(t, core.Prefill(nil, mla.RowsF32(got.out), q, k, v, a))
					if want.out == nil {
						requireBlind(t, got)
						require.False(t, slices.ContainsFunc(got.out, isNaN), "NaN of the workspace")
						want = answer{slices.Clone(got.out), slices.Clone(got.lse), slices.Clone(got.top)}
					}
					sameBits(t, want, got, fmt.Sprintf("%d workers", workers))
				}
				require.NoError(t, core.Close())
				require.NoError(t, pool.Close())
			}
		})
	}
}

// TestPairQueries gives queries in bf16, which are packed as they lie where they may be, the bits of the same values in
// float32.
func TestPairQueries(t *testing.T) {
	const heads, dv, tokens, scale = 2, 18, 150, 0.3
	for _, c := range []struct {
		name        string
		width, from int
		change      []uint16
	}{
		{"words", 36, 0, []uint16{0, 0x8000}},
		{"between words", 36, 1, nil},
		{"odd", 35, 0, nil},
		{"tiny", 36, 0, []uint16{0x8001, 0x1C80}}, // a subnormal, and 2^-70
		{"small", 36, 0, []uint16{0x2280}},        // 2^-58: less than a key may be
		{"infinite", 36, 0, []uint16{0x7F80}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 9))
			n := tokens * heads * c.width
			k, v := rowsOf("bf16", lots(r, n)), rowsOf("bf16", lots(r, tokens*heads*dv))
			halves, wide := make([]uint16, c.from+n)[c.from:], make([]float32, n)
			ref.NarrowBF16(halves, floats(r, n, 1))
			for i, x := range c.change {
				for at := i; at < n; at += 97 {
					halves[at] = x
				}
			}
			ref.WidenBF16(wide, halves)
			core, err := newCore(mla.CoreConfig{Heads: heads, Width: c.width, V: dv, Scale: scale, Mask: mla.Mask{Kind: mla.MaskCausal}, Compute: mla.ComputeBF16},
				mla.Limits{Tokens: tokens, Seqs: 1, Context: tokens}, nil)
			require.NoError(t, err)
			var got [2]answer
			for i, q := range []mla.Rows{mla.RowsF32(wide), mla.RowsBF16(halves)} {
				out, a := make([]float32, tokens*heads*dv), &mla.PrefillArgs{LSE: make([]float32, tokens*heads), MaxLogit: make([]float32, tokens*heads)}
				core.Poison()
				require.NoError(t, core.Prefill(nil, mla.RowsF32(out), q, k, v, a))
				got[i] = answer{out, a.LSE, a.MaxLogit}
			}
			sameBits(t, got[0], got[1], c.name)
			require.NoError(t, core.Close())
		})
	}
}

// TestPairExpanded holds the expanded form to the model, bit for bit, with weights of ones on the diagonal: keys and values
// are latent rows then. Chunks of the buffer end anywhere in a pair, and a sequence has lost the pages before its window.
func TestPairExpanded(t *testing.T) {
	for i, mask := range windows {
		if testing.Short() && i%3 != 2 {
			continue
		}
		t.Run(mask.String(), func(t *testing.T) { pairExpanded(t, mask, uint64(i)) })
	}
}

func pairExpanded(t *testing.T, mask mla.Mask, seed uint64) {
	const heads, latent, rope = 2, 19, 6
	w := small()
	w.cfg = mla.Config{Heads: heads, Nope: latent, Rope: rope, V: latent, Latent: latent, Scale: 0.2, Mask: mask, Compute: mla.ComputeBF16}
	w.seed, w.unread, w.weight, w.format = seed, true, weightKind{elem: fp8.ElemF32}, kvpaged.BF16
	w.cached, w.fresh, w.page = []int{0, 101, 66, 560}, []int{90, 33, 1, 40}, 8
	m := w.make(t)
	// In the first sequence the first terms of the latent row hide keys, as the last does elsewhere: some and all.
	for tok := range w.fresh[0] {
		m.kvs[tok*w.width()], m.kvs[tok*w.width()+1] = -30, -30
		if tok >= 64 && tok%5 == 0 {
			m.kvs[tok*w.width()] = 0
		}
		for h := range heads {
			q := m.q[(tok*heads+h)*(latent+rope):]
			q[0], q[1] = 0, 0
			if tok%3 == 1 {
				q[h] = 3e38
			}
		}
	}
	ones := make([]float32, heads*2*latent*latent)
	for i := range heads * 2 * latent {
		ones[i*latent+i%latent] = 1
	}
	kvb, err := fp8.PlainF32(heads*2*latent, latent, ones)
	require.NoError(t, err)
	layer, err := mla.New(w.cfg, mla.Weights{KVB: kvb, Gamma: mla.RowsF32(m.gammas)})
	require.NoError(t, err)
	defer func() { require.NoError(t, layer.Close()) }()
	one := *m
	one.layer_ = layer
	var want answer
	for _, buffer := range []int{1000, 1, 7, 64, 65, 77} {
		p, err := bind(layer, mla.Limits{Tokens: m.tokens, Seqs: len(m.seqs), Context: m.longest(), Buffer: buffer}, nil)
		require.NoError(t, err)
		p.Poison()
		got := one.forward(t, p, mla.FormExpanded)
		require.NoError(t, p.Close())
		if want.out == nil { // the cache has the new rows now
			for b := range m.seqs {
				want = one.expandedModel(t, want, b)
			}
			requireBlind(t, want)
		}
		sameBits(t, want, got, fmt.Sprintf("buffer of %d rows", buffer))
	}
}

// expandedModel appends the rows of sequence b, under weights of ones on the diagonal.
func (m *made) expandedModel(t *testing.T, want answer, b int) answer {
	c, n := m.cfg, m.cached[b]+m.fresh[b]
	rows, d := m.stored(t, b), c.Nope+c.Rope
	for tok := range m.fresh[b] {
		pos, places := m.cached[b]+tok, make([]place, n)
		for k := range visibleTo(c.Mask, pos, n) {
			row := readAs(rows[k*m.width():][:m.width()])
			places[k] = place{row, row}
		}
		for h := range c.Heads {
			at := (int(m.offsets[b])+tok)*c.Heads + h
			q := append([]float32(nil), m.q[at*d:][:d]...)
			ref.RopeInterleaved(q[c.Nope:], q[c.Nope:], m.freqs[pos*c.Rope:][:c.Rope])
			out, lse, top := pairModel(q, [][]place{places}, c.Scale, nil, c.V)
			want.out, want.lse, want.top = append(want.out, out...), append(want.lse, lse), append(want.top, top)
		}
	}
	return want
}
