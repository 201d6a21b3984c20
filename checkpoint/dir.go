package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
)

// Dir is the open safetensors files of a directory, as one set of tensors. Its methods
// may be used by many goroutines.
type Dir struct {
	path   string
	names  []string // of the files, sorted
	files  []*File
	byName []ref // of all tensors, sorted by name
}

// ref is a tensor of a file: number i in the order of its header.
type ref struct{ file, i uint32 }

// OpenDir opens a directory with the default limits: see [Limits.OpenDir].
func OpenDir(path string) (*Dir, error) { return Limits{}.OpenDir(path) }

// OpenDir opens model.safetensors or, if there is none, the files that
// model.safetensors.index.json names. Of each the header alone is read, however large it is.
// The index must name files of this directory, and put each tensor once, in a file that has
// it; tensors that it leaves out are none of the model's. Symbolic links are followed, which
// the caches of hubs are made of, and must end at regular files. Errors name the file, and
// the tensor where there is one: ErrFormat, ErrLimit, ErrRead, fs.ErrNotExist and what else
// the operating system says.
func (l Limits) OpenDir(path string) (*Dir, error) {
	d := &Dir{path: path}
	b := l.budget()
	err := l.openDir(d, b)
	if err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func (l Limits) openDir(d *Dir, b *budget) error {
	index := filepath.Join(d.path, indexName)
	_, err := os.Lstat(filepath.Join(d.path, singleName))
	single := err == nil
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Lstat(index); errors.Is(err, fs.ErrNotExist) {
			if _, err := os.Stat(d.path); err != nil {
				return fmt.Errorf("%s: %w", d.path, bare(err))
			}
			return fmt.Errorf("%s: %w: it holds neither %s nor %s", d.path, fs.ErrNotExist, singleName, indexName)
		}
	} else if err != nil {
		return fmt.Errorf("%s: %w", d.path, bare(err))
	}
	if single {
		d.names = []string{singleName}
		if err := l.openFiles(d, b); err != nil {
			return err
		}
		for _, i := range d.files[0].head.byName {
			d.byName = append(d.byName, ref{0, i})
		}
		return nil
	}
	m, err := openMapped(index)
	if err != nil {
		return fmt.Errorf("%s: %w", index, err)
	}
	defer m.Close()
	if m.Size() > l.header() {
		return fmt.Errorf("%s: %w: the index is %d bytes long, at most %d are allowed", index, ErrLimit, m.Size(), l.header())
	}
	if d.names, err = shardNames(m, m.Size(), b); err != nil {
		return fmt.Errorf("%s: %w", index, as(ErrFormat, err))
	}
	if err := l.openFiles(d, b); err != nil {
		return fmt.Errorf("%s: %w", index, err)
	}
	if err := d.place(m, m.Size(), b); err != nil {
		return fmt.Errorf("%s: %w", index, as(ErrFormat, err))
	}
	return nil
}

func (l Limits) openFiles(d *Dir, b *budget) error {
	for _, name := range d.names {
		f, err := l.open(filepath.Join(d.path, name), b)
		if err != nil {
			return err
		}
		d.files = append(d.files, f)
	}
	return nil
}

func (d *Dir) name(r ref) []byte { return d.files[r.file].head.name(int(r.i)) }

// Tensor returns the tensor of that name; false if there is none or the directory is closed.
func (d *Dir) Tensor(name string) (Tensor, bool) {
	k, ok := slices.BinarySearchFunc(d.byName, name, func(r ref, name string) int { return bytes.Compare(d.name(r), []byte(name)) })
	if !ok || d.files[d.byName[k].file].closed.Load() {
		return Tensor{}, false
	}
	return d.files[d.byName[k].file].tensor(int(d.byName[k].i)), true
}

// Tensors are all tensors, by name; none if the directory is closed. [Tensor.File] says
// where each is.
func (d *Dir) Tensors() iter.Seq[Tensor] {
	return func(yield func(Tensor) bool) {
		for _, r := range d.byName {
			if f := d.files[r.file]; f.closed.Load() || !yield(f.tensor(int(r.i))) {
				return
			}
		}
	}
}

// Len is the number of tensors.
func (d *Dir) Len() int { return len(d.byName) }

// Files are the files, by name; they are closed with the directory.
func (d *Dir) Files() []*File { return slices.Clone(d.files) }

// Path is what the directory was opened by.
func (d *Dir) Path() string { return d.path }

// Close closes the files, as [File.Close] does.
func (d *Dir) Close() error {
	var errs []error
	for _, f := range d.files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
