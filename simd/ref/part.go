package ref

// Lanes is the number of outputs in a panel of packed weights.
const Lanes = 16

// span is n values of x from at on. Rows of nothing are nowhere: a slice may end before the place that a stride gives
// them.
func span[T any](x []T, at, n int) []T {
	if n == 0 {
		return nil
	}
	return x[at:][:n]
}

// PackRows packs n rows of k values into panels of 16 lanes, in which the kernels read them:
//
//	dst[(j/16)*ldd + kk*16 + j%16] = src[j*lds + kk]
//
// The lanes past n in the last panel become zero.
func PackRows(dst []float32, ldd int, src []float32, lds int, n, k int) {
	for j := 0; j < n; j += Lanes {
		panel := span(dst, j/Lanes*ldd, k*Lanes)
		lanes := min(Lanes, n-j)
		if lanes < Lanes {
			clear(panel)
		}
		for lane := range lanes {
			for kk, v := range span(src, (j+lane)*lds, k) {
				panel[kk*Lanes+lane] = v
			}
		}
	}
}

// PartSet takes the part of a product over k <= 256 terms. x holds m rows, b panels of 16 lanes (PackRows). X is
//
//	var part float32
//	for kk := 0; kk < k; kk++ {
//		part = fma(x[i*ldx+kk], b[(j/16)*ldb+kk*16+j%16], part)
//	}
//	y[i*ldy+j] = part
//
// for i < m, j < n.
func PartSet(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, m, n, k int) {
	var part [Lanes]float32
	for j := 0; j < n; j += Lanes {
		panel := span(b, j/Lanes*ldb, k*Lanes)
		for i := range m {
			dot(&part, span(x, i*ldx, k), panel, n-j)
			copy(y[i*ldy+j:i*ldy+n], part[:])
		}
	}
}

// PartAdd is PartSet with
//
//	y[i*ldy+j] = y[i*ldy+j] + part
func PartAdd(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, m, n, k int) {
	var part [Lanes]float32
	for j := 0; j < n; j += Lanes {
		panel := span(b, j/Lanes*ldb, k*Lanes)
		for i := range m {
			dot(&part, span(x, i*ldx, k), panel, n-j)
			add(y[i*ldy+j:i*ldy+n], &part)
		}
	}
}

// PartScale is PartSet with
//
//	y[i*ldy+j] = fma(part, scale[j], y[i*ldy+j])
func PartScale(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, scale []float32, m, n, k int) {
	var part [Lanes]float32
	for j := 0; j < n; j += Lanes {
		panel := span(b, j/Lanes*ldb, k*Lanes)
		for i := range m {
			dot(&part, span(x, i*ldx, k), panel, n-j)
			row := y[i*ldy+j : i*ldy+n]
			for lane := range min(Lanes, n-j) {
				row[lane] = Fma(part[lane], scale[j+lane], row[lane])
			}
		}
	}
}

// PartScaleRows is PartScale with a scale for each row as well:
//
//	y[i*ldy+j] = fma(part, rows[i*ldr]*scale[j], y[i*ldy+j])    the product of scales rounded
func PartScaleRows(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, rows []float32, ldr int, scale []float32, m, n, k int) {
	var part [Lanes]float32
	for j := 0; j < n; j += Lanes {
		panel := span(b, j/Lanes*ldb, k*Lanes)
		for i := range m {
			dot(&part, span(x, i*ldx, k), panel, n-j)
			row := y[i*ldy+j : i*ldy+n]
			for lane := range min(Lanes, n-j) {
				row[lane] = Fma(part[lane], float32(rows[i*ldr]*scale[j+lane]), row[lane])
			}
		}
	}
}

// PartFoldSet is PartSet with the scale folded into the activation, for scales that change along k. scale has the
// layout of b with the panel stride lds. X is
//
//	xs := x[i*ldx+kk] * scale[(j/16)*lds+kk*16+j%16]     rounded
//	part = fma(xs, b[(j/16)*ldb+kk*16+j%16], part)
func PartFoldSet(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, scale []float32, lds int, m, n, k int) {
	var part [Lanes]float32
	for j := 0; j < n; j += Lanes {
		panel, scales := span(b, j/Lanes*ldb, k*Lanes), span(scale, j/Lanes*lds, k*Lanes)
		for i := range m {
			foldDot(&part, span(x, i*ldx, k), panel, scales, n-j)
			copy(y[i*ldy+j:i*ldy+n], part[:])
		}
	}
}

// PartFoldAdd is PartFoldSet with
//
//	y[i*ldy+j] = y[i*ldy+j] + part
func PartFoldAdd(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, scale []float32, lds int, m, n, k int) {
	var part [Lanes]float32
	for j := 0; j < n; j += Lanes {
		panel, scales := span(b, j/Lanes*ldb, k*Lanes), span(scale, j/Lanes*lds, k*Lanes)
		for i := range m {
			foldDot(&part, span(x, i*ldx, k), panel, scales, n-j)
			add(y[i*ldy+j:i*ldy+n], &part)
		}
	}
}

// add adds a part to at most 16 outputs.
func add(y []float32, part *[Lanes]float32) {
	for lane := range min(Lanes, len(y)) {
		y[lane] += part[lane]
	}
}
