package mla

import (
	"context"
	"fmt"
	"sort"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/forms"
	"github.com/lamina-ml/lamina/internal/workpool"
)

// blockTokens are the tokens of an item of the stages between products.
const blockTokens = 8

// Forward computes the block for a ragged batch of new tokens, in a workspace that it fits in:
//
//	hidden [T, E]  f32, bf16 or f16; not modified
//	out    [T, E]  written in full, rounded once from float32; f32, bf16 or f16;
//	               must not overlap an input, LSE or MaxLogit
//
// It is three products, Layer.Forward on their results, and one more product, all of
// them in the compute of the core; between them everything is float32. b is the
// core's batch, and all that Layer.Forward promises holds here: new rows go to their
// reserved slots and nothing is committed; after an error or a cancellation out and the
// reserved slots hold anything, and lengths and committed rows are what they were; the
// bits are the same for any number of workers, any batch, page size and Limits.Buffer,
// and in one form for any cut of a prompt into calls; with T = 0 nothing is touched;
// nothing is allocated in steady state.
//
// Errors: those of Layer.Forward, and all that are found before the first product
// are found before anything is written.
func (b *Block) Forward(ctx context.Context, w *Workspace, out, hidden Rows, batch Batch) error {
	if err := b.enter(); err != nil {
		return err
	}
	defer b.leave()
	if err := b.core.enter(); err != nil {
		return err
	}
	defer b.core.w.release()
	f, err := b.frame()
	if err != nil {
		return err
	}
	if err := w.enter(f); err != nil {
		return err
	}
	defer w.end()
	defer func() { w.stage = blockStage{} }()
	ctx = ctxOr(ctx)
	r, c := &w.run, &b.cfg
	r.cfg, r.kind, r.batch, r.hidden, r.blockOut = &c.Core, wholeLayer, batch, hidden, out
	t, err := w.blockTokens(c)
	if err != nil {
		return err
	}
	r.q = RowsF32(w.q[:t*c.Core.Heads*(c.Core.Nope+c.Core.Rope)])
	r.kv = RowsF32(w.kv[:t*c.Core.Width()])
	r.out = RowsF32(w.o[:t*c.Core.Heads*c.Core.V])
	if err := w.begin(ctx, &b.core.engine); err != nil || t == 0 {
		return err
	}
	if err := b.project(ctx, w); err != nil {
		return poolError(err)
	}
	if err := b.core.attend(ctx, w); err != nil {
		return poolError(err)
	}
	return poolError(b.output(ctx, w))
}

// blockTokens is the number of new tokens of the call, whose batch and hidden states are tested.
func (w *Workspace) blockTokens(c *BlockConfig) (int, error) {
	if err := w.checkOffsets(); err != nil {
		return 0, err
	}
	r := &w.run
	for _, s := range [...]struct {
		name string
		got  int
	}{{"hidden", r.hidden.Len()}, {"out", r.blockOut.Len()}} {
		if want := r.tokens * c.Hidden; s.got != want {
			return 0, fmt.Errorf("%w: %s has %d values, want T*E = %d*%d = %d", ErrShape, s.name, s.got, r.tokens, c.Hidden, want)
		}
	}
	return r.tokens, nil
}

// mul is y = x . w^T for all new tokens.
func (b *Block) mul(ctx context.Context, w *Workspace, p *projection, y []float32, x Rows) error {
	return p.w.Mul(ctx, w.pool, y, x, fp8.Shape{M: w.run.tokens}, b.cfg.Core.product(p.group))
}

