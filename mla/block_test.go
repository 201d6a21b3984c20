package mla_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// TestBlock holds blocks of many kinds against float64, from the hidden states on.
func TestBlock(t *testing.T) {
	plain := func(e fp8.Elem) weightKind { return weightKind{elem: e} }
	for name, change := range map[string]func(w *blockWorld){
		"mixed":              func(w *blockWorld) {},
		"q_proj":             func(w *blockWorld) { w.lora = 0 },
		"biases":             func(w *blockWorld) { w.bias = true },
		"q_proj with biases": func(w *blockWorld) { w.bias, w.lora = true, 0 },
		"bf16": func(w *blockWorld) {
			w.qa, w.qb, w.kva, w.o, w.weight = plain(fp8.ElemBF16), plain(fp8.ElemBF16), plain(fp8.ElemBF16), plain(fp8.ElemBF16), plain(fp8.ElemBF16)
		},
		"f16 and f32": func(w *blockWorld) {
			w.qa, w.qb, w.kva, w.o = plain(fp8.ElemF16), plain(fp8.ElemF32), plain(fp8.ElemF16), plain(fp8.ElemF32)
		},
		"FNUZ, per row and tensor": func(w *blockWorld) {
			w.qa, w.qb = weightKind{fp8.ElemE4M3FNUZ, 1, 52}, weightKind{fp8.ElemE4M3, 0, 0}
			w.kva, w.o = weightKind{fp8.ElemE5M2FNUZ, 7, 9}, weightKind{fp8.ElemE4M3, 4, 8}
		},
		"half rope, no rope part": func(w *blockWorld) { w.cfg.Rope, w.cfg.RopeStyle = 0, mla.Half },
		"half rope":               func(w *blockWorld) { w.cfg.RopeStyle = mla.Half },
		"LongCat's factors":       func(w *blockWorld) { w.qScale, w.cfg.LatentScale = 1.4142135, 0.70710677 },
		"Mistral 4's factor":      func(w *blockWorld) { w.beta, w.context = 0.1, 16 },
		"all factors":             func(w *blockWorld) { w.qScale, w.cfg.LatentScale, w.beta, w.context, w.bias = -0.5, 2.5, 0.3, 1, true },
		"rounded norms": func(w *blockWorld) {
			w.cfg.NormRounding, w.gamma, w.cfg.LatentScale = mla.NormAsGamma, "bf16", 1.5
		},
		"bf16 gammas, norms not rounded": func(w *blockWorld) { w.gamma = "bf16" },
		"bf16 states":                    func(w *blockWorld) { w.kv, w.bias = "bf16", true },
		"f16 states":                     func(w *blockWorld) { w.kv = "f16" },
		"bf16 cache":                     func(w *blockWorld) { w.format = kvpaged.BF16 },
		"sliding window":                 func(w *blockWorld) { w.cfg.Mask = mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 4} },
		"wide state":                     func(w *blockWorld) { w.hidden, w.kv = 400, "bf16" },
		"sinks":                          func(w *blockWorld) { w.sink = true },
	} {
		for _, arithmetic := range computes {
			t.Run(fmt.Sprintf("%s/arithmetic=%v", name, arithmetic), func(t *testing.T) {
				w := smallBlock()
				w.cfg.Compute = arithmetic
				change(&w)
				m := w.make(t)
				p := m.plan(t, nil)
				for _, form := range append(bothForms, mla.FormAuto) {
					// Norms that round may fall on either side of a tie: rows as stored.
					stored := w.format != kvpaged.F32 || w.cfg.NormRounding == mla.NormAsGamma
					m.check(t, m.forward(t, p, form), stored)
				}
				require.Equal(t, m.block.Config().Core.Scale, w.cfg.Scale)
				if w.kv == "f32" { // else the output is rounded
					require.Equal(t, arithmetic == mla.ComputeBF16, m.worst > 1e-4, "off by %.1e", m.worst)
				}
			})
		}
	}
}

