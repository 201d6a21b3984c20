package workshop

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/csv"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/arch/arm64/arm64asm"
)

const gnuAs = "aarch64-linux-gnu-as"

// samples are the instructions of a row with several registers, for all arrangements, indexes and immediates.
func (e *encoding) samples(t *testing.T) (out []instruction) {
	registers := [][3]int{{2, 1, 0}, {31, 30, 29}, {16, 15, 17}, {5, 20, 10}}
	for _, a := range e.arrs {
		for _, high := range []bool{false, true}[:1+b2i(e.form.halves)] {
			am, an, ad := e.form.operands(a, high)
			for _, r := range registers {
				if am == elemH { // these are in the first half of the registers
					r[0] %= 16
				}
				m, n, d := View{r[0], am, 0}, View{r[1], an, 0}, View{r[2], ad, 0}
				if am == none {
					m = View{}
				}
				for _, imm := range e.immediates(a) {
					for index := range max(1, indexesOf(am)) {
						m.index = index
						i, err := e.match(m, n, d, imm)
						if err != nil {
							t.Fatal(err)
						}
						if i.arr != a || i.high != high {
							t.Fatalf("%s: %s reads as %v", e.name, i.gnuText(), i.arr)
						}
						out = append(out, i)
					}
				}
			}
		}
	}
	return out
}

// immediates are the least, the greatest and some between.
func (e *encoding) immediates(a Arr) []int {
	if e.form.imm == nil {
		return []int{0}
	}
	lo, hi := e.form.imm.min(a), e.form.imm.max(a)
	return slices.Compact([]int{lo, lo + (hi-lo)/3, lo + (hi-lo)/2, hi})
}

func indexesOf(a Arr) int {
	if !a.isElement() {
		return 0
	}
	return a.indexes()
}

// everything is the samples of the whole table.
func everything(t *testing.T) (all []instruction) {
	for i := range encodings {
		all = append(all, encodings[i].samples(t)...)
	}
	return all
}

// TestTable holds the table to the rows that were checked before, each once, with a method for every row.
func TestTable(t *testing.T) {
	if len(rows) != len(encodings) {
		t.Errorf("%d rows have %d names", len(encodings), len(rows))
	}
	writer := reflect.TypeOf(&A{})
	for name := range rows {
		if _, ok := writer.MethodByName(name); !ok && rows[strings.TrimSuffix(name, "e")] == nil {
			t.Errorf("A has no method %s", name)
		}
	}
	f, err := os.Open("testdata/neon_encodings.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records[1:] {
		e := rows[r[0]]
		if e == nil {
			t.Errorf("no row %s", r[0])
			continue
		}
		var arrs []string
		for _, a := range e.arrs {
			arrs = append(arrs, a.String())
		}
		since := ""
		if e.since > 0 {
			since = fmt.Sprintf("1.%d", e.since)
		}
		// The vectors have lists of two spellings.
		want := strings.Fields(strings.NewReplacer("[]Arr{", "", "}", "").Replace(r[4]))
		got := []string{e.name, e.gnu, e.form.name, fmt.Sprintf("0x%08X", e.base), strings.Join(arrs, " "), since, e.needs}
		if !slices.Equal(got, append(append(slices.Clone(r[:4]), strings.Join(want, " ")), r[5:]...)) {
			t.Errorf("row %q, want %q", got, r)
		}
	}
	if n := len(records) - 1; n != 90 {
		t.Errorf("%d rows of vectors, want 90", n)
	}
}

// TestEncodings holds the words of the whole table to GNU as.
func TestEncodings(t *testing.T) {
	all := everything(t)
	var source strings.Builder
	for _, i := range all {
		source.WriteString(i.gnuText() + "\n")
	}
	got, err := assemble(t, "armv8.6-a+fp16fml", source.String())
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(all) {
		t.Fatalf("%d words of %d instructions", len(got), len(all))
	}
	for n, i := range all {
		if i.word() != got[n] {
			t.Errorf("%s is %08x, want %08x", i.gnuText(), i.word(), got[n])
		}
	}
	t.Logf("%d rows, %d instructions", len(encodings), len(all))
}

