package fp8

import (
	"fmt"
	"math/bits"
	"unsafe"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

const (
	// pieceK is the length of a piece of k. A constant of the arithmetic.
	pieceK = 256
	// foldIntoABelow is the step below which a scale is multiplied into the
	// activation. A constant of the arithmetic.
	foldIntoABelow = 16
)

// scaling is how the scales enter a product.
type scaling uint8

const (
	unscaled    scaling = iota // there are none
	scaled                     // y = fma(part, scale, y)
	foldedIntoA                // x*scale, rounded, in place of x
)

// PackOptions are the choices of Pack.
type PackOptions struct {
	// Step is the distance along k, counted from k = 0, at which sums are cut
	// because scales may change; it is part of the arithmetic. 0 means
	// BlockCols of the matrices. Scales must be constant inside each step. Without
	// scales it is ignored.
	Step int
	// Into is the caller's memory for codes and scales, at least PackedBytes long
	// and aligned to 64 bytes, and none of what the matrices refer to. It is the
	// weights' until Close, which frees nothing of it: it must neither change nor be
	// unmapped before. nil: the memory is the weights' own, off the
	// garbage-collected heap.
	Into []byte
	// Progress, if not nil, is called as packing goes on, with the number of codes
	// packed since it was called last; all in all that is N*K of every matrix.
	Progress func(codes int)
}

// Pack copies matrices of equal shape [N, K], element type and kind, one for each
// head, say, into panels of 16 rows. Nothing of the caller's but Into is retained.
// Close frees the memory.
//
// Errors: ErrShape for no matrices, unequal shapes, or an Into that is too short or
// not aligned, ErrElem for unequal element types, ErrScale if some matrices have
// scales and some have none, ErrStep if scales change inside a step, and what
// simd.Err and the operating system say.
func Pack(ms []Matrix, opt PackOptions) (*Packed, error) {
	p, err := laidOut(ms, opt)
	if err != nil {
		return nil, err
	}
	if err := p.place(opt.Into); err != nil {
		return nil, err
	}
	finite := true
	for b := range ms {
		for panel := range p.panels {
			finite = p.packPanel(&ms[b], b, panel) && finite
			if opt.Progress != nil {
				opt.Progress(min(simd.Lanes, p.n-panel*simd.Lanes) * p.k)
			}
		}
	}
	p.setPrescale(finite)
	return p, nil
}

// PackedBytes is how many bytes the codes and scales of these matrices take up:
// what PackOptions.Into must hold and Packed.Bytes will say. opt.Into is not looked
// at. Errors: those of Pack.
func PackedBytes(ms []Matrix, opt PackOptions) (int64, error) {
	p, err := laidOut(ms, opt)
	if err != nil {
		return 0, err
	}
	s, err := p.sizes()
	return int64(s.total), err
}

// laidOut is a Packed for the matrices, as yet without memory.
func laidOut(ms []Matrix, opt PackOptions) (*Packed, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	if err := alike(ms); err != nil {
		return nil, err
	}
	first := ms[0]
	p := &Packed{elem: first.v.elem, batch: len(ms), n: first.rows, k: first.cols}
	if first.Scaled() {
		if err := p.setStep(ms, opt.Step); err != nil {
			return nil, err
		}
	}
	p.layOut()
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
	p.scaling, p.step = scaled, min(step, p.k)
	if step < foldIntoABelow {
		p.scaling = foldedIntoA
	}
	return nil
}

// layOut sets what follows from element type, sizes, scaling and step.
func (p *Packed) layOut() {
	p.panels = ceilDiv(p.n, simd.Lanes)
	switch p.scaling {
	case unscaled:
		p.groups = 0
	case scaled:
		p.groups = ceilDiv(p.k, p.step)
	case foldedIntoA:
		p.groups = p.k // one for each k, as the kernel reads them
	}
	p.words = p.elem == ElemE4M3 && p.scaling == scaled && p.k%wordK == 0 && p.step%wordK == 0
}

// setPrescale gives the weights the product that decodes in registers, if their layout
// has it and all their codes are finite.
func (p *Packed) setPrescale(finite bool) {
	if p.words && finite {
		p.prescale = prescaleFactor()
	}
}

// sizes are the bytes of packed weights.
type sizes struct {
	codes  int // from the front
	scales int // where they begin: codes, rounded up to mem.Align
	total  int
}

// sizes returns ErrShape for more bytes than an int counts.
func (p *Packed) sizes() (sizes, error) {
	count, ok := product(p.batch, p.panels, p.k, simd.Lanes)
	codes, ok2 := product(count, p.elem.Size())
	scales, ok3 := product(p.batch, p.panels, p.groups, simd.Lanes, 4)
	s := sizes{codes: codes, scales: (codes + mem.Align - 1) &^ (mem.Align - 1)}
	s.total = s.scales + scales
	if !ok || !ok2 || !ok3 || s.scales < codes || s.total < s.scales {
		return sizes{}, fmt.Errorf("%w: %d matrices of %dx%d in %v are more than an int counts in bytes", ErrShape, p.batch, p.n, p.k, p.elem)
	}
	return s, nil
}

// place makes room for codes and scales in one piece, the caller's or, if into is
// nil, one of its own.
func (p *Packed) place(into []byte) error {
	s, err := p.sizes()
	if err != nil {
		return err
	}
	switch {
	case into == nil:
		if p.block, err = mem.Alloc(s.total); err != nil {
			return fmt.Errorf("fp8: packed weights: %w", err)
		}
		p.block.Huge()
		p.memory = p.block.Bytes()
	case len(into) < s.total:
		return fmt.Errorf("%w: Into has %d bytes, want at least %d", ErrShape, len(into), s.total)
	case uintptr(unsafe.Pointer(unsafe.SliceData(into)))%mem.Align != 0:
		return fmt.Errorf("%w: Into begins at %p, want a multiple of %d", ErrShape, into, mem.Align)
	default:
		p.memory = into[:s.total:s.total]
	}
	p.bytes = int64(s.total)
	codes := p.memory[:s.codes]
	p.w = values{elem: p.elem}
	switch p.elem.Size() {
	case 1:
		p.w.codes = codes
	case 2:
		p.w.halves = mem.Cast[uint16](codes)
	default:
		p.w.floats = mem.Cast[float32](codes)
	}
	p.scales = mem.Cast[float32](p.memory[s.scales:])
	clear(p.memory[s.codes:s.scales])
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
// other lanes become zero. Of codes in words it tells whether all are finite.
func (p *Packed) packPanel(m *Matrix, b, panel int) (finite bool) {
	n0 := panel * simd.Lanes
	if p.n-n0 < simd.Lanes && p.block == nil { // else it is zero as it came
		codes, scales := p.panel(b, panel)
		clear(codes)
		clear(scales)
	}
	lanes := min(simd.Lanes, p.n-n0)
	to, from := p.codesAt(b, panel), m.at0+n0*m.rowStride
	switch size := p.elem.Size(); {
	case p.words:
		finite = gatherWords(p.w.codes[to:], m.v.codes[from:], m.rowStride, m.colStride, lanes, p.k)
	case size == 1:
		gather(p.w.codes[to:], m.v.codes[from:], m.rowStride, m.colStride, lanes, p.k)
	case size == 2:
		gather(p.w.halves[to:], m.v.halves[from:], m.rowStride, m.colStride, lanes, p.k)
	default:
		gather(p.w.floats[to:], m.v.floats[from:], m.rowStride, m.colStride, lanes, p.k)
	}
	step := p.step
	if p.scaling == foldedIntoA {
		step = 1
	}
	for g := range p.groups {
		scales := p.scales[p.scalesAt(b, panel, g):][:lanes]
		for lane := range scales {
			scales[lane] = m.scale(n0+lane, g*step)
		}
	}
	return finite
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

// panel is the memory of the codes and of the scales of a panel.
func (p *Packed) panel(b, panel int) (codes, scales []byte) {
	size := p.elem.Size()
	at, n := p.codesAt(b, panel)*size, p.k*simd.Lanes*size
	codes = p.memory[at : at+n]
	at, n = p.scalesAt(b, panel, 0)*4, p.groups*simd.Lanes*4
	return codes, p.memory[len(p.memory)-len(p.scales)*4:][at : at+n]
}

// codesAt is where the codes of a panel begin.
func (p *Packed) codesAt(b, panel int) int { return (b*p.panels + panel) * p.k * simd.Lanes }

// scalesAt is where the scales of a group of a panel begin.
func (p *Packed) scalesAt(b, panel, group int) int {
	return ((b*p.panels+panel)*p.groups + group) * simd.Lanes
}

// scaleGroup is the group of scales of column k.
func (p *Packed) scaleGroup(k int) int {
	if p.scaling == foldedIntoA {
		return k
	}
	return k / p.step
}
