package workshop

import (
	"fmt"
	"math/bits"
	"strings"
)

// goRelease is the minor version of the Go toolchain that assembles the bodies: a mnemonic that it does not know is
// written as a WORD.
const goRelease = 26

// encoding is a vector instruction of the A64 set: a row of the table.
type encoding struct {
	name  string // the method of A, in Go's spelling
	gnu   string // the mnemonic of the manual
	form  *form
	base  uint32 // the word without registers, size and immediate
	arrs  []Arr
	since int    // the Go release 1.since knows the mnemonic; 0: none is known to
	needs string // feature beyond the ASIMD of ARMv8.0, as GNU as names it
}

// The lists of arrangements that rows share. Those of instructions that widen or narrow name the wide side.
var (
	ints   = []Arr{B8, B16, H4, H8, S2, S4}
	all    = []Arr{B8, B16, H4, H8, S2, S4, D2}
	octets = []Arr{B8, B16}
	fps    = []Arr{S2, S4, D2}
	wides  = []Arr{H8, S4, D2}
	f32s   = []Arr{S2, S4}
	f32x4  = []Arr{S4}
	f64x2  = []Arr{D2}
	f16s   = []Arr{H4, H8}
	lanes  = []Arr{B8, B16, H4, H8, S4}
)

// encodings is the table. A name that ends in e takes an element as its first operand.
var encodings = []encoding{
	{"VFADD", "fadd", form3FP, 0x0E20D400, fps, 27, ""},
	{"VFSUB", "fsub", form3FP, 0x0EA0D400, fps, 27, ""},
	{"VFMUL", "fmul", form3FP, 0x2E20DC00, fps, 27, ""},
	{"VFDIV", "fdiv", form3FP, 0x2E20FC00, fps, 27, ""},
	{"VFMLA", "fmla", form3FP, 0x0E20CC00, fps, 11, ""},
	{"VFMLS", "fmls", form3FP, 0x0EA0CC00, fps, 11, ""},
	{"VFMAX", "fmax", form3FP, 0x0E20F400, fps, 27, ""},
	{"VFMIN", "fmin", form3FP, 0x0EA0F400, fps, 27, ""},
	{"VFMAXNM", "fmaxnm", form3FP, 0x0E20C400, fps, 27, ""},
	{"VFMINNM", "fminnm", form3FP, 0x0EA0C400, fps, 27, ""},
	{"VFADDP", "faddp", form3FP, 0x2E20D400, fps, 27, ""},
	{"VFMAXP", "fmaxp", form3FP, 0x2E20F400, fps, 27, ""},
	{"VFCMEQ", "fcmeq", form3FP, 0x0E20E400, fps, 0, ""},
	{"VFCMGE", "fcmge", form3FP, 0x2E20E400, fps, 0, ""},
	{"VFCMGT", "fcmgt", form3FP, 0x2EA0E400, fps, 0, ""},
	{"VFRECPS", "frecps", form3FP, 0x0E20FC00, fps, 0, ""},
	{"VFRSQRTS", "frsqrts", form3FP, 0x0EA0FC00, fps, 0, ""},

	{"VADD", "add", form3Int, 0x0E208400, ints, 11, ""},
	{"VSUB", "sub", form3Int, 0x2E208400, ints, 11, ""},
	{"VMUL", "mul", form3Int, 0x0E209C00, ints, 27, ""},
	{"VMLA", "mla", form3Int, 0x0E209400, ints, 0, ""},
	{"VSMAX", "smax", form3Int, 0x0E206400, ints, 0, ""},
	{"VSMIN", "smin", form3Int, 0x0E206C00, ints, 0, ""},
	{"VUMAX", "umax", form3Int, 0x2E206400, ints, 26, ""},
	{"VUMIN", "umin", form3Int, 0x2E206C00, ints, 26, ""},
	{"VCMEQ", "cmeq", form3Int, 0x2E208C00, ints, 11, ""},
	{"VCMGT", "cmgt", form3Int, 0x0E203400, ints, 27, ""},
	{"VCMHI", "cmhi", form3Int, 0x2E203400, ints, 27, ""},
	{"VCMGE", "cmge", form3Int, 0x0E203C00, ints, 0, ""},
	{"VCMHS", "cmhs", form3Int, 0x2E203C00, ints, 0, ""},
	{"VSSHL", "sshl", form3Int, 0x0E204400, ints, 0, ""},
	{"VUSHL", "ushl", form3Int, 0x2E204400, ints, 0, ""},
	{"VZIP1", "zip1", form3Int, 0x0E003800, all, 26, ""},
	{"VZIP2", "zip2", form3Int, 0x0E007800, all, 26, ""},
	{"VUZP1", "uzp1", form3Int, 0x0E001800, all, 26, ""},
	{"VUZP2", "uzp2", form3Int, 0x0E005800, all, 26, ""},
	{"VTRN1", "trn1", form3Int, 0x0E002800, all, 26, ""},
	{"VTRN2", "trn2", form3Int, 0x0E006800, all, 26, ""},

	{"VAND", "and", form3Fix, 0x0E201C00, octets, 11, ""},
	{"VBIC", "bic", form3Fix, 0x0E601C00, octets, 0, ""},
	{"VORR", "orr", form3Fix, 0x0EA01C00, octets, 11, ""},
	{"VEOR", "eor", form3Fix, 0x2E201C00, octets, 11, ""},
	{"VBIT", "bit", form3Fix, 0x2EA01C00, octets, 12, ""},
	{"VBIF", "bif", form3Fix, 0x2EE01C00, octets, 12, ""},
	{"VBSL", "bsl", form3Fix, 0x2E601C00, octets, 17, ""},
	{"VEXT", "ext", formExt, 0x2E000000, octets, 26, ""},

	{"VFABS", "fabs", form2FP, 0x0EA0F800, fps, 27, ""},
	{"VFNEG", "fneg", form2FP, 0x2EA0F800, fps, 27, ""},
	{"VFSQRT", "fsqrt", form2FP, 0x2EA1F800, fps, 27, ""},
	{"VFRINTN", "frintn", form2FP, 0x0E218800, fps, 27, ""},
	{"VFRINTM", "frintm", form2FP, 0x0E219800, fps, 27, ""},
	{"VFCVTNS", "fcvtns", form2FP, 0x0E21A800, fps, 0, ""},
	{"VFCVTZS", "fcvtzs", form2FP, 0x0EA1B800, fps, 27, ""},
	{"VSCVTF", "scvtf", form2FP, 0x0E21D800, fps, 27, ""},
	{"VUCVTF", "ucvtf", form2FP, 0x2E21D800, fps, 27, ""},
	{"VFRECPE", "frecpe", form2FP, 0x0EA1D800, fps, 0, ""},
	{"VFRSQRTE", "frsqrte", form2FP, 0x2EA1D800, fps, 0, ""},
	{"VNEG", "neg", form2Int, 0x2E20B800, ints, 0, ""},
	{"VABS", "abs", form2Int, 0x0E20B800, ints, 0, ""},
	{"VNOT", "not", form2Fix, 0x2E205800, octets, 0, ""},
	{"VREV64", "rev64", form2Int, 0x0E200800, ints, 26, ""},
	{"VCMEQ0", "cmeq", form2Zero, 0x0E209800, ints, 0, ""},
	{"VCMLT0", "cmlt", form2Zero, 0x0E20A800, ints, 0, ""},
	{"VFCMEQ0", "fcmeq", form2ZeroFP, 0x0EA0D800, fps, 0, ""},
	{"VFCMGT0", "fcmgt", form2ZeroFP, 0x0EA0C800, fps, 0, ""},
	{"VFCMLT0", "fcmlt", form2ZeroFP, 0x0EA0E800, fps, 0, ""},

	{"VFCVTL", "fcvtl", formWiden, 0x0E217800, f32x4, 0, ""},
	{"VFCVTN", "fcvtn", formNarrowFP, 0x0E216800, f32x4, 0, ""},
	{"VFCVTLd", "fcvtl", formWiden, 0x0E617800, f64x2, 0, ""},
	{"VFCVTNd", "fcvtn", formNarrowFP, 0x0E616800, f64x2, 0, ""},
	{"VXTN", "xtn", formNarrow, 0x0E212800, wides, 0, ""},
	{"VSQXTN", "sqxtn", formNarrow, 0x0E214800, wides, 0, ""},
	{"VFMAXV", "fmaxv", formAcrossFP, 0x2E30F800, f32x4, 0, ""},
	{"VFMAXNMV", "fmaxnmv", formAcrossFP, 0x2E30C800, f32x4, 0, ""},
	{"VUMAXV", "umaxv", formAcross, 0x2E30A800, lanes, 0, ""},
	{"VUMINV", "uminv", formAcross, 0x2E31A800, lanes, 0, ""},

	{"VSHL", "shl", formShl, 0x0F005400, ints, 12, ""},
	{"VSLI", "sli", formShl, 0x2F005400, ints, 17, ""},
	{"VUSHR", "ushr", formShr, 0x2F000400, ints, 12, ""},
	{"VSSHR", "sshr", formShr, 0x0F000400, ints, 0, ""},
	{"VUSRA", "usra", formShr, 0x2F001400, ints, 17, ""},
	{"VSRI", "sri", formShr, 0x2F004400, ints, 12, ""},
	{"VSSHLL", "sshll", formShll, 0x0F00A400, wides, 0, ""},
	{"VUSHLL", "ushll", formShll, 0x2F00A400, wides, 13, ""},
	{"VSHLL", "shll", formShllMax, 0x2E213800, wides, 0, ""},
	{"VSHRN", "shrn", formShrn, 0x0F008400, wides, 27, ""},
	{"VRSHRN", "rshrn", formShrn, 0x0F008C00, wides, 0, ""},

	{"VFMLAe", "fmla", form3Elem, 0x0F801000, f32s, 0, ""},
	{"VFMLSe", "fmls", form3Elem, 0x0F805000, f32s, 0, ""},
	{"VFMULe", "fmul", form3Elem, 0x0F809000, f32s, 0, ""},

	{"VSDOT", "sdot", form3Dot, 0x4E809400, f32x4, 0, "dotprod"},
	{"VUDOT", "udot", form3Dot, 0x6E809400, f32x4, 0, "dotprod"},
	{"VSDOTe", "sdot", formDotE, 0x0F80E000, f32x4, 0, "dotprod"},
	{"VUSDOT", "usdot", form3Dot, 0x4E809C00, f32x4, 0, "i8mm"},
	{"VSMMLA", "smmla", form3Dot, 0x4E80A400, f32x4, 0, "i8mm"},
	{"VUMMLA", "ummla", form3Dot, 0x6E80A400, f32x4, 0, "i8mm"},
	{"VBFDOT", "bfdot", form3DotH, 0x6E40FC00, f32x4, 0, "bf16"},
	{"VBFDOTe", "bfdot", formDotHE, 0x0F40F000, f32x4, 0, "bf16"},
	{"VBFMMLA", "bfmmla", form3DotH, 0x6E40EC00, f32x4, 0, "bf16"},
	{"VBFMLALB", "bfmlalb", form3DotH, 0x2EC0FC00, f32x4, 0, "bf16"},
	{"VBFMLALT", "bfmlalt", form3DotH, 0x6EC0FC00, f32x4, 0, "bf16"},
	{"VBFMLALBe", "bfmlalb", formHalfE, 0x0FC0F000, f32x4, 0, "bf16"},
	{"VBFMLALTe", "bfmlalt", formHalfE, 0x4FC0F000, f32x4, 0, "bf16"},
	{"VBFCVTN", "bfcvtn", formNarrowFP, 0x0EA16800, f32x4, 0, "bf16"},
	{"VFMLAL", "fmlal", form3DotH4, 0x4E20EC00, f32x4, 0, "fp16fml"},
	{"VFMLAL2", "fmlal2", form3DotH4, 0x6E20CC00, f32x4, 0, "fp16fml"},
	{"VFADDh", "fadd", form3Fix, 0x0E401400, f16s, 0, "fp16"},
	{"VFMULh", "fmul", form3Fix, 0x2E401C00, f16s, 0, "fp16"},
	{"VFMLAh", "fmla", form3Fix, 0x0E400C00, f16s, 0, "fp16"},
}

