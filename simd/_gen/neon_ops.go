package workshop

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
)

// The instructions that bodies may use, as methods of A. Vector instructions are rows of the table; what Go's assembler
// has always known is written as text, and its encoding is left to it.

// vec adds an instruction of the table: as its mnemonic if this Go release knows that, else as the word itself.
func (a *A) vec(name string, imm int, m, n, d View) {
	i, err := rows[name].match(m, n, d, imm)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", a.symbol, err))
	}
	if i.needs != "" && !slices.Contains(a.needs, i.needs) {
		a.needs = append(a.needs, i.needs)
	}
	l := line{op: i.mnemonic(i.name), args: i.goOperands(), does: vector}
	if strings.HasPrefix(i.gnu, "fmla") || strings.HasPrefix(i.gnu, "fmls") || strings.HasPrefix(i.gnu, "bfmlal") { // and their long forms
		l.does = fused
	}
	if !i.known() {
		l.op, l.args, l.note = "WORD", fmt.Sprintf("$%#08x", i.word()), i.gnuText()
	}
	a.code = append(a.code, l)
}

// product is vec for instructions that have a second row, in which m is an element.
func (a *A) product(name string, m, n, d View) {
	if m.arr.isElement() {
		name += "e"
	}
	a.vec(name, 0, m, n, d)
}

