package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/lamina-ml/lamina/internal/atomicfile"
)

// Write writes a file of these tensors: wider element types first and otherwise in the order
// given, so that every tensor is aligned to its type, the header padded to a multiple of 8
// bytes. The same arguments write the same bytes. The elements are Data, or come from Stream,
// or from the open file that the tensor is of, piece by piece: memory is needed for the header
// alone. They must have the length that type and shape say; a name must be UTF-8, occur once
// and not be "__metadata__". Errors are ErrWrite, before anything is written but for elements
// that are streamed, and what w and the sources say.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b Tensor) int { return b.DType.Bits() - a.DType.Bits() })
	text, err := writeHeader(tensors, metadata)
	if err != nil {
		return err
	}
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], uint64(len(text)))
	if _, err := w.Write(append(length[:], text...)); err != nil {
		return err
	}
	for _, t := range tensors {
		if err := t.writeTo(w); err != nil {
			return err
		}
	}
	return nil
}

// WriteFile is [Write] to a file, which takes the place of one that is there at once, and only
// when all of it is on the disk. A symbolic link stays, and what it leads to is replaced, or made:
// in the cache of a hub that is a file which other revisions share. Of a file that is replaced the
// permission bits stay; not its owner, access lists or extended attributes. What is there and is no
// regular file is an error. Errors name the path.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) error {
	err := atomicfile.Replace(path, func(w io.Writer) error { return Write(w, tensors, metadata) })
	if err != nil {
		return fmt.Errorf("%s: %w", path, bare(err))
	}
	return nil
}

// maxShards is what the names of shards have digits for.
const maxShards = 99999

// WriteDir writes the tensors into a directory as a model hub has them: as model.safetensors
// if that comes to at most shard bytes of elements, else as files of at most so many, in the
// order given, model-00001-of-00003.safetensors and so on, and model.safetensors.index.json.
// A tensor that is larger has a file to itself. shard 0 means no limit. Each file is written
// as by [WriteFile], the index last; of the two kinds, one that is there from before is then
// removed. The directory is made if need be, and other files in it are left alone.
func WriteDir(dir string, tensors []Tensor, metadata map[string]string, shard int64) error {
	shards, total, err := cut(tensors, shard)
	if err != nil {
		return err
	}
	if _, err := writeHeader(tensors, metadata); err != nil {
		return err // a name twice, in two shards
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if len(shards) == 1 {
		if err := WriteFile(filepath.Join(dir, singleName), tensors, metadata); err != nil {
			return err
		}
		return gone(filepath.Join(dir, indexName))
	}
	weightMap := map[string]string{}
	for i, s := range shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		if err := WriteFile(filepath.Join(dir, name), s, metadata); err != nil {
			return err
		}
		for _, t := range s {
			weightMap[t.Name] = name
		}
	}
	text, err := json.MarshalIndent(map[string]any{"metadata": map[string]int64{"total_size": total}, "weight_map": weightMap}, "", "  ")
	if err != nil {
		panic("checkpoint: " + err.Error()) // strings and numbers always have a JSON form
	}
	path := filepath.Join(dir, indexName)
	err = atomicfile.Replace(path, func(w io.Writer) error { _, err := w.Write(append(text, '\n')); return err })
	if err != nil {
		return fmt.Errorf("%s: %w", path, bare(err))
	}
	return gone(filepath.Join(dir, singleName))
}

