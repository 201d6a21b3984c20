package workshop

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mmcloughlin/avo/gotypes"
)

// A writes one body for arm64, as avo's context does for amd64: a method for each instruction, operands in Go's order,
// sources before the destination. Registers are taken by name from GP and Vec, and given back by Free. What the
// assembler would take amiss or in silence change panics here: a wrong arrangement, an immediate or an offset that the
// instruction has no room for, a register that was given back.
//
// A body is a leaf without a frame. It has R0 to R15 and R19 to R26, for the others belong to the platform, the linker,
// the assembler or Go, and all of the vectors.
type A struct {
	file   *neonFile
	symbol string
	stub   string
	sig    *gotypes.Signature
	code   []line
	labels int
	gps    pool
	vecs   pool
	needs  []string // the features that its instructions need beyond the baseline
}

// line is a label or an instruction.
type line struct {
	label    string
	op, args string
	note     string // what a WORD says, for readers
	does     work
	target   string // of a branch
}

// Op is the source of an integer instruction that may be a register, a shifted one or an immediate.
type Op interface{ goAsm() string }

// register is a register that has been taken.
type register struct {
	name string
	num  int
	free bool
}

// GP is a general register, Vec a vector register or, to scalar instructions, its lowest lane.
type (
	GP  struct{ *register }
	Vec struct{ *register }
)

func (r register) live() int {
	if r.free {
		panic(fmt.Sprintf("%s is used after it was freed", r.name))
	}
	return r.num
}

func (r GP) goAsm() string  { return fmt.Sprintf("R%d", r.live()) }
func (v Vec) goAsm() string { return fmt.Sprintf("F%d", v.live()) }

// A vector as an instruction uses it.
func (v Vec) B8() View  { return View{v.live(), B8, 0} }
func (v Vec) B16() View { return View{v.live(), B16, 0} }
func (v Vec) H4() View  { return View{v.live(), H4, 0} }
func (v Vec) H8() View  { return View{v.live(), H8, 0} }
func (v Vec) S2() View  { return View{v.live(), S2, 0} }
func (v Vec) S4() View  { return View{v.live(), S4, 0} }
func (v Vec) D2() View  { return View{v.live(), D2, 0} }

// lower is the lower half of a vector.
func (v View) lower() View { return View{v.num, arr(v.arr.bits(), v.arr.lanes()/2), 0} }

// An element of a vector; B4 and H2 are words of narrow ones.
func (v Vec) B(i int) View  { return View{v.live(), elemB, i} }
func (v Vec) H(i int) View  { return View{v.live(), elemH, i} }
func (v Vec) S(i int) View  { return View{v.live(), elemS, i} }
func (v Vec) D(i int) View  { return View{v.live(), elemD, i} }
func (v Vec) B4(i int) View { return View{v.live(), elemB4, i} }
func (v Vec) H2(i int) View { return View{v.live(), elemH2, i} }

// Imm is an immediate.
type Imm int

func (i Imm) goAsm() string { return fmt.Sprintf("$%d", int(i)) }

// shifted is a register whose value is shifted first.
type shifted struct {
	r  GP
	by int
	op string
}

func (s shifted) goAsm() string { return fmt.Sprintf("%s%s%d", s.r.goAsm(), s.op, s.by) }

// Shl and Shr are a register shifted left, or right without its sign.
func (r GP) Shl(by int) Op { return shifted{r, within("shift", by, 0, 63), "<<"} }
func (r GP) Shr(by int) Op { return shifted{r, within("shift", by, 0, 63), ">>"} }

// pool hands out registers, the lowest first.
type pool struct {
	kind string
	nums []int
	used []*register
}

func newPool(kind string, nums ...[]int) pool { return pool{kind: kind, nums: slices.Concat(nums...)} }

// span is lo to hi.
func span(lo, hi int) (nums []int) {
	for i := lo; i <= hi; i++ {
		nums = append(nums, i)
	}
	return nums
}

// take takes n consecutive registers.
func (p *pool) take(symbol, name string, n int) []*register {
	for i := 0; i+n <= len(p.nums); i++ {
		run := p.nums[i : i+n]
		if run[n-1]-run[0] != n-1 || slices.ContainsFunc(p.used, func(r *register) bool { return slices.Contains(run, r.num) }) {
			continue
		}
		taken := make([]*register, n)
		for j, num := range run {
			taken[j] = &register{name: name, num: num}
			if n > 1 {
				taken[j].name = fmt.Sprintf("%s[%d]", name, j)
			}
		}
		p.used = append(p.used, taken...)
		return taken
	}
	panic(fmt.Sprintf("%s: no %d registers %s in a row are left for %s; live: %s", symbol, n, p.kind, name, p.live()))
}

