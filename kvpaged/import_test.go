package kvpaged_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

func tables(seqs []*kvpaged.Seq) (pages [][]int32, lengths, reserved []int) {
	for _, s := range seqs {
		pages = append(pages, s.Pages())
		lengths = append(lengths, s.Len())
		reserved = append(reserved, s.Reserved())
	}
	return pages, lengths, reserved
}

func requireTables(t *testing.T, seqs []*kvpaged.Seq, err error, wantPages [][]int32, wantLengths, wantReserved []int) {
	t.Helper()
	require.NoError(t, err)
	pages, lengths, reserved := tables(seqs)
	assert.Equal(t, wantPages, pages)
	assert.Equal(t, wantLengths, lengths)
	assert.Equal(t, wantReserved, reserved)
	for _, s := range seqs {
		require.NoError(t, s.Free())
	}
}

func TestImportLookup(t *testing.T) {
	c := newCache(t, lent()) // 8 pages of 4
	wantPages := [][]int32{{3, 0}, {}, {3, -1, 7}, {1}}
	wantLengths, wantReserved := []int{4, 0, 10, 0}, []int{2, 0, 2, 4}

	seqs, err := kvpaged.ImportLookup(c,
		[]uint32{3, 0, 8, 8, 8, 8, 3, 8, 7, 1, 8, 8}, []uint32{4, 0, 10, 0}, []uint32{2, 0, 2, 4})
	requireTables(t, seqs, err, wantPages, wantLengths, wantReserved)
	seqs, err = kvpaged.ImportLookup(c,
		[]int32{3, 0, -1, -9, 99, 8, 3, -1, 7, 1, -1, -1}, []int32{4, 0, 10, 0}, []int64{2, 0, 2, 4})
	requireTables(t, seqs, err, wantPages, wantLengths, wantReserved)

	seqs, err = kvpaged.ImportLookup(c, []uint32{}, []uint32{}, []uint32{})
	require.NoError(t, err)
	assert.Empty(t, seqs)
	seqs, err = kvpaged.ImportLookup(c, []uint32{}, []uint32{0, 0}, []uint32{0, 0})
	requireTables(t, seqs, err, [][]int32{{}, {}}, []int{0, 0}, []int{0, 0})
	requireHeld(t, c, nil)
}

func TestImportBlockTable(t *testing.T) {
	c := newCache(t, lent())
	table := []int32{3, 0, 0, 5, 6, 0, 0, 0, 0}
	wantPages := [][]int32{{3, 0}, {5, 6}, {}}
	for name, x := range map[string]struct {
		slots    []int64
		pages    [][]int32
		reserved []int
	}{
		"no mapping":  {nil, wantPages, []int{2, 3, 0}},
		"mapping":     {[]int64{0, 1, 22, 23, 24}, wantPages, []int{2, 3, 0}},
		"padded":      {[]int64{0, 1, 22, 23, 24, -1, -1}, wantPages, []int{2, 3, 0}},
		"fewer slots": {[]int64{0, -1, 22, 23, -1, -1, -1}, [][]int32{{3, 0}, {5}, {}}, []int{1, 2, 0}},
		"none":        {[]int64{-1, -1, -1, -1, -1}, [][]int32{{3}, {5}, {}}, []int{0, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			seqs, err := kvpaged.ImportBlockTable(c, table, []int32{4, 2, 0}, []int32{2, 3, 0}, x.slots)
			requireTables(t, seqs, err, x.pages, []int{4, 2, 0}, x.reserved)
		})
	}
	for name, x := range map[string]struct {
		slots []int64
		want  error
	}{
		"another page":  {[]int64{4, 1, 22, 23, 24}, kvpaged.ErrPage},
		"another slot":  {[]int64{0, 2, 22, 23, 24}, kvpaged.ErrPage},
		"largest":       {[]int64{0, 1, 22, 23, math.MaxInt64}, kvpaged.ErrPage},
		"smallest":      {[]int64{0, 1, 22, 23, math.MinInt64}, kvpaged.ErrPage},
		"minus two":     {[]int64{-2, 1, 22, 23, 24}, kvpaged.ErrPage},
		"a gap":         {[]int64{-1, 1, 22, 23, 24}, kvpaged.ErrPage},
		"too short":     {[]int64{0, 1, 22, 23}, kvpaged.ErrShape},
		"empty":         {[]int64{}, kvpaged.ErrShape},
		"a slot to pad": {[]int64{0, 1, 22, 23, 24, 25}, kvpaged.ErrShape},
	} {
		_, err := kvpaged.ImportBlockTable(c, table, []int32{4, 2, 0}, []int32{2, 3, 0}, x.slots)
		assert.ErrorIs(t, err, x.want, name)
		requireHeld(t, c, nil, name)
	}
}

