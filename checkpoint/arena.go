package checkpoint

import (
	"fmt"
	"unsafe"
)

// arena keeps what is kept of headers: pieces that are written once and never change, so
// that strings may point into them. It is on the garbage-collected heap, where strings
// keep it, in chunks that hold no pointers.
type arena struct {
	chunks [][]byte
	first  int // size of the first chunk
	budget *budget
}

// budget is what may still be kept, by one file or by all of a directory, and the window
// that their scanners share.
type budget struct {
	left int64
	win  []byte
}

func (l Limits) budget() *budget { return &budget{left: l.kept()} }

var errKept = fmt.Errorf("%w: what is kept of headers comes to more than Limits.Kept allows", ErrLimit)

// spend is an error if there is not so much left.
func (b *budget) spend(n int) error {
	if int64(n) > b.left {
		return errKept
	}
	b.left -= int64(n)
	return nil
}

// window is the window, for a text of n bytes.
func (b *budget) window(n int64) []byte {
	if n = min(max(n, 0), windowSize); int64(cap(b.win)) < n {
		b.win = make([]byte, 0, n)
	}
	return b.win[:0]
}

// place is where a piece lies: its chunk and the offset there.
type place uint32

const (
	chunkBits = 16
	chunkSize = 1 << chunkBits
	maxChunks = 1 << (32 - chunkBits)
)

// alloc returns a new piece of n bytes. One larger than a chunk is a chunk of its own.
func (a *arena) alloc(n int) (place, []byte, error) {
	last := len(a.chunks) - 1
	if last < 0 || n > cap(a.chunks[last])-len(a.chunks[last]) || len(a.chunks[last]) >= chunkSize {
		size := max(n, chunkSize)
		if last < 0 {
			size = max(n, min(a.first, chunkSize))
		}
		if len(a.chunks) == maxChunks {
			return 0, nil, errKept
		}
		if err := a.budget.spend(size); err != nil {
			return 0, nil, err
		}
		a.chunks = append(a.chunks, make([]byte, 0, size))
		last++
	}
	c := a.chunks[last]
	at := len(c)
	a.chunks[last] = c[:at+n]
	return place(last<<chunkBits | at), c[at : at+n : at+n], nil
}

// from is the chunk from a piece on.
func (a *arena) from(at place) []byte {
	return a.chunks[at>>chunkBits][at&(chunkSize-1):]
}

// keep reads a string that was passed over into the arena.
func (a *arena) keep(s *scanner, t text) (string, error) {
	_, b, err := a.alloc(t.n)
	if err != nil {
		return "", err
	}
	end := s.pos()
	err = s.read(t, b)
	s.seek(end)
	return aliased(b), err
}

// aliased is a piece as a string.
func aliased(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