// Three vectors: d = n op m. VFMLA, VFMLS, VMLA and the dot products add to d; VBIT, VBIF and VBSL choose into it. The
// products take an element of m too.
func (a *A) VFADD(m, n, d View)    { a.vec("VFADD", 0, m, n, d) }
func (a *A) VFSUB(m, n, d View)    { a.vec("VFSUB", 0, m, n, d) }
func (a *A) VFMUL(m, n, d View)    { a.product("VFMUL", m, n, d) }
func (a *A) VFDIV(m, n, d View)    { a.vec("VFDIV", 0, m, n, d) }
func (a *A) VFMLA(m, n, d View)    { a.product("VFMLA", m, n, d) }
func (a *A) VFMLS(m, n, d View)    { a.product("VFMLS", m, n, d) }
func (a *A) VFMAX(m, n, d View)    { a.vec("VFMAX", 0, m, n, d) }
func (a *A) VFMIN(m, n, d View)    { a.vec("VFMIN", 0, m, n, d) }
func (a *A) VFMAXNM(m, n, d View)  { a.vec("VFMAXNM", 0, m, n, d) }
func (a *A) VFMINNM(m, n, d View)  { a.vec("VFMINNM", 0, m, n, d) }
func (a *A) VFADDP(m, n, d View)   { a.vec("VFADDP", 0, m, n, d) }
func (a *A) VFMAXP(m, n, d View)   { a.vec("VFMAXP", 0, m, n, d) }
func (a *A) VFCMEQ(m, n, d View)   { a.vec("VFCMEQ", 0, m, n, d) }
func (a *A) VFCMGE(m, n, d View)   { a.vec("VFCMGE", 0, m, n, d) }
func (a *A) VFCMGT(m, n, d View)   { a.vec("VFCMGT", 0, m, n, d) }
func (a *A) VFRECPS(m, n, d View)  { a.vec("VFRECPS", 0, m, n, d) }
func (a *A) VFRSQRTS(m, n, d View) { a.vec("VFRSQRTS", 0, m, n, d) }
func (a *A) VADD(m, n, d View)     { a.vec("VADD", 0, m, n, d) }
func (a *A) VSUB(m, n, d View)     { a.vec("VSUB", 0, m, n, d) }
func (a *A) VMUL(m, n, d View)     { a.vec("VMUL", 0, m, n, d) }
func (a *A) VMLA(m, n, d View)     { a.vec("VMLA", 0, m, n, d) }
func (a *A) VSMAX(m, n, d View)    { a.vec("VSMAX", 0, m, n, d) }
func (a *A) VSMIN(m, n, d View)    { a.vec("VSMIN", 0, m, n, d) }
func (a *A) VUMAX(m, n, d View)    { a.vec("VUMAX", 0, m, n, d) }
func (a *A) VUMIN(m, n, d View)    { a.vec("VUMIN", 0, m, n, d) }
func (a *A) VCMEQ(m, n, d View)    { a.vec("VCMEQ", 0, m, n, d) }
func (a *A) VCMGT(m, n, d View)    { a.vec("VCMGT", 0, m, n, d) }
func (a *A) VCMHI(m, n, d View)    { a.vec("VCMHI", 0, m, n, d) }
func (a *A) VCMGE(m, n, d View)    { a.vec("VCMGE", 0, m, n, d) }
func (a *A) VCMHS(m, n, d View)    { a.vec("VCMHS", 0, m, n, d) }
func (a *A) VSSHL(m, n, d View)    { a.vec("VSSHL", 0, m, n, d) }
func (a *A) VUSHL(m, n, d View)    { a.vec("VUSHL", 0, m, n, d) }
func (a *A) VZIP1(m, n, d View)    { a.vec("VZIP1", 0, m, n, d) }
func (a *A) VZIP2(m, n, d View)    { a.vec("VZIP2", 0, m, n, d) }
func (a *A) VUZP1(m, n, d View)    { a.vec("VUZP1", 0, m, n, d) }
func (a *A) VUZP2(m, n, d View)    { a.vec("VUZP2", 0, m, n, d) }
func (a *A) VTRN1(m, n, d View)    { a.vec("VTRN1", 0, m, n, d) }
func (a *A) VTRN2(m, n, d View)    { a.vec("VTRN2", 0, m, n, d) }
func (a *A) VAND(m, n, d View)     { a.vec("VAND", 0, m, n, d) }
func (a *A) VBIC(m, n, d View)     { a.vec("VBIC", 0, m, n, d) }
func (a *A) VORR(m, n, d View)     { a.vec("VORR", 0, m, n, d) }
func (a *A) VEOR(m, n, d View)     { a.vec("VEOR", 0, m, n, d) }
func (a *A) VBIT(m, n, d View)     { a.vec("VBIT", 0, m, n, d) }
func (a *A) VBIF(m, n, d View)     { a.vec("VBIF", 0, m, n, d) }
func (a *A) VBSL(m, n, d View)     { a.vec("VBSL", 0, m, n, d) }
func (a *A) VSDOT(m, n, d View)    { a.product("VSDOT", m, n, d) }
func (a *A) VUDOT(m, n, d View)    { a.vec("VUDOT", 0, m, n, d) }
func (a *A) VUSDOT(m, n, d View)   { a.vec("VUSDOT", 0, m, n, d) }
func (a *A) VSMMLA(m, n, d View)   { a.vec("VSMMLA", 0, m, n, d) }
func (a *A) VUMMLA(m, n, d View)   { a.vec("VUMMLA", 0, m, n, d) }
func (a *A) VBFDOT(m, n, d View)   { a.product("VBFDOT", m, n, d) }
func (a *A) VBFMMLA(m, n, d View)  { a.vec("VBFMMLA", 0, m, n, d) }
func (a *A) VBFMLALB(m, n, d View) { a.product("VBFMLALB", m, n, d) }
func (a *A) VBFMLALT(m, n, d View) { a.product("VBFMLALT", m, n, d) }
func (a *A) VFMLAL(m, n, d View)   { a.vec("VFMLAL", 0, m, n, d) }
func (a *A) VFMLAL2(m, n, d View)  { a.vec("VFMLAL2", 0, m, n, d) }
func (a *A) VFADDh(m, n, d View)   { a.vec("VFADDh", 0, m, n, d) }
func (a *A) VFMULh(m, n, d View)   { a.vec("VFMULh", 0, m, n, d) }
func (a *A) VFMLAh(m, n, d View)   { a.vec("VFMLAh", 0, m, n, d) }

// The bytes from imm on of n and then m.
func (a *A) VEXT(imm int, m, n, d View) { a.vec("VEXT", imm, m, n, d) }

