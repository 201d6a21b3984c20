package mla

import (
	"context"
	"fmt"
	"math"
	"runtime"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/internal/workpool"
)

// BlockPlan owns the workspace of one Forward of a block at a time. Many plans
// may share a Block, a Pool and a cache. Block.Plan makes one: a zero BlockPlan
// counts as closed.
type BlockPlan struct {
	block *Block
	plan  *Plan // of the core; its state is that of both
	mem   *mem.Block

	// For each new token, in float32. What is dead when the next is made shares
	// its memory: the low-rank query with the core's output, and the query with an
	// output that is not float32.
	q  []float32 // [T][max(H*(N+P), E)]: queries, then rows of the output
	kv []float32 // [T][R+P]
	o  []float32 // [T][max(A, H*V)]: low-rank queries, then outputs of the core
}

// Plan sizes and allocates the workspace for batches within lim, to be run on
// pool (nil: inline, on the caller's goroutine): that of a core's Plan, and about
// 4*(H*(N+P) + R+P + H*V) bytes for each of lim.Tokens. Errors: ErrConfig,
// ErrClosed, and the system's when there is no memory.
func (b *Block) Plan(lim Limits, pool *Pool) (*BlockPlan, error) {
	if err := b.enter(); err != nil {
		return nil, err
	}
	defer b.leave()
	p := &BlockPlan{block: b}
	var err error
	if p.plan, err = b.core.Plan(lim, pool); err != nil {
		return nil, err
	}
	if err := p.allocate(p.plan.lim.Tokens); err != nil {
		p.plan.Close()
		return nil, err
	}
	return p, nil
}

// allocate makes the workspace for so many tokens.
func (p *BlockPlan) allocate(tokens int) error {
	c := &p.block.cfg
	q := max(c.Core.Heads*(c.Core.Nope+c.Core.Rope), c.Hidden)
	o := max(c.QLora, c.Core.Heads*c.Core.V)
	if row := q + o + c.Core.Width(); row > math.MaxInt/8/tokens {
		return fmt.Errorf("%w: the workspace would be %d tokens of %d floats", ErrConfig, tokens, row)
	}
	cut := func(from *cutter) {
		p.q = from.cut(tokens * q)
		p.kv = from.cut(tokens * c.Core.Width())
		p.o = from.cut(tokens * o)
	}
	var size cutter
	cut(&size)
	var err error
	if p.mem, err = mem.Alloc(size.need * 4); err != nil {
		return fmt.Errorf("mla: a workspace of %d bytes: %w", size.need*4, err)
	}
	p.mem.Huge()
	// A net for a caller who drops the plan: its workspace is off the heap.
	runtime.AddCleanup(p, func(b *mem.Block) { b.Free() }, p.mem)
	cut(&cutter{left: mem.Cast[float32](p.mem.Bytes())})
	return nil
}

// Bytes is the memory that the plan's workspace holds.
func (p *BlockPlan) Bytes() int64 {
	if !p.made() {
		return 0
	}
	return p.plan.Bytes() + int64(len(p.mem.Bytes()))
}

// made reports that Block.Plan made p.
func (p *BlockPlan) made() bool { return p != nil && p.mem != nil }

// Limits returns the checked limits, defaults filled in.
func (p *BlockPlan) Limits() Limits {
	if !p.made() {
		return Limits{}
	}
	return p.plan.Limits()
}

// Close frees the workspace. It is idempotent, and returns ErrBusy while a
// Forward runs; afterwards Forward returns ErrClosed.
func (p *BlockPlan) Close() error {
	if !p.made() {
		return errNoPlan
	}
	if err := p.plan.Close(); err != nil {
		return err
	}
	return p.mem.Free()
}

// Forward computes the block for a ragged batch of new tokens:
//
//	hidden [T, E]  f32, bf16 or f16; not modified
//	out    [T, E]  written in full, rounded once from float32; f32, bf16 or f16;
//	               must not overlap an input, LSE or MaxLogit
//
// It is three products, the core's Plan.Forward on their results, and one more
// product, all of them in the arithmetic of the core; between them everything is
// float32. b is the core's batch, and all
// that Plan.Forward promises holds here: new rows go to their reserved slots and
// nothing is committed; after an error or a cancellation out and the reserved
// slots hold anything, and lengths and committed rows are what they were; the
// bits are the same for any number of workers, any batch, page size and
// Limits.Buffer, and in one form for any cut of a prompt into calls; with T = 0
// nothing is touched; nothing is allocated in steady state.
//
// Errors: those of Plan.Forward, and all that are found before the first product
// are found before anything is written.
func (p *BlockPlan) Forward(ctx context.Context, out, hidden Rows, b Batch) error {
	if !p.made() {
		return errNoPlan
	}
	if err := p.block.enter(); err != nil {
		return err
	}
	defer p.block.leave()
	return p.plan.run(ctx, call{block: p, hidden: hidden, blockOut: out, Batch: b, kind: wholeLayer})
}

