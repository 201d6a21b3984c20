package kvpaged

import "fmt"

// Rows leave and enter the pool as bytes in two forms: as records, a token's row
// and its scales side by side, which is how engines with interleaved formats
// hold and send them; and as pages. What is not committed never leaves: it may
// be another user's.

// Export returns the records of the committed tokens pos .. pos+n-1 of one layer,
// [n][RowBytes]: the row and, in formats with a second plane, the scales after
// it. So a V41_528Planar cache gives the records of V41_528Interleaved, and a
// plain one its rows. ErrPage if one of them is in a page that is not mapped.
func (s *Seq) Export(layer, pos, n int) ([]byte, error) {
	v, err := s.leaseCommitted(layer, pos, n)
	if err != nil {
		return nil, err
	}
	defer v.Release()
	size := s.c.RowBytes()
	records := make([]byte, n*size)
	for i := range n {
		s.c.exportRecord(records[i*size:(i+1)*size], &v, pos+i)
	}
	return records, nil
}

// exportRecord fills a record.
func (c *Cache) exportRecord(record []byte, v *View, pos int) {
	page, slot := v.place(pos)
	n := copy(record, c.rowsAt(page, v.layer, slot, 1))
	c.copyScales(record[n:], c.scalesAt(page, v.layer, slot, 1))
}

// copyScales copies the scales of one token; padding is zero, whatever it was.
func (c *Cache) copyScales(dst, src []byte) {
	n := len(src) - formats[c.cfg.Format].pad
	copy(dst, src[:n])
	clear(dst[n:])
}

// Import stores records [n][RowBytes], as Export returns them, at positions pos
// .. pos+n-1 of one layer, which must be reserved. Codes and scales are taken as
// they are. It is a writer, as WriteRows is.
func (s *Seq) Import(layer, pos int, records []byte) error {
	if err := s.usable(); err != nil {
		return err
	}
	size := s.c.RowBytes()
	if len(records)%size != 0 {
		return fmt.Errorf("%w: records has %d bytes, want a multiple of RowBytes = %d", ErrShape, len(records), size)
	}
	n := len(records) / size
	v, err := s.leaseReserved(layer, pos, n)
	if err != nil {
		return err
	}
	defer v.Release()
	for i := range n {
		s.c.importRecord(&v, pos+i, records[i*size:(i+1)*size])
	}
	return nil
}

// importRecord stores a record.
func (c *Cache) importRecord(v *View, pos int, record []byte) {
	page, slot := v.place(pos)
	n := copy(c.rowsAt(page, v.layer, slot, 1), record)
	c.copyScales(c.scalesAt(page, v.layer, slot, 1), record[n:])
}

// ExportPage returns a copy of page i of the page table in one layer, laid out as
// the format says, [PageTokens][row] [PageTokens][scales] and zeros up to the
// size of a page (a second plane lies here, too, if the cache has it in
// Config.Scales). Rows and scales of slots that are not committed are zero, and
// so is padding. ErrPage if the page is not mapped.
func (s *Seq) ExportPage(layer, i int) ([]byte, error) {
	v, err := s.Lease(layer, 0)
	if err != nil {
		return nil, err
	}
	defer v.Release()
	tokens := s.c.cfg.PageTokens
	if i < 0 || i >= s.c.pagesFor(v.Len()) {
		return nil, fmt.Errorf("%w: page %d of the %d that hold %d committed tokens", ErrRange, i, s.c.pagesFor(v.Len()), v.Len())
	}
	first := i * tokens
	if !v.Mapped(first) {
		return nil, fmt.Errorf("%w: page %d is not mapped", ErrPage, i)
	}
	return s.c.exportPage(v.table[i], layer, min(tokens, v.Len()-first)), nil
}

// exportPage copies the first n tokens of a page.
func (c *Cache) exportPage(page int32, layer, n int) []byte {
	row, scales := c.geo.rows.token, c.geo.scales.token
	plane1 := row * c.cfg.PageTokens
	block := make([]byte, max(c.geo.block, plane1+scales*c.cfg.PageTokens))
	copy(block, c.rowsAt(page, layer, 0, n))
	for slot := range n {
		at := plane1 + slot*scales
		c.copyScales(block[at:at+scales], c.scalesAt(page, layer, slot, 1))
	}
	return block
}
