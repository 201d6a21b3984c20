package kvpaged_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// traffic is two caches whose records are alike, with pages of other sizes, in other
// orders, and sequences of both, beside what each must hold: records of all layers,
// made by the definitions of the formats.
type traffic struct {
	rng    *rand.Rand
	caches [2]memory
	seqs   []*tracked
	size   int // of a record
}

type tracked struct {
	*kvpaged.Seq
	in     int        // which cache
	tokens [][][]byte // [layer][token] record
}

// twins are formats whose records are the same bytes.
var twins = map[kvpaged.Format]kvpaged.Format{
	kvpaged.V41_528Interleaved: kvpaged.V41_528Planar, kvpaged.V41_528Planar: kvpaged.V41_528Interleaved,
	kvpaged.V41FP4_288Interleaved: kvpaged.V41FP4_288Planar, kvpaged.V41FP4_288Planar: kvpaged.V41FP4_288Interleaved,
}

func newTraffic(t *testing.T, format kvpaged.Format, shape uint16, seed uint64) *traffic {
	x := &traffic{rng: rand.New(rand.NewPCG(seed, 9))}
	layers, width := 1+int(shape&1), 1+int(shape>>1&15)
	for i := range x.caches {
		cfg := kvpaged.Config{Layers: layers, Width: width, PageTokens: 1 + int(shape>>(5+2*i)&3), Pages: 4 + int(shape>>9&3),
			Order: kvpaged.Order(shape >> (11 + i) & 1)}
		f := format
		if twin, ok := twins[f]; ok && i == 1 && shape>>13&1 == 1 {
			f = twin
		}
		cfg = in(f, cfg)
		if f == kvpaged.FP8Token {
			cfg.Group = 1 + int(shape>>14)
		}
		x.caches[i] = newMemory(t, cfg, f == kvpaged.FP8Token && (int(shape>>13)+i)&1 == 1)
	}
	x.size = x.caches[0].RowBytes()
	return x
}

// record is how a record comes back: V4_584 has a byte of padding, which is zero.
func (x *traffic) record(b []byte) []byte {
	b = append([]byte{}, b...)
	if x.caches[0].cfg.Format == kvpaged.V4_584 {
		b[len(b)-1] = 0
	}
	return b
}

// step does what op says, to sequences and tokens that chance chooses.
func (x *traffic) step(t *testing.T, op byte) {
	t.Helper()
	if len(x.seqs) == 0 || op%16 == 15 && len(x.seqs) < 6 {
		in := x.rng.IntN(2)
		x.seqs = append(x.seqs, &tracked{newSeq(t, x.caches[in].Cache), in, make([][][]byte, x.caches[in].cfg.Layers)})
		return
	}
	s := x.seqs[x.rng.IntN(len(x.seqs))]
	switch op % 8 {
	case 0, 1:
		x.write(t, s, 1+x.rng.IntN(5))
	case 2:
		x.bring(t, s, x.random(s, x.rng.IntN(4)))
	case 3, 4:
		x.move(t, x.seqs[x.rng.IntN(len(x.seqs))], s)
	case 5:
		n := x.rng.IntN(s.Len() + 1)
		require.NoError(t, s.Truncate(n))
		for l := range s.tokens {
			s.tokens[l] = s.tokens[l][:n:n]
		}
	case 6:
		x.fork(t, s)
	case 7:
		if op%16 == 7 {
			x.part(t, s)
			return
		}
		require.NoError(t, s.Free())
		for i := range x.seqs {
			if x.seqs[i] == s {
				x.seqs = append(x.seqs[:i], x.seqs[i+1:]...)
				break
			}
		}
	}
}

// reserve makes room, or reports that there is none.
func (x *traffic) reserve(t *testing.T, s *tracked, n int) bool {
	t.Helper()
	err := s.Reserve(n)
	if errors.Is(err, kvpaged.ErrFull) {
		return false
	}
	require.NoError(t, err)
	return true
}

// write appends n tokens of float32 rows.
func (x *traffic) write(t *testing.T, s *tracked, n int) {
	t.Helper()
	if !x.reserve(t, s, n) {
		return
	}
	cfg, at := &x.caches[s.in].cfg, s.Len()
	for l := range s.tokens {
		values := rows(x.rng, n, cfg.Width)
		require.NoError(t, s.WriteRows(l, at, values))
		for i := range n {
			row, scales := encoded(*cfg, values[i*cfg.Width:(i+1)*cfg.Width])
			s.tokens[l] = append(s.tokens[l], append(row, scales...))
		}
	}
	require.NoError(t, s.Commit(n))
}

// random is records of n tokens, [layer][n] of any bytes.
func (x *traffic) random(s *tracked, n int) [][]byte {
	all := make([][]byte, len(s.tokens))
	for l := range all {
		all[l] = make([]byte, n*x.size)
		for i := range all[l] {
			all[l][i] = byte(x.rng.Uint32())
		}
	}
	return all
}

// bring appends records [layer][n] in two parts, the later one first.
func (x *traffic) bring(t *testing.T, s *tracked, records [][]byte) {
	t.Helper()
	n := len(records[0]) / x.size
	if !x.reserve(t, s, n) {
		return
	}
	at, cut := s.Len(), x.rng.IntN(n+1)
	for l, all := range records {
		require.NoError(t, s.Import(l, at+cut, all[cut*x.size:]))
		require.NoError(t, s.Import(l, at, all[:cut*x.size]))
		for i := range n {
			s.tokens[l] = append(s.tokens[l], x.record(all[i*x.size:(i+1)*x.size]))
		}
	}
	require.NoError(t, s.Commit(n))
}

