package kvpaged_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// TestAdopt takes pages that hold something already.
func TestAdopt(t *testing.T) {
	cfg := lent()
	cfg.Arena = heapArena(t, cfg)
	for i := range cfg.Arena {
		cfg.Arena[i] = 0x40 // 3.0039
	}
	c := newCache(t, cfg)
	assert.Zero(t, c.FreePages())
	s, err := c.Adopt([]int32{6, -1, 8, 2, 99, math.MinInt32}, 13, 3)
	require.NoError(t, err)
	assert.Equal(t, 13, s.Len())
	assert.Equal(t, 3, s.Reserved())
	assert.Equal(t, []int32{6, -1, -1, 2}, s.Pages())
	requireHeld(t, c, []int32{6, 2})
	old := []float32{3.0039215, 3.0039215, 3.0039215}
	got := make([]float32, 3)
	for _, pos := range []int{0, 3, 12} {
		require.NoError(t, s.ReadRows(got, 1, pos, 1))
		assert.Equal(t, old, got, "adopted pages are taken as they are")
	}
	for _, pos := range []int{4, 7, 11} {
		require.ErrorIs(t, s.ReadRows(got, 1, pos, 1), kvpaged.ErrPage, "not mapped")
	}
	require.ErrorIs(t, s.ReadRows(make([]float32, 39), 1, 0, 13), kvpaged.ErrPage)
	require.ErrorIs(t, s.ReadRows(make([]float32, 9), 1, 2, 3), kvpaged.ErrPage)
	v := lease(t, s, 1, 0)
	for pos := range 14 {
		assert.Equal(t, pos < 4 || pos == 12, v.Mapped(pos), pos)
	}
	assert.Panics(t, func() { v.Row(4) })
	assert.Panics(t, func() { v.Widen(make([]float32, 15), 3, 0, 5) })
	v.Release()

	require.NoError(t, s.WriteRows(0, 13, make([]float32, 9)))
	require.NoError(t, s.Commit(3))
	require.NoError(t, s.Reserve(0))
	err = s.Reserve(1)
	require.ErrorIs(t, err, kvpaged.ErrFull, "no page is ours to give")
	assert.EqualError(t, err, "kvpaged: cache is full: 1 more pages needed, and the pages are another allocator's (Config.Adopted): they come through Adopt and Import")
	require.NoError(t, s.Truncate(2))
	require.NoError(t, s.Reserve(2), "what is left of a page is there to be reserved")
	require.NoError(t, s.Free())
	requireHeld(t, c, nil)
}

// TestOwned: a cache that owns its pages takes no page numbers, whatever the pages
// are: those of a sequence, free ones, which may hold what a sequence has left
// there, or none.
func TestOwned(t *testing.T) {
	c := newCache(t, small())
	a := newSeq(t, c)
	appendRows(t, a, 6, rowOf(c, 1))
	require.NoError(t, a.Reserve(3))
	held := a.Pages()
	requireOwned := func(pages []int32, cached, fresh int) {
		t.Helper()
		before := c.FreePages()
		_, err := c.Adopt(pages, cached, fresh)
		require.ErrorIs(t, err, kvpaged.ErrOwned)
		assert.EqualError(t, err, "kvpaged: the cache owns its pages: page numbers are for caches of Config.Adopted, Seq.Fork shares pages of this one")
		l, f := []int{cached}, []int{fresh}
		_, err = kvpaged.ImportLookup(c, pages, l, f)
		require.ErrorIs(t, err, kvpaged.ErrOwned)
		_, err = kvpaged.ImportBlockTable(c, pages, l, f, nil)
		require.ErrorIs(t, err, kvpaged.ErrOwned)
		last := (cached+fresh+3)%4 + 1
		_, err = kvpaged.ImportCSR(c, []int{0, len(pages)}, pages, []int{last}, f)
		require.ErrorIs(t, err, kvpaged.ErrOwned)
		assert.Equal(t, before, c.FreePages())
	}
	requireOwned(held, 12, 0) // with tokens that are not committed
	requireOwned(held, 6, 3)
	requireOwned([]int32{7}, 4, 0)
	requireOwned(nil, 0, 0)
	require.NoError(t, a.Free())
	requireOwned(held, 6, 0)
	_, err := kvpaged.ImportLookup(c, []int{}, []int{}, []int{})
	require.ErrorIs(t, err, kvpaged.ErrOwned, "an empty batch too")
}

