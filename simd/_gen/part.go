package workshop

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// The Part kernels are one generator of tiles: some rows of x by some vectors of b, all sums of which stay in registers
// while k runs. A family is the tiles of one width. A call works through its columns family by family, the widest first;
// for each group of columns it cuts the rows into tiles, so that the group's panels stay in the L1 cache.

// partSet is a product of rows and panels.
//
//	computes   y = part, by fma from zero in the order of k
//	registers  those of partKernel, and the tile's vectors
//	reads      x in place, a value at a time; b in whole vectors, and with AVX2 the next panel ahead
//	order      columns in groups of panels, rows in tiles, k from 0
//	limits     none
func partSet(g *G) {
	p := partKernel{G: g, finish: (*partTile).set}
	p.write()
}

// partAdd is partSet on top of what y holds.
//
//	computes   y = y + part
//	registers  those of partSet
//	reads      y, and what partSet reads
//	order      that of partSet
//	limits     none
func partAdd(g *G) {
	p := partKernel{G: g, finish: (*partTile).add}
	p.write()
}

// partScale is partAdd with a scale for each column.
//
//	computes   y = fma(part, scale, y)
//	registers  those of partSet; CX holds the scales of a tile
//	reads      y, scale, and what partSet reads
//	order      that of partSet
//	limits     none
func partScale(g *G) {
	p := partKernel{G: g, finish: (*partTile).scale}
	p.write()
}

// partScaleRows is partScale with a scale for each row as well.
//
//	computes   y = fma(part, rows*scale, y), the product of scales rounded
//	registers  those of partScale; R11 and R12 hold the scales of rows and their stride
//	reads      y, rows, scale, and what partSet reads
//	order      that of partSet
//	limits     none
func partScaleRows(g *G) {
	p := partKernel{G: g, finish: (*partTile).scaleRows}
	p.write()
}

// partFoldSet is partSet with a scale for each weight, by which the activation is multiplied.
//
//	computes   y = part, by fma(x*scale, b, part) from zero in the order of k, the product of x and scale rounded
//	registers  those of partSet; R10 holds a panel of scales, R13 walks it
//	reads      scale in whole vectors, and what partSet reads
//	order      that of partSet
//	limits     none
func partFoldSet(g *G) {
	p := partKernel{G: g, fold: true, finish: (*partTile).set}
	p.write()
}

// partFoldAdd is partFoldSet on top of what y holds.
//
//	computes   y = y + part
//	registers  those of partFoldSet
//	reads      y, and what partFoldSet reads
//	order      that of partSet
//	limits     none
func partFoldAdd(g *G) {
	p := partKernel{G: g, fold: true, finish: (*partTile).add}
	p.write()
}

// The registers of a Part kernel. Strides are in bytes.
var (
	partLDX   = reg.R8
	partLDY   = reg.R9
	partLDB   = reg.R10 // or, where scales are folded in, the panel of scales
	partNext  = reg.RSI // the first row of x after the tile
	partY     = reg.RDI // the next row of y, at the group's first column
	partPanel = reg.RBX
	partB     = reg.RDX // walks the panel, and by the stride the next one
	partK     = reg.RCX // steps left
	partRows  = reg.R14 // rows of the group left
	partCols  = reg.R15 // columns left
	partTmp   = reg.RAX

	// They walk rows 0, 3 and 6 of a tile.
	partX = [...]reg.GPPhysical{reg.R11, reg.R12, reg.R13}
	// In tiles of few rows it walks panels 2 and 3, or the panel of scales.
	partWalk = reg.R13
)

// partFamily is tiles of one width. Each call of at most rows rows begins with the first narrow family that takes them, any
// other with the first that is not narrow; columns that a family cannot take are left to the next.
type partFamily struct {
	vectors int  // of a tile's row
	rows    int  // of the tallest tile
	narrow  bool // takes whole panels only, and no more rows than one tile has
	half    bool // its vector is half a panel, in a YMM: two of them cost what a ZMM does
}