// TestFeatures shows with GNU as that each row needs the feature it names, and no other.
func TestFeatures(t *testing.T) {
	var baseline strings.Builder
	for i := range encodings {
		e := &encodings[i]
		text := e.samples(t)[0].gnuText() + "\n"
		if e.needs == "" {
			baseline.WriteString(text)
			continue
		}
		if _, err := assemble(t, "armv8-a", text); err == nil {
			t.Errorf("%s: armv8-a has it", e.name)
		}
		if _, err := assemble(t, "armv8.2-a+"+e.needs, text); err != nil {
			t.Errorf("%s: %v", e.name, err)
		}
	}
	if _, err := assemble(t, "armv8-a", baseline.String()); err != nil {
		t.Error(err)
	}
}

// assemble gives the words that GNU as makes of a source for an architecture. Without GNU as the test is skipped, or
// fails where CI is set.
func assemble(t *testing.T, arch, source string) ([]uint32, error) {
	t.Helper()
	if _, err := exec.LookPath(gnuAs); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%v: install binutils-aarch64-linux-gnu", err)
		}
		t.Skipf("%v: nothing was compared with GNU as; install binutils-aarch64-linux-gnu", err)
	}
	object := filepath.Join(t.TempDir(), "x.o")
	cmd := exec.Command(gnuAs, "-o", object, "-")
	cmd.Stdin = strings.NewReader(".arch " + arch + "\n" + source)
	if text, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s, %s: %w\n%.2000s", gnuAs, arch, err, text)
	}
	f, err := elf.Open(object)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := f.Section(".text").Data()
	if err != nil {
		return nil, err
	}
	words := make([]uint32, len(text)/4)
	return words, binary.Read(bytes.NewReader(text), binary.LittleEndian, words)
}

// TestMnemonics holds the rows that Go knows to its assembler, and shows that it does not know the others.
func TestMnemonics(t *testing.T) {
	var all []instruction
	var source strings.Builder
	source.WriteString("TEXT ·f(SB), 4, $0\n")
	for _, i := range everything(t) {
		if i.known() {
			all = append(all, i)
			fmt.Fprintf(&source, "\t%s %s\n", i.mnemonic(i.name), i.goOperands())
		}
	}
	got := goAssemble(t, source.String())
	for n, i := range all {
		if got[n] != i.word() {
			t.Errorf("%s %s is %08x for Go, want %08x", i.name, i.goOperands(), got[n], i.word())
		}
	}
	t.Logf("%d instructions", len(all))
	for i := range encodings {
		e := &encodings[i]
		if e.known() {
			continue
		}
		i := e.samples(t)[0]
		if _, err := runGoAsm(t, fmt.Sprintf("TEXT ·f(SB), 4, $0\n\t%s %s\n", e.name, i.goOperands())); err == nil {
			t.Errorf("Go knows %s: raise the release in its row", e.name)
		}
	}
}

// goAssemble gives the words that Go's assembler makes of a source.
func goAssemble(t *testing.T, source string) (words []uint32) {
	t.Helper()
	object, err := runGoAsm(t, source)
	if err != nil {
		t.Fatal(err)
	}
	text, err := exec.Command("go", "tool", "objdump", object).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^\s+\S+:\d+\s+0x[0-9a-f]+\s+([0-9a-f]{8})\s`).FindAllSubmatch(text, -1) {
		w, err := strconv.ParseUint(string(m[1]), 16, 32)
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, uint32(w))
	}
	return words
}

func runGoAsm(t *testing.T, source string) (object string, err error) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "x.s")
	if err := os.WriteFile(path, []byte(source), 0o666); err != nil {
		t.Fatal(err)
	}
	object = filepath.Join(dir, "x.o")
	cmd := exec.Command("go", "tool", "asm", "-p", "x", "-I", filepath.Join(goroot(t), "pkg", "include"), "-o", object, path)
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH=arm64")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%.2000s", err, text)
	}
	return object, nil
}

func goroot(t *testing.T) string {
	t.Helper()
	text, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// TestReadBack holds the words to the decoder of golang.org/x/arch, which has tables of its own, for the rows that it
// knows: those of the baseline.
func TestReadBack(t *testing.T) {
	read := map[string]bool{}
	for _, i := range everything(t) {
		var code [4]byte
		binary.LittleEndian.PutUint32(code[:], i.word())
		inst, err := arm64asm.Decode(code[:])
		if err != nil {
			continue
		}
		if got, want := plainText(arm64asm.GNUSyntax(inst)), plainText(i.gnuText()); got != want {
			t.Errorf("%08x reads %q, want %q", i.word(), got, want)
		}
		read[i.name] = true
	}
	for i := range encodings {
		if e := &encodings[i]; !read[e.name] && e.needs == "" {
			t.Errorf("%s was not read back", e.name)
		}
	}
	t.Logf("%d rows of %d", len(read), len(encodings))
}

var (
	hexadecimal = regexp.MustCompile(`#0x[0-9a-f]+`)
	extension   = regexp.MustCompile(`^([su])xtl(2?) (.*)$`)
)

