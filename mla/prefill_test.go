package mla_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
)

// prefillCase is a call of Core.Prefill: queries and keys of each sequence.
type prefillCase struct {
	heads, width, value int
	queries, keys       []int
	mask                mla.Mask
	headMajor           bool
	kind                string
	sink                bool
}

// TestPrefill holds attention over ready keys and values to the oracle, with NaN in every row that no query may see.
func TestPrefill(t *testing.T) {
	causal := mla.Mask{Kind: mla.MaskCausal}
	for _, c := range []prefillCase{
		{heads: 3, width: 24, value: 16, queries: []int{70}, keys: []int{70}, mask: causal, kind: "f32"},
		{heads: 2, width: 192, value: 128, queries: []int{65, 0, 1, 130}, keys: []int{65, 0, 90, 200}, mask: causal, kind: "bf16", sink: true},
		{heads: 2, width: 20, value: 20, queries: []int{3, 100}, keys: []int{3, 600}, mask: mla.Mask{Kind: mla.MaskNull}, kind: "f32", headMajor: true},
		{heads: 1, width: 33, value: 7, queries: []int{140}, keys: []int{700}, mask: mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 50}, kind: "f16"},
		{heads: 2, width: 16, value: 16, queries: []int{90}, keys: []int{190}, mask: mla.Mask{Kind: mla.MaskChunkedCausal, Window: 37}, kind: "f32", sink: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			var bits []uint32
			for _, workers := range []int{1, 3} {
				out, lse := c.run(t, workers)
				got := append(bitsOf(out), bitsOf(lse)...)
				if bits != nil {
					require.Equal(t, bits, got, "%d workers", workers)
				}
				bits = got
			}
		})
	}
}

func bitsOf(x []float32) (u []uint32) {
	for _, v := range x {
		u = append(u, math.Float32bits(v))
	}
	return u
}

// run computes the case, compares it with the oracle and returns it.
func (c prefillCase) run(t *testing.T, workers int) (out, lse []float32) {
	tokens, keys := 0, 0
	offsets, ends := []uint32{0}, []uint32{0}
	for b := range c.queries {
		tokens, keys = tokens+c.queries[b], keys+c.keys[b]
		offsets, ends = append(offsets, uint32(tokens)), append(ends, uint32(keys))
	}
	r, normal := kerneltest.Rand(7), kerneltest.Classes[0]
	q := normal.Make(r, tokens*c.heads*c.width)
	k, v := normal.Make(r, keys*c.heads*c.width), normal.Make(r, keys*c.heads*c.value)
	q, k, v = rounded(c.kind, q), rounded(c.kind, k), rounded(c.kind, v)
	a := &mla.PrefillArgs{Offsets: offsets, Keys: ends, LSE: make([]float32, tokens*c.heads), MaxLogit: make([]float32, tokens*c.heads)}
	if c.headMajor {
		a.LdK, a.StrideK, a.LdV, a.StrideV = c.width, keys*c.width, c.value, keys*c.value
	}
	if c.sink {
		a.Sink = normal.Make(r, c.heads)
	}
	place := func(key, head, n int) int {
		if c.headMajor {
			return (head*keys + key) * n
		}
		return (key*c.heads + head) * n
	}
	const scale = 0.2
	mask := oracle.Mask{Kind: maskKind(c.mask), Window: c.mask.Window}
	for b := range c.queries { // nobody may look at what nobody sees
		seen := map[int]bool{}
		for i := range c.queries[b] {
			for _, j := range mask.Visible(c.keys[b]-c.queries[b]+i, c.keys[b]) {
				seen[j] = true
			}
		}
		for j := range c.keys[b] {
			for h := range c.heads {
				if !seen[j] {
					for _, row := range [][]float32{k[place(int(ends[b])+j, h, c.width):][:c.width], v[place(int(ends[b])+j, h, c.value):][:c.value]} {
						for i := range row {
							row[i] = float32(math.NaN())
						}
					}
				}
			}
		}
	}

	pool := mla.NewPool(workers)
	defer func() { require.NoError(t, pool.Close()) }()
	core, err := newCore(mla.CoreConfig{Heads: c.heads, Width: c.width, V: c.value, Scale: scale, Mask: c.mask},
		mla.Limits{Tokens: max(tokens, 1), Seqs: len(c.queries), Context: keys}, pool)
	require.NoError(t, err)
	defer core.Close()
	out = make([]float32, tokens*c.heads*c.value)
	for range 2 { // the second call on a workspace that has been used
		require.NoError(t, core.Prefill(nil, mla.RowsF32(out), rowsOf(c.kind, q), rowsOf(c.kind, k), rowsOf(c.kind, v), a))
	}

	for b := range c.queries {
		for i := range c.queries[b] {
			for h := range c.heads {
				at := (int(offsets[b])+i)*c.heads + h
				key := func(j int) []float64 {
					row := oracle.Widen(v[place(int(ends[b])+j, h, c.value):][:c.value])
					return append(row, oracle.Widen(k[place(int(ends[b])+j, h, c.width):][:c.width])...)
				}
				sink := oracle.NoSink
				if c.sink {
					sink = float64(a.Sink[h])
				}
				// The oracle's values are the first of a row: its query does not look at them.
				query := append(make([]float64, c.value), oracle.Widen(q[at*c.width:][:c.width])...)
				want := oracle.Attend(query, key, mask.Visible(c.keys[b]-c.queries[b]+i, c.keys[b]), scale, sink, c.value)
				for j, x := range out[at*c.value:][:c.value] {
					require.InDelta(t, want.Out[j], x, want.CoreBound(), "sequence %d, query %d, head %d, value %d", b, i, h, j)
				}
				require.InDelta(t, want.LSE, a.LSE[at], 1e-5*max(1, math.Abs(want.LSE)))
			}
		}
	}
	return out, a.LSE
}

