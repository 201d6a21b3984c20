package workshop

import (
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// valueTilePairs is valueTile on pairs of keys: a pair of p is a word, as a p is there, and so is a pair of v.
//
//	computes   o[j][c] = o[j][c]*alpha[j], +0 below 2^-95 and where alpha[j] is -0, then the steps of each pair in order,
//	           its second key first
//	registers  those of valueTile; K2 and the four others of a tile find small sums
//	reads      as valueTile; it asks for next
//	order      as valueTile
//	limits     none
func valueTilePairs(g *G) { valueBody(g, valueShape{paired: true}) }

// valueTilePairsMasked is valueTileMasked on pairs of keys. In a pair of which one key is hidden, p is -0 and v becomes
// +0 there: their product is -0, and adding that changes nothing.
//
//	computes   valueTilePairs without the terms whose p is -0
//	registers  those of valueTileMasked
//	reads      as valueTileMasked
//	order      as valueTile
//	limits     none
func valueTilePairsMasked(g *G) { valueBody(g, valueShape{paired: true, keys: someKeys}) }

// valueTilePairsCausal is valueTileCausal on pairs of keys. A row may see the first key of a pair alone: v becomes +0 at
// the second, whose p is -0.
//
//	computes   valueTilePairs without the terms of the keys from seen+j on
//	registers  those of valueTile; AX the keys that the first row of a block sees
//	reads      as valueTilePairs, but no p of a pair that a row does not see
//	order      as valueTile
//	limits     seen >= 0
func valueTilePairsCausal(g *G) { valueBody(g, valueShape{paired: true, keys: causalKeys}) }

// splits tells that pairs become float32 first.
func (t valueShape) splits() bool { return t.paired && !t.dots() }

// inputStride loads the stride of p or v in bytes.
func (t valueShape) inputStride(name string, r reg.GPPhysical) {
	if !t.paired {
		t.stride(name, r)
		return
	}
	t.Arg(name, r)
	t.ADDQ(r, r)
}

// keysName is the parameter that counts keys, or pairs of them.
func (t valueShape) keysName() string {
	if t.paired {
		return "pairs"
	}
	return "keys"
}

// hidden is the word of p that no row sees.
func (t valueShape) hidden() uint64 {
	if t.paired {
		return hiddenPair
	}
	return hiddenBits
}

// hiddenPair is two -0 in bf16.
const hiddenPair = 0x80008000

// scaleSums loads row r and scales it, or leaves it as it is if alpha is -1. At -0 it is zero.
func (t valueShape) scaleSums(r int, alpha operand.Mem) {
	leave, anew, next := t.Fresh("leave"), t.Fresh("anew"), t.Fresh("scaled")
	t.CMPL(alpha, operand.U32(minusOneBits))
	t.JEQ(operand.LabelRef(leave))
	t.CMPL(alpha, operand.U32(hiddenBits))
	t.JEQ(operand.LabelRef(anew))
	t.VBROADCASTSS(alpha, t.other(0))
	for w := range t.width {
		acc, magnitude := t.acc(r, w), t.other(1)
		t.load(t.vector(t.row(r), w), acc)
		t.VMULPS(t.other(0), acc, acc)
		if t.Wide() {
			t.flushSum(acc, t.full(0x70000000))
			continue
		}
		t.VPAND(t.full(0x7FFFFFFF), acc, magnitude)
		t.VPCMPGTD(t.full(leastSum-1), magnitude, magnitude)
		t.VPAND(magnitude, acc, acc)
	}
	t.JMP(operand.LabelRef(next))
	t.Label(anew)
	for w := range t.width {
		t.Zero(t.acc(r, w))
	}
	t.JMP(operand.LabelRef(next))
	t.Label(leave)
	for w := range t.width {
		t.load(t.vector(t.row(r), w), t.acc(r, w))
	}
	t.Label(next)
}

// scaleAll loads and scales all rows and goes to scaled, or goes on behind it if an alpha is -1 or -0. A test for each
// vector would take the units that multiply; whether there is a product below 2^-95 is found by others, and such
// products, which most tiles have none of, are looked for in a second go. Adding 0x70000000 to a magnitude of 2^-95 or
// more carries into the sign, so the sign of the sum is that of the product where the product is small.
func (t valueShape) scaleAll(alpha reg.GPPhysical, scaled string) {
	some := t.Fresh("some_rows")
	factor, exponent, large, sum := t.other(0), t.other(1), t.other(2), t.other(3)
	t.Splat(0x70000000, exponent)
	t.VPTERNLOGD(operand.U8(0xFF), large, large, large)
	for r := range t.rows {
		t.CMPL(At(alpha, 4*r), operand.U8(0))
		t.JLT(operand.LabelRef(some)) // -1 or -0
		t.VBROADCASTSS(At(alpha, 4*r), factor)
		for w := range t.width {
			acc := t.acc(r, w)
			t.VMULPS(t.vector(t.row(r), w), factor, acc)
			t.VPADDD(exponent, acc, sum)
			t.VPTERNLOGD(operand.U8(0x60), acc, sum, large) // large and the signs differ
		}
	}
	t.VPTESTMD(t.full(0x80000000), large, reg.K2)
	t.KORTESTW(reg.K2, reg.K2)
	t.JCS(operand.LabelRef(scaled)) // all ones
	for r := range t.rows {
		for w := range t.width {
			t.flushSum(t.acc(r, w), exponent)
		}
	}
	t.JMP(operand.LabelRef(scaled))
	t.Label(some)
}

// flushSum makes +0 of what is below 2^-95. exponent holds the bits of which a larger magnitude has one.
func (t valueShape) flushSum(acc reg.VecPhysical, exponent operand.Op) {
	t.VPTESTMD(exponent, acc, reg.K2)
	t.VMOVUPS_Z(acc, reg.K2, acc)
}

const minusOneBits = 0xBF800000

// splitKey is key by two fma.
func (t valueShape) splitKey(i int) {
	if !t.tail && t.width <= 2 { // what the next strip needs
		for line := 0; line < t.width*t.Bytes(); line += 64 {
			t.PREFETCHT0(plus(t.vOf(i, t.width), line))
		}
	}
	if t.width > 2 {
		for r := range t.rows {
			t.split(t.pOf(i, r), t.other(2+2*r), t.other(3+2*r))
		}
	}
	for first := 0; first < t.width; first += 2 {
		for w := first; w < min(first+2, t.width); w++ {
			at := 0
			if t.width <= 2 {
				at = 2 * w
			}
			v0, v1 := t.other(at), t.other(at+1)
			t.load(t.vOf(i, w), v0)
			t.halve(v0, v1)
			if t.width > 2 {
				for r := range t.rows {
					t.VFMADD231PS(v1, t.other(3+2*r), t.acc(r, w))
					t.VFMADD231PS(v0, t.other(2+2*r), t.acc(r, w))
				}
			}
		}
	}
	if t.width > 2 {
		return
	}
	for r := range t.rows {
		p0, p1 := t.other(4), t.other(5)
		t.split(t.pOf(i, r), p0, p1)
		for w := range t.width {
			t.VFMADD231PS(t.other(2*w+1), p1, t.acc(r, w))
		}
		for w := range t.width {
			t.VFMADD231PS(t.other(2*w), p0, t.acc(r, w))
		}
	}
}

// split spreads a pair in memory, halve takes the pairs in first: the first value of each in one vector, the second in
// another.
func (t valueShape) split(pair operand.Mem, first, second reg.VecPhysical) {
	t.VPBROADCASTD(pair, first)
	t.halve(first, second)
}

func (t valueShape) halve(first, second reg.VecPhysical) {
	t.And(t.wordMask(), first, second)
	t.VPSLLD(operand.U8(16), first, first)
}

// pairOfSomeRows is key for the rows of whose p not both are hidden, with v as +0 where one is.
func (t valueShape) pairOfSomeRows() {
	p, minus, match, seen := t.other(0), t.other(1), t.other(2), t.other(3)
	t.Splat(hiddenPair, minus)
	values := func(w int) operand.Op { return t.vOf(0, w) }
	if t.tail {
		v := t.V(t.temp - 2)
		t.load(t.vOf(0, 0), v)
		values = func(int) operand.Op { return v }
	}
	for r := range t.rows {
		t.VPBROADCASTD(t.pOf(0, r), p)
		if t.Wide() {
			t.VPCMPEQW(minus, p, reg.K3)
			t.VPMOVM2W(reg.K3, match)
			t.VPCMPD(cmpNeq, minus, p, reg.K2)
		} else {
			t.VPCMPEQW(minus, p, match)
		}
		if t.splits() {
			t.halve(p, t.other(6))
		}
		for w := range t.width {
			if t.Wide() {
				t.VPANDND(values(w), match, seen)
			} else {
				t.VPANDN(values(w), match, seen)
			}
			if !t.splits() {
				t.VDPBF16PS(seen, p, reg.K2, t.acc(r, w))
				continue
			}
			t.halve(seen, t.other(4))
			t.VFMADD231PS(t.other(4), t.other(6), t.acc(r, w))
			t.VFMADD231PS(seen, p, t.acc(r, w))
		}
	}
}

// pairStaircase takes the pairs behind those that all rows of the block see whole. The row that sees a half of the first
// is row 1, or row 0 if the number of keys that it sees is odd.
func (t valueShape) pairStaircase() {
	odd, end := t.Fresh("stairs_odd"), t.Fresh("stairs_end")
	t.seen()
	t.MOVQ(valueScratch, valueScratch2)
	t.SHRQ(operand.U8(1), valueScratch)
	t.NEGQ(valueScratch)
	t.ADDQ(t.ArgAt("pairs"), valueScratch)
	t.TESTQ(operand.U32(1), valueScratch2)
	t.JNZ(operand.LabelRef(odd))
	stairs := func(half int) {
		for step := 1; half < t.rows; step, half = step+1, half+2 {
			t.CMPQ(valueScratch, operand.U8(uint8(step)))
			t.JLT(operand.LabelRef(end))
			t.pairFrom(half)
			t.ADDQ(strideP, keyP)
			t.ADDQ(strideV, keyV)
		}
	}
	stairs(1)
	t.JMP(operand.LabelRef(end))
	t.Label(odd)
	stairs(0)
	t.Label(end)
}

// pairFrom adds the first key of the current pair to one row, and both to those after it.
func (t valueShape) pairFrom(half int) {
	for w := range t.width {
		v := t.other(0)
		t.load(t.vOf(0, w), v)
		if t.splits() {
			v1, p, p1 := t.other(1), t.other(4), t.other(5)
			t.halve(v, v1)
			for r := half; r < t.rows; r++ {
				t.split(t.pOf(0, r), p, p1)
				if r > half {
					t.VFMADD231PS(v1, p1, t.acc(r, w))
				}
				t.VFMADD231PS(v, p, t.acc(r, w))
			}
			continue
		}
		first := t.other(1)
		t.And(t.full(0x0000FFFF), v, first)
		t.VDPBF16PS_BCST(t.pOf(0, half), first, t.acc(half, w))
		for r := half + 1; r < t.rows; r++ {
			t.VDPBF16PS_BCST(t.pOf(0, r), v, t.acc(r, w))
		}
	}
}
