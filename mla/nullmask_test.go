package mla_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// nullMask sees every key of a sequence, wherever its queries stand: there may be fewer keys than queries, and none.
var nullMask = mla.Mask{Kind: mla.MaskNull}

// nullCase is attention without a mask: queries and keys of each sequence.
type nullCase struct {
	heads, width, value int
	queries, keys       []int
	short               bool // goes into -short
}

var nullCases = []nullCase{
	{heads: 2, width: 24, value: 16, queries: []int{3}, keys: []int{1}, short: true},
	{heads: 1, width: 7, value: 7, queries: []int{2}, keys: []int{0}, short: true},
	{heads: 2, width: 9, value: 5, queries: []int{3, 2, 0, 70, 1, 4}, keys: []int{0, 600, 7, 3, 0, 65}, short: true},
	{heads: 3, width: 9, value: 5, queries: []int{2, 3}, keys: []int{0, 5000}},
	// Blocks of as many rows as there are, in the second arithmetic: keys end before queries, in a sequence without any
	// next to one with many, and the last block of all has none.
	{heads: 2, width: 6, value: 6, queries: []int{600, 300, 5, 260}, keys: []int{9, 0, 300, 0}},
}

// forNullCases runs f for every case, both computes, and 1 worker and 3.
func forNullCases(t *testing.T, f func(t *testing.T, c nullCase, a mla.Compute, pool *mla.Pool)) {
	for _, c := range nullCases {
		if testing.Short() && !c.short {
			continue
		}
		for _, a := range computes {
			for _, workers := range []int{1, 3} {
				t.Run(fmt.Sprintf("%v/%v/%d", c, a, workers), func(t *testing.T) {
					pool := mla.NewPool(workers)
					defer func() { require.NoError(t, pool.Close()) }()
					f(t, c, a, pool)
				})
			}
		}
	}
}

func (c nullCase) String() string {
	return fmt.Sprintf("h=%d,d=%d,v=%d,queries=%v,keys=%v", c.heads, c.width, c.value, c.queries, c.keys)
}

// core is for calls of the case. Its whole workspace is NaN.
func (c nullCase) core(t *testing.T, a mla.Compute, pool *mla.Pool) *boundCore {
	lim := mla.Limits{Tokens: 1, Seqs: len(c.queries), Context: 1}
	for b := range c.queries {
		lim.Tokens, lim.Context = lim.Tokens+c.queries[b], max(lim.Context, c.keys[b])
	}
	core, err := newCore(mla.CoreConfig{Heads: c.heads, Width: c.width, V: c.value, Scale: 0.2, Mask: nullMask, Compute: a}, lim, pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, core.Close()) })
	core.Poison()
	return core
}

// cuts are the borders of sequences of these lengths.
func cuts(lengths []int) []uint32 {
	at := []uint32{0}
	for _, n := range lengths {
		at = append(at, at[len(at)-1]+uint32(n))
	}
	return at
}

// sameRow holds a query's row to the oracle's, with what its type and the compute may err by: of its largest output if no
// value had a sign, since so few may cancel.
func sameRow(t *testing.T, a mla.Compute, kind string, q []float32, key, value func(int) []float64, keys int, sink float64, out []float32, lse, top float32, what string) {
	t.Helper()
	dv := 0
	if keys > 0 {
		dv = len(value(0))
	}
	want := oracle.AttendApart(float64s(q), key, value, all(keys), float64(float32(0.2)), sink, dv)
	positive := oracle.AttendApart(float64s(q), key, func(j int) []float64 {
		v := append([]float64(nil), value(j)...)
		for i := range v {
			v[i] = math.Abs(v[i])
		}
		return v
	}, all(keys), float64(float32(0.2)), sink, dv)
	bound, logit := positive.CoreBound(), 2e-6+1.2e-7*want.MaxAbs
	if a == mla.ComputeBF16 {
		bound, logit = pairLayer*positive.Largest(), pairLayer*(want.MaxAbs+1)
	}
	step := map[string]float64{"f32": 0, "bf16": 0x1p-8, "f16": 0x1p-11}[kind]
	for i, x := range out {
		if keys == 0 {
			require.Zero(t, x, "%s: out[%d]", what, i)
			continue
		}
		require.InDelta(t, want.Out[i], x, bound+step*math.Abs(want.Out[i])+step*0x1p-14, "%s: out[%d]", what, i)
	}
	if keys == 0 {
		require.True(t, math.IsInf(float64(lse), 1), "%s: lse is %v, want +Inf", what, lse)
		require.True(t, math.IsInf(float64(top), -1), "%s: max logit is %v, want -Inf", what, top)
		return
	}
	require.InDelta(t, want.LSE, lse, logit+1e-6*math.Abs(want.LSE), "%s: lse", what)
	require.InDelta(t, want.MaxLogit, top, logit+1e-6*math.Abs(want.MaxLogit), "%s: max logit", what)
}

