package kvpaged_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// state is all that a failed call must leave as it was.
type state struct {
	length, reserved, free int
	pages                  []int32
}

func stateOf(s *kvpaged.Seq) state {
	return state{s.Len(), s.Reserved(), s.Cache().FreePages(), s.Pages()}
}

func TestAppend(t *testing.T) {
	for _, page := range pageSizes {
		cfg := small()
		cfg.PageTokens, cfg.Pages = page, 70
		c := newCache(t, cfg)
		s := newSeq(t, c)
		row := rowOf(c, 1)
		for _, n := range []int{1, 0, 3, 7, 16, 1} {
			before := stateOf(s)
			require.NoError(t, s.Reserve(n))
			assert.Equal(t, before.length, s.Len(), "reserved slots are no tokens")
			assert.Equal(t, n, s.Reserved())
			require.NoError(t, s.Commit(0))
			require.NoError(t, s.Truncate(s.Len()), "gives the slots up")
			assert.Equal(t, before, stateOf(s))
			appendRows(t, s, n, row)
			assert.Equal(t, before.length+n, s.Len())
			assert.Zero(t, s.Reserved())
			need := (s.Len() + page - 1) / page
			assert.Len(t, s.Pages(), need)
			assert.Equal(t, cfg.Pages-need, c.FreePages())
			requireRows(t, s, row)
		}
		require.NoError(t, s.Free())
		require.NoError(t, s.Free(), "a second Free does nothing")
		assert.Equal(t, cfg.Pages, c.FreePages())
	}
}

func TestReserveAdds(t *testing.T) {
	c := newCache(t, small())
	s := newSeq(t, c)
	require.NoError(t, s.Reserve(3))
	require.NoError(t, s.Reserve(3))
	assert.Equal(t, 6, s.Reserved())
	require.NoError(t, s.Commit(2))
	assert.Equal(t, 2, s.Len())
	assert.Equal(t, 4, s.Reserved(), "the rest stays reserved")
	assert.Len(t, s.Pages(), 2)
}

func TestReserveIsAllOrNothing(t *testing.T) {
	c := newCache(t, small()) // 8 pages of 4
	a, b := newSeq(t, c), newSeq(t, c)
	appendRows(t, a, 18, rowOf(c, 1)) // 5 pages
	appendRows(t, b, 2, rowOf(c, 2))  // 1 page
	before := stateOf(b)
	err := b.Reserve(11) // 2 in the page, 9 in three more
	require.ErrorIs(t, err, kvpaged.ErrFull)
	assert.EqualError(t, err, "kvpaged: cache is full: 3 more pages needed, 2 of 8 free")
	assert.Equal(t, before, stateOf(b))
	require.ErrorIs(t, b.Reserve(math.MaxInt-2), kvpaged.ErrFull)
	assert.Equal(t, before, stateOf(b))
	require.NoError(t, b.Reserve(10))
	assert.Zero(t, c.FreePages())
	require.NoError(t, a.Reserve(2), "no page needed")
	require.ErrorIs(t, a.Reserve(1), kvpaged.ErrFull)
	requireRows(t, a, rowOf(c, 1))
	requireRows(t, b, rowOf(c, 2))
}

