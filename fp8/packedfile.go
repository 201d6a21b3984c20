package fp8

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math"

	"github.com/lamina-ml/lamina/simd"
)

// PackedHeader is the number of bytes of a packed file before its payload.
const PackedHeader = 128

const (
	packedMagic   = "\x89LAMPACK" // the first byte is no text
	packedVersion = 1             // of the header, and of the layout of the payload
)

// packedHeader is the header of a packed file, little-endian, as it lies there.
type packedHeader struct {
	Magic   [8]byte
	Version uint32
	Lanes   uint32 // outputs of a panel
	Elem    uint32
	Scaling uint32
	Word    uint32 // how many k of an output lie together
	Finite  uint32 // 1 if every code is, known of codes in words only
	Batch   uint64
	N       uint64
	K       uint64
	Step    uint64
	Groups  uint64
	Codes   uint64 // bytes
	Scales  uint64 // where they begin in the payload
	Payload uint64 // bytes
	Sum     uint64 // CRC-64 of the payload
	Unused  [2]uint64
	// A CRC-64 of all that is before it ends the header.
}

const headerSum = PackedHeader - 8 // where that one is

var crcTable = crc64.MakeTable(crc64.ECMA)

// WriteTo writes the weights as ReadPacked reads them: a header of PackedHeader
// bytes, then Bytes() bytes of codes and scales as they lie in memory.
//
//	0    magic      89 "LAMPACK"
//	8    uint32     version, lanes of a panel, elem, scaling, k's in a word, finite
//	32   uint64     batch, N, K, step, groups of scales
//	72   uint64     bytes of the codes, offset of the scales, bytes of the payload
//	96   uint64     CRC-64 (ECMA) of the payload
//	104  uint64     0, 0
//	120  uint64     CRC-64 of the bytes 0 to 119
//	128  payload    codes, zeros up to a multiple of 64, scales
//
// All numbers are little-endian. The same weights give the same bytes on every
// machine. Errors: ErrClosed, and those of w.
func (p *Packed) WriteTo(w io.Writer) (int64, error) {
	if err := p.Acquire(); err != nil {
		return 0, err
	}
	defer p.Release()
	n, err := w.Write(p.header(crc64.Checksum(p.memory, crcTable)))
	if err != nil {
		return int64(n), err
	}
	m, err := w.Write(p.memory)
	return int64(n) + int64(m), err
}

// header is the header of the file.
func (p *Packed) header(sum uint64) []byte {
	h := p.describe()
	h.Sum = sum
	b, err := binary.Append(nil, binary.LittleEndian, h)
	if err != nil || len(b) != headerSum {
		panic(fmt.Sprintf("fp8: a header of %d bytes: %v", len(b), err)) // its type says so
	}
	return binary.LittleEndian.AppendUint64(b, crc64.Checksum(b, crcTable))
}

// describe is the header, but for the checksums.
func (p *Packed) describe() packedHeader {
	s, err := p.sizes()
	if err != nil {
		panic("fp8: " + err.Error()) // place has seen none
	}
	h := packedHeader{
		Magic: [8]byte([]byte(packedMagic)), Version: packedVersion, Lanes: simd.Lanes,
		Elem: uint32(p.elem), Scaling: uint32(p.scaling), Word: uint32(p.word()),
		Batch: uint64(p.batch), N: uint64(p.n), K: uint64(p.k), Step: uint64(p.step), Groups: uint64(p.groups),
		Codes: uint64(s.codes), Scales: uint64(s.scales), Payload: uint64(s.total),
	}
	if p.decodes() {
		h.Finite = 1
	}
	return h
}

// word is how many consecutive k of an output lie together.
func (p *Packed) word() int {
	if p.words {
		return wordK
	}
	return 1
}

