package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"maps"
	"os"
	"sync/atomic"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/internal/openfile"
)

// Limits bound what files may cost. The zero value has the defaults.
type Limits struct {
	// Header is the largest header of a file, the largest index and the largest config.json
	// in bytes; 0 means 32 MB (1<<25).
	Header int64
	// Kept is how many bytes of names, shapes and metadata are kept in memory, for a file or
	// for all files of a directory together; 0 means 36 MB (36<<20). They are never more than
	// the headers have; 200,000 tensors with names of 60 bytes take 18 MB.
	Kept int64
	// Tensor is the largest tensor in bytes that an accessor copies into memory; 0 means 4 GB
	// (1<<32). ReadAt reads larger ones piece by piece.
	Tensor int64
}

const (
	defaultHeader = 32 << 20
	defaultKept   = 36 << 20
	defaultTensor = 1 << 32
)

func (l Limits) header() int64 { return or(l.Header, defaultHeader) }
func (l Limits) kept() int64   { return or(l.Kept, defaultKept) }
func (l Limits) tensor() int64 { return or(l.Tensor, defaultTensor) }

func or(x, other int64) int64 {
	if x <= 0 {
		return other
	}
	return x
}

// File is an open safetensors file. Its methods, and those of its tensors, may be used by
// many goroutines.
type File struct {
	path   string // "" when the data is the caller's
	head   *header
	data   io.ReaderAt
	mapped *mem.File // data, when it is not the caller's
	bytes  []byte    // the data behind the header, when it is
	limits Limits
	closed atomic.Bool
}

// Open opens a file with the default limits: see [Limits.Open].
func Open(path string) (*File, error) { return Limits{}.Open(path) }

// Parse reads a file that lies in memory, with the default limits: see [Limits.Parse].
func Parse(b []byte) (*File, error) { return Limits{}.Parse(b) }

// Open opens a file: the header is read and checked, the data mapped, or left where it is
// if the system maps no files. The path must lead to a regular file. One that is shortened
// while it is open gives ErrRead where it is read. Errors name the path.
func (l Limits) Open(path string) (*File, error) {
	return l.open(path, l.budget())
}

// open is Open with a budget that other files share.
func (l Limits) open(path string, b *budget) (*File, error) {
	m, err := openMapped(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	head, err := readHeader(m, m.Size(), l, b)
	if err != nil {
		m.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &File{path: path, head: head, data: m, mapped: m, limits: l}, nil
}

// openMapped opens a regular file.
func openMapped(path string) (*mem.File, error) {
	f, size, err := openfile.Regular(path)
	if errors.Is(err, openfile.ErrKind) {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if err != nil {
		err = bare(err)
		if to, notLink := os.Readlink(path); notLink == nil && errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: it is a symbolic link to %s", err, shown(to))
		}
		return nil, err
	}
	m, err := mem.NewFile(f, size)
	return m, bare(err)
}

// pointer is how what Git LFS leaves in place of a file begins, until that is fetched. No
// safetensors file does, whose header would be as long as this read as a number, and no JSON.
const pointer = "version https://git-lfs.github.com/spec/"

// fetched is an error if the file is a pointer to the one that is wanted.
func fetched(r io.ReaderAt, size int64) error {
	var b [len(pointer)]byte
	if size < int64(len(b)) {
		return nil
	}
	if err := readFull(r, b[:], 0); err != nil {
		return err
	}
	if string(b[:]) == pointer {
		return errors.New("it is a Git LFS pointer, and not yet the file that this stands for: git lfs pull fetches that")
	}
	return nil
}

// Parse reads a file that lies in memory. Tensors share its bytes, which must not change
// while they are in use.
func (l Limits) Parse(b []byte) (*File, error) {
	head, err := readHeader(bytes.NewReader(b), int64(len(b)), l, l.budget())
	if err != nil {
		return nil, err
	}
	return &File{head: head, data: bytes.NewReader(b), bytes: b[head.size:], limits: l}, nil
}

// bare takes the path out of an error of package os: the caller's error names it.
func bare(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Tensor returns the tensor of that name; false if there is none or the file is closed.
func (f *File) Tensor(name string) (Tensor, bool) {
	i := f.head.find(name)
	if i < 0 || f.closed.Load() {
		return Tensor{}, false
	}
	return f.tensor(i), true
}

// tensor is tensor i in the order of the header.
func (f *File) tensor(i int) Tensor {
	r := f.head.record(i)
	t := Tensor{Name: aliased(r.name), DType: r.dtype, Shape: r.shape()}
	if size := r.size(); f.mapped == nil {
		t.Data = f.bytes[r.begin:][:size:size]
	} else {
		t.file, t.at, t.size = f, f.head.size+int64(r.begin), int64(size)
	}
	return t
}

// Tensors are all tensors in the order of the header; none if the file is closed.
func (f *File) Tensors() iter.Seq[Tensor] {
	return func(yield func(Tensor) bool) {
		for i := range f.head.order {
			if f.closed.Load() || !yield(f.tensor(i)) {
				return
			}
		}
	}
}

// Len is the number of tensors.
func (f *File) Len() int { return len(f.head.order) }

// Names are the names of all tensors in the order of the header.
func (f *File) Names() []string {
	names := make([]string, len(f.head.order))
	for i := range names {
		names[i] = aliased(f.head.name(i))
	}
	return names
}

// Metadata is a copy of the file's metadata, empty if it has none.
func (f *File) Metadata() map[string]string {
	m := make(map[string]string, len(f.head.metadata))
	maps.Copy(m, f.head.metadata)
	return m
}

// Path is what the file was opened by, "" for one in memory.
func (f *File) Path() string { return f.path }

// Close ends the file: its tensors then are not to be read any more, and those of a file
// that [Open] opened say so, with ErrRead. It waits for reads in progress. What accessors
// have copied stays. Closing twice is the same as once. A File that nothing refers to any
// more, its tensors included, is closed too.
func (f *File) Close() error {
	if f.closed.Swap(true) || f.mapped == nil {
		return nil
	}
	return f.mapped.Close()
}