func TestSeqErrors(t *testing.T) {
	c := newCache(t, small())
	s := newSeq(t, c)
	appendRows(t, s, 5, rowOf(c, 1))
	require.NoError(t, s.Reserve(2))
	buf := make([]float32, 3*16)
	for name, x := range map[string]struct {
		err  error
		want error
	}{
		"reserve negative":     {s.Reserve(-1), kvpaged.ErrRange},
		"reserve min":          {s.Reserve(math.MinInt), kvpaged.ErrRange},
		"reserve max":          {s.Reserve(math.MaxInt), kvpaged.ErrRange},
		"reserve almost max":   {s.Reserve(math.MaxInt - 7), kvpaged.ErrFull},
		"commit negative":      {s.Commit(-1), kvpaged.ErrRange},
		"commit more":          {s.Commit(3), kvpaged.ErrRange},
		"commit max":           {s.Commit(math.MaxInt), kvpaged.ErrRange},
		"truncate negative":    {s.Truncate(-1), kvpaged.ErrRange},
		"truncate longer":      {s.Truncate(6), kvpaged.ErrRange},
		"write part of a row":  {s.WriteRows(0, 5, buf[:4]), kvpaged.ErrShape},
		"write committed":      {s.WriteRows(0, 4, buf[:3]), kvpaged.ErrRange},
		"write past reserved":  {s.WriteRows(0, 6, buf[:6]), kvpaged.ErrRange},
		"write far past":       {s.WriteRows(0, math.MaxInt, buf[:6]), kvpaged.ErrRange},
		"write negative":       {s.WriteRows(0, -1, buf[:3]), kvpaged.ErrRange},
		"write layer":          {s.WriteRows(2, 5, buf[:3]), kvpaged.ErrRange},
		"write layer negative": {s.WriteRows(-1, 5, buf[:3]), kvpaged.ErrRange},
		"read reserved":        {s.ReadRows(buf[:3], 0, 5, 1), kvpaged.ErrRange},
		"read past":            {s.ReadRows(buf[:6], 0, 4, 2), kvpaged.ErrRange},
		"read negative":        {s.ReadRows(buf[:3], 0, -1, 1), kvpaged.ErrRange},
		"read negative rows":   {s.ReadRows(nil, 0, 0, -1), kvpaged.ErrRange},
		"read max":             {s.ReadRows(buf[:3], 0, 1, math.MaxInt), kvpaged.ErrRange},
		"read layer":           {s.ReadRows(buf[:3], 2, 0, 1), kvpaged.ErrRange},
		"read short":           {s.ReadRows(buf[:5], 0, 0, 2), kvpaged.ErrShape},
		"read long":            {s.ReadRows(buf[:9], 0, 0, 2), kvpaged.ErrShape},
		"lease layer":          {leaseErr(s, 2, 0), kvpaged.ErrRange},
		"lease layer negative": {leaseErr(s, -1, 1), kvpaged.ErrRange},
		"lease negative":       {leaseErr(s, 0, -1), kvpaged.ErrRange},
		"lease more":           {leaseErr(s, 0, 3), kvpaged.ErrRange},
		"lease max":            {leaseErr(s, 0, math.MaxInt), kvpaged.ErrRange},
	} {
		assert.ErrorIs(t, x.err, x.want, name)
	}
	assert.Equal(t, 5, s.Len())
	assert.Equal(t, 2, s.Reserved())
	requireRows(t, s, rowOf(c, 1))
	require.NoError(t, s.WriteRows(1, 7, nil), "no rows, at the end")
	require.NoError(t, s.ReadRows(nil, 1, 5, 0))
	require.NoError(t, s.Truncate(5), "no lease is left behind")
}

func leaseErr(s *kvpaged.Seq, layer, n int) error {
	_, err := s.Lease(layer, n)
	return err
}

func TestTruncate(t *testing.T) {
	c := newCache(t, small())
	s := newSeq(t, c)
	row := rowOf(c, 1)
	appendRows(t, s, 15, row)
	require.NoError(t, s.Reserve(10))
	assert.Equal(t, 1, c.FreePages())
	for _, n := range []int{15, 13, 12, 5, 4, 1, 0} {
		require.NoError(t, s.Truncate(n))
		assert.Equal(t, n, s.Len())
		assert.Zero(t, s.Reserved())
		assert.Equal(t, 8-(n+3)/4, c.FreePages())
		requireRows(t, s, row)
	}
	appendRows(t, s, 3, rowOf(c, 2))
	requireRows(t, s, rowOf(c, 2))
}

