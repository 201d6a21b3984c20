package checkpoint

import (
	"bytes"
	"fmt"
	"iter"
	"maps"
	"os"
	"sync/atomic"

	"github.com/lamina-ml/lamina/internal/mem"
)

// Limits bound what a file may cost. The zero value has the defaults.
type Limits struct {
	// Header is the largest header in bytes; 0 means 32 MB (1<<25).
	Header int64
}

const defaultHeader = 32 << 20

// File is an open safetensors file. Its methods may be used by many goroutines, except that
// Close ends the memory behind every Data.
type File struct {
	head   *header
	data   *mem.Block // nil when the data is the caller's
	closed atomic.Bool
}

// Open opens a file with the default limits: see [Limits.Open].
func Open(path string) (*File, error) { return Limits{}.Open(path) }

// Parse reads a file that lies in memory, with the default limits: see [Limits.Parse].
func Parse(b []byte) (*File, error) { return Limits{}.Parse(b) }

// Open opens a file: the header is read and checked, the data mapped (read, where the system
// maps no files). The path must lead to a regular file, which must not be shortened while it
// is open. Errors name the path.
func (l Limits) Open(path string) (*File, error) {
	f, err := l.open(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

func (l Limits) open(path string) (*File, error) {
	// Before the file is opened: opening a pipe waits for whoever writes into it.
	if info, err := os.Stat(path); err != nil {
		return nil, bare(err)
	} else if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: it is no regular file (%s)", ErrFormat, info.Mode().Type())
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, bare(err)
	}
	defer f.Close() // a mapping outlives it
	info, err := f.Stat()
	if err != nil {
		return nil, bare(err)
	}
	head, err := readHeader(f, info.Size(), l.header())
	if err != nil {
		return nil, err
	}
	data, err := mem.MapFile(f, info.Size())
	if err != nil {
		return nil, bare(err)
	}
	head.attach(data.Bytes()[head.size:])
	return &File{head: head, data: data}, nil
}

// Parse reads a file that lies in memory. Tensors share its bytes.
func (l Limits) Parse(b []byte) (*File, error) {
	head, err := readHeader(bytes.NewReader(b), int64(len(b)), l.header())
	if err != nil {
		return nil, err
	}
	head.attach(b[head.size:])
	return &File{head: head}, nil
}

func (l Limits) header() int64 {
	if l.Header <= 0 {
		return defaultHeader
	}
	return l.Header
}

// bare takes the path out of an error of package os: the caller's error names it.
func bare(err error) error {
	if p, ok := err.(*os.PathError); ok {
		return p.Err
	}
	return err
}

// Tensor returns the tensor of that name; false if there is none or the file is closed.
func (f *File) Tensor(name string) (Tensor, bool) {
	i, ok := f.head.index[name]
	if !ok || f.closed.Load() {
		return Tensor{}, false
	}
	return f.head.tensors[i], true
}

// Tensors are all tensors in the order of the header; none if the file is closed.
func (f *File) Tensors() iter.Seq[Tensor] {
	return func(yield func(Tensor) bool) {
		for _, t := range f.head.tensors {
			if f.closed.Load() || !yield(t) {
				return
			}
		}
	}
}

// Names are the names of all tensors in the order of the header.
func (f *File) Names() []string {
	names := make([]string, len(f.head.tensors))
	for i, t := range f.head.tensors {
		names[i] = t.Name
	}
	return names
}

// Metadata is a copy of the file's metadata, empty if it has none.
func (f *File) Metadata() map[string]string {
	m := make(map[string]string, len(f.head.metadata))
	maps.Copy(m, f.head.metadata)
	return m
}

// Close ends the file and, for one that [Open] opened, the memory behind its tensors: their
// Data and what accessors made of it must no longer be used. Closing twice is the same as once.
// A File that nothing refers to any more is closed too: keep it while its tensors are in use.
func (f *File) Close() error {
	if f.closed.Swap(true) || f.data == nil {
		return nil
	}
	return f.data.Free()
}
