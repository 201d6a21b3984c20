package kvpaged_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// The forms in which page tables come in, read as plainly as can be: numbers of any
// type are an int here, what is beyond every table is far.

const far = 1 << 40

// form is one way to bring a batch in: which function, and the types of its numbers.
type form struct {
	csr, slots                    bool
	tableBits, lengthBits         int
	tableUnsigned, lengthUnsigned bool
	importInto                    func(c *kvpaged.Cache, table, lengths, fresh, slots []byte) ([]*kvpaged.Seq, error)
}

var forms = []form{
	{tableBits: 32, lengthBits: 32, importInto: func(c *kvpaged.Cache, table, lengths, fresh, _ []byte) ([]*kvpaged.Seq, error) {
		return kvpaged.ImportLookup(c, spread[int32](table, 32), spread[int32](lengths, 32), spread[int32](fresh, 32))
	}},
	{tableBits: 32, lengthBits: 32, tableUnsigned: true, lengthUnsigned: true, importInto: func(c *kvpaged.Cache, table, lengths, fresh, _ []byte) ([]*kvpaged.Seq, error) {
		return kvpaged.ImportLookup(c, spread[uint32](table, 32), spread[uint32](lengths, 32), spread[uint32](fresh, 32))
	}},
	{slots: true, tableBits: 32, lengthBits: 64, importInto: func(c *kvpaged.Cache, table, lengths, fresh, slots []byte) ([]*kvpaged.Seq, error) {
		return kvpaged.ImportBlockTable(c, spread[int32](table, 32), spread[int64](lengths, 64), spread[int](fresh, 64), spread[int64](slots, 64))
	}},
	{tableBits: 64, lengthBits: 64, importInto: func(c *kvpaged.Cache, table, lengths, fresh, _ []byte) ([]*kvpaged.Seq, error) {
		return kvpaged.ImportBlockTable(c, spread[int64](table, 64), spread[int64](lengths, 64), spread[int64](fresh, 64), nil)
	}},
	{csr: true, tableBits: 32, lengthBits: 32, importInto: func(c *kvpaged.Cache, table, lengths, fresh, slots []byte) ([]*kvpaged.Seq, error) {
		return kvpaged.ImportCSR(c, spread[int32](slots, 32), spread[int32](table, 32), spread[int32](lengths, 32), spread[int32](fresh, 32))
	}},
	{csr: true, tableBits: 64, lengthBits: 64, tableUnsigned: true, lengthUnsigned: true, importInto: func(c *kvpaged.Cache, table, lengths, fresh, slots []byte) ([]*kvpaged.Seq, error) {
		return kvpaged.ImportCSR(c, spread[uint64](slots, 64), spread[uint64](table, 64), spread[uint64](lengths, 64), spread[uint64](fresh, 64))
	}},
	{csr: true, tableBits: 64, lengthBits: 32, tableUnsigned: true, importInto: func(c *kvpaged.Cache, table, lengths, fresh, slots []byte) ([]*kvpaged.Seq, error) {
		return kvpaged.ImportCSR(c, spread[int32](slots, 32), spread[uint64](table, 64), spread[int32](lengths, 32), spread[int32](fresh, 32))
	}},
	{slots: true, tableBits: 32, lengthBits: 32, tableUnsigned: true, lengthUnsigned: true, importInto: func(c *kvpaged.Cache, table, lengths, fresh, slots []byte) ([]*kvpaged.Seq, error) {
		return kvpaged.ImportBlockTable(c, spread[uint32](table, 32), spread[uint32](lengths, 32), spread[uint32](fresh, 32), spread[int64](slots, 64))
	}},
}

// spread reads bytes as integers of many sizes: small ones as they are, the last few
// as the extremes.
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

// plainly is what spread makes of bytes, as ints.
func plainly(b []byte, unsigned bool) []int {
	x := make([]int, len(b))
	for i, v := range b {
		switch {
		case v < 0x78:
			x[i] = int(v)
		case v < 0x80, unsigned:
			x[i] = far
		case v < 0x88:
			x[i] = -far
		default:
			x[i] = int(v) - 0x100
		}
	}
	return x
}

// imported is a sequence that must come of a batch.
type imported struct {
	pages         []int32
	cached, fresh int
}

