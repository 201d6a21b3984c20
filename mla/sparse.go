package mla

import (
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/internal/forms"
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
	// token's own is invalid for it too, by causality, and not counted. An int32 names
	// 2^31 rows: physical indices into a cache of more are an error (ErrShape).
	Indices []int32
	Stride  int // entries of a list; those that count are bounded by Limits.Context
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

// list is one index list of every token, as it is given.
type list struct {
	name    string
	forms   *forms.Lists
	per     TopKPer
	lengths []int32
}

// check tests a list against a batch of t tokens in b sequences.
func (l *list) check(t, b int) error {
	f := l.forms
	switch {
	case f.Stride < 0 || f.Stride > maxContext:
		return fmt.Errorf("%w: %s has stride %d, want 0 to %d", ErrShape, l.name, f.Stride, maxContext)
	case len(f.Indices) != t*f.Stride:
		return fmt.Errorf("%w: %s has %d values, want T*stride = %d*%d", ErrShape, l.name, len(f.Indices), t, f.Stride)
	case l.per > TopKPerToken:
		return fmt.Errorf("%w: %s: LengthsPer %d is unknown", ErrShape, l.name, l.per)
	case l.lengths == nil:
		return nil
	case l.per == TopKAuto && len(l.lengths) == b:
	case l.per == TopKAuto && len(l.lengths) == t:
		f.PerToken = true
	case l.per == TopKAuto:
		return fmt.Errorf("%w: %s has %d lengths, want B = %d or T = %d", ErrShape, l.name, len(l.lengths), b, t)
	case l.per == TopKPerSequence && len(l.lengths) != b:
		return fmt.Errorf("%w: %s has %d lengths, want one per sequence = %d", ErrShape, l.name, len(l.lengths), b)
	case l.per == TopKPerToken && len(l.lengths) != t:
		return fmt.Errorf("%w: %s has %d lengths, want one per token = %d", ErrShape, l.name, len(l.lengths), t)
	case l.per == TopKPerToken:
		f.PerToken = true
	}
	f.Lengths = l.lengths
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

// checkShared tests that the new tokens of every sequence have equal lists, up to their lengths.
func (l *list) checkShared(b *Batch) error {
	for seq := range len(b.Offsets) - 1 {
		t0, t1 := int(b.Offsets[seq]), int(b.Offsets[seq+1])
		for t := t0 + 1; t < t1; t++ {
			first, other := l.forms.Of(t0, seq), l.forms.Of(t, seq)
			if len(first) != len(other) {
				return &SeqError{seq, fmt.Errorf("%w: FoldShared: %s of token %d has length %d, that of token %d has %d", ErrShape, l.name, t0, len(first), t, len(other))}
			}
			for i, x := range first {
				if other[i] != x {
					return &SeqError{seq, fmt.Errorf("%w: FoldShared: %s[%d] is %d for token %d and %d for token %d", ErrShape, l.name, i, x, t0, other[i], t)}
				}
			}
		}
	}
	return nil
}

// checkLength tests that no list is longer than the workspace has room to merge.
func (l *list) checkLength(b *Batch, most int) error {
	for seq := range len(b.Offsets) - 1 {
		for t := int(b.Offsets[seq]); t < int(b.Offsets[seq+1]) && l.forms.Stride > most; t++ {
			if n := len(l.forms.Of(t, seq)); n > most {
				return &SeqError{seq, fmt.Errorf("%w: %s of token %d has %d entries, a workspace of this Limits.Context merges %d: Context must be %d", ErrLimit, l.name, t, n, most, n)}
			}
		}
	}
	return nil
}

// checkLists tests the index lists of the call and readies them.
func (w *Workspace) checkLists() error {
	r := &w.run
	b, sp := &r.batch, r.batch.Sparse
	if sp == nil {
		return nil
	}
	c := &r.call
	c.Shared, c.Sparse = sp.FoldShared, 1
	c.Lists[0] = forms.Lists{Indices: sp.Indices, Stride: sp.Stride, Logical: sp.Logical}
	lists := [2]list{{"Sparse.Indices", &c.Lists[0], sp.LengthsPer, sp.Lengths}}
	if x := sp.Extra; x != nil {
		if x.Cache == nil {
			return fmt.Errorf("%w: Sparse.Extra.Cache is nil", ErrShape)
		}
		if err := checkCache("Sparse.Extra", x.Cache, x.Layer, r.cfg); err != nil {
			return err
		}
		c.Sparse = 2
		c.Lists[1] = forms.Lists{Indices: x.Indices, Stride: x.Stride}
		lists[1] = list{"Extra.Indices", &c.Lists[1], x.LengthsPer, x.Lengths}
	}
	for i := range lists[:c.Sparse] {
		l := &lists[i]
		if err := l.check(r.tokens, len(b.Offsets)-1); err != nil {
			return err
		}
		if !l.forms.Logical {
			if err := l.checkReach(r.rowsOf(i)); err != nil {
				return err
			}
		}
		if err := l.checkLength(b, w.forms.Places()); err != nil {
			return err
		}
		if !sp.FoldShared {
			continue
		}
		if err := l.checkShared(b); err != nil {
			return err
		}
	}
	return nil
}

// rowsOf is how many rows there are for the indices of physical list i to name.
func (r *run) rowsOf(i int) int {
	cache := r.batch.Cache
	if i == 1 {
		cache = r.batch.Sparse.Extra.Cache
	}
	if cache == nil {
		return r.plain.Len() / r.cfg.Width()
	}
	c := cache.Config()
	return c.Pages * c.PageTokens
}

// leasePools leases the pages that physical indices point into.
func (w *Workspace) leasePools() error {
	r := &w.run
	b, c := &r.batch, &r.call
	for i := range c.Sparse {
		l := &c.Lists[i]
		cache, layer, name := b.Cache, b.Layer, "Sparse.Indices"
		if i == 1 {
			cache, layer, name = b.Sparse.Extra.Cache, b.Sparse.Extra.Layer, "Extra.Indices"
		}
		switch {
		case l.Logical:
		case cache == nil:
			l.Plain, l.Rows = r.plain, r.plain.Len()/r.cfg.Width()
		default:
			v, err := cache.Lease(layer)
			if err != nil {
				return fmt.Errorf("mla: %s: %w", name, err)
			}
			r.pools[i] = v
			l.Pool, l.Rows = &r.pools[i], v.Rows()
		}
	}
	return nil
}