// families are sized so that the sums fit into the registers and keep the fma units busy: those have a latency of 4, and
// there are two for YMM, one or two for ZMM.
func (p *partKernel) families() []partFamily {
	switch {
	case p.pairs && !p.dots():
		return p.splitFamilies()
	case p.fold && p.Wide():
		return []partFamily{{vectors: 1, rows: 4}}
	case p.fold:
		return []partFamily{{vectors: 2, rows: 4}, {vectors: 1, rows: 4}}
	case p.pairs:
		return []partFamily{{vectors: 4, rows: 3, narrow: true}, {vectors: 2, rows: 8}, {vectors: 1, rows: 8}}
	case p.Wide():
		return []partFamily{{vectors: 4, rows: 3, narrow: true}, {vectors: 2, rows: 8}, {vectors: 1, rows: 8}, {vectors: 1, rows: 8, half: true}}
	}
	return []partFamily{{vectors: 8, rows: 1, narrow: true}, {vectors: 4, rows: 3, narrow: true}, {vectors: 2, rows: 6}, {vectors: 1, rows: 8}}
}

// least is the columns that a family leaves to the next: those that fill none of its last vectors, or half of one where
// there is a family for that.
func (p *partKernel) least(f partFamily) int {
	n := (f.vectors - 1) * p.Level.Lanes
	if p.Wide() && !p.fold && !p.pairs && !f.half {
		n += p.Level.Lanes / 2
	}
	return n
}

// partKernel writes the body of a Part kernel.
type partKernel struct {
	*G
	fold   bool                           // x is scaled for each weight
	pairs  bool                           // b, and x unless it is scaled, are bf16 in pairs: a step takes two k
	finish func(t *partTile, masked bool) // writes the sums of a tile to y
	done   string                         // label
}

func (p *partKernel) write() {
	p.done = p.Fresh("done")
	p.Arg("m", partRows)
	p.TESTQ(partRows, partRows)
	p.JLE(operand.LabelRef(p.done))
	p.Arg("n", partCols)
	p.TESTQ(partCols, partCols)
	p.JLE(operand.LabelRef(p.done))
	p.bytes("ldx", partLDX)
	p.stride("ldy", partLDY)
	p.Base("b", partPanel)
	if p.fold {
		p.Base("scale", partLDB)
	} else {
		p.bytes("ldb", partLDB)
	}
	families := p.families()
	labels := make([]string, len(families)+1)
	for i := range families {
		labels[i] = p.Fresh("family")
	}
	labels[len(families)] = p.done
	for i, f := range families {
		if !f.narrow {
			p.JMP(operand.LabelRef(labels[i]))
			break
		}
		p.CMPQ(partRows, operand.U8(uint8(f.rows)))
		p.JLE(operand.LabelRef(labels[i]))
	}
	for i, f := range families {
		p.Label(labels[i])
		p.group(f, labels[i+1])
		p.JMP(operand.LabelRef(labels[i]))
	}
	p.Label(p.done)
	p.Done()
}

// bytes loads a stride of x or b.
func (p *partKernel) bytes(name string, r reg.GPPhysical) {
	if !p.pairs || p.fold && name == "ldx" {
		p.stride(name, r)
		return
	}
	p.Arg(name, r)
	p.ADDQ(r, r)
}

// group does a family's next columns, or leaves them to another.
func (p *partKernel) group(f partFamily, other string) {
	lanes := p.Level.Lanes
	if f.narrow {
		p.CMPQ(partCols, operand.U8(uint8(f.vectors*lanes)))
		p.JLT(operand.LabelRef(other))
	} else {
		p.CMPQ(partCols, operand.U8(uint8(p.least(f))))
		p.JLE(operand.LabelRef(other))
	}
	if p.Wide() {
		p.lastMask(f)
	}
	p.column("y", partY)
	p.Arg("m", partRows)
	p.Base("x", partNext)
	p.rows(f)
	p.SUBQ(operand.U8(uint8(f.vectors*lanes)), partCols)
	p.JLE(operand.LabelRef(p.done))
	if p.fold {
		p.stride("lds", partTmp)
		p.ADDQ(partTmp, partLDB)
		p.bytes("ldb", partTmp)
		p.ADDQ(partTmp, partPanel)
		return
	}
	for range f.vectors * lanes / 16 {
		p.ADDQ(partLDB, partPanel)
	}
}

