package kvpaged

import (
	"encoding/binary"
	"math"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// ds_mla_656, of DeepSeek-V3.2: a row is
//
//	  0  [512] E4M3FN codes of the latent
//	512  [4]   float32 scales, one for 128 codes
//	528  [64]  bf16 rope
//
// Scales are written as powers of two, see powerScale.

const (
	dsLatent = 512
	dsGroup  = 128
	dsRope   = dsLatent + dsLatent/dsGroup*4 // where the rope begins, in bytes
	dsRow    = 656
)

func encodeDSMLA656(row []byte, x []float32) {
	scales := row[dsLatent:dsRope]
	for k := 0; k < dsLatent; k += dsGroup {
		e := encodeGroup(row[k:k+dsGroup], x[k:k+dsGroup])
		binary.LittleEndian.PutUint32(scales[k/dsGroup*4:], math.Float32bits(simd.E8M0ToF32(e)))
	}
	encodeBF16(row[dsRope:], x[dsLatent:])
}

func widenDSMLA656(t *tile, rows []byte) {
	var scales [dsLatent / dsGroup]float32
	for i, at := range t.rows[:t.n] {
		dst, row := t.row(i), rows[at:][:dsRow]
		float32sAt(scales[:], row[dsLatent:])
		simd.WidenE4M3Groups(dst, row[:dsLatent], scales[:], dsGroup)
		simd.WidenBF16(dst[dsLatent:], mem.Cast[uint16](row[dsRope:]))
	}
}
