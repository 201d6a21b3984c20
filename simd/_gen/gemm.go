package workshop

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gemmE4M3 multiplies by codes that become float32 in registers: the code in the upper byte of a word, the word shifted
// by 4 with its sign, all but the sign and 7 bits masked off, is the value times 2^-120.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  SI x, R8 its stride, R9 row 3 of x; DI codes, R10 their stride; R11 three strides of either; DX y;
//	           R12, BX scale; AX, R14 the ends of a piece, R13 the next k with other scales, CX blocks of 4 k left,
//	           R15 n left; sums from V0 on, then weights, an activation, the mask. m and the bases of x and y move on in
//	           their parameters, and where the length of scale was are the bytes of its groups before k0
//	reads      words of codes once for every k, on AVX2 from up to 3 bytes before them but for a panel's first
//	order      rows in groups, panels of 16 outputs inside, pieces of k inside from k0 on; the sums stay in y between
//	           pieces, and are there before if k0 is not 0
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmE4M3(g *G) { newGemm(g, wordDecoder{}).write() }

// gemmE4M3Half is gemmE4M3 by way of binary16: the code in the upper byte of a word, shifted by 17 with its sign and
// masked, is the binary16 of its value times 2^-8.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  those of gemmE4M3
//	reads      as gemmE4M3
//	order      as gemmE4M3
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmE4M3Half(g *G) { newGemm(g, halfDecoder{}).write() }

// gemm writes a product of whole rows by panels of codes.
type gemm struct {
	*G
	decoder    decoder
	weights    []reg.VecPhysical // those decoded at a time
	activation reg.VecPhysical   // AVX2 only: AVX-512 broadcasts in the fma
	mask       reg.VecPhysical   // of the decoder
	pairs      bool              // activations are bf16: see gemmE4M3Pairs
	own        *pairDecoder      // of a processor that multiplies pairs
}

// decoder makes as many weights as there are registers for from the words at codes, whose byte kk counts. far tells
// that the three bytes before the words may be read as well.
type decoder interface {
	mask() uint32
	decode(g *gemm, codes []operand.Mem, kk int, far bool)
}

func newGemm(g *G, d decoder) *gemm {
	if g.Wide() {
		return &gemm{G: g, decoder: d, weights: []reg.VecPhysical{Z(30)}, mask: Z(31)}
	}
	return &gemm{G: g, decoder: d, weights: []reg.VecPhysical{Y(12), Y(13)}, activation: Y(14), mask: Y(15)}
}

// gemmShape is what the registers hold at a time: the sums of rows by panels of 16 outputs.
type gemmShape struct {
	rows, panels int
}

// column is a vector of outputs of a tile.
type column struct {
	panel, half int
}

func (g *gemm) columns(t gemmShape) (cs []column) {
	for p := range t.panels {
		cs = append(cs, column{p, 0})
		if !g.Wide() {
			cs = append(cs, column{p, 1})
		}
	}
	return cs
}

// batch is how many columns are decoded at a time.
func (g *gemm) batch() int {
	if g.Wide() {
		return 1
	}
	return 2
}

// tiles are the shapes for the row counts that groups have: as many sums as fit, for those have to hide the latency of
// an fma.
func (g *gemm) tiles() []gemmShape {
	if g.Wide() {
		return []gemmShape{{8, 2}, {7, 2}, {6, 2}, {5, 2}, {4, 4}, {3, 4}, {2, 4}, {1, 4}}
	}
	return []gemmShape{{6, 1}, {5, 1}, {4, 1}, {3, 2}, {2, 3}, {1, 4}}
}

func (g *gemm) write() {
	done := g.Fresh("done")
	g.Arg("n", reg.RAX)
	g.TESTQ(reg.RAX, reg.RAX)
	g.JLE(operand.LabelRef(done))
	if g.own != nil {
		g.own.prepare()
	} else {
		g.Splat(g.decoder.mask(), g.mask)
	}
	if g.Wide() && !g.pairs {
		g.wholeLines("y", "ldy")
	}
	g.scalesBefore()
	next := g.Fresh("rows")
	g.Label(next)
	g.Arg("m", reg.RAX)
	g.TESTQ(reg.RAX, reg.RAX)
	g.JLE(operand.LabelRef(done))
	labels := g.choose()
	for _, t := range g.tiles() {
		g.Label(labels[t.rows])
		g.rowGroup(t)
		g.JMP(operand.LabelRef(next))
	}
	g.Label(done)
	if g.Wide() {
		g.SFENCE() // what was stored past the caches is seen before what follows
	}
	g.Done()
}

