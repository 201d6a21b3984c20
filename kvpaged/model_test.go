package kvpaged_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// model is a cache written as plainly as can be: what is at a slot of a page in
// a layer is in a map, and who holds a page is counted by looking.
type model struct {
	cfg  kvpaged.Config
	slot map[[3]int]float32 // layer, page, slot -> the row's first value
	seqs []*modelSeq
}

type modelSeq struct {
	seq              *kvpaged.Seq
	length, reserved int
	pages            []int32
}

func (m *model) holders(page int32) int {
	n := 0
	for _, s := range m.seqs {
		for _, p := range s.pages {
			if p == page {
				n++
			}
		}
	}
	return n
}

func (m *model) free() int {
	n := 0
	for p := range m.cfg.Pages {
		if m.holders(int32(p)) == 0 {
			n++
		}
	}
	return n
}

func (m *model) pagesFor(tokens int) int {
	n := 0
	for n*m.cfg.PageTokens < tokens {
		n++
	}
	return n
}

// newSlotsAlone tells whether the first n reserved slots are in pages with one
// holder.
func (m *model) newSlotsAlone(s *modelSeq, n int) bool {
	for pos := s.length; pos < s.length+n; pos++ {
		if m.holders(s.pages[pos/m.cfg.PageTokens]) != 1 {
			return false
		}
	}
	return true
}

func (m *model) check(t *testing.T, c *kvpaged.Cache) {
	t.Helper()
	require.Equal(t, m.free(), c.FreePages())
	got := make([]float32, 0, 1024)
	for i, s := range m.seqs {
		require.Equal(t, s.length, s.seq.Len(), "sequence %d", i)
		require.Equal(t, s.reserved, s.seq.Reserved(), "sequence %d", i)
		require.Equal(t, s.pages, s.seq.Pages(), "sequence %d", i)
		for l := range m.cfg.Layers {
			got = slices.Grow(got[:0], s.length)[:s.length]
			require.NoError(t, s.seq.ReadRows(got, l, 0, s.length))
			for pos, x := range got {
				want := m.slot[[3]int{l, int(s.pages[pos/m.cfg.PageTokens]), pos % m.cfg.PageTokens}]
				if x != want {
					require.Equal(t, want, x, "sequence %d, layer %d, position %d", i, l, pos)
				}
			}
		}
	}
}

// step does one random thing to the cache and to the model and compares what
// they say of it.
func (m *model) step(t *testing.T, c *kvpaged.Cache, rng *rand.Rand) {
	t.Helper()
	if len(m.seqs) == 0 || rng.IntN(12) == 0 {
		s, err := c.NewSeq()
		require.NoError(t, err)
		m.seqs = append(m.seqs, &modelSeq{seq: s, pages: []int32{}})
		return
	}
	i := rng.IntN(len(m.seqs))
	s := m.seqs[i]
	switch rng.IntN(7) {
	case 0, 1:
		m.reserve(t, s, rng.IntN(3*m.cfg.PageTokens))
	case 2:
		m.write(t, s, rng)
	case 3:
		n := rng.IntN(s.reserved + 2)
		err := s.seq.Commit(n)
		require.Equal(t, n > s.reserved, errors.Is(err, kvpaged.ErrRange))
		if err == nil {
			s.length += n
			s.reserved -= n
		}
	case 4:
		n := rng.IntN(s.length + 2)
		err := s.seq.Truncate(n)
		require.Equal(t, n > s.length, errors.Is(err, kvpaged.ErrRange))
		if err == nil {
			s.length, s.reserved = n, 0
			s.pages = s.pages[:m.pagesFor(n)]
		}
	case 5:
		m.share(t, c, s, rng)
	case 6:
		if rng.IntN(3) == 0 {
			require.NoError(t, s.seq.Free())
			m.seqs = slices.Delete(m.seqs, i, i+1)
		}
	}
}

