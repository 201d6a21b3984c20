package kvpaged

import (
	"encoding/binary"
	"math"

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
)

func encodeDSMLA656(row []byte, x []float32) {
	scales := row[dsLatent:dsRope]
	for k := 0; k < dsLatent; k += dsGroup {
		e := encodeGroup(row[k:k+dsGroup], x[k:k+dsGroup])
		binary.LittleEndian.PutUint32(scales[k/dsGroup*4:], math.Float32bits(simd.E8M0ToF32(e)))
	}
	encodeBF16(row[dsRope:], x[dsLatent:])
}

func widenDSMLA656(dst []float32, row []byte) {
	scales := row[dsLatent:dsRope]
	for k := 0; k < dsLatent; k += dsGroup {
		simd.WidenE4M3Scaled(dst[k:], row[k:k+dsGroup], float32At(scales[k/dsGroup*4:]))
	}
	widenBF16(dst[dsLatent:], row[dsRope:])
}