func TestImportCSR(t *testing.T) {
	c := newCache(t, lent())
	seqs, err := kvpaged.ImportCSR(c, []int32{0, 2, 2, 5, 6}, []int32{3, 0, 3, -1, 7, 1}, []int32{2, 0, 4, 4}, []uint32{2, 0, 2, 4})
	requireTables(t, seqs, err, [][]int32{{3, 0}, {}, {3, -1, 7}, {1}}, []int{4, 0, 10, 0}, []int{2, 0, 2, 4})
	seqs, err = kvpaged.ImportCSR(c, []int32{0}, []int32{}, []int32{}, []int32{})
	require.NoError(t, err)
	assert.Empty(t, seqs)

	for name, x := range map[string]struct {
		indptr, indices, last, fresh []int64
		want                         error
	}{
		"no indptr":         {[]int64{}, []int64{}, []int64{}, []int64{}, kvpaged.ErrShape},
		"indptr short":      {[]int64{0}, []int64{}, []int64{1}, []int64{0}, kvpaged.ErrShape},
		"new short":         {[]int64{0, 1}, []int64{3}, []int64{1}, []int64{}, kvpaged.ErrShape},
		"indptr starts":     {[]int64{1, 1}, []int64{3}, []int64{0}, []int64{0}, kvpaged.ErrPage},
		"indptr negative":   {[]int64{-1, 1}, []int64{3}, []int64{1}, []int64{0}, kvpaged.ErrPage},
		"indptr falls":      {[]int64{0, 2, 1}, []int64{3}, []int64{1, 0}, []int64{0, 0}, kvpaged.ErrPage},
		"indptr past":       {[]int64{0, 2}, []int64{3}, []int64{1}, []int64{0}, kvpaged.ErrPage},
		"indptr largest":    {[]int64{0, math.MaxInt64}, []int64{3}, []int64{1}, []int64{0}, kvpaged.ErrPage},
		"indptr smallest":   {[]int64{0, math.MinInt64}, []int64{3}, []int64{1}, []int64{0}, kvpaged.ErrPage},
		"indices left":      {[]int64{0, 1}, []int64{3, 4}, []int64{1}, []int64{0}, kvpaged.ErrPage},
		"empty last page":   {[]int64{0, 1}, []int64{3}, []int64{0}, []int64{0}, kvpaged.ErrRange},
		"last page is full": {[]int64{0, 1}, []int64{3}, []int64{5}, []int64{0}, kvpaged.ErrRange},
		"last negative":     {[]int64{0, 1}, []int64{3}, []int64{math.MinInt64}, []int64{0}, kvpaged.ErrRange},
		"last largest":      {[]int64{0, 1}, []int64{3}, []int64{math.MaxInt64}, []int64{0}, kvpaged.ErrRange},
		"last of no page":   {[]int64{0, 0}, []int64{}, []int64{1}, []int64{0}, kvpaged.ErrRange},
		"more new":          {[]int64{0, 1}, []int64{3}, []int64{3}, []int64{4}, kvpaged.ErrRange},
		"new negative":      {[]int64{0, 1}, []int64{3}, []int64{3}, []int64{-1}, kvpaged.ErrRange},
		"new smallest":      {[]int64{0, 1}, []int64{3}, []int64{3}, []int64{math.MinInt64}, kvpaged.ErrRange},
		"page":              {[]int64{0, 1}, []int64{9}, []int64{3}, []int64{1}, kvpaged.ErrPage},
		"page past int32":   {[]int64{0, 1}, []int64{1 << 32}, []int64{3}, []int64{1}, kvpaged.ErrPage},
		"not mapped":        {[]int64{0, 1}, []int64{-1}, []int64{3}, []int64{1}, kvpaged.ErrPage},
		"shared":            {[]int64{0, 1, 2}, []int64{3, 3}, []int64{3, 3}, []int64{1, 0}, kvpaged.ErrShared},
	} {
		_, err := kvpaged.ImportCSR(c, x.indptr, x.indices, x.last, x.fresh)
		assert.ErrorIs(t, err, x.want, name)
		requireHeld(t, c, nil, name)
	}
	big := kvpaged.Config{Layers: 1, PageTokens: 1 << 20, Width: 1, Format: kvpaged.FP8Unit, Pages: 1, Adopted: true}
	c = newCache(t, big)
	_, err = kvpaged.ImportCSR(c, []uint64{0, 3}, []uint64{1, 1, 1}, []uint64{1 << 20}, []uint64{math.MaxUint64})
	require.ErrorIs(t, err, kvpaged.ErrRange)
}

