package checkpoint

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"unicode/utf8"
)

// What no real file comes near, and a hostile header could reach in order to cost memory.
const (
	maxTensors  = 1 << 18
	maxMetadata = 1 << 16
	maxRank     = 64
)

const metadataKey = "__metadata__"

// header is what a header says, before and after it was held against the file.
type header struct {
	size     int64 // where the data begins: the length and the JSON
	metadata map[string]string
	tensors  []Tensor // in the order of the header
	spans    []span   // one per tensor
	index    map[string]int
}

// span is a tensor's place in the data: bytes [begin, end).
type span struct{ begin, end uint64 }

// readHeader reads the header of a file of the given size and checks it, and where it says
// the data is.
func readHeader(r io.ReaderAt, size, most int64) (*header, error) {
	h, err := readFaults(r, size, most)
	if err != nil && !errors.Is(err, ErrLimit) {
		err = fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return h, err
}

// readFaults is readHeader; its errors, and those of all that it calls, do not say yet that
// they are ErrFormat.
func readFaults(r io.ReaderAt, size, most int64) (*header, error) {
	if size < 8 {
		return nil, fmt.Errorf("the file is %d bytes long, too short for the 8 bytes of the header's length", size)
	}
	var length [8]byte
	if err := readFull(r, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > uint64(size-8) {
		return nil, fmt.Errorf("the header runs past the end of the file: it says it is %d bytes long, %d follow", n, size-8)
	}
	if n > uint64(most) {
		return nil, fmt.Errorf("%w: the header is %d bytes long, at most %d are allowed", ErrLimit, n, most)
	}
	text := make([]byte, n)
	if err := readFull(r, text, 8); err != nil {
		return nil, err
	}
	h := &header{size: 8 + int64(n), index: map[string]int{}}
	if err := h.parse(text); err != nil {
		return nil, err
	}
	return h, h.tile(uint64(size - h.size))
}

// readFull is ReadAt, but the end of the file is an error with a name: the size was asked
// for before, so the file has shrunk.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("reading the header: %w", err)
}

// parse reads the JSON of a header.
func (h *header) parse(text []byte) error {
	if len(text) == 0 || text[0] != '{' {
		return errors.New("the header is not JSON: it does not begin with '{'")
	}
	s := &scanner{text: text}
	err := s.object(func(key string) error {
		if key == metadataKey {
			return h.parseMetadata(s)
		}
		return h.parseTensor(s, key)
	})
	if err != nil {
		return err
	}
	if s.peek(); s.at < len(text) {
		return s.wanted("nothing more")
	}
	return nil
}

func (h *header) parseMetadata(s *scanner) error {
	if h.metadata != nil {
		return fmt.Errorf("the header has %s twice", metadataKey)
	}
	h.metadata = map[string]string{}
	return s.object(func(key string) error {
		if _, twice := h.metadata[key]; twice {
			return fmt.Errorf("the metadata has key %q twice", clip(key))
		}
		if len(h.metadata) == maxMetadata {
			return fmt.Errorf("%w: the metadata has more than %d keys", ErrLimit, maxMetadata)
		}
		if s.peek() != '"' {
			return fmt.Errorf("the value of metadata key %q is not a string", clip(key))
		}
		value, err := s.str()
		h.metadata[key] = value
		return err
	})
}

func (h *header) parseTensor(s *scanner, name string) error {
	if _, twice := h.index[name]; twice {
		return fmt.Errorf("the header has tensor %q twice", clip(name))
	}
	if len(h.tensors) == maxTensors {
		return fmt.Errorf("%w: the file has more than %d tensors", ErrLimit, maxTensors)
	}
	t := Tensor{Name: name}
	at, err := parseEntry(s, &t)
	if err == nil {
		err = at.check(t)
	}
	if err != nil {
		return fmt.Errorf("tensor %q: %w", clip(name), err)
	}
	h.index[name] = len(h.tensors)
	h.tensors = append(h.tensors, t)
	h.spans = append(h.spans, at)
	return nil
}

// parseEntry reads {"dtype": ..., "shape": ..., "data_offsets": ...} in any order.
func parseEntry(s *scanner, t *Tensor) (at span, err error) {
	var dtype, shape, offsets bool
	once := func(seen *bool, key string) error {
		if *seen {
			return fmt.Errorf("key %q comes twice", key)
		}
		*seen = true
		return nil
	}
	err = s.object(func(key string) error {
		switch key {
		case "dtype":
			if err := once(&dtype, key); err != nil {
				return err
			}
			name, err := s.str()
			if err != nil {
				return err
			}
			if t.DType = dtypeNamed(name); t.DType == 0 {
				return fmt.Errorf("dtype %q does not exist", clip(name))
			}
			return nil
		case "shape":
			if err := once(&shape, key); err != nil {
				return err
			}
			dims, err := s.uints(maxRank)
			for _, d := range dims {
				if d > math.MaxInt64 {
					return fmt.Errorf("dimension %d of the shape overflows 63 bits", d)
				}
				t.Shape = append(t.Shape, int(d))
			}
			return err
		case "data_offsets":
			if err := once(&offsets, key); err != nil {
				return err
			}
			two, err := s.uints(2)
			if err == nil && len(two) != 2 {
				err = fmt.Errorf("data_offsets has %d values, wanted 2", len(two))
			}
			if err != nil {
				return err
			}
			at = span{two[0], two[1]}
			return nil
		}
		return fmt.Errorf("unknown key %q, wanted dtype, shape or data_offsets", clip(key))
	})
	switch {
	case err != nil:
	case !dtype:
		err = errors.New("dtype is missing")
	case !shape:
		err = errors.New("shape is missing")
	case !offsets:
		err = errors.New("data_offsets is missing")
	}
	return at, err
}

// check holds a tensor's place against its shape.
func (at span) check(t Tensor) error {
	want, err := t.Shape.bytes(t.DType)
	if err != nil {
		return err
	}
	if at.begin > at.end {
		return fmt.Errorf("data_offsets [%d, %d] run backwards", at.begin, at.end)
	}
	if at.end-at.begin != want {
		return fmt.Errorf("shape %v %v is %d bytes, data_offsets [%d, %d] say %d",
			t.Shape, t.DType, want, at.begin, at.end, at.end-at.begin)
	}
	return nil
}

// scanner reads JSON in one pass, and only the JSON that a header may hold: objects, strings,
// arrays of unsigned integers. What nests deeper than the format does is refused where it
// begins, so the depth of a hostile header costs nothing.
type scanner struct {
	text []byte
	at   int
}

// peek is the next byte that is not white space, or 0 at the end.
func (s *scanner) peek() byte {
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// wanted is the error of finding something else.
func (s *scanner) wanted(what string) error {
	found := "the end of the header"
	if s.at < len(s.text) {
		found = fmt.Sprintf("%q", s.text[s.at])
	}
	return fmt.Errorf("the header is not JSON of the form wanted: at byte %d stands %s, wanted %s",
		s.at, found, what)
}

// take passes over c.
func (s *scanner) take(c byte) error {
	if s.peek() != c || s.at == len(s.text) {
		return s.wanted(fmt.Sprintf("%q", c))
	}
	s.at++
	return nil
}

// more passes over what separates the members of an object or array: false at its end.
func (s *scanner) more(end byte) (bool, error) {
	switch s.peek() {
	case ',':
		s.at++
		return true, nil
	case end:
		s.at++
		return false, nil
	}
	return false, s.wanted(fmt.Sprintf("',' or %q", end))
}

// object reads an object; member is called at each value and reads it.
func (s *scanner) object(member func(key string) error) error {
	if err := s.take('{'); err != nil {
		return err
	}
	if s.peek() == '}' {
		s.at++
		return nil
	}
	for {
		key, err := s.str()
		if err == nil {
			err = s.take(':')
		}
		if err == nil {
			err = member(key)
		}
		if err != nil {
			return err
		}
		if more, err := s.more('}'); !more {
			return err
		}
	}
}

// uints reads an array of at most the given number of unsigned integers.
func (s *scanner) uints(most int) ([]uint64, error) {
	if err := s.take('['); err != nil {
		return nil, err
	}
	if s.peek() == ']' {
		s.at++
		return nil, nil
	}
	var out []uint64
	for {
		u, err := s.uint()
		if err != nil {
			return nil, err
		}
		if len(out) == most {
			return nil, fmt.Errorf("an array has more than %d values", most)
		}
		out = append(out, u)
		if more, err := s.more(']'); !more {
			return out, err
		}
	}
}

// uint reads an integer without sign, fraction or exponent.
func (s *scanner) uint() (uint64, error) {
	first := s.peek()
	start := s.at
	var u uint64
	for ; s.at < len(s.text); s.at++ {
		c := s.text[s.at]
		if c < '0' || c > '9' {
			break
		}
		if u > (math.MaxUint64-uint64(c-'0'))/10 {
			return 0, fmt.Errorf("the number at byte %d of the header overflows 64 bits", start)
		}
		u = u*10 + uint64(c-'0')
	}
	if s.at == start {
		return 0, s.wanted("a whole number")
	}
	if first == '0' && s.at > start+1 {
		s.at = start
		return 0, s.wanted("a number without leading zeros")
	}
	return u, nil
}

// str reads a string.
func (s *scanner) str() (string, error) {
	if err := s.take('"'); err != nil {
		return "", err
	}
	start, escaped := s.at, false
	for ; s.at < len(s.text) && s.text[s.at] != '"'; s.at++ {
		switch c := s.text[s.at]; {
		case c < ' ':
			return "", s.wanted("no control character in a string")
		case c == '\\':
			escaped = true
			s.at++ // whatever it is, it does not end the string
		}
	}
	if s.at >= len(s.text) {
		return "", s.wanted(`'"'`)
	}
	raw := s.text[start:s.at]
	s.at++
	if !utf8.Valid(raw) {
		return "", fmt.Errorf("the string at byte %d of the header is not UTF-8", start)
	}
	if !escaped {
		return string(raw), nil
	}
	var out string
	if err := json.Unmarshal(s.text[start-1:s.at], &out); err != nil {
		return "", fmt.Errorf("the string at byte %d of the header: %w", start, err)
	}
	return out, nil
}