// Two vectors: d = op n.
func (a *A) VFABS(n, d View)    { a.vec("VFABS", 0, View{}, n, d) }
func (a *A) VFNEG(n, d View)    { a.vec("VFNEG", 0, View{}, n, d) }
func (a *A) VFSQRT(n, d View)   { a.vec("VFSQRT", 0, View{}, n, d) }
func (a *A) VFRINTN(n, d View)  { a.vec("VFRINTN", 0, View{}, n, d) }
func (a *A) VFRINTM(n, d View)  { a.vec("VFRINTM", 0, View{}, n, d) }
func (a *A) VFCVTNS(n, d View)  { a.vec("VFCVTNS", 0, View{}, n, d) }
func (a *A) VFCVTZS(n, d View)  { a.vec("VFCVTZS", 0, View{}, n, d) }
func (a *A) VSCVTF(n, d View)   { a.vec("VSCVTF", 0, View{}, n, d) }
func (a *A) VUCVTF(n, d View)   { a.vec("VUCVTF", 0, View{}, n, d) }
func (a *A) VFRECPE(n, d View)  { a.vec("VFRECPE", 0, View{}, n, d) }
func (a *A) VFRSQRTE(n, d View) { a.vec("VFRSQRTE", 0, View{}, n, d) }
func (a *A) VNEG(n, d View)     { a.vec("VNEG", 0, View{}, n, d) }
func (a *A) VABS(n, d View)     { a.vec("VABS", 0, View{}, n, d) }
func (a *A) VNOT(n, d View)     { a.vec("VNOT", 0, View{}, n, d) }
func (a *A) VREV64(n, d View)   { a.vec("VREV64", 0, View{}, n, d) }

// Comparisons of n with zero.
func (a *A) VCMEQ0(n, d View)  { a.vec("VCMEQ0", 0, View{}, n, d) }
func (a *A) VCMLT0(n, d View)  { a.vec("VCMLT0", 0, View{}, n, d) }
func (a *A) VFCMEQ0(n, d View) { a.vec("VFCMEQ0", 0, View{}, n, d) }
func (a *A) VFCMGT0(n, d View) { a.vec("VFCMGT0", 0, View{}, n, d) }
func (a *A) VFCMLT0(n, d View) { a.vec("VFCMLT0", 0, View{}, n, d) }

// Wider and narrower lanes: a register of twice as many narrow lanes as there are wide ones stands for its upper half.
func (a *A) VFCVTL(n, d View)  { a.vec("VFCVTL", 0, View{}, n, d) }
func (a *A) VFCVTN(n, d View)  { a.vec("VFCVTN", 0, View{}, n, d) }
func (a *A) VFCVTLd(n, d View) { a.vec("VFCVTLd", 0, View{}, n, d) }
func (a *A) VFCVTNd(n, d View) { a.vec("VFCVTNd", 0, View{}, n, d) }
func (a *A) VXTN(n, d View)    { a.vec("VXTN", 0, View{}, n, d) }
func (a *A) VSQXTN(n, d View)  { a.vec("VSQXTN", 0, View{}, n, d) }
func (a *A) VBFCVTN(n, d View) { a.vec("VBFCVTN", 0, View{}, n, d) }

// The largest or smallest lane of n becomes the scalar d.
func (a *A) VFMAXV(n View, d Vec) { a.vec("VFMAXV", 0, View{}, n, View{d.live(), n.arr.scalarOf(), 0}) }
func (a *A) VFMAXNMV(n View, d Vec) {
	a.vec("VFMAXNMV", 0, View{}, n, View{d.live(), n.arr.scalarOf(), 0})
}
func (a *A) VUMAXV(n View, d Vec) { a.vec("VUMAXV", 0, View{}, n, View{d.live(), n.arr.scalarOf(), 0}) }
func (a *A) VUMINV(n View, d Vec) { a.vec("VUMINV", 0, View{}, n, View{d.live(), n.arr.scalarOf(), 0}) }