// scalesBefore has the bytes of a panel's scales before those of k0 in place of the length of scale.
func (g *gemm) scalesBefore() {
	g.Arg("k0", reg.RAX)
	g.XORL(reg.EDX, reg.EDX)
	g.DIVQ(g.ArgAt("step"))
	g.SHLQ(operand.U8(6), reg.RAX)
	g.Store(reg.RAX, g.Param("scale").Len())
}

// choose jumps to the tile for the next rows of the AX that are left, so that no small group remains.
func (g *gemm) choose() map[int]string {
	labels := map[int]string{}
	for _, t := range g.tiles() {
		labels[t.rows] = g.Fresh(fmt.Sprintf("rows%d", t.rows))
	}
	from := func(least, rows int) {
		g.CMPQ(reg.RAX, operand.U32(uint32(least)))
		g.JGE(operand.LabelRef(labels[rows]))
	}
	if g.Wide() {
		from(16, 8)
		for m := 15; m > 8; m-- {
			from(m, (m+1)/2)
		}
		for m := 8; m > 1; m-- {
			from(m, m)
		}
	} else {
		from(10, 6)
		from(7, 4)
		for m := 6; m > 1; m-- {
			from(m, m)
		}
	}
	g.JMP(operand.LabelRef(labels[1]))
	return labels
}

// rowGroup computes all outputs of a tile's rows.
func (g *gemm) rowGroup(t gemmShape) {
	g.Base("x", reg.RSI)
	g.Arg("ldx", reg.R8)
	g.SHLQ(operand.U8(g.logX()), reg.R8)
	g.Arg("k0", reg.RAX)
	g.LEAQ(AtX(reg.RSI, reg.RAX, 1<<g.logX(), 0), reg.RSI)
	g.rowPointers(t)
	g.Base("codes", reg.RDI)
	g.SHLQ(operand.U8(4), reg.RAX)
	g.ADDQ(reg.RAX, reg.RDI)
	g.Arg("ldc", reg.R10)
	if t.panels == 4 {
		g.LEAQ(AtX(reg.R10, reg.R10, 2, 0), reg.R11)
	}
	g.Base("y", reg.RDX)
	g.Base("scale", reg.R12)
	g.Arg("n", reg.R15)

	if t.panels > 1 {
		wide, narrow := g.Fresh("wide"), g.Fresh("narrow")
		g.Label(wide)
		g.CMPQ(reg.R15, operand.U32(uint32(16*t.panels)))
		g.JLT(operand.LabelRef(narrow))
		g.outputs(t)
		g.JMP(operand.LabelRef(wide))
		g.Label(narrow)
	}
	panel, end := g.Fresh("panel"), g.Fresh("end")
	g.Label(panel)
	g.TESTQ(reg.R15, reg.R15)
	g.JLE(operand.LabelRef(end))
	g.outputs(gemmShape{t.rows, 1})
	g.JMP(operand.LabelRef(panel))
	g.Label(end)
	g.advance(t.rows)
}

// rowPointers sets R9 and, for more than six rows, R11.
func (g *gemm) rowPointers(t gemmShape) {
	if t.rows > 3 {
		g.LEAQ(AtX(reg.R8, reg.R8, 2, 0), reg.R9)
		if t.rows > 6 {
			g.MOVQ(reg.R9, reg.R11)
		}
		g.ADDQ(reg.RSI, reg.R9)
	}
}

// row is the activation of a row, kk past the current.
func (g *gemm) row(i, kk int) operand.Mem {
	switch {
	case i == 0:
		return At(reg.RSI, 4*kk)
	case i < 3:
		return AtX(reg.RSI, reg.R8, uint8(i), 4*kk)
	case i == 3:
		return At(reg.R9, 4*kk)
	case i < 6:
		return AtX(reg.R9, reg.R8, uint8(i-3), 4*kk)
	case i == 6:
		return AtX(reg.RSI, reg.R11, 2, 4*kk)
	}
	return AtX(reg.R9, reg.R8, 4, 4*kk)
}

