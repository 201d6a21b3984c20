package mem

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"unsafe"
)

// Align is the alignment in bytes of the first byte of every block: a cache
// line, and the widest vector register there is.
const Align = 64

// ErrSize is wrapped by the error for a size that no block can have: a negative
// one, or one beyond the limit of the platform or the length of the file.
var ErrSize = errors.New("mem: size out of range")

// Block is a piece of memory outside the garbage-collected heap. Its methods may
// be called from several goroutines; who frees it must know that nobody uses its
// bytes any more.
type Block struct {
	mu      sync.Mutex
	m       mapping
	cleanup runtime.Cleanup
}

// mapping is what the operating system gave: the bytes and how they go back.
// give is nil where there is nothing to give back.
type mapping struct {
	bytes []byte
	give  func([]byte) error
}

func (m mapping) release() error {
	if m.give == nil {
		return nil
	}
	return m.give(m.bytes)
}

// Alloc returns n zeroed bytes. n = 0 gives an empty block.
func Alloc(n int) (*Block, error) {
	if n < 0 || n > maxBytes {
		return nil, fmt.Errorf("%w: %d bytes, want 0 to %d", ErrSize, n, maxBytes)
	}
	if n == 0 {
		return newBlock(mapping{bytes: []byte{}}), nil
	}
	m, err := alloc(n)
	if err != nil {
		return nil, fmt.Errorf("mem: %d bytes: %w", n, err)
	}
	return newBlock(m), nil
}

func newBlock(m mapping) *Block {
	b := &Block{m: m}
	if m.give != nil {
		b.cleanup = runtime.AddCleanup(b, func(m mapping) { m.release() }, m)
	}
	return b
}

// Bytes returns the memory, nil after Free.
func (b *Block) Bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.m.bytes
}

// Huge asks for huge pages under the block, of which the processor has to look up
// far fewer: for memory that is read through again and again. It is called before
// the memory is first touched, and it is a wish: where the system does not know
// it, or has no such page to give, the block has ordinary pages.
func (b *Block) Huge() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.m.bytes) >= hugePage {
		huge(b.m.bytes)
	}
}

// hugePage is the size below which no block has a huge page in it.
const hugePage = 2 << 20

// Free gives the memory back. A second call does nothing. Slices of Bytes must
// not be touched afterwards.
func (b *Block) Free() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.m
	if m.bytes == nil {
		return nil
	}
	b.m = mapping{}
	b.cleanup.Stop()
	if err := m.release(); err != nil {
		return fmt.Errorf("mem: free %d bytes: %w", len(m.bytes), err)
	}
	return nil
}

// Scalar lists the types that bytes may be read as.
type Scalar interface {
	~uint8 | ~uint16 | ~uint32 | ~int32 | ~uint64 | ~int64 | ~float32 | ~float64
}

// Bytes is the memory of x.
func Bytes[T Scalar](x []T) []byte {
	var t T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(t)))
}

// Cast reads b as values of T in the byte order of the machine, without a copy;
// bytes that do not fill a value are left out. It panics when b is not aligned
// for T: all callers cut their slices from blocks at multiples of T, or have
// checked with Aligned.
func Cast[T Scalar](b []byte) []T {
	var t T
	n := len(b) / int(unsafe.Sizeof(t))
	if n == 0 {
		return nil
	}
	if !Aligned[T](b) {
		panic(fmt.Sprintf("mem: bytes at %p are not aligned for %T", &b[0], t))
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

// Aligned reports whether the first byte of b lies where a T may lie.
func Aligned[T Scalar](b []byte) bool {
	var t T
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%unsafe.Alignof(t) == 0
}
