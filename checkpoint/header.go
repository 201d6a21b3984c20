package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

const (
	// maxMetadata is past what any real file has, and within what a map of so many costs.
	maxMetadata = 1 << 14
	metadataKey = "__metadata__"

	// What a tensor and a metadata key cost beside their pieces of the arena, in lists of
	// places and in a map.
	perTensor   = 16
	perMetadata = 64
)

// header is what a header says, before and after it was held against the file. Of a
// tensor it keeps one record in the arena,
//
//	uvarint length, name | uint8 type | uint8 rank | uvarint dimensions | uvarint begin
//
// which is never longer than its JSON. Where the data ends follows from type and shape.
type header struct {
	size     int64 // where the data begins: the length and the JSON
	metadata map[string]string
	arena    arena
	order    []place  // the records in the order of the header
	byName   []uint32 // indices in order, sorted by name
	longest  int      // bytes of the longest name
	entry    entry    // the one that is being read
}

// record is a record of the arena, taken apart.
type record struct {
	name  []byte
	dtype DType
	rank  int
	dims  []byte // uvarints
	begin uint64
}

func (h *header) record(i int) (r record) {
	b := h.arena.from(h.order[i])
	n, size := binary.Uvarint(b)
	r.name, b = b[size:][:n:n], b[size+int(n):]
	r.dtype, r.rank, r.dims = DType(b[0]), int(b[1]), b[2:]
	at := 0
	for range r.rank {
		_, size := binary.Uvarint(r.dims[at:])
		at += size
	}
	r.begin, _ = binary.Uvarint(r.dims[at:])
	return r
}

func (r *record) shape() Shape {
	if r.rank == 0 {
		return nil
	}
	s := make(Shape, r.rank)
	b := r.dims
	for i := range s {
		d, size := binary.Uvarint(b)
		s[i], b = int(d), b[size:]
	}
	return s
}

// size is the bytes of the tensor, which were checked not to overflow.
func (r *record) size() uint64 {
	n, b := uint64(1), r.dims
	for range r.rank {
		d, size := binary.Uvarint(b)
		n, b = n*d, b[size:]
	}
	return n * uint64(r.dtype.Bits()) / 8
}

// readHeader reads the header of a file of the given size and checks it, and where it says
// the data is.
func readHeader(r io.ReaderAt, size int64, l Limits, b *budget) (*header, error) {
	h, err := readFaults(r, size, l.header(), b)
	return h, as(ErrFormat, err)
}

// as is err as an error of this kind, unless it has one that is not of what a file says.
func as(kind, err error) error {
	if err == nil || errors.Is(err, ErrLimit) || errors.Is(err, ErrRead) || errors.Is(err, kind) {
		return err
	}
	return fmt.Errorf("%w: %w", kind, err)
}

// readFaults is readHeader; its errors, and those of all that it calls, do not say yet that
// they are ErrFormat.
func readFaults(r io.ReaderAt, size, most int64, b *budget) (*header, error) {
	if err := fetched(r, size); err != nil {
		return nil, err
	}
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
	h := &header{size: 8 + int64(n), arena: arena{first: int(min(n, chunkSize)), budget: b}}
	if err := h.parse(newScanner(r, 8, int64(n), "header", b)); err != nil {
		return nil, err
	}
	return h, h.tile(uint64(size - h.size))
}

// parse reads the JSON of a header.
func (h *header) parse(s *scanner) error {
	if !s.more() || s.win[0] != '{' {
		if s.err != nil {
			return s.err
		}
		return errors.New("the header is not JSON: it does not begin with '{'")
	}
	err := s.object(func() error {
		name, err := s.pass()
		if err == nil {
			err = s.take(':')
		}
		if err != nil {
			return err
		}
		if key, err := s.begin(name); err != nil {
			return err
		} else if string(key) == metadataKey {
			return h.parseMetadata(s)
		}
		return h.parseTensor(s, name)
	})
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return err
	}
	return h.sort()
}

func (h *header) parseMetadata(s *scanner) error {
	if h.metadata != nil {
		return fmt.Errorf("the header has %s twice", metadataKey)
	}
	h.metadata = map[string]string{}
	return s.object(func() error {
		t, err := s.pass()
		if err == nil {
			err = s.take(':')
		}
		if err != nil {
			return err
		}
		key, err := h.arena.keep(s, t)
		if err != nil {
			return err
		}
		if _, twice := h.metadata[key]; twice {
			return fmt.Errorf("the metadata has key %q twice", clip(key))
		}
		if err := h.arena.budget.spend(perMetadata); err != nil {
			return err
		}
		if len(h.metadata) == maxMetadata {
			return fmt.Errorf("%w: the metadata has more than %d keys", ErrLimit, maxMetadata)
		}
		if s.peek() != '"' {
			return fmt.Errorf("the value of metadata key %q is not a string", clip(key))
		}
		if t, err = s.pass(); err != nil {
			return err
		}
		h.metadata[key], err = h.arena.keep(s, t)
		return err
	})
}