// expect reads a batch; ok is false if it must be refused. held are pages that
// another sequence holds.
func (f *form) expect(cfg kvpaged.Config, table, lengths, fresh, slots []byte, held []int32) (batch []imported, ok bool) {
	entries, news := plainly(table, f.tableUnsigned), plainly(fresh, f.lengthUnsigned)
	counts := plainly(lengths, f.lengthUnsigned)
	size := len(counts)
	if len(news) != size {
		return nil, false
	}
	rows := make([][]int, size) // the entries of each sequence
	cached := slices.Clone(counts)
	if f.csr {
		ends := plainly(slots, f.lengthUnsigned)
		if len(ends) != size+1 || ends[0] != 0 || ends[size] != len(entries) || !slices.IsSorted(ends) {
			return nil, false
		}
		for b := range rows {
			rows[b] = entries[ends[b]:ends[b+1]]
			n := len(rows[b])
			if n == 0 && counts[b] != 0 || n > 0 && (counts[b] < 1 || counts[b] > cfg.PageTokens) {
				return nil, false
			}
			cached[b] = max(n-1, 0)*cfg.PageTokens + counts[b] - news[b]
		}
	} else {
		if size == 0 {
			if len(entries) > 0 {
				return nil, false
			}
		} else if len(entries)%size != 0 {
			return nil, false
		}
		for b := range rows {
			w := len(entries) / size
			rows[b] = entries[b*w : (b+1)*w]
		}
	}
	var where []int // the slot of every new token that has one, by the mapping
	if f.slots {
		where = plainly(slots, false)
	}
	holders := map[int32]int{}
	for _, p := range held {
		holders[p]++
	}
	for b, row := range rows {
		if cached[b] < 0 || news[b] < 0 {
			return nil, false
		}
		var own []int
		if f.slots {
			if news[b] > len(where) {
				return nil, false
			}
			own, where = where[:news[b]], where[news[b]:]
			for len(own) > 0 && own[len(own)-1] == -1 {
				own = own[:len(own)-1]
			}
			if slices.Contains(own, -1) {
				return nil, false
			}
			news[b] = len(own)
		}
		if cached[b]+news[b] > len(row)*cfg.PageTokens {
			return nil, false
		}
		s := imported{pages: []int32{}, cached: cached[b], fresh: news[b]}
		for at := 0; at*cfg.PageTokens < cached[b]+news[b]; at++ {
			e := row[at]
			if e == cfg.Pages {
				e = -1
			}
			switch {
			case e < -1 || e > cfg.Pages,
				e == -1 && news[b] > 0 && (at+1)*cfg.PageTokens > cached[b],
				e != -1 && slices.Contains(s.pages, int32(e)):
				return nil, false
			}
			s.pages = append(s.pages, int32(e))
			holders[int32(e)]++
		}
		for i, slot := range own {
			pos := cached[b] + i
			if slot != int(s.pages[pos/cfg.PageTokens])*cfg.PageTokens+pos%cfg.PageTokens {
				return nil, false
			}
		}
		batch = append(batch, s)
	}
	if slices.ContainsFunc(where, func(x int) bool { return x != -1 }) {
		return nil, false
	}
	for _, s := range batch {
		for pos := s.cached; pos < s.cached+s.fresh; pos++ {
			if holders[s.pages[pos/cfg.PageTokens]] != 1 {
				return nil, false
			}
		}
	}
	return batch, true
}