// ReadPacked reads weights that WriteTo wrote, size bytes from the front of r, and
// no byte more or less. They give the bits that the written ones give, on any
// machine.
//
// into is the caller's memory, as in PackOptions, for size - PackedHeader bytes; if
// it is nil the payload is read into memory of the weights' own. Nothing is
// allocated before size and header agree, so what a header claims costs no memory
// that the file does not have. r is not retained.
//
// Errors: ErrPacked, naming the field at fault, for anything but a file that
// WriteTo can have written, scales that are NaN, Inf or negative and codes past N
// that are not zero included; ErrShape for an into that does not do, whose contents
// are lost if a later error comes; those of r, simd.Err and the operating system.
func ReadPacked(r io.ReaderAt, size int64, into []byte) (*Packed, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	h, err := readHeader(r, size)
	if err != nil {
		return nil, err
	}
	p, err := h.packed(size)
	if err != nil {
		return nil, err
	}
	if err := p.place(into); err != nil {
		return nil, err
	}
	if err := p.readPayload(r, &h); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// bad is an ErrPacked about a field that is not what it must be.
func bad(field string, got, want any) error {
	return fmt.Errorf("%w: %s is %v, want %v", ErrPacked, field, got, want)
}

// readHeader reads a header that is whole: of this version, with the right checksum.
func readHeader(r io.ReaderAt, size int64) (h packedHeader, err error) {
	if size < PackedHeader {
		return h, bad("size", size, fmt.Sprintf("at least the %d of a header", PackedHeader))
	}
	var b [PackedHeader]byte
	if err := readAt(r, b[:], 0); err != nil {
		return h, err
	}
	if _, err := binary.Decode(b[:], binary.LittleEndian, &h); err != nil {
		panic("fp8: " + err.Error()) // it is long enough
	}
	switch sum := crc64.Checksum(b[:headerSum], crcTable); {
	case string(h.Magic[:]) != packedMagic:
		return h, bad("magic", fmt.Sprintf("%q", h.Magic[:]), fmt.Sprintf("%q", packedMagic))
	case h.Version != packedVersion:
		return h, bad("version", h.Version, packedVersion)
	case binary.LittleEndian.Uint64(b[headerSum:]) != sum:
		return h, bad("checksum of the header", fmt.Sprintf("%#x", binary.LittleEndian.Uint64(b[headerSum:])), fmt.Sprintf("%#x", sum))
	}
	return h, nil
}

// packed is the Packed, as yet without memory, that the header describes, if it is
// one and its file has size bytes.
func (h *packedHeader) packed(size int64) (*Packed, error) {
	switch {
	case h.Elem > uint32(ElemF32):
		return nil, bad("elem", h.Elem, fmt.Sprintf("at most %d", ElemF32))
	case h.Scaling > uint32(foldedIntoA):
		return nil, bad("scaling", h.Scaling, fmt.Sprintf("at most %d", foldedIntoA))
	case h.Finite > 1:
		return nil, bad("finite", h.Finite, "0 or 1")
	}
	for _, f := range []struct {
		name  string
		value uint64
	}{{"batch", h.Batch}, {"N", h.N}, {"K", h.K}} {
		if f.value < 1 || f.value > math.MaxInt {
			return nil, bad(f.name, f.value, "1 or more, and a size that an int holds")
		}
	}
	p := &Packed{elem: Elem(h.Elem), scaling: scaling(h.Scaling), batch: int(h.Batch), n: int(h.N), k: int(h.K)}
	if err := p.takeStep(h.Step); err != nil {
		return nil, err
	}
	p.layOut()
	if _, err := p.sizes(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrPacked, err)
	}
	want := p.describe()
	for _, f := range []struct {
		name      string
		got, want uint64
	}{
		{"lanes", uint64(h.Lanes), uint64(want.Lanes)},
		{"word", uint64(h.Word), uint64(want.Word)},
		{"groups", h.Groups, want.Groups},
		{"codes", h.Codes, want.Codes},
		{"scales", h.Scales, want.Scales},
		{"payload", h.Payload, want.Payload},
		{"unused", h.Unused[0], 0},
		{"unused", h.Unused[1], 0},
		{"size", uint64(size), PackedHeader + want.Payload},
	} {
		if f.got != f.want {
			return nil, bad(f.name, f.got, f.want)
		}
	}
	return p, nil
}