// codes is memory at the current words of a panel.
func (g *gemm) codes(panel, disp int) operand.Mem {
	return plus(oneOfFour(reg.RDI, reg.R10, reg.R11, panel), disp)
}

// atMost lowers r to limit.
func (g *gemm) atMost(limit, r reg.Register) {
	below := g.Fresh("below")
	g.CMPQ(r, limit)
	g.JLE(operand.LabelRef(below))
	g.MOVQ(limit, r)
	g.Label(below)
}

// logX is the binary logarithm of the bytes of an activation.
func (g *gemm) logX() int {
	if g.pairs {
		return 1
	}
	return 2
}

// advance moves on by a group of rows.
func (g *gemm) advance(rows int) {
	for i, name := range []string{"x", "y"} {
		size := []int{1 << g.logX(), 4}[i]
		g.Arg("ld"+name, reg.RAX)
		g.IMUL3Q(operand.U32(uint32(size*rows)), reg.RAX, reg.RAX)
		g.Base(name, reg.RCX)
		g.ADDQ(reg.RAX, reg.RCX)
		g.Store(reg.RCX, g.Param(name).Base())
	}
	g.Arg("m", reg.RAX)
	g.SUBQ(operand.U32(uint32(rows)), reg.RAX)
	g.Store(reg.RAX, g.Param("m"))
}

// outputs computes the next 16*panels outputs of a tile's rows, fewer in the last panel, and moves on by them.
func (g *gemm) outputs(t gemmShape) {
	piece, same := g.Fresh("piece"), g.Fresh("same")
	if !g.keeps(t) {
		g.eachRow(t, func(int) { // whose lines the first piece writes
			for p := range t.panels {
				g.PREFETCHT0(At(reg.R14, 64*p))
			}
		})
	}
	g.MOVQ(reg.R12, reg.RBX)
	g.Load(g.Param("scale").Len(), reg.RAX)
	g.ADDQ(reg.RAX, reg.RBX)
	g.Arg("k0", reg.RAX)
	if g.keeps(t) {
		g.firstTotals(t)
	}
	g.Label(piece)
	g.part(t)
	g.finish(t)
	g.nextScales()
	g.CMPQ(reg.RAX, reg.R13)
	g.JNE(operand.LabelRef(same))
	g.ADDQ(operand.U32(64), reg.RBX)
	g.Label(same)
	g.Arg("k", reg.R14)
	g.CMPQ(reg.RAX, reg.R14)
	g.JLT(operand.LabelRef(piece))
	if g.keeps(t) {
		g.storeTotals(t)
		g.Arg("k", reg.R14)
	}

	g.SUBQ(g.ArgAt("k0"), reg.R14)
	g.SHLQ(operand.U8(g.logX()), reg.R14)
	g.SUBQ(reg.R14, reg.RSI)
	if t.rows > 3 {
		g.SUBQ(reg.R14, reg.R9)
	}
	g.SHLQ(operand.U8(4-g.logX()), reg.R14)
	g.SUBQ(reg.R14, reg.RDI)
	g.stride("lds", reg.R14)
	for range t.panels {
		g.ADDQ(reg.R10, reg.RDI)
		g.ADDQ(reg.R14, reg.R12)
	}
	g.ADDQ(operand.U32(uint32(64*t.panels)), reg.RDX)
	g.SUBQ(operand.U32(uint32(16*t.panels)), reg.R15)
}

// part sums the products of the piece of k that begins at AX into the accumulators, and sets R14 to its end.
func (g *gemm) part(t gemmShape) {
	g.nextScales()
	g.MOVQ(reg.RAX, reg.R14)
	g.ORQ(operand.U32(255), reg.R14)
	g.INCQ(reg.R14)
	g.atMost(reg.R13, reg.R14)
	g.Arg("k", reg.RCX)
	g.atMost(reg.RCX, reg.R14)
	g.MOVQ(reg.R14, reg.RCX)
	g.SUBQ(reg.RAX, reg.RCX)
	g.SHRQ(operand.U8(2), reg.RCX)
	for i := range t.rows * len(g.columns(t)) {
		g.Zero(g.V(i))
	}
	g.aim(t)
	loop, end := g.Fresh("loop"), g.Fresh("end")
	if !g.Wide() {
		g.TESTQ(reg.RAX, reg.RAX)
		g.JNZ(operand.LabelRef(loop))
		g.block(t, false)
		g.JZ(operand.LabelRef(end))
	}
	g.Label(loop)
	g.block(t, !g.Wide())
	g.JNZ(operand.LabelRef(loop))
	g.Label(end)
}