// TestPairBlockAccuracy holds blocks in the second arithmetic to float64, where states,
// weights and cache are exact in bf16: what is rounded is the low-rank query, the absorbed
// query or the keys, the probabilities, the latent outputs or the values, and the outputs
// of the heads. These are five roundings to attention's two, which may cost it 2e-3:
// together they may four times that. 5.3e-3 was the most that was seen, of other data.
func TestPairBlockAccuracy(t *testing.T) {
	w := smallBlock()
	codes := weightKind{fp8.ElemE4M3, 128, 128}
	w.cfg = mla.Config{Heads: 4, Nope: 64, Rope: 32, V: 64, Latent: 256, Scale: float32(1 / math.Sqrt(96)), Compute: mla.ComputeBF16}
	w.hidden, w.lora, w.pairBound = 512, 256, 4*pairBound
	w.qa, w.qb, w.kva, w.o, w.weight = codes, codes, codes, codes, codes
	w.gamma, w.format, w.page = "bf16", kvpaged.BF16, 64
	w.cached, w.fresh = []int{300, 100, 5, 0}, []int{1, 1, 1, 2}
	m := w.make(t)
	rounded("bf16", m.states)
	p := m.plan(t, nil)
	for _, form := range bothForms {
		a := m.forward(t, p, form)
		m.check(t, a, true)
		t.Logf("%v: %.2e of the largest output", form, m.worst)
	}
}

// TestBlockIsItsParts: the bits of a block are those of its products, in the order
// that docs/arithmetic.md gives, around the core alone, with activations quantised too.
func TestBlockIsItsParts(t *testing.T) {
	for i, quant := range []mla.ActQuant{mla.ActNone, mla.ActDynamic, mla.ActNone, mla.ActDynamic} {
		arithmetic := computes[i/2]
		t.Run(fmt.Sprintf("%v/arithmetic=%v", quant, arithmetic), func(t *testing.T) {
			w := smallBlock()
			w.cfg.ActQuant, w.cfg.Compute = quant, arithmetic
			w.weight = weightKind{fp8.ElemE4M3, 32, 32}
			w.bias, w.qScale, w.cfg.LatentScale, w.beta, w.context = true, 1.3, 0.8, 0.2, 10
			m := w.make(t)
			got := m.forward(t, m.plan(t, nil), mla.FormAbsorbed)

			product := func(of fp8.Matrix, x []float32) []float32 {
				p, err := fp8.Pack([]fp8.Matrix{of}, fp8.PackOptions{})
				require.NoError(t, err)
				defer p.Close()
				y := make([]float32, m.tokens*of.Rows())
				how := fp8.Product{Compute: fp8.Compute(arithmetic)}
				if quant == mla.ActDynamic && of.Scaled() {
					how.Group = of.BlockCols()
				}
				require.NoError(t, p.Mul(nil, nil, y, mla.RowsF32(x), fp8.Shape{M: m.tokens}, how))
				return y
			}
			add := func(x []float32, bias mla.Rows) {
				for i := range x {
					x[i] += bias.Float32(i % bias.Len())
				}
			}
			low := product(m.w.QA, m.states)
			add(low, m.w.QABias)
			for i := range m.tokens {
				mla.Norm(low[i*w.lora:(i+1)*w.lora], values(m.w.QGamma), mla.DefaultEpsilon)
			}
			m.q = product(m.w.QB, low)
			heads := w.cfg.Heads * (w.cfg.Nope + w.cfg.Rope)
			for b := range m.seqs {
				for i := range m.fresh[b] {
					f := 1 + float32(w.beta*mla.Log(float32(1+(m.cached[b]+i)/w.context)))
					for j := range heads {
						x := &m.q[(int(m.offsets[b])+i)*heads+j]
						*x = float32(float32(*x*w.qScale) * f)
					}
				}
			}
			m.kvs = product(m.w.KVA, m.states)
			add(m.kvs, m.w.KVABias)
			want := m.made.forward(t, m.made.plan(t, m.limits(), nil), mla.FormAbsorbed)
			want.out = product(m.w.O, want.out)
			add(want.out, m.w.OBias)
			sameBits(t, want, got, "the block")
		})
	}
}