// live lists the registers that are taken.
func (p *pool) live() string {
	used := slices.Clone(p.used)
	slices.SortFunc(used, func(a, b *register) int { return a.num - b.num })
	var names []string
	for _, r := range used {
		names = append(names, fmt.Sprintf("%s%d %s", p.kind, r.num, r.name))
	}
	return strings.Join(names, ", ")
}

func (p *pool) give(r *register) {
	r.live()
	r.free = true
	p.used = slices.DeleteFunc(p.used, func(u *register) bool { return u == r })
}

// GP takes a general register.
func (a *A) GP(name string) GP { return GP{a.gps.take(a.symbol, name, 1)[0]} }

// Vec takes a vector register, Vecs n consecutive ones, as lists of loads want them.
func (a *A) Vec(name string) Vec { return Vec{a.vecs.take(a.symbol, name, 1)[0]} }
func (a *A) Vecs(name string, n int) (vs []Vec) {
	for _, r := range a.vecs.take(a.symbol, name, n) {
		vs = append(vs, Vec{r})
	}
	return vs
}

// Free gives registers back: whoever uses them after that panics.
func (a *A) Free(rs ...Op) {
	for _, r := range rs {
		switch r := r.(type) {
		case GP:
			a.gps.give(r.register)
		case Vec:
			a.vecs.give(r.register)
		default:
			panic(fmt.Sprintf("%s: Free of %s, which is no register", a.symbol, r.goAsm()))
		}
	}
}

// FreeVecs gives vectors back.
func (a *A) FreeVecs(vs ...Vec) {
	for _, v := range vs {
		a.Free(v)
	}
}

// Fresh is a label that no other has, Label sets it.
func (a *A) Fresh(hint string) string {
	a.labels++
	return fmt.Sprintf("%s_%d", hint, a.labels)
}

func (a *A) Label(name string) { a.code = append(a.code, line{label: name}) }

// emit adds an instruction.
func (a *A) emit(does work, op string, args ...string) {
	a.code = append(a.code, line{op: op, args: strings.Join(args, ", "), does: does})
}

// within is i, which must be in [lo, hi].
func within(what string, i, lo, hi int) int {
	if i < lo || i > hi {
		panic(fmt.Sprintf("%s %d is not in [%d, %d]", what, i, lo, hi))
	}
	return i
}

// Arg loads a number, Base the address of a slice, Len its length into a new register of that name.
func (a *A) Arg(name string) GP  { return a.param(name, a.sig.Params().Lookup(name), name) }
func (a *A) Base(name string) GP { return a.param(name, a.sig.Params().Lookup(name).Base(), name) }
func (a *A) Len(name string) GP {
	return a.param(name, a.sig.Params().Lookup(name).Len(), "len("+name+")")
}

func (a *A) param(name string, c gotypes.Component, register string) GP {
	op, addr := a.resolve(name, c, map[int]string{1: "MOVBU", 4: "MOVW", 8: "MOVD"})
	r := a.GP(register)
	a.emit(load, op, addr, r.goAsm())
	return r
}

// Reload loads what Arg, Base or Len has loaded once more, into a register that is there.
func (a *A) Reload(name string, r GP) {
	c := a.sig.Params().Lookup(name)
	if b, err := c.Base().Resolve(); err == nil {
		a.emit(load, "MOVD", address(b), r.goAsm())
		return
	}
	op, addr := a.resolve(name, c, map[int]string{1: "MOVBU", 4: "MOVW", 8: "MOVD"})
	a.emit(load, op, addr, r.goAsm())
}

// ArgF loads a float32 into a new vector register of that name.
func (a *A) ArgF(name string) Vec {
	op, addr := a.resolve(name, a.sig.Params().Lookup(name), map[int]string{4: "FMOVS"})
	v := a.Vec(name)
	a.emit(load, op, addr, v.goAsm())
	return v
}

// Result stores the result from a register, ResultF from a scalar.
func (a *A) Result(r GP) {
	op, addr := a.resolve("result", a.sig.Results().At(0), map[int]string{1: "MOVB", 4: "MOVW", 8: "MOVD"})
	a.emit(store, op, r.goAsm(), addr)
}

func (a *A) ResultF(v Vec) {
	op, addr := a.resolve("result", a.sig.Results().At(0), map[int]string{4: "FMOVS"})
	a.emit(store, op, v.goAsm(), addr)
}

// resolve is the move for a parameter or a result and its place in the frame.
func (a *A) resolve(name string, c gotypes.Component, moves map[int]string) (op, addr string) {
	b, err := c.Resolve()
	if err != nil {
		panic(fmt.Sprintf("%s: %s: %v", a.symbol, name, err))
	}
	size := int(gotypes.Sizes.Sizeof(b.Type))
	op, ok := moves[size]
	if !ok {
		panic(fmt.Sprintf("%s: %s is a %v of %d bytes", a.symbol, name, b.Type, size))
	}
	return op, address(b)
}

