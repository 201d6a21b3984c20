package bench

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
)

// forward is a whole Layer.Forward over a batch of sequences.
type forward struct {
	store
	w                 *layerWeights
	ws                *mla.Workspace
	q, kv, out, freqs []float32
	tamper            func([]float32)
}

func (l *Lab) openForward(s Spec) (Workload, error) {
	w, err := l.layer(s)
	if err != nil {
		return nil, err
	}
	width, _, err := s.dims()
	if err != nil {
		return nil, err
	}
	m, tokens := w.model, s.tokens()
	f := &forward{store: store{spec: s, width: width, rng: rng(l.seed + 1)}, w: w, tamper: l.tamper}
	f.q = f.arena.floats(s.data(f.rng.normals(tokens*m.Heads*(m.Nope+m.Rope), 1)))
	f.kv = f.rng.normals(tokens*width, 1)
	f.out = placed[float32](&f.arena, tokens*m.Heads*m.V)
	if f.freqs, err = w.freqs(s.Ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	if err = f.open(s.Tokens); err == nil {
		f.batch.Freqs = mla.RowsF32(f.freqs)
		f.ws, err = mla.NewWorkspace(mla.Limits{Tokens: tokens, Seqs: s.Batch, Context: s.Ctx}, l.pool(s.Threads), w.layer)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *forward) Run(ctx context.Context) error {
	return f.w.layer.Forward(ctx, f.ws, mla.RowsF32(f.out), mla.RowsF32(f.q), mla.RowsF32(f.kv), f.batch)
}

func (f *forward) Memory() int64 { return f.w.layer.Bytes() + f.ws.Bytes() + f.bytes() }

func (f *forward) Close() error {
	var err error
	if f.ws != nil {
		err = f.ws.Close()
	}
	return errors.Join(err, f.close())
}

// Check compares sampled rows within the bound of a whole layer, and the cache
// rows of their tokens.
func (f *forward) Check() (Checked, error) {
	if f.tamper != nil {
		f.tamper(f.out)
	}
	if err := f.commit(); err != nil {
		return Checked{}, err
	}
	call := f.call()
	m := f.w.model
	var sum Checked
	for _, row := range sample(f.spec.tokens() * m.Heads) {
		t, h := row/m.Heads, row%m.Heads
		want := call.Row(t, h)
		if err := sum.row(f.spec, t, h, f.out[row*m.V:][:m.V], want, f.spec.bound(want.Size(), want.LayerBound())); err != nil {
			return sum, err
		}
		if err := f.checkStored(call, t); err != nil {
			return sum, err
		}
	}
	return sum, f.rollback()
}

// call is the same call for the oracle.
func (f *forward) call() *oracle.Call {
	s := f.spec
	c := &oracle.Call{
		Config: f.w.oracle(f.w.layer.Config()),
		Q:      oracle.Widen(f.q),
		Freqs:  oracle.Widen(f.freqs),
		Fetch:  f.fetch(),
	}
	c.Offsets = []int{0}
	for b := range s.Batch {
		c.Offsets = append(c.Offsets, (b+1)*s.Tokens)
		c.Cached = append(c.Cached, s.length(b)-s.Tokens)
	}
	return c
}

// checkStored compares the cache row of new token t, which every head used,
// with what should have been rounded to it.
func (f *forward) checkStored(c *oracle.Call, t int) error {
	seq, pos := f.spec.place(t)
	want := c.CacheRow(oracle.Widen(f.kv[t*f.width:][:f.width]), pos)
	rel, abs := storedError(f.spec.KV, largest(want))
	for i, x := range c.Fetch(seq, pos) {
		if !(math.Abs(x-want[i]) <= rel*math.Abs(want[i])+abs) {
			return fmt.Errorf("%w: %v: cache row of token %d, value %d is %v, want %v rounded to %v",
				ErrWrong, f.spec, t, i, x, want[i], f.spec.KV)
		}
	}
	return nil
}
