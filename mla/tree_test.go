package mla_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// bits32 is a float32 as fold_tree.json writes it.
type bits32 float32

func (f *bits32) UnmarshalJSON(b []byte) error {
	s, err := strconv.Unquote(string(b))
	if err != nil {
		return err
	}
	u, err := strconv.ParseUint(s, 16, 32)
	*f = bits32(math.Float32frombits(uint32(u)))
	return err
}

// treeKey is a key of fold_tree.json, by its formula.
func treeKey(i, c int) float32 {
	h := uint32(i)*2654435761 + uint32(c)*2246822519 + 12345
	h ^= h >> 15
	h *= 2654435761
	h ^= h >> 13
	return float32(int(h&255)-128) / 64
}

// TestTreeVectors meets fold_tree.json, bits of the tree of partitions from a model in another
// language, in every way in which keys come: rows of a cache, lists of them, dense rows; on any
// number of workers.
func TestTreeVectors(t *testing.T) {
	b, err := os.ReadFile("testdata/fold_tree.json")
	require.NoError(t, err)
	var file struct {
		Width, Values int
		Scale         bits32
		Rows          []struct {
			Keys      int
			Q, Output []bits32
			LSE       bits32
		}
	}
	require.NoError(t, json.Unmarshal(b, &file))
	require.NotEmpty(t, file.Rows)
	floats := func(x []bits32) (out []float32) {
		for _, v := range x {
			out = append(out, float32(v))
		}
		return out
	}
	workers := []int{1, 2, 3, 7}
	rows := file.Rows
	if testing.Short() {
		workers, rows = []int{1, 3}, rows[:4]
	}
	most := rows[len(rows)-1].Keys
	k, v := make([]float32, 0, most*file.Width), make([]float32, 0, most*file.Values)
	list := make([]int32, most)
	for i := range most {
		for c := range file.Width {
			k = append(k, treeKey(i, c))
		}
		v = append(v, k[i*file.Width:][:file.Values]...)
		list[i] = int32(i)
	}
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 61, Width: file.Width, Format: kvpaged.F32, Pages: most/61 + 1})
	require.NoError(t, err)
	seq, err := cache.NewSeq()
	require.NoError(t, err)
	done := 0
	for _, row := range rows {
		require.NoError(t, seq.Reserve(row.Keys-done))
		require.NoError(t, seq.WriteRows(0, done, k[done*file.Width:row.Keys*file.Width]))
		require.NoError(t, seq.Commit(row.Keys-done))
		done = row.Keys
		q := mla.RowsF32(floats(row.Q))
		for _, n := range workers {
			pool := mla.NewPool(n)
			core, err := newCore(mla.CoreConfig{Heads: 1, Width: file.Width, V: file.Values, Scale: float32(file.Scale)},
				mla.Limits{Tokens: 1, Seqs: 1, Context: row.Keys}, pool)
			require.NoError(t, err)
			for name, call := range map[string]func(out mla.Rows, lse []float32) error{
				"decode": func(out mla.Rows, lse []float32) error {
					return core.Decode(context.Background(), out, q, mla.Batch{
						Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, 1}, LSE: lse,
					})
				},
				"lists": func(out mla.Rows, lse []float32) error {
					return core.SparsePrefill(context.Background(), out, q, mla.RowsF32(k[:row.Keys*file.Width]), &mla.SparsePrefillArgs{
						Indices: list[:row.Keys], Stride: row.Keys, LSE: lse,
					})
				},
				"prefill": func(out mla.Rows, lse []float32) error {
					return core.Prefill(context.Background(), out, q, mla.RowsF32(k[:row.Keys*file.Width]), mla.RowsF32(v[:row.Keys*file.Values]),
						&mla.PrefillArgs{LSE: lse})
				},
			} {
				out, lse := make([]float32, file.Values), make([]float32, 1)
				require.NoError(t, call(mla.RowsF32(out), lse))
				sameBits(t, answer{out: floats(row.Output), lse: []float32{float32(row.LSE)}}, answer{out: out, lse: lse},
					fmt.Sprintf("%s, %d keys, %d workers", name, row.Keys, n))
			}
			require.NoError(t, core.Close())
			require.NoError(t, pool.Close())
		}
	}
	require.NoError(t, cache.Close())
}