func TestReserveUnmapped(t *testing.T) {
	c := newCache(t, lent())
	s, err := c.Adopt([]int32{1, -1, 3}, 9, 0)
	require.NoError(t, err)
	require.NoError(t, s.Truncate(6))
	require.ErrorIs(t, s.Reserve(1), kvpaged.ErrPage)
	require.NoError(t, s.Reserve(0))
	require.NoError(t, s.Truncate(4))
	require.ErrorIs(t, s.Reserve(1), kvpaged.ErrFull)
	require.NoError(t, s.Truncate(3))
	require.NoError(t, s.Reserve(1))
	require.NoError(t, s.WriteRows(0, 3, []float32{1, 2, 3}))

	s, err = c.Adopt([]int32{-1, -1}, 8, 0)
	require.NoError(t, err)
	require.ErrorIs(t, s.Reserve(1), kvpaged.ErrFull, "the page that is not mapped is full")
}

func TestAdoptErrors(t *testing.T) {
	c := newCache(t, lent()) // 8 pages of 4
	for name, x := range map[string]struct {
		pages            []int32
		cached, reserved int
		want             error
	}{
		"negative cached":       {nil, -1, 0, kvpaged.ErrRange},
		"negative reserved":     {[]int32{0}, 1, -1, kvpaged.ErrRange},
		"sum overflows":         {[]int32{0}, math.MaxInt, 1, kvpaged.ErrRange},
		"both largest":          {[]int32{0}, math.MaxInt, math.MaxInt, kvpaged.ErrRange},
		"both smallest":         {[]int32{0}, math.MinInt, math.MinInt, kvpaged.ErrRange},
		"largest":               {[]int32{0}, math.MaxInt, 0, kvpaged.ErrPage},
		"no table":              {nil, 0, 1, kvpaged.ErrPage},
		"short table":           {[]int32{0, 1}, 8, 1, kvpaged.ErrPage},
		"page too large":        {[]int32{0, 9}, 8, 0, kvpaged.ErrPage},
		"page largest":          {[]int32{0, math.MaxInt32}, 8, 0, kvpaged.ErrPage},
		"page negative":         {[]int32{0, -2}, 8, 0, kvpaged.ErrPage},
		"page smallest":         {[]int32{math.MinInt32, 0}, 8, 0, kvpaged.ErrPage},
		"unmapped under new":    {[]int32{0, -1}, 4, 1, kvpaged.ErrPage},
		"unmapped in the midst": {[]int32{0, 8, 1}, 4, 5, kvpaged.ErrPage},
		"unmapped under both":   {[]int32{0, -1}, 5, 1, kvpaged.ErrPage},
		"twice, cached":         {[]int32{2, 2}, 8, 0, kvpaged.ErrPage},
		"twice, one of each":    {[]int32{2, 2}, 4, 4, kvpaged.ErrPage},
		"twice, new":            {[]int32{2, 2}, 0, 8, kvpaged.ErrPage},
		"twice, far apart":      {[]int32{5, -1, 2, 8, 3, 2}, 20, 4, kvpaged.ErrPage},
	} {
		_, err := c.Adopt(x.pages, x.cached, x.reserved)
		assert.ErrorIs(t, err, x.want, name)
		requireHeld(t, c, nil, name)
	}
	_, err := c.Adopt([]int32{0, 9}, 8, 0)
	assert.EqualError(t, err, "kvpaged: bad page table: entry 1 is 9, want 0 to 7, or -1 or 8 for a page that is not mapped")
	_, err = c.Adopt([]int32{5, -1, 2, 8, 3, 2}, 24, 0)
	assert.ErrorContains(t, err, "kvpaged: bad page table: entries 2 and 5 are both page 2")
	for _, pages := range [][]int32{{0, 9}, {0, -7}, {0, -1}, {0, 0}} { // past the last token
		s, err := c.Adopt(pages, 4, 0)
		require.NoError(t, err)
		assert.Equal(t, []int32{0}, s.Pages())
		require.NoError(t, s.Free())
	}
	s, err := c.Adopt([]int32{-1, 8, -1, 8}, 16, 0)
	require.NoError(t, err, "as many as like are not mapped")
	assert.Equal(t, []int32{-1, -1, -1, -1}, s.Pages())
	s, err = c.Adopt(nil, 0, 0)
	require.NoError(t, err)
	require.ErrorIs(t, s.Reserve(5), kvpaged.ErrFull)
}

