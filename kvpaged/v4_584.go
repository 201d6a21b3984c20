package kvpaged

import (
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// v4_584, of DeepSeek-V4: 448 values with scales and 64 without.
//
//	row       0  [448] E4M3FN codes
//	        448  [64]  bf16 rope
//	scales    0  [7]   E8M0, one for 64 codes
//	          7        0
//
// A page in one layer is PageTokens rows, then the scales of PageTokens tokens,
// filled up to a multiple of 576 bytes.

const (
	v4Codes = 448
	v4Group = 64
	v4Pad   = v4Codes / v4Group // where the last byte of the scales is
	v4Row   = 576
)

func encodeV4(row, scales []byte, x []float32) {
	for k := 0; k < v4Codes; k += v4Group {
		scales[k/v4Group] = encodeGroup(row[k:k+v4Group], x[k:k+v4Group])
	}
	scales[v4Pad] = 0
	encodeBF16(row[v4Codes:], x[v4Codes:])
}

func widenV4(t *tile, rows, scales []byte) {
	var wide [v4Pad]float32
	for i, at := range t.rows[:t.n] {
		dst, row, scales := t.row(i), rows[at:][:v4Row], scales[t.scales[i]:][:v4Pad]
		for g, e := range scales {
			wide[g] = simd.E8M0ToF32(e)
		}
		simd.WidenE4M3Groups(dst, row[:v4Codes], wide[:], v4Group)
		simd.WidenBF16(dst[v4Codes:], mem.Cast[uint16](row[v4Codes:]))
	}
}
