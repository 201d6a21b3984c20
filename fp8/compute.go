package fp8

import (
	"fmt"
	"strings"
)

// Compute says what a product multiplies and in which order it sums (docs/arithmetic.md). Each
// gives the same bits on every machine.
type Compute uint8

const (
	// ComputeF32 multiplies float32 values by fused multiply-add.
	ComputeF32 Compute = iota
	// ComputeBF16 rounds activations and weights to bf16 and sums in float32, by pairs of columns.
	// It is up to twice as fast on processors that multiply pairs of bf16, and errs by up to 2^-7
	// of the terms.
	ComputeBF16
)

// computes is the table of them: a new one is a constant, a row here and a file like f32.go.
// Nothing else in this package asks which it is, and nobody above it does.
var computes = [...]struct {
	name string
	computer
}{
	ComputeF32:  {"f32", f32Compute{}},
	ComputeBF16: {"bf16", bf16Compute{}},
}

// computer is what products leave to a Compute. Its methods are called once for an item of work,
// and call kernels directly.
type computer interface {
	// perRow is the workspace of one row of an Activation: so many float32 and so many values of 16
	// bits. Rows are that far apart in a.floats and a.halves.
	perRow(s ActivationSpec) (floats, halves int)
	// activate makes of the a.m rows that a.x holds what products with p read, and, unless
	// a.spec.only is set, with any other weights of the same K.
	activate(p *Packed, a *Activation)
	// panels is Packed.MulPanels for rows that are not quantised. Results are written past the
	// caches if nonTemporal is 1; that is leave, not duty.
	panels(p *Packed, a *Activation, b int, y []float32, ldy, m, n0, n1, nonTemporal int)
	// codes is Packed.MulPanels for the quantised rows i .. i+m.
	codes(p *Packed, a *Activation, i, b int, y []float32, ldy, m, n0, n1 int)
	// split cuts a product of m rows that are not quantised, and returns the number of items.
	split(p *Packed, m, workers int) (g grid, items int)
}

// ParseCompute reads "f32" or "bf16"; others are ErrCompute.
func ParseCompute(s string) (Compute, error) {
	var names []string
	for c, known := range computes {
		if s == known.name {
			return Compute(c), nil
		}
		names = append(names, known.name)
	}
	return ComputeF32, fmt.Errorf("%w: %q is none of %s", ErrCompute, s, strings.Join(names, ", "))
}

// String is the inverse of ParseCompute.
func (c Compute) String() string {
	if int(c) >= len(computes) {
		return fmt.Sprintf("Compute(%d)", uint8(c))
	}
	return computes[c].name
}
