package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"unicode/utf8"
)

// Write writes a file of these tensors: wider element types first and otherwise in the order
// given, so that every tensor is aligned to its type, the header padded to a multiple of 8
// bytes. The same arguments write the same bytes. Data must have the length that type and
// shape say; a name must be UTF-8, occur once and not be "__metadata__".
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
		if _, err := w.Write(t.Data); err != nil {
			return err
		}
	}
	return nil
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
		if uint64(len(t.Data)) != size {
			return nil, fmt.Errorf("%w: tensor %v has %d bytes of data, wanted %d", ErrWrite, t, len(t.Data), size)
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
	b, err := json.Marshal(s)
	if err != nil {
		panic("checkpoint: " + err.Error()) // a string always has a JSON form
	}
	return string(b)
}
