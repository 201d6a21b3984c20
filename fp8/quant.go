package fp8

import (
	"context"
	"fmt"
	"runtime"

	"github.com/lamina-ml/lamina/simd"
)

// slabRows are the rows of each matrix whose codes MulQuant holds at a time.
const slabRows = 4 * blockRows

// MulQuant is Mul with activations quantised to E4M3 codes first, as a GPU does
// that multiplies codes by codes (W8A8): for each row of x and each group of
// columns, the last of which may be short,
//
//	amax  = the largest |x|; Inf counts as 1200
//	scale = min(amax, 1200)/448
//	recip = 1/scale, or 0 if that is not finite
//	code  = x*recip, clamped to +-448, to nearest even
//
// and the product is that of the codes, with both scales, in the order of
// roundings of the package comment; a group that holds a NaN makes all outputs of
// its row NaN. The weights must have scales. Memory for the codes of at most 256
// rows of each matrix stays with p for the next call.
//
// Errors: ErrScale for weights without scales, ErrShape for a group below 1, and
// those of Mul.
func (p *Packed) MulQuant(ctx context.Context, pool *Pool, y []float32, x Rows, s Shape, group int) error {
	return p.mulQuant(ctx, pool, y, x, s, group, false)
}

// mulQuant is MulQuant, or MulQuantBF16 if pairs is set.
func (p *Packed) mulQuant(ctx context.Context, pool *Pool, y []float32, x Rows, s Shape, group int, pairs bool) error {
	if err := p.Acquire(); err != nil {
		return err
	}
	defer p.Release()
	if !p.Scaled() {
		return fmt.Errorf("%w: weights [%d, %d, %d] of %v have none, and quantised activations need them", ErrScale, p.batch, p.n, p.k, p.elem)
	}
	if group < 1 {
		return fmt.Errorf("%w: groups of %d columns, want at least 1", ErrShape, group)
	}
	s, err := s.checked(p, y, x)
	if err != nil || s.M == 0 {
		return err
	}
	t := p.quants.take()
	t.task = task{p: p, y: y, x: x, s: s, pairs: pairs}
	t.group = min(group, p.k)
	err = t.run(ctx, pool)
	t.task = task{} // nothing of the caller's is kept
	p.quants.give(t)
	return err
}

// quantTask is a quantised product under way, a slab of rows at a time: first its
// rows are quantised, then they are multiplied.
type quantTask struct {
	task
	group  int       // columns of a scale
	groups int       // scales of a row
	i0, m  int       // the rows of the slab
	same   bool      // all matrices read the same rows, which are quantised once
	codes  []byte    // [matrix][m][k]
	scales []float32 // [matrix][m][groups]
	wide   []float32 // [worker][k]: a row of bf16 or f16 as float32
}

// The two steps of a quantTask.
type (
	quantising  quantTask
	multiplying quantTask
)

func (t *quantTask) run(ctx context.Context, pool *Pool) error {
	p := t.p
	matrices := p.batch
	if t.same = t.s.StrideX == 0; t.same {
		matrices = 1
	}
	t.groups = ceilDiv(p.k, t.group)
	rows := matrices * min(slabRows, t.s.M)
	t.codes, t.scales = room(t.codes, rows*p.k), room(t.scales, rows*t.groups)
	if t.x.Kind() != ElemF32 {
		t.wide = room(t.wide, pool.Workers()*p.k)
	}
	for t.i0 = 0; t.i0 < t.s.M; t.i0 += slabRows {
		t.m = min(slabRows, t.s.M-t.i0)
		if err := pool.Run(ctx, matrices*t.m, (*quantising)(t)); err != nil {
			return err
		}
		var items int
		t.grid, items = p.split(t.m, pool.Workers())
		if err := pool.Run(ctx, items, (*multiplying)(t)); err != nil {
			return err
		}
	}
	return nil
}

// room is n values in the memory of s if that is enough.
func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// Do quantises one row.
func (t *quantising) Do(worker, item int) error {
	k := t.p.k
	b, i := item/t.m, item%t.m
	at := b*t.s.StrideX + (t.i0+i)*t.s.LdX
	var row []float32
	if t.x.Kind() == ElemF32 {
		row = t.x.F32()[at:][:k]
	} else {
		row = t.wide[worker*k:][:k]
		t.x.v.widen(row, at)
	}
	simd.QuantDynamic(t.codes[item*k:][:k], t.scales[item*t.groups:][:t.groups], row, t.group)
	return nil
}

