package kvpaged

import (
	"fmt"
	"runtime"
)

// View is a lease of one layer of a sequence: the rows that were committed when
// it was taken and, for the writer, those of the new tokens after them. It is a
// value without heap memory of its own. Copies are the same lease, which is
// released once; after Release nothing that came out of the View may be touched.
//
// The methods are for kernels: several goroutines may use one View, as long as
// none reads a row that another writes, and arguments that are out of range
// panic. In an empty View, one that is zero or released, every position is.
type View struct {
	seq    *Seq
	table  []int32
	layer  int
	length int // committed
	end    int // length and new tokens
}

// Lease takes a lease of a layer. With newTokens > 0 it is that of the one
// writer, whose new tokens take the first reserved slots: ErrBusy if there is a
// writer already, ErrRange if fewer slots are reserved, ErrShared if a page of
// these slots has other holders. With newTokens = 0 it is that of a reader.
//
// While it is out, Free and Truncate of the sequence and Close of the cache
// return ErrBusy, and so does Commit while the lease is the writer's.
func (s *Seq) Lease(layer, newTokens int) (View, error) {
	if err := s.lock(); err != nil {
		return View{}, err
	}
	defer s.mu.Unlock()
	return s.lease(layer, newTokens)
}

// lease is Lease with the sequence locked.
func (s *Seq) lease(layer, newTokens int) (View, error) {
	c := s.c
	if err := c.lock(); err != nil {
		return View{}, err
	}
	defer c.mu.Unlock()
	if err := c.checkLayer(layer); err != nil {
		return View{}, err
	}
	if newTokens < 0 || newTokens > s.reserved {
		return View{}, fmt.Errorf("%w: %d new tokens, %d slots are reserved", ErrRange, newTokens, s.reserved)
	}
	if newTokens == 0 {
		s.readers++
	} else {
		if s.writer {
			return View{}, fmt.Errorf("%w: the sequence is being written", ErrBusy)
		}
		pages := s.newPages(newTokens)
		if err := c.pool.alone(pages); err != nil {
			return View{}, err
		}
		c.pool.setWriting(pages, true)
		s.writer = true
	}
	c.uses++
	return View{s, s.table, layer, s.length, s.length + newTokens}, nil
}

// Release ends the lease. The View is empty then; releasing it again does
// nothing.
func (v *View) Release() {
	if v == nil || v.seq == nil {
		return
	}
	s := v.seq
	s.mu.Lock()
	defer s.mu.Unlock()
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if n := v.end - v.length; n > 0 {
		s.c.pool.setWriting(s.newPages(n), false)
		s.writer = false
	} else {
		s.readers--
	}
	s.c.uses--
	*v = View{}
}

// Len returns the number of committed tokens when the lease was taken.
func (v *View) Len() int {
	if v == nil {
		return 0
	}
	return v.length
}

// Mapped reports whether a position is within the lease and in a page that is
// mapped.
func (v *View) Mapped(pos int) bool {
	return v != nil && pos >= 0 && pos < v.end && v.table[pos/v.seq.c.cfg.PageTokens] != hole
}

// firstHole returns the first of n positions that is not mapped, -1 if all are.
func (v *View) firstHole(pos, n int) int {
	page := v.seq.c.cfg.PageTokens
	for end := pos + n; pos < end; pos += page - pos%page {
		if !v.Mapped(pos) {
			return pos
		}
		if page-pos%page > end-pos { // the sum could overflow
			break
		}
	}
	return -1
}

// nothing reports that n rows are none, and panics if they are some and the View is
// empty.
func (v *View) nothing(n int) bool {
	if n > 0 && (v == nil || v.seq == nil) {
		panicEmpty()
	}
	return n <= 0
}

func panicEmpty() { panic("kvpaged: rows of a lease that is zero or released") }