// TestTreeWorkers has many blocks wait for merges at once: windows that cross the border of a group in
// two partitions, and two lists of several groups each. One worker, which merges each partition as it
// comes, gives the bits.
func TestTreeWorkers(t *testing.T) {
	const width, values, group = 5, 4, 8192
	queries, entries := 700, group+1100
	if testing.Short() {
		queries, entries = 300, group+20
	}
	keys := group + queries/2
	r := rand.New(rand.NewPCG(3, 7))
	rows := floats(r, keys*width, 1)
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 64, Width: width, Format: kvpaged.F32, Pages: keys/64 + 1})
	require.NoError(t, err)
	defer func() { require.NoError(t, cache.Close()) }()
	seq, err := cache.NewSeq()
	require.NoError(t, err)
	require.NoError(t, seq.Reserve(keys))
	require.NoError(t, seq.WriteRows(0, 0, rows))
	require.NoError(t, seq.Commit(keys))
	list := func(n int) []int32 {
		l := make([]int32, 3*n)
		for i := range l {
			l[i] = int32(r.IntN(keys+2)) - 1
		}
		return l
	}
	q := floats(r, queries*width, 1)
	first, second := list(entries), list(2*entries)
	for _, compute := range computes {
		var want [2]answer
		for _, workers := range []int{1, 2, 3, 7} {
			pool := mla.NewPool(workers)
			core, err := newCore(mla.CoreConfig{
				Heads: 1, Width: width, V: values, Scale: 0.5, Compute: compute,
				Mask: mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 513},
			}, mla.Limits{Tokens: queries, Seqs: 1, Context: 2 * keys}, pool)
			require.NoError(t, err)
			core.Poison()
			window := answer{out: make([]float32, queries*values), lse: make([]float32, queries)}
			require.NoError(t, core.Decode(context.Background(), mla.RowsF32(window.out), mla.RowsF32(q), mla.Batch{
				Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, uint32(queries)}, LSE: window.lse,
			}))
			lists := answer{out: make([]float32, 3*values), lse: make([]float32, 3)}
			require.NoError(t, core.SparseDecode(context.Background(), mla.RowsF32(lists.out), mla.RowsF32(q[:3*width]), &mla.SparseDecodeArgs{
				Seqs: 1, Tokens: 3, Cache: cache, Indices: first, Stride: entries, LSE: lists.lse,
				Extra: &mla.Extra{Cache: cache, Indices: second, Stride: 2 * entries},
			}))
			if workers == 1 {
				want = [2]answer{window, lists}
			}
			sameBits(t, want[0], window, fmt.Sprintf("windows, %v, %d workers", compute, workers))
			sameBits(t, want[1], lists, fmt.Sprintf("lists, %v, %d workers", compute, workers))
			require.NoError(t, core.Close())
			require.NoError(t, pool.Close())
		}
	}
}

// TestTreeExpanded carries the nodes of the expanded form from one range of keys to the next: the bits
// are those of one range, on any number of workers.
func TestTreeExpanded(t *testing.T) {
	n := 2*8192 + 700
	if testing.Short() {
		n = 8192 + 100
	}
	for _, compute := range computes {
		w := light([]int{n - 3}, []int{3})
		w.cfg.Compute = compute
		m := w.make(t)
		lim := m.limits()
		lim.Buffer = n
		want := m.forward(t, m.plan(t, lim, nil), mla.FormExpanded)
		if !testing.Short() {
			m.check(t, want)
		}
		for _, buffer := range []int{1, 1024, 5000} {
			for _, workers := range []int{1, 3} {
				pool := mla.NewPool(workers)
				lim.Buffer = buffer
				p := m.plan(t, lim, pool)
				p.Poison()
				sameBits(t, want, m.forward(t, p, mla.FormExpanded), fmt.Sprintf("%v, buffer of %d rows, %d workers", compute, buffer, workers))
				require.NoError(t, p.Close())
				require.NoError(t, pool.Close())
			}
		}
	}
}
