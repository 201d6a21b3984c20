package fp8

import (
	"unsafe"

	"github.com/lamina-ml/lamina/simd"
)

// Rows is a slice of float32, bf16 or f16 elements: the activations and outputs
// of products. It is a small value, so that no method needs a type parameter and
// no call boxes its arguments. The zero Rows are no elements of float32.
type Rows struct {
	v values
}

// RowsF32 wraps float32 elements; the slice is not copied.
func RowsF32(x []float32) Rows { return Rows{values{elem: ElemF32, floats: x}} }

// RowsBF16 wraps the bits of bf16 elements; the slice is not copied.
func RowsBF16[T ~uint16](x []T) Rows { return Rows{values{elem: ElemBF16, halves: words(x)}} }

// RowsF16 wraps the bits of binary16 elements; the slice is not copied.
func RowsF16[T ~uint16](x []T) Rows { return Rows{values{elem: ElemF16, halves: words(x)}} }

// Len is the number of elements.
func (r Rows) Len() int { return r.v.len() }

// Kind is ElemF32, ElemBF16 or ElemF16.
func (r Rows) Kind() Elem {
	if r.v.elem < ElemBF16 {
		return ElemF32 // the zero Rows
	}
	return r.v.elem
}

// Float32 is element i; i must be in range, as for a slice.
func (r Rows) Float32(i int) float32 { return r.v.at(i) }

// F32 is the wrapped slice of float32 elements, nil for other kinds.
func (r Rows) F32() []float32 { return r.v.floats }

// BF16 is the wrapped slice of the bits of bf16 elements, nil for other kinds.
func (r Rows) BF16() []uint16 {
	if r.v.elem != ElemBF16 {
		return nil
	}
	return r.v.halves
}

// Widen fills dst[:n] with the elements off .. off+n.
func (r Rows) Widen(dst []float32, off, n int) { r.v.widen(dst[:n], off) }

// Narrow stores src at off .. off+len(src), each value rounded once to nearest
// even; overflow gives Inf.
func (r Rows) Narrow(off int, src []float32) {
	n := len(src)
	switch r.v.elem {
	case ElemBF16:
		simd.NarrowBF16(r.v.halves[off:off+n], src)
	case ElemF16:
		simd.NarrowF16(r.v.halves[off:off+n], src)
	default:
		copy(r.v.floats[off:off+n], src)
	}
}

// words sees 16-bit words, whatever their type is called, as uint16.
func words[T ~uint16](s []T) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}