// plainText spells an instruction of the decoder as the table does: decimal, without aliases.
func plainText(s string) string {
	s = hexadecimal.ReplaceAllStringFunc(s, func(hex string) string {
		v, _ := strconv.ParseInt(hex[3:], 16, 64)
		return fmt.Sprintf("#%d", v)
	})
	s = extension.ReplaceAllString(s, "${1}shll$2 $3, #0")
	s = strings.Replace(s, "mvn ", "not ", 1)
	return strings.Replace(s, "#0.0", "#0", 1)
}

// begin is a writer for a body of a kernel with these parameters.
func begin(params, results string) *A { return newNEONFile(neon).begin("K", params, results) }

// TestText holds what is written as text to GNU as, by way of Go's assembler.
func TestText(t *testing.T) {
	a := begin("n int", "")
	r0, r1, r2, r3 := a.GP("r0"), a.GP("r1"), a.GP("r2"), a.GP("r3")
	v := a.Vecs("v", 5)
	var want strings.Builder
	check := func(gnu string, gen func()) {
		gen()
		want.WriteString(gnu + "\n")
	}
	check("ldr x1, [x0, #32760]", func() { a.MOVD(r0.At(32760), r1) })
	check("ldur x1, [x0, #-9]", func() { a.MOVD(r0.At(-9), r1) })
	check("ldr x1, [x0, x2, lsl #3]", func() { a.MOVD(r0.Plus(r2, 3), r1) })
	check("ldrsw x1, [x0], #4", func() { a.MOVW(r0.Post(4), r1) })
	check("ldr w1, [x0, #4]", func() { a.MOVWU(r0.At(4), r1) })
	check("ldrh w1, [x0, x2]", func() { a.MOVHU(r0.Plus(r2, 0), r1) })
	check("ldrb w1, [x0], #1", func() { a.MOVBU(r0.Post(1), r1) })
	check("str x1, [x0, #8]", func() { a.MOVDto(r1, r0.At(8)) })
	check("str w1, [x0], #4", func() { a.MOVWto(r1, r0.Post(4)) })
	check("strh w1, [x0, #2]", func() { a.MOVHto(r1, r0.At(2)) })
	check("strb w1, [x0, #3]", func() { a.MOVBto(r1, r0.At(3)) })
	check("mov x1, x2", func() { a.Copy(r2, r1) })
	check("mov x1, #65", func() { a.Const(65, r1) })
	check("add x1, x2, #4095", func() { a.ADD(Imm(4095), r2, r1) })
	check("add x1, x2, x3, lsl #2", func() { a.ADD(r3.Shl(2), r2, r1) })
	check("sub x1, x2, x3", func() { a.SUB(r3, r2, r1) })
	check("adds x1, x2, #1", func() { a.ADDS(Imm(1), r2, r1) })
	check("subs x1, x2, #1, lsl #12", func() { a.SUBS(Imm(4096), r2, r1) })
	check("cmp x2, #8", func() { a.CMP(Imm(8), r2) })
	check("cmp w2, w3", func() { a.CMPW(r3, r2) })
	check("and x1, x2, #0x7f8", func() { a.AND(Imm(0x7f8), r2, r1) })
	check("orr x1, x2, x3, lsr #5", func() { a.ORR(r3.Shr(5), r2, r1) })
	check("eor x1, x2, x3", func() { a.EOR(r3, r2, r1) })
	check("bic x1, x2, x3", func() { a.BIC(r3, r2, r1) })
	check("tst x2, #3", func() { a.TST(Imm(3), r2) })
	check("lsl x1, x2, #16", func() { a.LSL(Imm(16), r2, r1) })
	check("lsr x1, x2, x3", func() { a.LSR(r3, r2, r1) })
	check("asr x1, x2, #63", func() { a.ASR(Imm(63), r2, r1) })
	check("mul x1, x2, x3", func() { a.MUL(r3, r2, r1) })
	check("madd x1, x2, x3, x0", func() { a.MADD(r3, r0, r2, r1) })
	check("msub x1, x2, x3, x0", func() { a.MSUB(r3, r0, r2, r1) })
	check("sdiv x1, x2, x3", func() { a.SDIV(r3, r2, r1) })
	check("neg x1, x2", func() { a.NEG(r2, r1) })
	check("csel x1, x2, x3, lt", func() { a.CSEL("LT", r2, r3, r1) })
	check("cset x1, eq", func() { a.CSET("EQ", r1) })
	check("prfm pldl1keep, [x0, #256]", func() { a.PRFM(r0.At(256), "PLDL1KEEP") })
	check("prfm pldl2strm, [x0]", func() { a.PRFM(r0.At(0), "PLDL2STRM") })

	check("ldr s1, [x0, #4]", func() { a.FMOVS(r0.At(4), v[1]) })
	check("ldr s1, [x0, x2, lsl #2]", func() { a.FMOVS(r0.Plus(r2, 2), v[1]) })
	check("ldr d1, [x0], #8", func() { a.FMOVD(r0.Post(8), v[1]) })
	check("ldr q1, [x0, #65520]", func() { a.FMOVQ(r0.At(65520), v[1]) })
	check("str s1, [x0], #4", func() { a.FMOVSto(v[1], r0.Post(4)) })
	check("str d1, [x0, #8]", func() { a.FMOVDto(v[1], r0.At(8)) })
	check("str q1, [x0, #16]", func() { a.FMOVQto(v[1], r0.At(16)) })
	check("ldp q1, q2, [x0], #32", func() { a.FLDPQ(r0.Post(32), v[1], v[2]) })
	check("ldp q1, q2, [x0, #-1024]", func() { a.FLDPQ(r0.At(-1024), v[1], v[2]) })
	check("stp q1, q2, [x0, #1008]", func() { a.FSTPQ(v[1], v[2], r0.At(1008)) })
	check("fmov w1, s1", func() { a.FMOVSgp(v[1], r1) })
	check("fmov s1, w1", func() { a.FMOVSvec(r1, v[1]) })
	check("fmov s1, s2", func() { a.FMOVSS(v[2], v[1]) })
	check("fadd s0, s1, s2", func() { a.FADDS(v[2], v[1], v[0]) })
	check("fsub s0, s1, s2", func() { a.FSUBS(v[2], v[1], v[0]) })
	check("fmul s0, s1, s2", func() { a.FMULS(v[2], v[1], v[0]) })
	check("fdiv s0, s1, s2", func() { a.FDIVS(v[2], v[1], v[0]) })
	check("fmax s0, s1, s2", func() { a.FMAXS(v[2], v[1], v[0]) })
	check("fmin s0, s1, s2", func() { a.FMINS(v[2], v[1], v[0]) })
	check("fmadd s0, s1, s2, s3", func() { a.FMADDS(v[2], v[3], v[1], v[0]) })
	check("fmsub s0, s1, s2, s3", func() { a.FMSUBS(v[2], v[3], v[1], v[0]) })
	check("fsqrt s0, s1", func() { a.FSQRTS(v[1], v[0]) })
	check("fabs s0, s1", func() { a.FABSS(v[1], v[0]) })
	check("fneg s0, s1", func() { a.FNEGS(v[1], v[0]) })
	check("fcmp s1, s2", func() { a.FCMPS(v[2], v[1]) })
	check("scvtf s0, x1", func() { a.SCVTFS(r1, v[0]) })

	check("dup v0.4s, w1", func() { a.VDUP(r1, v[0].S4()) })
	check("dup v0.4s, v1.s[3]", func() { a.VDUPe(v[1].S(3), v[0].S4()) })
	check("mov v0.16b, v1.16b", func() { a.VMOV(v[1].B16(), v[0].B16()) })
	check("mov v0.s[1], v1.s[2]", func() { a.VMOVe(v[1].S(2), v[0].S(1)) })
	check("mov w1, v0.s[1]", func() { a.VMOVto(v[0].S(1), r1) })
	check("mov v0.d[1], x1", func() { a.VMOVfrom(r1, v[0].D(1)) })
	check("tbl v0.16b, {v1.16b, v2.16b}, v3.16b", func() { a.VTBL(v[3].B16(), v[1:3], v[0].B16()) })
	check("tbx v0.16b, {v1.16b, v2.16b}, v3.16b", func() { a.VTBX(v[3].B16(), v[1:3], v[0].B16()) })
	check("ld1 {v0.4s}, [x0]", func() { a.VLD1(r0.At(0), v[0].S4()) })
	check("ld1 {v0.8h, v1.8h}, [x0], #32", func() { a.VLD1(r0.Post(32), v[0].H8(), v[1].H8()) })
	check("ld1 {v0.4s}, [x0], x2", func() { a.VLD1(r0.PostBy(r2), v[0].S4()) })
	check("ld2 {v0.4s, v1.4s}, [x0], #32", func() { a.VLD2(r0.Post(32), v[0].S4(), v[1].S4()) })
	check("ld3 {v0.16b, v1.16b, v2.16b}, [x0]", func() { a.VLD3(r0.At(0), v[0].B16(), v[1].B16(), v[2].B16()) })
	check("ld4 {v0.4s, v1.4s, v2.4s, v3.4s}, [x0]", func() { a.VLD4(r0.At(0), v[0].S4(), v[1].S4(), v[2].S4(), v[3].S4()) })
	check("st1 {v0.8b}, [x0], #8", func() { a.VST1(r0.Post(8), v[0].B8()) })
	check("st2 {v0.4s, v1.4s}, [x0]", func() { a.VST2(r0.At(0), v[0].S4(), v[1].S4()) })
	check("st3 {v0.4s, v1.4s, v2.4s}, [x0]", func() { a.VST3(r0.At(0), v[0].S4(), v[1].S4(), v[2].S4()) })
	check("st4 {v0.4s, v1.4s, v2.4s, v3.4s}, [x0]", func() { a.VST4(r0.At(0), v[0].S4(), v[1].S4(), v[2].S4(), v[3].S4()) })
	check("ld1r {v0.4s}, [x0], #4", func() { a.VLD1R(r0.Post(4), v[0].S4()) })
	check("ld1 {v0.s}[1], [x0]", func() { a.VLD1e(r0.At(0), v[0].S(1)) })
	check("st1 {v0.h}[7], [x0], #2", func() { a.VST1e(r0.Post(2), v[0].H(7)) })

	words, err := assemble(t, "armv8-a", want.String())
	if err != nil {
		t.Fatal(err)
	}
	a.Done()
	text, err := a.file.text()
	if err != nil {
		t.Fatal(err)
	}
	got := goAssemble(t, string(text))
	lines := strings.Split(want.String(), "\n")
	for i, w := range words {
		if got[i] != w {
			t.Errorf("%s %s is %08x, want %s, %08x", a.code[i].op, a.code[i].args, got[i], lines[i], w)
		}
	}
}