// rows are the encodings by name.
var rows = func() map[string]*encoding {
	m := map[string]*encoding{}
	for i := range encodings {
		m[encodings[i].name] = &encodings[i]
	}
	return m
}()

// known reports that the assembler of this Go release has the mnemonic.
func (e *encoding) known() bool { return 0 < e.since && e.since <= goRelease }

// Arr is the arrangement of a vector operand: how many lanes of how many bits. An element is an arrangement too: one
// lane, or a word of narrower ones, that an index picks.
type Arr uint16

const element Arr = 1 << 15

const (
	B8  Arr = 8<<8 | 8
	B16 Arr = 8<<8 | 16
	H4  Arr = 16<<8 | 4
	H8  Arr = 16<<8 | 8
	S2  Arr = 32<<8 | 2
	S4  Arr = 32<<8 | 4
	D2  Arr = 64<<8 | 2

	elemB  Arr = element | 8<<8 | 1
	elemH  Arr = element | 16<<8 | 1
	elemS  Arr = element | 32<<8 | 1
	elemD  Arr = element | 64<<8 | 1
	elemB4 Arr = element | 8<<8 | 4
	elemH2 Arr = element | 16<<8 | 2

	none Arr = 0
)

func arr(bits, lanes int) Arr   { return Arr(bits<<8 | lanes) }
func (a Arr) bits() int         { return int(a &^ element >> 8) }
func (a Arr) lanes() int        { return int(a & 0xFF) }
func (a Arr) size() int         { return a.bits() * a.lanes() / 8 }
func (a Arr) isElement() bool   { return a&element != 0 }
func (a Arr) letter() string    { return string("BHSD"[bits.TrailingZeros(uint(a.bits()))-3]) }
func (a Arr) narrow(h bool) Arr { return arr(a.bits()/2, 64/(a.bits()/2)<<b2i(h)) }
func (a Arr) elementOf() Arr    { return element | arr(a.bits(), 1) }
func (a Arr) scalarOf() Arr     { return arr(a.bits(), 1) }
func (a Arr) indexes() int      { return 16 / a.size() } // how many such elements a register has
func b2i(b bool) (i int) {
	if b {
		i = 1
	}
	return i
}

