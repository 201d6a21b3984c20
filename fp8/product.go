package fp8

import (
	"context"
	"fmt"

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

// nonTemporalBytes is the size from which on results are written past the caches: they would not
// find all of them there who read them next.
const nonTemporalBytes = 16 << 20

// Mul computes, for every matrix b of the batch, row i < M and output j < N,
//
//	y[b*StrideY + i*LdY + j] = sum over k < K of x[b*StrideX + i*LdX + k] * W[b][j][k]
//
// with the roundings of the package comment for how, the same bits for any pool; a nil pool works
// in the calling goroutine. Elements of y between rows are left alone. The work is split over
// matrices, groups of outputs and blocks of rows. In steady state nothing is allocated: memory for
// some rows of each worker, or for the codes of at most 256 rows of each matrix, stays with p for
// the next call.
//
// Errors: ErrShape (y may not overlap x) and ErrCompute, ErrScale for a Group with weights that
// have no scales, before anything is written; ErrClosed; the error of ctx, which is looked at
// between pieces of work and may be nil, and the pool's: what y holds is then undefined.
func (p *Packed) Mul(ctx context.Context, pool *Pool, y []float32, x Rows, s Shape, how Product) error {
	if err := p.Acquire(); err != nil {
		return err
	}
	defer p.Release()
	if err := p.takes(how); err != nil {
		return err
	}
	s, err := s.checked(p, y, x)
	if err != nil || s.M == 0 {
		return err
	}
	if how.Group > 0 {
		return p.mulQuantised(ctx, pool, task{p: p, y: y, x: x, s: s, how: how})
	}
	t := p.tasks.take()
	t.task = task{p: p, y: y, x: x, s: s, how: how}
	err = t.run(ctx, pool)
	*t = rowTask{acts: t.acts, memory: t.memory} // nothing of the caller's is kept
	p.tasks.give(t)
	return err
}

// takes is an error unless there is such a product with p.
func (p *Packed) takes(how Product) error {
	if how.Group != 0 && !p.Scaled() {
		return fmt.Errorf("%w: weights [%d, %d, %d] of %v have none, and quantised activations need them", ErrScale, p.batch, p.n, p.k, p.elem)
	}
	return how.check()
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
	p   *Packed
	y   []float32
	x   Rows
	s   Shape
	how Product
	grid
}

// rowTask is a product whose items ready the rows that they multiply.
type rowTask struct {
	task
	nonTemporal int            // 1: results may be written past the caches
	spec        ActivationSpec // of acts
	each        int            // what one takes of memory
	// Of each worker, who readies its own at its first item and finds it so in later calls.
	acts   []Activation
	memory []float32
}

func (t *rowTask) run(ctx context.Context, pool *Pool) error {
	p, workers := t.p, pool.Workers()
	var items int
	t.grid, items = computes[t.how.Compute].split(p, t.s.M, workers)
	if p.batch*t.s.M >= nonTemporalBytes/4/p.n {
		t.nonTemporal = 1
	}
	t.spec = ActivationSpec{Product: t.how, Rows: t.rows, K: p.k, only: p, elem: t.x.Kind()}
	t.each = t.spec.Floats()
	if cap(t.memory) < workers*t.each || cap(t.acts) < workers {
		t.acts = make([]Activation, workers)
	}
	t.acts, t.memory = t.acts[:workers], room(t.memory, workers*t.each)
	return pool.Run(ctx, items, t)
}

// Do computes one item.
func (t *rowTask) Do(worker, item int) error {
	p, a := t.p, &t.acts[worker]
	if a.spec != t.spec {
		if err := a.Init(t.spec, t.memory[worker*t.each:]); err != nil {
			return err
		}
	}
	b, i0, n0 := t.item(item)
	m, n1 := min(t.rows, t.s.M-i0), min(n0+t.panels*simd.Lanes, p.n)
	p.activate(a, t.x, b*t.s.StrideX+i0*t.s.LdX, t.s.LdX, m)
	p.mulPanels(a, 0, b, t.y[b*t.s.StrideY+i0*t.s.LdY+n0:], t.s.LdY, m, n0, n1, t.nonTemporal)
	a.x = Rows{}
	return nil
}

// room is n values in the memory of s if that is enough.
func room[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}
