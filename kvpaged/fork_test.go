package kvpaged_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// records are the committed tokens of a sequence as Export gives them, all layers.
func recordsOf(t testing.TB, s *kvpaged.Seq) []byte {
	t.Helper()
	var all []byte
	for l := range s.Cache().Config().Layers {
		records, err := s.Export(l, 0, s.Len())
		require.NoError(t, err)
		all = append(all, records...)
	}
	return all
}

// appendRandom appends n tokens of random values.
func appendRandom(t testing.TB, s *kvpaged.Seq, rng *rand.Rand, n int) {
	t.Helper()
	w := s.Cache().Config().Width
	appendRows(t, s, n, func(int, int) []float32 { return rows(rng, 1, w) })
}

// TestFork takes every number of tokens, in every format, and then lets parent and
// fork go on, and forks of the fork: nobody's tokens change but by their own doing.
func TestFork(t *testing.T) {
	rng := rand.New(rand.NewPCG(21, 4))
	for _, f := range allFormats {
		for _, order := range allOrders {
			cfg := in(f, kvpaged.Config{Layers: 2, PageTokens: 3, Width: 7, Pages: 24, Order: order})
			m := newMemory(t, cfg, f == kvpaged.FP8Token && order == kvpaged.PageMajor)
			for n := range 8 {
				s := newSeq(t, m.Cache)
				appendRandom(t, s, rng, 7)
				before := recordsOf(t, s)
				size := len(before) / 2 / 7
				want := append(append([]byte{}, before[:n*size]...), before[7*size:(7+n)*size]...)
				free := m.FreePages()
				fork, err := s.Fork(n)
				require.NoError(t, err)
				assert.Equal(t, n, fork.Len())
				assert.Zero(t, fork.Reserved())
				assert.Equal(t, free-(n%3+2)/3, m.FreePages(), "%d tokens: one page for what is copied, if anything is", n)
				assert.Equal(t, s.Pages()[:n/3], fork.Pages()[:n/3])
				requireBytes(t, f.String(), want, recordsOf(t, fork))

				again, err := fork.Fork(n)
				require.NoError(t, err)
				appendRandom(t, fork, rng, 4)
				appendRandom(t, s, rng, 4)
				requireBytes(t, f.String(), want, recordsOf(t, again))
				require.NoError(t, fork.Truncate(n))
				requireBytes(t, f.String(), want, recordsOf(t, fork))
				require.NoError(t, s.Truncate(7))
				requireBytes(t, f.String(), before, recordsOf(t, s))
				require.NoError(t, s.Free())
				requireBytes(t, f.String(), want, recordsOf(t, fork))
				require.NoError(t, fork.Free())
				requireBytes(t, f.String(), want, recordsOf(t, again))
				require.NoError(t, again.Free())
				require.Equal(t, 24, m.FreePages())
			}
		}
	}
}

// TestForkOfUncommitted: what is reserved and written but not committed is not in a
// fork, nor under the slots that it reserves.
func TestForkOfUncommitted(t *testing.T) {
	c := newCache(t, small()) // pages of 4
	s := newSeq(t, c)
	appendRows(t, s, 5, rowOf(c, 1))
	require.NoError(t, s.Reserve(3))
	for l := range 2 {
		for pos := 5; pos < 8; pos++ {
			require.NoError(t, s.WriteRows(l, pos, rowOf(c, 666)(l, pos)))
		}
	}
	_, err := s.Fork(6)
	require.ErrorIs(t, err, kvpaged.ErrRange)
	fork, err := s.Fork(5)
	require.NoError(t, err)
	require.NoError(t, fork.Reserve(3))
	require.NoError(t, fork.Commit(3))
	requireRows(t, fork, func(l, pos int) []float32 {
		if pos < 5 {
			return rowOf(c, 1)(l, pos)
		}
		return make([]float32, 3)
	})
	assert.Equal(t, 3, s.Reserved(), "slots stay with the parent")
	require.NoError(t, s.Commit(3))
	got := make([]float32, 3)
	require.NoError(t, s.ReadRows(got, 1, 7, 1))
	assert.Equal(t, rowOf(c, 666)(1, 7), got)
}

