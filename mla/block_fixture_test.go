package mla_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
)

// blockWorld is a world whose core lies in an attention block.
type blockWorld struct {
	world
	hidden, lora   int
	qa, qb, kva, o weightKind
	bias           bool
	qScale, beta   float32
	context        int
	pairBound      float64 // in the place of pairBlock, unless 0
}

// smallBlock is a block of odd sizes; every projection is stored in another way.
func smallBlock() blockWorld {
	return blockWorld{
		world: small(), hidden: 52, lora: 27,
		qa: weightKind{fp8.ElemE4M3, 20, 16}, qb: weightKind{elem: fp8.ElemBF16},
		kva: weightKind{fp8.ElemE4M3, 128, 128}, o: weightKind{fp8.ElemE5M2, 24, 40},
	}
}

// madeBlock is a blockWorld come to life.
type madeBlock struct {
	*made
	blk    blockWorld
	hidden int
	block  *mla.Block
	config mla.BlockConfig
	w      mla.BlockWeights
	states []float32 // [T][E], as the call sees them
	worst  float64   // error that check saw
}

func (w blockWorld) make(t testing.TB) *madeBlock {
	t.Helper()
	m := &madeBlock{made: w.world.make(t), blk: w, hidden: w.hidden}
	r := rand.New(rand.NewPCG(w.seed, 77))
	c := w.cfg
	in := w.hidden
	if w.lora > 0 {
		in = w.lora
		m.w.QA = w.qa.matrix(t, w.lora, w.hidden, floats(r, w.lora*w.hidden, 1/math.Sqrt(float64(w.hidden))))
		gamma := rounded(w.gamma, floats(r, w.lora, 0.3))
		for i := range gamma {
			gamma[i] = rounded(w.gamma, []float32{1 + gamma[i]})[0]
		}
		m.w.QGamma = rowsOf(w.gamma, gamma)
	}
	of := func(k weightKind, rows, cols int) fp8.Matrix {
		return k.matrix(t, rows, cols, floats(r, rows*cols, 1/math.Sqrt(float64(cols))))
	}
	m.w.QB = of(w.qb, c.Heads*(c.Nope+c.Rope), in)
	m.w.KVA = of(w.kva, c.Width(), w.hidden)
	m.w.O = of(w.o, w.hidden, c.Heads*c.V)
	m.w.Core = m.made.weights()
	if w.bias {
		if w.lora > 0 {
			m.w.QABias = rowsOf("bf16", rounded("bf16", floats(r, w.lora, 0.2)))
		}
		m.w.KVABias = rowsOf("f32", floats(r, c.Width(), 0.2))
		m.w.OBias = rowsOf("f16", rounded("f16", floats(r, w.hidden, 0.2)))
	}
	m.config = mla.BlockConfig{Core: c, Hidden: w.hidden, QLora: w.lora, QScale: w.qScale, QBeta: w.beta, QContext: w.context}
	var err error
	m.block, err = mla.NewBlock(m.config, m.w)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.block.Close()) })
	m.states = rounded(w.kv, floats(r, m.tokens*w.hidden, 1))
	return m
}