// all are the keys below n.
func all(n int) []int {
	x := make([]int, n)
	for i := range x {
		x[i] = i
	}
	return x
}

// TestNullMaskPrefill: without a mask positions play no part, so that keys may be fewer than queries; over none a row is
// 0, its lse +Inf and its max logit -Inf.
func TestNullMaskPrefill(t *testing.T) {
	forNullCases(t, func(t *testing.T, c nullCase, a mla.Compute, pool *mla.Pool) {
		core, offsets, ends := c.core(t, a, pool), cuts(c.queries), cuts(c.keys)
		tokens, keys, h := int(offsets[len(c.queries)]), int(ends[len(c.keys)]), c.heads
		r := rand.New(rand.NewPCG(3, 1))
		q0, k0, v0 := floats(r, tokens*h*c.width, 1), floats(r, keys*h*c.width, 1), floats(r, keys*h*c.value, 1)
		sink := floats(r, h, 1)
		for _, kind := range []string{"f32", "bf16", "f16"} {
			q, k, v := rounded(kind, append([]float32(nil), q0...)), rounded(kind, append([]float32(nil), k0...)), rounded(kind, append([]float32(nil), v0...))
			args := &mla.PrefillArgs{Offsets: offsets, Keys: ends, Sink: sink, LSE: make([]float32, tokens*h), MaxLogit: make([]float32, tokens*h)}
			out := rowsOf(kind, make([]float32, tokens*h*c.value))
			require.NoError(t, core.Prefill(nil, out, rowsOf(kind, q), rowsOf(kind, k), rowsOf(kind, v), args))
			got := values(out)
			for b := range c.queries {
				for tok := int(offsets[b]); tok < int(offsets[b+1]); tok++ {
					for head := range h {
						row := func(x []float32, n int) func(int) []float64 {
							return func(j int) []float64 { return float64s(x[((int(ends[b])+j)*h+head)*n:][:n]) }
						}
						at := tok*h + head
						sameRow(t, a, kind, q[at*c.width:][:c.width], row(k, c.width), row(v, c.value), c.keys[b], float64(sink[head]),
							got[at*c.value:][:c.value], args.LSE[at], args.MaxLogit[at], fmt.Sprintf("%s, sequence %d, query %d, head %d", kind, b, tok, head))
					}
				}
			}
		}
	})
}

// TestNullMaskDecode is TestNullMaskPrefill over committed rows, and over the same rows with lists, which want positions.
func TestNullMaskDecode(t *testing.T) {
	forNullCases(t, func(t *testing.T, c nullCase, a mla.Compute, pool *mla.Pool) {
		core, offsets, h := c.core(t, a, pool), cuts(c.queries), c.heads
		tokens := int(offsets[len(c.queries)])
		r := rand.New(rand.NewPCG(5, 2))
		cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 7, Width: c.width, Format: kvpaged.F32, Pages: 1000})
		require.NoError(t, err)
		defer func() { require.NoError(t, cache.Close()) }()
		q, out := floats(r, tokens*h*c.width, 1), make([]float32, tokens*h*c.value)
		b := mla.Batch{Cache: cache, Offsets: offsets, Sink: floats(r, h, 1), LSE: make([]float32, tokens*h), MaxLogit: make([]float32, tokens*h)}
		rows := make([][]float32, len(c.keys))
		fewer := false
		for i, n := range c.keys {
			rows[i] = floats(r, n*c.width, 1)
			s, err := cache.NewSeq()
			require.NoError(t, err)
			require.NoError(t, s.Reserve(n))
			if n > 0 {
				require.NoError(t, s.WriteRows(0, 0, rows[i]))
			}
			require.NoError(t, s.Commit(n))
			b.Seqs = append(b.Seqs, s)
			fewer = fewer || n < c.queries[i]
		}
		require.NoError(t, core.Decode(nil, mla.RowsF32(out), mla.RowsF32(q), b))
		for i := range c.queries {
			for tok := int(offsets[i]); tok < int(offsets[i+1]); tok++ {
				for head := range h {
					at := tok*h + head
					key := oracle.Table(float64s(rows[i]), c.width)
					sameRow(t, a, "f32", q[at*c.width:][:c.width], key, func(j int) []float64 { return key(j)[:c.value] }, c.keys[i], float64(b.Sink[head]),
						out[at*c.value:][:c.value], b.LSE[at], b.MaxLogit[at], fmt.Sprintf("sequence %d, query %d, head %d", i, tok, head))
				}
			}
		}
		require.True(t, fewer)
		b.Sparse = &mla.Sparse{Logical: true}
		require.ErrorIs(t, core.Decode(nil, mla.RowsF32(out), mla.RowsF32(q), b), mla.ErrShape, "queries of lists have positions")
	})
}