// Shifts by an immediate. Those that lengthen or narrow use halves as above; VUSRA adds to d.
func (a *A) VSHL(imm int, n, d View)   { a.vec("VSHL", imm, View{}, n, d) }
func (a *A) VSLI(imm int, n, d View)   { a.vec("VSLI", imm, View{}, n, d) }
func (a *A) VUSHR(imm int, n, d View)  { a.vec("VUSHR", imm, View{}, n, d) }
func (a *A) VSSHR(imm int, n, d View)  { a.vec("VSSHR", imm, View{}, n, d) }
func (a *A) VUSRA(imm int, n, d View)  { a.vec("VUSRA", imm, View{}, n, d) }
func (a *A) VSRI(imm int, n, d View)   { a.vec("VSRI", imm, View{}, n, d) }
func (a *A) VSSHLL(imm int, n, d View) { a.vec("VSSHLL", imm, View{}, n, d) }
func (a *A) VUSHLL(imm int, n, d View) { a.vec("VUSHLL", imm, View{}, n, d) }
func (a *A) VSHLL(imm int, n, d View)  { a.vec("VSHLL", imm, View{}, n, d) }
func (a *A) VSHRN(imm int, n, d View)  { a.vec("VSHRN", imm, View{}, n, d) }
func (a *A) VRSHRN(imm int, n, d View) { a.vec("VRSHRN", imm, View{}, n, d) }

// VDUP fills a vector with a general register, VDUPe with an element.
func (a *A) VDUP(r GP, d View) {
	a.whole("VDUP", d, B8, B16, H4, H8, S2, S4, D2)
	a.emit(vector, "VDUP", r.goAsm(), d.goAsm())
}

func (a *A) VDUPe(n, d View) {
	a.whole("VDUP", d, B8, B16, H4, H8, S2, S4, D2)
	a.inRegister("VDUP", n, d.arr.elementOf())
	a.emit(vector, "VDUP", n.goAsm(), d.goAsm())
}

// VMOV copies a vector, VMOVe an element, VMOVto and VMOVfrom an element to and from a general register.
func (a *A) VMOV(n, d View) {
	a.whole("VMOV", n, B8, B16)
	a.whole("VMOV", d, n.arr)
	a.emit(vector, "VMOV", n.goAsm(), d.goAsm())
}

func (a *A) VMOVe(n, d View) {
	a.inRegister("VMOV", n, d.arr)
	a.inRegister("VMOV", d, elemB, elemH, elemS, elemD)
	a.emit(vector, "VMOV", n.goAsm(), d.goAsm())
}

func (a *A) VMOVto(n View, r GP) {
	a.inRegister("VMOV", n, elemB, elemH, elemS, elemD)
	a.emit(vector, "VMOV", n.goAsm(), r.goAsm())
}

func (a *A) VMOVfrom(r GP, d View) {
	a.inRegister("VMOV", d, elemB, elemH, elemS, elemD)
	a.emit(vector, "VMOV", r.goAsm(), d.goAsm())
}

// VTBL picks bytes of a list of up to four registers by the indexes in m; those past the list give 0.
func (a *A) VTBL(m View, list []Vec, d View) { a.lookUp("VTBL", m, list, d) }

// VTBX is VTBL that leaves bytes of d whose indexes are past the list.
func (a *A) VTBX(m View, list []Vec, d View) { a.lookUp("VTBX", m, list, d) }

func (a *A) lookUp(op string, m View, list []Vec, d View) {
	a.whole(op, m, B8, B16)
	a.whole(op, d, m.arr)
	text, _ := a.list(op, view(list, B16), 1, 4)
	a.emit(vector, op, m.goAsm(), text, d.goAsm())
}

func view(vs []Vec, as Arr) (views []View) {
	for _, v := range vs {
		views = append(views, View{v.live(), as, 0})
	}
	return views
}

// whole demands one of these arrangements, inRegister one of these elements at an index that the register has.
func (a *A) whole(op string, v View, of ...Arr) {
	if !slices.Contains(of, v.arr) {
		panic(fmt.Sprintf("%s: %s has no form for %s", a.symbol, op, v.goAsm()))
	}
}

