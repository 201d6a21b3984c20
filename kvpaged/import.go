package kvpaged

import (
	"fmt"
	"math"
	"slices"
)

// Integer lists the types that page tables and lengths may have.
type Integer interface {
	~int | ~int32 | ~int64 | ~uint32 | ~uint64
}

// ImportLookup makes the sequences of a batch in MAX's form, in a cache of
// Config.Adopted, as the other Import functions do (else ErrOwned):
//
//	lookup     [B, max]  page table, entries -1 and Config.Pages are not mapped
//	lengths    [B]       cached tokens, without the new ones
//	newTokens  [B]       new tokens, whose slots are reserved
//
// All or none: an error names the sequence, and no page is held then. Entries
// past the last token are ignored. ErrPage if a sequence has a page twice. ErrShared if the slot of a new token is in a
// page that another sequence, of the batch or not, holds too: an engine that
// imports every step frees the sequences of the last step first.
func ImportLookup[P, L, N Integer](c *Cache, lookup []P, lengths []L, newTokens []N) ([]*Seq, error) {
	if err := c.adopts(); err != nil {
		return nil, err
	}
	batch, err := readLengths(lengths, newTokens)
	if err != nil {
		return nil, err
	}
	if err := readTables(c, batch, lookup); err != nil {
		return nil, err
	}
	return c.adopt(batch, true)
}

// ImportBlockTable makes the sequences of a batch in vLLM's form:
//
//	table      [B, max]  block_table
//	lengths    [B]       cached tokens, without the new ones
//	newTokens  [B]       new tokens
//	slots      [T]       slot_mapping: page*PageTokens + offset of every new token,
//	                     -1 = do not write; nil if there is none
//
// A slot that is not the one of the table is an error (ErrPage). A token that is
// not to be written gets no slot here either: such tokens must be the last of
// their sequence, and Reserved tells how many are left. A slots longer than T, as
// padded batches have it, ends in -1. vLLM's null block, which stands in a table for
// each page that is out of a window, is a page like any other here: give -1 for it.
// Else as ImportLookup.
func ImportBlockTable[P, L, N Integer](c *Cache, table []P, lengths []L, newTokens []N, slots []int64) ([]*Seq, error) {
	if err := c.adopts(); err != nil {
		return nil, err
	}
	batch, err := readLengths(lengths, newTokens)
	if err != nil {
		return nil, err
	}
	var written [][]int64
	if slots != nil {
		if written, err = readSlots(batch, slots); err != nil {
			return nil, err
		}
	}
	if err := readTables(c, batch, table); err != nil {
		return nil, err
	}
	for b := range written {
		if err := c.checkSlots(&batch[b], written[b]); err != nil {
			return nil, inBatch(b, err)
		}
	}
	return c.adopt(batch, true)
}

// ImportCSR makes the sequences of a batch in FlashInfer's form:
//
//	indptr       [B+1]        pages of sequence b: indices[indptr[b]:indptr[b+1]]
//	indices      [indptr[B]]
//	lastPageLen  [B]          tokens in the last page, new ones included: 1 to
//	                          PageTokens, 0 for a sequence without pages
//	newTokens    [B]          how many of the tokens are new
//
// Else as ImportLookup.
func ImportCSR[P, I, L, N Integer](c *Cache, indptr []P, indices []I, lastPageLen []L, newTokens []N) ([]*Seq, error) {
	if err := c.adopts(); err != nil {
		return nil, err
	}
	if len(indptr) != len(lastPageLen)+1 || len(newTokens) != len(lastPageLen) {
		return nil, fmt.Errorf("%w: indptr has %d values, last_page_len %d, new tokens %d, want B+1, B and B",
			ErrShape, len(indptr), len(lastPageLen), len(newTokens))
	}
	if err := checkPointers(indptr, len(indices)); err != nil {
		return nil, err
	}
	batch := make([]request, len(lastPageLen))
	for b := range batch {
		r, pages := &batch[b], indices[indptr[b]:indptr[b+1]]
		total, err := c.csrTokens(len(pages), toInt(lastPageLen[b]))
		if err == nil {
			r.fresh = toInt(newTokens[b])
			r.cached = total - r.fresh
			err = readTable(c, r, pages)
		}
		if err != nil {
			return nil, inBatch(b, err)
		}
	}
	return c.adopt(batch, true)
}

