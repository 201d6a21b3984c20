package kvpaged

import "github.com/lamina-ml/lamina/simd"

// v41_528, of DeepSeek-V4.1: 512 values with scales, rope included.
//
//	row     [512] E4M3FN codes
//	scales  [16]  E8M0, one for 32 codes
//
// Interleaved: the scales of a token follow its codes, records of 528 bytes.
// Planar: a page in one layer is PageTokens rows, then the scales of PageTokens
// tokens, filled up to a multiple of 512 bytes.

const (
	v41Row   = 512
	v41Group = 32
)

func encodeV41(row, scales []byte, x []float32) {
	for k := 0; k < v41Row; k += v41Group {
		scales[k/v41Group] = encodeGroup(row[k:k+v41Group], x[k:k+v41Group])
	}
}

func widenV41(dst []float32, row, scales []byte) {
	for k := 0; k < v41Row; k += v41Group {
		simd.WidenE4M3Scaled(dst[k:], row[k:k+v41Group], simd.E8M0ToF32(scales[k/v41Group]))
	}
}