// TestBranches holds the branches to Go's assembler: they go where they say.
func TestBranches(t *testing.T) {
	a := begin("n int", "")
	n := a.Arg("n")
	end := a.Fresh("end")
	for _, jump := range []func(string){a.B, a.BEQ, a.BNE, a.BLT, a.BLE, a.BGT, a.BGE, a.BLO, a.BLS, a.BHI, a.BHS, a.BMI, a.BPL} {
		jump(end)
	}
	a.CBZ(n, end)
	a.CBNZ(n, end)
	a.TBZ(3, n, end)
	a.TBNZ(63, n, end)
	a.Label(end)
	a.Done()
	text, err := a.file.text()
	if err != nil {
		t.Fatal(err)
	}
	want, err := assemble(t, "armv8-a", `ldr x0, [sp, #8]
	b 1f; b.eq 1f; b.ne 1f; b.lt 1f; b.le 1f; b.gt 1f; b.ge 1f; b.lo 1f; b.ls 1f; b.hi 1f; b.hs 1f; b.mi 1f; b.pl 1f
	cbz x0, 1f; cbnz x0, 1f; tbz x0, #3, 1f; tbnz x0, #63, 1f
1:	ret
`)
	if err != nil {
		t.Fatal(err)
	}
	if got := goAssemble(t, string(text)); !slices.Equal(got[:len(want)], want) {
		t.Errorf("%08x, want %08x", got, want)
	}
}