// lightBlock is a block small enough for long contexts in pure Go.
func lightBlock(cached, fresh []int) blockWorld {
	w := smallBlock()
	w.world = light(cached, fresh)
	w.hidden, w.lora = 32, 24
	w.qa, w.kva, w.o = weightKind{fp8.ElemE4M3, 16, 16}, weightKind{fp8.ElemE4M3, 8, 32}, weightKind{fp8.ElemE4M3, 16, 16}
	w.bias, w.qScale, w.beta, w.context = true, 1.25, 0.1, 64
	return w
}

// TestBlockSameBits: any number of workers, any page size, alone or in a batch, and
// in one form any cut of the prompt, give the same bits.
func TestBlockSameBits(t *testing.T) {
	for i, form := range slices.Concat(bothForms, bothForms) {
		w := lightBlock([]int{510, 0, 3}, []int{3, 70, 1})
		w.cfg.Compute = computes[i/len(bothForms)]
		m := w.make(t)
		want := m.forward(t, m.plan(t, nil), form)
		for _, workers := range []int{1, 2, 5} {
			pool := mla.NewPool(workers)
			var meet workpool.Meet
			pool.SetHook(meet.Wait)
			p, err := bindBlock(m.block, m.limits(), pool)
			require.NoError(t, err)
			sameBits(t, want, m.forward(t, p, form), fmt.Sprintf("%d workers", workers))
			if workers > 1 {
				require.GreaterOrEqual(t, meet.Workers(), 2, "workers that did work")
			}
			require.NoError(t, p.Close())
			require.NoError(t, pool.Close())
		}
		for _, page := range []int{1, 7} {
			w := w
			w.page = page
			m := w.make(t)
			sameBits(t, want, m.forward(t, m.plan(t, nil), form), fmt.Sprintf("page size %d", page))
		}
		for b := range m.seqs {
			one := m.only(b, 0, m.fresh[b])
			sameBits(t, m.cut(want, b, 0, m.fresh[b]), one.forward(t, one.plan(t, nil), form), fmt.Sprintf("sequence %d alone", b))
		}
		p := m.plan(t, nil)
		for at := 0; at < 70; at += 9 {
			n := min(9, 70-at)
			sameBits(t, m.cut(want, 1, at, n), m.only(1, at, n).forward(t, p, form), fmt.Sprintf("%d tokens from %d on", n, at))
			require.NoError(t, m.seqs[1].Commit(n))
		}
	}
}

// only is the block with n new tokens of sequence b, from its token at on.
func (m *madeBlock) only(b, at, n int) *madeBlock {
	core, one := *m.made, *m
	one.made = &core
	t0 := int(m.offsets[b]) + at
	one.states = m.states[t0*m.hidden : (t0+n)*m.hidden]
	one.seqs, one.offsets, one.tokens = m.seqs[b:b+1], []uint32{0, uint32(n)}, n
	return &one
}

// cut is the same tokens of an answer.
func (m *madeBlock) cut(a answer, b, at, n int) answer {
	t0, h := int(m.offsets[b])+at, m.cfg.Heads
	return answer{a.out[t0*m.hidden : (t0+n)*m.hidden], a.lse[t0*h : (t0+n)*h], a.top[t0*h : (t0+n)*h]}
}

// TestBlockAllocatesNothing holds Forward to 0 allocations, for every kind of
// state, with everything that a block may have.
func TestBlockAllocatesNothing(t *testing.T) {
	for i, workers := range []int{1, 3, 1, 3} {
		pool := mla.NewPool(workers)
		defer func() { require.NoError(t, pool.Close()) }()
		for _, kind := range []string{"f32", "bf16"} {
			for _, quant := range []mla.ActQuant{mla.ActNone, mla.ActDynamic} {
				w := lightBlock([]int{600, 0, 3}, []int{2, 9, 0})
				w.cfg.Compute = computes[i/2]
				w.kv, w.cfg.ActQuant, w.cfg.ActBlockQ = kind, quant, 8
				m := w.make(t)
				p := m.plan(t, pool)
				b := m.batch()
				ctx := context.Background()
				out, hidden := rowsOf(kind, make([]float32, m.tokens*m.hidden)), rowsOf(kind, m.states)
				got := allocsPerRun(20, func() {
					if err := p.Forward(ctx, out, hidden, b); err != nil {
						t.Error(err)
					}
				})
				require.Zero(t, got, "%d workers, %s, %v, %v", workers, kind, quant, w.cfg.Compute)
			}
		}
	}
}