func (a *A) inRegister(op string, v View, of ...Arr) {
	a.whole(op, v, of...)
	within(op+" index", v.index, 0, v.arr.indexes()-1)
}

// list is the spelling of lo to hi consecutive registers of one arrangement, and their bytes.
func (a *A) list(op string, vs []View, lo, hi int) (text string, size int) {
	within(op+": registers in a list", len(vs), lo, hi)
	var names []string
	for i, v := range vs {
		if v.arr != vs[0].arr || v.arr.isElement() || v.num != (vs[0].num+i)%32 {
			panic(fmt.Sprintf("%s: %s wants consecutive registers of one arrangement, has %v", a.symbol, op, vs))
		}
		names = append(names, v.goAsm())
		size += v.arr.size()
	}
	return "[" + strings.Join(names, ", ") + "]", size
}

// VLD1 and VST1 move one to four registers; VLD2 to VLD4 part what alternates, VST2 to VST4 make it alternate. The list
// comes last, in stores too.
func (a *A) VLD1(m Mem, ds ...View) { a.loadList("VLD1", m, ds, 1, 4) }
func (a *A) VLD2(m Mem, ds ...View) { a.loadList("VLD2", m, ds, 2, 2) }
func (a *A) VLD3(m Mem, ds ...View) { a.loadList("VLD3", m, ds, 3, 3) }
func (a *A) VLD4(m Mem, ds ...View) { a.loadList("VLD4", m, ds, 4, 4) }

func (a *A) loadList(op string, m Mem, ds []View, lo, hi int) {
	text, size := a.list(op, ds, lo, hi)
	a.emit(load, op+m.suffix(), m.list(size), text)
}

func (a *A) VST1(m Mem, ns ...View) { a.storeList("VST1", m, ns, 1, 4) }
func (a *A) VST2(m Mem, ns ...View) { a.storeList("VST2", m, ns, 2, 2) }
func (a *A) VST3(m Mem, ns ...View) { a.storeList("VST3", m, ns, 3, 3) }
func (a *A) VST4(m Mem, ns ...View) { a.storeList("VST4", m, ns, 4, 4) }

func (a *A) storeList(op string, m Mem, ns []View, lo, hi int) {
	text, size := a.list(op, ns, lo, hi)
	a.emit(store, op+m.suffix(), text, m.list(size))
}

// VLD1R fills a vector with one element from memory. VLD1e and VST1e move one element.
func (a *A) VLD1R(m Mem, d View) {
	text, _ := a.list("VLD1R", []View{d}, 1, 1)
	a.emit(load, "VLD1R"+m.suffix(), m.list(d.arr.bits()/8), text)
}

func (a *A) VLD1e(m Mem, d View) {
	a.inRegister("VLD1", d, elemB, elemH, elemS, elemD)
	a.emit(load, "VLD1"+m.suffix(), m.list(d.arr.size()), d.goAsm())
}

func (a *A) VST1e(m Mem, n View) {
	a.inRegister("VST1", n, elemB, elemH, elemS, elemD)
	a.emit(store, "VST1"+m.suffix(), n.goAsm(), m.list(n.arr.size()))
}

