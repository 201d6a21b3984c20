package workshop

import (
	"fmt"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// valueTile adds a tile of values to its rows: a product whose broadcast side is p and whose vectors are columns of v.
//
//	computes   o[j][c] = o[j][c]*alpha[j], then fma(p[key][j], v[key][c], o[j][c]) for each key in order
//	registers  DI v of the strip, SI and DX p and o of the row block, R8 and R9 p and v of the key, R10 and R11 one and
//	           three strides of p, R12 and R13 of v, BX the stride of o, R14 rows left, CX keys left, AX and R15 scratch
//	reads      each strip of v once for each row block: a strip stays in L1; o once; p once for each strip
//	order      strips of columns, in them blocks of rows, in them keys, of which AVX-512 takes the last two row by row; an
//	           output stays in a register for all keys
//	limits     none
func valueTile(g *G) { valueBody(g, valueShape{}) }

// valueTileMasked skips the keys whose p is -0. Groups of keys without a sign bit in the p of a row block, which are
// most, run as in valueTile; groups and keys that are hidden from the whole block are passed over; what is left goes
// key by key.
//
//	computes   valueTile without the terms whose p is -0
//	registers  as valueTile; AX holds two words of -0 in the loop over the keys, R15 what is compared with them
//	reads      as valueTile, and each p once more for each strip, as an integer
//	order      as valueTile
//	limits     none
func valueTileMasked(g *G) { valueBody(g, valueShape{keys: someKeys}) }

// valueTileCausal goes through the keys that all rows of a block see as valueTile does, and then down the staircase: key
// by key, for one row less each.
//
//	computes   valueTile without the terms of the keys from seen+j on
//	registers  as valueTile
//	reads      as valueTile, but no p of a key that a row does not see
//	order      as valueTile
//	limits     seen >= 0
func valueTileCausal(g *G) { valueBody(g, valueShape{keys: causalKeys}) }

// valueKeys says which keys a row sees.
type valueKeys int

const (
	everyKey   valueKeys = iota
	someKeys             // those whose p is not -0
	causalKeys           // row j those below seen+j
)

// The registers of both, see above.
var (
	valueV, valueP, valueO      = reg.RDI, reg.RSI, reg.RDX
	keyP, keyV                  = reg.R8, reg.R9
	strideP, strideP3           = reg.R10, reg.R11
	strideV, strideV3           = reg.R12, reg.R13
	strideO                     = reg.RBX
	rowsLeft, keysLeft          = reg.R14, reg.RCX
	valueScratch, valueScratch2 = reg.R15, reg.RAX
)

// keyGroup is how many keys a loop of the full tiles takes at once.
const keyGroup = 4

// valueShape is a register tile of rows x width vectors. Its accumulators are the registers from 0, row by row; temp is
// the first of four others.
type valueShape struct {
	*G
	keys        valueKeys
	paired      bool // p and v are bf16 values in pairs of keys, which count as keys here
	rows, width int
	tail        bool // the vector is the last, which is not full
	temp        int
}

// valueBody cuts the columns into strips, the widest first. One to three rows have too few accumulators in a strip of
// two vectors to keep the fma units busy, so they have wider ones. of says what the body does.
func valueBody(g *G, of valueShape) {
	of.G = g
	tallest, wide := 6, []valueShape{{rows: 1, width: 8}, {rows: 2, width: 4}, {rows: 3, width: 4}}
	of.temp = 12
	switch {
	case of.splits() && g.Wide():
		tallest, of.temp = 8, 20
		wide = []valueShape{{rows: 1, width: 4}, {rows: 2, width: 4}}
	case of.splits():
		tallest, of.temp = 4, 8
		wide = []valueShape{{rows: 1, width: 4}, {rows: 2, width: 4}}
	case g.Wide():
		tallest, of.temp = 8, 28
		wide = []valueShape{{rows: 1, width: 4}, {rows: 2, width: 4}}
	}
	g.Base("v", valueV)
	of.inputStride("ldp", strideP)
	g.LEAQ(AtX(strideP, strideP, 2, 0), strideP3)
	of.inputStride("ldv", strideV)
	g.LEAQ(AtX(strideV, strideV, 2, 0), strideV3)
	g.stride("ldo", strideO)
	done := g.Fresh("done")
	g.Arg("n", rowsLeft)
	g.TESTQ(rowsLeft, rowsLeft)
	g.JLE(operand.LabelRef(done))
	for _, t := range wide {
		other := g.Fresh("other")
		g.CMPQ(rowsLeft, operand.U8(t.rows))
		g.JNE(operand.LabelRef(other))
		of.rows, of.width = t.rows, t.width
		of.strips(t.rows)
		g.Label(other)
	}
	for _, t := range []valueShape{{width: 2}, {width: 1}, {width: 1, tail: true}} {
		of.rows, of.width, of.tail = 0, t.width, t.tail
		of.strips(tallest)
	}
	g.Label(done)
	of.askRest()
	g.Done()
}

// strips runs over the strips of t.width vectors that fit into the columns left, or over the tail. A tile that has its
// rows takes them all, else blocks of up to tallest rows do. It leaves the number of rows in rowsLeft.
func (t valueShape) strips(tallest int) {
	strip, end := t.Fresh("strip"), t.Fresh("end")
	t.Label(strip)
	t.openStrip(end)
	if t.rows > 0 {
		t.block()
	} else {
		t.blocks(tallest)
	}
	if !t.tail {
		t.ADDQ(operand.U32(uint32(t.width*t.Bytes())), valueV)
		t.JMP(operand.LabelRef(strip))
	}
	t.Label(end)
}

// openStrip goes to the first row of the strip at valueV, or to end if the columns left do not fill it.
func (t valueShape) openStrip(end string) {
	left, base := valueScratch2, valueScratch
	t.Base("v", base)
	t.Base("o", valueO)
	t.ADDQ(valueV, valueO)
	t.SUBQ(base, valueO)
	t.Arg("cols", left)
	t.LEAQ(AtX(base, left, 4, 0), left)
	t.SUBQ(valueV, left)
	t.Base("p", valueP)
	t.Arg("n", rowsLeft)
	if !t.tail {
		t.CMPQ(left, operand.U32(uint32(t.width*t.Bytes())))
		t.JLT(operand.LabelRef(end))
		return
	}
	t.SHRQ(operand.U8(2), left)
	t.JZ(operand.LabelRef(end))
	t.Tail(left, valueScratch, t.columns())
}

// blocks cuts rows into blocks, each of which has a tile.
func (t valueShape) blocks(tallest int) {
	next, end := t.Fresh("rows"), t.Fresh("rows_end")
	labels := make([]string, tallest+1)
	for rows := range labels {
		labels[rows] = t.Fresh(fmt.Sprintf("rows%d", rows))
	}
	t.Label(next)
	most := 2*tallest + 1
	t.CMPQ(rowsLeft, operand.U8(most))
	t.JGT(operand.LabelRef(labels[tallest]))
	for n := most; n > 0; n-- {
		t.CMPQ(rowsLeft, operand.U8(n))
		t.JEQ(operand.LabelRef(labels[evenly(n, tallest)]))
	}
	t.JMP(operand.LabelRef(end))
	for rows := tallest; rows > 0; rows-- {
		t.rows = rows
		t.Label(labels[rows])
		t.block()
		t.ADDQ(operand.U8(4*rows), valueP)
		t.LEAQ(t.row(rows), valueO)
		t.SUBQ(operand.U8(rows), rowsLeft)
		t.JMP(operand.LabelRef(next))
	}
	t.Label(end)
}

// evenly is the first of the fewest parts, none above most, into which n falls evenly. No part is small unless n is.
func evenly(n, most int) int {
	parts := (n + most - 1) / most
	return (n + parts - 1) / parts
}

// block takes a tile of outputs through all keys. What is left of the keys by groups comes first.
func (t valueShape) block() {
	t.toRows()
	t.open()
	t.prefetch()
	t.askNext()
	t.MOVQ(valueP, keyP)
	t.MOVQ(valueV, keyV)
	if t.keys == someKeys {
		t.MOVQ(operand.U64(t.hidden()<<32|t.hidden()), valueScratch2)
	}
	step, group, some, end := t.Fresh("step"), t.Fresh("group"), t.Fresh("some"), t.Fresh("keys_end")
	groups, last, stored := t.Fresh("groups"), t.Fresh("last"), t.Fresh("stored")
	t.Arg(t.keysName(), keysLeft)
	if t.keys == causalKeys {
		t.seenByAll()
	}
	t.TESTQ(keysLeft, keysLeft)
	t.JLE(operand.LabelRef(end))
	if t.tail { // rare: no groups
		t.Label(step)
		t.step()
		t.DECQ(keysLeft)
		t.JNZ(operand.LabelRef(step))
	} else {
		t.TESTQ(operand.U32(keyGroup-1), keysLeft)
		t.JZ(operand.LabelRef(groups))
		t.Label(step)
		t.step()
		t.DECQ(keysLeft)
		t.TESTQ(operand.U32(keyGroup-1), keysLeft)
		t.JNZ(operand.LabelRef(step))
		t.TESTQ(keysLeft, keysLeft)
		t.JZ(operand.LabelRef(end))
		t.Label(groups)
		if t.storesByRow() {
			t.CMPQ(keysLeft, operand.U8(keyGroup))
			t.JEQ(operand.LabelRef(last))
			t.SUBQ(operand.U8(keyGroup), keysLeft)
		}
		t.Label(group)
		if t.keys == someKeys {
			t.signs(some)
		}
		for key := range keyGroup {
			t.key(key)
		}
		t.pass(group)
		if t.storesByRow() {
			t.Label(last)
			t.lastGroup()
			t.toRows()
			t.JMP(operand.LabelRef(stored))
		}
		if t.keys == someKeys {
			t.JMP(operand.LabelRef(end))
			t.Label(some)
			t.hiddenGroup(step)
			t.pass(group)
		}
	}
	t.Label(end)
	switch {
	case t.keys != causalKeys:
	case t.paired:
		t.pairStaircase()
	default:
		t.staircase()
	}
	t.toRows()
	t.close()
	t.Label(stored)
}

// storesByRow tells that the last group of keys ends row by row, each with its stores. Stores that come all at once, after
// the last product, wait for each other while no product is left to wait with them.
func (t valueShape) storesByRow() bool {
	return t.keys == everyKey && t.Wide() && !t.splits() && !t.tail && t.width <= 2 && t.rows > 2
}

// lastGroup takes the last group of keys and stores the outputs.
func (t valueShape) lastGroup() {
	const inner = keyGroup - 2 // the first of the keys that go row by row
	for key := range inner {
		t.key(key)
	}
	v := func(key, w int) reg.VecPhysical { return t.other(t.width*(key-inner) + w) }
	for key := inner; key < keyGroup; key++ {
		for w := range t.width {
			t.load(t.vOf(key, w), v(key, w))
		}
	}
	bases := []reg.GPPhysical{valueO, valueScratch, valueScratch2} // of rows 0, 3 and 6
	for i := 1; 3*i < t.rows; i++ {
		t.LEAQ(AtX(strideO, strideO, 2, 0), bases[i])
		t.ADDQ(bases[i-1], bases[i])
	}
	for r := range t.rows {
		for key := inner; key < keyGroup; key++ {
			for w := range t.width {
				t.multiplySpread(t.pOf(key, r), v(key, w), t.acc(r, w))
			}
		}
		row := At(bases[r/3], 0)
		if r%3 > 0 {
			row = AtX(bases[r/3], strideO, uint8(r%3), 0)
		}
		for w := range t.width {
			t.VMOVUPS(t.acc(r, w), t.vector(row, w))
		}
	}
}

// seenByAll lowers keysLeft to the keys that the first row of the block sees, and so all do, or to the pairs of them.
func (t valueShape) seenByAll() {
	few := t.Fresh("few")
	t.seen()
	if t.paired {
		t.SHRQ(operand.U8(1), valueScratch)
	}
	t.CMPQ(keysLeft, valueScratch)
	t.JLE(operand.LabelRef(few))
	t.MOVQ(valueScratch, keysLeft)
	t.Label(few)
}

// seen makes valueScratch the number of keys that the first row of the block sees, however many there are.
func (t valueShape) seen() {
	t.Arg("n", valueScratch)
	t.SUBQ(rowsLeft, valueScratch)
	t.ADDQ(t.ArgAt("seen"), valueScratch)
}

// staircase takes the keys behind those, each for the rows that see it.
func (t valueShape) staircase() {
	if t.rows < 2 {
		return
	}
	end := t.Fresh("stairs_end")
	t.seen()
	t.NEGQ(valueScratch)
	t.ADDQ(t.ArgAt("keys"), valueScratch)
	for row := 1; row < t.rows; row++ {
		t.CMPQ(valueScratch, operand.U8(uint8(row)))
		t.JLT(operand.LabelRef(end))
		t.keyFrom(row)
		t.ADDQ(strideP, keyP)
		t.ADDQ(strideV, keyV)
	}
	t.Label(end)
}

// keyFrom adds the current key to the rows from one on.
func (t valueShape) keyFrom(row int) {
	for w := range t.width {
		v := t.other(w % 2)
		t.load(t.vOf(0, w), v)
		for r := row; r < t.rows; r++ {
			if t.Wide() {
				t.VFMADD231PS_BCST(t.pOf(0, r), v, t.acc(r, w))
				continue
			}
			p := t.other(2 + r%2)
			t.VBROADCASTSS(t.pOf(0, r), p)
			t.VFMADD231PS(v, p, t.acc(r, w))
		}
	}
}

// pass moves behind a group, and on to the next if there is one.
func (t valueShape) pass(group string) {
	t.LEAQ(AtX(keyP, strideP, keyGroup, 0), keyP)
	t.LEAQ(AtX(keyV, strideV, keyGroup, 0), keyV)
	t.SUBQ(operand.U8(keyGroup), keysLeft)
	t.JNZ(operand.LabelRef(group))
}

// toRows prepares row: it points keyP and keyV, which the loop over the keys does not need yet or any more, at rows 3
// and 6 of o.
func (t valueShape) toRows() {
	if t.rows < 3 {
		return
	}
	t.LEAQ(AtX(strideO, strideO, 2, 0), keyV)
	t.LEAQ(AtX(valueO, keyV, 1, 0), keyP)
	if t.rows >= 6 {
		t.ADDQ(keyP, keyV)
	}
}

// row is the beginning of row r of o in the strip, r <= 8.
func (t valueShape) row(r int) operand.Mem {
	base := []reg.GPPhysical{valueO, keyP, keyV}[r/3]
	if r%3 == 0 {
		return At(base, 0)
	}
	return AtX(base, strideO, uint8(r%3), 0)
}

// acc is the accumulator of vector w of row r.
func (t valueShape) acc(r, w int) reg.VecPhysical { return t.V(r*t.width + w) }

// other is one of the four vectors that are no accumulators.
func (t valueShape) other(i int) reg.VecPhysical { return t.V(t.temp + i) }

// columns is the mask of the columns of the tail. A tail's tile leaves more than four vectors free.
func (t valueShape) columns() reg.Register { return t.byLevel(reg.K1, t.V(t.temp-1)) }

// open loads the outputs and scales them, if there is an alpha. It does not look for alphas of 1: the products, which
// change no bits then, are quicker.
func (t valueShape) open() {
	plain, opened := t.Fresh("plain"), t.Fresh("opened")
	alpha, offset := valueScratch, valueScratch2
	t.Base("alpha", alpha)
	t.TESTQ(alpha, alpha)
	t.JZ(operand.LabelRef(plain))
	t.Base("p", offset)
	t.SUBQ(valueP, offset)
	t.SUBQ(offset, alpha)
	if t.paired && t.Wide() && !t.tail {
		t.scaleAll(alpha, opened)
	}
	for r := range t.rows {
		if t.paired {
			t.scaleSums(r, At(alpha, 4*r))
			continue
		}
		t.VBROADCASTSS(At(alpha, 4*r), t.other(0))
		for w := range t.width {
			from := operand.Op(t.vector(t.row(r), w))
			if t.tail {
				t.load(t.row(r), t.acc(r, w))
				from = t.acc(r, w)
			}
			t.VMULPS(from, t.other(0), t.acc(r, w))
		}
	}
	t.JMP(operand.LabelRef(opened))
	t.Label(plain)
	for r := range t.rows {
		for w := range t.width {
			t.load(t.vector(t.row(r), w), t.acc(r, w))
		}
	}
	t.Label(opened)
}

// close stores the outputs.
func (t valueShape) close() {
	for r := range t.rows {
		for w := range t.width {
			to := t.vector(t.row(r), w)
			if t.tail {
				t.storeTail(t.acc(r, w), t.columns(), to)
			} else {
				t.VMOVUPS(t.acc(r, w), to)
			}
		}
	}
}

// vector is vector w of what begins at m.
func (t valueShape) vector(m operand.Mem, w int) operand.Mem { return plus(m, w*t.Bytes()) }

// load reads a vector, of the tail only what there is.
func (t valueShape) load(from operand.Mem, to reg.VecPhysical) {
	if t.tail {
		t.loadTail(from, t.columns(), to)
	} else {
		t.VMOVUPS(from, to)
	}
}

// prefetch asks for the outputs of the next block, whose lines are too far apart for the hardware to foresee.
func (t valueShape) prefetch() {
	if t.tail {
		return
	}
	next := keyP
	t.LEAQ(t.row(t.rows), next)
	for r := range t.rows {
		m := At(next, 0)
		if r%3 > 0 {
			m = AtX(next, strideO, uint8(r%3), 0)
		} else if r > 0 {
			t.LEAQ(AtX(next, strideO, 2, 0), next)
			t.ADDQ(strideO, next)
		}
		for line := 0; line < t.width*t.Bytes(); line += 64 {
			t.PREFETCHT0(plus(m, line))
		}
	}
}

// nextLines is how many lines of next a block asks for: no more than are soon on their way, or the processor waits.
const nextLines = 8

// askNext asks for the next lines of next, in the second cache as prefetchLines does. What is left of it stays in the frame.
func (t valueShape) askNext() {
	if !t.paired || t.keys != everyKey {
		return
	}
	asked, next := t.Fresh("asked"), t.Param("next")
	base, left := place(next.Base()), place(next.Len())
	t.CMPQ(left, operand.U8(0))
	t.JLE(operand.LabelRef(asked))
	t.MOVQ(base, valueScratch)
	for line := range nextLines {
		t.PREFETCHT1(At(valueScratch, 64*line))
	}
	t.ADDQ(operand.U32(64*nextLines), base)
	t.SUBQ(operand.U32(64*nextLines), left)
	t.Label(asked)
}

// askRest asks for what the blocks have left, where they are few.
func (t valueShape) askRest() {
	if !t.paired || t.keys != everyKey {
		return
	}
	line, asked, next := t.Fresh("line"), t.Fresh("asked"), t.Param("next")
	base, left := valueScratch, valueScratch2
	t.Load(next.Len(), left)
	t.TESTQ(left, left)
	t.JLE(operand.LabelRef(asked))
	t.Load(next.Base(), base)
	t.Label(line)
	t.PREFETCHT1(At(base, 0))
	t.ADDQ(operand.U8(64), base)
	t.SUBQ(operand.U8(64), left)
	t.JGT(operand.LabelRef(line))
	t.Label(asked)
}

// pOf is p of row r for key i of the group, vOf vector w of its values.
func (t valueShape) pOf(i, r int) operand.Mem {
	return plus(oneOfFour(keyP, strideP, strideP3, i), 4*r)
}
func (t valueShape) vOf(i, w int) operand.Mem {
	return t.vector(oneOfFour(keyV, strideV, strideV3, i), w)
}

// key adds key i of the group to all rows.
func (t valueShape) key(i int) {
	if t.splits() {
		t.splitKey(i)
		return
	}
	if t.width > 2 {
		t.keyOfFewRows(i)
		return
	}
	for w := range t.width {
		t.load(t.vOf(i, w), t.other(w))
	}
	if !t.tail && !t.paired { // what the next strip needs
		for line := 0; line < t.width*t.Bytes(); line += 64 {
			t.PREFETCHT0(plus(t.vOf(i, t.width), line))
		}
	}
	for r := range t.rows {
		// Zen 4 does one and a half fma and broadcasts a cycle, together; a broadcast within an fma is free. In pairs it
		// gains by more of them.
		embedded := t.Wide() && (r%3 == 1 || t.paired && r%4 > 0)
		p := t.other(2 + r%2)
		if !embedded {
			t.VBROADCASTSS(t.pOf(i, r), p)
		}
		for w := range t.width {
			if embedded {
				t.multiplySpread(t.pOf(i, r), t.other(w), t.acc(r, w))
			} else {
				t.multiply(t.other(w), p, t.acc(r, w))
			}
		}
	}
}

// keyOfFewRows is key with p in registers in place of v: up to three rows.
func (t valueShape) keyOfFewRows(i int) {
	for r := range t.rows {
		t.VBROADCASTSS(t.pOf(i, r), t.other(r))
	}
	for w := range t.width {
		v := operand.Op(t.vOf(i, w))
		if t.rows > 1 || t.paired {
			t.VMOVUPS(v, t.other(3))
			v = t.other(3)
		}
		for r := range t.rows {
			t.multiply(v, t.other(r), t.acc(r, w))
		}
	}
}

// multiply adds the products of a vector of v, or of pairs of it, and p to an accumulator; multiplySpread takes p from
// memory.
func (t valueShape) multiply(v operand.Op, p, acc reg.VecPhysical) {
	if t.paired {
		t.VDPBF16PS(v, p, acc)
	} else {
		t.VFMADD231PS(v, p, acc)
	}
}

func (t valueShape) multiplySpread(p operand.Mem, v, acc reg.VecPhysical) {
	if t.paired {
		t.VDPBF16PS_BCST(p, v, acc)
	} else {
		t.VFMADD231PS_BCST(p, v, acc)
	}
}

// step takes one key and moves on.
func (t valueShape) step() {
	passed := t.Fresh("passed")
	if t.keys == someKeys {
		t.hiddenStep(passed)
	} else {
		t.key(0)
	}
	t.Label(passed)
	t.ADDQ(strideP, keyP)
	t.ADDQ(strideV, keyV)
}

// pairs are the offsets of the pairs of words that cover the p of a block, two of them overlapping if rows are odd.
func (t valueShape) pairs() (offsets []int) {
	for r := 0; r+2 <= t.rows; r += 2 {
		offsets = append(offsets, 4*r)
	}
	if t.rows%2 == 1 {
		offsets = append(offsets, 4*(t.rows-2))
	}
	return offsets
}

// hiddenGroup goes to step unless all p of the group are -0, the least of all integers: their maximum tells.
func (t valueShape) hiddenGroup(step string) {
	if t.rows < 4 {
		t.JMP(operand.LabelRef(step))
		return
	}
	most, half := X(t.temp), X(t.temp+1)
	larger := t.VPMAXSD
	if t.paired {
		larger = t.VPMAXSW
	}
	for key := range keyGroup {
		first := t.pOf(key, 0)
		if key == 0 {
			t.VMOVUPS(first, most)
		} else {
			larger(first, most, most)
		}
		if t.rows > 4 {
			larger(t.pOf(key, t.rows-4), most, most)
		}
	}
	t.VPSHUFD(operand.U8(0x4E), most, half)
	larger(half, most, most)
	t.VMOVQ(most, valueScratch)
	t.CMPQ(valueScratch, valueScratch2)
	t.JNE(operand.LabelRef(step))
}

// signs goes to step if any p of the group has its sign bit set, as -0 has.
func (t valueShape) signs(step string) {
	bits := valueScratch
	for key := range keyGroup {
		if t.rows == 1 {
			if key == 0 {
				t.MOVL(t.pOf(key, 0), bits.As32())
			} else {
				t.ORL(t.pOf(key, 0), bits.As32())
			}
			continue
		}
		for i, offset := range t.pairs() {
			if key == 0 && i == 0 {
				t.MOVQ(t.pOf(key, offset/4), bits)
			} else {
				t.ORQ(t.pOf(key, offset/4), bits)
			}
		}
	}
	t.TESTQ(valueScratch2, bits)
	t.JNZ(operand.LabelRef(step))
}

// hiddenStep adds a key to those rows that see it, and goes to passed at once if none does.
func (t valueShape) hiddenStep(passed string) {
	if t.rows == 1 {
		t.CMPL(t.pOf(0, 0), valueScratch2.As32())
		t.JEQ(operand.LabelRef(passed))
		if t.paired { // of which one half may be hidden
			t.pairOfSomeRows()
		} else {
			t.key(0)
		}
		return
	}
	some := t.Fresh("some")
	pairs := t.pairs()
	for i, offset := range pairs {
		t.CMPQ(t.pOf(0, offset/4), valueScratch2)
		if i+1 < len(pairs) {
			t.JNE(operand.LabelRef(some))
		} else {
			t.JEQ(operand.LabelRef(passed))
		}
	}
	t.Label(some)
	t.keyOfSomeRows()
}

// keyOfSomeRows is key for the rows whose p is not hidden. AVX-512 masks the fma. AVX2 makes v +0 for the others: -0 *
// +0 is -0, and adding that changes nothing, not even a -0.
func (t valueShape) keyOfSomeRows() {
	if t.paired {
		t.pairOfSomeRows()
		return
	}
	p, minus, match, seen := t.other(0), t.other(1), t.other(2), t.other(3)
	t.Splat(hiddenBits, minus)
	values := func(w int) operand.Op { return t.vOf(0, w) }
	if t.tail {
		v := t.V(t.temp - 2)
		t.load(t.vOf(0, 0), v)
		values = func(int) operand.Op { return v }
	}
	for r := range t.rows {
		t.VBROADCASTSS(t.pOf(0, r), p)
		if t.Wide() {
			t.VPCMPD(cmpNeq, minus, p, reg.K2)
		} else {
			t.VPCMPEQD(minus, p, match)
		}
		for w := range t.width {
			if t.Wide() {
				t.VFMADD231PS(values(w), p, reg.K2, t.acc(r, w))
				continue
			}
			t.VPANDN(values(w), match, seen)
			t.VFMADD231PS(seen, p, t.acc(r, w))
		}
	}
}