func (h *header) parseTensor(s *scanner, name text) error {
	e := &h.entry
	err := e.parse(s)
	if err == nil {
		err = e.check()
	}
	if err != nil {
		return s.in("tensor", name, err)
	}
	if err := h.arena.budget.spend(perTensor); err != nil {
		return err
	}
	at, err := h.keep(s, name)
	if err == nil {
		h.order = append(h.order, at)
		h.longest = max(h.longest, name.n)
	}
	return err
}

// keep makes the record of a tensor.
func (h *header) keep(s *scanner, name text) (place, error) {
	e := &h.entry
	var buf [binary.MaxVarintLen64 * (maxRank + 2)]byte
	head := binary.AppendUvarint(buf[:0], uint64(name.n))
	n := len(head)
	tail := append(head, byte(e.dtype), byte(len(e.shape)))
	for _, d := range e.shape {
		tail = binary.AppendUvarint(tail, uint64(d))
	}
	tail = binary.AppendUvarint(tail, e.at.begin)[n:]
	at, b, err := h.arena.alloc(n + name.n + len(tail))
	if err != nil {
		return 0, err
	}
	copy(b, head[:n])
	copy(b[n+name.n:], tail)
	end := s.pos()
	err = s.read(name, b[n:n+name.n])
	s.seek(end)
	return at, err
}

// sort makes byName; a name that comes twice is an error.
func (h *header) sort() error {
	h.byName = make([]uint32, len(h.order))
	for i := range h.byName {
		h.byName[i] = uint32(i)
	}
	slices.SortFunc(h.byName, func(i, j uint32) int { return bytes.Compare(h.name(int(i)), h.name(int(j))) })
	for k := 1; k < len(h.byName); k++ {
		if name := h.name(int(h.byName[k])); bytes.Equal(name, h.name(int(h.byName[k-1]))) {
			return fmt.Errorf("the header has tensor %q twice", clip(string(name)))
		}
	}
	return nil
}

func (h *header) name(i int) []byte {
	b := h.arena.from(h.order[i])
	n, size := binary.Uvarint(b)
	return b[size:][:n:n]
}

// find is the place of a tensor in the order of the header, -1 if there is none of the name.
func (h *header) find(name string) int {
	k, ok := slices.BinarySearchFunc(h.byName, name, func(i uint32, name string) int {
		return bytes.Compare(h.name(int(i)), []byte(name))
	})
	if !ok {
		return -1
	}
	return int(h.byName[k])
}

// entry is what the header says of one tensor.
type entry struct {
	dtype DType
	shape Shape
	at    span
}

// span is a tensor's place in the data: bytes [begin, end).
type span struct{ begin, end uint64 }

// parse reads {"dtype": ..., "shape": ..., "data_offsets": ...} in any order.
func (e *entry) parse(s *scanner) error {
	var dtype, shape, offsets bool
	once := func(seen *bool, key string) error {
		if *seen {
			return fmt.Errorf("key %q comes twice", key)
		}
		*seen = true
		return nil
	}
	err := s.object(func() error {
		key, err := s.key()
		if err != nil {
			return err
		}
		switch string(key) {
		case "dtype":
			if err := once(&dtype, "dtype"); err != nil {
				return err
			}
			name, err := s.word()
			if err != nil {
				return err
			}
			if e.dtype = dtypeNamed(name); e.dtype == 0 {
				return fmt.Errorf("dtype %q does not exist", clip(string(name)))
			}
			return nil
		case "shape":
			if err := once(&shape, "shape"); err != nil {
				return err
			}
			dims, err := s.numbers(maxRank)
			e.shape = e.shape[:0]
			for _, d := range dims {
				if err == nil && d > math.MaxInt {
					err = fmt.Errorf("dimension %d of the shape overflows %d bits", d, intBits-1)
				}
				e.shape = append(e.shape, int(d))
			}
			return err
		case "data_offsets":
			if err := once(&offsets, "data_offsets"); err != nil {
				return err
			}
			two, err := s.numbers(2)
			if err == nil && len(two) != 2 {
				err = fmt.Errorf("data_offsets has %d values, wanted 2", len(two))
			}
			if err != nil {
				return err
			}
			e.at = span{two[0], two[1]}
			return nil
		}
		return fmt.Errorf("unknown key %q, wanted dtype, shape or data_offsets", clip(string(key)))
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
	return err
}

// check holds a tensor's place against its shape.
func (e *entry) check() error {
	want, err := e.shape.bytes(e.dtype)
	if err != nil {
		return err
	}
	if e.at.begin > e.at.end {
		return fmt.Errorf("data_offsets [%d, %d] run backwards", e.at.begin, e.at.end)
	}
	if e.at.end-e.at.begin != want {
		return fmt.Errorf("shape %v %v is %d bytes, data_offsets [%d, %d] say %d",
			e.shape, e.dtype, want, e.at.begin, e.at.end, e.at.end-e.at.begin)
	}
	return nil
}