// blockArgs are the arguments of one Forward, for a test to spoil.
type blockArgs struct {
	out, hidden mla.Rows
	b           mla.Batch
	ctx         context.Context
}

// TestBlockErrors spoils one argument at a time. Each gives its error, and nothing is
// written: not the output, not the cache.
func TestBlockErrors(t *testing.T) {
	short := func(n int) mla.Rows { return mla.RowsF32(make([]float32, n)) }
	for name, c := range map[string]struct {
		spoil func(m *madeBlock, a *blockArgs)
		want  error
		says  string
	}{
		"hidden short":   {func(m *madeBlock, a *blockArgs) { a.hidden = short(7) }, mla.ErrShape, "hidden has 7 values, want T*E = 15*52 = 780"},
		"hidden nil":     {func(m *madeBlock, a *blockArgs) { a.hidden = mla.Rows{} }, mla.ErrShape, "hidden has 0 values"},
		"out long":       {func(m *madeBlock, a *blockArgs) { a.out = short(781) }, mla.ErrShape, "out has 781 values, want T*E"},
		"out is hidden":  {func(m *madeBlock, a *blockArgs) { a.out = a.hidden }, mla.ErrShape, "out overlaps hidden"},
		"lse is hidden":  {func(m *madeBlock, a *blockArgs) { a.b.LSE = a.hidden.F32()[:45] }, mla.ErrShape, "Batch.LSE overlaps hidden"},
		"lse is out":     {func(m *madeBlock, a *blockArgs) { a.b.LSE = a.out.F32()[:45] }, mla.ErrShape, "Batch.LSE overlaps out"},
		"freqs are out":  {func(m *madeBlock, a *blockArgs) { a.b.Freqs = mla.RowsF32(a.out.F32()[:750]) }, mla.ErrShape, "out overlaps Batch.Freqs"},
		"freqs short":    {func(m *madeBlock, a *blockArgs) { a.b.Freqs = short(70 * 10) }, mla.ErrShape, "Batch.Freqs has 70 rows, and position 74 is reached (sequence 1 of the batch)"},
		"offsets short":  {func(m *madeBlock, a *blockArgs) { a.b.Offsets = a.b.Offsets[:2] }, mla.ErrShape, "Batch.Offsets has 2 values"},
		"offsets huge":   {func(m *madeBlock, a *blockArgs) { a.b.Offsets = []uint32{0, 9, 14, 14, math.MaxUint32} }, mla.ErrLimit, "Limits.Tokens"},
		"no cache":       {func(m *madeBlock, a *blockArgs) { a.b.Cache = nil }, mla.ErrShape, "another cache"},
		"layer beyond":   {func(m *madeBlock, a *blockArgs) { a.b.Layer = 2 }, mla.ErrShape, "Batch.Layer is 2"},
		"sequence twice": {func(m *madeBlock, a *blockArgs) { a.b.Seqs[1] = a.b.Seqs[0] }, mla.ErrShape, "Batch.Seqs[1] are the same sequence"},
		"not reserved":   {func(m *madeBlock, a *blockArgs) { m.drop(1) }, nil, "sequence 1"},
		"indexer": {func(m *madeBlock, a *blockArgs) {
			// The third token of sequence 1 is the first that sees 73 keys.
		}, mla.ErrIndexer, "position 72 sees 73 keys, more than IndexTopK = 72, and Batch.Sparse is nil (sequence 1 of the batch)"},
		"cancelled": {func(m *madeBlock, a *blockArgs) { ctx, stop := context.WithCancel(a.ctx); stop(); a.ctx = ctx }, context.Canceled, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := smallBlock()
			if name == "indexer" {
				w.cfg.IndexTopK = 72
			}
			m := w.make(t)
			p := m.plan(t, nil)
			a := &blockArgs{out: short(780), hidden: mla.RowsF32(m.states), b: m.batch(), ctx: context.Background()}
			a.b.Seqs = slices.Clone(m.seqs)
			c.spoil(m, a)
			before, hidden, out := slices.Clone(m.arena), slices.Clone(values(a.hidden)), slices.Clone(values(a.out))
			err := p.Forward(a.ctx, a.out, a.hidden, a.b)
			require.Error(t, err)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			require.ErrorContains(t, err, c.says)
			require.Equal(t, before, m.arena, "nothing was written to the cache")
			require.Equal(t, hidden, values(a.hidden))
			require.Equal(t, out, values(a.out))
			if name != "not reserved" && name != "indexer" { // all is free again
				m.forward(t, p, mla.FormAuto)
			}
		})
	}
}