// TestPagesAreZeroed fills the pool, frees it and looks for the rows of others.
func TestPagesAreZeroed(t *testing.T) {
	for _, order := range allOrders {
		for _, callers := range []bool{false, true} {
			cfg := small()
			cfg.Order = order
			if callers {
				cfg.Arena = heapArena(t, cfg)
				for i := range cfg.Arena {
					cfg.Arena[i] = 0xFF
				}
			}
			c := newCache(t, cfg)
			for round := range 3 {
				s := newSeq(t, c)
				require.NoError(t, s.Reserve(32))
				require.NoError(t, s.Commit(32))
				requireRows(t, s, func(int, int) []float32 { return make([]float32, 3) })
				require.NoError(t, s.Truncate(0))
				appendRows(t, s, 32, rowOf(c, round))
				require.NoError(t, s.Free())
			}
		}
	}
}

func TestClose(t *testing.T) {
	for _, callers := range []bool{false, true} {
		cfg := small()
		if callers {
			cfg.Arena = heapArena(t, cfg)
		}
		c, err := kvpaged.New(cfg)
		require.NoError(t, err)
		s := newSeq(t, c)
		appendRows(t, s, 6, rowOf(c, 1))
		require.NoError(t, s.Reserve(1))

		for _, n := range []int{0, 1} {
			v, err := s.Lease(0, n)
			require.NoError(t, err)
			require.ErrorIs(t, c.Close(), kvpaged.ErrBusy)
			require.ErrorIs(t, s.Free(), kvpaged.ErrBusy)
			require.ErrorIs(t, s.Truncate(0), kvpaged.ErrBusy)
			if n == 1 {
				require.ErrorIs(t, s.Commit(1), kvpaged.ErrBusy)
			} else {
				require.NoError(t, s.Commit(0))
			}
			require.NoError(t, s.Reserve(0))
			requireRows(t, s, rowOf(c, 1))
			v.Release()
			v.Release()
			require.Equal(t, kvpaged.View{}, v)
		}

		require.NoError(t, c.Close())
		require.NoError(t, c.Close(), "a second Close does nothing")
		_, err = c.NewSeq()
		require.ErrorIs(t, err, kvpaged.ErrClosed)
		_, err = c.Adopt([]int32{0}, 1, 0)
		require.ErrorIs(t, err, kvpaged.ErrClosed)
		_, err = kvpaged.ImportLookup(c, []int32{0}, []int32{1}, []int32{0})
		require.ErrorIs(t, err, kvpaged.ErrClosed)
		for name, err := range closedErrors(s) {
			require.ErrorIs(t, err, kvpaged.ErrClosed, name)
		}
		assert.Equal(t, 6, s.Len())
		assert.Equal(t, 1, s.Reserved())
		assert.Zero(t, c.FreePages())
		assert.Equal(t, c, s.Cache())
		assert.Equal(t, cfg.Pages, c.Config().Pages)
		require.NoError(t, s.Free(), "nothing is left to free")
		require.NoError(t, s.Free())
	}
}

func TestFreedSeq(t *testing.T) {
	c := newCache(t, small())
	s := newSeq(t, c)
	appendRows(t, s, 6, rowOf(c, 1))
	require.NoError(t, s.Free())
	for name, err := range closedErrors(s) {
		require.ErrorIs(t, err, kvpaged.ErrClosed, name)
	}
	assert.Zero(t, s.Len())
	assert.Zero(t, s.Reserved())
	assert.Empty(t, s.Pages())
	require.NoError(t, s.Free())
	assert.Equal(t, 8, c.FreePages())
}

func closedErrors(s *kvpaged.Seq) map[string]error {
	row := make([]float32, 3)
	return map[string]error{
		"Reserve":     s.Reserve(1),
		"Reserve 0":   s.Reserve(0),
		"Commit":      s.Commit(0),
		"Truncate":    s.Truncate(0),
		"WriteRows":   s.WriteRows(0, 6, row),
		"WriteRows 0": s.WriteRows(0, 0, nil),
		"ReadRows":    s.ReadRows(row, 0, 0, 1),
		"Lease 0":     leaseErr(s, 0, 0),
		"Lease 1":     leaseErr(s, 0, 1),
	}
}