// project makes the core's queries and rows of the hidden states.
func (b *Block) project(ctx context.Context, w *Workspace) error {
	r := &w.run
	x := r.hidden
	if b.qa.w != nil {
		low := w.o[:r.tokens*b.cfg.QLora]
		if err := b.mul(ctx, w, &b.qa, low, x); err != nil {
			return err
		}
		x = RowsF32(low)
	}
	if err := b.mul(ctx, w, &b.kva, r.kv.F32(), r.hidden); err != nil {
		return err
	}
	stage := &w.stage
	*stage = blockStage{b, w}
	if b.qa.w != nil || b.kva.bias != nil {
		if err := stage.run(ctx, (*lowStage)(stage)); err != nil {
			return err
		}
	}
	if err := b.mul(ctx, w, &b.qb, r.q.F32(), x); err != nil {
		return err
	}
	if b.cfg.QScale == 1 && b.cfg.QBeta == 0 {
		return nil
	}
	return stage.run(ctx, (*queryScaleStage)(stage))
}

// output is o_proj of what the core gave.
func (b *Block) output(ctx context.Context, w *Workspace) error {
	r := &w.run
	y := r.blockOut.F32()
	if y == nil {
		y = w.q[:r.tokens*b.cfg.Hidden]
	}
	if err := b.mul(ctx, w, &b.o, y, r.out); err != nil {
		return err
	}
	if b.o.bias == nil && r.blockOut.F32() != nil {
		return nil
	}
	stage := &w.stage
	*stage = blockStage{b, w}
	return stage.run(ctx, (*outStage)(stage))
}

// blockStage is a stage between products, whose items are blockTokens tokens.
type blockStage struct {
	block *Block
	w     *Workspace
}

func (s *blockStage) run(ctx context.Context, t workpool.Task) error {
	return s.w.pool.Run(ctx, (s.w.run.tokens+blockTokens-1)/blockTokens, t)
}

// tokens are the tokens [from, to) of an item.
func (s *blockStage) tokens(item int) (from, to int) {
	return item * blockTokens, min((item+1)*blockTokens, s.w.run.tokens)
}

// lowStage adds the biases of the first projections and norms the low-rank query.
type lowStage blockStage

func (q *lowStage) Do(_, item int) error {
	s := (*blockStage)(q)
	b, w := s.block, s.w
	width, a := b.cfg.Core.Width(), b.cfg.QLora
	from, to := s.tokens(item)
	for t := from; t < to; t++ {
		addTo(w.kv[t*width:(t+1)*width], b.kva.bias)
		if b.qa.w == nil {
			continue
		}
		x := w.o[t*a : (t+1)*a]
		addTo(x, b.qa.bias)
		round := forms.RoundNone
		if b.cfg.Core.NormRounding == NormAsGamma {
			round = b.qRound
		}
		round.Norm(x, b.qGamma, b.cfg.QEpsilon)
	}
	return nil
}

// queryScaleStage multiplies the queries by their factors, one rounding each.
type queryScaleStage blockStage

func (q *queryScaleStage) Do(_, item int) error {
	s := (*blockStage)(q)
	c := &s.block.cfg
	row := c.Core.Heads * (c.Core.Nope + c.Core.Rope)
	from, to := s.tokens(item)
	for t := from; t < to; t++ {
		x := s.w.q[t*row : (t+1)*row]
		for _, f := range [...]float32{c.QScale, c.positionScale(s.w.position(t))} {
			if f != 1 {
				forms.RoundNone.Times(x, f)
			}
		}
	}
	return nil
}

// position is the absolute position of new token t.
func (w *Workspace) position(t int) int {
	seqs := w.run.call.Seqs
	i := sort.Search(len(seqs), func(i int) bool { return seqs[i].Token+seqs[i].Tokens > t })
	return seqs[i].Pos + t - seqs[i].Token
}

// outStage adds the bias of o_proj and rounds to the type of the output.
type outStage blockStage

func (q *outStage) Do(_, item int) error {
	s := (*blockStage)(q)
	b, w := s.block, s.w
	e, out := b.cfg.Hidden, w.run.blockOut
	from, to := s.tokens(item)
	if y := out.F32(); y != nil {
		for t := from; t < to; t++ {
			addTo(y[t*e:(t+1)*e], b.o.bias)
		}
		return nil
	}
	for t := from; t < to; t++ {
		y := w.q[t*e : (t+1)*e]
		addTo(y, b.o.bias)
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