// column is the address of the group's first column in a slice.
func (p *partKernel) column(name string, r reg.GPPhysical) {
	p.Arg("n", partTmp)
	p.SUBQ(partCols, partTmp)
	p.Base(name, r)
	p.LEAQ(AtX(r, partTmp, 4, 0), r)
}

// lastMask makes K1 select the columns of the group's last vector.
func (p *partKernel) lastMask(f partFamily) {
	full := p.Fresh("full")
	p.MOVQ(operand.I32(-1), partTmp)
	p.KMOVW(partTmp.As32(), reg.K1)
	p.MOVQ(partCols, reg.RDI)
	p.SUBQ(operand.U8(uint8((f.vectors-1)*16)), reg.RDI)
	p.CMPQ(reg.RDI, operand.U8(16))
	p.JGE(operand.LabelRef(full))
	p.Tail(reg.RDI, partTmp, reg.K1)
	p.Label(full)
}

// rows cuts the rows into tiles: as many of the tallest as leave none with fewer than 4 rows, which would not keep the
// fma units busy, then at most two.
func (p *partKernel) rows(f partFamily) {
	const least = 4
	cut, done := p.Fresh("rows"), p.Fresh("rowsdone")
	labels := make([]string, f.rows+1)
	for r := range labels {
		labels[r] = p.Fresh(fmt.Sprintf("tile%d", r))
	}
	p.Label(cut)
	if f.rows >= least {
		p.CMPQ(partRows, operand.U8(uint8(f.rows+least)))
		p.JGE(operand.LabelRef(labels[f.rows]))
		p.CMPQ(partRows, operand.U8(uint8(f.rows)))
		p.JGT(operand.LabelRef(labels[least]))
	}
	for r := f.rows - 1; r > 0; r-- {
		p.CMPQ(partRows, operand.U8(uint8(r)))
		p.JEQ(operand.LabelRef(labels[r]))
	}
	for r := f.rows; r > 0; r-- {
		p.Label(labels[r])
		t := &partTile{partKernel: p, rows: r, vectors: f.vectors, tallest: f.rows, half: f.half}
		t.write(!f.narrow)
		p.SUBQ(operand.U8(uint8(r)), partRows)
		p.JZ(operand.LabelRef(done))
		p.JMP(operand.LabelRef(cut))
	}
	p.Label(done)
}

// partTile is rows of x by vectors of b.
type partTile struct {
	*partKernel
	rows, vectors, tallest int
	half                   bool
}

// V is a vector register, half of one where that is enough.
func (t *partTile) V(i int) reg.VecPhysical {
	if t.half {
		return Y(i)
	}
	return t.partKernel.V(i)
}

// sum is the register of a sum; free are those after the sums, counted from 0.
func (t *partTile) sum(row, v int) reg.VecPhysical { return t.V(row*t.vectors + v) }
func (t *partTile) free(i int) reg.VecPhysical     { return t.V(t.rows*t.vectors + i) }

// spare is the one of the registers that b and x may take for the i-th time, after the first few are taken.
func (t *partTile) spare(taken, i int) reg.VecPhysical {
	all := 2 * t.Level.Lanes // registers of the level
	return t.free(taken + i%(all-t.rows*t.vectors-taken))
}

// x is a value of a row, a number of steps from where the pointers are; b is a vector of the panels.
func (t *partTile) x(row, step int) operand.Mem {
	if row%3 == 0 {
		return At(partX[row/3], 4*step)
	}
	return AtX(partX[row/3], partLDX, uint8(row%3), 4*step)
}

func (t *partTile) b(v, step int) operand.Mem {
	lane := v * t.Level.Lanes
	disp := 64*step + lane%16*4
	base := partB
	if lane >= 32 {
		base = partWalk
	}
	if lane/16%2 == 0 {
		return At(base, disp)
	}
	return AtX(base, partLDB, 1, disp)
}

