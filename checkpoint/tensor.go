package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strconv"
	"unsafe"

	"github.com/lamina-ml/lamina/internal/mem"
)

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	DType DType
	Shape Shape
	// Data holds the elements, little-endian and row-major. It is the file's memory: it ends
	// with [File.Close], and must not be written to.
	Data []byte
}

// String is the tensor without its data: "q BF16 [2, 16, 192]".
func (t Tensor) String() string {
	return fmt.Sprintf("%s %s %s", clip(t.Name), t.DType, t.Shape)
}

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
		if hi != 0 || lo > 1<<63-1 {
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

// Bools are the elements of a BOOL tensor; a byte that is neither 0 nor 1 is an error.
func (t Tensor) Bools() ([]bool, error) {
	if err := t.is(BOOL); err != nil {
		return nil, err
	}
	out := make([]bool, len(t.Data))
	for i, b := range t.Data {
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
	return t.Data, t.is(U8, F8_E4M3, F8_E5M2, F8_E8M0, F8_E4M3FNUZ, F8_E5M2FNUZ, F4, F6_E2M3, F6_E3M2)
}

// U16s are the elements of a U16 tensor or the bits of a BF16 or F16 tensor.
func (t Tensor) U16s() ([]uint16, error) {
	if err := t.is(U16, BF16, F16); err != nil {
		return nil, err
	}
	return view[uint16](t.Data), nil
}

// U32s are the elements of a U32 tensor.
func (t Tensor) U32s() ([]uint32, error) {
	if err := t.is(U32); err != nil {
		return nil, err
	}
	return view[uint32](t.Data), nil
}

// U64s are the elements of a U64 tensor.
func (t Tensor) U64s() ([]uint64, error) {
	if err := t.is(U64); err != nil {
		return nil, err
	}
	return view[uint64](t.Data), nil
}

// I8s are the elements of an I8 tensor, always copied.
func (t Tensor) I8s() ([]int8, error) {
	if err := t.is(I8); err != nil {
		return nil, err
	}
	return decode[int8](t.Data), nil
}

// I16s are the elements of an I16 tensor, always copied.
func (t Tensor) I16s() ([]int16, error) {
	if err := t.is(I16); err != nil {
		return nil, err
	}
	return decode[int16](t.Data), nil
}

// I32s are the elements of an I32 tensor.
func (t Tensor) I32s() ([]int32, error) {
	if err := t.is(I32); err != nil {
		return nil, err
	}
	return view[int32](t.Data), nil
}

// I64s are the elements of an I64 tensor.
func (t Tensor) I64s() ([]int64, error) {
	if err := t.is(I64); err != nil {
		return nil, err
	}
	return view[int64](t.Data), nil
}

// F32s are the elements of an F32 tensor.
func (t Tensor) F32s() ([]float32, error) {
	if err := t.is(F32); err != nil {
		return nil, err
	}
	return view[float32](t.Data), nil
}

// F64s are the elements of an F64 tensor.
func (t Tensor) F64s() ([]float64, error) {
	if err := t.is(F64); err != nil {
		return nil, err
	}
	return view[float64](t.Data), nil
}

// C64s are the elements of a C64 tensor (two F32 each), always copied.
func (t Tensor) C64s() ([]complex64, error) {
	if err := t.is(C64); err != nil {
		return nil, err
	}
	return decode[complex64](t.Data), nil
}

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

// view is data as values of another type: the same memory where the machine can read it so.
func view[T viewable](data []byte) []T {
	if !littleEndian || !mem.Aligned[T](data) {
		return decode[T](data)
	}
	return mem.Cast[T](data)
}

// decode is a converted copy of data, whose length is a whole number of values: that was
// checked against the shape.
func decode[T int8 | int16 | complex64 | viewable](data []byte) []T {
	var zero T
	out := make([]T, len(data)/int(unsafe.Sizeof(zero)))
	if _, err := binary.Decode(data, binary.LittleEndian, out); err != nil {
		panic("checkpoint: " + err.Error())
	}
	return out
}