// TestBody shows a whole body: the frame of its signature, the known and the unknown mnemonic, a table.
func TestBody(t *testing.T) {
	f := newNEONFile(neon)
	a := f.begin("K", "x, y []float32, n int, by float32, flag bool", " bool")
	n, y, length, by, flag := a.Arg("n"), a.Base("y"), a.Len("y"), a.ArgF("by"), a.Arg("flag")
	a.Table("ones", []uint32{1, 0x3f800000}, length)
	a.Free(length)
	fresh := a.GP("fresh")
	a.Splat(0x3f800000, fresh, by)
	loop := a.Fresh("loop")
	a.Label(loop)
	a.VFMLA(by.S4(), by.S4(), by.S4())
	a.VFMLA(by.S(3), by.S4(), by.S4())
	a.VSDOT(by.B16(), by.B16(), by.S4())
	a.SUBS(Imm(1), n, n)
	a.BGT(loop)
	a.Reload("x", y)
	a.Result(flag)
	a.Done()
	text, err := f.text()
	if err != nil {
		t.Fatal(err)
	}
	const want = `// Code generated by simd/_gen. DO NOT EDIT.

//go:build !purego

#include "textflag.h"

// func K(x, y []float32, n int, by float32, flag bool) bool
// Requires: dotprod
TEXT ·K(SB), NOSPLIT, $0-65
	MOVD  n+48(FP), R0
	MOVD  y_base+24(FP), R1
	MOVD  y_len+32(FP), R2
	FMOVS by+56(FP), F0
	MOVBU flag+60(FP), R3
	MOVD  $ones<>(SB), R2
	MOVW  $0x3f800000, R2
	VDUP  R2, V0.S4

loop_1:
	VFMLA V0.S4, V0.S4, V0.S4
	WORD  $0x4fa01800 // fmla v0.4s, v0.4s, v0.s[3]
	WORD  $0x4e809400 // sdot v0.4s, v0.16b, v0.16b
	SUBS  $1, R0, R0
	BGT   loop_1
	MOVD  x_base+0(FP), R1
	MOVB  R3, ret+64(FP)
	RET

DATA ones<>+0(SB)/4, $0x00000001
DATA ones<>+4(SB)/4, $0x3f800000
GLOBL ones<>(SB), RODATA|NOPTR, $8
`
	if string(text) != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	goAssemble(t, string(text))
	wantLoops := []Loop{{loop, true, Count{FMA: 2, Vector: 1, Integer: 1, Branch: 1}}}
	if got := a.Loops(); !slices.Equal(got, wantLoops) {
		t.Errorf("loops %+v, want %+v", got, wantLoops)
	}
}

