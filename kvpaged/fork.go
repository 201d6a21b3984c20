package kvpaged

import (
	"fmt"
	"slices"
)

// Fork returns a new sequence whose tokens are the first n committed ones of s, in
// all layers. Pages that these fill are shared: both sequences hold them, and they
// are free when neither does. The page that they fill in part, if there is one, is
// copied, rows and scales as they are stored, so that what one sequence appends is
// never the other's; that takes one page, and none if n is a multiple of
// PageTokens. Reserved slots stay with s, and nothing that is not committed is in
// the fork.
//
// s may have readers and a writer meanwhile; calls that change it, Free, Truncate
// and Commit among them, come wholly before or wholly after.
//
// ErrRange if n is negative or more than the committed tokens, ErrFull if no page
// is free for the copy, which then takes nothing. In a cache of Config.Adopted no
// page ever is: there n is a multiple of PageTokens, or ends in a page that is not
// mapped, and is not mapped in the fork either.
func (s *Seq) Fork(n int) (*Seq, error) {
	if err := s.lock(); err != nil {
		return nil, err
	}
	defer s.mu.Unlock()
	if n < 0 || n > s.length {
		return nil, fmt.Errorf("%w: fork of %d tokens, there are %d", ErrRange, n, s.length)
	}
	f := &Seq{c: s.c, length: n}
	full, rest := n/s.c.cfg.PageTokens, n%s.c.cfg.PageTokens
	var err error
	switch {
	case rest == 0:
		f.table, err = s.c.grow(nil, s.table[:full], 0, nil)
	case s.table[full] == hole:
		f.table, err = s.c.grow(nil, s.table[:full], 0, nil)
		f.table = append(f.table, hole)
	default:
		f.table, err = s.c.grow(nil, s.table[:full], 1, &part{s.table[full], rest})
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// part is the first tokens of a page.
type part struct {
	page   int32
	tokens int
}

// separate makes the last page of a sequence its own, where new tokens are about to
// go, and appends n more pages, all or none.
func (s *Seq) separate(n int) error {
	// Whoever reads the old page relies on this sequence to hold it.
	if err := s.unleased(); err != nil {
		return err
	}
	last := len(s.table) - 1
	old, tokens := s.table[last], (s.length+s.reserved)%s.c.cfg.PageTokens
	table, err := s.c.grow(slices.Clone(s.table[:last]), nil, 1+n, &part{old, tokens})
	if err != nil {
		return err
	}
	s.table = table
	s.c.drop([]int32{old})
	return nil
}

// copyPart copies the first tokens of a page to another, in all layers.
func (c *Cache) copyPart(page int32, from *part) {
	for l := range c.cfg.Layers {
		copy(c.rowsAt(page, l, 0, from.tokens), c.rowsAt(from.page, l, 0, from.tokens))
		copy(c.scalesAt(page, l, 0, from.tokens), c.scalesAt(from.page, l, 0, from.tokens))
	}
}
