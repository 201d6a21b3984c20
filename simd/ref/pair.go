package ref

import "math"

// The second arithmetic multiplies bf16 values in pairs and sums in f32. Its values lie in pairs of two consecutive terms
// k = 2i and 2i+1, the first in the lower half of a word. A pair step adds the second term before the first:
//
//	c = fma(a[2i+1], b[2i+1], c)
//	c = fma(a[2i], b[2i], c)
//
// The processors that have it as one instruction know no subnormal values. What is below these bounds becomes +0, so that
// no product and no sum can be one.
const (
	leastAct   = 67 << 23 // float32 bits of 2^-60: queries, probabilities, activations, before they are rounded
	leastValue = 75 << 7  // bf16 bits of 2^-52: keys, values, weights, as they are in bf16
	leastSum   = 32 << 23 // float32 bits of 2^-95: sums of values, when they are scaled
	pairLanes  = 2 * Lanes
)

// actBF16 is an activation in bf16, the nearest, or +0 for less than 2^-60.
func actBF16(x float32) uint16 {
	if math.Float32bits(x)&0x7FFFFFFF < leastAct {
		return 0
	}
	return F32ToBF16(x)
}

// valueBF16 is a stored value as it is read: +0 for less than 2^-52.
func valueBF16(u uint16) uint16 {
	if u&0x7FFF < leastValue {
		return 0
	}
	return u
}

// tiny tells that valueBF16 changes a value that is not zero.
func tiny(u uint16) bool { return u&0x7FFF-1 < leastValue-1 }

// NarrowActBF16 is, for activations,
//
//	for i := range src {
//		if |src[i]| < 0x1p-60 {
//			dst[i] = 0
//		} else {
//			dst[i] = F32ToBF16(src[i])
//		}
//	}
func NarrowActBF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = actBF16(x)
	}
}

// NarrowValueBF16 is, for keys, values and weights,
//
//	for i := range src { dst[i] = F32ToBF16(src[i]) }
//
// with +0 for results below 0x1p-52.
func NarrowValueBF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, x := range src {
		dst[i] = valueBF16(F32ToBF16(x))
	}
}

// FlushBF16 is, for keys and values that are stored in bf16,
//
//	for i := range src { dst[i] = src[i] }
//
// with +0 for values below 0x1p-52. dst may be src.
func FlushBF16(dst, src []uint16) {
	dst = dst[:len(src)]
	for i, u := range src {
		dst[i] = valueBF16(u)
	}
}

// TinyBF16 tells whether FlushBF16 would change a value other than zero of rows src[i*lds+c], i < rows and c < cols.
func TinyBF16(src []uint16, lds, rows, cols int) bool {
	found := false
	for i := range rows {
		for _, u := range span(src, i*lds, cols) {
			found = found || tiny(u)
		}
	}
	return found
}

// InterleaveBF16 lays the keys of a tile in pairs,
//
//	dst[(key/2)*ldd + 2*c + key%2] = src[key*lds + c]
//
// for key < keys and c < cols, with +0 for values below 0x1p-52, and in the second place of a last pair that has one key.
// It tells whether one of those values is not zero.
func InterleaveBF16(dst []uint16, ldd int, src []uint16, lds, keys, cols int) bool {
	found := false
	for key := 0; key < keys; key += 2 {
		to := span(dst, key/2*ldd, 2*cols)
		clear(to)
		for place := range min(2, keys-key) {
			for c, u := range span(src, (key+place)*lds, cols) {
				to[2*c+place] = valueBF16(u)
				found = found || tiny(u)
			}
		}
	}
	return found
}

// PackPairs packs n rows of k activations into panels of 16 lanes, in pairs:
//
//	dst[(j/16)*ldd + kk/2*32 + j%16*2 + kk%2] = src[j*lds + kk]     as NarrowActBF16 has it
//
// The lanes past n in the last panel become +0, and so does the second place of the last pair if k is odd.
func PackPairs(dst []uint16, ldd int, src []float32, lds int, n, k int) {
	for j := 0; j < n; j += Lanes {
		panel := span(dst, j/Lanes*ldd, (k+1)/2*pairLanes)
		clear(panel)
		for lane := range min(Lanes, n-j) {
			for kk, x := range span(src, (j+lane)*lds, k) {
				panel[kk/2*pairLanes+2*lane+kk%2] = actBF16(x)
			}
		}
	}
}

// PairPanel lays a panel of k weights for 16 outputs in pairs:
//
//	dst[kk/2*32 + lane*2 + kk%2] = src[kk*16 + lane]     as NarrowValueBF16 has it
//
// The second place of the last pair becomes +0 if k is odd.
func PairPanel(dst []uint16, src []float32, k int) {
	dst = dst[:(k+1)/2*pairLanes]
	if k%2 == 1 {
		clear(dst[k/2*pairLanes:])
	}
	for i, x := range src[:k*Lanes] {
		kk, lane := i/Lanes, i%Lanes
		dst[kk/2*pairLanes+2*lane+kk%2] = valueBF16(F32ToBF16(x))
	}
}

// PairPanelBF16 is PairPanel for weights in bf16:
//
//	dst[kk/2*32 + lane*2 + kk%2] = src[kk*16 + lane]     +0 for less than 0x1p-52
func PairPanelBF16(dst, src []uint16, k int) {
	dst = dst[:(k+1)/2*pairLanes]
	if k%2 == 1 {
		clear(dst[k/2*pairLanes:])
	}
	for i, u := range src[:k*Lanes] {
		kk, lane := i/Lanes, i%Lanes
		dst[kk/2*pairLanes+2*lane+kk%2] = valueBF16(u)
	}
}

// WidenE4M3Pairs lays words of codes, of four consecutive k of an output each, in pairs. X is
//
//	c := codes[kk/4*64 + lane*4 + kk%4]
//	dst[kk/2*32 + lane*2 + kk%2] = F32ToBF16(E4M3ToF32(c))
//
// for lane < 16 and kk < len(codes)/16. len(codes) is a multiple of 64.
func WidenE4M3Pairs(dst []uint16, codes []byte) {
	dst = dst[:len(codes)]
	for i, c := range codes {
		block, lane, kk := i/64, i%64/4, i%4
		dst[(2*block+kk/2)*pairLanes+2*lane+kk%2] = F32ToBF16(E4M3ToF32(c))
	}
}

// turned widens values in the order in which pair steps take them: 1, 0, 3, 2, ...; an odd one comes last.
func turned(dst []float32, src []uint16) []float32 {
	dst = dst[:len(src)]
	for i := 0; i+1 < len(src); i += 2 {
		dst[i], dst[i+1] = BF16ToF32(src[i+1]), BF16ToF32(src[i])
	}
	if last := len(src) - 1; last%2 == 0 {
		dst[last] = BF16ToF32(src[last])
	}
	return dst
}

// turnedPairs is turned for k rows of lanes values that lie in pairs, ld apart: row kk goes to dst[kk*stride:].
func turnedPairs(dst []float32, stride int, src []uint16, ld, k, lanes int) {
	for i := range k / 2 {
		second, first := dst[2*i*stride:][:lanes], dst[(2*i+1)*stride:][:lanes]
		for lane := range first {
			u := src[i*ld+2*lane:][:2]
			first[lane], second[lane] = BF16ToF32(u[0]), BF16ToF32(u[1])
		}
	}
	if k%2 == 1 {
		last := dst[(k-1)*stride:][:lanes]
		for lane := range last {
			last[lane] = BF16ToF32(src[k/2*ld+2*lane])
		}
	}
}