// TestForkWhileLeased: readers and the writer of the parent go on, and both have
// what they had.
func TestForkWhileLeased(t *testing.T) {
	c := newCache(t, small())
	s := newSeq(t, c)
	appendRows(t, s, 6, rowOf(c, 1))
	require.NoError(t, s.Reserve(2))
	reader, writer := lease(t, s, 0, 0), lease(t, s, 0, 2)
	writer.Write(6, rowOf(c, 1)(0, 6))
	fork, err := s.Fork(6)
	require.NoError(t, err)
	writer.Write(7, rowOf(c, 1)(0, 7))
	requireRows(t, fork, rowOf(c, 1))
	appendRows(t, fork, 3, rowOf(c, 2))
	writer.Release()
	reader.Release()
	require.NoError(t, s.WriteRows(1, 6, append(rowOf(c, 1)(1, 6), rowOf(c, 1)(1, 7)...)))
	require.NoError(t, s.Commit(2))
	requireRows(t, s, rowOf(c, 1))

	v := lease(t, fork, 0, 0)
	require.NoError(t, s.Free(), "the fork's reader is the fork's alone")
	require.ErrorIs(t, fork.Free(), kvpaged.ErrBusy)
	assert.Equal(t, rowOf(c, 1)(0, 3), floats(v.Row(3)), "the page stays")
}

func TestForkErrors(t *testing.T) {
	c := newCache(t, small()) // 8 pages of 4
	s := newSeq(t, c)
	appendRows(t, s, 27, rowOf(c, 1)) // 7 pages
	for _, n := range []int{-1, 28, math.MinInt, math.MaxInt} {
		_, err := s.Fork(n)
		assert.ErrorIs(t, err, kvpaged.ErrRange, "%d", n)
	}
	_, err := s.Fork(28)
	assert.EqualError(t, err, "kvpaged: out of range: fork of 28 tokens, there are 27")

	last, err := s.Fork(1)
	require.NoError(t, err)
	require.Zero(t, c.FreePages())
	before := stateOf(s)
	for n := range 28 {
		fork, err := s.Fork(n)
		if n%4 != 0 {
			require.ErrorIs(t, err, kvpaged.ErrFull)
			require.Nil(t, fork)
			continue
		}
		require.NoError(t, err, "no page is needed")
		require.NoError(t, fork.Free())
	}
	assert.Equal(t, before, stateOf(s))
	require.NoError(t, s.Free())
	assert.Equal(t, 7, c.FreePages(), "what failed holds nothing")
	requireRows(t, last, rowOf(c, 1))
	_, err = s.Fork(0)
	require.ErrorIs(t, err, kvpaged.ErrClosed)
	require.NoError(t, c.Close())
	_, err = last.Fork(0)
	require.ErrorIs(t, err, kvpaged.ErrClosed)
}

// TestForkAdopted: pages of another allocator can be shared; none is there to copy
// to.
func TestForkAdopted(t *testing.T) {
	c := newCache(t, lent())
	s, err := c.Adopt([]int32{3, -1, 5}, 11, 1)
	require.NoError(t, err)
	for n, pages := range map[int][]int32{0: {}, 4: {3}, 5: {3, -1}, 7: {3, -1}, 8: {3, -1}} {
		fork, err := s.Fork(n)
		require.NoError(t, err, n)
		assert.Equal(t, pages, fork.Pages(), n)
		assert.Equal(t, n, fork.Len())
		require.NoError(t, fork.Free())
	}
	for _, n := range []int{1, 3, 9, 11} {
		_, err := s.Fork(n)
		require.ErrorIs(t, err, kvpaged.ErrFull, n)
		require.ErrorContains(t, err, "Config.Adopted")
	}
	requireHeld(t, c, []int32{3, 5})
	fork, err := s.Fork(8)
	require.NoError(t, err)
	require.NoError(t, s.WriteRows(0, 11, make([]float32, 3)), "page 5 has one holder")
	require.NoError(t, s.Free())
	requireHeld(t, c, []int32{3})
	require.NoError(t, fork.Free())
	requireHeld(t, c, nil)
}