// TestBlockCancelled: cancelled in any item of any stage, a call leaves the lengths and the
// committed rows as they were, and the next gives the right bits.
func TestBlockCancelled(t *testing.T) {
	w := lightBlock([]int{70, 3}, []int{9, 1})
	m := w.make(t)
	want := m.forward(t, m.plan(t, nil), mla.FormAuto)
	pool := mla.NewPool(2)
	defer func() { require.NoError(t, pool.Close()) }()
	p, err := bindBlock(m.block, m.limits(), pool)
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	rows := make([]float32, 70*m.width())
	require.NoError(t, m.seqs[0].ReadRows(rows, m.layer, 0, 70))
	for at, done := 0, false; !done; at++ {
		ctx, stop := context.WithCancel(context.Background())
		items := make(chan int, 1)
		items <- 0
		pool.SetHook(func(_, _ int) {
			n := <-items
			if n == at {
				stop()
			}
			items <- n + 1
		})
		out := rowsOf(m.kv, make([]float32, m.tokens*m.hidden))
		err := p.Forward(ctx, out, rowsOf(m.kv, m.states), m.batch())
		pool.SetHook(nil)
		stop()
		if done = <-items <= at; done {
			require.NoError(t, err, "no item %d", at)
			require.Greater(t, at, 10)
		} else if err != nil { // the last items may not look at it any more
			require.ErrorIs(t, err, context.Canceled)
		}
		require.Equal(t, []int{70, 3}, []int{m.seqs[0].Len(), m.seqs[1].Len()})
		after := make([]float32, len(rows))
		require.NoError(t, m.seqs[0].ReadRows(after, m.layer, 0, 70))
		require.Equal(t, rows, after)
	}
	sameBits(t, want, m.forward(t, p, mla.FormAuto), "after all that")
}

// TestBlockNaN: a token whose state is NaN makes those outputs NaN that see it, and no
// others; so do codes that are NaN for the outputs that they weigh in.
func TestBlockNaN(t *testing.T) {
	for _, arithmetic := range computes {
		t.Run(arithmetic.String(), func(t *testing.T) { blockNaN(t, arithmetic) })
	}
}

func blockNaN(t *testing.T, arithmetic mla.Compute) {
	w := smallBlock()
	w.cfg.Compute = arithmetic
	w.fresh, w.cached = []int{9, 3}, []int{0, 2}
	m := w.make(t)
	want := m.forward(t, m.plan(t, nil), mla.FormAuto)
	m.states[4*m.hidden+7] = float32(math.NaN()) // the fifth token of the first sequence
	got := m.forward(t, m.plan(t, nil), mla.FormAuto)
	for tok := range m.tokens {
		for i := range m.hidden {
			at := tok*m.hidden + i
			if tok >= 4 && tok < 9 {
				require.True(t, isNaN(got.out[at]), "token %d", tok)
			} else {
				require.Equal(t, want.out[at], got.out[at], "token %d", tok)
			}
		}
	}
}