// toInt is the value of x; what no int64 can be becomes the largest, which is out
// of range wherever it is asked.
func toInt[T Integer](x T) int64 {
	if y := int64(x); (y < 0) == (x < 0) {
		return y
	}
	return math.MaxInt64
}

// readLengths makes requests that have no tables yet.
func readLengths[L, N Integer](lengths []L, newTokens []N) ([]request, error) {
	if len(newTokens) != len(lengths) {
		return nil, fmt.Errorf("%w: %d new lengths for %d cached lengths", ErrShape, len(newTokens), len(lengths))
	}
	batch := make([]request, len(lengths))
	for b := range batch {
		batch[b] = request{cached: toInt(lengths[b]), fresh: toInt(newTokens[b])}
	}
	return batch, nil
}

// readTables reads the page tables of a batch, entries [B, max].
func readTables[P Integer](c *Cache, batch []request, entries []P) error {
	n := max(len(batch), 1)
	if len(entries)%n != 0 || len(batch) == 0 && len(entries) > 0 {
		return fmt.Errorf("%w: page table has %d entries for %d sequences", ErrShape, len(entries), len(batch))
	}
	width := len(entries) / n
	for b := range batch {
		if err := readTable(c, &batch[b], entries[b*width:(b+1)*width]); err != nil {
			return inBatch(b, err)
		}
	}
	return nil
}

// readSlots cuts a slot mapping into those of the sequences and takes the tokens
// that are not to be written out of the requests.
func readSlots(batch []request, slots []int64) ([][]int64, error) {
	written := make([][]int64, len(batch))
	rest := slots
	for b := range batch {
		r := &batch[b]
		if r.fresh < 0 || r.fresh > int64(len(rest)) {
			return nil, inBatch(b, fmt.Errorf("%w: %d new tokens, slot_mapping has %d values left of %d",
				ErrShape, r.fresh, len(rest), len(slots)))
		}
		own := rest[:r.fresh]
		rest = rest[r.fresh:]
		n := 0
		for n < len(own) && own[n] != hole {
			n++
		}
		if at := firstSlot(own[n:]); at >= 0 {
			return nil, inBatch(b, fmt.Errorf("%w: new token %d has no slot, but token %d has", ErrPage, n, n+at))
		}
		written[b] = own[:n]
		r.fresh = int64(n)
	}
	if at := firstSlot(rest); at >= 0 {
		return nil, fmt.Errorf("%w: slot_mapping has slot %d for token %d of %d", ErrShape, rest[at], len(slots)-len(rest)+at, len(slots)-len(rest))
	}
	return written, nil
}

// firstSlot is the index of the first entry that is a slot, -1 if none is.
func firstSlot(slots []int64) int {
	return slices.IndexFunc(slots, func(x int64) bool { return x != hole })
}

// checkSlots compares a slot mapping with the page table.
func (c *Cache) checkSlots(r *request, slots []int64) error {
	page := int64(c.cfg.PageTokens)
	for i, slot := range slots {
		pos := r.cached + int64(i)
		if want := int64(r.table[pos/page])*page + pos%page; slot != want {
			return fmt.Errorf("%w: slot of position %d is %d, the page table has %d", ErrPage, pos, slot, want)
		}
	}
	return nil
}

// checkPointers tests that indptr cuts n indices into rows.
func checkPointers[P Integer](indptr []P, n int) error {
	last := int64(0)
	for b, x := range indptr {
		p := toInt(x)
		if p < last || p > int64(n) || b == 0 && p != 0 {
			return fmt.Errorf("%w: indptr[%d] is %d, want 0 first, then increasing, and at the end the %d of indices", ErrPage, b, x, n)
		}
		last = p
	}
	if last != int64(n) {
		return fmt.Errorf("%w: indptr ends at %d, indices has %d values", ErrPage, last, n)
	}
	return nil
}

// csrTokens is how many tokens are in pages of which the last holds last.
func (c *Cache) csrTokens(pages int, last int64) (int64, error) {
	size := int64(c.cfg.PageTokens)
	if pages == 0 {
		size = 0
	}
	if last < min(size, 1) || last > size {
		return 0, fmt.Errorf("%w: last_page_len is %d in %d pages of %d tokens", ErrRange, last, pages, c.cfg.PageTokens)
	}
	full := int64(max(pages-1, 0))
	if size > 0 && full > (math.MaxInt64-last)/size {
		return 0, fmt.Errorf("%w: %d pages of %d tokens", ErrRange, pages, size)
	}
	return full*size + last, nil
}
