package workshop

// copyRowsNEON copies rows by way of vectors. It has no use for bypass: a store past the caches is but a hint on Arm.
//
//	computes   dst[i*ldd+j] = src[i*lds+j]
//	registers  dst, src, their strides and rows, rows left, left; 4 vectors
//	reads      src, by 16 values, 4 and 1 of a row
//	order      row by row, from the front
//	limits     none
func copyRowsNEON(a *A) {
	dst, src, ldd, lds := a.Base("dst"), a.Base("src"), a.Arg("ldd"), a.Arg("lds")
	rows, left, to, from := a.Arg("rows"), a.GP("left"), a.GP("to"), a.GP("from")
	values := a.Vecs("values", 4)
	a.LSL(Imm(2), ldd, ldd)
	a.LSL(Imm(2), lds, lds)
	a.steps(rows, 1, func() {
		a.Copy(src, from)
		a.Copy(dst, to)
		a.Reload("cols", left)
		a.pieces(left, func(lanes int) {
			vs := vectorsFor(values, lanes)
			a.loadLanes(from.Post(4*lanes), vs, lanes)
			a.storeLanes(vs, lanes, to.Post(4*lanes))
		})
		a.ADD(lds, src, src)
		a.ADD(ldd, dst, dst)
	})
	a.Done()
}