// block adds the products of four k and counts them. far: see decoder.
func (g *gemm) block(t gemmShape, far bool) {
	columns := g.columns(t)
	if g.own != nil {
		g.pairBlock(t)
	}
	for _, kk := range g.order() {
		for c := 0; c < len(columns); c += g.batch() {
			var codes []operand.Mem
			for _, at := range columns[c:min(c+g.batch(), len(columns))] {
				codes = append(codes, g.codes(at.panel, at.half*g.Bytes()))
			}
			g.decoder.decode(g, codes, kk, far)
			g.unscale(len(codes))
			for i := range t.rows {
				g.multiply(t, i, c, len(codes), kk)
			}
		}
	}
	for p := range t.panels {
		g.PREFETCHT1(oneOfFour(reg.R13, reg.R10, reg.R11, p))
	}
	g.ADDQ(operand.U32(64), reg.R13)
	g.ADDQ(operand.U32(uint32(4<<g.logX())), reg.RSI)
	if t.rows > 3 {
		g.ADDQ(operand.U32(uint32(4<<g.logX())), reg.R9)
	}
	g.ADDQ(operand.U32(64), reg.RDI)
	g.DECQ(reg.RCX)
}

// ahead is how many bytes ahead codes are asked for, into the second level: half a panel of 512 k. The first level has
// too few places for what is under way from memory.
const ahead = 4096

// aim sets R13 to the codes to be asked for: those ahead in the same panels, or, near their end, the first ones of the
// panels that follow.
func (g *gemm) aim(t gemmShape) {
	inside := g.Fresh("inside")
	g.MOVQ(reg.RAX, reg.R13)
	g.SHLQ(operand.U8(4), reg.R13)
	g.ADDQ(operand.U32(ahead), reg.R13)
	g.CMPQ(reg.R13, reg.R10)
	g.LEAQ(At(reg.RDI, ahead), reg.R13)
	g.JLT(operand.LabelRef(inside))
	for range t.panels - 1 {
		g.ADDQ(reg.R10, reg.R13)
	}
	g.Label(inside)
}

// nextScales sets R13 to the k from which on other scales than those at BX hold.
func (g *gemm) nextScales() {
	g.MOVQ(reg.RBX, reg.R13)
	g.SUBQ(reg.R12, reg.R13)
	g.SHRQ(operand.U8(6), reg.R13)
	g.INCQ(reg.R13)
	g.IMULQ(g.ArgAt("step"), reg.R13)
}

// multiply adds the products of an activation and n decoded weights to the sums from column c on.
func (g *gemm) multiply(t gemmShape, i, c, n, kk int) {
	if g.pairs {
		g.multiplySplit(t, i, c, n, kk)
		return
	}
	if g.Wide() {
		g.VFMADD231PS_BCST(g.row(i, kk), g.weights[0], g.sum(t, i, c))
		return
	}
	if t.rows > 1 || c == 0 {
		g.VBROADCASTSS(g.row(i, kk), g.activation)
	}
	for h, w := range g.weights[:n] {
		g.VFMADD231PS(w, g.activation, g.sum(t, i, c+h))
	}
}

// sum is the accumulator of a row and column.
func (g *gemm) sum(t gemmShape, i, c int) reg.VecPhysical {
	return g.V(i*len(g.columns(t)) + c)
}

// finish makes y = fma(part, scale, y), or fma(part, scale, 0) for the piece from 0 on, and AX the end of the piece.
func (g *gemm) finish(t gemmShape) {
	if g.keeps(t) {
		g.MOVQ(reg.R14, reg.RAX)
		for p := range t.panels {
			g.VMOVUPS(g.scaleOf(column{p, 0}), g.weights[0])
			for i := range t.rows {
				g.VFMADD231PS(g.weights[0], g.sum(t, i, p), g.total(t, i, p))
			}
		}
		return
	}
	first, end := g.Fresh("first"), g.Fresh("end")
	g.TESTQ(reg.RAX, reg.RAX)
	g.MOVQ(reg.R14, reg.RAX)
	g.JZ(operand.LabelRef(first))
	g.scaleParts(t, false)
	g.JMP(operand.LabelRef(end))
	g.Label(first)
	g.scaleParts(t, true)
	g.Label(end)
}