// TestPageTwice: every Import function refuses it, and a table that was refused
// leaves no mark on the pages.
func TestPageTwice(t *testing.T) {
	c := newCache(t, lent())
	for range 2 {
		_, err := kvpaged.ImportLookup(c, []int32{3, 1, 5, 5}, []int{8, 4}, []int{0, 1})
		require.ErrorIs(t, err, kvpaged.ErrPage)
		assert.ErrorContains(t, err, "sequence 1 of the batch: kvpaged: bad page table: entries 0 and 1 are both page 5")
		_, err = kvpaged.ImportBlockTable(c, []uint32{3, 3}, []int{5}, []int{0}, nil)
		require.ErrorIs(t, err, kvpaged.ErrPage)
		_, err = kvpaged.ImportCSR(c, []int{0, 3}, []int{7, 0, 7}, []int{1}, []int{0})
		require.ErrorIs(t, err, kvpaged.ErrPage)
		requireHeld(t, c, nil)
	}
	seqs, err := kvpaged.ImportLookup(c, []int32{3, 5, 3, 5}, []int{8, 8}, []int{0, 0})
	require.NoError(t, err, "two sequences may share pages")
	for _, s := range seqs {
		require.NoError(t, s.Free())
	}
	requireHeld(t, c, nil)
}

// TestShared lets two sequences hold the same cached page.
func TestShared(t *testing.T) {
	c := newCache(t, lent())
	a, err := c.Adopt([]int32{4, 1}, 0, 6)
	require.NoError(t, err)
	row := rowOf(c, 1)
	writeRows(t, a, 6, row)
	require.NoError(t, a.Reserve(1))
	b, err := c.Adopt(a.Pages(), 6, 1)
	require.NoError(t, err, "Adopt leaves the question to Lease")
	requireRows(t, b, row)
	for _, s := range []*kvpaged.Seq{a, b} {
		err := s.WriteRows(0, 6, row(0, 6))
		require.ErrorIs(t, err, kvpaged.ErrShared)
		require.ErrorIs(t, leaseErr(s, 0, 1), kvpaged.ErrShared)
		requireRows(t, s, row) // readers may
	}
	require.NoError(t, b.Truncate(3), "page 4 stays shared")
	require.NoError(t, b.Reserve(1), "and no page can be taken for a copy")
	require.ErrorIs(t, b.WriteRows(0, 3, row(0, 3)), kvpaged.ErrShared)
	require.NoError(t, a.WriteRows(0, 6, row(0, 6)), "page 1 is not")
	require.NoError(t, a.Free())
	requireHeld(t, c, []int32{4})
	requireRows(t, b, row)
	require.NoError(t, b.WriteRows(0, 3, row(0, 3)))
	require.NoError(t, b.Free())
	requireHeld(t, c, nil)
}

// TestAdoptWhileWritten keeps others out of a page that is being written.
func TestAdoptWhileWritten(t *testing.T) {
	c := newCache(t, lent())
	a, err := c.Adopt([]int32{4, 1}, 0, 6)
	require.NoError(t, err)
	writeRows(t, a, 5, rowOf(c, 1))
	v := lease(t, a, 0, 1)
	_, err = c.Adopt(a.Pages(), 5, 0)
	require.ErrorIs(t, err, kvpaged.ErrBusy)
	b, err := c.Adopt(a.Pages(), 4, 0)
	require.NoError(t, err, "the page before is not written")
	requireRows(t, b, rowOf(c, 1))
	v.Release()
	_, err = c.Adopt(a.Pages(), 5, 0)
	require.NoError(t, err)
}