// write writes the tile: the sums over k, and what becomes of them. partial says that there may be fewer columns.
func (t *partTile) write(partial bool) {
	t.begin()
	if t.prefetches() {
		t.aim()
	}
	t.loop()
	if !partial {
		t.finish(t, false)
		return
	}
	if t.Wide() {
		t.finish(t, true)
		return
	}
	masked, done := t.Fresh("masked"), t.Fresh("finished")
	t.CMPQ(partCols, operand.U8(uint8(t.vectors*t.Level.Lanes)))
	t.JLT(operand.LabelRef(masked))
	t.finish(t, false)
	t.JMP(operand.LabelRef(done))
	t.Label(masked)
	t.columnMask()
	t.finish(t, true)
	t.Label(done)
}

// begin sets the pointers and clears the sums.
func (t *partTile) begin() {
	t.MOVQ(partNext, partX[0])
	for i := 1; 3*i < t.rows; i++ {
		t.LEAQ(AtX(partX[i-1], partLDX, 2, 0), partX[i])
		t.ADDQ(partLDX, partX[i])
	}
	for bit := 8; bit > 0; bit /= 2 {
		if t.rows&bit != 0 {
			t.LEAQ(AtX(partNext, partLDX, uint8(bit), 0), partNext)
		}
	}
	t.MOVQ(partPanel, partB)
	if t.pairs {
		t.pairConstants()
	}
	switch {
	case t.fold:
		t.MOVQ(partLDB, partWalk)
	case t.vectors*t.Level.Lanes > 32:
		t.LEAQ(AtX(partPanel, partLDB, 2, 0), partWalk)
	}
	for i := range t.rows * t.vectors {
		t.Zero(t.V(i))
	}
}

// prefetches tells whether the tile asks for the next panel: with AVX2 the tallest does, as the L2 cache of such machines
// may not hold all panels of a call.
func (t *partTile) prefetches() bool {
	return !t.fold && !t.pairs && !t.Wide() && t.vectors == 2 && t.rows == t.tallest
}

// aim makes partTmp the way from a panel to what the tile asks for: in the last of the tallest tiles that is the next
// panel, in others what is being read, which costs nothing.
func (t *partTile) aim() {
	here := t.Fresh("here")
	t.XORL(partTmp.As32(), partTmp.As32())
	t.CMPQ(partRows, operand.U8(uint8(2*t.rows)))
	t.JGE(operand.LabelRef(here))
	t.CMPQ(partCols, operand.U8(uint8(t.vectors*t.Level.Lanes)))
	t.JLE(operand.LabelRef(here))
	t.MOVQ(partLDB, partTmp)
	t.Label(here)
}

// loop runs through k.
func (t *partTile) loop() {
	t.Arg("k", partK)
	if t.pairs {
		t.pairLoop()
		return
	}
	t.unrolled(partK, 4, t.steps)
}

// steps does some steps of k and moves the pointers.
func (t *partTile) steps(n int) {
	for step := range n {
		if t.prefetches() {
			t.PREFETCHT0(AtX(partB, partTmp, 1, 64*step))
		}
		switch {
		case t.pairs && t.fold:
			t.foldPair(step, false)
		case t.pairs && !t.dots():
			t.splitPair(step, false)
		case t.fold:
			t.foldStep(step)
		case t.rows < t.vectors:
			t.wideStep(step)
		default:
			t.tallStep(step)
		}
	}
	x, walk := 4*n, 64*n
	if t.pairs && t.fold {
		x, walk = 2*x, 2*walk
	}
	for i := 0; 3*i < t.rows; i++ {
		t.ADDQ(operand.U8(uint8(x)), partX[i])
	}
	t.ADDQ(operand.U32(uint32(64*n)), partB)
	if t.fold || t.vectors*t.Level.Lanes > 32 {
		t.ADDQ(operand.U32(uint32(walk)), partWalk)
	}
}