func (g *gemm) scaleParts(t gemmShape, first bool) {
	if t.panels > 1 {
		g.scaleWhole(t, first)
		return
	}
	whole, end := g.Fresh("whole"), g.Fresh("end")
	g.CMPQ(reg.R15, operand.U32(16))
	g.JGE(operand.LabelRef(whole))
	g.scaleTail(t, first)
	g.JMP(operand.LabelRef(end))
	g.Label(whole)
	g.scaleWhole(t, first)
	g.Label(end)
}

// scaleWhole does so for whole panels.
func (g *gemm) scaleWhole(t gemmShape, first bool) {
	zero := g.zeroFor(first)
	columns := g.columns(t)
	for c := 0; c < len(columns); c += g.batch() {
		now := columns[c:min(c+g.batch(), len(columns))]
		for h, at := range now {
			g.VMOVUPS(g.scaleOf(at), g.weights[h])
		}
		g.eachRow(t, func(i int) {
			for h, at := range now {
				y, s := At(reg.R14, 64*at.panel+at.half*g.Bytes()), g.sum(t, i, c+h)
				if first {
					g.VFMADD213PS(zero, g.weights[h], s)
				} else {
					g.VFMADD213PS(y, g.weights[h], s)
				}
				g.VMOVUPS(s, y)
			}
		})
	}
}

// scaleOf is the scales of a column. It overwrites CX.
func (g *gemm) scaleOf(c column) operand.Mem {
	disp := c.half * g.Bytes()
	if c.panel == 0 {
		return At(reg.RBX, disp)
	}
	g.stride("lds", reg.RCX)
	if c.panel == 3 {
		g.LEAQ(AtX(reg.RCX, reg.RCX, 2, 0), reg.RCX)
		return AtX(reg.RBX, reg.RCX, 1, disp)
	}
	return AtX(reg.RBX, reg.RCX, uint8(c.panel), disp)
}

// zeroFor is a zero if it is wanted.
func (g *gemm) zeroFor(first bool) reg.VecPhysical {
	zero := g.spare()
	if first {
		g.Zero(zero)
	}
	return zero
}

// keeps tells that a tile has registers for the totals besides those for the sums of a piece: y is written once. Pairs
// take them for decoding.
func (g *gemm) keeps(t gemmShape) bool { return g.Wide() && !g.pairs && t.panels == 2 && t.rows <= 7 }

// total is y of a row and panel, before it is stored.
func (g *gemm) total(t gemmShape, i, panel int) reg.VecPhysical {
	return g.V((t.rows+i)*t.panels + panel)
}

// firstTotals are zero, or what y holds if AX, where the sums begin, is not.
func (g *gemm) firstTotals(t gemmShape) {
	goes, end := g.Fresh("goeson"), g.Fresh("begun")
	g.TESTQ(reg.RAX, reg.RAX)
	g.JNZ(operand.LabelRef(goes))
	for i := range t.rows * t.panels {
		g.Zero(g.V(t.rows*t.panels + i))
	}
	g.JMP(operand.LabelRef(end))
	g.Label(goes)
	g.eachRow(t, func(i int) {
		for p := range t.panels {
			g.VMOVUPS(At(reg.R14, 64*p), g.total(t, i, p))
		}
	})
	g.Label(end)
}

// storeTotals writes y, past the caches if that is asked for and y has whole lines (bypass).
func (g *gemm) storeTotals(t gemmShape) {
	cached, end := g.Fresh("cached"), g.Fresh("end")
	g.CMPQ(g.ArgAt("bypass"), operand.U8(0))
	g.JEQ(operand.LabelRef(cached))
	store := func(to func(v, m operand.Op)) {
		g.eachRow(t, func(i int) {
			for p := range t.panels {
				to(g.total(t, i, p), At(reg.R14, 64*p))
			}
		})
	}
	store(g.VMOVNTPS)
	g.JMP(operand.LabelRef(end))
	g.Label(cached)
	store(func(v, m operand.Op) { g.VMOVUPS(v, m) })
	g.Label(end)
}

