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
	for _, lent := range []bool{false, true} {
		cfg := small()
		cfg.Adopted = lent
		cfg.Arena = heapArena(t, cfg)
		for i := range cfg.Arena {
			cfg.Arena[i] = 0x40 // 3.0039
		}
		c := newCache(t, cfg)
		free := map[bool]int{false: 8, true: 0}[lent]
		assert.Equal(t, free, c.FreePages())
		s, err := c.Adopt([]int32{6, -1, 8, 2, 99, math.MinInt32}, 13, 3)
		require.NoError(t, err)
		assert.Equal(t, 13, s.Len())
		assert.Equal(t, 3, s.Reserved())
		assert.Equal(t, []int32{6, -1, -1, 2}, s.Pages())
		if !lent {
			assert.Equal(t, free-2, c.FreePages(), "pages that were free no longer are")
		}
		old := []float32{3.0039215, 3.0039215, 3.0039215}
		got := make([]float32, 3)
		for _, pos := range []int{0, 3, 12} {
			require.NoError(t, s.ReadRows(got, 1, pos, 1))
			assert.Equal(t, old, got, "adopted pages are taken as they are")
		}
		for _, pos := range []int{4, 7, 11} {
			require.ErrorIs(t, s.ReadRows(got, 1, pos, 1), kvpaged.ErrPage, "a hole")
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
		if lent {
			require.ErrorIs(t, s.Reserve(1), kvpaged.ErrFull, "no page is ours to give")
		} else {
			require.NoError(t, s.Reserve(1))
		}
		require.NoError(t, s.Truncate(2))
		require.NoError(t, s.Reserve(2), "what is left of a page is there to be reserved")
		require.NoError(t, s.Free())
		assert.Equal(t, free, c.FreePages())
	}
}

func TestReserveIntoAHole(t *testing.T) {
	c := newCache(t, small())
	s, err := c.Adopt([]int32{1, -1, 3}, 9, 0)
	require.NoError(t, err)
	require.NoError(t, s.Truncate(6))
	require.ErrorIs(t, s.Reserve(1), kvpaged.ErrPage)
	require.NoError(t, s.Reserve(0))
	require.NoError(t, s.Truncate(4))
	require.NoError(t, s.Reserve(1))
	require.NoError(t, s.WriteRows(0, 4, []float32{1, 2, 3}))

	s, err = c.Adopt([]int32{-1, -1}, 8, 0)
	require.NoError(t, err)
	require.NoError(t, s.Reserve(1), "the hole is full")
	require.NoError(t, s.WriteRows(0, 8, []float32{1, 2, 3}))
}

func TestAdoptErrors(t *testing.T) {
	c := newCache(t, small()) // 8 pages of 4
	for name, x := range map[string]struct {
		pages            []int32
		cached, reserved int
		want             error
	}{
		"negative cached":   {nil, -1, 0, kvpaged.ErrRange},
		"negative reserved": {[]int32{0}, 1, -1, kvpaged.ErrRange},
		"sum overflows":     {[]int32{0}, math.MaxInt, 1, kvpaged.ErrRange},
		"both largest":      {[]int32{0}, math.MaxInt, math.MaxInt, kvpaged.ErrRange},
		"both smallest":     {[]int32{0}, math.MinInt, math.MinInt, kvpaged.ErrRange},
		"largest":           {[]int32{0}, math.MaxInt, 0, kvpaged.ErrPage},
		"no table":          {nil, 0, 1, kvpaged.ErrPage},
		"short table":       {[]int32{0, 1}, 8, 1, kvpaged.ErrPage},
		"page too large":    {[]int32{0, 9}, 8, 0, kvpaged.ErrPage},
		"page largest":      {[]int32{0, math.MaxInt32}, 8, 0, kvpaged.ErrPage},
		"page negative":     {[]int32{0, -2}, 8, 0, kvpaged.ErrPage},
		"page smallest":     {[]int32{math.MinInt32, 0}, 8, 0, kvpaged.ErrPage},
		"hole under new":    {[]int32{0, -1}, 4, 1, kvpaged.ErrPage},
		"hole in the midst": {[]int32{0, 8, 1}, 4, 5, kvpaged.ErrPage},
		"hole under both":   {[]int32{0, -1}, 5, 1, kvpaged.ErrPage},
	} {
		_, err := c.Adopt(x.pages, x.cached, x.reserved)
		assert.ErrorIs(t, err, x.want, name)
		assert.Equal(t, 8, c.FreePages(), name)
	}
	_, err := c.Adopt([]int32{0, 9}, 8, 0)
	assert.EqualError(t, err, "kvpaged: bad page table: entry 1 is 9, want 0 to 7, or -1 or 8 for a page that is not mapped")
	for _, pages := range [][]int32{{0, 9}, {0, -7}, {0, -1}} { // past the last token
		s, err := c.Adopt(pages, 4, 0)
		require.NoError(t, err)
		assert.Equal(t, []int32{0}, s.Pages())
		require.NoError(t, s.Free())
	}
	s, err := c.Adopt(nil, 0, 0)
	require.NoError(t, err)
	require.NoError(t, s.Reserve(5))
}