func address(b *gotypes.Basic) string { return b.Addr.Asm() }

// Mem is memory that an instruction reads or writes.
type Mem struct {
	base  GP
	index *GP
	shift int  // of the index
	disp  int  // bytes
	post  bool // disp or index is added to the base after the access, not before
}

// At is memory at r + disp bytes, Plus at r + x<<shift. Post and PostBy are memory at r, which then grows.
func (r GP) At(disp int) Mem          { return Mem{base: r, disp: disp} }
func (r GP) Plus(x GP, shift int) Mem { return Mem{base: r, index: &x, shift: shift} }
func (r GP) Post(disp int) Mem        { return Mem{base: r, disp: disp, post: true} }
func (r GP) PostBy(x GP) Mem          { return Mem{base: r, index: &x, post: true} }

func (m Mem) goAsm() string {
	s := "(" + m.base.goAsm() + ")"
	switch {
	case m.index != nil && m.shift > 0:
		s += fmt.Sprintf("(%s<<%d)", m.index.goAsm(), m.shift)
	case m.index != nil:
		s += "(" + m.index.goAsm() + ")"
	case m.disp != 0:
		s = fmt.Sprintf("%d%s", m.disp, s)
	}
	return s
}

// suffix is ".P" if the base grows.
func (m Mem) suffix() string {
	if m.post {
		return ".P"
	}
	return ""
}

// single is the spelling of m for an access of size bytes. Where the offset has no room in the instruction, the
// assembler would compute the address in R27.
func (m Mem) single(size int) string {
	switch {
	case m.index != nil && m.post:
		panic("only vector lists step by a register")
	case m.index != nil && size == 16:
		panic("the assembler has no FMOVQ with an index")
	case m.index != nil && m.shift != 0 && 1<<m.shift != size:
		panic(fmt.Sprintf("an index is scaled by 1 or by %d", size))
	case m.index != nil:
	case m.post, m.disp < 0, m.disp%size != 0:
		within("offset", m.disp, -256, 255)
	default:
		within("offset", m.disp, 0, 4095*size)
	}
	return m.goAsm()
}

// pair is the spelling for a pair of accesses of size bytes each.
func (m Mem) pair(size int) string {
	if m.index != nil || m.disp%size != 0 {
		panic(fmt.Sprintf("a pair has an offset that is a multiple of %d", size))
	}
	within("offset", m.disp, -64*size, 63*size)
	return m.goAsm()
}

// list is the spelling for a list of registers of size bytes in all.
func (m Mem) list(size int) string {
	if m.index != nil && !m.post || m.index == nil && (m.post && m.disp != size || !m.post && m.disp != 0) {
		panic(fmt.Sprintf("a list of %d bytes is at no offset, or steps by its size or a register", size))
	}
	return m.goAsm()
}

// Const fills a general register.
func (a *A) Const(v int64, r GP) { a.emit(integer, "MOVD", fmt.Sprintf("$%d", v), r.goAsm()) }

// Splat fills a vector with a 4-byte constant, by way of scratch.
func (a *A) Splat(bits uint32, scratch GP, v Vec) {
	if bits == 0 {
		a.Zero(v)
		return
	}
	a.emit(integer, "MOVW", fmt.Sprintf("$%#08x", bits), scratch.goAsm())
	a.VDUP(scratch, v.S4())
}

// Zero clears a vector.
func (a *A) Zero(v Vec) { a.VEOR(v.B16(), v.B16(), v.B16()) }

// Table sets r to the address of constants that the file holds under a name.
func (a *A) Table(name string, words []uint32, r GP) {
	a.file.table(name, words)
	a.emit(integer, "MOVD", fmt.Sprintf("$%s<>(SB)", name), r.goAsm())
}

// Done ends the function.
func (a *A) Done() { a.emit(branch, "RET") }

// neonFile is the assembly file of the bodies of one kind.
type neonFile struct {
	level  *Level
	bodies []*A
	tables map[string][]uint32
	order  []string // of the tables
}

func newNEONFile(l *Level) *neonFile { return &neonFile{level: l, tables: map[string][]uint32{}} }

func (f *neonFile) table(name string, words []uint32) {
	old, ok := f.tables[name]
	switch {
	case !ok:
		f.tables[name] = words
		f.order = append(f.order, name)
	case !slices.Equal(old, words):
		panic(fmt.Sprintf("table %s has other words already", name))
	}
}

