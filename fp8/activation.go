package fp8

import (
	"fmt"
	"runtime"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// Product says how a product is computed. The zero Product is ComputeF32 on activations as they
// are.
type Product struct {
	Compute Compute
	// Group, if not 0, quantises the activations to E4M3 codes first, with a scale for each row and
	// each group of so many columns, the last of which may be short. GPUs that multiply codes by
	// codes do that (W8A8). The weights must have scales. See Packed.Mul.
	Group int
}

func (how Product) check() error {
	if int(how.Compute) >= len(computes) {
		return fmt.Errorf("%w: %v, want at most %v", ErrCompute, how.Compute, Compute(len(computes)-1))
	}
	if how.Group < 0 {
		return fmt.Errorf("%w: groups of %d columns, want at least 1, or 0 for activations as they are", ErrShape, how.Group)
	}
	return nil
}

// ActivationSpec is what an Activation is made for.
type ActivationSpec struct {
	Product
	Rows int // at most
	K    int // columns: those of the weights

	only *Packed // if not nil, no other weights read the activations
	elem Elem    // what they are given as then
}

// Activation is rows of activations as products read them: float32 in place, and multiplied by a
// power of two for the kernels that decode E4M3 in registers, if that is exact; bf16; or codes with
// scales. Packed.Activate makes it, Packed.MulPanels reads it, for any matrix of the weights that
// it was made with and of other weights of the same K.
//
// It lives in memory that Init is given, and nothing allocates in use. One goroutine at a time
// makes it; any number may read it. The zero Activation has no rows.
type Activation struct {
	spec ActivationSpec
	by   computer
	// The rows as they were given, [m][K], ldx apart from element at on.
	x       Rows
	at, ldx int
	m       int

	// What by makes of them, or else the codes.
	floats     []float32 // [rows][ldf]
	halves     []uint16  // [rows][ldh]
	ldf, ldh   int
	prescaled  bool      // of f32: floats holds the rows times a power of two
	codes      []byte    // [rows][K] E4M3
	codeScales []float32 // [rows][groups]
	groups     int
}

// layout is the workspace of an Activation. All numbers count elements.
type layout struct {
	perFloats, perHalves int // of a row
	floats, halves       int
	groups               int // of a row
	codes, codeScales    int
	total                int // float32
}

func (s ActivationSpec) layout() (l layout, err error) {
	if err := s.check(); err != nil {
		return l, err
	}
	if s.Rows < 0 || s.K < 1 {
		return l, fmt.Errorf("%w: activations [%d, %d], want [>= 0, >= 1]", ErrShape, s.Rows, s.K)
	}
	// What follows needs at most 8 bytes for each value of a padded row.
	if _, ok := product(max(s.Rows, 1), padded(s.K), 8); !ok || padded(s.K) < s.K {
		return l, fmt.Errorf("%w: activations [%d, %d] are more than an int counts in bytes", ErrShape, s.Rows, s.K)
	}
	if s.Group > 0 {
		l.groups = ceilDiv(s.K, min(s.Group, s.K))
		l.codes, l.codeScales = s.Rows*s.K, s.Rows*l.groups
	} else {
		l.perFloats, l.perHalves = computes[s.Compute].perRow(s)
		l.floats, l.halves = s.Rows*l.perFloats, s.Rows*l.perHalves
	}
	l.total = l.floats + (l.halves+1)/2 + (l.codes+3)/4 + l.codeScales
	return l, nil
}

// Floats is the length of the workspace that Init wants; 0 for what Init refuses.
func (s ActivationSpec) Floats() int {
	l, _ := s.layout()
	return l.total
}

// Init makes a an Activation without rows, in the first s.Floats() elements of buf, which are its
// own for as long as it is in use. Several may share memory if they are used in turn. Kernels are
// fastest if buf is aligned to 64 bytes.
//
// Errors: ErrShape for a buf that is too short, Rows below 0, K below 1, or a Group below 0;
// ErrCompute.
func (a *Activation) Init(s ActivationSpec, buf []float32) error {
	l, err := s.layout()
	if err != nil {
		return err
	}
	if len(buf) < l.total {
		return fmt.Errorf("%w: the workspace of activations [%d, %d] has %d values, want %d", ErrShape, s.Rows, s.K, len(buf), l.total)
	}
	s.Group = min(s.Group, s.K)
	*a = Activation{spec: s, by: computes[s.Compute].computer, ldf: l.perFloats, ldh: l.perHalves, groups: l.groups}
	cut := func(n int) []float32 {
		part := buf[:n:n]
		buf = buf[n:]
		return part
	}
	a.floats = cut(l.floats)
	a.halves = mem.Cast[uint16](mem.Bytes(cut((l.halves + 1) / 2)))
	a.codes = mem.Bytes(cut((l.codes + 3) / 4))
	a.codeScales = cut(l.codeScales)
	return nil
}

// Activate readies m rows of K activations, ldx apart, for products with p, and with any other
// weights of the same K. MulPanels may read x too: it must neither change nor go before the last
// product. m is at most the Rows, and the K of p that, for which a was made.
func (p *Packed) Activate(a *Activation, x []float32, ldx, m int) {
	if a.spec.K != p.k || m > a.spec.Rows {
		panic(fmt.Sprintf("fp8: Activate with %d rows of %d columns of an Activation for %d of %d", m, p.k, a.spec.Rows, a.spec.K))
	}
	p.activate(a, RowsF32(x), 0, ldx, m)
}

// activate is Activate for rows of any kind, from element at on; float32 if they are quantised.
func (p *Packed) activate(a *Activation, x Rows, at, ldx, m int) {
	a.x, a.at, a.ldx, a.m = x, at, ldx, m
	if a.spec.Group == 0 {
		a.by.activate(p, a)
		return
	}
	for i := range m {
		a.quantise(i, x.F32()[at+i*ldx:][:p.k])
	}
}

// quantise makes codes and scales of row i.
func (a *Activation) quantise(i int, x []float32) {
	simd.QuantDynamic(a.codes[i*len(x):][:len(x)], a.codeScales[i*a.groups:][:a.groups], x, a.spec.Group)
}

// MulPanels computes the outputs n0 <= j < n1 of matrix b, n0 a multiple of 16, for the first m of
// the rows x that a was made of:
//
//	y[i*ldy + j-n0] = sum over k < K of x[i][k] * W[b][j][k]
//
// with the roundings of Mul for the Product that a is for. It is the inner part of Mul for callers
// that split work themselves: they hold a lease (Acquire) and keep b, n0, n1 and y in range. It
// does not allocate and may run in many goroutines. Quantised activations need weights with scales.
func (p *Packed) MulPanels(b int, y []float32, ldy int, a *Activation, m, n0, n1 int) {
	if m <= 0 {
		return
	}
	if a.spec.K != p.k || m > a.m {
		panic(fmt.Sprintf("fp8: MulPanels with %d rows of %d columns, the Activation has %d of %d", m, p.k, a.m, a.spec.K))
	}
	p.mulPanels(a, 0, b, y, ldy, m, n0, n1, 0)
}

// mulPanels is MulPanels from row i on, which must be 0 unless rows are quantised. Results may be
// written past the caches if nonTemporal is 1.
func (p *Packed) mulPanels(a *Activation, i, b int, y []float32, ldy, m, n0, n1, nonTemporal int) {
	switch {
	case a.spec.Group == 0:
		a.by.panels(p, a, b, y, ldy, m, n0, n1, nonTemporal)
	case !p.Scaled():
		panic("fp8: quantised activations for weights without scales")
	default:
		a.by.codes(p, a, i, b, y, ldy, m, n0, n1)
	}
	runtime.KeepAlive(p) // the weights are not memory that the collector sees
}

// float32Rows are the rows as float32, and how far they are apart: in place, or in a.floats, into
// which the computer has widened them.
func (a *Activation) float32Rows() (x []float32, ldx int) {
	if a.x.Kind() == ElemF32 {
		return a.x.F32()[a.at:], a.ldx
	}
	return a.floats, a.ldf
}

// widen fills a.floats with rows of bf16 or f16.
func (a *Activation) widen() {
	for i := range a.m {
		a.x.v.widen(a.floats[i*a.ldf:][:a.spec.K], a.at+i*a.ldx)
	}
}

// padded is a distance between rows of k float32 that do not crowd into a few sets of a cache: an
// odd number of lines of 64 bytes.
func padded(k int) int { return (ceilDiv(k, 16) | 1) * 16 }
