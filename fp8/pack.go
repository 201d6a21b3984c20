package fp8

import (
	"fmt"
	"math/bits"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

const (
	// pieceK is the length of a piece of k. A constant of the arithmetic.
	pieceK = 256
	// foldBelow is the step below which a scale is multiplied into the
	// activation. A constant of the arithmetic.
	foldBelow = 16
)

// scaling is how the scales enter a product.
type scaling uint8

const (
	unscaled scaling = iota // there are none
	scaled                  // y = fma(part, scale, y)
	folded                  // x*scale, rounded, in place of x
)

// PackOptions are the choices of Pack.
type PackOptions struct {
	// Step is the distance along k, counted from k = 0, at which sums are cut
	// because scales may change; it is part of the arithmetic. 0 means
	// BlockCols of the matrices. Scales must be constant inside each step. Without
	// scales it is ignored.
	Step int
}

// Pack copies matrices of equal shape [N, K], element type and kind, one for each
// head, say, into panels of 16 rows off the garbage-collected heap. Nothing of
// the caller's is retained. Close frees the memory.
//
// Errors: ErrShape for no matrices or unequal shapes, ErrElem for unequal element
// types, ErrScale if some matrices have scales and some have none, ErrStep if
// scales change inside a step, and what simd.Err and the operating system say.
func Pack(ms []Matrix, opt PackOptions) (*Packed, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	if err := alike(ms); err != nil {
		return nil, err
	}
	first := ms[0]
	p := &Packed{
		elem: first.v.elem, batch: len(ms), n: first.rows, k: first.cols,
		panels: ceilDiv(first.rows, simd.Lanes),
	}
	if first.Scaled() {
		if err := p.setStep(ms, opt.Step); err != nil {
			return nil, err
		}
	}
	if err := p.alloc(); err != nil {
		return nil, err
	}
	for b := range ms {
		for panel := range p.panels {
			p.packPanel(&ms[b], b, panel)
		}
	}
	return p, nil
}

// alike returns an error unless the matrices can be packed together.
func alike(ms []Matrix) error {
	if len(ms) == 0 {
		return fmt.Errorf("%w: no matrices to pack, want at least 1", ErrShape)
	}
	first := ms[0]
	if first.rows < 1 || first.cols < 1 {
		return fmt.Errorf("%w: matrix 0 is %dx%d, want at least 1x1", ErrShape, first.rows, first.cols)
	}
	for i, m := range ms {
		switch {
		case m.rows != first.rows || m.cols != first.cols:
			return fmt.Errorf("%w: matrix %d is %dx%d, want %dx%d like matrix 0", ErrShape, i, m.rows, m.cols, first.rows, first.cols)
		case m.v.elem != first.v.elem:
			return fmt.Errorf("%w: matrix %d holds %v, want %v like matrix 0", ErrElem, i, m.v.elem, first.v.elem)
		case m.Scaled() != first.Scaled():
			return fmt.Errorf("%w: matrix %d has scales: %v, matrix 0: %v", ErrScale, i, m.Scaled(), first.Scaled())
		}
	}
	return nil
}

// setStep checks that scales change at multiples of the step only.
func (p *Packed) setStep(ms []Matrix, step int) error {
	if step < 0 {
		return fmt.Errorf("%w: %d, want at least 0", ErrStep, step)
	}
	if step == 0 {
		step = ms[0].blockCols
	}
	for i, m := range ms {
		first := m.blockCols - m.colPhase // the first border; the others follow every blockCols
		second := first + m.blockCols
		if first < m.cols && (first%step != 0 || second < m.cols && m.blockCols%step != 0) {
			return fmt.Errorf("%w: %d, but the scales of matrix %d change at column %d and every %d after it",
				ErrStep, step, i, first, m.blockCols)
		}
	}
	p.step, p.scaling = step, scaled
	p.groups = ceilDiv(p.k, step)
	if step < foldBelow {
		p.scaling = folded
		p.groups = p.k // one for each k, as the kernel reads them
	}
	return nil
}

// alloc makes room for codes and scales in one block.
func (p *Packed) alloc() error {
	count, ok := product(p.batch, p.panels, p.k, simd.Lanes)
	size, ok2 := product(count, p.elem.Size())
	scales, ok3 := product(p.batch, p.panels, p.groups, simd.Lanes)
	scaleBytes, ok4 := product(scales, 4)
	codes := (size + mem.Align - 1) &^ (mem.Align - 1)
	total := codes + scaleBytes
	if !ok || !ok2 || !ok3 || !ok4 || codes < size || total < codes {
		return fmt.Errorf("%w: %d matrices of %dx%d in %v are more than an int counts in bytes", ErrShape, p.batch, p.n, p.k, p.elem)
	}
	block, err := mem.Alloc(total)
	if err != nil {
		return fmt.Errorf("fp8: packed weights: %w", err)
	}
	p.block = block
	bytes := block.Bytes()
	p.w = values{elem: p.elem}
	switch p.elem.Size() {
	case 1:
		p.w.codes = bytes[:size]
	case 2:
		p.w.halves = mem.Cast[uint16](bytes[:size])
	default:
		p.w.floats = mem.Cast[float32](bytes[:size])
	}
	p.scales = mem.Cast[float32](bytes[codes:])
	p.bytes = int64(total)
	return nil
}

// product is the product of sizes, and whether an int holds it.
func product(sizes ...int) (int, bool) {
	p := uint64(1)
	for _, s := range sizes {
		hi, lo := bits.Mul64(p, uint64(s))
		if hi != 0 || int(lo) < 0 || uint64(int(lo)) != lo {
			return 0, false
		}
		p = lo
	}
	return int(p), true
}

// packPanel copies 16 rows of m and their scales, fewer in the last panel: the
// other lanes are zero, as the memory came.
func (p *Packed) packPanel(m *Matrix, b, panel int) {
	n0 := panel * simd.Lanes
	lanes := min(simd.Lanes, p.n-n0)
	to, from := p.codesAt(b, panel), m.at0+n0*m.rowStride
	switch p.elem.Size() {
	case 1:
		gather(p.w.codes[to:], m.v.codes[from:], m.rowStride, m.colStride, lanes, p.k)
	case 2:
		gather(p.w.halves[to:], m.v.halves[from:], m.rowStride, m.colStride, lanes, p.k)
	default:
		gather(p.w.floats[to:], m.v.floats[from:], m.rowStride, m.colStride, lanes, p.k)
	}
	step := p.step
	if p.scaling == folded {
		step = 1
	}
	for g := range p.groups {
		scales := p.scales[p.scalesAt(b, panel, g):][:lanes]
		for lane := range scales {
			scales[lane] = m.scale(n0+lane, g*step)
		}
	}
}

// gather is dst[k*16+lane] = src[lane*rowStride + k*colStride].
func gather[T any](dst, src []T, rowStride, colStride, lanes, k int) {
	for kk := range k {
		row := dst[kk*simd.Lanes:][:lanes]
		for lane := range row {
			row[lane] = src[lane*rowStride+kk*colStride]
		}
	}
}

// codesAt is where the codes of a panel begin.
func (p *Packed) codesAt(b, panel int) int { return (b*p.panels + panel) * p.k * simd.Lanes }

// scalesAt is where the scales of a group of a panel begin.
func (p *Packed) scalesAt(b, panel, group int) int {
	return ((b*p.panels+panel)*p.groups + group) * simd.Lanes
}

// scaleGroup is the group of scales of column k.
func (p *Packed) scaleGroup(k int) int {
	if p.scaling == folded {
		return k
	}
	return k / p.step
}
