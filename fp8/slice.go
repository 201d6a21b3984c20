package fp8

import (
	"unsafe"

	"github.com/lamina-ml/lamina/simd"
)

// Float are the 8-bit formats with a sign, an exponent and a mantissa.
type Float interface {
	E4M3 | E5M2 | E4M3FNUZ | E5M2FNUZ
}

// ToFloat32s widens src into dst. Like copy, it stops at the end of the shorter
// slice and returns how many values it wrote.
func ToFloat32s[T Float](dst []float32, src []T) int {
	n := min(len(dst), len(src))
	v := values{elem: elemOf[T](), codes: Cast[uint8](src)}
	v.widen(dst[:n], 0)
	return n
}

// FromFloat32s rounds src into dst, o saying what becomes of values beyond the
// largest. Like copy, it stops at the end of the shorter slice and returns how
// many values it wrote.
func FromFloat32s[T Float](dst []T, src []float32, o Overflow) int {
	n := min(len(dst), len(src))
	narrow(elemOf[T](), Cast[uint8](dst[:n]), src[:n], o)
	return n
}

// narrow encodes src in one of the 8-bit formats.
func narrow(e Elem, dst []byte, src []float32, o Overflow) {
	saturate := o == Saturate
	switch {
	case e == ElemE4M3 && saturate:
		simd.NarrowE4M3(dst, src)
	case e == ElemE5M2 && saturate:
		simd.NarrowE5M2(dst, src)
	case e == ElemE4M3FNUZ && saturate:
		simd.NarrowE4M3FNUZ(dst, src)
	case e == ElemE5M2FNUZ && saturate:
		simd.NarrowE5M2FNUZ(dst, src)
	default:
		for i, x := range src {
			dst[i] = narrowOne(e, x, o)
		}
	}
}

func narrowOne(e Elem, x float32, o Overflow) uint8 {
	switch e {
	case ElemE4M3:
		return simd.F32ToE4M3(x, o)
	case ElemE5M2:
		return simd.F32ToE5M2(x, o)
	case ElemE4M3FNUZ:
		return simd.F32ToE4M3FNUZ(x, o)
	}
	return simd.F32ToE5M2FNUZ(x, o)
}

func elemOf[T Float]() Elem {
	switch any(T(0)).(type) {
	case E4M3:
		return ElemE4M3
	case E5M2:
		return ElemE5M2
	case E4M3FNUZ:
		return ElemE4M3FNUZ
	}
	return ElemE5M2FNUZ
}

// E2M1ToFloat32s widens pairs: dst[2i] is the first value of src[i]. It stops at
// the end of the shorter slice and returns how many values it wrote, an even
// number.
func E2M1ToFloat32s(dst []float32, src []E2M1x2) int {
	n := min(len(dst)/2, len(src))
	for i, c := range src[:n] {
		dst[2*i], dst[2*i+1] = c.Float32()
	}
	return 2 * n
}

// E2M1FromFloat32s rounds pairs as E2M1x2FromFloat32 does: src[2i] becomes the
// first value of dst[i]. It stops at the end of the shorter slice and returns how
// many values it read, an even number.
func E2M1FromFloat32s(dst []E2M1x2, src []float32) int {
	n := min(len(dst), len(src)/2)
	for i := range dst[:n] {
		dst[i] = E2M1x2FromFloat32(src[2*i], src[2*i+1])
	}
	return 2 * n
}

// Cast sees a slice of bytes, whatever their type is called, as codes, or codes
// as bytes: fp8.Cast[fp8.E4M3](b). Nothing is copied or converted: both slices
// share their memory. Bytes have neither alignment nor order, so any length and
// place will do.
func Cast[D, S ~uint8](s []S) []D {
	return unsafe.Slice((*D)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}
