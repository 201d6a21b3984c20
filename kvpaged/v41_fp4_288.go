package kvpaged

import (
	"slices"

	"github.com/lamina-ml/lamina/simd"
)

// v41_fp4_288, of DeepSeek-V4.1, for the cache of compressed tokens: 512 values
// of four bits with scales, rope included.
//
//	row     [256] pairs of E2M1 codes, value 2i in the low four bits of byte i
//	scales  [32]  E4M3FN, one for 16 values
//
// Interleaved: the scales of a token follow its codes, records of 288 bytes.
// Planar: a page in one layer is PageTokens rows, then the scales of PageTokens
// tokens, filled up to a multiple of 512 bytes.
//
// The scale is E4M3(amax/6), at least 2^-9, its smallest number. The code of v is
// that of v/scale, to nearest even; what is beyond 6, Inf included, becomes 6, and
// zeros keep their signs. There is no code for NaN: a group that has one gets the
// scale NaN, 0x7F, over the codes that it has anyway.

const (
	v41FP4Row    = 256
	v41FP4Group  = 16 // values, in 8 bytes
	v41FP4Scales = 2 * v41FP4Row / v41FP4Group
)

func encodeV41FP4(row, scales []byte, x []float32) {
	for g := range scales {
		group := x[g*v41FP4Group : (g+1)*v41FP4Group]
		code := max(simd.F32ToE4M3(amax(group)/6, simd.Saturate), 1)
		encodePairs(row[g*v41FP4Group/2:], group, simd.E4M3ToF32(code))
		if slices.ContainsFunc(group, isNaN) {
			code = 0x7F
		}
		scales[g] = code
	}
}

func isNaN(x float32) bool { return x != x }

func encodePairs(dst []byte, x []float32, scale float32) {
	for i := range len(x) / 2 {
		dst[i] = simd.F32ToE2M1(x[2*i]/scale) | simd.F32ToE2M1(x[2*i+1]/scale)<<4
	}
}

// widenV41FP4 reads the scales of token i from scales[scalesAt[i]:].
func widenV41FP4(t *tile, rows, scales []byte, scalesAt *[tileRows]int) {
	var wide [v41FP4Scales]float32
	for i, at := range t.rows[:t.n] {
		simd.WidenE4M3(wide[:], scales[scalesAt[i]:][:v41FP4Scales])
		simd.WidenE2M1Groups(t.row(i), rows[at:][:v41FP4Row], wide[:], v41FP4Group)
	}
}