// takeStep sets a step that setStep can have set.
func (p *Packed) takeStep(step uint64) error {
	low, high := uint64(0), uint64(0)
	switch p.scaling {
	case scaled: // a step beyond K is cut to it
		low, high = uint64(min(foldIntoABelow, p.k)), uint64(p.k)
	case foldedIntoA:
		low, high = 1, uint64(min(foldIntoABelow-1, p.k))
	}
	if step < low || step > high {
		return bad("step", step, fmt.Sprintf("%d to %d", low, high))
	}
	p.step = int(step)
	return nil
}

// payloadPart is how much is read and summed at a time: what a second-level cache
// keeps in between.
const payloadPart = 256 << 10

// readPayload fills the memory and checks it.
func (p *Packed) readPayload(r io.ReaderAt, h *packedHeader) error {
	sum := uint64(0)
	for at := 0; at < len(p.memory); at += payloadPart {
		part := p.memory[at:min(at+payloadPart, len(p.memory))]
		if err := readAt(r, part, PackedHeader+int64(at)); err != nil {
			return err
		}
		sum = crc64.Update(sum, crcTable, part)
	}
	if sum != h.Sum {
		return bad("checksum of the payload", fmt.Sprintf("%#x", h.Sum), fmt.Sprintf("%#x", sum))
	}
	if err := ScalesF32(p.scales).check(); err != nil {
		return fmt.Errorf("%w: %w", ErrPacked, err)
	}
	if !zero(p.memory[h.Codes:h.Scales]) || !p.padded() {
		return fmt.Errorf("%w: there is something in the lanes past N or between codes and scales, want zeros", ErrPacked)
	}
	// A product that believed this of a NaN would make a number of it.
	finite := p.words && finiteE4M3(p.w.codes)
	if finite != (h.Finite == 1) {
		return bad("finite", h.Finite == 1, finite)
	}
	p.setPrescale(finite)
	return nil
}

// readAt fills b. The end of r is an ErrPacked.
func readAt(r io.ReaderAt, b []byte, at int64) error {
	n, err := io.ReadFull(io.NewSectionReader(r, at, int64(len(b))), b)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: it ends at byte %d, want %d and more: %w", ErrPacked, at+int64(n), at+int64(len(b)), io.ErrUnexpectedEOF)
	}
	if err != nil {
		return fmt.Errorf("fp8: packed file: %w", err)
	}
	return nil
}

// padded reports whether the lanes past N are zero, codes and scales.
func (p *Packed) padded() bool {
	last := p.panels - 1
	lanes := p.n - last*simd.Lanes
	for b := range p.batch {
		codes, scales := p.panel(b, last)
		if !zeroLanes(codes, lanes, p.word()*p.elem.Size()) || !zeroLanes(scales, lanes, 4) {
			return false
		}
	}
	return true
}

// zeroLanes reports whether, in rows of 16 lanes of size bytes, all from a lane on are
// zero.
func zeroLanes(b []byte, from, size int) bool {
	if from == simd.Lanes {
		return true
	}
	for row := simd.Lanes * size; len(b) > 0; b = b[row:] {
		if !zero(b[from*size : row]) {
			return false
		}
	}
	return true
}

func zero(b []byte) bool {
	seen := byte(0)
	for _, x := range b {
		seen |= x
	}
	return seen == 0
}

// finiteE4M3 reports whether no code is NaN. Their number is a multiple of 8.
func finiteE4M3(codes []byte) bool {
	var seen uint64
	for ; len(codes) > 0; codes = codes[8:] {
		// A NaN is 7F or FF: only there does the sum carry into the sign.
		seen |= binary.LittleEndian.Uint64(codes)&0x7F7F7F7F7F7F7F7F + 0x0101010101010101
	}
	return seen&0x8080808080808080 == 0
}
