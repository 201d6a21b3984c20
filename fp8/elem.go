package fp8

import (
	"fmt"

	"github.com/lamina-ml/lamina/simd"
)

// Elem names the type of the elements of a Matrix or of Rows.
type Elem uint8

// The element types.
const (
	ElemE4M3 Elem = iota
	ElemE5M2
	ElemE4M3FNUZ
	ElemE5M2FNUZ
	ElemBF16
	ElemF16
	ElemF32
)

// String is the name that case files and reports use: e4m3, bf16, ...
func (e Elem) String() string {
	names := [...]string{"e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "bf16", "f16", "f32"}
	if int(e) >= len(names) {
		return fmt.Sprintf("Elem(%d)", uint8(e))
	}
	return names[e]
}

// Size is the number of bytes of an element.
func (e Elem) Size() int {
	switch {
	case e < ElemBF16:
		return 1
	case e < ElemF32:
		return 2
	}
	return 4
}

// largest is the largest finite value of an 8-bit format.
func (e Elem) largest() float32 {
	switch e {
	case ElemE4M3:
		return 448
	case ElemE4M3FNUZ:
		return 240
	}
	return 57344
}

// values are elements of any type: one of the three slices holds them.
type values struct {
	elem   Elem
	codes  []byte    // the 8-bit formats
	halves []uint16  // bf16, f16
	floats []float32 // f32
}

func (v *values) len() int {
	switch v.elem.Size() {
	case 1:
		return len(v.codes)
	case 2:
		return len(v.halves)
	}
	return len(v.floats)
}

// at is element i.
func (v *values) at(i int) float32 {
	switch v.elem {
	case ElemE4M3:
		return simd.E4M3ToF32(v.codes[i])
	case ElemE5M2:
		return simd.E5M2ToF32(v.codes[i])
	case ElemE4M3FNUZ:
		return simd.E4M3FNUZToF32(v.codes[i])
	case ElemE5M2FNUZ:
		return simd.E5M2FNUZToF32(v.codes[i])
	case ElemBF16:
		return simd.BF16ToF32(v.halves[i])
	case ElemF16:
		return simd.F16ToF32(v.halves[i])
	}
	return v.floats[i]
}

// widen fills dst with the elements from off on.
func (v *values) widen(dst []float32, off int) {
	n := len(dst)
	switch v.elem {
	case ElemE4M3:
		simd.WidenE4M3(dst, v.codes[off:off+n])
	case ElemE5M2:
		simd.WidenE5M2(dst, v.codes[off:off+n])
	case ElemE4M3FNUZ:
		simd.WidenE4M3FNUZ(dst, v.codes[off:off+n])
	case ElemE5M2FNUZ:
		simd.WidenE5M2FNUZ(dst, v.codes[off:off+n])
	case ElemBF16:
		simd.WidenBF16(dst, v.halves[off:off+n])
	case ElemF16:
		simd.WidenF16(dst, v.halves[off:off+n])
	default:
		copy(dst, v.floats[off:off+n])
	}
}
