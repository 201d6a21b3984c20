package kvpaged

import (
	"encoding/binary"
	"math"

	"github.com/lamina-ml/lamina/simd"
)

// fp8_token: a row is E4M3FN codes, and every group of Config.Group values of it,
// latent and rope together, has a float32 scale in the second plane. The last
// group may be short.
//
//	row     [Width] codes
//	scales  [ceil(Width/Group)] float32
//
// Scales are written as powers of two, see powerScale.

func encodeFP8Token(row, scales []byte, x []float32, group int) {
	for len(x) > 0 {
		n := min(group, len(x))
		e := encodeGroup(row[:n], x[:n])
		binary.LittleEndian.PutUint32(scales, math.Float32bits(simd.E8M0ToF32(e)))
		row, scales, x = row[n:], scales[4:], x[n:]
	}
}

func widenFP8Token(dst []float32, row, scales []byte, group int) {
	for len(row) > 0 {
		n := min(group, len(row))
		simd.WidenE4M3Scaled(dst, row[:n], float32At(scales))
		dst, row, scales = dst[n:], row[n:], scales[4:]
	}
}

// float32At reads a float32 that need not be aligned.
func float32At(b []byte) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}