// TestPanics shows what a generator cannot write.
func TestPanics(t *testing.T) {
	for _, c := range []struct {
		want string // in the message
		gen  func(a *A, r GP, v, w Vec)
	}{
		{"no form for the arrangements S4, H8, S4", func(a *A, _ GP, v, w Vec) { a.VADD(v.S4(), w.H8(), v.S4()) }},
		{"no form for the arrangements B16", func(a *A, _ GP, v, w Vec) { a.VFADD(v.B16(), w.B16(), v.B16()) }},
		{"no form for the arrangements none, S4, S4", func(a *A, _ GP, v, w Vec) { a.VSHLL(16, v.S4(), w.S4()) }},
		{"V0.S[4] is not in the register", func(a *A, _ GP, v, w Vec) { a.VFMLA(v.S(4), w.S4(), w.S4()) }},
		{"in V0 to V15, not in V16", func(a *A, _ GP, v, w Vec) { a.Vecs("low", 14); h := a.Vec("h"); a.VBFMLALB(h.H(0), v.H8(), w.S4()) }},
		{"immediate 32 is not in [0, 31]", func(a *A, _ GP, v, w Vec) { a.VSHL(32, v.S4(), w.S4()) }},
		{"immediate 0 is not in [1, 32]", func(a *A, _ GP, v, w Vec) { a.VUSHR(0, v.S4(), w.S4()) }},
		{"immediate 8 is not in [16, 16]", func(a *A, _ GP, v, w Vec) { a.VSHLL(8, v.H4(), w.S4()) }},
		{"VDUP has no form for V0.S[1]", func(a *A, r GP, v, _ Vec) { a.VDUP(r, v.S(1)) }},
		{"consecutive registers", func(a *A, r GP, v, w Vec) { a.VLD2(r.At(0), w.S4(), v.S4()) }},
		{"registers in a list 1 is not in [2, 2]", func(a *A, r GP, v, w Vec) { a.VLD2(r.At(0), v.S4()) }},
		{"steps by its size", func(a *A, r GP, v, w Vec) { a.VLD1(r.Post(8), v.S4()) }},
		{"at no offset", func(a *A, r GP, v, w Vec) { a.VLD1(r.At(16), v.S4()) }},
		{"offset 32768 is not in", func(a *A, r GP, _, _ Vec) { a.MOVD(r.At(32768), r) }},
		{"offset 260 is not in", func(a *A, r GP, _, _ Vec) { a.MOVD(r.At(260), r) }},
		{"offset 256 is not in", func(a *A, r GP, _, _ Vec) { a.MOVD(r.Post(256), r) }},
		{"scaled by 1 or by 8", func(a *A, r GP, _, _ Vec) { a.MOVD(r.Plus(r, 2), r) }},
		{"no FMOVQ with an index", func(a *A, r GP, v, _ Vec) { a.FMOVQ(r.Plus(r, 0), v) }},
		{"multiple of 16", func(a *A, r GP, v, w Vec) { a.FLDPQ(r.At(8), v, w) }},
		{"multiple of 8", func(a *A, r GP, _, _ Vec) { a.PRFM(r.At(4), "PLDL1KEEP") }},
		{"no prefetch is called", func(a *A, r GP, _, _ Vec) { a.PRFM(r.At(0), "PLD") }},
		{"does not fit a sum", func(a *A, r GP, _, _ Vec) { a.ADD(Imm(4097), r, r) }},
		{"does not fit a sum", func(a *A, r GP, _, _ Vec) { a.SUB(Imm(-1), r, r) }},
		{"not a run of ones", func(a *A, r GP, _, _ Vec) { a.AND(Imm(5), r, r) }},
		{"F0 is a vector register", func(a *A, r GP, v, _ Vec) { a.ADD(v, r, r) }},
		{"no condition is called", func(a *A, r GP, _, _ Vec) { a.CSET("XX", r) }},
		{"shift 64", func(a *A, r GP, _, _ Vec) { a.LSL(Imm(64), r, r) }},
		{"r is used after it was freed", func(a *A, r GP, _, _ Vec) { a.Free(r); a.MOVD(r.At(0), r) }},
		{"v[0] is used after it was freed", func(a *A, _ GP, v, w Vec) { a.Free(v); a.VFABS(v.S4(), w.S4()) }},
		{"r is used after it was freed", func(a *A, r GP, _, _ Vec) { a.Free(r); a.Free(r) }},
		{"unknown variable", func(a *A, _ GP, _, _ Vec) { a.Arg("m") }},
		{"of 8 bytes", func(a *A, _ GP, _, _ Vec) { a.ArgF("n") }},
		{"has other words", func(a *A, r GP, _, _ Vec) { a.Table("t", []uint32{1}, r); a.Table("t", []uint32{2}, r) }},
	} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, c.want) {
					t.Errorf("panics with %q, want %q", got, c.want)
				}
			}()
			a := begin("n int", "")
			v := a.Vecs("v", 2)
			c.gen(a, a.GP("r"), v[0], v[1])
		}()
	}
}

