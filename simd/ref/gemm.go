package ref

// pieceK is how many terms of a product are summed from zero at a time.
const pieceK = 256

// Lift is
//
//	dst[i*ldd+kk] = x[i*ldx+kk] * by     rounded
//
// for i < m and kk < k, and tells whether all results are finite. by is a power of two. dst may be x.
func Lift(dst []float32, ldd int, x []float32, ldx int, m, k int, by float32) bool {
	var seen float32 // 0, or NaN
	for i := range m {
		to := span(dst, i*ldd, k)
		for kk, v := range span(x, i*ldx, k) {
			v = float32(v * by)
			to[kk] = v
			seen += v - v
		}
	}
	return seen == 0
}

// GemmE4M3 is the terms from k0 to k of a product with E4M3 weights under block scales, for activations that are lifted
// by 2^120, which the weights make good. X is
//
//	total := 0, or y[i*ldy+j] if k0 > 0
//	for each piece [a, b) of [k0, k), cut at the multiples of 256 and of step {
//		var part float32
//		for kk := a; kk < b; kk++ {
//			c := codes[(j/16)*ldc + kk/4*64 + j%16*4 + kk%4]
//			part = fma(x[i*ldx+kk], E4M3ToF32(c) * 0x1p-120, part)
//		}
//		total = fma(part, scale[(j/16)*lds + a/step*16 + j%16], total)
//	}
//	y[i*ldy+j] = total
//
// for i < m and j < n. The products are those of the activations and the weights themselves, to the bit; only the
// reading of a code is cheaper. A product that is cut where a piece begins has the bits of a whole one, call after call.
// k0, k and step are multiples of 4, k more than k0; no code may be NaN. The last parameter, bypass, is a hint to bodies
// that store past the caches.
func GemmE4M3(y []float32, ldy int, x []float32, ldx int, codes []byte, ldc int, scale []float32, lds, m, n, k0, k, step, _ int) {
	gemmE4M3(y, ldy, x, ldx, codes, ldc, scale, lds, m, n, k0, k, step, 0x1p-120)
}

// GemmE4M3Half is GemmE4M3 for activations lifted by 2^8 and weights that count as their values times 2^-8: a code is
// then the upper half of a binary16, and none is a subnormal f32.
func GemmE4M3Half(y []float32, ldy int, x []float32, ldx int, codes []byte, ldc int, scale []float32, lds, m, n, k0, k, step, _ int) {
	gemmE4M3(y, ldy, x, ldx, codes, ldc, scale, lds, m, n, k0, k, step, 0x1p-8)
}

func gemmE4M3(y []float32, ldy int, x []float32, ldx int, codes []byte, ldc int, scale []float32, lds, m, n, k0, k, step int, unit float32) {
	var panel [pieceK * Lanes]float32
	var part [Lanes]float32
	for j := 0; j < n; j += Lanes {
		lanes := min(Lanes, n-j)
		if k0 == 0 {
			for i := range m {
				clear(y[i*ldy+j:][:lanes])
			}
		}
		for a := k0; a < k; {
			b := min(k, a+pieceK-a%pieceK, a+step-a%step)
			for kk := a; kk < b; kk++ {
				for lane := range Lanes {
					c := codes[j/Lanes*ldc+kk/4*4*Lanes+lane*4+kk%4]
					panel[(kk-a)*Lanes+lane] = float32(valuesE4M3[c] * unit)
				}
			}
			scales := scale[j/Lanes*lds+a/step*Lanes:][:lanes]
			for i := range m {
				dot(&part, x[i*ldx+a:][:b-a], panel[:(b-a)*Lanes], lanes)
				row := y[i*ldy+j:]
				for lane, s := range scales {
					row[lane] = Fma(part[lane], s, row[lane])
				}
			}
			a = b
		}
	}
}

// CopyRows copies rows:
//
//	dst[i*ldd+j] = src[i*lds+j]     i < rows, j < cols
//
// bypass is a hint to bodies that store past the caches.
func CopyRows(dst []float32, ldd int, src []float32, lds int, rows, cols, bypass int) {
	for i := range rows {
		copy(span(dst, i*ldd, cols), span(src, i*lds, cols))
	}
}

// FmaLoop measures what fma can do:
//
//	for range n {
//		for i := range 192 {
//			x[i] = fma(x[i], a, b)
//		}
//	}
func FmaLoop(x []float32, a, b float32, n int) {
	x = x[:192]
	for range n {
		for i, v := range x {
			x[i] = Fma(v, a, b)
		}
	}
}

// XorWords is the exclusive or of all words of x: it reads memory and does little else.
func XorWords(x []uint64) uint64 {
	var a, b, c, d uint64
	for len(x) >= 8 {
		a ^= x[0] ^ x[4]
		b ^= x[1] ^ x[5]
		c ^= x[2] ^ x[6]
		d ^= x[3] ^ x[7]
		x = x[8:]
	}
	for _, v := range x {
		a ^= v
	}
	return a ^ b ^ c ^ d
}

// Prefetch asks the processor for the lines of rows of n bytes, ld apart. It is a hint and computes nothing; pure Go has
// no way to give it.
func Prefetch(x []byte, ld, n, rows int) {}