func (m *model) reserve(t *testing.T, s *modelSeq, n int) {
	t.Helper()
	need := m.pagesFor(s.length+s.reserved+n) - len(s.pages)
	free := m.free()
	err := s.seq.Reserve(n)
	if need > free {
		require.ErrorIs(t, err, kvpaged.ErrFull)
		require.ErrorContains(t, err, fmt.Sprintf("%d more pages needed, %d of %d free", need, free, m.cfg.Pages))
		return
	}
	require.NoError(t, err)
	s.reserved += n
	for _, p := range s.seq.Pages()[len(s.pages):] {
		require.Zero(t, m.holders(p), "page %d was not free", p)
		s.pages = append(s.pages, p)
		for l := range m.cfg.Layers {
			for slot := range m.cfg.PageTokens {
				delete(m.slot, [3]int{l, int(p), slot})
			}
		}
	}
}

func (m *model) write(t *testing.T, s *modelSeq, rng *rand.Rand) {
	t.Helper()
	layer := rng.IntN(m.cfg.Layers)
	from := rng.IntN(s.reserved + 1)
	rows := make([]float32, rng.IntN(s.reserved-from+1))
	for i := range rows {
		rows[i] = float32(rng.IntN(1 << 20))
	}
	err := s.seq.WriteRows(layer, s.length+from, rows)
	if from+len(rows) > 0 && !m.newSlotsAlone(s, from+len(rows)) {
		require.ErrorIs(t, err, kvpaged.ErrShared)
		return
	}
	require.NoError(t, err)
	for i, x := range rows {
		pos := s.length + from + i
		m.slot[[3]int{layer, int(s.pages[pos/m.cfg.PageTokens]), pos % m.cfg.PageTokens}] = x
	}
}

// share makes a sequence of the first pages of another.
func (m *model) share(t *testing.T, c *kvpaged.Cache, s *modelSeq, rng *rand.Rand) {
	t.Helper()
	cached := rng.IntN(s.length + s.reserved + 1)
	reserved := rng.IntN(s.length + s.reserved - cached + 1)
	twin := &modelSeq{length: cached, reserved: reserved, pages: slices.Clone(s.pages[:m.pagesFor(cached+reserved)])}
	var err error
	if rng.IntN(2) == 0 {
		twin.seq, err = c.Adopt(s.pages, cached, reserved)
	} else {
		var seqs []*kvpaged.Seq
		seqs, err = kvpaged.ImportLookup(c, s.pages, []int{cached}, []int{reserved})
		if reserved > 0 {
			require.ErrorIs(t, err, kvpaged.ErrShared)
			return
		}
		if err == nil {
			twin.seq = seqs[0]
		}
	}
	require.NoError(t, err)
	m.seqs = append(m.seqs, twin)
}

func TestAgainstModel(t *testing.T) {
	seeds, steps := 12, 400
	if testing.Short() {
		seeds, steps = 3, 200
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		cfg := kvpaged.Config{Layers: 1 + rng.IntN(3), PageTokens: 1 + rng.IntN(5), Width: 1, Format: kvpaged.F32,
			Pages: 1 + rng.IntN(20), Order: allOrders[rng.IntN(2)]}
		c := newCache(t, cfg)
		m := &model{cfg: cfg, slot: map[[3]int]float32{}}
		for range steps {
			m.step(t, c, rng)
			m.check(t, c)
		}
		for _, s := range m.seqs {
			require.NoError(t, s.seq.Free())
		}
		assert.Equal(t, cfg.Pages, c.FreePages())
	}
}

// TestLargePool: Reserve, Free and Adopt of one page cost the same however many
// pages there are. Walks through this pool would add up to minutes.
func TestLargePool(t *testing.T) {
	cfg := kvpaged.Config{Layers: 1, PageTokens: 1, Width: 1, Format: kvpaged.FP8Unit, Pages: 1 << 20}
	rounds := 50_000
	if testing.Short() {
		cfg.Pages, rounds = 1<<17, 5_000
	}
	c := newCache(t, cfg)
	most := newSeq(t, c)
	require.NoError(t, most.Reserve(cfg.Pages-2))
	s := newSeq(t, c)
	for range rounds {
		if s.Reserve(1) != nil || s.Truncate(0) != nil {
			t.Fatal("there is a page")
		}
		a, err := c.Adopt([]int32{int32(cfg.Pages - 1)}, 1, 0)
		if err != nil || a.Free() != nil {
			t.Fatal(err)
		}
	}
	require.Equal(t, 2, c.FreePages())
}