// TestBlockNoTokens: nothing is touched, whatever else the arguments are.
func TestBlockNoTokens(t *testing.T) {
	w := smallBlock()
	w.fresh = []int{0, 0, 0, 0}
	m := w.make(t)
	p := m.plan(t, nil)
	before := slices.Clone(m.arena)
	ctx, stop := context.WithCancel(context.Background())
	stop()
	require.NoError(t, p.Forward(ctx, mla.Rows{}, mla.Rows{}, m.batch()))
	require.NoError(t, p.Forward(nil, mla.Rows{}, mla.Rows{}, mla.Batch{Cache: m.cache, Offsets: []uint32{0}}))
	require.Equal(t, before, m.arena)
}

// TestBlockLife: a closed block, a closed plan and a plan in use say so; closing twice is
// one closing.
func TestBlockLife(t *testing.T) {
	w := lightBlock([]int{3}, []int{20})
	m := w.make(t)
	b, err := mla.NewBlock(m.config, m.w)
	require.NoError(t, err)
	pool := mla.NewPool(2)
	defer func() { require.NoError(t, pool.Close()) }()
	p, err := bindBlock(b, m.limits(), pool)
	require.NoError(t, err)
	require.Positive(t, p.Bytes())
	require.Equal(t, m.limits().Tokens, p.Limits().Tokens)
	require.Greater(t, b.Bytes(), m.layer_.Bytes())
	require.Equal(t, m.layer_.Form(5, 2000), b.Form(5, 2000))

	out, hidden := rowsOf(m.kv, make([]float32, m.tokens*m.hidden)), rowsOf(m.kv, m.states)
	var inside error
	pool.SetHook(func(_, _ int) {
		pool.SetHook(nil)
		inside = errors.Join(b.Close(), p.Close(), p.Forward(nil, out, hidden, m.batch()))
	})
	require.NoError(t, p.Forward(nil, out, hidden, m.batch()))
	require.ErrorIs(t, inside, mla.ErrBusy)
	require.ErrorContains(t, inside, "a Forward uses the block")
	require.ErrorContains(t, inside, "a call runs in this workspace")
	require.ErrorContains(t, inside, "another call runs in this workspace")

	other, err := bindBlock(b, m.limits(), nil)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, other.Close())
		require.NoError(t, b.Close())
	}
	require.ErrorIs(t, p.Forward(nil, out, hidden, m.batch()), mla.ErrClosed)
	_, err = bindBlock(b, m.limits(), nil)
	require.ErrorIs(t, err, mla.ErrClosed)
	require.NoError(t, p.Close())
	open, err := bindBlock(m.block, m.limits(), nil)
	require.NoError(t, err)
	require.NoError(t, open.Close())
	err = open.Forward(nil, out, hidden, m.batch())
	require.ErrorIs(t, err, mla.ErrClosed)
	require.ErrorContains(t, err, "the workspace is closed")
}

