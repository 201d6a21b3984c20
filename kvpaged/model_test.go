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
	if m.cfg.Adopted {
		return 0
	}
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
		m.begin(t, c, rng)
		return
	}
	i := rng.IntN(len(m.seqs))
	s := m.seqs[i]
	switch rng.IntN(8) {
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
		m.fork(t, s, rng.IntN(s.length+2))
	case 7:
		if rng.IntN(3) == 0 {
			require.NoError(t, s.seq.Free())
			m.seqs = slices.Delete(m.seqs, i, i+1)
		}
	}
}

// begin makes a sequence: an empty one, or one of pages from outside, whoever holds
// them.
func (m *model) begin(t *testing.T, c *kvpaged.Cache, rng *rand.Rand) {
	t.Helper()
	s := &modelSeq{pages: []int32{}}
	var err error
	if m.cfg.Adopted {
		for _, p := range rng.Perm(m.cfg.Pages)[:rng.IntN(m.cfg.Pages+1)] {
			s.pages = append(s.pages, int32(p))
		}
		room := len(s.pages) * m.cfg.PageTokens
		s.length = rng.IntN(room + 1)
		s.reserved = rng.IntN(room - s.length + 1)
		s.pages = s.pages[:m.pagesFor(s.length+s.reserved)]
		s.seq, err = c.Adopt(s.pages, s.length, s.reserved)
	} else {
		s.seq, err = c.NewSeq()
	}
	require.NoError(t, err)
	m.seqs = append(m.seqs, s)
}

// reserve takes pages: fresh ones for new tokens, and one for the tokens of a last
// page that another sequence holds too, where the pages are the cache's own.
func (m *model) reserve(t *testing.T, s *modelSeq, n int) {
	t.Helper()
	kept, free := len(s.pages), m.free()
	tail := (s.length + s.reserved) % m.cfg.PageTokens
	copied := !m.cfg.Adopted && n > 0 && tail > 0 && m.holders(s.pages[kept-1]) > 1
	need := m.pagesFor(s.length+s.reserved+n) - kept
	if copied {
		need++
		kept--
	}
	err := s.seq.Reserve(n)
	if need > 0 && m.cfg.Adopted {
		require.ErrorIs(t, err, kvpaged.ErrFull)
		return
	}
	if need > free {
		require.ErrorIs(t, err, kvpaged.ErrFull)
		require.ErrorContains(t, err, fmt.Sprintf("%d more pages needed, %d of %d free", need, free, m.cfg.Pages))
		return
	}
	require.NoError(t, err)
	s.reserved += n
	now := s.seq.Pages()
	require.Equal(t, s.pages[:kept], now[:kept])
	m.fresh(t, now[kept:])
	if copied {
		m.copy(s.pages[kept], now[kept], tail)
	}
	s.pages = now
}

// fresh tests that pages have no holder, and fills them with zeros.
func (m *model) fresh(t *testing.T, pages []int32) {
	t.Helper()
	for _, p := range pages {
		require.Zero(t, m.holders(p), "page %d was not free", p)
		for l := range m.cfg.Layers {
			for slot := range m.cfg.PageTokens {
				delete(m.slot, [3]int{l, int(p), slot})
			}
		}
	}
}

func (m *model) copy(from, to int32, tokens int) {
	for l := range m.cfg.Layers {
		for slot := range tokens {
			m.slot[[3]int{l, int(to), slot}] = m.slot[[3]int{l, int(from), slot}]
		}
	}
}

// fork makes a sequence of the first n tokens of another: the pages that they fill
// are the same, the rest are copied.
func (m *model) fork(t *testing.T, s *modelSeq, n int) {
	t.Helper()
	free := m.free()
	f, err := s.seq.Fork(n)
	full, rest := n/m.cfg.PageTokens, n%m.cfg.PageTokens
	switch {
	case n > s.length:
		require.ErrorIs(t, err, kvpaged.ErrRange)
		return
	case rest > 0 && (free == 0 || m.cfg.Adopted):
		require.ErrorIs(t, err, kvpaged.ErrFull)
		return
	}
	require.NoError(t, err)
	twin := &modelSeq{seq: f, length: n, pages: f.Pages()}
	require.Len(t, twin.pages, m.pagesFor(n))
	require.Equal(t, s.pages[:full], twin.pages[:full])
	m.fresh(t, twin.pages[full:])
	if rest > 0 {
		m.copy(s.pages[full], twin.pages[full], rest)
	}
	m.seqs = append(m.seqs, twin)
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
		require.True(t, m.cfg.Adopted, "a cache that owns its pages never lets others hold those of new tokens")
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
	if !m.cfg.Adopted {
		_, err = c.Adopt(s.pages, cached, reserved)
		require.ErrorIs(t, err, kvpaged.ErrOwned)
		return
	}
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
	seeds, steps := 24, 400
	if testing.Short() {
		seeds, steps = 6, 200
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(uint64(seed), 3))
		cfg := kvpaged.Config{Layers: 1 + rng.IntN(3), PageTokens: 1 + rng.IntN(5), Width: 1, Format: kvpaged.F32,
			Pages: 1 + rng.IntN(20), Order: allOrders[rng.IntN(2)], Adopted: seed%3 == 2}
		c := newCache(t, cfg)
		m := &model{cfg: cfg, slot: map[[3]int]float32{}}
		for range steps {
			m.step(t, c, rng)
			m.check(t, c)
		}
		for _, s := range m.seqs {
			require.NoError(t, s.seq.Free())
		}
		if m.seqs = nil; !cfg.Adopted {
			assert.Equal(t, cfg.Pages, c.FreePages())
		}
	}
}

// TestLargePool: Reserve, Free, Fork and Adopt of one page cost the same however
// many pages there are. Walks through this pool would add up to minutes.
func TestLargePool(t *testing.T) {
	cfg := kvpaged.Config{Layers: 1, PageTokens: 1, Width: 1, Format: kvpaged.FP8Unit, Pages: 1 << 20}
	rounds := 50_000
	if testing.Short() {
		cfg.Pages, rounds = 1<<17, 5_000
	}
	c := newCache(t, cfg)
	most := newSeq(t, c)
	require.NoError(t, most.Reserve(cfg.Pages-2))
	require.NoError(t, most.Commit(cfg.Pages-2))
	cfg.Adopted = true
	other := newCache(t, cfg)
	s := newSeq(t, c)
	for range rounds {
		if s.Reserve(1) != nil || s.Truncate(0) != nil {
			t.Fatal("there is a page")
		}
		f, err := most.Fork(1)
		if err != nil || f.Free() != nil {
			t.Fatal(err)
		}
		a, err := other.Adopt([]int32{int32(cfg.Pages - 1)}, 1, 0)
		if err != nil || a.Free() != nil {
			t.Fatal(err)
		}
	}
	require.Equal(t, 2, c.FreePages())
}
