package kvpaged

import (
	"fmt"
	"math"
)

// Adopt makes a sequence of a page table from outside, in a cache of
// Config.Adopted: cached committed tokens, then reserved slots for new ones.
// pages[i] holds tokens [i*PageTokens, (i+1)*PageTokens); -1, and Config.Pages too,
// mean not mapped, which is an error (ErrPage) under a reserved slot only, and so
// is a page that the table has twice. Entries past the last slot are ignored. The
// rows are taken as they are: that the tokens are there and belong to whom the
// sequence is for is known to the allocator alone whose pages they are.
//
// The sequence holds its pages; those that other sequences hold are shared.
// ErrBusy if one is being written, ErrOwned in a cache that owns its pages.
func (c *Cache) Adopt(pages []int32, cached, reserved int) (*Seq, error) {
	if err := c.adopts(); err != nil {
		return nil, err
	}
	r := request{cached: int64(cached), fresh: int64(reserved)}
	if err := readTable(c, &r, pages); err != nil {
		return nil, err
	}
	seqs, err := c.adopt([]request{r}, false)
	if err != nil {
		return nil, err
	}
	return seqs[0], nil
}

// adopts tests that page numbers from outside mean something to the cache. A number
// does not tell whose page it is: in a cache that gives pages out it may have been
// freed, and be another's by now.
func (c *Cache) adopts() error {
	if err := c.lock(); err != nil {
		return err
	}
	defer c.mu.Unlock()
	if !c.cfg.Adopted {
		return fmt.Errorf("%w: page numbers are for caches of Config.Adopted, Seq.Fork shares pages of this one", ErrOwned)
	}
	return nil
}

// request is a sequence to be adopted.
type request struct {
	table         []int32
	cached, fresh int64
}

// readTable checks the lengths of a request and copies the entries that they
// need from a page table.
func readTable[T Integer](c *Cache, r *request, entries []T) error {
	if r.cached < 0 || r.fresh < 0 || r.fresh > math.MaxInt-r.cached {
		return fmt.Errorf("%w: %d cached and %d new tokens", ErrRange, r.cached, r.fresh)
	}
	need := c.pagesFor(int(r.cached + r.fresh))
	if need > len(entries) {
		return fmt.Errorf("%w: %d entries, want %d for %d cached and %d new tokens in pages of %d",
			ErrPage, len(entries), need, r.cached, r.fresh, c.cfg.PageTokens)
	}
	r.table = make([]int32, need)
	firstNew := int(r.cached) / c.cfg.PageTokens
	for i, x := range entries[:need] {
		id := toInt(x)
		switch {
		case id < hole || id > int64(c.cfg.Pages):
			return fmt.Errorf("%w: entry %d is %d, want 0 to %d, or %d or %d for a page that is not mapped",
				ErrPage, i, x, c.cfg.Pages-1, hole, c.cfg.Pages)
		case id == hole || id == int64(c.cfg.Pages):
			r.table[i] = hole
		default:
			r.table[i] = int32(id)
		}
		if r.table[i] == hole && i >= firstNew && r.fresh > 0 {
			return fmt.Errorf("%w: entry %d is not mapped, but new tokens go there", ErrPage, i)
		}
	}
	return nil
}

func inBatch(i int, err error) error {
	return fmt.Errorf("kvpaged: sequence %d of the batch: %w", i, err)
}

// adopt makes the sequences of a batch, all or none. With alone, the pages of new
// tokens must have no other holder once the whole batch is in.
func (c *Cache) adopt(batch []request, alone bool) ([]*Seq, error) {
	seqs := make([]*Seq, len(batch))
	for i, r := range batch {
		seqs[i] = &Seq{c: c, table: r.table, length: int(r.cached), reserved: int(r.fresh)}
	}
	if err := c.lock(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	for i, s := range seqs {
		err := c.pool.distinct(s.table)
		if err == nil {
			err = c.pool.idle(s.table)
		}
		if err != nil {
			return nil, inBatch(i, err)
		}
	}
	for _, s := range seqs {
		c.pool.hold(s.table)
	}
	if !alone {
		return seqs, nil
	}
	for i, s := range seqs {
		if err := c.pool.alone(s.newPages(s.reserved)); err != nil {
			for _, s := range seqs {
				c.pool.drop(s.table)
			}
			return nil, inBatch(i, err)
		}
	}
	return seqs, nil
}