// begin opens a function. avo knows the frames of amd64; ABI0 has the same on arm64.
func (f *neonFile) begin(symbol, params, results string) *A {
	sig, err := gotypes.ParseSignature("func(" + params + ")" + results)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", symbol, err))
	}
	a := &A{
		file: f, symbol: symbol, sig: sig,
		stub: fmt.Sprintf("func %s(%s)%s", symbol, params, results),
		gps:  newPool("R", span(0, 15), span(19, 26)),
		vecs: newPool("V", span(0, 31)),
	}
	f.bodies = append(f.bodies, a)
	return a
}

func (f *neonFile) write(k *Kernel, b Body) error {
	gen, ok := b.Gen.(func(*A))
	if !ok {
		return fmt.Errorf("%s, %s: the generator is a %T", k.Name, b.Level.Name, b.Gen)
	}
	a := f.begin(b.Symbol(k), k.params(), k.results())
	gen(a)
	return f.level.admits(a.symbol, a.needs, b.Needs)
}

func (f *neonFile) text() ([]byte, error) {
	var b strings.Builder
	b.WriteString(header + "//go:build !purego\n\n#include \"textflag.h\"\n")
	for _, a := range f.bodies {
		a.print(&b)
	}
	for _, name := range f.order {
		b.WriteString("\n")
		for i, w := range f.tables[name] {
			fmt.Fprintf(&b, "DATA %s<>+%d(SB)/4, $%#08x\n", name, 4*i, w)
		}
		fmt.Fprintf(&b, "GLOBL %s<>(SB), RODATA|NOPTR, $%d\n", name, 4*len(f.tables[name]))
	}
	return []byte(b.String()), nil
}

// print writes the function as avo's printer does: the operands of a block in one column.
func (a *A) print(b *strings.Builder) {
	fmt.Fprintf(b, "\n// %s\n", a.stub)
	if len(a.needs) > 0 {
		fmt.Fprintf(b, "// Requires: %s\n", strings.Join(a.needs, ", "))
	}
	fmt.Fprintf(b, "TEXT ·%s(SB), NOSPLIT, $0-%d\n", a.symbol, a.sig.Bytes())
	for rest := a.code; len(rest) > 0; {
		n := slices.IndexFunc(rest, func(l line) bool { return l.label != "" })
		switch n {
		case 0:
			fmt.Fprintf(b, "\n%s:\n", rest[0].label)
			rest = rest[1:]
		case -1:
			n = len(rest)
			fallthrough
		default:
			printBlock(b, rest[:n])
			rest = rest[n:]
		}
	}
}

func printBlock(b *strings.Builder, block []line) {
	width := 0
	for _, l := range block {
		if l.args != "" {
			width = max(width, len(l.op))
		}
	}
	for _, l := range block {
		s := l.op
		if l.args != "" {
			s = fmt.Sprintf("%-*s %s", width, l.op, l.args)
		}
		if l.note != "" {
			s += " // " + l.note
		}
		fmt.Fprintf(b, "\t%s\n", s)
	}
}

// steps repeats body as long as left, a number of elements, is at least n, and takes n from it each time. What is left
// then is less than n.
func (a *A) steps(left GP, n int, body func()) {
	loop, rest := a.Fresh("loop"), a.Fresh("rest")
	a.SUBS(Imm(n), left, left)
	a.BLT(rest)
	a.Label(loop)
	body()
	a.SUBS(Imm(n), left, left)
	a.BGE(loop)
	a.Label(rest)
	a.ADD(Imm(n), left, left)
}

// loadLanes loads 1, 2, 4, 8 or 16 float32 into as many vectors as they take, storeLanes stores them.
func (a *A) loadLanes(m Mem, vs []Vec, lanes int) {
	if lanes == 1 {
		a.FMOVS(m, vs[0])
		return
	}
	a.VLD1(m, lanesOf(vs, lanes)...)
}

func (a *A) storeLanes(vs []Vec, lanes int, m Mem) {
	if lanes == 1 {
		a.FMOVSto(vs[0], m)
		return
	}
	a.VST1(m, lanesOf(vs, lanes)...)
}

func lanesOf(vs []Vec, lanes int) []View {
	if lanes == 2 {
		return view(vs, S2)
	}
	if len(vs) != lanes/4 {
		panic(fmt.Sprintf("%d vectors for %d lanes", len(vs), lanes))
	}
	return view(vs, S4)
}

// pieces hands out a row of float32 by 16, 4 and 1, as long as so many are left.
func (a *A) pieces(left GP, do func(lanes int)) {
	for _, lanes := range []int{16, 4, 1} {
		a.steps(left, lanes, func() { do(lanes) })
	}
}

// vectorsFor is as many of vs as some lanes take.
func vectorsFor(vs []Vec, lanes int) []Vec { return vs[:max(1, lanes/4)] }
