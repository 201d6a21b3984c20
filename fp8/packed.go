package fp8

import (
	"fmt"
	"sync/atomic"

	"github.com/lamina-ml/lamina/internal/mem"
)

// Packed are weights in the order in which products read them; see the package
// comment. It may be used by many goroutines at once. A dropped Packed frees its
// memory when it is collected; Close does so at once. Memory that was the caller's
// (PackOptions.Into) is the caller's again. A zero Packed, and nil, count as closed:
// only Pack and ReadPacked make weights.
type Packed struct {
	elem     Elem
	batch    int
	n, k     int
	panels   int // of 16 outputs in a matrix
	scaling  scaling
	step     int     // along k, at most k
	groups   int     // of scales along k
	words    bool    // the codes of four k lie together: see words.go
	prescale float32 // what activations are multiplied by for weights that are decoded in registers; 0: these are not
	w        values
	scales   []float32
	memory   []byte     // holds w and scales
	block    *mem.Block // of memory, nil if that is the caller's; frees itself when it is collected
	bytes    int64
	leases   atomic.Int64 // how many users; closed when below 0
	tasks    freeList[rowTask]
	quants   freeList[quantTask]
}

const closed = -1

// Batch is the number of matrices.
func (p *Packed) Batch() int {
	if p == nil {
		return 0
	}
	return p.batch
}

// N is the number of rows of a matrix, the outputs of a product.
func (p *Packed) N() int {
	if p == nil {
		return 0
	}
	return p.n
}

// K is the number of columns of a matrix, the length of the sums of a product.
func (p *Packed) K() int {
	if p == nil {
		return 0
	}
	return p.k
}

// Bytes is the memory that the packed codes and scales hold.
func (p *Packed) Bytes() int64 {
	if p == nil {
		return 0
	}
	return p.bytes
}

// Scaled reports whether the weights have scales.
func (p *Packed) Scaled() bool { return p != nil && p.scaling != unscaled }

// made reports that Pack or ReadPacked made p: nobody packs no matrices.
func (p *Packed) made() bool { return p != nil && p.batch > 0 }

var errNotPacked = fmt.Errorf("%w: packed weights that neither Pack nor ReadPacked made", ErrClosed)

// Acquire takes a lease: until its Release, Close returns ErrBusy. It returns
// ErrClosed after Close. It does not allocate.
func (p *Packed) Acquire() error {
	if !p.made() {
		return errNotPacked
	}
	for {
		n := p.leases.Load()
		if n == closed {
			return fmt.Errorf("%w: packed weights [%d, %d, %d]", ErrClosed, p.batch, p.n, p.k)
		}
		if p.leases.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

// Release gives a lease back.
func (p *Packed) Release() {
	if p.leases.Add(-1) < 0 {
		panic("fp8: Release without Acquire")
	}
}

// Close frees the memory, or gives the caller's back. A second call does nothing.
// It returns ErrBusy, and frees nothing, while a product or a lease holds the weights,
// and ErrClosed for weights that nobody packed.
func (p *Packed) Close() error {
	if !p.made() {
		return errNotPacked
	}
	if !p.leases.CompareAndSwap(0, closed) {
		if n := p.leases.Load(); n > 0 {
			return fmt.Errorf("%w: packed weights [%d, %d, %d] are held %d times", ErrBusy, p.batch, p.n, p.k, n)
		}
		return nil
	}
	p.w, p.scales, p.memory = values{}, nil, nil
	if p.block == nil {
		return nil
	}
	return p.block.Free()
}
