package kvpaged

import (
	"fmt"
	"math"
	"sync"
)

// Seq is a sequence of tokens in a cache. Its methods may be called from several
// goroutines. One that no Cache made is as one that is freed, and has no cache.
type Seq struct {
	c *Cache

	mu       sync.Mutex // taken before that of the cache
	table    []int32    // as many entries as length+reserved need
	length   int        // committed tokens
	reserved int
	readers  int
	writer   bool
	freed    bool
}

// Cache returns the cache of the sequence.
func (s *Seq) Cache() *Cache {
	if s == nil {
		return nil
	}
	return s.c
}

// Len returns the number of committed tokens.
func (s *Seq) Len() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.length
}

// Reserved returns the number of slots that are reserved after the committed
// tokens.
func (s *Seq) Reserved() int {
	if s == nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reserved
}

// Pages returns a copy of the page table, -1 where no page is mapped.
func (s *Seq) Pages() []int32 {
	if s == nil {
		return []int32{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]int32{}, s.table...)
}

// lock locks a sequence that can be used. The cache may be closed any time after,
// unless something is leased.
func (s *Seq) lock() error {
	if s == nil || s.c == nil {
		return fmt.Errorf("%w: no cache made the sequence", ErrClosed)
	}
	s.mu.Lock()
	err := s.open()
	if err != nil {
		s.mu.Unlock()
	}
	return err
}

// usable tests what lock tests.
func (s *Seq) usable() error {
	err := s.lock()
	if err == nil {
		s.mu.Unlock()
	}
	return err
}

// open is lock's test once the sequence is locked.
func (s *Seq) open() error {
	if s.freed {
		return fmt.Errorf("%w: the sequence is freed", ErrClosed)
	}
	if err := s.c.lock(); err != nil {
		return err
	}
	s.c.mu.Unlock()
	return nil
}

// Reserve adds n slots for new tokens to those that are reserved already, all or
// none: first what is left of the last page, then new pages, which are zero.
// ErrFull when too few are free, ErrPage when the last page is one that Adopt was
// not given.
//
// Where Truncate has left a last page in part that a fork holds too, its tokens are
// copied to a page of this sequence alone, which takes one more; that is ErrBusy
// while a lease is out. In a cache of Config.Adopted no page can be taken for it:
// there it stays shared, and writing is ErrShared.
func (s *Seq) Reserve(n int) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	end := s.length + s.reserved
	if n < 0 || n > math.MaxInt-end {
		return fmt.Errorf("%w: reserve %d slots after %d", ErrRange, n, end)
	}
	more := s.c.pagesFor(end+n) - len(s.table)
	if n > 0 && end%s.c.cfg.PageTokens != 0 {
		switch last := s.table[len(s.table)-1]; {
		case last == hole:
			return fmt.Errorf("%w: reserve %d slots after %d, which is in a page that is not mapped", ErrPage, n, end)
		case !s.c.cfg.Adopted && s.c.shared(last):
			if err := s.separate(more); err != nil {
				return err
			}
			more = 0
		}
	}
	if more > 0 {
		table, err := s.c.grow(s.table, nil, more, nil)
		if err != nil {
			return err
		}
		s.table = table
	}
	s.reserved += n
	return nil
}

// Commit makes the first n reserved slots tokens of the sequence. Every layer of
// them should have been written. ErrBusy while a lease is writing.
func (s *Seq) Commit(n int) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if n < 0 || n > s.reserved {
		return fmt.Errorf("%w: commit %d tokens, %d are reserved", ErrRange, n, s.reserved)
	}
	if s.writer {
		return fmt.Errorf("%w: commit while the sequence is written", ErrBusy)
	}
	s.length += n
	s.reserved -= n
	return nil
}

// Truncate keeps the first n committed tokens, gives up all reserved slots, and
// frees the pages that are left empty. ErrBusy while a lease is out.
func (s *Seq) Truncate(n int) error {
	if err := s.lock(); err != nil {
		return err
	}
	defer s.mu.Unlock()
	if n < 0 || n > s.length {
		return fmt.Errorf("%w: truncate to %d tokens, there are %d", ErrRange, n, s.length)
	}
	if err := s.unleased(); err != nil {
		return err
	}
	s.cut(s.c.pagesFor(n))
	s.length, s.reserved = n, 0
	return nil
}

