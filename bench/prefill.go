package bench

import (
	"context"
	"errors"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// prefill is attention on keys and values that lie ready for every head, as the
// expanded form computes them: causal, every sequence a prompt.
type prefill struct {
	spec     Spec
	width    int // d_qk
	core     *mla.Core
	q, out   []float32 // [T][h][d_qk], [T][h][d_v]
	k, v     []float32 // [h][S][d], rows ldK and ldV apart
	ldK, ldV int
	args     mla.PrefillArgs
	scale    float32
	tamper   func([]float32)
}

func (l *Lab) openPrefill(s Spec) (Workload, error) {
	if s.KV != kvpaged.F32 || s.Ctx != s.Tokens {
		return nil, errors.New("ready keys and values are those of the prompt, in f32")
	}
	m, r := s.Model, rng(l.seed+1)
	keys := s.tokens()
	p := &prefill{spec: s, width: m.Nope + m.Rope, scale: m.config().Scale, tamper: l.tamper}
	p.ldK, p.ldV = oddLines(p.width), oddLines(m.V)
	p.q = s.data(r.normals(keys*m.Heads*p.width, 1)) // scores of variance 1, with the scale
	p.k = s.data(r.normals(m.Heads*keys*p.ldK, 1))
	p.v = s.data(r.normals(m.Heads*keys*p.ldV, 1))
	p.out = make([]float32, keys*m.Heads*m.V)
	p.args = mla.PrefillArgs{LdK: p.ldK, StrideK: keys * p.ldK, LdV: p.ldV, StrideV: keys * p.ldV}
	for seq := range s.Batch + 1 {
		p.args.Offsets = append(p.args.Offsets, uint32(seq*s.Tokens))
	}
	p.args.Keys = p.args.Offsets
	var err error
	p.core, err = mla.NewCore(
		mla.CoreConfig{Heads: m.Heads, Width: p.width, V: m.V, Scale: p.scale, Arithmetic: s.Arithmetic},
		mla.Limits{Tokens: keys, Seqs: s.Batch, Context: s.Ctx}, l.pool(s.Threads))
	if err != nil {
		return nil, err
	}
	return p, nil
}

// oddLines is n values rounded up to an odd number of cache lines: rows so far
// apart do not crowd into a few sets of a cache.
func oddLines(n int) int {
	const line = 16 // values
	return (ceil(n, line) | 1) * line
}

func (p *prefill) Run(ctx context.Context) error {
	return p.core.Prefill(ctx, mla.RowsF32(p.out), mla.RowsF32(p.q), mla.RowsF32(p.k), mla.RowsF32(p.v), &p.args)
}

// Check compares sampled rows within the bound of attention alone.
func (p *prefill) Check() (Checked, error) {
	if p.tamper != nil {
		p.tamper(p.out)
	}
	var sum Checked
	m, keys := p.spec.Model, p.spec.tokens()
	for _, row := range sample(keys * m.Heads) {
		t, h := row/m.Heads, row%m.Heads
		seq, pos := p.spec.place(t)
		rows := func(x []float32, ld, n int) func(int) []float64 {
			return func(j int) []float64 { return oracle.Widen(x[(h*keys+seq*p.spec.Tokens+j)*ld:][:n]) }
		}
		want := oracle.AttendApart(oracle.Widen(p.q[row*p.width:][:p.width]), rows(p.k, p.ldK, p.width), rows(p.v, p.ldV, m.V),
			oracle.Mask{}.Visible(pos, p.spec.Ctx), float64(p.scale), oracle.NoSink, m.V)
		if err := sum.row(p.spec, t, h, p.out[row*m.V:][:m.V], want, p.spec.bound(want.Largest(), want.CoreBound())); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

func (p *prefill) Memory() int64 { return p.core.Bytes() + 4*int64(len(p.k)+len(p.v)) }
func (p *prefill) RowBytes() int { return 0 }
func (p *prefill) Close() error  { return p.core.Close() }
