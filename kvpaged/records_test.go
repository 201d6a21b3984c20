package kvpaged_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// TestExport moves committed tokens between two caches with other page sizes. The
// memory is full of what others left there.
func TestExport(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, f := range allFormats {
		for _, order := range allOrders {
			cfg := in(f, kvpaged.Config{Layers: 2, PageTokens: 3, Width: 6, Pages: 5, Order: order, Adopted: true})
			m := newMemory(t, cfg, f == kvpaged.FP8Token && order == kvpaged.PageMajor)
			s, err := m.Adopt([]int32{4, 1, 2}, 0, 7)
			require.NoError(t, err)
			var want [2][]byte
			for l := range 2 {
				x := rows(rng, 7, cfg.Width)
				require.NoError(t, s.WriteRows(l, 0, x))
				for pos := range 4 {
					row, scales := encoded(m.cfg, x[pos*cfg.Width:(pos+1)*cfg.Width])
					want[l] = append(append(want[l], row...), scales...)
				}
			}
			require.NoError(t, s.Commit(4))
			to := in(f, kvpaged.Config{Layers: 2, PageTokens: 5, Width: 6, Pages: 1})
			if f == kvpaged.FP8Token {
				to.Group = cfg.Group
			}
			c := newCache(t, to)
			copied := newSeq(t, c)
			require.NoError(t, copied.Reserve(4))
			size := m.RowBytes()
			for l := range 2 {
				got, err := s.Export(l, 0, 4)
				require.NoError(t, err)
				requireBytes(t, f.String(), want[l], got)
				got, err = s.Export(l, 1, 2)
				require.NoError(t, err)
				requireBytes(t, f.String(), want[l][size:3*size], got)
				require.NoError(t, copied.Import(l, 2, want[l][2*size:]))
				require.NoError(t, copied.Import(l, 0, want[l][:2*size]))
			}
			require.NoError(t, copied.Commit(4))
			for l := range 2 {
				got, err := copied.Export(l, 0, 4)
				require.NoError(t, err)
				requireBytes(t, f.String(), want[l], got)
				checkExportedPage(t, m, s, l, want[l])
			}
		}
	}
}

// checkExportedPage looks at page 1, of whose three tokens one is committed and
// two are written.
func checkExportedPage(t *testing.T, m memory, s *kvpaged.Seq, layer int, records []byte) {
	t.Helper()
	cfg := m.cfg
	cfg.Scales = nil
	row, scales, size := planes(cfg)
	want := make([]byte, size)
	record := records[3*(row+scales):]
	copy(want, record[:row])
	copy(want[3*row:], record[row:row+scales])
	got, err := s.ExportPage(layer, 1)
	require.NoError(t, err)
	requireBytes(t, cfg.Format.String(), want, got)
}

func TestExportErrors(t *testing.T) {
	c := newCache(t, lent()) // pages of 4
	s, err := c.Adopt([]int32{3, -1, 5}, 10, 1)
	require.NoError(t, err)
	for _, x := range []struct {
		layer, pos, n int
		want          error
	}{
		{2, 0, 1, kvpaged.ErrRange}, {-1, 0, 1, kvpaged.ErrRange}, {0, -1, 1, kvpaged.ErrRange}, {0, 0, -1, kvpaged.ErrRange},
		{0, 10, 1, kvpaged.ErrRange}, {0, 11, 0, kvpaged.ErrRange}, {0, 8, 3, kvpaged.ErrRange}, {0, 8, math.MaxInt, kvpaged.ErrRange},
		{0, math.MaxInt, 1, kvpaged.ErrRange}, {0, 3, 2, kvpaged.ErrPage}, {0, 7, 2, kvpaged.ErrPage}, {1, 0, 10, kvpaged.ErrPage},
	} {
		_, err := s.Export(x.layer, x.pos, x.n)
		require.ErrorIs(t, err, x.want, "%v", x)
	}
	got, err := s.Export(1, 10, 0)
	require.NoError(t, err)
	assert.Empty(t, got)
	for i, want := range map[int]error{-1: kvpaged.ErrRange, 3: kvpaged.ErrRange, math.MaxInt: kvpaged.ErrRange, 1: kvpaged.ErrPage, 0: nil, 2: nil} {
		_, err := s.ExportPage(0, i)
		require.ErrorIs(t, err, want, "%d", i)
	}
	_, err = s.ExportPage(2, 0)
	require.ErrorIs(t, err, kvpaged.ErrRange)

	record := make([]byte, 12)
	require.ErrorIs(t, s.Import(0, 10, record[:11]), kvpaged.ErrShape)
	require.ErrorIs(t, s.Import(0, 9, record), kvpaged.ErrRange, "a committed token")
	require.ErrorIs(t, s.Import(0, 11, record), kvpaged.ErrRange)
	require.ErrorIs(t, s.Import(0, 10, make([]byte, 24)), kvpaged.ErrRange)
	require.ErrorIs(t, s.Import(2, 10, record), kvpaged.ErrRange)
	v := lease(t, s, 0, 1)
	require.ErrorIs(t, s.Import(0, 10, record), kvpaged.ErrBusy)
	v.Release()
	twin, err := c.Adopt([]int32{5}, 1, 0)
	require.NoError(t, err)
	require.ErrorIs(t, s.Import(0, 10, record), kvpaged.ErrShared)
	require.NoError(t, twin.Free())
	require.NoError(t, s.Import(0, 10, record))
	require.NoError(t, s.Free())
	_, err = s.Export(0, 0, 0)
	require.ErrorIs(t, err, kvpaged.ErrClosed)
	_, err = s.ExportPage(0, 0)
	require.ErrorIs(t, err, kvpaged.ErrClosed)
	require.ErrorIs(t, s.Import(0, 10, record), kvpaged.ErrClosed)
}

// TestPaddingIsZero: the last byte of the scales of v4_584 is written as zero
// wherever it goes, and so is the end of a page.
func TestPaddingIsZero(t *testing.T) {
	m := newMemory(t, in(kvpaged.V4_584, kvpaged.Config{Layers: 1, PageTokens: 2, Pages: 1, Adopted: true}), false)
	s, err := m.Adopt([]int32{0}, 1, 1)
	require.NoError(t, err)
	record := bytes.Repeat([]byte{0xFF}, 584)
	want := append(bytes.Repeat([]byte{0xFF}, 583), 0)
	got, err := s.Export(0, 0, 1)
	require.NoError(t, err)
	assert.Equal(t, want, got)
	require.NoError(t, s.Import(0, 1, record))
	assert.Zero(t, m.arena[2*576+15])
	page := append(bytes.Repeat([]byte{0xFF}, 576), make([]byte, 2*576)...)
	fill(page[2*576:2*576+7], 0xFF)
	got, err = s.ExportPage(0, 0)
	require.NoError(t, err)
	assert.Equal(t, page, got)
}
