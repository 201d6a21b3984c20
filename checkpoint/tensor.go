package checkpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strconv"
	"unsafe"

	"github.com/lamina-ml/lamina/internal/mem"
)

// intBits is the size of an int.
const intBits = bits.UintSize

// Tensor is one tensor: of a file, or to be written to one.
type Tensor struct {
	Name  string
	DType DType
	Shape Shape
	// Data holds the elements, little-endian and row-major, where they are in memory: of a
	// file in memory it is a part of that, and must not be written to. It is nil for a tensor
	// of a file that [Open] opened, whose memory is the file: [Tensor.Bytes], [Tensor.ReadAt]
	// and the typed accessors copy from there.
	Data []byte
	// Stream, if not nil, takes the place of Data for the writers: it writes the elements,
	// all of them and nothing else.
	Stream func(w io.Writer) error

	file *File // of a tensor without Data
	at   int64 // of the first byte in the file
	size int64 // in bytes
}

// String is the tensor without its data: "q BF16 [2, 16, 192]". A long name is cut, and one
// quoted that holds what is not printed, such as the sequences that terminals obey.
func (t Tensor) String() string {
	return fmt.Sprintf("%s %s %s", shown(t.Name), t.DType, t.Shape)
}

// File is the file that [Open] opened the tensor of, nil for one in memory.
func (t Tensor) File() *File { return t.file }

// Shape is the length of each dimension, the outermost first; nil is a scalar.
type Shape []int

// String is the shape as a header writes it: "[2, 16, 192]".
func (s Shape) String() string {
	b := []byte{'['}
	for i, n := range s {
		if i > 0 {
			b = append(b, ", "...)
		}
		b = strconv.AppendInt(b, int64(n), 10)
	}
	return string(append(b, ']'))
}

