package fp8

import (
	"context"
	"fmt"
	"runtime"

	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// Pool is a set of worker goroutines that products may share with anything else.
type Pool = workpool.Pool

// Shape says where the rows of a product lie. All numbers count elements.
type Shape struct {
	// M is the number of rows of x and y for each matrix of the batch; 0 is
	// allowed, and nothing is touched then.
	M int
	// LdX and LdY are the distances between two rows: at least K and N. 0 means
	// K and N.
	LdX, LdY int
	// StrideX and StrideY are the distances between the rows of two matrices of
	// the batch. With StrideX = 0 all read the same rows. The results must not
	// overlap: StrideY is at least (M-1)*LdY + N, or, if the results of the batch
	// lie side by side in one row, at least N with LdY at least
	// (Batch-1)*StrideY + N. 0 means M*LdY.
	StrideX, StrideY int
}

// How products are cut. None of it is in the bits.
const (
	// An item of work is at most so many rows by so many panels of weights.
	blockRows, blockPanels = 64, 8
	// The same for lifted rows. A worker holds those of an item, and few columns
	// of weights stay in its second-level cache.
	liftedRows, liftedPanels = 132, 192
	// liftedValues bounds the lifted activations of an item, long rows aside.
	liftedValues = 1 << 16
	// wideRows are the rows of bf16 or f16 that are widened at a time.
	wideRows = 32

	// MulLifted goes through blocks of outputs, whose codes stay in the
	// second-level cache for all rows; in a block through groups of rows, which
	// stay in the first level; a call of the kernel is some of a block for a
	// group. Both are made of whole register tiles of every instruction set.
	blockOutputs = 192
	groupRows    = 12
	// bypassBytes is the size from which on results are written past the caches:
	// they would not find all of them there who read them next.
	bypassBytes = 16 << 20
)

// Mul computes, for every matrix b of the batch, row i < M and output j < N,
//
//	y[b*StrideY + i*LdY + j] = sum over k < K of x[b*StrideX + i*LdX + k] * W[b][j][k]
//
// with the roundings of the package comment, the same bits for any pool; a nil
// pool works in the calling goroutine. Elements of y between rows are left alone.
// The work is split over matrices, groups of outputs and blocks of rows. In steady
// state nothing is allocated: memory for some rows of each worker stays with p for
// the next call.
//
// Errors: ErrShape (y may not overlap x), before anything is written; ErrClosed; the error of ctx, which
// is looked at between pieces of work and may be nil, and the pool's: what y holds
// is then undefined.
func (p *Packed) Mul(ctx context.Context, pool *Pool, y []float32, x Rows, s Shape) error {
	return p.mul(ctx, pool, y, x, s, false)
}

// mul is Mul, or MulBF16 if pairs is set.
func (p *Packed) mul(ctx context.Context, pool *Pool, y []float32, x Rows, s Shape, pairs bool) error {
	if err := p.Acquire(); err != nil {
		return err
	}
	defer p.Release()
	s, err := s.checked(p, y, x)
	if err != nil || s.M == 0 {
		return err
	}
	t := p.tasks.take()
	var items int
	t.p, t.y, t.x, t.s, t.pairs = p, y, x, s, pairs
	if p.batch*s.M >= bypassBytes/4/p.n {
		t.bypass = 1
	}
	switch {
	case pairs:
		t.grid, items = p.splitPairs(s.M, pool.Workers())
		switch {
		case !p.Folds():
			t.halves = room(t.halves, pool.Workers()*t.rows*p.k)
		case x.Kind() != ElemF32:
			t.lifted = room(t.lifted, pool.Workers()*t.rows*p.k)
		}
	case p.Lifts():
		t.grid, items = p.splitLifted(s.M, pool.Workers())
		t.lifted = room(t.lifted, pool.Workers()*t.rows*p.k)
	default:
		t.grid, items = p.split(s.M, pool.Workers())
	}
	err = pool.Run(ctx, items, t)
	*t = task{lifted: t.lifted, halves: t.halves} // nothing of the caller's is kept
	p.tasks.give(t)
	return err
}

// checked returns s with its defaults, or why it does not fit.
func (s Shape) checked(p *Packed, out []float32, in Rows) (Shape, error) {
	y, x := len(out), in.Len()
	if s.LdX == 0 {
		s.LdX = p.k
	}
	if s.LdY == 0 {
		s.LdY = p.n
	}
	if s.M < 0 || s.LdX < p.k || s.LdY < p.n || s.StrideX < 0 || s.StrideY < 0 {
		return s, fmt.Errorf("%w: Shape %+v for weights [%d, %d, %d], want M and strides >= 0, LdX >= %d, LdY >= %d",
			ErrShape, s, p.batch, p.n, p.k, p.k, p.n)
	}
	if s.M == 0 {
		return s, nil
	}
	if s.StrideY == 0 {
		var ok bool
		if s.StrideY, ok = product(s.M, s.LdY); !ok {
			return s, fmt.Errorf("%w: M*LdY = %d*%d is more than an int holds", ErrShape, s.M, s.LdY)
		}
	}
	if n, ok := span(p.batch, s.StrideX, s.M, s.LdX, p.k); !ok || x < n {
		return s, fmt.Errorf("%w: x has %d values, want (%d-1)*%d + (%d-1)*%d + %d for Batch, StrideX, M, LdX, K",
			ErrShape, x, p.batch, s.StrideX, s.M, s.LdX, p.k)
	}
	if n, ok := span(p.batch, s.StrideY, s.M, s.LdY, p.n); !ok || y < n {
		return s, fmt.Errorf("%w: y has %d values, want (%d-1)*%d + (%d-1)*%d + %d for Batch, StrideY, M, LdY, N",
			ErrShape, y, p.batch, s.StrideY, s.M, s.LdY, p.n)
	}
	if in.Overlaps(RowsF32(out)) {
		return s, fmt.Errorf("%w: y overlaps x", ErrShape)
	}
	// Both spans are known to fit an int.
	rows, side := (s.M-1)*s.LdY+p.n, (p.batch-1)*s.StrideY+p.n
	if p.batch > 1 && s.StrideY < rows && (s.StrideY < p.n || s.M > 1 && s.LdY < side) {
		return s, fmt.Errorf("%w: results overlap: StrideY is %d, want at least (M-1)*LdY + N = %d, or N = %d with LdY = %d at least (Batch-1)*StrideY + N = %d",
			ErrShape, s.StrideY, rows, p.n, s.LdY, side)
	}
	return s, nil
}

// span is (batch-1)*stride + (m-1)*ld + n, and whether an int holds it.
func span(batch, stride, m, ld, n int) (int, bool) {
	a, ok := product(batch-1, stride)
	b, ok2 := product(m-1, ld)
	total := a + b
	if !ok || !ok2 || total < 0 || total+n < 0 {
		return 0, false
	}
	return total + n, true
}

// task is a product under way.
type task struct {
	p *Packed
	y []float32
	x Rows
	s Shape
	grid
	pairs  bool      // in the second arithmetic
	lifted []float32 // [worker][rows][k]
	halves []uint16  // the same, of the second arithmetic
	bypass int       // 1: results bypass the caches
}

// grid cuts a product into items of work: blocks of rows of groups of panels of
// matrices.
type grid struct {
	rows   int // in an item
	panels int // in an item
	across int // items across a matrix
	down   int // items down the rows
}

// split cuts a product of m rows and returns the number of items.
func (p *Packed) split(m, workers int) (g grid, items int) {
	return p.cutUp(m, workers, blockRows, blockPanels)
}

// splitLifted is split for rows that are lifted: whole groups of rows.
func (p *Packed) splitLifted(m, workers int) (g grid, items int) {
	rows := liftedValues / p.k / groupRows * groupRows
	return p.cutUp(m, workers, max(groupRows, min(liftedRows, rows)), liftedPanels)
}

// cutUp makes items of some rows by at most so many panels, as large as leaves every
// worker a few.
func (p *Packed) cutUp(m, workers, rows, panels int) (g grid, items int) {
	g.rows, g.down = rows, ceilDiv(m, rows)
	all := p.batch * p.panels * g.down
	g.across = ceilDiv(p.panels, max(1, min(panels, all/(4*workers))))
	g.panels = ceilDiv(p.panels, g.across)
	g.across = ceilDiv(p.panels, g.panels)
	return g, p.batch * g.across * g.down
}

// item is the matrix, the first row and the first output of an item.
func (g grid) item(i int) (b, i0, n0 int) {
	i, block := i/g.down, i%g.down
	b, group := i/g.across, i%g.across
	return b, block * g.rows, group * g.panels * simd.Lanes
}

// Do computes one item.
func (t *task) Do(worker, item int) error {
	p := t.p
	b, i0, n0 := t.item(item)
	m, n1 := min(t.rows, t.s.M-i0), min(n0+t.panels*simd.Lanes, p.n)
	y := t.y[b*t.s.StrideY+i0*t.s.LdY+n0:]
	at := b*t.s.StrideX + i0*t.s.LdX
	if t.pairs {
		t.doPairs(worker, b, y, at, m, n0, n1)
		return nil
	}
	if p.Lifts() {
		if lifted := t.lifted[worker*t.rows*p.k:][:m*p.k]; t.lift(lifted, at, m) {
			p.mulLifted(b, y, t.s.LdY, lifted, p.k, m, n0, n1, t.bypass)
			return nil
		}
	}
	if t.x.Kind() == ElemF32 {
		p.MulPanels(b, y, t.s.LdY, t.x.F32()[at:], t.s.LdX, m, n0, n1)
		return nil
	}
	for i := 0; i < m; i += wideRows {
		p.mulWidened(b, y[i*t.s.LdY:], t.s.LdY, &t.x, at+i*t.s.LdX, t.s.LdX, min(wideRows, m-i), n0, n1)
	}
	return nil
}

// MulPanels computes the outputs n0 <= j < n1 of matrix b, n0 a multiple of 16, for
// m rows:
//
//	y[i*ldy + j-n0] = sum over k < K of x[i*ldx + k] * W[b][j][k]
//
// It is the inner part of Mul for callers that split work themselves: they hold a
// lease (Acquire) and keep b, n0, n1 and the slices in range. It does not allocate
// and may run in many goroutines.
func (p *Packed) MulPanels(b int, y []float32, ldy int, x []float32, ldx, m, n0, n1 int) {
	if m <= 0 {
		return
	}
	var wide [pieceK * simd.Lanes]float32
	for n := n0; n < n1; n += simd.Lanes {
		panel := panelOf{b: b, index: n / simd.Lanes, lanes: min(simd.Lanes, n1-n)}
		for k0 := 0; k0 < p.k; {
			k1 := p.cut(k0)
			p.part(panel, y[n-n0:], ldy, x[k0:], ldx, p.codes(&wide, panel, k0, k1), m, k0, k1)
			k0 = k1
		}
	}
	runtime.KeepAlive(p) // the weights are not memory that the collector sees
}

// mulWidened is MulPanels for at most 32 rows of bf16 or f16 from element at on:
// they are widened once for all panels.
func (p *Packed) mulWidened(b int, y []float32, ldy int, x *Rows, at, ldx, m, n0, n1 int) {
	var wide [pieceK * simd.Lanes]float32
	var rows [pieceK * wideRows]float32
	for k0 := 0; k0 < p.k; {
		k1 := p.cut(k0)
		for i := range m {
			x.v.widen(rows[i*pieceK:][:k1-k0], at+i*ldx+k0)
		}
		for n := n0; n < n1; n += simd.Lanes {
			panel := panelOf{b: b, index: n / simd.Lanes, lanes: min(simd.Lanes, n1-n)}
			p.part(panel, y[n-n0:], ldy, rows[:], pieceK, p.codes(&wide, panel, k0, k1), m, k0, k1)
		}
		k0 = k1
	}
	runtime.KeepAlive(p)
}

// panelOf names a panel of a matrix, and how many of its lanes are wanted.
type panelOf struct {
	b, index, lanes int
}

// cut is where the piece of k that begins at k0 ends.
func (p *Packed) cut(k0 int) int {
	k1 := min(k0+pieceK-k0%pieceK, p.k)
	if p.scaling == scaled {
		k1 = min(k1, k0+(p.step-k0%p.step))
	}
	return k1
}

// codes are the values of a piece of a panel, without scales: widened into buf, or
// where they lie if they are float32.
func (p *Packed) codes(buf *[pieceK * simd.Lanes]float32, panel panelOf, k0, k1 int) []float32 {
	at, n := p.codesAt(panel.b, panel.index)+k0*simd.Lanes, (k1-k0)*simd.Lanes
	if p.elem == ElemF32 {
		return p.w.floats[at : at+n]
	}
	if p.words {
		widenWords(buf[:n], p.w.codes[at:at+n])
	} else {
		p.w.widen(buf[:n], at)
	}
	return buf[:n]
}

// part adds the piece k0 .. k1 of a panel to y. x begins at k0; w are the codes.
func (p *Packed) part(panel panelOf, y []float32, ldy int, x []float32, ldx int, w []float32, m, k0, k1 int) {
	lanes, k := panel.lanes, k1-k0
	most, scale := simd.Blocks().CallFMA, []float32(nil)
	switch p.scaling {
	case scaled:
		scale = p.scales[p.scalesAt(panel.b, panel.index, p.scaleGroup(k0)):][:lanes]
		if k0 == 0 {
			for i := range m {
				clear(y[i*ldy:][:lanes])
			}
		}
	case folded:
		scale = p.scales[p.scalesAt(panel.b, panel.index, p.scaleGroup(k0)):][:k*simd.Lanes]
		most /= 2 // of the kernels that multiply an activation before each multiply-add
	}
	rows := callRows(m, most, lanes, k)
	for i := 0; i < m; i += rows {
		y, x, rows := y[i*ldy:], x[i*ldx:], min(rows, m-i)
		switch {
		case p.scaling == scaled:
			simd.PartScale(y, ldy, x, ldx, w, 0, scale, rows, lanes, k)
		case p.scaling == folded && k0 == 0:
			simd.PartFoldSet(y, ldy, x, ldx, w, 0, scale, 0, rows, lanes, k)
		case p.scaling == folded:
			simd.PartFoldAdd(y, ldy, x, ldx, w, 0, scale, 0, rows, lanes, k)
		case k0 == 0:
			simd.PartSet(y, ldy, x, ldx, w, 0, rows, lanes, k)
		default:
			simd.PartAdd(y, ldy, x, ldx, w, 0, rows, lanes, k)
		}
	}
}

// callRows is how many of m rows a call takes that has no more than most multiply-adds,
// if one row has not, for outputs in whole panels and a piece of k. The calls for all rows
// are about as large as each other.
func callRows(m, most, outputs, k int) int {
	fit := max(1, most/(ceilDiv(outputs, simd.Lanes)*simd.Lanes*k))
	return ceilDiv(m, max(1, ceilDiv(m, fit)))
}