// TestTruncateIntoSharedPage: who goes back into a page that a fork holds too, and
// appends there, gets a page of its own.
func TestTruncateIntoSharedPage(t *testing.T) {
	for _, f := range allFormats {
		rng := rand.New(rand.NewPCG(22, uint64(f)))
		m := newMemory(t, in(f, kvpaged.Config{Layers: 2, PageTokens: 4, Width: 7, Pages: 8}), f == kvpaged.FP8Token)
		s := newSeq(t, m.Cache)
		appendRandom(t, s, rng, 8)
		all := recordsOf(t, s)
		fork, err := s.Fork(8)
		require.NoError(t, err)
		for _, x := range []*kvpaged.Seq{s, fork} {
			require.NoError(t, x.Truncate(6))
			kept := recordsOf(t, x)
			shared := x.Pages()
			require.NoError(t, x.Reserve(0))
			require.Equal(t, shared, x.Pages(), "no slot, no copy")
			if x == s {
				v := lease(t, x, 0, 0)
				require.ErrorIs(t, x.Reserve(1), kvpaged.ErrBusy)
				require.Equal(t, shared, x.Pages())
				v.Release()
			}
			free := m.FreePages()
			require.NoError(t, x.Reserve(7)) // two in the page, one page, one slot
			require.Equal(t, 7, x.Reserved())
			require.Equal(t, shared[0], x.Pages()[0])
			if x == s {
				require.NotEqual(t, shared[1], x.Pages()[1])
				require.Equal(t, free-3, m.FreePages())
				requireBytes(t, f.String(), all, recordsOf(t, fork))
			} else {
				require.Equal(t, shared[1], x.Pages()[1], "nobody else holds it any more")
				require.Equal(t, free-2, m.FreePages())
			}
			requireBytes(t, f.String(), kept, recordsOf(t, x))
			require.NoError(t, x.Truncate(6))
			appendRandom(t, x, rng, 2)
			requireBytes(t, f.String(), kept, func() []byte {
				short, err := x.Fork(6)
				require.NoError(t, err)
				defer short.Free()
				return recordsOf(t, short)
			}())
		}
		require.NoError(t, s.Free())
		require.NoError(t, fork.Free())
		require.Equal(t, 8, m.FreePages())
	}
}

// TestTruncateIntoSharedPageFull: a Reserve that finds no page for the copy, or for
// what comes after it, leaves everything as it was.
func TestTruncateIntoSharedPageFull(t *testing.T) {
	c := newCache(t, small()) // 8 pages of 4
	s, rest := newSeq(t, c), newSeq(t, c)
	appendRows(t, s, 8, rowOf(c, 1))
	fork, err := s.Fork(8)
	require.NoError(t, err)
	require.NoError(t, s.Truncate(7))
	require.NoError(t, rest.Reserve(5*4))
	before := stateOf(s)
	require.ErrorIs(t, s.Reserve(2), kvpaged.ErrFull, "one page is free, two are needed")
	assert.Equal(t, before, stateOf(s))
	require.NoError(t, rest.Reserve(1))
	require.ErrorIs(t, s.Reserve(1), kvpaged.ErrFull)
	before.free = 0
	assert.Equal(t, before, stateOf(s))
	require.NoError(t, fork.Free())
	require.NoError(t, s.Reserve(1), "the page is its own")
	assert.Equal(t, before.pages, s.Pages())
	requireRows(t, s, rowOf(c, 1))
}