// Do computes one item of the product.
func (t *multiplying) Do(_, item int) error {
	p := t.p
	b, i0, n0 := t.item(item)
	m, n1 := min(t.rows, t.m-i0), min(n0+t.panels*simd.Lanes, p.n)
	y := t.y[b*t.s.StrideY+(t.i0+i0)*t.s.LdY+n0:]
	row := b*t.m + i0
	if t.same {
		row = i0
	}
	if t.pairs {
		p.MulQuantBF16Panels(b, y, t.s.LdY, t.codes[row*p.k:], p.k, t.scales[row*t.groups:], t.groups, t.group, m, n0, n1)
		return nil
	}
	p.MulQuantPanels(b, y, t.s.LdY, t.codes[row*p.k:], p.k, t.scales[row*t.groups:], t.groups, t.group, m, n0, n1)
	return nil
}

// MulQuantPanels is MulPanels for quantised activations: m rows of E4M3 codes with
// a scale for each group of columns, as simd.QuantDynamic makes them,
//
//	y[i*ldy + j-n0] = sum over k < K of codes[i*ldc + k]*sx[i*ldsx + k/group] * W[b][j][k]
//
// in the order of roundings of the package comment. Besides what MulPanels asks
// of its caller, the weights must have scales, and group is at least 1.
func (p *Packed) MulQuantPanels(b int, y []float32, ldy int, codes []byte, ldc int, sx []float32, ldsx, group, m, n0, n1 int) {
	if !p.Scaled() {
		panic("fp8: MulQuantPanels of weights without scales")
	}
	for i := 0; i < m; i += wideRows {
		p.mulCodes(b, y[i*ldy:], ldy, codes[i*ldc:], ldc, sx[i*ldsx:], ldsx, group, min(wideRows, m-i), n0, n1)
	}
	runtime.KeepAlive(p) // the weights are not memory that the collector sees
}

// codeRows are columns of at most 32 rows of codes as float32, a row every 256.
type codeRows [pieceK * wideRows]float32

// mulCodes is MulQuantPanels for at most 32 rows.
func (p *Packed) mulCodes(b int, y []float32, ldy int, codes []byte, ldc int, sx []float32, ldsx, group, m, n0, n1 int) {
	var rows codeRows
	for i := range m {
		clear(y[i*ldy:][:n1-n0])
	}
	for k0 := 0; k0 < p.k; k0 += pieceK {
		k1 := min(k0+pieceK, p.k)
		for i := range m {
			simd.WidenE4M3(rows[i*pieceK:][:k1-k0], codes[i*ldc+k0:][:k1-k0])
		}
		p.addCodes(b, y, ldy, &rows, sx, ldsx, group, m, k0, k1, n0, n1)
	}
}

// addCodes adds at most 256 columns k0 .. k1, which rows holds, to y. Pieces may be
// as short as one column, so the weights are widened for all of them at once.
func (p *Packed) addCodes(b int, y []float32, ldy int, rows *codeRows, sx []float32, ldsx, group, m, k0, k1, n0, n1 int) {
	var wide [pieceK * simd.Lanes]float32
	for n := n0; n < n1; n += simd.Lanes {
		panel := panelOf{b: b, index: n / simd.Lanes, lanes: min(simd.Lanes, n1-n)}
		w := p.codes(&wide, panel, k0, k1)
		for from := k0; from < k1; {
			to := min(k1, from+(p.step-from%p.step), from+(group-from%group))
			p.partCodes(panel, y[n-n0:], ldy, rows[from-k0:], w[(from-k0)*simd.Lanes:], sx[from/group:], ldsx, m, from, to)
			from = to
		}
	}
}

// partCodes adds the piece k0 .. k1 of a panel to y. rows, w and sx begin at k0.
func (p *Packed) partCodes(panel panelOf, y []float32, ldy int, rows, w, sx []float32, ldsx, m, k0, k1 int) {
	sw := p.scales[p.scalesAt(panel.b, panel.index, p.scaleGroup(k0)):][:panel.lanes]
	call := callRows(m, simd.Blocks().CallFMA, panel.lanes, k1-k0)
	for i := 0; i < m; i += call {
		simd.PartScaleRows(y[i*ldy:], ldy, rows[i*pieceK:], pieceK, w, 0, sx[i*ldsx:], ldsx, sw, min(call, m-i), panel.lanes, k1-k0)
	}
}