// FuzzImport feeds tables of any bytes to the Import functions: no panic, and
// after an error or a Free every page is where it was.
func FuzzImport(f *testing.F) {
	f.Add([]byte{}, []byte{}, []byte{}, []byte{}, uint8(0))
	f.Add([]byte{3, 0, 8, 1}, []byte{4, 0}, []byte{2, 1}, []byte{0, 1, 4}, uint8(1))
	f.Add([]byte{0xFF, 0x80, 0x7F, 8, 9}, []byte{0xFF, 5, 0x80}, []byte{0x7F, 0, 1}, []byte{0xFF, 0xFE}, uint8(2))
	f.Add([]byte{0, 1, 2, 3}, []byte{0, 2, 4}, []byte{3, 4}, []byte{1, 2}, uint8(0x52))
	f.Fuzz(func(t *testing.T, table, lengths, fresh, slots []byte, kind uint8) {
		cfg := small()
		cfg.PageTokens = 1 + int(kind>>4)
		c := newCache(t, cfg)
		held, err := c.Adopt([]int32{2}, 1, 0)
		require.NoError(t, err)
		seqs, err := importAny(c, table, lengths, fresh, slots, kind)
		if err == nil {
			for _, s := range seqs {
				use(t, s)
				require.NoError(t, s.Free())
			}
		} else {
			require.Nil(t, seqs)
		}
		require.Equal(t, cfg.Pages-1, c.FreePages())
		require.NoError(t, held.Free())
	})
}

// importAny reads bytes as integers of many sizes: small ones as they are, the
// last few as the extremes.
func importAny(c *kvpaged.Cache, table, lengths, fresh, slots []byte, kind uint8) ([]*kvpaged.Seq, error) {
	t32, l32, n32 := spread[int32](table, 32), spread[int32](lengths, 32), spread[int32](fresh, 32)
	t64, l64, n64, s64 := spread[int64](table, 64), spread[int64](lengths, 64), spread[int64](fresh, 64), spread[int64](slots, 64)
	switch kind & 7 {
	case 0:
		return kvpaged.ImportLookup(c, t32, l32, n32)
	case 1:
		return kvpaged.ImportLookup(c, spread[uint32](table, 32), spread[uint32](lengths, 32), spread[uint64](fresh, 64))
	case 2:
		return kvpaged.ImportBlockTable(c, t32, l64, n32, s64)
	case 3:
		return kvpaged.ImportBlockTable(c, t64, l64, n64, nil)
	case 4:
		return kvpaged.ImportCSR(c, l32, t32, n32, spread[int32](slots, 32))
	case 5:
		return kvpaged.ImportCSR(c, spread[uint64](lengths, 64), spread[uint64](table, 64), spread[uint64](fresh, 64), spread[uint64](slots, 64))
	default:
		return kvpaged.ImportCSR(c, l64, t64, n64, s64)
	}
}

func spread[T kvpaged.Integer](b []byte, bits int) []T {
	x := make([]T, len(b))
	for i, v := range b {
		switch {
		case v < 0x78:
			x[i] = T(v)
		case v < 0x80: // the largest signed numbers
			x[i] = T(uint64(1)<<(bits-1)-1) - T(0x7F-v)
		case v < 0x88: // the smallest signed numbers, or 2^31 and so on
			x[i] = T(uint64(1)<<(bits-1)) + T(v-0x80)
		default: // -1, -2, ... or the largest unsigned numbers
			x[i] = ^T(0) - T(0xFF-v)
		}
	}
	return x
}

// use does with an adopted sequence what a call does.
func use(t *testing.T, s *kvpaged.Seq) {
	v, err := s.Lease(0, s.Reserved())
	require.NoError(t, err)
	row := make([]float32, 3)
	for i := range min(s.Reserved(), 50) {
		v.Write(s.Len()+i, row)
	}
	for pos := range min(s.Len()+s.Reserved(), 50) {
		if v.Mapped(pos) {
			v.Widen(row, 3, pos, 1)
		}
	}
	v.Release()
	require.NoError(t, s.Commit(s.Reserved()))
	if err := s.ReadRows(make([]float32, 3*min(s.Len(), 50)), 1, 0, min(s.Len(), 50)); err != nil {
		require.ErrorIs(t, err, kvpaged.ErrPage)
	}
	if err := s.Reserve(2); err != nil {
		require.True(t, errors.Is(err, kvpaged.ErrFull) || errors.Is(err, kvpaged.ErrPage), "%v", err)
	}
}