// tallStep holds the vectors of b and takes one value of x after the other. With AVX-512, fma itself spreads the values
// of some rows: that is free, but takes a load for each vector.
func (t *partTile) tallStep(step int) {
	for v := range t.vectors {
		t.VMOVUPS(t.b(v, step), t.free(v))
	}
	for r := range t.rows {
		if t.Wide() && (t.vectors == 1 || r >= 5) {
			for v := range t.vectors {
				t.multiplySpread(t.x(r, step), t.free(v), t.sum(r, v))
			}
			continue
		}
		x := t.spare(t.vectors, step*t.rows+r)
		t.VBROADCASTSS(t.x(r, step), x)
		for v := range t.vectors {
			t.multiply(t.free(v), x, t.sum(r, v))
		}
	}
}

// multiply adds the products of a vector of b, or of pairs of it, and x to a sum; multiplySpread takes x from memory.
func (t *partTile) multiply(b operand.Op, x, sum reg.VecPhysical) {
	if t.pairs {
		t.VDPBF16PS(b, x, sum)
	} else {
		t.VFMADD231PS(b, x, sum)
	}
}

func (t *partTile) multiplySpread(x operand.Mem, b, sum reg.VecPhysical) {
	if t.pairs {
		t.VDPBF16PS_BCST(x, b, sum)
	} else {
		t.VFMADD231PS_BCST(x, b, sum)
	}
}

// wideStep holds the values of x and takes one vector of b after the other.
func (t *partTile) wideStep(step int) {
	for r := range t.rows {
		t.VBROADCASTSS(t.x(r, step), t.free(r))
	}
	for v := range t.vectors {
		if t.rows == 1 && !t.pairs {
			t.VFMADD231PS(t.b(v, step), t.free(0), t.sum(0, v))
			continue
		}
		b := t.spare(t.rows, step*t.vectors+v)
		t.VMOVUPS(t.b(v, step), b)
		for r := range t.rows {
			t.multiply(b, t.free(r), t.sum(r, v))
		}
	}
}

// foldStep is tallStep with x times the scales, which are as many vectors as b.
func (t *partTile) foldStep(step int) {
	for v := range t.vectors {
		t.VMOVUPS(t.b(v, step), t.free(v))
		t.VMOVUPS(At(partWalk, 64*step+t.Bytes()*v), t.free(t.vectors+v))
	}
	for r := range t.rows {
		x := t.free(2 * t.vectors)
		t.VBROADCASTSS(t.x(r, step), x)
		for v := range t.vectors {
			scaled := t.spare(2*t.vectors+1, r*t.vectors+v)
			t.VMULPS(t.free(t.vectors+v), x, scaled)
			t.VFMADD231PS(t.free(v), scaled, t.sum(r, v))
		}
	}
}

// What finishes a tile has these registers, in which no tile has its sums: the mask of the last vector's columns, the
// scale of a row, and others.
func (t *partTile) mask() reg.Register        { return t.byLevel(reg.K1, t.finishing(0)) }
func (t *partTile) rowScale() reg.VecPhysical { return t.finishing(1) }
func (t *partTile) tmp(i int) reg.VecPhysical { return t.finishing(2 + i) }

func (t *partTile) finishing(i int) reg.VecPhysical { return t.V(12*t.Level.Lanes/8 + i) }

// columnMask makes the mask, for AVX2.
func (t *partTile) columnMask() {
	t.MOVQ(partCols, partK)
	if t.vectors > 1 {
		t.SUBQ(operand.U8(uint8((t.vectors-1)*t.Level.Lanes)), partK)
	}
	t.Tail(partK, partTmp, t.mask())
}

// eachSum runs through the sums row by row, with partY at the row.
func (t *partTile) eachSum(row func(r int), sum func(r, v int, at operand.Mem)) {
	for r := range t.rows {
		row(r)
		for v := range t.vectors {
			sum(r, v, At(partY, v*t.Bytes()))
		}
		t.ADDQ(partLDY, partY)
	}
}

// last reports the vector that is masked.
func (t *partTile) last(v int, masked bool) bool { return masked && v == t.vectors-1 }

