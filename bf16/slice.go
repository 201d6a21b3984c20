package bf16

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/lamina-ml/lamina/simd"
)

// Errors of FromBytes, wrapped with the values at fault.
var (
	// ErrLength marks a number of bytes that is no number of elements.
	ErrLength = errors.New("bf16: wrong length")
	// ErrAlign marks bytes that do not begin at an even address.
	ErrAlign = errors.New("bf16: not aligned")
	// ErrOrder marks a machine on which little-endian bytes cannot be read in
	// place.
	ErrOrder = errors.New("bf16: this machine is big-endian")
)

// ToFloat32s widens src into dst. Like copy, it stops at the end of the shorter
// slice and returns how many values it wrote.
func ToFloat32s(dst []float32, src []BF16) int {
	n := min(len(dst), len(src))
	simd.WidenBF16(dst[:n], bits(src[:n]))
	return n
}

// FromFloat32s rounds src into dst as FromFloat32 does. Like copy, it stops at
// the end of the shorter slice and returns how many values it wrote.
func FromFloat32s(dst []BF16, src []float32) int {
	n := min(len(dst), len(src))
	simd.NarrowBF16(bits(dst[:n]), src[:n])
	return n
}

// Cast sees a slice of 16-bit words, whatever their type is called, as BF16.
// Nothing is copied or converted: both slices share their memory.
func Cast[T ~uint16](s []T) []BF16 {
	return unsafe.Slice((*BF16)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}

// FromBytes sees little-endian bytes, as safetensors files hold them, as BF16.
// Nothing is copied: both slices share their memory. It returns ErrLength for an
// odd number of bytes, ErrAlign for bytes that begin at an odd address, and
// ErrOrder on a big-endian machine.
func FromBytes(b []byte) ([]BF16, error) {
	switch {
	case len(b)%2 != 0:
		return nil, fmt.Errorf("%w: %d bytes, want 2 for each element", ErrLength, len(b))
	case len(b) == 0:
		return nil, nil
	case uintptr(unsafe.Pointer(unsafe.SliceData(b)))%2 != 0:
		return nil, fmt.Errorf("%w: the bytes begin at address %p, want an even one", ErrAlign, unsafe.SliceData(b))
	case binary.NativeEndian.Uint16([]byte{1, 0}) != 1:
		return nil, ErrOrder
	}
	return unsafe.Slice((*BF16)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/2), nil
}

func bits(s []BF16) []uint16 {
	return unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
}