// checkImport brings a batch in and compares what comes of it. It reports whether it
// was taken.
func checkImport(t *testing.T, cfg kvpaged.Config, f *form, table, lengths, fresh, slots []byte) bool {
	t.Helper()
	c, err := kvpaged.New(cfg)
	require.NoError(t, err)
	defer c.Close()
	held, err := c.Adopt([]int32{2}, 1, 0)
	require.NoError(t, err)
	want, ok := f.expect(cfg, table, lengths, fresh, slots, []int32{2})
	seqs, err := f.importInto(c, table, lengths, fresh, slots)
	if !ok {
		require.Error(t, err)
		require.Nil(t, seqs)
		known := func(target error) bool { return errors.Is(err, target) }
		require.True(t, slices.ContainsFunc([]error{kvpaged.ErrShape, kvpaged.ErrPage, kvpaged.ErrRange, kvpaged.ErrShared}, known), "%v", err)
	} else {
		require.NoError(t, err)
		require.Len(t, seqs, len(want))
		for b, s := range seqs {
			require.Equal(t, want[b], imported{s.Pages(), s.Len(), s.Reserved()}, "sequence %d", b)
			use(t, s)
			require.NoError(t, s.Free())
		}
	}
	requireHeld(t, c, []int32{2})
	require.NoError(t, held.Free())
	return ok
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

// TestImportAgainstModel brings in batches of all forms that are right, and the same
// with one byte that is another.
func TestImportAgainstModel(t *testing.T) {
	rounds := 4000
	if testing.Short() {
		rounds = 400
	}
	rng := rand.New(rand.NewPCG(31, 7))
	taken := map[int]int{}
	for round := range rounds {
		kind := round % len(forms)
		cfg := lent()
		cfg.PageTokens = 1 + rng.IntN(5)
		cfg.Pages = 3 + rng.IntN(20)
		table, lengths, fresh, slots := aBatch(rng, cfg, &forms[kind])
		if round/len(forms)%3 > 0 {
			if of := [][]byte{table, lengths, fresh, slots}[rng.IntN(4)]; len(of) > 0 {
				of[rng.IntN(len(of))] = []byte{0, 1, 2, 3, 4, byte(rng.IntN(256)), 0x7F, 0x80, 0xFF, byte(cfg.Pages)}[rng.IntN(10)]
			}
		}
		if checkImport(t, cfg, &forms[kind], table, lengths, fresh, slots) {
			taken[kind]++
		}
	}
	for kind := range forms {
		require.Greater(t, taken[kind], rounds/len(forms)/5, "form %d: most are refused", kind)
	}
}

// aBatch makes a batch that is right. No sequence holds page 2.
func aBatch(rng *rand.Rand, cfg kvpaged.Config, f *form) (table, lengths, fresh, slots []byte) {
	pages := rng.Perm(cfg.Pages)
	pages = slices.DeleteFunc(pages, func(p int) bool { return p == 2 })
	size, width := rng.IntN(4), rng.IntN(6)
	total := 0
	if f.csr {
		slots = append(slots, 0)
	}
	for range size {
		n := min(rng.IntN(width+1), len(pages)) // pages of the sequence
		row := pages[:n]
		pages = pages[n:]
		tokens := 0
		if n > 0 {
			tokens = (n-1)*cfg.PageTokens + 1 + rng.IntN(cfg.PageTokens)
		}
		news := rng.IntN(tokens + 1)
		own := make([]byte, width)
		for i := range own {
			own[i] = []byte{0xFF, byte(cfg.Pages), 0, 0x7F}[rng.IntN(4)] // past the last token
			switch {
			case i < n && (rng.IntN(4) > 0 || news > 0 && (i+1)*cfg.PageTokens > tokens-news):
				own[i] = byte(row[i])
			case i < n:
				own[i] = []byte{0xFF, byte(cfg.Pages)}[rng.IntN(2)]
			}
			if own[i] == 0xFF && f.tableUnsigned && i < n {
				own[i] = byte(cfg.Pages)
			}
		}
		fresh = append(fresh, byte(news))
		if f.csr {
			table = append(table, own[:n]...)
			last := 0
			if n > 0 {
				last = tokens - (n-1)*cfg.PageTokens
			}
			lengths = append(lengths, byte(last))
			total += n
			slots = append(slots, byte(total))
			continue
		}
		table = append(table, own...)
		lengths = append(lengths, byte(tokens-news))
		written := news
		if rng.IntN(3) == 0 {
			written = rng.IntN(news + 1)
		}
		for i := range news {
			slot := byte(0xFF)
			if pos := tokens - news + i; i < written {
				slot = byte(row[pos/cfg.PageTokens]*cfg.PageTokens + pos%cfg.PageTokens)
			}
			slots = append(slots, slot)
		}
	}
	if !f.csr && rng.IntN(2) == 0 {
		slots = append(slots, 0xFF, 0xFF)
	}
	return table, lengths, fresh, slots
}

// FuzzImport feeds tables of any bytes to the Import functions: they take what the
// model takes and refuse what it refuses, without a panic, and after an error or a
// Free no page is held.
func FuzzImport(f *testing.F) {
	f.Add([]byte{}, []byte{}, []byte{}, []byte{}, uint8(0))
	f.Add([]byte{3, 0, 8, 1}, []byte{4, 0}, []byte{2, 1}, []byte{0, 1, 4}, uint8(1))
	f.Add([]byte{0xFF, 0x80, 0x7F, 8, 9}, []byte{0xFF, 5, 0x80}, []byte{0x7F, 0, 1}, []byte{0xFF, 0xFE}, uint8(2))
	f.Add([]byte{0, 1, 2, 3}, []byte{0, 2, 4}, []byte{3, 4}, []byte{1, 2}, uint8(0x52))
	rng := rand.New(rand.NewPCG(31, 8))
	for kind := range forms {
		for range 3 {
			cfg := lent()
			cfg.PageTokens = 1 + rng.IntN(5)
			table, lengths, fresh, slots := aBatch(rng, cfg, &forms[kind])
			f.Add(table, lengths, fresh, slots, uint8((cfg.PageTokens-1)<<4|kind))
		}
	}
	f.Fuzz(func(t *testing.T, table, lengths, fresh, slots []byte, kind uint8) {
		cfg := lent()
		cfg.PageTokens = 1 + int(kind>>4)
		checkImport(t, cfg, &forms[int(kind&15)%len(forms)], table, lengths, fresh, slots)
	})
}

// TestSpread: the model reads bytes as the numbers that the functions are given.
func TestSpread(t *testing.T) {
	for v := range 256 {
		b := []byte{byte(v)}
		signed, unsigned := int(spread[int32](b, 32)[0]), int(spread[uint32](b, 32)[0])
		clip := func(x int) int {
			if x > math.MaxInt32-8 {
				return far
			} else if x < math.MinInt32+8 {
				return -far
			}
			return x
		}
		require.Equal(t, clip(signed), plainly(b, false)[0], v)
		require.Equal(t, clip(unsigned), plainly(b, true)[0], v)
	}
}
