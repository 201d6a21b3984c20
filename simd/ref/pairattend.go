package ref

import "math"

// maskedBF16 marks a place of a tile of probabilities in bf16 that no key may enter: -0.
const maskedBF16 = 0x8000

// SoftmaxTilePairs is SoftmaxTile with probabilities that are rounded to bf16 and laid in pairs of keys. For each row X is
//
//	t[key] = s[key]*scale            rounded
//	if no key is seen {
//		alpha = -1                   m and l stay
//	} else {
//		top = max(m, t[...])         of the keys seen; a NaN wins
//		alpha = exp(m - top)         -0 if that is 0 as m is -Inf: nothing was seen before
//		p[key] = exp(t[key] - top)   as NarrowActBF16 has it
//		sum = p[...]                 summed in key order from zero
//		l = fma(l, alpha, sum)
//		m = top
//	}
//
// and p[(key/2)*ldp + 2*j + key%2] = p[key], or -0, which no exp gives, for a key that is not seen and, if keys is odd, in
// the second place of the last pair. s becomes t, or -Inf for a key that is not seen. The result tells whether a
// key in the range of its row is not seen.
func SoftmaxTilePairs(p []uint16, ldp int, s []float32, lds, keys, n int, lo, hi []int32, scale float32, m, l, alpha []float32) bool {
	holes := false
	for j := range n {
		first, last := max(int(lo[j]), 0), min(int(hi[j]), keys)
		top, seen := m[j], false
		for key := range keys {
			t := negInf
			if first <= key && key < last {
				t = float32(s[key*lds+j] * scale)
				holes = holes || t == negInf
			}
			s[key*lds+j] = t
			if t != negInf {
				top, seen = larger(top, t), true
			}
		}
		var sum float32
		for key := range keys {
			prob := uint16(maskedBF16)
			if t := s[key*lds+j]; t != negInf {
				prob = actBF16(Exp(t - top))
				sum += BF16ToF32(prob)
			}
			p[key/2*ldp+2*j+key%2] = prob
		}
		if keys%2 == 1 {
			p[keys/2*ldp+2*j+1] = maskedBF16
		}
		alpha[j] = -1
		if seen {
			alpha[j] = Exp(m[j] - top)
			if alpha[j] == 0 && m[j] == negInf {
				alpha[j] = negZero
			}
			m[j], l[j] = top, Fma(l[j], alpha[j], sum)
		}
	}
	return holes
}

// ValueTilePairs adds the values of a tile of at most 32 pairs of keys to n rows of cols outputs. For row j and column c,
// X is
//
//	x := o[j*ldo+c]
//	if alpha != nil && alpha[j] is -0 {
//		x = 0                        whatever o holds
//	} else if alpha != nil && alpha[j] != -1 {
//		x = x * alpha[j]             rounded, at 1 too
//		if |x| < 0x1p-95 {
//			x = 0
//		}
//	}
//	for i := 0; i < pairs; i++ {
//		a, w := p[i*ldp+2*j:], v[i*ldv+2*c:]
//		x = fma(a[1], w[1], x)
//		x = fma(a[0], w[0], x)
//	}
//
// p holds nothing below 0x1p-60 and v nothing below 0x1p-52 but zeros. Where nothing is scaled, o holds nothing below
// 0x1p-95 but +0. next is a hint, as Prefetch is.
func ValueTilePairs(o []float32, ldo int, p []uint16, ldp int, v []uint16, ldv int, alpha []float32, pairs, n, cols int, next []byte) {
	valueTilePairs(o, ldo, p, ldp, v, ldv, alpha, pairs, n, cols, false)
}

// ValueTilePairsMasked is ValueTilePairs that skips a key whose p is -0: a pair of two such keys has no step, and in a
// pair with one its p and its v count as 0. Whatever the values of such a key are, they reach nothing. A row
// whose alpha is -1 has no others.
func ValueTilePairsMasked(o []float32, ldo int, p []uint16, ldp int, v []uint16, ldv int, alpha []float32, pairs, n, cols int) {
	valueTilePairs(o, ldo, p, ldp, v, ldv, alpha, pairs, n, cols, true)
}

// ValueTilePairsCausal is ValueTilePairsMasked for the p of a causal mask: row j sees the keys below seen+j, and p is -0 at
// the others and only there. seen is at least 0.
func ValueTilePairsCausal(o []float32, ldo int, p []uint16, ldp int, v []uint16, ldv int, alpha []float32, pairs, n, cols, seen int) {
	valueTilePairs(o, ldo, p, ldp, v, ldv, alpha, pairs, n, cols, true)
}

// valueTilePairs takes 8 columns at a time over all rows.
func valueTilePairs(o []float32, ldo int, p []uint16, ldp int, v []uint16, ldv int, alpha []float32, pairs, n, cols int, masks bool) {
	var values [maxKeys * width]float32
	var weights [maxKeys]float32
	w := weights[:2*pairs]
	for c := 0; c < cols; c += width {
		lanes := min(width, cols-c)
		if pairs > 0 {
			turnedPairs(values[:], width, v[2*c:], ldv, 2*pairs, lanes)
		}
		for j := range n {
			for i := range pairs {
				u := p[i*ldp+2*j:][:2]
				w[2*i], w[2*i+1] = BF16ToF32(u[1]), BF16ToF32(u[0])
			}
			to := o[j*ldo+c:][:lanes]
			if alpha != nil && alpha[j] != -1 {
				scaleSums(to, alpha[j])
			}
			var sums [width]float64
			for lane, x := range to {
				sums[lane] = float64(x)
			}
			for first := 0; first < len(w); first++ {
				last := len(w)
				if masks {
					last = visibleRun(w, first)
				}
				if first < last {
					accumulate(&sums, w[first:last], values[first*width:], width, lanes)
				}
				first = last
			}
			store(to, &sums)
		}
	}
}

// scaleSums multiplies sums by alpha, rounded, and makes those +0 that are below 2^-95, or all if alpha is -0.
func scaleSums(sums []float32, alpha float32) {
	if math.Float32bits(alpha) == 1<<31 {
		clear(sums)
		return
	}
	for c, x := range sums {
		x = float32(x * alpha)
		if math.Float32bits(x)&0x7FFFFFFF < leastSum {
			x = 0
		}
		sums[c] = x
	}
}
