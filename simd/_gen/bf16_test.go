package workshop

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// gnuAsAMD64 is GNU as for amd64, by the name that it has elsewhere, and by the one that it has there.
var gnuAsAMD64 = []string{"x86_64-linux-gnu-as", "as"}

// codedSamples are the instructions in bytes, with registers of every kind and memory in every form.
func codedSamples() (all []coded) {
	numbers := []int{0, 5, 8, 13, 16, 23, 26, 31}
	var from []operand.Op
	for _, n := range numbers {
		from = append(from, Z(n))
	}
	bases := []reg.GPPhysical{reg.RAX, reg.RCX, reg.RDX, reg.RBX, reg.RSP, reg.RBP, reg.RSI, reg.RDI, reg.R8, reg.R11, reg.R12, reg.R13, reg.R15}
	var memory []operand.Mem
	for _, disp := range []int{0, 4, 64, -64, 65, 508, 512, 8128, 8192, -8192, -8256, 1 << 20} {
		for _, base := range bases {
			memory = append(memory, At(base, disp))
			for i, index := range []reg.GPPhysical{reg.RAX, reg.RDI, reg.R12, reg.R13} {
				memory = append(memory, AtX(base, index, 1<<i, disp))
			}
		}
	}
	for i, n := range numbers {
		to, with, mask := n, numbers[(i+3)%len(numbers)], []reg.Register{nil, reg.K1, reg.K7}[i%3]
		dot := coded{name: "VDPBF16PS", prefix: 2, opcode: 0x52, length: 2, with: Z(with), to: Z(to), mask: mask}
		narrow := coded{name: "VCVTNEPS2BF16", prefix: 2, opcode: 0x72, length: 2, to: Y(to), mask: mask, zero: mask != nil && i%2 == 0}
		both := coded{name: "VCVTNE2PS2BF16", prefix: 3, opcode: 0x72, length: 2, with: Z(with), to: Z(to), mask: mask}
		for _, c := range []coded{dot, narrow, both} {
			for _, f := range from {
				c.from = f
				all = append(all, c)
			}
			for j, m := range memory {
				if j%len(numbers) == i {
					c.from, c.spread = m, false
					all = append(all, c)
					c.spread = true
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// gnuText is the instruction for GNU as, which has the order of operands of Go.
func (c coded) gnuText() string {
	from := ""
	switch f := c.from.(type) {
	case operand.Mem:
		index := ""
		if f.Index != nil {
			index = fmt.Sprintf(",%%%s,%d", gnuName(f.Index), f.Scale)
		}
		from = fmt.Sprintf("%d(%%%s%s)", f.Disp, gnuName(f.Base), index)
		if c.spread {
			from += "{1to16}"
		}
	case reg.Register:
		from = "%" + gnuName(f)
	}
	to, name := "%"+gnuName(c.to), strings.ToLower(c.name)
	if c.mask != nil {
		to += fmt.Sprintf("{%%%s}", gnuName(c.mask))
	}
	if c.zero {
		to += "{z}"
	}
	if c.with != nil {
		from += ", %" + gnuName(c.with)
	}
	return name + " " + from + ", " + to
}

// gnuName is a register for GNU as.
func gnuName(r reg.Register) string {
	name := strings.ToLower(r.Asm())
	switch {
	case name[0] >= 'x' && name[0] <= 'z':
		return name[:1] + "mm" + name[1:]
	case name[0] == 'k' || name[0] == 'r':
		return name
	}
	return "r" + name
}

// TestCoded holds the instructions that are written as bytes to GNU as, and the two that silicon has run.
func TestCoded(t *testing.T) {
	all := codedSamples()
	var source strings.Builder
	var want []byte
	for _, c := range all {
		source.WriteString(c.gnuText() + "\n")
		want = append(want, c.bytes()...)
	}
	got := assembleAMD64(t, source.String())
	if !bytes.Equal(want, got) {
		for _, c := range all { // which one
			if b := assembleAMD64(t, c.gnuText()+"\n"); !bytes.Equal(b, c.bytes()) {
				t.Fatalf("%s is % x, want % x", c.gnuText(), c.bytes(), b)
			}
		}
	}
	for _, c := range []struct {
		coded
		want string
	}{
		{masked(coded{prefix: 2, opcode: 0x52, from: Z(30), with: Z(10)}, []reg.Register{Z(17)}), "62 82 2e 48 52 ce"},
		{masked(coded{prefix: 2, opcode: 0x72, from: Z(9)}, []reg.Register{Y(20)}), "62 c2 7e 48 72 e1"},
	} {
		if got := fmt.Sprintf("% x", c.bytes()); got != c.want {
			t.Errorf("%s, want %s", got, c.want)
		}
	}
	t.Logf("%d instructions", len(all))
}

// assembleAMD64 is the bytes that GNU as makes of a source. Without GNU as the test is skipped, or fails where CI is set.
func assembleAMD64(t *testing.T, source string) []byte {
	t.Helper()
	object := filepath.Join(t.TempDir(), "x.o")
	for _, name := range gnuAsAMD64 {
		path, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		cmd := exec.Command(path, "--64", "-o", object, "-")
		cmd.Stdin = strings.NewReader(source)
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%.2000s", name, err, text)
		}
		f, err := elf.Open(object)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		text, err := f.Section(".text").Data()
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("none of %v: install binutils-x86-64-linux-gnu", gnuAsAMD64)
	}
	t.Skipf("none of %v: nothing was compared with GNU as; install binutils-x86-64-linux-gnu", gnuAsAMD64)
	return nil
}
