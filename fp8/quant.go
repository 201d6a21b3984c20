package fp8

import (
	"context"

	"github.com/lamina-ml/lamina/simd"
)

// slabRows are the rows of each matrix whose codes a product holds at a time.
const slabRows = 4 * blockRows

// quantTask is a product with quantised activations, a slab of rows at a time: first its rows are
// quantised, then they are multiplied.
type quantTask struct {
	task
	i0, m  int  // the rows of the slab
	same   bool // all matrices read the same rows, which are quantised once
	act    Activation
	memory []float32 // its
	wide   []float32 // [worker][K]: a row of bf16 or f16 as float32
}

// The two steps of a quantTask.
type (
	quantising  quantTask
	multiplying quantTask
)

// mulQuantised is Mul for a Group.
func (p *Packed) mulQuantised(ctx context.Context, pool *Pool, of task) error {
	t := p.quants.take()
	t.task = of
	err := t.run(ctx, pool)
	*t = quantTask{memory: t.memory, wide: t.wide} // nothing of the caller's is kept
	p.quants.give(t)
	return err
}

func (t *quantTask) run(ctx context.Context, pool *Pool) error {
	p := t.p
	matrices := p.batch
	if t.same = t.s.StrideX == 0; t.same {
		matrices = 1
	}
	spec := ActivationSpec{Product: t.how, Rows: matrices * min(slabRows, t.s.M), K: p.k}
	t.memory = room(t.memory, spec.Floats())
	if err := t.act.Init(spec, t.memory); err != nil {
		return err
	}
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
	t.act.quantise(item, row)
	return nil
}

// Do computes one item of the product.
func (t *multiplying) Do(_, item int) error {
	p := t.p
	b, i0, n0 := t.item(item)
	m, n1 := min(t.rows, t.m-i0), min(n0+t.panels*simd.Lanes, p.n)
	row := b*t.m + i0
	if t.same {
		row = i0
	}
	y := t.y[b*t.s.StrideY+(t.i0+i0)*t.s.LdY+n0:]
	p.mulPanels(&t.act, row, b, y, t.s.LdY, m, n0, n1, 0)
	return nil
}
