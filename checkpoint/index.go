package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

const (
	singleName = "model.safetensors"
	indexName  = "model.safetensors.index.json"

	// maxShardFiles is past what any model has, and within what a process may hold open.
	maxShardFiles = 4096
	maxFileName   = shortest - 1
)

// readIndex reads an index,
//
//	{"metadata": {...}, "weight_map": {"tensor": "file", ...}}
//
// and calls one for each tensor of its weight_map, whose name s then begins with. Nothing is
// kept of it: there are two readings, one that collects the files and one that finds the
// tensors in them.
//
// The name of the file is the scanner's until the next string.
func readIndex(s *scanner, one func(s *scanner, tensor text, file []byte) error) error {
	seen := false
	err := s.object(func() error {
		key, err := s.key()
		if err != nil {
			return err
		}
		if string(key) != "weight_map" {
			return s.skip()
		}
		if seen {
			return errors.New("the index has weight_map twice")
		}
		seen = true
		return s.object(func() error {
			tensor, err := s.pass()
			if err == nil {
				err = s.take(':')
			}
			if err != nil {
				return err
			}
			if s.peek() != '"' {
				return s.in("the index has no file name for tensor", tensor, s.wanted(`'"'`))
			}
			file, err := s.word()
			if err == nil {
				err = plainName(aliased(file))
			}
			if err != nil {
				return s.in("tensor", tensor, err)
			}
			return one(s, tensor, file)
		})
	})
	if err == nil {
		err = s.end()
	}
	if err == nil && !seen {
		err = errors.New("the index has no weight_map")
	}
	return err
}

// plainName is an error unless name is that of a file in the same directory, on any system.
func plainName(name string) error {
	if len(name) > maxFileName {
		return fmt.Errorf("the index names the file %q, wanted a name of at most %d bytes", clip(name), maxFileName)
	}
	if !filepath.IsLocal(name) || name == "." || strings.ContainsAny(name, "/\\:\x00") {
		return fmt.Errorf("the index names the file %q, which is no plain file name", clip(name))
	}
	return nil
}

// errMore ends a reading that has found more tensors than there are, some of them twice.
var errMore = errors.New("more tensors than there are")

// shardNames is the first reading: the files of an index, sorted.
func shardNames(r io.ReaderAt, size int64, b *budget) ([]string, error) {
	if err := fetched(r, size); err != nil {
		return nil, err
	}
	seen := map[string]bool{}
	err := readIndex(newScanner(r, 0, size, "index", b), func(_ *scanner, _ text, file []byte) error {
		if seen[aliased(file)] {
			return nil
		}
		if len(seen) == maxShardFiles {
			return fmt.Errorf("%w: the index names more than %d files", ErrLimit, maxShardFiles)
		}
		seen[string(file)] = true
		return nil
	})
	names := slices.Sorted(maps.Keys(seen))
	if err == nil && len(names) == 0 {
		err = errors.New("the index names no files")
	}
	return names, err
}

// place is the second reading: it finds each tensor in the file where the index says that
// it is, and makes d.byName of them all.
func (d *Dir) place(r io.ReaderAt, size int64, b *budget) error {
	total := 0
	for _, f := range d.files {
		total += f.Len()
	}
	d.byName = make([]ref, 0, total+1)
	lacks := func(s *scanner, tensor text, file string) error {
		return s.in("tensor", tensor, fmt.Errorf("the index says that it is in %s, which lacks it", file))
	}
	var name []byte
	err := readIndex(newScanner(r, 0, size, "index", b), func(s *scanner, tensor text, file []byte) error {
		k, ok := slices.BinarySearch(d.names, aliased(file))
		if !ok {
			return s.changed()
		}
		if tensor.n > len(name) {
			// No longer than the names that are kept: what no file has is not read.
			if tensor.n > d.files[k].head.longest {
				return lacks(s, tensor, d.names[k])
			}
			name = make([]byte, tensor.n)
		}
		end := s.pos()
		err := s.read(tensor, name[:tensor.n])
		s.seek(end)
		if err != nil {
			return err
		}
		i := d.files[k].head.find(aliased(name[:tensor.n]))
		if i < 0 {
			return lacks(s, tensor, d.names[k])
		}
		d.byName = append(d.byName, ref{uint32(k), uint32(i)})
		if len(d.byName) > total {
			return errMore
		}
		return nil
	})
	if err != nil && err != errMore {
		return err
	}
	slices.SortFunc(d.byName, func(a, b ref) int { return bytes.Compare(d.name(a), d.name(b)) })
	for k := 1; k < len(d.byName); k++ {
		if name := d.name(d.byName[k]); bytes.Equal(name, d.name(d.byName[k-1])) {
			return fmt.Errorf("the index has tensor %q twice", clip(string(name)))
		}
	}
	return nil
}
