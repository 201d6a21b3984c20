package fp8

import (
	"encoding/binary"

	"github.com/lamina-ml/lamina/simd"
)

// E4M3 weights under scales have a product that decodes in registers. For it the
// codes of wordK consecutive k of an output lie together, as one word:
//
//	[batch][panel][k/4][lane][k%4]
//
// so that a piece of k that begins at a multiple of wordK begins at the same byte as
// in the order [k][lane] of all other weights.
const wordK = 4

// gatherWords is dst[k/4*64 + lane*4 + k%4] = src[lane*rowStride + k*colStride], and
// tells whether all those codes are finite. k is a multiple of wordK.
func gatherWords(dst, src []byte, rowStride, colStride, lanes, k int) bool {
	var seen uint32
	for kk := 0; kk < k; kk += wordK {
		words := dst[kk*simd.Lanes:][:lanes*wordK]
		for lane := range lanes {
			w := word(src[lane*rowStride+kk*colStride:], colStride)
			// A NaN is 7F or FF: only there does the sum carry into the sign.
			seen |= w&0x7F7F7F7F + 0x01010101
			binary.LittleEndian.PutUint32(words[lane*wordK:], w)
		}
	}
	return seen&0x80808080 == 0
}

// word is four codes, stride apart.
func word(src []byte, stride int) uint32 {
	if stride == 1 {
		return binary.LittleEndian.Uint32(src)
	}
	return uint32(src[0]) | uint32(src[stride])<<8 | uint32(src[2*stride])<<16 | uint32(src[3*stride])<<24
}

// widenWords fills dst with the values of codes in words, in the order [k][lane].
func widenWords(dst []float32, words []byte) {
	var ordered [pieceK * simd.Lanes]byte
	for at := 0; at < len(words); at += wordK * simd.Lanes {
		from := (*[wordK * simd.Lanes]byte)(words[at:])
		to := (*[wordK * simd.Lanes]byte)(ordered[at:])
		for lane := range simd.Lanes {
			to[lane] = from[lane*wordK]
			to[lane+simd.Lanes] = from[lane*wordK+1]
			to[lane+2*simd.Lanes] = from[lane*wordK+2]
			to[lane+3*simd.Lanes] = from[lane*wordK+3]
		}
	}
	simd.WidenE4M3(dst, ordered[:len(words)])
}