// gone removes a file that may be there.
func gone(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// cut cuts tensors into shards of at most most bytes, at least one.
func cut(tensors []Tensor, most int64) (shards [][]Tensor, total int64, err error) {
	var size int64
	from := 0
	for i, t := range tensors {
		n, err := t.Size()
		if err == nil && total+n < total {
			err = errors.New("the sizes of the tensors overflow 63 bits")
		}
		if err != nil {
			return nil, 0, fmt.Errorf("%w: tensor %q: %w", ErrWrite, clip(t.Name), err)
		}
		if most > 0 && i > from && size+n > most {
			shards, from, size = append(shards, tensors[from:i]), i, 0
		}
		size, total = size+n, total+n
	}
	if shards = append(shards, tensors[from:]); len(shards) > maxShards {
		return nil, 0, fmt.Errorf("%w: %d shards, wanted at most %d", ErrWrite, len(shards), maxShards)
	}
	return shards, total, nil
}

// writeTo writes the elements, which the header says how long they are.
func (t *Tensor) writeTo(w io.Writer) error {
	size, err := t.Size()
	if err != nil {
		return err
	}
	switch {
	case t.Stream != nil:
		c := &counted{w: w, left: size}
		err := t.Stream(c)
		if err == nil && c.left != 0 {
			err = fmt.Errorf("%w: its stream ended %d bytes short of %d", ErrWrite, c.left, size)
		}
		if err != nil {
			return fmt.Errorf("tensor %v: %w", t, err)
		}
		return nil
	case t.file != nil:
		_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{io.NewSectionReader(t, 0, size)}, make([]byte, min(size, 1<<18)+1))
		return err
	}
	_, err = w.Write(t.Data)
	return err
}

// counted is a writer that takes so many bytes and no more.
type counted struct {
	w    io.Writer
	left int64
}

func (c *counted) Write(p []byte) (int, error) {
	if int64(len(p)) > c.left {
		return 0, fmt.Errorf("%w: its stream is longer than type and shape say, by at least %d bytes", ErrWrite, int64(len(p))-c.left)
	}
	n, err := c.w.Write(p)
	c.left -= int64(n)
	return n, err
}

func writeHeader(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	if len(metadata) > 0 {
		b.WriteString(quote(metadataKey) + ":{")
		for i, key := range slices.Sorted(maps.Keys(metadata)) {
			if !utf8.ValidString(key) || !utf8.ValidString(metadata[key]) {
				return nil, fmt.Errorf("%w: metadata key %q: not UTF-8", ErrWrite, clip(key))
			}
			comma(&b, i)
			b.WriteString(quote(key) + ":" + quote(metadata[key]))
		}
		b.WriteByte('}')
	}
	seen := map[string]bool{metadataKey: true}
	var end uint64
	for i, t := range tensors {
		if seen[t.Name] || !utf8.ValidString(t.Name) {
			return nil, fmt.Errorf("%w: tensor %q: the name is taken or not UTF-8", ErrWrite, clip(t.Name))
		}
		seen[t.Name] = true
		if t.DType.Bits() == 0 {
			return nil, fmt.Errorf("%w: tensor %v: no such type", ErrWrite, t)
		}
		size, err := t.Shape.bytes(t.DType)
		if err != nil {
			return nil, fmt.Errorf("%w: tensor %q: %w", ErrWrite, clip(t.Name), err)
		}
		if len(t.Shape) > maxRank {
			return nil, fmt.Errorf("%w: tensor %q has %d dimensions, wanted at most %d", ErrWrite, clip(t.Name), len(t.Shape), maxRank)
		}
		if end+size < end {
			return nil, fmt.Errorf("%w: tensor %q: the sizes of the tensors overflow 64 bits", ErrWrite, clip(t.Name))
		}
		if t.Stream == nil && t.file == nil && uint64(len(t.Data)) != size {
			return nil, fmt.Errorf("%w: tensor %v has %d bytes of data, wanted %d", ErrWrite, t, len(t.Data), size)
		}
		if t.Stream == nil && t.file != nil && uint64(t.size) != size {
			return nil, fmt.Errorf("%w: tensor %v has %d bytes in its file, wanted %d", ErrWrite, t, t.size, size)
		}
		comma(&b, i+min(1, len(metadata)))
		fmt.Fprintf(&b, `%s:{"dtype":"%v","shape":%v,"data_offsets":[%d,%d]}`, quote(t.Name), t.DType, t.Shape, end, end+size)
		end += size
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	return b.Bytes(), nil
}

func comma(b *bytes.Buffer, i int) {
	if i > 0 {
		b.WriteByte(',')
	}
}

// quote is a string as JSON has it.
func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil {
		panic("checkpoint: " + err.Error()) // a string always has a JSON form
	}
	return strings.TrimSuffix(b.String(), "\n")
}