// FMOVS, FMOVD and FMOVQ load and store the lowest 4, 8 or 16 bytes; a load clears the rest of the register. FLDPQ and
// FSTPQ move two registers.
func (a *A) FMOVS(m Mem, d Vec)    { a.emit(load, "FMOVS"+m.suffix(), m.single(4), d.goAsm()) }
func (a *A) FMOVD(m Mem, d Vec)    { a.emit(load, "FMOVD"+m.suffix(), m.single(8), d.goAsm()) }
func (a *A) FMOVQ(m Mem, d Vec)    { a.emit(load, "FMOVQ"+m.suffix(), m.single(16), d.goAsm()) }
func (a *A) FMOVSto(n Vec, m Mem)  { a.emit(store, "FMOVS"+m.suffix(), n.goAsm(), m.single(4)) }
func (a *A) FMOVDto(n Vec, m Mem)  { a.emit(store, "FMOVD"+m.suffix(), n.goAsm(), m.single(8)) }
func (a *A) FMOVQto(n Vec, m Mem)  { a.emit(store, "FMOVQ"+m.suffix(), n.goAsm(), m.single(16)) }
func (a *A) FLDPQ(m Mem, d, e Vec) { a.emit(load, "FLDPQ"+m.suffix(), m.pair(16), pair(d, e)) }
func (a *A) FSTPQ(n, o Vec, m Mem) { a.emit(store, "FSTPQ"+m.suffix(), pair(n, o), m.pair(16)) }
func (a *A) FMOVSgp(n Vec, d GP)   { a.emit(vector, "FMOVS", n.goAsm(), d.goAsm()) }
func (a *A) FMOVSvec(n GP, d Vec)  { a.emit(vector, "FMOVS", n.goAsm(), d.goAsm()) }
func (a *A) FMOVSS(n, d Vec)       { a.emit(vector, "FMOVS", n.goAsm(), d.goAsm()) }

func pair(d, e Op) string { return "(" + d.goAsm() + ", " + e.goAsm() + ")" }

// Scalars: d = n op m. FMADDS is d = c + n*m, FMSUBS d = c - n*m, rounded once. FCMPS compares n with m.
func (a *A) FADDS(m, n, d Vec)     { a.scalar("FADDS", m, n, d) }
func (a *A) FSUBS(m, n, d Vec)     { a.scalar("FSUBS", m, n, d) }
func (a *A) FMULS(m, n, d Vec)     { a.scalar("FMULS", m, n, d) }
func (a *A) FDIVS(m, n, d Vec)     { a.scalar("FDIVS", m, n, d) }
func (a *A) FMAXS(m, n, d Vec)     { a.scalar("FMAXS", m, n, d) }
func (a *A) FMINS(m, n, d Vec)     { a.scalar("FMINS", m, n, d) }
func (a *A) FMADDS(m, c, n, d Vec) { a.scalar("FMADDS", m, c, n, d) }
func (a *A) FMSUBS(m, c, n, d Vec) { a.scalar("FMSUBS", m, c, n, d) }
func (a *A) FSQRTS(n, d Vec)       { a.scalar("FSQRTS", n, d) }
func (a *A) FABSS(n, d Vec)        { a.scalar("FABSS", n, d) }
func (a *A) FNEGS(n, d Vec)        { a.scalar("FNEGS", n, d) }
func (a *A) FCMPS(m, n Vec)        { a.scalar("FCMPS", m, n) }
func (a *A) SCVTFS(n GP, d Vec)    { a.emit(vector, "SCVTFS", n.goAsm(), d.goAsm()) }

func (a *A) scalar(op string, vs ...Vec) {
	var args []string
	for _, v := range vs {
		args = append(args, v.goAsm())
	}
	a.emit(vector, op, args...)
}

// Loads and stores of general registers. A W, H or B is 4, 2 or 1 bytes; U is without sign.
func (a *A) MOVD(m Mem, d GP)   { a.emit(load, "MOVD"+m.suffix(), m.single(8), d.goAsm()) }
func (a *A) MOVW(m Mem, d GP)   { a.emit(load, "MOVW"+m.suffix(), m.single(4), d.goAsm()) }
func (a *A) MOVWU(m Mem, d GP)  { a.emit(load, "MOVWU"+m.suffix(), m.single(4), d.goAsm()) }
func (a *A) MOVHU(m Mem, d GP)  { a.emit(load, "MOVHU"+m.suffix(), m.single(2), d.goAsm()) }
func (a *A) MOVBU(m Mem, d GP)  { a.emit(load, "MOVBU"+m.suffix(), m.single(1), d.goAsm()) }
func (a *A) MOVDto(n GP, m Mem) { a.emit(store, "MOVD"+m.suffix(), n.goAsm(), m.single(8)) }
func (a *A) MOVWto(n GP, m Mem) { a.emit(store, "MOVW"+m.suffix(), n.goAsm(), m.single(4)) }
func (a *A) MOVHto(n GP, m Mem) { a.emit(store, "MOVH"+m.suffix(), n.goAsm(), m.single(2)) }
func (a *A) MOVBto(n GP, m Mem) { a.emit(store, "MOVB"+m.suffix(), n.goAsm(), m.single(1)) }
func (a *A) Copy(n, d GP)       { a.emit(integer, "MOVD", n.goAsm(), d.goAsm()) }