// String is Go's spelling; what names an element lacks its index.
func (a Arr) String() string {
	switch {
	case a == none:
		return "none"
	case a.lanes() == 1:
		return a.letter()
	}
	return fmt.Sprintf("%s%d", a.letter(), a.lanes())
}

// View is a vector register as an instruction uses it.
type View struct {
	num   int
	arr   Arr
	index int // of an element
}

// goAsm and gnu are the two spellings of an operand.
func (v View) goAsm() string {
	s := fmt.Sprintf("V%d.%s", v.num, v.arr)
	if v.arr.isElement() {
		s += fmt.Sprintf("[%d]", v.index)
	}
	return s
}

func (v View) gnu() string {
	letter := strings.ToLower(v.arr.letter())
	switch {
	case v.arr.isElement() && v.arr.lanes() == 1:
		return fmt.Sprintf("v%d.%s[%d]", v.num, letter, v.index)
	case v.arr.isElement():
		return fmt.Sprintf("v%d.%d%s[%d]", v.num, v.arr.lanes(), letter, v.index)
	case v.arr.lanes() == 1:
		return fmt.Sprintf("%s%d", letter, v.num)
	}
	return fmt.Sprintf("v%d.%d%s", v.num, v.arr.lanes(), letter)
}

// form is how an instruction uses operands and where its word has them. The registers are always Vm at bit 16, Vn at 5
// and Vd at 0.
type form struct {
	name string
	// operands are the arrangements of Vm, Vn and Vd, none for one that the form has not, for an arrangement of the
	// row; of forms that halve, for the lower half of the narrow register or, if high, the upper one.
	operands func(a Arr, high bool) (m, n, d Arr)
	halves   bool
	// bits is what the arrangement sets in the word.
	bits func(a Arr) uint32
	// imm is the range of the immediate and its place, nil if there is none.
	imm *immediate
	// zero is the comparand that is written and not encoded.
	zero string
}

