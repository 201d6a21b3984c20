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
	"strings"
	"syscall"

	"github.com/lamina-ml/lamina/internal/openfile"
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

// OpenDir opens the files that model.safetensors.index.json names or, if there is no index,
// model.safetensors. Of each the header alone is read, however large it is. Both of them, where the
// index does not name the other, are an error: which is the model cannot be told.
//
// The index must name files of this directory, and put each tensor once, in a file that has
// it; tensors and files that it leaves out are none of the model's. Symbolic links are followed,
// which the caches of hubs are made of, and must end at regular files.
//
// Errors name the file, and the tensor where there is one: ErrFormat, of a Git LFS pointer in place
// of a file too, ErrLimit, ErrRead, fs.ErrNotExist, which says where below path there are
// checkpoints if there are any, syscall.ENOTDIR for the path of a file, and what else the operating
// system says.
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
	if err := d.isDir(); err != nil {
		return err
	}
	single, err := d.holds(singleName)
	if err != nil {
		return err
	}
	indexed, err := d.holds(indexName)
	switch {
	case err != nil:
		return err
	case !single && !indexed:
		return d.nothing()
	case !indexed:
		d.names = []string{singleName}
		if err := l.openFiles(d, b); err != nil {
			return err
		}
		for _, i := range d.files[0].head.byName {
			d.byName = append(d.byName, ref{0, i})
		}
		return nil
	}
	index := filepath.Join(d.path, indexName)
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
	if single && !slices.Contains(d.names, singleName) {
		return fmt.Errorf("%s: %w: it holds %s and %s, which names other files: wanted one of the two, remove the one that is not this model's",
			d.path, ErrFormat, singleName, indexName)
	}
	if err := l.openFiles(d, b); err != nil {
		return fmt.Errorf("%s: %w", index, err)
	}
	if err := d.place(m, m.Size(), b); err != nil {
		return fmt.Errorf("%s: %w", index, as(ErrFormat, err))
	}
	return nil
}

// isDir is an error unless the path leads to a directory.
func (d *Dir) isDir() error {
	info, err := os.Stat(d.path)
	if err != nil {
		return fmt.Errorf("%s: %w", d.path, bare(err))
	}
	if !info.IsDir() {
		return fmt.Errorf("%s: %w: give the directory of the checkpoint, %s", d.path, syscall.ENOTDIR, filepath.Dir(d.path))
	}
	return nil
}

// holds reports whether there is a file of that name, if only a link that leads nowhere.
func (d *Dir) holds(name string) (bool, error) {
	_, err := os.Lstat(filepath.Join(d.path, name))
	if err == nil {
		return true, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return false, fmt.Errorf("%s: %w", filepath.Join(d.path, name), bare(err))
}

// nothing is the error of a directory that holds no checkpoint: it says what there is instead, in
// it or below.
func (d *Dir) nothing() error {
	says := fmt.Sprintf("it holds neither %s nor %s", singleName, indexName)
	others, below := d.instead()
	switch {
	case below != "":
		says += ", which these directories below it do: " + below
	case others != "":
		says += ", only " + others
	}
	return fmt.Errorf("%s: %w: %s", d.path, fs.ErrNotExist, says)
}

const (
	maxInstead = 8       // names in a message
	maxLooked  = 1 << 16 // entries of directories that are looked at
	maxBelow   = 3       // levels: in a hub's cache, models--X/snapshots/HASH
)

// instead are the files of a directory that look like weights, and the directories below it that
// hold a checkpoint, the nearest first and each once, however many links lead there.
func (d *Dir) instead() (others, below string) {
	var files, dirs list
	left := maxLooked
	seen := map[string]bool{}
	level := []string{d.path}
	for depth := 0; depth <= maxBelow && len(level) > 0; depth++ {
		var next, links []string
		for _, dir := range level {
			real, err := filepath.EvalSymlinks(dir)
			if err != nil || seen[real] {
				continue
			}
			seen[real] = true
			if depth > 0 && holdsCheckpoint(dir) {
				dirs.add(dir)
				continue
			}
			entries := entriesOf(dir, left)
			left -= len(entries)
			for _, e := range entries {
				path := filepath.Join(dir, e.Name())
				switch {
				case e.IsDir():
					next = append(next, path)
				case e.Type()&fs.ModeSymlink != 0 && isDir(path):
					links = append(links, path)
				case depth == 0 && strings.Contains(e.Name(), ".safetensors"):
					files.add(e.Name())
				}
			}
		}
		level = append(next, links...)
	}
	return files.String(), dirs.String()
}

func holdsCheckpoint(dir string) bool {
	for _, name := range []string{singleName, indexName} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return true
		}
	}
	return false
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// entriesOf are at most so many entries of a directory, by name; none of one that cannot be read.
func entriesOf(dir string, most int) []fs.DirEntry {
	if most <= 0 {
		return nil
	}
	f, err := openfile.Directory(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	entries, _ := f.ReadDir(most)
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries
}

// list are names for a message, the first ones of many.
type list struct {
	names []string
	more  int
}

func (l *list) add(name string) {
	if len(l.names) == maxInstead {
		l.more++
		return
	}
	l.names = append(l.names, shown(name))
}

func (l *list) String() string {
	s := strings.Join(l.names, ", ")
	if l.more > 0 {
		s += fmt.Sprintf(" and %d more", l.more)
	}
	return s
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
