package fp8

import (
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/simd"
)

// Scales are the multipliers of a Matrix, one for each block, in row-major order
// of the blocks: value = code * scale. The zero Scales are none. The slices are
// not copied.
type Scales struct {
	kind   scaleKind
	floats []float32
	halves []uint16
	codes  []byte
}

type scaleKind uint8

const (
	scalesNone scaleKind = iota
	scalesF32
	scalesBF16
	scalesE8M0
)

// ScalesF32 are float32 scales.
func ScalesF32(s []float32) Scales { return Scales{kind: scalesF32, floats: s} }

// ScalesBF16 are bf16 scales, by their bits.
func ScalesBF16[T ~uint16](s []T) Scales { return Scales{kind: scalesBF16, halves: words(s)} }

// ScalesE8M0 are E8M0 scales: powers of two, 2^(code-127).
func ScalesE8M0[T ~uint8](s []T) Scales { return Scales{kind: scalesE8M0, codes: Cast[byte](s)} }

// Len is the number of scales.
func (s Scales) Len() int { return len(s.floats) + len(s.halves) + len(s.codes) }

// Float32 is scale i; i must be in range, as for a slice.
func (s Scales) Float32(i int) float32 {
	switch s.kind {
	case scalesBF16:
		return simd.BF16ToF32(s.halves[i])
	case scalesE8M0:
		return simd.E8M0ToF32(s.codes[i])
	}
	return s.floats[i]
}

// check returns ErrScale for the first scale that is no finite number >= 0.
func (s Scales) check() error {
	for i := range s.Len() {
		if x := s.Float32(i); !(x >= 0 && x <= math.MaxFloat32) {
			return fmt.Errorf("%w: scale %d is %v, want a finite number >= 0", ErrScale, i, x)
		}
	}
	return nil
}