// immediate is the range of an immediate, and what it sets in the word.
type immediate struct {
	min, max func(a Arr) int
	bits     func(a Arr, imm int) uint32
}

var (
	form3FP  = &form{name: "3FP", operands: three, bits: sizeFP}
	form3Int = &form{name: "3Int", operands: three, bits: sizeInt}
	form3Fix = &form{name: "3Fix", operands: three, bits: full}
	formExt  = &form{name: "Ext", operands: three, bits: full, imm: &immediate{is(0), func(a Arr) int { return a.size() - 1 }, at(11)}}

	form3Elem  = &form{name: "3Elem", operands: byElement, bits: full}
	form3Dot   = &form{name: "3Dot", operands: dots(B16), bits: nothing}
	form3DotH  = &form{name: "3Dot", operands: dots(H8), bits: nothing}
	form3DotH4 = &form{name: "3Dot", operands: dots(H4), bits: nothing}
	formDotE   = &form{name: "DotE", operands: dotsElement(B16, elemB4), bits: full}
	formHalfE  = &form{name: "HalfE", operands: dotsElement(H8, elemH), bits: nothing}
	formDotHE  = &form{name: "DotE", operands: dotsElement(H8, elemH2), bits: full}

	form2FP     = &form{name: "2FP", operands: two, bits: sizeFP}
	form2Int    = &form{name: "2Int", operands: two, bits: sizeInt}
	form2Fix    = &form{name: "2Fix", operands: two, bits: full}
	form2Zero   = &form{name: "2Zero", operands: two, bits: sizeInt, zero: "#0"}
	form2ZeroFP = &form{name: "2ZeroFP", operands: two, bits: sizeFP, zero: "#0.0"}

	formWiden    = &form{name: "Widen", operands: toWide, halves: true, bits: nothing}
	formNarrow   = &form{name: "Narrow", operands: toNarrow, halves: true, bits: sizeHalf}
	formNarrowFP = &form{name: "Narrow", operands: toNarrow, halves: true, bits: nothing}
	formAcross   = &form{name: "Across", operands: across, bits: sizeInt}
	formAcrossFP = &form{name: "Across", operands: across, bits: sizeFP}

	// The immediate of a shift shares its seven bits with the size: they are the bits of a lane plus the shift to the
	// left, or twice these minus the shift to the right.
	formShl  = &form{name: "Shl", operands: two, bits: full, imm: &immediate{is(0), func(a Arr) int { return a.bits() - 1 }, func(a Arr, imm int) uint32 { return uint32(a.bits()+imm) << 16 }}}
	formShr  = &form{name: "Shr", operands: two, bits: full, imm: &immediate{is(1), Arr.bits, func(a Arr, imm int) uint32 { return uint32(2*a.bits()-imm) << 16 }}}
	formShll = &form{name: "Shll", operands: toWide, halves: true, bits: nothing, imm: &immediate{is(0), func(a Arr) int { return a.bits()/2 - 1 }, func(a Arr, imm int) uint32 { return uint32(a.bits()/2+imm) << 16 }}}
	formShrn = &form{name: "Shrn", operands: toNarrow, halves: true, bits: nothing, imm: &immediate{is(1), halfBits, func(a Arr, imm int) uint32 { return uint32(a.bits()-imm) << 16 }}}

	// SHLL shifts by the bits of a narrow lane and by nothing else.
	formShllMax = &form{name: "ShllMax", operands: toWide, halves: true, bits: sizeHalf, imm: &immediate{halfBits, halfBits, func(Arr, int) uint32 { return 0 }}}
)

