package mla

import "github.com/lamina-ml/lamina/simd"

// rotate applies the layer's rope to one row of P values in place. freqs is the
// row of the table for its position.
func (c *Config) rotate(x, freqs []float32) {
	switch {
	case len(x) == 0:
	case c.RopeStyle == Half:
		simd.RopeHalf(x, x, freqs)
	default:
		simd.RopeInterleaved(x, x, freqs)
	}
}

// fill sets every value of x to v.
func fill[T float32 | int32](x []T, v T) {
	for i := range x {
		x[i] = v
	}
}

// clampRanges writes into lo, hi the parts of the absolute ranges [rowLo,
// rowHi) that fall into the keys [k0, k0+keys), counted from k0.
func clampRanges(lo, hi, rowLo, rowHi []int32, k0, keys int) {
	for j := range lo {
		lo[j] = int32(min(max(int(rowLo[j])-k0, 0), keys))
		hi[j] = int32(min(max(int(rowHi[j])-k0, 0), keys))
	}
}

// union is the range that covers all the ranges [lo[j], hi[j]) that are not
// empty; 0, 0 if all are.
func union(lo, hi []int32) (int, int) {
	first, last := int32(0), int32(0)
	for j := range lo {
		if lo[j] >= hi[j] {
			continue
		}
		if first == last {
			first, last = lo[j], hi[j]
			continue
		}
		first, last = min(first, lo[j]), max(last, hi[j])
	}
	return int(first), int(last)
}
