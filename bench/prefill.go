package bench

import (
	"context"
	"errors"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// prefill is attention on keys and values that lie ready for every head, as the
// expanded form computes them: causal, every sequence a prompt. All rows are
// float32, or bf16 in the second arithmetic.
type prefill struct {
	arena    arena
	spec     Spec
	width    int // d_qk
	core     *mla.Core
	ws       *mla.Workspace
	q, out   mla.Rows // [T][h][d_qk], [T][h][d_v]
	k, v     mla.Rows // [h][S][d], rows ldK and ldV apart
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
	p.ldK, p.ldV = s.oddLines(p.width), s.oddLines(m.V)
	p.q = p.arena.rows(s, r.normals(keys*m.Heads*p.width, 1)) // scores of variance 1, with the scale
	p.k = p.arena.rows(s, r.normals(m.Heads*keys*p.ldK, 1))
	p.v = p.arena.rows(s, r.normals(m.Heads*keys*p.ldV, 1))
	p.out = p.arena.rows(s, make([]float32, keys*m.Heads*m.V))
	p.args = mla.PrefillArgs{LdK: p.ldK, StrideK: keys * p.ldK, LdV: p.ldV, StrideV: keys * p.ldV}
	for seq := range s.Batch + 1 {
		p.args.Offsets = append(p.args.Offsets, uint32(seq*s.Tokens))
	}
	p.args.Keys = p.args.Offsets
	err := p.arena.err
	if err == nil {
		p.core, err = mla.NewCore(
			mla.CoreConfig{Heads: m.Heads, Width: p.width, V: m.V, Scale: p.scale, Compute: s.Arithmetic},
		)
	}
	if err == nil {
		p.ws, err = mla.NewWorkspace(mla.Limits{Tokens: keys, Seqs: s.Batch, Context: s.Ctx}, l.pool(s.Threads), p.core)
	}
	if err != nil {
		return nil, errors.Join(err, p.arena.free())
	}
	return p, nil
}

// oddLines is n values of the arithmetic's type rounded up to an odd number of
// cache lines: rows so far apart do not crowd into a few sets of a cache.
func (s Spec) oddLines(n int) int {
	line := 64 / s.valueBytes()
	return (ceil(n, line) | 1) * line
}

func (p *prefill) Run(ctx context.Context) error {
	return p.core.Prefill(ctx, p.ws, p.out, p.q, p.k, p.v, &p.args)
}

// Check compares sampled rows within the bound of attention alone.
func (p *prefill) Check() (Checked, error) {
	m, keys := p.spec.Model, p.spec.tokens()
	out := part(p.out, 0, p.out.Len())
	if p.tamper != nil {
		p.tamper(out)
	}
	var sum Checked
	for _, row := range sample(keys * m.Heads) {
		t, h := row/m.Heads, row%m.Heads
		seq, pos := p.spec.place(t)
		rows := func(x mla.Rows, ld, n int) func(int) []float64 {
			return func(j int) []float64 {
				return oracle.Widen(part(x, (h*keys+seq*p.spec.Tokens+j)*ld, n))
			}
		}
		q := oracle.Widen(part(p.q, row*p.width, p.width))
		want := oracle.AttendApart(q, rows(p.k, p.ldK, p.width), rows(p.v, p.ldV, m.V),
			oracle.Mask{}.Visible(pos, p.spec.Ctx), float64(p.scale), oracle.NoSink, m.V)
		if err := sum.row(p.spec, t, h, out[row*m.V:][:m.V], want, p.spec.bound(want.Size(), want.CoreBound())); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

// part is n values of x from element at on.
func part(x mla.Rows, at, n int) []float32 {
	y := make([]float32, n)
	x.Widen(y, at, n)
	return y
}

func (p *prefill) Memory() int64 {
	return p.ws.Bytes() + int64(p.spec.valueBytes())*int64(p.k.Len()+p.v.Len())
}
func (p *prefill) RowBytes() int { return 0 }
func (p *prefill) Close() error  { return errors.Join(p.ws.Close(), p.arena.free()) }