// TestNewBlockErrors: a configuration or a weight that does not fit is named.
func TestNewBlockErrors(t *testing.T) {
	m := smallBlock().make(t)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	one := mla.RowsF32([]float32{1})
	for says, change := range map[string]func(c *mla.BlockConfig, w *mla.BlockWeights){
		"Hidden is 0, want 1 to":               func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.Hidden = 0 },
		"Hidden is 1073741824":                 func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.Hidden = 1 << 30 },
		"QLora is -1":                          func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.QLora = -1 },
		"Heads is 0":                           func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.Core.Heads = 0 },
		"QEpsilon is NaN":                      func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.QEpsilon = nan },
		"QEpsilon is -2":                       func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.QEpsilon = -2 },
		"QScale is +Inf":                       func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.QScale = inf },
		"QBeta is NaN":                         func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.QBeta = nan },
		"QContext is 0, want 1 to":             func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.QBeta = 1 },
		"LatentScale is NaN":                   func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.Core.LatentScale = nan },
		"IndexTopK is -1":                      func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.Core.IndexTopK = -1 },
		"QA is [27, 52], want [26, 52]":        func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.QLora = 26 },
		"QA is [0, 0], want [27, 52]":          func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.QA = fp8.Matrix{} },
		"QA is [27, 52], want none":            func(c *mla.BlockConfig, _ *mla.BlockWeights) { c.QLora = 0 },
		"QB is [82, 52], want [102, 27]":       func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.QB = m.w.KVA },
		"KVA is [52, 120], want [82, 52]":      func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.KVA = m.w.O },
		"O is [82, 52], want [52, 120]":        func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.O = m.w.KVA },
		"QGamma has 1 values, want QLora = 27": func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.QGamma = one },
		"QABias has 1 values, want 27 or none": func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.QABias = one },
		"KVABias has 1 values, want 82":        func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.KVABias = one },
		"OBias has 1 values, want 52":          func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.OBias = one },
		"Gamma has 1 values, want R = 72":      func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.Core.Gamma = one },
		"KVB is [82, 52], want [192, 72]":      func(_ *mla.BlockConfig, w *mla.BlockWeights) { w.Core.KVB = m.w.KVA },
		"ActDynamic wants weights with scales": func(c *mla.BlockConfig, w *mla.BlockWeights) {
			c.Core.ActQuant = mla.ActDynamic
			w.Core.KVB = weightKind{elem: fp8.ElemF32}.matrix(t, 192, 72, make([]float32, 192*72))
		},
	} {
		cfg, w := m.config, m.w
		change(&cfg, &w)
		b, err := mla.NewBlock(cfg, w)
		require.Nil(t, b, says)
		require.True(t, errors.Is(err, mla.ErrConfig) || errors.Is(err, mla.ErrWeights), "%v", err)
		require.ErrorContains(t, err, says)
	}
	_, err := bindBlock(m.block, mla.Limits{}, nil)
	require.ErrorIs(t, err, mla.ErrConfig)
}

// TestBlockDefaults: zeros stand for what their comments say.
func TestBlockDefaults(t *testing.T) {
	m := smallBlock().make(t)
	c := m.block.Config()
	require.Equal(t, []float32{mla.DefaultEpsilon, mla.DefaultEpsilon, 1, 1}, []float32{c.Core.Epsilon, c.QEpsilon, c.QScale, c.Core.LatentScale})
	cfg := m.config
	cfg.Core.Epsilon, cfg.QEpsilon = mla.EpsilonZero, 1e-5
	b, err := mla.NewBlock(cfg, m.w)
	require.NoError(t, err)
	require.Equal(t, []float32{0, 1e-5}, []float32{b.Config().Core.Epsilon, b.Config().QEpsilon})
	require.NoError(t, b.Close())
	cfg.QEpsilon = 0 // the core's, which is 0
	b, err = mla.NewBlock(cfg, m.w)
	require.NoError(t, err)
	require.Zero(t, b.Config().QEpsilon)
	require.NoError(t, b.Close())
}

// TestBlockProgress: packing tells how far it is, in steps, to the end.
func TestBlockProgress(t *testing.T) {
	m := smallBlock().make(t)
	var seen []int64
	var all int64
	w := m.w
	w.Progress = func(done, total int64) { seen, all = append(seen, done), total }
	b, err := mla.NewBlock(m.config, w)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.True(t, slices.IsSorted(seen))
	require.Greater(t, len(seen), 20)
	require.Equal(t, int64(27*52+102*27+82*52+52*120+3*(24+24+40)*72), all)
	require.Equal(t, all, seen[len(seen)-1])
}

// TestPositionFactor: the factor of a query is that of its position, from the second
// stretch of QContext positions on.
func TestPositionFactor(t *testing.T) {
	c := mla.BlockConfig{QBeta: 0.1, QContext: 8192}
	for pos, want := range map[int]float64{0: 1, 8191: 1, 8192: 1 + 0.1*math.Ln2, 40000: 1 + 0.1*math.Log(5), 1<<20 - 1: 1 + 0.1*math.Log(128)} {
		require.InDelta(t, want, float64(mla.PositionScale(c, pos)), 1.2e-7, "position %d", pos)
	}
	require.Equal(t, float32(1), mla.PositionScale(mla.BlockConfig{}, 1<<20))
}

