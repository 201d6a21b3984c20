package workshop

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/pass"
	"github.com/mmcloughlin/avo/printer"
)

// avoFile is the assembly file of the amd64 bodies of one kind.
type avoFile struct {
	g     *G
	needs map[string]string // symbol: the feature that its row names
}

func newAvoFile(l *Level) *avoFile {
	g := &G{Context: build.NewContext(), Level: l, tables: map[string]operand.Mem{}}
	g.ConstraintExpr("!purego")
	return &avoFile{g, map[string]string{}}
}

func (w *avoFile) write(k *Kernel, b Body) error {
	gen, ok := b.Gen.(func(*G))
	if !ok {
		return fmt.Errorf("%s, %s: the generator is a %T", k.Name, b.Level.Name, b.Gen)
	}
	w.g.begin(k, b.Symbol(k))
	gen(w.g)
	w.needs[b.Symbol(k)] = b.Needs
	return nil
}

func (w *avoFile) text() ([]byte, error) {
	f, err := w.g.Result()
	if err != nil {
		return nil, err
	}
	if err := pass.Compile.Execute(f); err != nil {
		return nil, err
	}
	for _, fn := range f.Functions() {
		isa := fn.ISA
		if usesHigh(fn) { // avo takes the form of the low registers for them
			isa = append(slices.Clone(isa), "AVX512F", "AVX512VL")
		}
		if err := w.g.Level.admits(fn.Name, isa, w.needs[fn.Name]); err != nil {
			return nil, err
		}
	}
	text, err := printer.NewGoAsm(printer.Config{Name: "x", Pkg: w.g.Level.Name}).Print(f)
	if err != nil {
		return nil, err
	}
	_, text, _ = bytes.Cut(text, []byte("\n")) // avo's header names a command line
	return append([]byte(strings.TrimSpace(header)+"\n"), text...), nil
}

// usesHigh reports that a body names one of the vector registers from 16 on.
func usesHigh(fn *ir.Function) bool {
	return slices.ContainsFunc(fn.Instructions(), func(i *ir.Instruction) bool {
		return slices.ContainsFunc(i.Operands, isHigh)
	})
}