func TestPrefillErrors(t *testing.T) {
	core, err := newCore(mla.CoreConfig{Heads: 2, Width: 8, V: 4, Scale: 1}, mla.Limits{Tokens: 4, Seqs: 2, Context: 6}, nil)
	require.NoError(t, err)
	defer core.Close()
	f := func(n int) mla.Rows { return mla.RowsF32(make([]float32, n)) }
	for name, c := range map[string]struct {
		out, q, k, v mla.Rows
		args         *mla.PrefillArgs
		want         error
	}{
		"q is no rows":     {f(8), f(17), f(16), f(8), nil, mla.ErrShape},
		"too many queries": {f(40), f(80), f(80), f(40), nil, mla.ErrLimit},
		"too many keys":    {f(8), f(16), f(16 * 7), f(8 * 7), nil, mla.ErrLimit},
		"v is short":       {f(8), f(16), f(32), f(15), nil, mla.ErrShape},
		"out is short":     {f(7), f(16), f(16), f(8), nil, mla.ErrShape},
		"more queries":     {f(16), f(32), f(16), f(8), nil, mla.ErrShape},
		"no keys":          {f(8), f(16), f(0), f(0), nil, mla.ErrShape},
		"LSE is short":     {f(8), f(16), f(16), f(8), &mla.PrefillArgs{LSE: []float32{1}}, mla.ErrShape},
		"offsets alone":    {f(8), f(16), f(16), f(8), &mla.PrefillArgs{Offsets: []uint32{0, 1}}, mla.ErrShape},
		"offsets fall":     {f(8), f(16), f(16), f(8), &mla.PrefillArgs{Offsets: []uint32{0, 2, 1}, Keys: []uint32{0, 1, 1}}, mla.ErrShape},
		"rows overlap":     {f(16), f(32), f(32), f(16), &mla.PrefillArgs{LdK: 7}, mla.ErrShape},
		"negative stride":  {f(8), f(16), f(16), f(8), &mla.PrefillArgs{LdV: -1}, mla.ErrShape},
	} {
		require.ErrorIs(t, core.Prefill(nil, c.out, c.q, c.k, c.v, c.args), c.want, name)
	}
	x := make([]float32, 64)
	require.ErrorIs(t, core.Prefill(nil, mla.RowsF32(x[:8]), mla.RowsF32(x[:16]), f(16), f(8), nil), mla.ErrShape, "out overlaps q")
	require.NoError(t, core.Prefill(nil, f(0), f(0), f(0), f(0), nil), "nothing to do")
	require.NoError(t, core.Close())
	require.ErrorIs(t, core.Prefill(nil, f(8), f(16), f(16), f(8), nil), mla.ErrClosed)
}