// place returns the page and slot of a position.
func (v *View) place(pos int) (page int32, slot int) {
	if v != nil && uint(pos) < uint(v.end) {
		tokens := uint(v.seq.c.cfg.PageTokens)
		page, slot = v.table[uint(pos)/tokens], int(uint(pos)%tokens)
		if page != hole {
			return page, slot
		}
	}
	v.nothing(1)
	panic(fmt.Sprintf("kvpaged: position %d is not mapped or not among the %d of the lease", pos, v.end))
}

// run is place with the number of tokens from pos to the end of its page, or of
// the lease.
func (v *View) run(pos int) (page int32, slot, n int) {
	page, slot = v.place(pos)
	return page, slot, min(v.seq.c.cfg.PageTokens-slot, v.end-pos)
}

// Run returns the stored rows from pos to the end of its page, or of the lease,
// without copying, and their number n: len(rows)/n bytes each. In a format with a
// second plane these are the bytes of the first, and Scales has the others.
func (v *View) Run(pos int) (rows []byte, n int) {
	page, slot, n := v.run(pos)
	return v.seq.c.rowsAt(page, v.layer, slot, n), n
}

// Scales returns the bytes in the second plane of the rows that Run returns,
// without copying; they are empty if the format has one plane.
func (v *View) Scales(pos int) []byte {
	page, slot, n := v.run(pos)
	return v.seq.c.scalesAt(page, v.layer, slot, n)
}

// Row returns the stored row of a position without copying, the first of Run.
func (v *View) Row(pos int) []byte {
	page, slot := v.place(pos)
	return v.seq.c.rowsAt(page, v.layer, slot, 1)
}

// Widen reads n rows from pos as float32: row i goes to dst[i*ld:] and is Width
// values long, ld >= Width. Every position must be mapped.
func (v *View) Widen(dst []float32, ld, pos, n int) {
	if v.nothing(n) {
		return
	}
	c := v.seq.c
	t := tile{ld: ld, width: c.cfg.Width}
	for ; n > 0; n -= t.n {
		t.dst, t.n = dst, min(n, tileRows)
		v.locate(&t, pos)
		c.widen(&t)
		pos += t.n
		dst = dst[min(t.n*ld, len(dst)):]
	}
	runtime.KeepAlive(c)
}

// Gather reads the rows of positions as float32: that of positions[i] goes to
// dst[i*ld:] and is Width values long, ld >= Width. Every position must be mapped.
func (v *View) Gather(dst []float32, ld int, positions []int32) {
	if v.nothing(len(positions)) {
		return
	}
	c := v.seq.c
	t := tile{ld: ld, width: c.cfg.Width}
	for len(positions) > 0 {
		t.dst, t.n = dst, min(len(positions), tileRows)
		v.locateAt(&t, positions)
		c.widen(&t)
		positions = positions[t.n:]
		dst = dst[min(t.n*ld, len(dst)):]
	}
	runtime.KeepAlive(c)
}

// locate puts the rows from pos on into a tile.
func (v *View) locate(t *tile, pos int) {
	for i := 0; i < t.n; {
		page, slot, rows := v.run(pos + i)
		for end := min(i+rows, t.n); i < end; i++ {
			v.seq.c.locate(t, i, page, v.layer, slot)
			slot++
		}
	}
}

// locateAt puts the rows of positions into a tile.
func (v *View) locateAt(t *tile, positions []int32) {
	for i, pos := range positions[:t.n] {
		page, slot := v.place(int(pos))
		v.seq.c.locate(t, i, page, v.layer, slot)
	}
}

// Write stores one row, float32 [Width], at the position of a new token, rounded
// as the format says.
func (v *View) Write(pos int, row []float32) {
	v.nothing(1)
	c := v.seq.c
	if pos < v.length || len(row) != c.cfg.Width {
		panic(fmt.Sprintf("kvpaged: write of %d values at %d, want %d at a position from %d", len(row), pos, c.cfg.Width, v.length))
	}
	page, slot := v.place(pos)
	c.cfg.Format.encode(c.rowsAt(page, v.layer, slot, 1), c.scalesAt(page, v.layer, slot, 1), row, &c.cfg)
	runtime.KeepAlive(c)
}
