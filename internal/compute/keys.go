package compute

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
)

// View is a lease of the rows of a sequence.
type View = *kvpaged.View

// Keys are the keys and values of a segment, at absolute places: exactly one of View, List and
// Dense.
type Keys struct {
	View  View // place = position; the value is the first Cols values of a row
	List  *List
	Dense *Dense
}

// List is an index list: place i is the row that Entries[i] selects. Its value is the first Cols
// values of the row.
type List struct {
	Entries []int32

	// Logical entries are positions of View below Keys, of which those from Seen on are not there
	// yet for any token that shares the list.
	View       View
	Keys, Seen int

	// Physical entries are rows of Pool, or of Plain, rows of Width values one after the other.
	Pool  *kvpaged.PoolView
	Plain fp8.Rows
	Width int
	Rows  int
}

// selects tells whether entry x selects a row, and if not, whether it is to be counted as invalid:
// -1 is not, nor is a position that is valid but later than every token.
func (l *List) selects(x int32) (selected, invalid bool) {
	row := int(x)
	switch {
	case row == -1:
		return false, false
	case l.View != nil && (row < 0 || row >= l.Keys || !l.View.Mapped(row)),
		l.View == nil && (row < 0 || row >= l.Rows):
		return false, true
	}
	return l.View == nil || row < l.Seen, false
}

// picked are the places of a tile of a list.
type picked struct {
	n       int     // places that are left
	entries []int32 // [n]
	masked  []int32 // places among them that hold no row
	invalid int64   // entries to count
}

// pick drops aligned units of places without a row, which changes no bit: they would be masked
// places, which add nothing. entries and masked are its memory.
func (l *List) pick(from, to, unit int, entries, masked []int32) picked {
	p := picked{entries: entries, masked: masked[:0]}
	for ; from < to; from += unit {
		before, found := len(p.masked), false
		group := l.Entries[from:min(from+unit, to)]
		for i, x := range group {
			selected, invalid := l.selects(x)
			if invalid {
				p.invalid++
			}
			if !selected {
				p.masked = append(p.masked, int32(p.n+i))
			}
			found = found || selected
			entries[p.n+i] = x
		}
		if !found {
			p.masked = p.masked[:before]
			continue
		}
		p.n += len(group)
	}
	p.entries = entries[:p.n]
	return p
}

// Dense are the keys and values of one head, rows that lie ready. Place i has its key at element
// KeyAt + i*LdK of K and its value at ValueAt + i*LdV of V.
type Dense struct {
	K, V                     fp8.Rows
	KeyAt, LdK, ValueAt, LdV int

	// Of expanded rows, in the layout of their compute (Compute.Head): Base is the place of the
	// first one.
	expanded    bool
	k, cols     int
	Base        int
	interleaved []uint16 // in place of V: [places/2][Cols][2], LdV apart
}