func TestImportErrors(t *testing.T) {
	c := newCache(t, lent())
	for name, x := range map[string]struct {
		table, lengths, fresh []int64
		want                  error
	}{
		"table is no matrix":  {[]int64{1, 2, 3}, []int64{1, 1}, []int64{0, 0}, kvpaged.ErrShape},
		"table of no batch":   {[]int64{1}, []int64{}, []int64{}, kvpaged.ErrShape},
		"new lengths short":   {[]int64{1, 2}, []int64{1, 1}, []int64{0}, kvpaged.ErrShape},
		"cached negative":     {[]int64{1, 2}, []int64{1, -1}, []int64{0, 0}, kvpaged.ErrRange},
		"cached smallest":     {[]int64{1, 2}, []int64{1, math.MinInt64}, []int64{0, 0}, kvpaged.ErrRange},
		"cached largest":      {[]int64{1, 2}, []int64{1, math.MaxInt64}, []int64{0, 0}, kvpaged.ErrPage},
		"sum overflows":       {[]int64{1, 2}, []int64{1, math.MaxInt64}, []int64{0, math.MaxInt64}, kvpaged.ErrRange},
		"new negative":        {[]int64{1, 2}, []int64{1, 1}, []int64{0, -1}, kvpaged.ErrRange},
		"table too short":     {[]int64{1, 2}, []int64{1, 4}, []int64{0, 1}, kvpaged.ErrPage},
		"page below":          {[]int64{1, -2}, []int64{1, 1}, []int64{0, 0}, kvpaged.ErrPage},
		"page above":          {[]int64{1, 9}, []int64{1, 1}, []int64{0, 0}, kvpaged.ErrPage},
		"page wraps":          {[]int64{1, 1<<32 + 1}, []int64{1, 1}, []int64{0, 0}, kvpaged.ErrPage},
		"page largest":        {[]int64{1, math.MaxInt64}, []int64{1, 1}, []int64{0, 0}, kvpaged.ErrPage},
		"page smallest":       {[]int64{1, math.MinInt64}, []int64{1, 1}, []int64{0, 0}, kvpaged.ErrPage},
		"unmapped under new":  {[]int64{1, 8}, []int64{1, 0}, []int64{0, 1}, kvpaged.ErrPage},
		"shared in the batch": {[]int64{1, 1}, []int64{1, 0}, []int64{0, 1}, kvpaged.ErrShared},
	} {
		seqs, err := kvpaged.ImportLookup(c, x.table, x.lengths, x.fresh)
		assert.ErrorIs(t, err, x.want, name)
		assert.Nil(t, seqs, name)
		_, err = kvpaged.ImportBlockTable(c, x.table, x.lengths, x.fresh, nil)
		assert.ErrorIs(t, err, x.want, name)
		requireHeld(t, c, nil, name)
	}
	_, err := kvpaged.ImportLookup(c, []uint64{1, math.MaxUint64}, []uint64{1, 1}, []uint64{0, 0})
	require.ErrorIs(t, err, kvpaged.ErrPage)
	_, err = kvpaged.ImportLookup(c, []uint64{1}, []uint64{math.MaxUint64}, []uint64{1})
	require.ErrorIs(t, err, kvpaged.ErrRange)
	assert.EqualError(t, func() error {
		_, err := kvpaged.ImportLookup(c, []int32{1, 2, 3, 9}, []int{1, 5}, []int{0, 0})
		return err
	}(), "kvpaged: sequence 1 of the batch: kvpaged: bad page table: entry 1 is 9, want 0 to 7, or -1 or 8 for a page that is not mapped")
}

// TestImportShared: cached pages may be shared, in the batch and outside of it,
// the pages of new tokens may not.
func TestImportShared(t *testing.T) {
	c := newCache(t, lent())
	a, err := c.Adopt([]int32{2, 5}, 0, 6)
	require.NoError(t, err)
	row := rowOf(c, 1)
	writeRows(t, a, 6, row)
	p := a.Pages()
	seqs, err := kvpaged.ImportLookup(c, []int32{p[0], 6, p[0], 7}, []int{4, 4}, []int{1, 2})
	require.NoError(t, err)
	for i, s := range seqs {
		requireRows(t, s, row)
		require.NoError(t, s.WriteRows(0, 4, rowOf(c, i)(0, 4)))
	}
}

func TestImportSharedWithOthers(t *testing.T) {
	c := newCache(t, lent())
	a, err := c.Adopt([]int32{2, 5}, 0, 6)
	require.NoError(t, err)
	writeRows(t, a, 6, rowOf(c, 1))
	p := a.Pages()
	_, err = kvpaged.ImportLookup(c, []int32{p[0], 7, p[0], p[1]}, []int{4, 6}, []int{1, 1})
	require.ErrorIs(t, err, kvpaged.ErrShared)
	assert.ErrorContains(t, err, "sequence 1 of the batch")
	requireHeld(t, c, p)
	require.NoError(t, a.Reserve(1))
	require.NoError(t, a.WriteRows(0, 6, make([]float32, 3)), "nobody else holds the page")

	v := lease(t, a, 0, 1)
	_, err = kvpaged.ImportLookup(c, []int32{p[0], 7, p[0], p[1]}, []int{4, 6}, []int{1, 0})
	require.ErrorIs(t, err, kvpaged.ErrBusy)
	v.Release()
	requireHeld(t, c, p)
}