func three(a Arr, _ bool) (m, n, d Arr)       { return a, a, a }
func two(a Arr, _ bool) (m, n, d Arr)         { return none, a, a }
func byElement(a Arr, _ bool) (m, n, d Arr)   { return a.elementOf(), a, a }
func toWide(a Arr, high bool) (m, n, d Arr)   { return none, a.narrow(high), a }
func toNarrow(a Arr, high bool) (m, n, d Arr) { return none, a, a.narrow(high) }
func across(a Arr, _ bool) (m, n, d Arr)      { return none, a, a.scalarOf() }
func dots(of Arr) func(Arr, bool) (m, n, d Arr) {
	return func(a Arr, _ bool) (m, n, d Arr) { return of, of, a }
}
func dotsElement(of, e Arr) func(Arr, bool) (m, n, d Arr) {
	return func(a Arr, _ bool) (m, n, d Arr) { return e, of, a }
}

// quad is bit 30, which says that a register is used in full.
const quad = 1 << 30

func nothing(Arr) uint32    { return 0 }
func full(a Arr) uint32     { return uint32(b2i(a.size() == 16)) * quad }
func sizeFP(a Arr) uint32   { return full(a) | uint32(b2i(a.bits() == 64))<<22 }
func sizeInt(a Arr) uint32  { return full(a) | uint32(bits.TrailingZeros(uint(a.bits()/8)))<<22 }
func sizeHalf(a Arr) uint32 { return uint32(bits.TrailingZeros(uint(a.bits()/16))) << 22 }