// TestNullMaskLayer: a layer's Decode is the core's, and takes more queries than keys as well.
func TestNullMaskLayer(t *testing.T) {
	w := small()
	w.cfg.Mask = nullMask
	m := w.make(t)
	p := m.plan(t, mla.Limits{Tokens: 8, Seqs: 4, Context: 100}, nil)
	offsets := []uint32{0, 2, 2, 7, 7} // over none, and over 3 committed rows
	rows := 7 * m.cfg.Heads
	b := mla.Batch{Cache: m.cache, Layer: m.layer, Seqs: m.seqs, Offsets: offsets, LSE: make([]float32, rows)}
	q, out := floats(rand.New(rand.NewPCG(1, 1)), rows*m.width(), 1), make([]float32, rows*m.cfg.Latent)
	require.NoError(t, p.Decode(nil, mla.RowsF32(out), mla.RowsF32(q), b))
	for at := range rows {
		n, cached := 0, []float32(nil)
		if at >= 2*m.cfg.Heads {
			n, cached = 3, m.firstRow[2]
		}
		want := oracle.Attend(float64s(q[at*m.width():][:m.width()]), oracle.Table(float64s(cached), m.width()), all(n), float64(m.cfg.Scale), oracle.NoSink, m.cfg.Latent)
		for i, x := range want.Out {
			require.InDelta(t, x, out[at*m.cfg.Latent+i], want.CoreBound())
		}
		require.Equal(t, n == 0, math.IsInf(float64(b.LSE[at]), 1))
	}
}

// TestNullMaskPieces cuts keys into pieces, the last of which has fewer than there are queries, as chunked context is
// computed: merged they are one call.
func TestNullMaskPieces(t *testing.T) {
	const queries, keys, piece, h, width, value = 3, 9, 4, 2, 24, 16
	for _, a := range computes {
		for _, kind := range []string{"f32", "bf16", "f16"} {
			c := nullCase{heads: h, width: width, value: value, queries: []int{queries}, keys: []int{keys}}
			core := c.core(t, a, nil)
			r := rand.New(rand.NewPCG(9, 9))
			q, k, v := rounded(kind, floats(r, queries*h*width, 1)), rounded(kind, floats(r, keys*h*width, 1)), rounded(kind, floats(r, keys*h*value, 1))
			over := func(from, to int) (out, lse []float32) {
				out, lse = make([]float32, queries*h*value), make([]float32, queries*h)
				kk, vv := k[from*h*width:to*h*width], v[from*h*value:to*h*value]
				require.NoError(t, core.Prefill(nil, mla.RowsF32(out), rowsOf(kind, q), rowsOf(kind, kk), rowsOf(kind, vv), &mla.PrefillArgs{LSE: lse}))
				// The same with heads outside and rows inside, however few.
				n, out2, lse2 := to-from, make([]float32, len(out)), make([]float32, len(lse))
				k2, v2 := make([]float32, len(kk)), make([]float32, len(vv))
				for s := range n {
					for g := range h {
						copy(k2[(g*n+s)*width:], kk[(s*h+g)*width:][:width])
						copy(v2[(g*n+s)*value:], vv[(s*h+g)*value:][:value])
					}
				}
				require.NoError(t, core.Prefill(nil, mla.RowsF32(out2), rowsOf(kind, q), rowsOf(kind, k2), rowsOf(kind, v2),
					&mla.PrefillArgs{LSE: lse2, LdK: width, StrideK: n * width, LdV: value, StrideV: n * value}))
				sameBits(t, answer{out, lse, nil}, answer{out2, lse2, nil}, fmt.Sprintf("%d keys, heads outside", n))
				return out, lse
			}
			var parts, partsLSE []float32
			n := 0
			for from := 0; from <= keys; from += piece { // the last piece of all is empty
				out, lse := over(from, min(from+piece, keys))
				parts, partsLSE, n = append(parts, out...), append(partsLSE, lse...), n+1
			}
			out, lse := over(keys, keys)
			parts, partsLSE, n = append(parts, out...), append(partsLSE, lse...), n+1
			got, gotLSE := make([]float32, queries*h*value), make([]float32, queries*h)
			require.NoError(t, mla.Merge(got, gotLSE, parts, partsLSE, n, queries*h, value))
			out, lse = over(0, keys)
			bound := 4e-6
			if a == mla.ComputeBF16 {
				bound = pairLayer
			}
			require.InDeltaSlice(t, out, got, bound*2, "%v, %s", a, kind)
			require.InDeltaSlice(t, lse, gotLSE, bound, "%v, %s", a, kind)
		}
	}
}