// Sums: d = n op x. CMP compares n with x; SUBS does both.
func (a *A) ADD(x Op, n, d GP)  { a.emit(integer, "ADD", sum(x), n.goAsm(), d.goAsm()) }
func (a *A) SUB(x Op, n, d GP)  { a.emit(integer, "SUB", sum(x), n.goAsm(), d.goAsm()) }
func (a *A) ADDS(x Op, n, d GP) { a.emit(integer, "ADDS", sum(x), n.goAsm(), d.goAsm()) }
func (a *A) SUBS(x Op, n, d GP) { a.emit(integer, "SUBS", sum(x), n.goAsm(), d.goAsm()) }
func (a *A) CMP(x Op, n GP)     { a.emit(integer, "CMP", sum(x), n.goAsm()) }
func (a *A) CMPW(x Op, n GP)    { a.emit(integer, "CMPW", sum(x), n.goAsm()) }

// sum is the spelling of the first operand of a sum. An immediate has 12 bits, or 12 bits above 12 zeros.
func sum(x Op) string {
	if i, ok := x.(Imm); ok && (i < 0 || i > 0xFFF && (i&0xFFF != 0 || i > 0xFFF000)) {
		panic(fmt.Sprintf("immediate %d does not fit a sum", i))
	}
	return operandOf(x)
}

// Logic: d = n op x. TST sets the flags of n AND x.
func (a *A) AND(x Op, n, d GP) { a.emit(integer, "AND", logic(x), n.goAsm(), d.goAsm()) }
func (a *A) ORR(x Op, n, d GP) { a.emit(integer, "ORR", logic(x), n.goAsm(), d.goAsm()) }
func (a *A) EOR(x Op, n, d GP) { a.emit(integer, "EOR", logic(x), n.goAsm(), d.goAsm()) }
func (a *A) BIC(x GP, n, d GP) { a.emit(integer, "BIC", x.goAsm(), n.goAsm(), d.goAsm()) }
func (a *A) TST(x Op, n GP)    { a.emit(integer, "TST", logic(x), n.goAsm()) }

// logic is the spelling of the first operand of a logical instruction. Of its immediates, which are repeated runs of
// ones, a single run is enough here.
func logic(x Op) string {
	if i, ok := x.(Imm); ok {
		u := uint64(i)
		if run := u >> bits.TrailingZeros64(u); u == 0 || run&(run+1) != 0 || ^u == 0 {
			panic(fmt.Sprintf("immediate %#x is not a run of ones", u))
		}
	}
	return operandOf(x)
}

// operandOf is the spelling of x, which is no vector.
func operandOf(x Op) string {
	if _, ok := x.(Vec); ok {
		panic(fmt.Sprintf("%s is a vector register", x.goAsm()))
	}
	return x.goAsm()
}

// Shifts by an immediate or a register, and products: MADD is d = c + n*m, MSUB d = c - n*m.
func (a *A) LSL(x Op, n, d GP)  { a.emit(integer, "LSL", amount(x), n.goAsm(), d.goAsm()) }
func (a *A) LSR(x Op, n, d GP)  { a.emit(integer, "LSR", amount(x), n.goAsm(), d.goAsm()) }
func (a *A) ASR(x Op, n, d GP)  { a.emit(integer, "ASR", amount(x), n.goAsm(), d.goAsm()) }
func (a *A) MUL(m, n, d GP)     { a.emit(integer, "MUL", m.goAsm(), n.goAsm(), d.goAsm()) }
func (a *A) MADD(m, c, n, d GP) { a.emit(integer, "MADD", m.goAsm(), c.goAsm(), n.goAsm(), d.goAsm()) }
func (a *A) MSUB(m, c, n, d GP) { a.emit(integer, "MSUB", m.goAsm(), c.goAsm(), n.goAsm(), d.goAsm()) }
func (a *A) SDIV(m, n, d GP)    { a.emit(integer, "SDIV", m.goAsm(), n.goAsm(), d.goAsm()) }
func (a *A) NEG(n, d GP)        { a.emit(integer, "NEG", n.goAsm(), d.goAsm()) }