// TestIndexTopK: a layer of a model with an indexer is dense up to its limit; past it
// it wants lists, and takes them.
func TestIndexTopK(t *testing.T) {
	for _, c := range []struct {
		mask mla.Mask
		topK int
		says string
	}{
		{mla.Mask{}, 75, ""}, {mla.Mask{}, 74, "position 74 sees 75 keys"}, {mla.Mask{}, 1, "position 1 sees 2 keys, more than IndexTopK = 1, and Batch.Sparse is nil (sequence 0"},
		{mla.Mask{Kind: mla.MaskNull}, 74, "position 70 sees 75 keys, more than IndexTopK = 74, and Batch.Sparse is nil (sequence 1"},
		{mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 8}, 8, ""},
		{mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 8}, 7, "position 7 sees 8 keys, more than IndexTopK = 7, and Batch.Sparse is nil (sequence 0"},
		{mla.Mask{}, 0, ""},
	} {
		w := small()
		w.cfg.IndexTopK, w.cfg.Mask = c.topK, c.mask
		m := w.make(t)
		p := m.plan(t, m.limits(), nil)
		a := m.args()
		err := p.Forward(a.ctx, a.out, a.q, a.kv, a.b)
		if c.says == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, mla.ErrIndexer)
		require.ErrorContains(t, err, c.says)
		a.b.Sparse = &mla.Sparse{Indices: make([]int32, m.tokens), Stride: 1, Logical: true}
		require.NoError(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b))
	}
}

// TestLatentScale: the factor goes to the stored latent, with the norm's rounding, and
// not to the rope part.
func TestLatentScale(t *testing.T) {
	for _, kind := range []string{"f32", "bf16", "f16"} {
		w := small()
		w.kv, w.gamma = kind, kind
		plain := w.make(t)
		plain.forward(t, plain.plan(t, plain.limits(), nil), mla.FormAuto)
		w.cfg.LatentScale = 1.7
		scaled := w.make(t)
		scaled.forward(t, scaled.plan(t, scaled.limits(), nil), mla.FormAuto)
		for b := range scaled.seqs {
			was, is := plain.stored(t, b), scaled.stored(t, b)
			for i := scaled.cached[b] * w.width(); i < len(is); i++ {
				want := was[i]
				if i%w.width() < w.cfg.Latent {
					want = rounded(kind, []float32{float32(want * 1.7)})[0]
				}
				require.Equal(t, want, is[i], "sequence %d, value %d", b, i)
			}
		}
	}
}

// TestBlockSparse: index lists go through a block to its core. Lists of all that a token
// sees give the bits of the dense absorbed form, also past IndexTopK.
func TestBlockSparse(t *testing.T) {
	w := lightBlock([]int{70, 3}, []int{2, 5})
	m := w.make(t)
	want := m.forward(t, m.plan(t, nil), mla.FormAbsorbed)
	w.cfg.IndexTopK = 4
	m = w.make(t)
	p := m.plan(t, nil)
	const stride = 80
	sparse := &mla.Sparse{Indices: make([]int32, m.tokens*stride), Stride: stride, Logical: true}
	for b := range m.seqs {
		for i := range m.fresh[b] {
			for k := range stride {
				sparse.Indices[(int(m.offsets[b])+i)*stride+k] = int32(k)
			}
		}
	}
	batch := m.batch()
	out := rowsOf(m.kv, make([]float32, m.tokens*m.hidden))
	require.ErrorIs(t, p.Forward(context.Background(), out, rowsOf(m.kv, m.states), batch), mla.ErrIndexer)
	batch.Sparse = sparse
	require.NoError(t, p.Forward(context.Background(), out, rowsOf(m.kv, m.states), batch))
	sameBits(t, answer{out: want.out}, answer{out: values(out)}, "lists of all keys")
}
