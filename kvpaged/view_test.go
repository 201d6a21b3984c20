package kvpaged_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

func lease(t testing.TB, s *kvpaged.Seq, layer, n int) kvpaged.View {
	t.Helper()
	v, err := s.Lease(layer, n)
	require.NoError(t, err)
	t.Cleanup(func() { v.Release() })
	return v
}

// TestViewWalksPages reads every range of a sequence with every row stride.
func TestViewWalksPages(t *testing.T) {
	for _, page := range []int{1, 3, 16} {
		for _, order := range allOrders {
			cfg := small()
			cfg.PageTokens, cfg.Pages, cfg.Order = page, 40, order
			c := newCache(t, cfg)
			other, s := newSeq(t, c), newSeq(t, c)
			row := rowOf(c, 1)
			for range 4 { // pages of the two take turns
				appendRows(t, other, 2*page, rowOf(c, 2))
				appendRows(t, s, 5, row)
			}
			require.NoError(t, s.Reserve(3))
			require.NoError(t, s.WriteRows(1, 20, append(append(row(1, 20), row(1, 21)...), row(1, 22)...)))
			var all []float32
			for pos := range 23 {
				all = append(all, row(1, pos)...)
			}
			v, err := s.Lease(1, 3)
			require.NoError(t, err)
			assert.Equal(t, 20, v.Len())
			for pos := range 23 {
				for n := range 23 - pos + 1 {
					for _, ld := range []int{3, 4, 7} {
						dst := make([]float32, n*ld)
						for i := range dst {
							dst[i] = -1
						}
						v.Widen(dst, ld, pos, n)
						for i, x := range dst {
							want := float32(-1) // between the rows nothing is written
							if i%ld < 3 {
								want = all[3*(pos+i/ld)+i%ld]
							}
							if x != want {
								require.Equal(t, want, x, "position %d, %d rows, stride %d, value %d", pos, n, ld, i)
							}
						}
					}
				}
				require.Equal(t, row(1, pos), floats(v.Row(pos)))
				run, n := v.Run(pos)
				require.Equal(t, min(page-pos%page, 23-pos), n, "to the end of the page or of the lease")
				require.Len(t, run, n*c.RowBytes())
				require.Equal(t, len(run), cap(run))
				for i := range n {
					require.Equal(t, row(1, pos+i), floats(run[i*c.RowBytes():(i+1)*c.RowBytes()]))
				}
			}
			last := make([]float32, 4*2+3) // the stride may end where the last row does
			v.Widen(last, 4, 0, 3)
			assert.Equal(t, row(1, 2), last[8:])
			v.Release()
		}
	}
}

