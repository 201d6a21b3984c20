package mem

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"unsafe"
)

// ErrShrunk is wrapped by the error of reading what a file no longer has: it was
// shortened after it was opened, or its storage has failed.
var ErrShrunk = errors.New("mem: the file has shrunk since it was opened")

// File is an open file of a known size, read at any place: through a mapping, or
// by calls where there is none. Its methods may be called from several goroutines;
// Close waits for those that read.
type File struct {
	mu     sync.RWMutex
	f      *os.File // nil once closed
	mapped *Block   // nil: read by calls
	size   int64
}

// NewFile takes f, whose first size bytes it reads, and closes it with itself, and
// at once if it returns an error. Where files cannot be mapped, or this one cannot,
// nothing is missing but speed.
func NewFile(f *os.File, size int64) (*File, error) {
	info, err := f.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("mem: %w", err)
	case size < 0 || size > info.Size():
		err = fmt.Errorf("%w: %d bytes of %s, which has %d", ErrSize, size, f.Name(), info.Size())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	out := &File{f: f, size: size}
	if size > 0 && size <= math.MaxInt {
		if m, err := mapFile(f, int(size)); err == nil {
			out.mapped = newBlock(m)
		}
	}
	return out, nil
}

// Size is the number of bytes that can be read.
func (f *File) Size() int64 { return f.size }

// ReadAt copies bytes from off on into p. It is an io.ReaderAt of Size bytes: with
// fewer than len(p) of them left, the error is io.EOF. Other errors: ErrShrunk,
// os.ErrClosed, and what the operating system says. After an error p holds
// anything.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	switch {
	case f.f == nil:
		return 0, os.ErrClosed
	case off < 0:
		return 0, fmt.Errorf("%w: byte %d of a file", ErrSize, off)
	case off >= f.size:
		return 0, io.EOF
	}
	n := int(min(int64(len(p)), f.size-off))
	if err := f.copy(p[:n], off); err != nil {
		return 0, err
	}
	// Behind the end of a file that was shortened the rest of its last page reads as
	// zeros, without a fault.
	info, err := f.f.Stat()
	switch {
	case err != nil:
		return 0, err
	case info.Size() < off+int64(n):
		return 0, fmt.Errorf("%w: it has %d bytes, wanted %d to %d", ErrShrunk, info.Size(), off, off+int64(n))
	case n < len(p):
		return n, io.EOF
	}
	return n, nil
}

// copy fills p, all of which the file had when it was opened.
func (f *File) copy(p []byte, off int64) error {
	if f.mapped == nil {
		_, err := f.f.ReadAt(p, off)
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("%w: it ends before byte %d", ErrShrunk, off+int64(len(p)))
		}
		return err
	}
	// Not by Bytes, which locks: Close waits for this, and who else holds the block?
	src := f.mapped.m.bytes[off:][:len(p)]
	err := guarded(p, src)
	runtime.KeepAlive(f)
	return err
}

// guarded copies src to dst, of equal lengths; a fault in src is an ErrShrunk. This
// is the one place that touches a mapping, and the goroutine that does is the one
// that asked for the fault to be a panic.
func guarded(dst, src []byte) (err error) {
	if len(src) == 0 {
		return nil
	}
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		fault, ok := r.(runtime.Error)
		if !ok {
			panic(r)
		}
		// Not every system says where it was. One that does may say that it was in
		// dst, which is the caller's.
		if where, ok := r.(interface{ Addr() uintptr }); ok {
			if where.Addr()-uintptr(unsafe.Pointer(unsafe.SliceData(src))) >= uintptr(len(src)) {
				panic(r)
			}
		}
		err = fmt.Errorf("%w: %w", ErrShrunk, fault)
	}()
	copy(dst, src)
	return nil
}

// Close ends the mapping and closes the file, once nobody reads. A second call
// does nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.f == nil {
		return nil
	}
	file := f.f
	f.f = nil
	var err error
	if f.mapped != nil {
		err = f.mapped.Free()
	}
	return errors.Join(err, file.Close())
}