// TestRegisters shows the order in which registers are taken, and what is told when none is left.
func TestRegisters(t *testing.T) {
	a := begin("", "")
	var got []int
	var rs []GP
	for i := range 24 {
		rs = append(rs, a.GP(fmt.Sprintf("r%d", i)))
		got = append(got, rs[i].num)
	}
	if want := append(span(0, 15), span(19, 26)...); !slices.Equal(got, want) {
		t.Errorf("general registers %d, want %d", got, want)
	}
	a.Free(rs[5])
	if r := a.GP("again"); r.num != 5 {
		t.Errorf("R%d is taken, want R5", r.num)
	}
	v := a.Vecs("v", 30)
	a.Free(v[4])
	a.Free(v[5])
	a.Free(v[6])
	if x := a.Vecs("x", 3); x[0].num != 4 {
		t.Errorf("V%d is taken, want V4", x[0].num)
	}
	defer func() {
		got := fmt.Sprint(recover())
		if !strings.HasPrefix(got, "K: no 3 registers V in a row are left for y; live: V0 v[0], V1 v[1],") || !strings.HasSuffix(got, "V29 v[29]") {
			t.Errorf("panics with %q", got)
		}
	}()
	a.Vecs("y", 3)
}

// TestRefusesFeatures shows that a body cannot need more than its folder promises and its row names.
func TestRefusesFeatures(t *testing.T) {
	for _, c := range []struct {
		level *Level
		needs string
		gen   any
		fails bool
	}{
		{neon, "", func(a *A) { v := a.Vec("v"); a.VFMLA(v.S4(), v.S4(), v.S4()) }, false},
		{neon, "", func(a *A) { v := a.Vec("v"); a.VBFDOT(v.H8(), v.H8(), v.S4()) }, true},
		{neon, "", func(a *A) { v := a.Vec("v"); a.VBFMLALT(v.H(7), v.H8(), v.S4()) }, true},
		{neon, "BF16", func(a *A) { v := a.Vec("v"); a.VBFDOT(v.H8(), v.H8(), v.S4()) }, false},
		{neon, "BF16", func(a *A) { v := a.Vec("v"); a.VSMMLA(v.B16(), v.B16(), v.S4()) }, true},
		{neonbf16, "", func(a *A) { v := a.Vec("v"); a.VBFMLALT(v.H(7), v.H8(), v.S4()) }, false},
		{neonbf16, "", func(a *A) { v := a.Vec("v"); a.VSMMLA(v.B16(), v.B16(), v.S4()) }, true},
		{neonbf16, "BF16", func(a *A) { v := a.Vec("v"); a.VFMLA(v.S4(), v.S4(), v.S4()) }, true},
		{neon, "SVE", func(a *A) {}, true},
		{neon, "", func(g *G) {}, true},
	} {
		k := &Kernel{Name: "K", File: "k", Args: []Arg{num("n", "int")}, Bodies: []Body{{c.level, c.needs, c.gen}}}
		if _, err := files([]*Kernel{k}); (err != nil) != c.fails {
			t.Errorf("%s, %q: error %v, want one: %v", c.level.Name, c.needs, err, c.fails)
		}
	}
}

// TestLeavesRegistersAlone reads the generated bodies back: none may touch the registers of the platform, the linker,
// the assembler or Go.
func TestLeavesRegistersAlone(t *testing.T) {
	want, err := files(kernels)
	if err != nil {
		t.Fatal(err)
	}
	forbidden := regexp.MustCompile(`\bR(16|17|18|27|28|29|30)\b`)
	for path, text := range want {
		if !strings.HasSuffix(path, "_arm64.s") {
			continue
		}
		object, err := runGoAsm(t, string(text))
		if err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("go", "tool", "objdump", object).Output()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range strings.Split(string(out), "\n") {
			if forbidden.MatchString(l) {
				t.Errorf("%s: %s", path, l)
			}
		}
	}
}
