package kvpaged

import (
	"fmt"
	"slices"
)

// hole is the entry of a page table where no page is mapped.
const hole = -1

// maxPages bounds the pages of a pool, whose books take 20 bytes a page of the
// heap, so that they cannot exceed a machine that holds the arena.
const maxPages = 1 << 26

// pool counts who holds which page. The lock of the cache guards it. Every
// method costs what the pages it is given cost, whatever the size of the pool.
type pool struct {
	pages []page
	free  []int32 // a stack
	lent  bool    // pages belong to another allocator, none is ever free
}

type page struct {
	refs    int  // entries of page tables that name it
	dirty   bool // may hold something else than zeros
	writing bool // a lease writes into it, or it is being filled
	seen    bool // in the table that distinct is looking at
}

func newPool(n int, lent, dirty bool) pool {
	p := pool{pages: make([]page, n), lent: lent}
	for i := range p.pages {
		p.pages[i] = page{dirty: dirty}
	}
	if !lent {
		p.free = make([]int32, n)
		for i := range p.free {
			p.free[i] = int32(n - 1 - i) // so that page 0 goes first
		}
	}
	return p
}

// take appends n free pages to a table, or none and returns ErrFull. The pages
// are marked as written until the caller has filled them.
func (p *pool) take(table []int32, n int) ([]int32, error) {
	if n > len(p.free) {
		if p.lent {
			return table, fmt.Errorf("%w: %d more pages needed, and the pages are another allocator's (Config.Adopted): they come through Adopt and Import",
				ErrFull, n)
		}
		return table, fmt.Errorf("%w: %d more pages needed, %d of %d free", ErrFull, n, len(p.free), len(p.pages))
	}
	for range n {
		last := len(p.free) - 1
		id := p.free[last]
		p.free = p.free[:last]
		p.pages[id].refs = 1
		p.pages[id].writing = true
		table = append(table, id)
	}
	return table, nil
}

// hold adds a reference to every page of a table.
func (p *pool) hold(table []int32) {
	for _, id := range table {
		if id != hole {
			p.pages[id].refs++
		}
	}
}

// drop is the opposite of hold; a page that nobody holds is free again.
func (p *pool) drop(table []int32) {
	for _, id := range table {
		if id == hole {
			continue
		}
		p.pages[id].refs--
		if p.pages[id].refs == 0 && !p.lent {
			p.free = append(p.free, id)
		}
	}
}

// alone tests that the pages of new tokens have one holder.
func (p *pool) alone(table []int32) error {
	for _, id := range table {
		if n := p.pages[id].refs; n != 1 {
			return fmt.Errorf("%w: page %d, where new tokens go, is held %d times", ErrShared, id, n)
		}
	}
	return nil
}

// distinct tests that no two entries of a table are the same page.
func (p *pool) distinct(table []int32) error {
	var err error
	n := 0
	for ; n < len(table) && err == nil; n++ {
		id := table[n]
		if id == hole {
			continue
		}
		if p.pages[id].seen {
			err = fmt.Errorf("%w: entries %d and %d are both page %d", ErrPage, slices.Index(table, id), n, id)
		}
		p.pages[id].seen = true
	}
	for _, id := range table[:n] {
		if id != hole {
			p.pages[id].seen = false
		}
	}
	return err
}

// idle tests that nobody is writing into the pages of a table.
func (p *pool) idle(table []int32) error {
	for _, id := range table {
		if id != hole && p.pages[id].writing {
			return fmt.Errorf("%w: page %d is being written", ErrBusy, id)
		}
	}
	return nil
}

func (p *pool) setWriting(table []int32, on bool) {
	for _, id := range table {
		p.pages[id].writing = on
	}
}
