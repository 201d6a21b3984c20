package bench

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
)

// blockWeights is a block and the weights it was made from.
type blockWeights struct {
	block *mla.Block
	inner
	qa, qb, kva, o           decoder // qa is nil without a low rank
	qGamma                   []float32
	qaBias, kvaBias, outBias []float32
}

// block makes the block of a row once, with FP8 weights if it has to make them.
func (l *Lab) block(s Spec) (*blockWeights, error) {
	if w := l.blocks[s.source()]; w != nil {
		return w, nil
	}
	w, cfg, weights, err := l.blockOf(s)
	if err != nil {
		return nil, err
	}
	if w.block, err = mla.NewBlock(cfg, weights); err != nil {
		return nil, err
	}
	l.blocks[s.source()] = w
	return w, nil
}

// blockOf is the weights of a row's block, for the oracle and for the library.
func (l *Lab) blockOf(s Spec) (*blockWeights, mla.BlockConfig, mla.BlockWeights, error) {
	if of := s.Weights; of != nil {
		b := of.Block
		w := &blockWeights{
			inner: of.inner(), qb: stored{b.QB}, kva: stored{b.KVA}, o: stored{b.O},
			qGamma: widened(b.QGamma), qaBias: widened(b.QABias), kvaBias: widened(b.KVABias), outBias: widened(b.OBias),
		}
		if of.Config.QLora > 0 {
			w.qa = stored{b.QA}
		}
		cfg := of.Config
		cfg.Core.Compute = s.Arithmetic
		return w, cfg, b, nil
	}
	m := s.Model
	core, weights, own, err := l.innerOf(s)
	if err != nil {
		return nil, mla.BlockConfig{}, mla.BlockWeights{}, err
	}
	r := rng(l.seed + 3)
	w := &blockWeights{inner: own}
	b := mla.BlockWeights{Core: weights}
	if m.QLora > 0 {
		w.qGamma = r.gamma(m.QLora)
		b.QGamma = mla.RowsF32(w.qGamma)
	}
	for i, one := range []struct {
		to  *decoder
		fp8 *fp8.Matrix
	}{{&w.qa, &b.QA}, {&w.qb, &b.QB}, {&w.kva, &b.KVA}, {&w.o, &b.O}} {
		size := m.projections()[i]
		if size[0] == 0 {
			continue
		}
		coded := r.codedMatrix(size[0], size[1])
		if *one.fp8, err = coded.fp8(); err != nil {
			return nil, mla.BlockConfig{}, mla.BlockWeights{}, err
		}
		*one.to = coded
	}
	return w, mla.BlockConfig{Core: core, Hidden: m.Hidden, QLora: m.QLora}, b, nil
}

// blockForward is a whole Block.Forward over a batch of sequences.
type blockForward struct {
	store
	w                  *blockWeights
	ws                 *mla.Workspace
	hidden, out, freqs []float32
	tamper             func([]float32)
}

