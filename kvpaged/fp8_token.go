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

func widenFP8Token(t *tile, rows, scales []byte, group int) {
	var some [16]float32
	for i, at := range t.rows[:t.n] {
		dst, row, scales := t.row(i), rows[at:][:t.width], scales[t.scales[i]:]
		for len(row) > 0 {
			groups := min(len(some), (len(row)-1)/group+1)
			n := min(groups*group, len(row))
			float32sAt(some[:groups], scales)
			simd.WidenE4M3Groups(dst, row[:n], some[:groups], group)
			dst, row, scales = dst[n:], row[n:], scales[groups*tokenScale:]
		}
	}
}

// float32sAt reads float32s that need not be aligned.
func float32sAt(dst []float32, b []byte) {
	for i := range dst {
		dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
}