func amount(x Op) string {
	if i, ok := x.(Imm); ok {
		within("shift", int(i), 0, 63)
	}
	return operandOf(x)
}

// CSEL is d = n if the condition holds, else m; CSET is d = 1 or 0.
func (a *A) CSEL(cond string, n, m, d GP) {
	a.emit(integer, "CSEL", condition(cond), n.goAsm(), m.goAsm(), d.goAsm())
}
func (a *A) CSET(cond string, d GP) { a.emit(integer, "CSET", condition(cond), d.goAsm()) }

func condition(cond string) string {
	if !slices.Contains([]string{"EQ", "NE", "HS", "LO", "MI", "PL", "VS", "VC", "HI", "LS", "GE", "LT", "GT", "LE"}, cond) {
		panic(fmt.Sprintf("no condition is called %q", cond))
	}
	return cond
}

// Branches: always, by the flags of n - x, by a register, or by one of its bits.
func (a *A) B(label string)                   { a.jump("JMP", label) }
func (a *A) BEQ(label string)                 { a.jump("BEQ", label) }
func (a *A) BNE(label string)                 { a.jump("BNE", label) }
func (a *A) BLT(label string)                 { a.jump("BLT", label) }
func (a *A) BLE(label string)                 { a.jump("BLE", label) }
func (a *A) BGT(label string)                 { a.jump("BGT", label) }
func (a *A) BGE(label string)                 { a.jump("BGE", label) }
func (a *A) BLO(label string)                 { a.jump("BLO", label) }
func (a *A) BLS(label string)                 { a.jump("BLS", label) }
func (a *A) BHI(label string)                 { a.jump("BHI", label) }
func (a *A) BHS(label string)                 { a.jump("BHS", label) }
func (a *A) BMI(label string)                 { a.jump("BMI", label) }
func (a *A) BPL(label string)                 { a.jump("BPL", label) }
func (a *A) CBZ(r GP, label string)           { a.jump("CBZ", label, r.goAsm()) }
func (a *A) CBNZ(r GP, label string)          { a.jump("CBNZ", label, r.goAsm()) }
func (a *A) TBZ(bit int, r GP, label string)  { a.jump("TBZ", label, bitOf(bit), r.goAsm()) }
func (a *A) TBNZ(bit int, r GP, label string) { a.jump("TBNZ", label, bitOf(bit), r.goAsm()) }

func bitOf(bit int) string { return Imm(within("bit", bit, 0, 63)).goAsm() }

func (a *A) jump(op, label string, args ...string) {
	args = append(args, label)
	a.code = append(a.code, line{op: op, args: strings.Join(args, ", "), does: branch, target: label})
}

// PRFM asks for a line of memory: PLDL1KEEP, PLDL1STRM, PLDL2KEEP, PLDL2STRM, PSTL1KEEP. The assembler would round the
// offset down to a multiple of 8.
func (a *A) PRFM(m Mem, hint string) {
	if !slices.Contains([]string{"PLDL1KEEP", "PLDL1STRM", "PLDL2KEEP", "PLDL2STRM", "PSTL1KEEP"}, hint) {
		panic(fmt.Sprintf("no prefetch is called %q", hint))
	}
	if m.index != nil || m.post || m.disp%8 != 0 {
		panic("a prefetch has an offset that is a multiple of 8")
	}
	within("offset", m.disp, 0, 8*4095)
	a.emit(prefetch, "PRFM", m.goAsm(), hint)
}
