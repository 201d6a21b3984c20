package ref

// eachPairPart computes the parts of a product over k <= 256 bf16 terms, panel by panel, and calls store for the 16
// outputs of a row from j on, fewer lanes at the end. The part is a copy: a slice of it would escape.
func eachPairPart(x []uint16, ldx int, b []uint16, ldb int, m, n, k int, store func(i, j, lanes int, part [Lanes]float32)) {
	var panel [pieceK * Lanes]float32
	var row [pieceK]float32
	var part [Lanes]float32
	for j := 0; j < n; j += Lanes {
		lanes := min(Lanes, n-j)
		turnedPairs(panel[:], Lanes, span(b, j/Lanes*ldb, (k+1)/2*pairLanes), pairLanes, k, Lanes)
		for i := range m {
			dot(&part, turned(row[:], span(x, i*ldx, k)), panel[:k*Lanes], lanes)
			store(i, j, lanes, part)
		}
	}
}

// PairSet takes the part of a product over k <= 256 bf16 terms, in pairs. x holds m rows, b panels of 16 lanes (PackPairs,
// PairPanel). X is
//
//	var part float32
//	for kk := 0; kk < k; kk += 2 {
//		a, w := x[i*ldx+kk:], b[(j/16)*ldb+kk/2*32+j%16*2:]
//		if kk+1 < k {
//			part = fma(a[1], w[1], part)
//		}
//		part = fma(a[0], w[0], part)
//	}
//	y[i*ldy+j] = part
//
// for i < m, j < n. x holds nothing below 0x1p-60 but zeros and b nothing below 0x1p-52, or the other way round: there is
// no product below 0x1p-112, and no sum is subnormal. If k is odd, the second place of the last pair of b is zero.
func PairSet(y []float32, ldy int, x []uint16, ldx int, b []uint16, ldb int, m, n, k int) {
	eachPairPart(x, ldx, b, ldb, m, n, k, func(i, j, lanes int, part [Lanes]float32) {
		copy(y[i*ldy+j:], part[:lanes])
	})
}

// PairAdd is PairSet with
//
//	y[i*ldy+j] = y[i*ldy+j] + part
func PairAdd(y []float32, ldy int, x []uint16, ldx int, b []uint16, ldb int, m, n, k int) {
	eachPairPart(x, ldx, b, ldb, m, n, k, func(i, j, lanes int, part [Lanes]float32) {
		for lane, sum := range part[:lanes] {
			y[i*ldy+j+lane] += sum
		}
	})
}

// PairScale is PairSet with
//
//	y[i*ldy+j] = fma(part, scale[j], y[i*ldy+j])
func PairScale(y []float32, ldy int, x []uint16, ldx int, b []uint16, ldb int, scale []float32, m, n, k int) {
	eachPairPart(x, ldx, b, ldb, m, n, k, func(i, j, lanes int, part [Lanes]float32) {
		row := y[i*ldy+j:]
		for lane, sum := range part[:lanes] {
			row[lane] = Fma(sum, scale[j+lane], row[lane])
		}
	})
}

// PairScaleRows is PairScale with a scale for each row as well:
//
//	y[i*ldy+j] = fma(part, rows[i*ldr]*scale[j], y[i*ldy+j])    the product of scales rounded
func PairScaleRows(y []float32, ldy int, x []uint16, ldx int, b []uint16, ldb int, rows []float32, ldr int, scale []float32, m, n, k int) {
	eachPairPart(x, ldx, b, ldb, m, n, k, func(i, j, lanes int, part [Lanes]float32) {
		row := y[i*ldy+j:]
		for lane, sum := range part[:lanes] {
			row[lane] = Fma(sum, float32(rows[i*ldr]*scale[j+lane]), row[lane])
		}
	})
}

// PairFoldSet is PairSet with the scale folded into the activation, for scales that change along k. x is float32; scale
// has the layout of PackRows with the panel stride lds. X is PairSet with
//
//	x[i*ldx+kk] * scale[(j/16)*lds+kk*16+j%16]     rounded, then as NarrowActBF16 has it
//
// in place of x[i*ldx+kk].
func PairFoldSet(y []float32, ldy int, x []float32, ldx int, b []uint16, ldb int, scale []float32, lds int, m, n, k int) {
	eachPairFold(x, ldx, b, ldb, scale, lds, m, n, k, func(i, j, lanes int, part [Lanes]float32) {
		copy(y[i*ldy+j:], part[:lanes])
	})
}