// Free gives the pages back. A second call does nothing, and so does a call
// after the cache was closed. ErrBusy while a lease is out. A sequence that is
// dropped without Free keeps its pages until the cache is closed.
func (s *Seq) Free() error {
	if s == nil || s.c == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed {
		return nil
	}
	if err := s.unleased(); err != nil {
		return err
	}
	s.cut(0)
	s.length, s.reserved, s.freed = 0, 0, true
	return nil
}

func (s *Seq) unleased() error {
	if s.writer || s.readers > 0 {
		return fmt.Errorf("%w: the sequence has %d readers, written: %v", ErrBusy, s.readers, s.writer)
	}
	return nil
}

// cut keeps n entries of the page table. The rest of the array stays with
// nobody: a later Reserve may write there.
func (s *Seq) cut(n int) {
	s.c.drop(s.table[n:])
	s.table = s.table[:n]
}

// newPages is the part of the page table where the first n new tokens go.
func (s *Seq) newPages(n int) []int32 {
	if n == 0 {
		return nil
	}
	return s.table[s.length/s.c.cfg.PageTokens : s.c.pagesFor(s.length+n)]
}

// WriteRows stores rows float32 [n, Width] of one layer at positions pos ..
// pos+n-1, which must be reserved, rounded as the format says. It is a writer:
// ErrBusy while a lease is writing.
func (s *Seq) WriteRows(layer, pos int, rows []float32) error {
	if err := s.usable(); err != nil {
		return err
	}
	w := s.c.cfg.Width
	if len(rows)%w != 0 {
		return fmt.Errorf("%w: rows has %d values, want a multiple of Width = %d", ErrShape, len(rows), w)
	}
	n := len(rows) / w
	v, err := s.leaseReserved(layer, pos, n)
	if err != nil {
		return err
	}
	defer v.Release()
	for i := range n {
		v.Write(pos+i, rows[i*w:(i+1)*w])
	}
	return nil
}

// leaseReserved leases reserved positions for writing.
func (s *Seq) leaseReserved(layer, pos, n int) (View, error) {
	if err := s.lock(); err != nil {
		return View{}, err
	}
	defer s.mu.Unlock()
	end := s.length + s.reserved
	if pos < s.length || pos > end || n > end-pos {
		return View{}, fmt.Errorf("%w: write %d rows at %d, positions %d to %d are reserved", ErrRange, n, pos, s.length, end)
	}
	return s.lease(layer, pos+n-s.length)
}

// ReadRows fills dst, float32 [n, Width], with the committed rows pos .. pos+n-1
// of one layer.
func (s *Seq) ReadRows(dst []float32, layer, pos, n int) error {
	v, err := s.leaseCommitted(layer, pos, n)
	if err != nil {
		return err
	}
	defer v.Release()
	w := s.c.cfg.Width
	if len(dst)%w != 0 || len(dst)/w != n {
		return fmt.Errorf("%w: dst has %d values, want n*Width = %d*%d", ErrShape, len(dst), n, w)
	}
	v.Widen(dst, w, pos, n)
	return nil
}

// leaseCommitted leases committed positions for reading; all are mapped.
func (s *Seq) leaseCommitted(layer, pos, n int) (View, error) {
	v, err := s.Lease(layer, 0)
	if err != nil {
		return View{}, err
	}
	if pos < 0 || n < 0 || pos > v.Len() || n > v.Len()-pos {
		err = fmt.Errorf("%w: read %d rows at %d of %d committed", ErrRange, n, pos, v.Len())
	} else if hole := v.firstHole(pos, n); hole >= 0 {
		err = fmt.Errorf("%w: position %d is in a page that is not mapped", ErrPage, hole)
	}
	if err != nil {
		v.Release()
		return View{}, err
	}
	return v, nil
}
