package mla

import (
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/kvpaged"
)

// TopKPer says what a list of lengths is indexed by.
type TopKPer uint8

const (
	// TopKAuto tells by the number of lengths: B is per sequence, T per token.
	// Where T equals B it is per sequence.
	TopKAuto TopKPer = iota
	// TopKPerSequence: all new tokens of a sequence share a length, as in
	// MAX's and FlashMLA's decode.
	TopKPerSequence
	// TopKPerToken: one length per new token, as in sparse prefill.
	TopKPerToken
)

// Sparse selects, for each new token, the keys it attends over by a list of
// indices. Order matters for rounding only; an index that is listed twice
// counts twice; the mask plays no part; rows that are not listed are not read.
type Sparse struct {
	// Indices [T, Stride]. A physical index is block*PageTokens + offset in the
	// call's layer of the cache, valid in [0, Pages*PageTokens). A logical one
	// (Logical) is a position of the sequence, its new tokens included, valid if
	// its page is mapped. -1 means none; any other value that is not valid is
	// taken as none as well, and counted in Ignored. A valid position after the
	// token's own is none too, by causality, and not counted. An int32 names 2^31
	// rows: physical indices into a cache of more are an error (ErrShape).
	Indices []int32
	Stride  int
	// Lengths says how many entries of a list count; nil means Stride. What lies
	// past the length is not looked at. A negative length is 0, one beyond
	// Stride is Stride.
	Lengths    []int32
	LengthsPer TopKPer
	Logical    bool

	// FoldShared promises that all new tokens of a sequence have the same list,
	// so that its rows are gathered once. It is an error if they differ.
	FoldShared bool

	// Extra is a second cache whose selected rows join the same softmax, after
	// those of the first; nil means none.
	Extra *Extra

	// Ignored is set by the call: entries within the lengths of either list that
	// were neither -1 nor valid.
	Ignored int64
}

// Extra selects rows of a second cache, with a page size, format and scales of
// its own. Its rows have as many values as those of the first. Its indices are
// physical.
type Extra struct {
	Cache      *kvpaged.Cache
	Layer      int
	Indices    []int32 // [T, Stride]
	Stride     int
	Lengths    []int32 // nil, [B] or [T]
	LengthsPer TopKPer
}

// list is one index list of every token, checked.
type list struct {
	name     string
	indices  []int32
	stride   int
	lengths  []int32
	perToken bool
	logical  bool
	source   source
}

// source is where the rows of a list lie: the pages of a cache, or plain rows.
type source struct {
	pool   kvpaged.PoolView
	dense  Rows
	plain  bool // dense
	leased bool // pool
	rows   int
}

// of is the entries of token t that count.
func (l *list) of(t, seq int) []int32 {
	n := l.stride
	if l.lengths != nil {
		at := seq
		if l.perToken {
			at = t
		}
		n = min(max(int(l.lengths[at]), 0), n)
	}
	return l.indices[t*l.stride : t*l.stride+n]
}

// check tests a list against the batch of t tokens in b sequences.
func (l *list) check(per TopKPer, t, b int) error {
	switch {
	case l.stride < 0 || l.stride > maxContext:
		return fmt.Errorf("%w: %s has stride %d, want 0 to %d", ErrShape, l.name, l.stride, maxContext)
	case len(l.indices) != t*l.stride:
		return fmt.Errorf("%w: %s has %d values, want T*stride = %d*%d", ErrShape, l.name, len(l.indices), t, l.stride)
	case per > TopKPerToken:
		return fmt.Errorf("%w: %s: LengthsPer %d is unknown", ErrShape, l.name, per)
	case l.lengths == nil:
		return nil
	case per == TopKAuto && len(l.lengths) == b:
	case per == TopKAuto && len(l.lengths) == t:
		l.perToken = true
	case per == TopKAuto:
		return fmt.Errorf("%w: %s has %d lengths, want B = %d or T = %d", ErrShape, l.name, len(l.lengths), b, t)
	case per == TopKPerSequence && len(l.lengths) != b:
		return fmt.Errorf("%w: %s has %d lengths, want one per sequence = %d", ErrShape, l.name, len(l.lengths), b)
	case per == TopKPerToken && len(l.lengths) != t:
		return fmt.Errorf("%w: %s has %d lengths, want one per token = %d", ErrShape, l.name, len(l.lengths), t)
	case per == TopKPerToken:
		l.perToken = true
	}
	return nil
}

// checkReach tests that the indices of a list can name every one of so many rows.
func (l *list) checkReach(rows int) error {
	const reach = math.MaxInt32 + 1
	if rows > reach {
		return fmt.Errorf("%w: %s are physical rows as int32, which reach 2^31 = %d of them, but there are %d", ErrShape, l.name, reach, rows)
	}
	return nil
}

