package kvpaged

import "github.com/lamina-ml/lamina/simd"

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
)

func encodeV4(row, scales []byte, x []float32) {
	for k := 0; k < v4Codes; k += v4Group {
		scales[k/v4Group] = encodeGroup(row[k:k+v4Group], x[k:k+v4Group])
	}
	scales[v4Pad] = 0
	encodeBF16(row[v4Codes:], x[v4Codes:])
}

func widenV4(dst []float32, row, scales []byte) {
	for k := 0; k < v4Codes; k += v4Group {
		simd.WidenE4M3Scaled(dst[k:], row[k:k+v4Group], simd.E8M0ToF32(scales[k/v4Group]))
	}
	widenBF16(dst[v4Codes:], row[v4Codes:])
}