// ready tests the hidden states, once the number of tokens is known, and gives
// the core its arguments.
func (p *BlockPlan) ready() error {
	c, call := &p.block.cfg, &p.plan.call
	t := call.tokens
	for _, s := range [...]struct {
		name string
		got  int
	}{{"hidden", call.hidden.Len()}, {"out", call.blockOut.Len()}} {
		if want := t * c.Hidden; s.got != want {
			return fmt.Errorf("%w: %s has %d values, want T*E = %d*%d = %d", ErrShape, s.name, s.got, t, c.Hidden, want)
		}
	}
	call.q = RowsF32(p.q[:t*c.Core.Heads*(c.Core.Nope+c.Core.Rope)])
	call.kv = RowsF32(p.kv[:t*c.Core.Width()])
	call.out = RowsF32(p.o[:t*c.Core.Heads*c.Core.V])
	return nil
}

// mul is y = x . w^T for all new tokens.
func (p *BlockPlan) mul(ctx context.Context, w *projection, y []float32, x Rows) error {
	return w.w.Mul(ctx, p.plan.pool, y, x, fp8.Shape{M: p.plan.call.tokens}, p.plan.cfg.product(w.group))
}

// project makes the core's queries and rows of the hidden states.
func (p *BlockPlan) project(ctx context.Context) error {
	b, call := p.block, &p.plan.call
	x := call.hidden
	if b.qa.w != nil {
		low := p.o[:call.tokens*b.cfg.QLora]
		if err := p.mul(ctx, &b.qa, low, x); err != nil {
			return err
		}
		x = RowsF32(low)
	}
	if err := p.mul(ctx, &b.kva, call.kv.F32(), call.hidden); err != nil {
		return err
	}
	if b.qa.w != nil || b.kva.bias != nil {
		if err := p.byTokens(ctx, (*lowStage)(p)); err != nil {
			return err
		}
	}
	if err := p.mul(ctx, &b.qb, call.q.F32(), x); err != nil {
		return err
	}
	if b.cfg.QScale == 1 && b.cfg.QBeta == 0 {
		return nil
	}
	return p.byTokens(ctx, (*queryScaleStage)(p))
}

// output is o_proj of what the core gave.
func (p *BlockPlan) output(ctx context.Context) error {
	b, call := p.block, &p.plan.call
	y := call.blockOut.F32()
	if y == nil {
		y = p.q[:call.tokens*b.cfg.Hidden]
	}
	if err := p.mul(ctx, &b.o, y, call.out); err != nil {
		return err
	}
	if b.o.bias == nil && call.blockOut.F32() != nil {
		return nil
	}
	return p.byTokens(ctx, (*outStage)(p))
}

// byTokens runs a stage whose items are storeTokens tokens.
func (p *BlockPlan) byTokens(ctx context.Context, t workpool.Task) error {
	return p.plan.pool.Run(ctx, (p.plan.call.tokens+storeTokens-1)/storeTokens, t)
}

// tokensOf are the tokens [from, to) of an item.
func (p *BlockPlan) tokensOf(item int) (from, to int) {
	return item * storeTokens, min((item+1)*storeTokens, p.plan.call.tokens)
}

// lowStage adds the biases of the first projections and norms the low-rank query.
type lowStage BlockPlan

func (q *lowStage) Do(_, item int) error {
	p := (*BlockPlan)(q)
	b := p.block
	width, a := b.cfg.Core.Width(), b.cfg.QLora
	from, to := p.tokensOf(item)
	for t := from; t < to; t++ {
		addTo(p.kv[t*width:(t+1)*width], b.kva.bias)
		if b.qa.w == nil {
			continue
		}
		x := p.o[t*a : (t+1)*a]
		addTo(x, b.qa.bias)
		round := roundNone
		if b.cfg.Core.NormRounding == NormAsGamma {
			round = b.qRound
		}
		round.norm(x, b.qGamma, b.cfg.QEpsilon)
	}
	return nil
}

// queryScaleStage multiplies the queries by their factors, one rounding each.
type queryScaleStage BlockPlan

func (q *queryScaleStage) Do(_, item int) error {
	p := (*BlockPlan)(q)
	c := &p.block.cfg
	row := c.Core.Heads * (c.Core.Nope + c.Core.Rope)
	from, to := p.tokensOf(item)
	for t := from; t < to; t++ {
		x := p.q[t*row : (t+1)*row]
		for _, f := range [...]float32{c.QScale, c.positionScale(p.plan.position(t))} {
			if f != 1 {
				roundNone.times(x, f)
			}
		}
	}
	return nil
}

// outStage adds the bias of o_proj and rounds to the type of the output.
type outStage BlockPlan

func (q *outStage) Do(_, item int) error {
	p := (*BlockPlan)(q)
	e, out := p.block.cfg.Hidden, p.plan.call.blockOut
	from, to := p.tokensOf(item)
	if y := out.F32(); y != nil {
		for t := from; t < to; t++ {
			addTo(y[t*e:(t+1)*e], p.block.o.bias)
		}
		return nil
	}
	for t := from; t < to; t++ {
		y := p.q[t*e : (t+1)*e]
		addTo(y, p.block.o.bias)
		out.Narrow(t*e, y)
	}
	return nil
}

// addTo adds a bias, which may be nil, to a row.
func addTo(x, bias []float32) {
	for i, b := range bias {
		x[i] += b
	}
}