// spare is a vector that is free between pieces.
func (g *gemm) spare() reg.VecPhysical {
	if g.own != nil {
		return g.weights[1]
	}
	if g.Wide() {
		return Z(29)
	}
	return g.activation
}

// eachRow goes through the rows of y: R14 is the row.
func (g *gemm) eachRow(t gemmShape, do func(i int)) {
	g.stride("ldy", reg.RCX)
	g.MOVQ(reg.RDX, reg.R14)
	for i := range t.rows {
		do(i)
		if i+1 < t.rows {
			g.ADDQ(reg.RCX, reg.R14)
		}
	}
}

// scaleTail is scaleWhole for the R15 < 16 outputs of the last panel.
func (g *gemm) scaleTail(t gemmShape, first bool) {
	masks := g.tailMasks()
	total := g.zeroFor(first)
	g.eachRow(t, func(i int) {
		for h, mask := range masks {
			y, s := At(reg.R14, h*g.Bytes()), g.sum(t, i, h)
			if !first {
				g.loadTail(y, mask, total)
			}
			g.VFMADD132PS(At(reg.RBX, h*g.Bytes()), total, s)
			g.storeTail(s, mask, y)
		}
	})
}

// tailMasks selects the R15 < 16 outputs of the last panel in each of its vectors. It overwrites CX and R14.
func (g *gemm) tailMasks() []reg.Register {
	if g.Wide() {
		g.Tail(reg.R15, reg.R14, reg.K1)
		return []reg.Register{reg.K1}
	}
	lower, upper := g.weights[0], g.weights[1]
	g.MOVQ(operand.U32(8), reg.RCX)
	g.atMost(reg.R15, reg.RCX)
	g.Tail(reg.RCX, reg.R14, lower)
	g.NEGQ(reg.RCX)
	g.ADDQ(reg.R15, reg.RCX)
	g.Tail(reg.RCX, reg.R14, upper)
	return []reg.Register{lower, upper}
}

// downBy brings byte kk of the words at codes to the top, and shifts it down with its sign. Words that begin 3-kk bytes
// earlier have it on top already.
func (g *gemm) downBy(bits int, codes operand.Mem, kk int, far bool, to reg.VecPhysical) {
	up := operand.U8(uint8(8 * (3 - kk)))
	down := operand.U8(uint8(bits))
	switch {
	case g.Wide() && kk == 3:
		g.VPSRAD(down, codes, to)
	case g.Wide():
		g.VPSLLD(up, codes, to)
		g.VPSRAD(down, to, to)
	case far || kk == 3:
		codes.Disp -= 3 - kk
		g.VMOVUPS(codes, to)
		g.VPSRAD(down, to, to)
	default:
		g.VMOVUPS(codes, to)
		g.VPSLLD(up, to, to)
		g.VPSRAD(down, to, to)
	}
	g.And(g.mask, to, to)
}

// wordDecoder makes values times 2^-120.
type wordDecoder struct{}

func (wordDecoder) mask() uint32 { return 0x87F00000 }

func (wordDecoder) decode(g *gemm, codes []operand.Mem, kk int, far bool) {
	for h, at := range codes {
		g.downBy(4, at, kk, far, g.weights[h])
	}
}

// halfDecoder makes values times 2^-8.
type halfDecoder struct{}

func (halfDecoder) mask() uint32 { return 0x0000BF80 }

func (halfDecoder) decode(g *gemm, codes []operand.Mem, kk int, far bool) {
	for h, at := range codes {
		g.downBy(17, at, kk, far, g.weights[h])
	}
	if g.Wide() {
		g.VPMOVDW(Z(30), Y(30))
		g.VCVTPH2PS(Y(30), Z(30))
		return
	}
	// The packing interleaves the halves of both vectors; the permutation undoes it.
	g.VPACKUSDW(Y(13), Y(12), Y(12))
	g.VPERMQ(operand.U8(0xD8), Y(12), Y(12))
	g.VEXTRACTI128(operand.U8(1), Y(12), X(13))
	g.VCVTPH2PS(X(12), Y(12))
	g.VCVTPH2PS(X(13), Y(13))
}