// Elements is the product of the dimensions; an error if one is negative or 64 bits do not
// hold the product, whatever dimensions of 0 stand beside it.
func (s Shape) Elements() (int, error) {
	n, err := s.elements()
	if err != nil {
		err = fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return n, err
}

func (s Shape) elements() (int, error) {
	n := uint64(1)
	empty := false
	for _, d := range s {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", s)
		}
		if d == 0 {
			empty = true
			continue
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > math.MaxInt {
			return 0, fmt.Errorf("the product of shape %v overflows 64 bits", s)
		}
		n = lo
	}
	if empty {
		n = 0
	}
	return int(n), nil
}

// bytes is the size of a tensor of this shape.
func (s Shape) bytes(d DType) (uint64, error) {
	n, err := s.elements()
	if err != nil {
		return 0, err
	}
	hi, total := bits.Mul64(uint64(n), uint64(d.Bits()))
	if hi != 0 {
		return 0, fmt.Errorf("the product of shape %v times %d bits overflows 64 bits", s, d.Bits())
	}
	if total%8 != 0 {
		return 0, fmt.Errorf("shape %v %v is %d bits, no whole number of bytes", s, d, total)
	}
	return total / 8, nil
}

// Size is the bytes of the elements; an error as for [Shape.Elements], or if they are no
// whole number.
func (t Tensor) Size() (int64, error) {
	n, err := t.Shape.bytes(t.DType)
	if err == nil && n > math.MaxInt64 {
		err = fmt.Errorf("shape %v %v overflows 63 bits", t.Shape, t.DType)
	}
	return int64(n), as(ErrFormat, err)
}

// ReadAt copies bytes of the elements, from byte off on, into p: an [io.ReaderAt]. ErrRead
// if the file was closed or shortened.
func (t Tensor) ReadAt(p []byte, off int64) (int, error) {
	if t.file == nil {
		return bytes.NewReader(t.Data).ReadAt(p, off)
	}
	if off < 0 {
		return 0, fmt.Errorf("%w: tensor %v: byte %d", ErrRead, t, off)
	}
	if off >= t.size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), t.size-off)
	// A whole piece may end where the file does.
	if got, err := t.file.data.ReadAt(p[:n], t.at+off); int64(got) < n {
		return got, fmt.Errorf("%s: %w: tensor %v: %w", t.file.path, ErrRead, t, err)
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// fill reads all of a tensor of a file into p.
func (t Tensor) fill(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	_, err := t.ReadAt(p, 0)
	return err
}

// affordable is an error for a tensor of a file that is too large to copy.
func (t Tensor) affordable() error {
	if t.file == nil {
		return nil
	}
	if most := t.file.limits.tensor(); t.size > most || t.size > math.MaxInt {
		return fmt.Errorf("%s: %w: tensor %v has %d bytes, wanted at most %d to be copied into memory", t.file.path, ErrLimit, t, t.size, most)
	}
	return nil
}

// Bytes are the bytes of the elements, of any type: a copy for a tensor of a file, else
// Data. Errors are ErrRead and ErrLimit, as for all accessors.
func (t Tensor) Bytes() ([]byte, error) {
	if t.file == nil {
		return t.Data, nil
	}
	if err := t.affordable(); err != nil {
		return nil, err
	}
	b := make([]byte, t.size)
	return b, t.fill(b)
}

// Bools are the elements of a BOOL tensor; a byte that is neither 0 nor 1 is an error.
func (t Tensor) Bools() ([]bool, error) {
	if err := t.is(BOOL); err != nil {
		return nil, err
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	out := make([]bool, len(data))
	for i, b := range data {
		if b > 1 {
			return nil, fmt.Errorf("%w: tensor %v: element %d is %d, wanted 0 or 1", ErrFormat, t, i, b)
		}
		out[i] = b == 1
	}
	return out, nil
}

// U8s are the elements of a U8 tensor or the codes of an F8, F6 or F4 tensor. Codes of F4 and
// F6 stay packed.
func (t Tensor) U8s() ([]byte, error) {
	if err := t.is(U8, F8_E4M3, F8_E5M2, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, F4, F6_E2M3, F6_E3M2); err != nil {
		return nil, err
	}
	return t.Bytes()
}

// U16s are the elements of a U16 tensor or the bits of a BF16 or F16 tensor.
func (t Tensor) U16s() ([]uint16, error) { return viewed[uint16](t, U16, BF16, F16) }

// U32s are the elements of a U32 tensor.
func (t Tensor) U32s() ([]uint32, error) { return viewed[uint32](t, U32) }

// U64s are the elements of a U64 tensor.
func (t Tensor) U64s() ([]uint64, error) { return viewed[uint64](t, U64) }

// I8s are the elements of an I8 tensor, always copied.
func (t Tensor) I8s() ([]int8, error) { return decoded[int8](t, I8) }

// I16s are the elements of an I16 tensor, always copied.
func (t Tensor) I16s() ([]int16, error) { return decoded[int16](t, I16) }

// I32s are the elements of an I32 tensor.
func (t Tensor) I32s() ([]int32, error) { return viewed[int32](t, I32) }

// I64s are the elements of an I64 tensor.
func (t Tensor) I64s() ([]int64, error) { return viewed[int64](t, I64) }

// F32s are the elements of an F32 tensor.
func (t Tensor) F32s() ([]float32, error) { return viewed[float32](t, F32) }

// F64s are the elements of an F64 tensor.
func (t Tensor) F64s() ([]float64, error) { return viewed[float64](t, F64) }

// C64s are the elements of a C64 tensor (two F32 each), always copied.
func (t Tensor) C64s() ([]complex64, error) { return decoded[complex64](t, C64) }

// is reports a tensor that has none of the types.
func (t Tensor) is(types ...DType) error {
	for _, d := range types {
		if t.DType == d {
			return nil
		}
	}
	want := types[0].String()
	for _, d := range types[1:] {
		want += " or " + d.String()
	}
	return fmt.Errorf("%w: tensor %v, wanted %s", ErrDType, t, want)
}

type viewable interface {
	uint16 | uint32 | int32 | uint64 | int64 | float32 | float64
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// viewed is a tensor as values of another type: the same memory where the machine can
// read it so, else a copy.
func viewed[T viewable](t Tensor, types ...DType) ([]T, error) {
	if err := t.is(types...); err != nil {
		return nil, err
	}
	switch {
	case t.file == nil && littleEndian && mem.Aligned[T](t.Data):
		return mem.Cast[T](t.Data), nil
	case t.file == nil || !littleEndian:
		return decoded[T](t, types...)
	}
	if err := t.affordable(); err != nil {
		return nil, err
	}
	var zero T
	out := make([]T, int(t.size)/int(unsafe.Sizeof(zero)))
	return out, t.fill(mem.Bytes(out))
}

// decoded is a converted copy of a tensor. Its bytes are a whole number of values: that
// was checked against the shape.
func decoded[T int8 | int16 | complex64 | viewable](t Tensor, types ...DType) ([]T, error) {
	if err := t.is(types...); err != nil {
		return nil, err
	}
	data, err := t.Bytes()
	if err != nil {
		return nil, err
	}
	var zero T
	out := make([]T, len(data)/int(unsafe.Sizeof(zero)))
	if _, err := binary.Decode(data, binary.LittleEndian, out); err != nil {
		panic("checkpoint: " + err.Error())
	}
	return out, nil
}