func (l *Lab) openBlock(s Spec) (Workload, error) {
	w, err := l.block(s)
	if err != nil {
		return nil, err
	}
	width, _, err := s.dims()
	if err != nil {
		return nil, err
	}
	f := &blockForward{store: store{spec: s, width: width, rng: rng(l.seed + 4)}, w: w, tamper: l.tamper}
	if f.freqs, err = w.freqs(s.Ctx); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.hidden = f.arena.floats(s.data(f.rng.normals(s.tokens()*s.Model.Hidden, 1)))
	f.out = placed[float32](&f.arena, s.tokens()*s.Model.Hidden)
	if err = f.open(s.Tokens); err == nil {
		f.batch.Freqs = mla.RowsF32(f.freqs)
		f.ws, err = mla.NewWorkspace(mla.Limits{Tokens: s.tokens(), Seqs: s.Batch, Context: s.Ctx}, l.pool(s.Threads), w.block)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func (f *blockForward) Run(ctx context.Context) error {
	return f.w.block.Forward(ctx, f.ws, mla.RowsF32(f.out), mla.RowsF32(f.hidden), f.batch)
}

func (f *blockForward) Memory() int64 { return f.w.block.Bytes() + f.ws.Bytes() + f.bytes() }

func (f *blockForward) Close() error {
	var err error
	if f.ws != nil {
		err = f.ws.Close()
	}
	return errors.Join(err, f.close())
}

// blockTokens is how many tokens of a block's answer are compared: every head of
// each, over all that it sees.
const blockTokens = 2

// Check compares sampled outputs of the first and the last token, and the cache rows
// of these, from their hidden states on.
func (f *blockForward) Check() (Checked, error) {
	if f.tamper != nil {
		f.tamper(f.out)
	}
	if err := f.commit(); err != nil {
		return Checked{}, err
	}
	var sum Checked
	last := f.spec.tokens() - 1
	for _, t := range []int{0, last}[:min(blockTokens, last+1)] {
		if err := f.check(t, &sum); err != nil {
			return sum, err
		}
	}
	return sum, f.rollback()
}

// check compares new token t.
func (f *blockForward) check(t int, sum *Checked) error {
	s, m, w := f.spec, f.spec.Model, f.w
	cfg := w.block.Config()
	seq, pos := s.place(t)
	x := oracle.Widen(f.hidden[t*m.Hidden:][:m.Hidden])
	call := &oracle.Call{
		Config: w.oracle(cfg.Core), Freqs: oracle.Widen(f.freqs),
		// The token alone, at its place: it sees what is before it.
		Q: w.query(cfg, x, pos), Offsets: []int{0, 1}, Cached: []int{pos}, Rows: [][]float64{nil},
	}
	kv := all(w.kva, m.Width(), x)
	if err := f.checkRow(call, kv, t, seq, pos); err != nil {
		return err
	}
	rows := make([]float32, (pos+1)*f.width)
	if err := f.batch.Seqs[seq].ReadRows(rows, 0, 0, pos+1); err != nil {
		return err
	}
	call.Rows[0] = oracle.Widen(rows)
	heads := make([]oracle.Row, m.Heads)
	for h := range heads {
		heads[h] = call.Row(0, h)
	}
	return f.checkOutput(t, oracle.Join(heads...), sum)
}

// query is the query of one hidden state.
func (w *blockWeights) query(cfg mla.BlockConfig, x []float64, pos int) []float64 {
	m := w.model
	if w.qa != nil {
		norm := oracle.Config{Gamma: oracle.Widen(w.qGamma), Epsilon: float64(cfg.QEpsilon)}
		x = norm.Norm(plus(all(w.qa, m.QLora, x), w.qaBias))
	}
	q := all(w.qb, m.Heads*(m.Nope+m.Rope), x)
	f := float64(cfg.QScale)
	if cfg.QBeta != 0 {
		f *= 1 + float64(cfg.QBeta)*math.Log(1+math.Floor(float64(pos)/float64(cfg.QContext)))
	}
	for i := range q {
		q[i] *= f
	}
	return q
}

// all is the products of x with the first n rows of w.
func all(w decoder, n int, x []float64) []float64 {
	y := make([]float64, n)
	for i := range y {
		y[i] = oracle.Product(x, w.row(i), 1, 1, len(x))[0]
	}
	return y
}

// plus adds a bias, which may be empty.
func plus(x []float64, bias []float32) []float64 {
	for i, b := range bias {
		x[i] += float64(b)
	}
	return x
}

// checkRow compares the cache row of new token t with what kv, before its bias,
// should have become.
func (f *blockForward) checkRow(c *oracle.Call, kv []float64, t, seq, pos int) error {
	want := c.CacheRow(plus(kv, f.w.kvaBias), pos)
	rel, abs := storedError(f.spec.KV, largest(want))
	if f.spec.Arithmetic == mla.ComputeBF16 && f.spec.Weights != nil { // which may not be bf16, or of groups that are folded
		abs += pairBound * largest(want)
	}
	for i, x := range f.fetch()(seq, pos) {
		if !(math.Abs(x-want[i]) <= rel*math.Abs(want[i])+abs) {
			return fmt.Errorf("%w: %v: cache row of token %d, value %d is %v, want %v rounded to %v",
				ErrWrong, f.spec, t, i, x, want[i], f.spec.KV)
		}
	}
	return nil
}

// checkOutput compares every 31st output of token t, and the last, with o_proj of its
// heads' outputs.
func (f *blockForward) checkOutput(t int, heads oracle.Row, sum *Checked) error {
	e := f.spec.Model.Hidden
	columns := []int{e - 1}
	for j := t % checkedColumn; j < e-1; j += checkedColumn {
		columns = append(columns, j)
	}
	outputs := make([]oracle.Row, len(columns))
	for n, j := range columns {
		outputs[n] = heads.Product(f.w.o.row(j), 1)
		if len(f.w.outBias) > 0 {
			outputs[n] = outputs[n].Plus([]float64{float64(f.w.outBias[j])})
		}
	}
	want := oracle.Join(outputs...)
	bound := f.spec.bound(want.Size(), want.LayerBound())
	sum.Rows++
	for n, j := range columns {
		got := float64(f.out[t*e+j])
		diff := math.Abs(got - want.Out[n])
		sum.MaxErr = math.Max(sum.MaxErr, diff/want.Largest())
		if !(diff <= bound) { // NaN is wrong, too
			return fmt.Errorf("%w: %v: out[%d, %d] is %v, want %v within %.2g", ErrWrong, f.spec, t, j, got, want.Out[n], bound)
		}
	}
	return nil
}