// load is vector v of a row as an operand: in memory, or in tmp if it is masked.
func (t *partTile) load(v int, masked bool, at operand.Mem, tmp reg.VecPhysical) operand.Op {
	if !t.last(v, masked) {
		return at
	}
	t.loadTail(at, t.mask(), tmp)
	return tmp
}

// store writes vector v of a row. It may overwrite the register.
func (t *partTile) store(v int, masked bool, from reg.VecPhysical, at operand.Mem) {
	switch {
	case !t.last(v, masked):
		t.VMOVUPS(from, at)
	case t.Wide():
		t.storeTail(from, t.mask(), at)
	default:
		t.storeFew(from, at)
	}
}

// storeFew stores the lowest partCols%8 values of a YMM by their number's bits: Zen takes more than ten cycles for a
// masked store.
func (t *partTile) storeFew(from reg.VecPhysical, at operand.Mem) {
	two, one, done := t.Fresh("two"), t.Fresh("one"), t.Fresh("stored")
	t.LEAQ(at, partTmp)
	t.TESTQ(operand.U32(4), partCols)
	t.JZ(operand.LabelRef(two))
	t.VMOVUPS(from.AsX(), At(partTmp, 0))
	t.VEXTRACTF128(operand.U8(1), from, from.AsX())
	t.ADDQ(operand.U8(16), partTmp)
	t.Label(two)
	t.TESTQ(operand.U32(2), partCols)
	t.JZ(operand.LabelRef(one))
	t.VMOVLPS(from.AsX(), At(partTmp, 0))
	t.VPERMILPS(operand.U8(0b1110), from.AsX(), from.AsX())
	t.ADDQ(operand.U8(8), partTmp)
	t.Label(one)
	t.TESTQ(operand.U32(1), partCols)
	t.JZ(operand.LabelRef(done))
	t.VMOVSS(from.AsX(), At(partTmp, 0))
	t.Label(done)
}

// set is y = part.
func (t *partTile) set(masked bool) {
	t.eachSum(func(int) {}, func(r, v int, y operand.Mem) {
		t.store(v, masked, t.sum(r, v), y)
	})
}

// add is y = y + part.
func (t *partTile) add(masked bool) {
	t.eachSum(func(int) {}, func(r, v int, y operand.Mem) {
		t.VADDPS(t.load(v, masked, y, t.tmp(0)), t.sum(r, v), t.sum(r, v))
		t.store(v, masked, t.sum(r, v), y)
	})
}

// scale is y = fma(part, scale, y).
func (t *partTile) scale(masked bool) {
	scales := partK
	t.column("scale", scales)
	t.eachSum(func(int) {}, func(r, v int, y operand.Mem) {
		scale := t.load(v, masked, At(scales, v*t.Bytes()), t.tmp(0))
		if !t.last(v, masked) {
			t.VMOVUPS(scale, t.tmp(0))
		}
		t.VFMADD213PS(t.load(v, masked, y, t.tmp(1)), t.tmp(0), t.sum(r, v))
		t.store(v, masked, t.sum(r, v), y)
	})
}

// scaleRows is y = fma(part, rows*scale, y).
func (t *partTile) scaleRows(masked bool) {
	scales, rows, ldr := partK, partX[0], partX[1]
	t.stride("ldr", ldr)
	t.Arg("m", partTmp)
	t.SUBQ(partRows, partTmp)
	t.IMULQ(ldr, partTmp)
	t.Base("rows", rows)
	t.ADDQ(partTmp, rows)
	t.column("scale", scales)
	t.eachSum(func(int) {
		t.VBROADCASTSS(At(rows, 0), t.rowScale())
		t.ADDQ(ldr, rows)
	}, func(r, v int, y operand.Mem) {
		t.VMULPS(t.load(v, masked, At(scales, v*t.Bytes()), t.tmp(0)), t.rowScale(), t.tmp(0))
		t.VFMADD213PS(t.load(v, masked, y, t.tmp(1)), t.tmp(0), t.sum(r, v))
		t.store(v, masked, t.sum(r, v), y)
	})
}