func is(i int) func(Arr) int { return func(Arr) int { return i } }
func halfBits(a Arr) int     { return a.bits() / 2 }
func at(bit int) func(a Arr, imm int) uint32 {
	return func(_ Arr, imm int) uint32 { return uint32(imm) << bit }
}

// instruction is a row with operands. It is valid if match made it.
type instruction struct {
	*encoding
	arr     Arr // of the row's list
	high    bool
	m, n, d View // those that the form has not are zero
	imm     int
}

// match finds the arrangement of the row that the operands have, and checks them.
func (e *encoding) match(m, n, d View, imm int) (instruction, error) {
	for _, a := range e.arrs {
		for _, high := range []bool{false, true}[:1+b2i(e.form.halves)] {
			wm, wn, wd := e.form.operands(a, high)
			if m.arr == wm && n.arr == wn && d.arr == wd {
				i := instruction{e, a, high, m, n, d, imm}
				return i, i.check()
			}
		}
	}
	return instruction{}, fmt.Errorf("%s has no form for the arrangements %v, %v, %v", e.name, m.arr, n.arr, d.arr)
}

// check finds registers, indexes and immediates that the word has no room for.
func (i instruction) check() error {
	for _, v := range []View{i.m, i.n, i.d} {
		if v.num < 0 || v.num > 31 {
			return fmt.Errorf("%s: there is no V%d", i.name, v.num)
		}
		if v.arr == elemH && v.num > 15 {
			return fmt.Errorf("%s: an element of 16 bits is in V0 to V15, not in V%d", i.name, v.num)
		}
		if v.arr.isElement() && (v.index < 0 || v.index >= v.arr.indexes()) {
			return fmt.Errorf("%s: %s is not in the register", i.name, v.goAsm())
		}
	}
	switch f := i.form.imm; {
	case f == nil && i.imm != 0:
		return fmt.Errorf("%s takes no immediate", i.name)
	case f != nil && (i.imm < f.min(i.arr) || i.imm > f.max(i.arr)):
		return fmt.Errorf("%s: immediate %d is not in [%d, %d]", i.name, i.imm, f.min(i.arr), f.max(i.arr))
	}
	return nil
}

// word is the instruction's encoding.
func (i instruction) word() uint32 {
	w := i.base | i.form.bits(i.arr) | uint32(i.n.num)<<5 | uint32(i.d.num)
	if i.high {
		w |= quad
	}
	if i.form.imm != nil {
		w |= i.form.imm.bits(i.arr, i.imm)
	}
	if i.m.arr != none {
		w |= uint32(i.m.num) << 16
	}
	switch {
	case i.m.arr == elemH: // the index has its low bit at 20, the next at 21 and its high one at 11
		w |= uint32(i.m.index&1)<<20 | uint32(i.m.index>>1&1)<<21 | uint32(i.m.index>>2)<<11
	case i.m.arr.isElement(): // of 32 bits: the index has its low bit at 21 and its high one at 11
		w |= uint32(i.m.index&1)<<21 | uint32(i.m.index>>1)<<11
	}
	return w
}

// mnemonic adds the 2 of those that use the upper half.
func (i instruction) mnemonic(name string) string {
	if i.high {
		return name + "2"
	}
	return name
}

// gnuText is the instruction as GNU as reads it.
func (i instruction) gnuText() string {
	s := i.mnemonic(i.gnu) + " " + i.d.gnu() + ", " + i.n.gnu()
	if i.m.arr != none {
		s += ", " + i.m.gnu()
	}
	if i.form.imm != nil {
		s += fmt.Sprintf(", #%d", i.imm)
	}
	if i.form.zero != "" {
		s += ", " + i.form.zero
	}
	return s
}

// goOperands are the operands in Go's order, sources before the destination.
func (i instruction) goOperands() string {
	var ops []string
	if i.form.imm != nil {
		ops = append(ops, fmt.Sprintf("$%d", i.imm))
	}
	if i.m.arr != none {
		ops = append(ops, i.m.goAsm())
	}
	return strings.Join(append(ops, i.n.goAsm(), i.d.goAsm()), ", ")
}