// PairFoldAdd is PairFoldSet with
//
//	y[i*ldy+j] = y[i*ldy+j] + part
func PairFoldAdd(y []float32, ldy int, x []float32, ldx int, b []uint16, ldb int, scale []float32, lds int, m, n, k int) {
	eachPairFold(x, ldx, b, ldb, scale, lds, m, n, k, func(i, j, lanes int, part [Lanes]float32) {
		for lane, sum := range part[:lanes] {
			y[i*ldy+j+lane] += sum
		}
	})
}

// eachPairFold is eachPairPart for PairFoldSet.
func eachPairFold(x []float32, ldx int, b []uint16, ldb int, scale []float32, lds int, m, n, k int, store func(i, j, lanes int, part [Lanes]float32)) {
	var panel [pieceK * Lanes]float32
	for j := 0; j < n; j += Lanes {
		lanes := min(Lanes, n-j)
		turnedPairs(panel[:], Lanes, span(b, j/Lanes*ldb, (k+1)/2*pairLanes), pairLanes, k, Lanes)
		scales := span(scale, j/Lanes*lds, k*Lanes)
		for i := range m {
			var part [Lanes]float32
			row := span(x, i*ldx, k)
			for at := range k {
				kk := at ^ 1 // the second of a pair comes first
				if kk >= k {
					kk = at
				}
				for lane := range lanes {
					act := BF16ToF32(actBF16(float32(row[kk] * scales[kk*Lanes+lane])))
					part[lane] = Fma(act, panel[at*Lanes+lane], part[lane])
				}
			}
			store(i, j, lanes, part)
		}
	}
}

// GemmE4M3Pairs is the terms from k0 to k of a product with E4M3 weights under block scales, for bf16 activations. X is
//
//	total := 0, or y[i*ldy+j] if k0 > 0
//	for each piece [a, b) of [k0, k), cut at the multiples of 256 and of step {
//		var part float32
//		for kk := a; kk < b; kk += 2 {
//			p, c := x[i*ldx+kk:], codes[(j/16)*ldc+kk/4*64+j%16*4+kk%4:]
//			part = fma(p[1], E4M3ToF32(c[1]), part)
//			part = fma(p[0], E4M3ToF32(c[0]), part)
//		}
//		total = fma(part, scale[(j/16)*lds + a/step*16 + j%16], total)
//	}
//	y[i*ldy+j] = total
//
// for i < m and j < n. k0, k and step are multiples of 4, k more than k0. x holds nothing below 0x1p-60 but zeros; no code
// may be NaN.
func GemmE4M3Pairs(y []float32, ldy int, x []uint16, ldx int, codes []byte, ldc int, scale []float32, lds, m, n, k0, k, step int) {
	var panel [pieceK * Lanes]float32
	var row [pieceK]float32
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
					panel[(kk^1-a)*Lanes+lane] = valuesE4M3[c]
				}
			}
			scales := scale[j/Lanes*lds+a/step*Lanes:][:lanes]
			for i := range m {
				dot(&part, turned(row[:], x[i*ldx+a:][:b-a]), panel[:(b-a)*Lanes], lanes)
				to := y[i*ldy+j:]
				for lane, s := range scales {
					to[lane] = Fma(part[lane], s, to[lane])
				}
			}
			a = b
		}
	}
}

// PairLoop measures what pair steps can do, with two pairs a and b:
//
//	for range n {
//		for i := range 192 {
//			x[i] = fma(a[1], b[1], x[i])
//			x[i] = fma(a[0], b[0], x[i])
//		}
//	}
//
// The first value of a pair is the lower half of the word. No value and no sum may be subnormal.
func PairLoop(x []float32, a, b uint32, n int) {
	x = x[:192]
	a0, a1 := BF16ToF32(uint16(a)), BF16ToF32(uint16(a>>16))
	b0, b1 := BF16ToF32(uint16(b)), BF16ToF32(uint16(b>>16))
	for range n {
		for i, v := range x {
			x[i] = Fma(a0, b0, Fma(a1, b1, v))
		}
	}
}