// physicalRows is how many rows a layer of a cache has for indices to name.
func physicalRows(cache *kvpaged.Cache) int {
	c := cache.Config()
	return c.Pages * c.PageTokens
}

// checkFolded tests that the new tokens of every sequence have equal lists, up
// to their lengths.
func (p *Plan) checkFolded(l *list) error {
	for b := range p.call.nseq {
		t0, t1 := int(p.call.Offsets[b]), int(p.call.Offsets[b+1])
		for t := t0 + 1; t < t1; t++ {
			first, other := l.of(t0, b), l.of(t, b)
			if len(first) != len(other) {
				return fmt.Errorf("%w: FoldShared: %s of token %d has length %d, that of token %d has %d", ErrShape, l.name, t0, len(first), t, len(other))
			}
			for i, x := range first {
				if other[i] != x {
					return fmt.Errorf("%w: FoldShared: %s[%d] is %d for token %d and %d for token %d", ErrShape, l.name, i, x, t0, other[i], t)
				}
			}
		}
	}
	return nil
}

// selects tells whether an entry of a block's list selects a row, and if not, whether that is a fault.
func (p *Plan) selects(seg *segment, l *list, x int32) (some, fault bool) {
	row := int(x)
	switch {
	case row == -1:
		return false, false
	case row < 0 || row >= l.source.rows && !l.logical,
		l.logical && (row >= seg.keys || !p.views[seg.seq].Mapped(row)):
		return false, true
	}
	// A row after the last of the tokens that share the list is not there yet: none, and no fault.
	return !l.logical || row < seg.pos0+seg.n, false
}

// gather widens the rows that entries of a block's list select into the tile, without holes, and says how many there are and which entries they
// were. Dropping the entries that are none changes no bit: they would be masked
// places of the tile, which add nothing.
func (p *Plan) gather(s *scratch, seg *segment, l *list, entries []int32) (keys int, ignored int64) {
	width, ld := p.cfg.Width(), stride(p.cfg.Width())
	for _, x := range entries {
		some, fault := p.selects(seg, l, x)
		if fault {
			ignored++
		}
		if some {
			s.picked[keys] = x
			keys++
		}
	}
	picked := s.picked[:keys]
	switch {
	case keys == 0:
	case l.logical:
		p.views[seg.seq].Gather(s.tile, ld, picked)
	case l.source.plain:
		for i, row := range picked {
			l.source.dense.Widen(s.tile[i*ld:], int(row)*width, width)
		}
	default:
		l.source.pool.Gather(s.tile, ld, picked)
	}
	return keys, ignored
}

// ahead is the rows of the tile that begins with these entries. What is none is
// passed over.
func (l *list) ahead(entries []int32, view *kvpaged.View) *ahead {
	entries = entries[:min(len(entries), tileKeys)]
	switch {
	case l.logical:
		return &ahead{view: view, list: entries, n: len(entries)}
	case l.source.plain:
		return nil
	}
	return &ahead{pool: &l.source.pool, list: entries, n: len(entries)}
}

// attendSparse computes one partition of the lists of block b: the
// partitions of the second cache follow those of the first.
func (p *Plan) attendSparse(s *scratch, b *block, part int, res result) {
	a, c := &p.abs, &p.cfg
	seg := &a.segs[b.seg]
	rows, first := b.rows, b.row0-seg.wave0*c.Heads

	of := &p.call.lists[0]
	if n := partitions(len(of.of(seg.tok0, seg.seq))); part >= n {
		of, part = &p.call.lists[1], part-n
	}
	entries := of.of(seg.tok0, seg.seq)
	entries = entries[part*partitionKeys : min((part+1)*partitionKeys, len(entries))]
	var ignored int64
	for t0 := 0; t0 < len(entries); t0 += tileKeys {
		t, bad := p.absorbedTile(seg, first, rows, res), int64(0)
		if list := entries[t0:min(t0+tileKeys, len(entries))]; t.pairs {
			bad = p.gatherPairs(s, &t, seg, of, list)
		} else {
			t.keys, bad = p.gather(s, seg, of, list)
			t.x, t.v = s.tile, s.tile
		}
		ignored += bad
		if t.keys == 0 {
			continue
		}
		for j := range rows {
			s.lo[j], s.hi[j] = 0, int32(t.keys)
		}
		t.next = of.ahead(entries[min(t0+tileKeys, len(entries)):], &p.views[seg.seq])
		if of.logical && seg.n > 1 {
			t.positions, t.pos0, t.row0, t.heads = s.picked[:t.keys], seg.pos0, first, c.Heads
		}
		s.attend(&t, c.Scale)
	}
	if first == 0 { // once for each token, however many blocks its heads make
		a.ignored.Add(ignored * int64(seg.n))
	}
}

// partitions is how many partitions n entries take.
func partitions(n int) int { return (n + partitionKeys - 1) / partitionKeys }