// move appends some of one sequence's tokens to another, maybe of the other cache.
func (x *traffic) move(t *testing.T, from, to *tracked) {
	t.Helper()
	first := x.rng.IntN(from.Len() + 1)
	n := min(x.rng.IntN(from.Len()-first+1), 6)
	records := make([][]byte, len(from.tokens))
	for l := range records {
		var err error
		records[l], err = from.Export(l, first, n)
		require.NoError(t, err)
	}
	x.bring(t, to, records)
}

// part gives Import records that are not whole, and more than are reserved, and
// leaves reserved slots without what was written there.
func (x *traffic) part(t *testing.T, s *tracked) {
	t.Helper()
	if !x.reserve(t, s, 2) {
		return
	}
	l := x.rng.IntN(len(s.tokens))
	records := x.random(s, 3)[l]
	require.NoError(t, s.Import(l, s.Len()+1, records[:x.size]))
	if cut := x.rng.IntN(2 * x.size); cut%x.size != 0 {
		require.ErrorIs(t, s.Import(l, s.Len(), records[:cut]), kvpaged.ErrShape)
	}
	require.ErrorIs(t, s.Import(l, s.Len(), records), kvpaged.ErrRange)
	require.ErrorIs(t, s.Import(l, s.Len()-1, records[:x.size]), kvpaged.ErrRange)
	require.ErrorIs(t, s.Import(len(s.tokens), s.Len(), records[:x.size]), kvpaged.ErrRange)
	_, err := s.Export(l, s.Len(), 1)
	require.ErrorIs(t, err, kvpaged.ErrRange)
	if x.rng.IntN(2) == 0 {
		require.NoError(t, s.Truncate(s.Len()))
		return
	}
	// The first of the slots keeps what an earlier use of them has left.
	require.NoError(t, s.Import(l, s.Len(), records[:2*x.size]))
	for other := range s.tokens {
		if other != l {
			require.NoError(t, s.Import(other, s.Len(), records[:2*x.size]))
		}
		for i := range 2 {
			s.tokens[other] = append(s.tokens[other], x.record(records[i*x.size:(i+1)*x.size]))
		}
	}
	require.NoError(t, s.Commit(2))
}

func (x *traffic) fork(t *testing.T, s *tracked) {
	t.Helper()
	n := x.rng.IntN(s.Len() + 1)
	f, err := s.Fork(n)
	if errors.Is(err, kvpaged.ErrFull) {
		return
	}
	require.NoError(t, err)
	twin := &tracked{f, s.in, nil}
	for _, of := range s.tokens {
		twin.tokens = append(twin.tokens, of[:n:n])
	}
	x.seqs = append(x.seqs, twin)
}

// check compares every record and every page of every sequence.
func (x *traffic) check(t *testing.T) {
	t.Helper()
	for _, s := range x.seqs {
		m := &x.caches[s.in]
		for l, tokens := range s.tokens {
			require.Equal(t, len(tokens), s.Len())
			got, err := s.Export(l, 0, s.Len())
			require.NoError(t, err)
			var want []byte
			for _, r := range tokens {
				want = append(want, r...)
			}
			requireBytes(t, m.cfg.Format.String(), want, got)
			for i := range s.Pages() {
				if i*m.cfg.PageTokens >= s.Len() {
					continue
				}
				got, err := s.ExportPage(l, i)
				require.NoError(t, err)
				requireBytes(t, m.cfg.Format.String(), pageOf(m.cfg, tokens[i*m.cfg.PageTokens:]), got)
			}
		}
	}
}

// pageOf is a page of the first of these records, as ExportPage gives it.
func pageOf(cfg kvpaged.Config, tokens [][]byte) []byte {
	cfg.Scales = nil
	row, scales, size := planes(cfg)
	page := make([]byte, size)
	for i, r := range tokens[:min(len(tokens), cfg.PageTokens)] {
		copy(page[i*row:], r[:row])
		copy(page[cfg.PageTokens*row+i*scales:], r[row:])
	}
	return page
}

func (x *traffic) run(t *testing.T, ops []byte) {
	t.Helper()
	for _, op := range ops {
		x.step(t, op)
	}
	x.check(t)
	for _, s := range x.seqs {
		require.NoError(t, s.Free())
	}
	for _, m := range x.caches {
		require.Equal(t, m.cfg.Pages, m.FreePages())
		require.NoError(t, m.Close())
	}
}

func TestTraffic(t *testing.T) {
	rounds := 8
	if testing.Short() {
		rounds = 1
	}
	for _, f := range allFormats {
		for round := range rounds {
			rng := rand.New(rand.NewPCG(uint64(f), uint64(round)))
			ops := make([]byte, 60)
			for i := range ops {
				ops[i] = byte(rng.Uint32())
			}
			newTraffic(t, f, uint16(rng.Uint32()), rng.Uint64()).run(t, ops)
		}
	}
}

// FuzzSequence writes, exports, imports, truncates and forks in any order, in any
// format: no panic, and every record and page is what its definition says.
func FuzzSequence(f *testing.F) {
	for i, format := range allFormats {
		f.Add([]byte{0, 15, 3, 6, 0, 5, 7, 3, 2, 6, 1, 4, 23}, uint8(format), uint16(i*4099+77), uint64(i))
	}
	f.Add([]byte{0, 0, 0, 6, 6, 5, 0, 5, 2, 7, 7, 31, 4, 4}, uint8(kvpaged.V41FP4_288Planar), uint16(0xFFFF), uint64(9))
	f.Fuzz(func(t *testing.T, ops []byte, format uint8, shape uint16, seed uint64) {
		newTraffic(t, allFormats[int(format)%len(allFormats)], shape, seed).run(t, ops[:min(len(ops), 200)])
	})
}