func (m *madeBlock) plan(t testing.TB, pool *mla.Pool) *boundBlock {
	t.Helper()
	p, err := bindBlock(m.block, m.limits(), pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// forward runs the world's batch in one form for all its sequences.
func (m *madeBlock) forward(t testing.TB, p *boundBlock, form mla.Form) answer {
	t.Helper()
	b := m.batch()
	b.Forms = make([]mla.Form, len(m.seqs))
	for i := range b.Forms {
		b.Forms[i] = form
	}
	rows := m.tokens * m.cfg.Heads
	a := answer{lse: make([]float32, rows), top: make([]float32, rows)}
	b.LSE, b.MaxLogit = a.lse, a.top
	out := rowsOf(m.kv, make([]float32, m.tokens*m.hidden))
	require.NoError(t, p.Forward(context.Background(), out, rowsOf(m.kv, m.states), b))
	a.out = values(out)
	return a
}

// exactly is the values of a matrix, of which code times scale is exact in float64.
func exactly(m fp8.Matrix) []float64 {
	x := make([]float64, 0, m.Rows()*m.Cols())
	for i := range m.Rows() {
		for j := range m.Cols() {
			x = append(x, float64(m.Code(i, j))*float64(m.Scale(i, j)))
		}
	}
	return x
}

// around is the projections in float64.
func (m *madeBlock) around() *oracle.Block {
	float := func(r mla.Rows) []float64 { return float64s(values(r)) }
	b := &oracle.Block{
		Hidden: m.hidden, QLora: m.blk.lora, QEpsilon: float64(mla.DefaultEpsilon),
		QB: exactly(m.w.QB), KVA: exactly(m.w.KVA), O: exactly(m.w.O),
		QScale: float64(m.blk.qScale), QBeta: float64(m.blk.beta), QContext: m.blk.context,
	}
	if m.blk.lora > 0 {
		b.QA, b.QGamma, b.QABias = exactly(m.w.QA), float(m.w.QGamma), float(m.w.QABias)
	}
	b.KVABias, b.OBias = float(m.w.KVABias), float(m.w.OBias)
	return b
}

// check compares an answer with float64 from the hidden states on. stored says
// which new rows attention is to read: those that lie in the cache, which were
// rounded to its type, or those of the oracle.
func (m *madeBlock) check(t testing.TB, a answer, stored bool) {
	t.Helper()
	around := m.around()
	call := m.oracle(t)
	call.LatentScale = float64(m.cfg.LatentScale)
	call.NormRound = nil
	if m.cfg.NormRounding == mla.NormAsGamma && m.gamma == "bf16" {
		call.NormRound = func(x float64) float64 { return float64(rounded("bf16", []float32{float32(x)})[0]) }
		around.NormRound = call.NormRound
	}
	call.Q = nil
	width, step := m.width(), map[string]float64{"f32": 0, "bf16": 1.0 / 256, "f16": 1.0 / 2048}[m.kv]
	for b := range m.seqs {
		for i := range m.fresh[b] {
			pos := m.cached[b] + i
			x := float64s(m.states[(int(m.offsets[b])+i)*m.hidden:][:m.hidden])
			call.Q = append(call.Q, around.Query(&call.Config, x, pos)...)
			row := call.CacheRow(around.KV(&call.Config, x), pos)
			in := call.Rows[b][pos*width:][:width]
			if !stored {
				for j, want := range row {
					require.InDelta(t, want, in[j], m.rowBound(row), "sequence %d, stored row %d, value %d", b, i, j)
				}
				copy(in, row)
			}
		}
	}
	for tok := range m.tokens {
		var heads []oracle.Row
		for h := range m.cfg.Heads {
			row := call.Row(tok, h)
			heads = append(heads, row)
			m.sameLogit(t, row.LSE, a.lse[tok*m.cfg.Heads+h], 4*row.MaxAbs, "lse")
		}
		want := oracle.Join(heads...).Product(around.O, m.hidden).Plus(around.OBias)
		bound := m.bound(want)
		for i, x := range want.Out {
			got := float64(a.out[tok*m.hidden+i])
			m.worst = max(m.worst, math.Abs(got-x)/want.Largest())
			require.LessOrEqual(t, math.Abs(got-x), bound+math.Abs(x)*step+step*0x1p-24, "token %d: out[%d] is %v, want %v", tok, i, got, x)
		}
	}
}

// pairBlock is the error that a block may have in the second arithmetic: twice that of a layer, since the low-rank query
// and the outputs of the heads are rounded to bf16 as well.
const pairBlock = 2 * pairLayer

// bound is the error that a row of a block's outputs may have: in float32 that of a layer.
func (m *madeBlock) bound(want oracle.Row) float64 {
	switch {
	case m.cfg.Compute == mla.ComputeF32:
		return want.LayerBound()
	case m.blk.pairBound > 0:
		return m.blk.pairBound * want.Size()
	}
	return pairBlock * want.Size()
}

// rowBound is what a new row may be off by before it is stored: in the second arithmetic
// one product is behind it, whose operands were rounded.
func (m *madeBlock) rowBound(row []float64) float64 {
	if m.cfg.Compute == mla.ComputeF32 {
		return 2e-5
	}
	largest := 0.0
	for _, x := range row {
		largest = max(largest, math.Abs(x))
	}
	return 0x1p-7 * largest
}