// TestShared lets two sequences hold the same cached page.
func TestShared(t *testing.T) {
	c := newCache(t, small())
	a := newSeq(t, c)
	row := rowOf(c, 1)
	appendRows(t, a, 6, row)
	require.NoError(t, a.Reserve(1))
	b, err := c.Adopt(a.Pages(), 6, 1)
	require.NoError(t, err, "Adopt leaves the question to Lease")
	requireRows(t, b, row)
	assert.Equal(t, 6, c.FreePages())
	for _, s := range []*kvpaged.Seq{a, b} {
		err := s.WriteRows(0, 6, row(0, 6))
		require.ErrorIs(t, err, kvpaged.ErrShared)
		require.ErrorIs(t, leaseErr(s, 0, 1), kvpaged.ErrShared)
		requireRows(t, s, row) // readers may
	}
	require.NoError(t, b.Truncate(4), "page 0 stays shared, no new token goes there")
	require.NoError(t, a.WriteRows(0, 6, row(0, 6)))
	require.NoError(t, b.Reserve(1))
	require.NoError(t, b.WriteRows(0, 4, rowOf(c, 2)(0, 4)))
	assert.NotEqual(t, a.Pages()[1], b.Pages()[1])
	requireRows(t, a, row)

	require.NoError(t, a.Free())
	assert.Equal(t, 6, c.FreePages(), "b holds two")
	requireRows(t, b, row)
	require.NoError(t, b.Free())
	assert.Equal(t, 8, c.FreePages())
}

// TestPageTwiceInATable is allowed under cached tokens only.
func TestPageTwiceInATable(t *testing.T) {
	c := newCache(t, small())
	s, err := c.Adopt([]int32{5, 5}, 8, 0)
	require.NoError(t, err)
	assert.Equal(t, 7, c.FreePages())
	require.NoError(t, s.Truncate(4))
	assert.Equal(t, 7, c.FreePages())
	require.NoError(t, s.Free())
	assert.Equal(t, 8, c.FreePages())
	_, err = kvpaged.ImportLookup(c, []int32{5, 5}, []int{4}, []int{1})
	require.ErrorIs(t, err, kvpaged.ErrShared)
	assert.Equal(t, 8, c.FreePages())
}

// TestAdoptWhileWritten keeps others out of a page that is being written.
func TestAdoptWhileWritten(t *testing.T) {
	c := newCache(t, small())
	a := newSeq(t, c)
	appendRows(t, a, 5, rowOf(c, 1))
	require.NoError(t, a.Reserve(1))
	v := lease(t, a, 0, 1)
	_, err := c.Adopt(a.Pages(), 5, 0)
	require.ErrorIs(t, err, kvpaged.ErrBusy)
	b, err := c.Adopt(a.Pages(), 4, 0)
	require.NoError(t, err, "the page before is not written")
	requireRows(t, b, rowOf(c, 1))
	v.Release()
	_, err = c.Adopt(a.Pages(), 5, 0)
	require.NoError(t, err)
}