func floats(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// TestManyRows reads more rows in one call than are widened together, in every
// format.
func TestManyRows(t *testing.T) {
	const n = 200
	for _, f := range allFormats {
		c := newCache(t, in(f, kvpaged.Config{Layers: 2, PageTokens: 7, Width: 8, Pages: 40}))
		s, w := newSeq(t, c), c.Config().Width
		ld := w + 3
		appendRows(t, s, n, func(layer, pos int) []float32 {
			row := make([]float32, w)
			for i := range row {
				row[i] = float32((layer + 1) * (pos%13 + 1) * (i%5 - 2))
			}
			return row
		})
		v := lease(t, s, 1, 0)
		p, err := c.Lease(1)
		require.NoError(t, err)
		want := make([]float32, n*ld)
		positions, physical := make([]int32, n), make([]int32, n)
		for i := range n {
			v.Widen(want[i*ld:], ld, i, 1)
			j := n - 1 - i
			positions[i], physical[i] = int32(j), s.Pages()[j/7]*7+int32(j%7)
		}
		got := make([]float32, n*ld)
		v.Widen(got, ld, 0, n)
		require.Equal(t, want, got, "%v", f)
		for name, gather := range map[string]func(dst []float32){
			"seq":  func(dst []float32) { v.Gather(dst, ld, positions) },
			"pool": func(dst []float32) { p.Gather(dst, ld, physical) },
		} {
			gather(got)
			for i := range n {
				require.Equal(t, want[(n-1-i)*ld:][:w], got[i*ld:][:w], "%v, %s, row %d", f, name, i)
			}
		}
		p.Release()
	}
}

func TestManyRowsOfAPage(t *testing.T) {
	cfg := kvpaged.Config{Layers: 1, PageTokens: 100, Width: 576, Format: kvpaged.FP8Unit, Pages: 1}
	c := newCache(t, cfg)
	s := newSeq(t, c)
	row := func(_, pos int) []float32 {
		r := make([]float32, 576)
		for i := range r {
			r[i] = float32((pos + i) % 17)
		}
		return r
	}
	appendRows(t, s, 100, row)
	requireRows(t, s, row)
}

func TestReadersSeeCommittedRows(t *testing.T) {
	c := newCache(t, small())
	s := newSeq(t, c)
	row := rowOf(c, 1)
	appendRows(t, s, 5, row)
	require.NoError(t, s.Reserve(2))
	reader := lease(t, s, 0, 0)
	writer := lease(t, s, 0, 2)
	writer.Write(5, row(0, 5))
	writer.Write(6, row(0, 6))
	assert.True(t, writer.Mapped(6))
	assert.False(t, writer.Mapped(7))
	assert.False(t, reader.Mapped(5))
	assert.False(t, reader.Mapped(-1))
	assert.True(t, reader.Mapped(4))
	_, n := reader.Run(4)
	assert.Equal(t, 1, n, "the page has more slots, the reader has not")
	assert.Panics(t, func() { reader.Row(5) })
	assert.Panics(t, func() { reader.Run(math.MaxInt) })
	assert.Panics(t, func() { reader.Run(-1) })
	assert.Panics(t, func() { reader.Widen(make([]float32, 6), 3, 4, 2) })
	assert.Panics(t, func() { reader.Write(5, row(0, 5)) })
	assert.Panics(t, func() { writer.Write(4, row(0, 4)) }, "a committed row")
	assert.Panics(t, func() { writer.Write(7, row(0, 7)) })
	assert.Panics(t, func() { writer.Write(5, row(0, 5)[:2]) })
	require.ErrorIs(t, s.ReadRows(make([]float32, 3), 0, 5, 1), kvpaged.ErrRange)

	writer.Release()
	require.NoError(t, s.Commit(1))
	assert.Equal(t, 5, reader.Len(), "what was committed when it was taken")
	assert.False(t, reader.Mapped(5))
	later := lease(t, s, 0, 0)
	assert.Equal(t, 6, later.Len())
	assert.Equal(t, row(0, 5), floats(later.Row(5)))
}

func TestOneWriterManyReaders(t *testing.T) {
	c := newCache(t, small())
	s, other := newSeq(t, c), newSeq(t, c)
	appendRows(t, s, 5, rowOf(c, 1))
	require.NoError(t, s.Reserve(4))
	require.NoError(t, other.Reserve(1))
	w := lease(t, s, 0, 2)
	require.ErrorIs(t, leaseErr(s, 0, 1), kvpaged.ErrBusy)
	require.ErrorIs(t, leaseErr(s, 1, 1), kvpaged.ErrBusy, "in another layer too")
	require.ErrorIs(t, s.WriteRows(1, 5, make([]float32, 3)), kvpaged.ErrBusy)
	lease(t, other, 0, 1)
	r := lease(t, s, 0, 0)
	lease(t, s, 1, 0)
	require.NoError(t, s.Reserve(15), "pages may come while a lease is out")
	w.Write(6, []float32{1, 2, 3})
	r.Widen(make([]float32, 15), 3, 0, 5)
	w.Release()
	require.NoError(t, s.WriteRows(1, 23, []float32{1, 2, 3}))
	require.ErrorIs(t, s.Free(), kvpaged.ErrBusy, "readers are left")
}
