package mla_test

import (
	"context"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// forwardArgs are the arguments of one Forward, for a test to spoil.
type forwardArgs struct {
	out, q, kv mla.Rows
	b          mla.Batch
	ctx        context.Context
}

func (m *made) args() *forwardArgs {
	return &forwardArgs{
		out: mla.RowsF32(make([]float32, m.tokens*m.cfg.Heads*m.cfg.V)),
		q:   rowsOf(m.kv, m.q), kv: rowsOf(m.kv, m.kvs), b: m.batch(), ctx: context.Background(),
	}
}

// TestForwardErrors spoils one argument at a time. Each gives its error and a
// message that names the argument; the cache is left as it was.
func TestForwardErrors(t *testing.T) {
	short := func(n int) mla.Rows { return mla.RowsF32(make([]float32, n)) }
	cases := map[string]struct {
		spoil func(m *made, a *forwardArgs)
		want  error
		says  string
	}{
		"q short":          {func(m *made, a *forwardArgs) { a.q = short(7) }, mla.ErrShape, "q has 7 values, want T*H*(N+P) = "},
		"q nil":            {func(m *made, a *forwardArgs) { a.q = mla.Rows{} }, mla.ErrShape, "q has 0 values"},
		"kv short":         {func(m *made, a *forwardArgs) { a.kv = short(7) }, mla.ErrShape, "kv has 7 values, want T*(R+P) = "},
		"out long":         {func(m *made, a *forwardArgs) { a.out = short(a.out.Len() + 1) }, mla.ErrShape, "out has"},
		"lse short":        {func(m *made, a *forwardArgs) { a.b.LSE = make([]float32, 3) }, mla.ErrShape, "Batch.LSE has 3"},
		"lse empty":        {func(m *made, a *forwardArgs) { a.b.LSE = []float32{} }, mla.ErrShape, "Batch.LSE has 0"},
		"max logit short":  {func(m *made, a *forwardArgs) { a.b.MaxLogit = make([]float32, 3) }, mla.ErrShape, "Batch.MaxLogit has 3"},
		"sink short":       {func(m *made, a *forwardArgs) { a.b.Sink = make([]float32, 1) }, mla.ErrShape, "Batch.Sink has 1 values, want H = 3"},
		"forms short":      {func(m *made, a *forwardArgs) { a.b.Forms = make([]mla.Form, 1) }, mla.ErrShape, "Batch.Forms has 1"},
		"form unknown":     {func(m *made, a *forwardArgs) { a.b.Forms = []mla.Form{9, 0, 0, 0} }, mla.ErrShape, "Batch.Forms[0] is 9"},
		"offsets short":    {func(m *made, a *forwardArgs) { a.b.Offsets = a.b.Offsets[:2] }, mla.ErrShape, "Batch.Offsets has 2 values, want B+1 = 5"},
		"offsets nil":      {func(m *made, a *forwardArgs) { a.b.Offsets = nil }, mla.ErrShape, "Batch.Offsets has 0"},
		"offsets start":    {func(m *made, a *forwardArgs) { a.b.Offsets = []uint32{1, 9, 14, 14, 15} }, mla.ErrShape, "Offsets[0] is 1"},
		"offsets decrease": {func(m *made, a *forwardArgs) { a.b.Offsets = []uint32{0, 9, 4, 14, 15} }, mla.ErrShape, "decreases from 9 to 4"},
		"offsets beyond q": {func(m *made, a *forwardArgs) { a.b.Offsets = []uint32{0, 9, 14, 14, 14} }, mla.ErrShape, "q has"},
		"offsets huge":     {func(m *made, a *forwardArgs) { a.b.Offsets = []uint32{0, 9, 14, 14, math.MaxUint32} }, mla.ErrLimit, "Limits.Tokens"},
		"no cache":         {func(m *made, a *forwardArgs) { a.b.Cache = nil }, mla.ErrShape, "Seqs[0] belongs to another cache"},
		"layer negative":   {func(m *made, a *forwardArgs) { a.b.Layer = -1 }, mla.ErrShape, "Batch.Layer is -1"},
		"layer beyond":     {func(m *made, a *forwardArgs) { a.b.Layer = 2 }, mla.ErrShape, "Batch.Layer is 2, the cache has layers 0 to 1"},
		"nil sequence":     {func(m *made, a *forwardArgs) { a.b.Seqs[2] = nil }, mla.ErrShape, "Batch.Seqs[2] is nil"},
		"sequence twice":   {func(m *made, a *forwardArgs) { a.b.Seqs[1] = a.b.Seqs[0] }, mla.ErrShape, "Batch.Seqs[0] and Batch.Seqs[1] are the same sequence"},
		"twice, once idle": {func(m *made, a *forwardArgs) { a.b.Seqs[2] = a.b.Seqs[3] }, mla.ErrShape, "Batch.Seqs[2] and Batch.Seqs[3] are the same sequence"},
		"idle, then not":   {func(m *made, a *forwardArgs) { a.b.Seqs[2] = a.b.Seqs[0] }, mla.ErrShape, "Batch.Seqs[0] and Batch.Seqs[2] are the same sequence"},
		"freqs ragged":     {func(m *made, a *forwardArgs) { a.b.Freqs = short(15) }, mla.ErrShape, "Batch.Freqs has 15 values, want rows of P = 10"},
		"freqs short":      {func(m *made, a *forwardArgs) { a.b.Freqs = short(70 * 10) }, mla.ErrShape, "Batch.Freqs has 70 rows, and position 74 is reached (sequence 1 of the batch)"},
		"out is q":         {func(m *made, a *forwardArgs) { m.overlay(a, true) }, mla.ErrShape, "out overlaps q"},
		"lse is kv":        {func(m *made, a *forwardArgs) { m.overlay(a, false) }, mla.ErrShape, "Batch.LSE overlaps kv"},
		"lse is out":       {func(m *made, a *forwardArgs) { a.b.LSE = a.out.F32()[:m.tokens*m.cfg.Heads] }, mla.ErrShape, "Batch.LSE overlaps out"},
		"max logit is lse": {func(m *made, a *forwardArgs) {
			a.b.LSE = make([]float32, m.tokens*m.cfg.Heads)
			a.b.MaxLogit = a.b.LSE
		}, mla.ErrShape, "Batch.MaxLogit overlaps Batch.LSE"},
		"cancelled":             {func(m *made, a *forwardArgs) { ctx, stop := context.WithCancel(a.ctx); stop(); a.ctx = ctx }, context.Canceled, ""},
		"not reserved":          {func(m *made, a *forwardArgs) { m.drop(1) }, nil, "sequence 1"},
		"more than is reserved": {func(m *made, a *forwardArgs) { a.b.Offsets = []uint32{0, 8, 14, 14, 15} }, nil, "sequence 1"},
		"foreign sequence":      {func(m *made, a *forwardArgs) { a.b.Seqs[0] = m.foreign }, mla.ErrShape, "another cache"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			m := small().make(t)
			p := m.plan(t, m.limits(), nil)
			a := m.args()
			a.b.Seqs = slices.Clone(m.seqs)
			m.foreign = small().make(t).seqs[0]
			c.spoil(m, a)
			before := slices.Clone(m.arena)
			err := p.Forward(a.ctx, a.out, a.q, a.kv, a.b)
			require.Error(t, err)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
			require.ErrorContains(t, err, c.says)
			require.Equal(t, before, m.arena, "nothing was written")
			// The plan and the sequences are free again.
			if name != "not reserved" {
				m.forward(t, p, mla.FormAuto)
			}
		})
	}
}

// overlay makes out lie in q's memory, or LSE in kv's.
func (m *made) overlay(a *forwardArgs, out bool) {
	if out {
		long := make([]float32, a.q.Len()+a.out.Len()-1)
		a.q, a.out = mla.RowsF32(long[:a.q.Len()]), mla.RowsF32(long[a.q.Len()-1:])
		return
	}
	long := make([]float32, a.kv.Len()+m.tokens*m.cfg.Heads-1)
	a.kv, a.b.LSE = mla.RowsF32(long[:a.kv.Len()]), long[a.kv.Len()-1:]
}

// drop gives the reserved slots of sequence i back.
func (m *made) drop(i int) {
	if err := m.seqs[i].Truncate(m.cached[i]); err != nil {
		panic(err)
	}
}

func TestLimits(t *testing.T) {
	m := small().make(t)
	for name, c := range map[string]struct {
		lim  mla.Limits
		says string
	}{
		"tokens":  {mla.Limits{Tokens: 14, Seqs: 4, Context: 100}, "15 new tokens, Limits.Tokens is 14"},
		"seqs":    {mla.Limits{Tokens: 15, Seqs: 3, Context: 100}, "4 sequences, Limits.Seqs is 3"},
		"context": {mla.Limits{Tokens: 15, Seqs: 4, Context: 74}, "75 keys, Limits.Context is 74 (sequence 1 of the batch)"},
	} {
		t.Run(name, func(t *testing.T) {
			a := m.args()
			err := m.plan(t, c.lim, nil).Forward(a.ctx, a.out, a.q, a.kv, a.b)
			require.ErrorIs(t, err, mla.ErrLimit)
			require.ErrorContains(t, err, c.says)
		})
	}
	for _, lim := range []mla.Limits{
		{}, {Tokens: 1, Seqs: 1}, {Tokens: -1, Seqs: 1, Context: 1}, {Tokens: 1, Seqs: 0, Context: 1},
		{Tokens: 1, Seqs: 1, Context: 1, Buffer: -1}, {Tokens: math.MaxInt, Seqs: 1, Context: 1}, {Tokens: 1, Seqs: 1, Context: math.MaxInt},
	} {
		_, err := bind(m.layer_, lim, nil)
		require.ErrorIs(t, err, mla.ErrConfig, "%+v", lim)
	}
}

func TestConfigErrors(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for name, c := range map[string]struct {
		spoil func(c *mla.Config)
		says  string
	}{
		"heads 0":         {func(c *mla.Config) { c.Heads = 0 }, "Heads is 0"},
		"heads negative":  {func(c *mla.Config) { c.Heads = -1 }, "Heads is -1"},
		"heads huge":      {func(c *mla.Config) { c.Heads = math.MaxInt }, "Heads is"},
		"nope 0":          {func(c *mla.Config) { c.Nope = 0 }, "Nope is 0"},
		"rope odd":        {func(c *mla.Config) { c.Rope = 7 }, "Rope is 7, want an even number"},
		"rope negative":   {func(c *mla.Config) { c.Rope = -2 }, "Rope is -2"},
		"v 0":             {func(c *mla.Config) { c.V = 0 }, "V is 0"},
		"latent 0":        {func(c *mla.Config) { c.Latent = 0 }, "Latent is 0"},
		"scale 0":         {func(c *mla.Config) { c.Scale = 0 }, "Scale is 0"},
		"scale NaN":       {func(c *mla.Config) { c.Scale = nan }, "Scale is NaN"},
		"scale Inf":       {func(c *mla.Config) { c.Scale = inf }, "Scale is +Inf"},
		"epsilon NaN":     {func(c *mla.Config) { c.Epsilon = nan }, "Epsilon is NaN"},
		"epsilon below 0": {func(c *mla.Config) { c.Epsilon = -0.5 }, "Epsilon is -0.5"},
		"mask unknown":    {func(c *mla.Config) { c.Mask.Kind = 77 }, "mask kind 77"},
		"no window":       {func(c *mla.Config) { c.Mask.Kind = mla.MaskChunked }, "chunked has window 0"},
		"window":          {func(c *mla.Config) { c.Mask.Window = 3 }, "causal takes no window"},
		"compute":         {func(c *mla.Config) { c.Compute = 2 }, "Compute 2"},
		"style":           {func(c *mla.Config) { c.RopeStyle = 9 }, "RopeStyle 9"},
		"rule":            {func(c *mla.Config) { c.FormRule = 9 }, "FormRule 9"},
		"threshold":       {func(c *mla.Config) { c.MAXThreshold = -1 }, "MAXThreshold is -1"},
		"rounding":        {func(c *mla.Config) { c.NormRounding = 9 }, "NormRounding 9"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := small().cfg
			c.spoil(&cfg)
			_, err := mla.New(cfg, mla.Weights{})
			require.ErrorIs(t, err, mla.ErrConfig)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func TestWeightErrors(t *testing.T) {
	m := small().make(t)
	c := m.cfg
	gamma := rowsOf("f32", m.gammas)
	other, err := fp8.PlainF32(5, 5, make([]float32, 25))
	require.NoError(t, err)
	for name, w := range map[string]struct {
		w    mla.Weights
		says string
	}{
		"nothing":     {mla.Weights{Gamma: gamma}, "UV is missing"},
		"no K, no UK": {mla.Weights{Gamma: gamma, UV: []fp8.Matrix{other}}, "K and UK are both missing"},
		"KVB shape":   {mla.Weights{Gamma: gamma, KVB: other}, "KVB is [5, 5], want [192, 72]"},
		"K shape":     {mla.Weights{Gamma: gamma, K: other, UV: []fp8.Matrix{other}}, "K is [5, 5], want [72, 72]"},
		"UK heads":    {mla.Weights{Gamma: gamma, UK: []fp8.Matrix{other}, UV: []fp8.Matrix{other}}, "UK has 1 matrices, want one per head = 3"},
		"both":        {mla.Weights{Gamma: gamma, KVB: m.kvb, K: other}, "KVB is given, and K"},
		"no gamma":    {mla.Weights{KVB: m.kvb}, "Gamma has 0 values, want R = 72"},
		"gamma short": {mla.Weights{KVB: m.kvb, Gamma: rowsOf("f32", m.gammas[:3])}, "Gamma has 3 values"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := mla.New(c, w.w)
			require.ErrorIs(t, err, mla.ErrWeights)
			require.ErrorContains(t, err, w.says)
		})
	}
}

func TestMergeErrors(t *testing.T) {
	f := func(n int) []float32 { return make([]float32, n) }
	for name, err := range map[string]error{
		"out":       mla.Merge(f(5), f(3), f(12), f(6), 2, 3, 2),
		"lse":       mla.Merge(f(6), f(2), f(12), f(6), 2, 3, 2),
		"parts":     mla.Merge(f(6), f(3), f(11), f(6), 2, 3, 2),
		"parts lse": mla.Merge(f(6), f(3), f(12), f(5), 2, 3, 2),
		"negative":  mla.Merge(nil, nil, nil, nil, -1, 3, 2),
		"huge":      mla.Merge(nil, nil, nil, nil, math.MaxInt, math.MaxInt, math.MaxInt),
	} {
		require.ErrorIs(t, err, mla.ErrShape, name)
	}
	shared := f(7)
	require.ErrorIs(t, mla.Merge(shared[:6], shared[4:], f(12), f(6), 2, 3, 2), mla.ErrShape, "lse overlaps out")
	both := f(12)
	require.ErrorIs(t, mla.Merge(both[:6], f(3), both, f(6), 2, 3, 2), mla.ErrShape, "out overlaps parts")
}

// TestCancelLeavesCommittedRows cancels a call after each of its work items in
// turn: committed rows, lengths and tables stay, the plan works again, and
// the next call gives the right bits.
func TestCancelLeavesCommittedRows(t *testing.T) {
	for _, form := range bothForms {
		w := small()
		w.cached, w.fresh = []int{130, 0}, []int{3, 40}
		m := w.make(t)
		pool := mla.NewPool(2)
		p := m.plan(t, m.limits(), pool)
		want := m.forward(t, p, form)
		committed := m.committed(t)
		for stop := int64(0); ; stop++ {
			ctx, cancel := context.WithCancel(context.Background())
			var items atomic.Int64
			pool.SetHook(func(int, int) {
				if items.Add(1) > stop {
					cancel()
				}
			})
			a := m.args()
			a.b.Forms = []mla.Form{form, form}
			err := p.Forward(ctx, a.out, a.q, a.kv, a.b)
			pool.SetHook(nil)
			cancel()
			for b := range m.seqs {
				require.Equal(t, m.cached[b], m.seqs[b].Len())
				require.Equal(t, m.fresh[b], m.seqs[b].Reserved())
			}
			require.Equal(t, committed, m.committed(t), "committed rows after item %d", stop)
			if err == nil {
				require.Positive(t, stop)
				break
			}
			require.ErrorIs(t, err, context.Canceled)
		}
		sameBits(t, want, m.forward(t, p, form), "after the cancelled calls")
		require.NoError(t, pool.Close())
	}
}

// committed is every committed row of every sequence.
func (m *made) committed(t testing.TB) []float32 {
	t.Helper()
	var all []float32
	for b, n := range m.cached {
		rows := make([]float32, n*m.width())
		require.NoError(t, m.seqs[b].ReadRows(rows, m.layer, 0, n))
		all = append(all, rows...)
	}
	return all
}

// TestUnmapped: a hole that a new token sees is an error, one that it does not
// see is none.
func TestUnmapped(t *testing.T) {
	for _, c := range []struct {
		mask mla.Mask
		ok   bool
	}{
		{mla.Mask{}, false},
		{mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 6}, true},
		{mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 7}, false},
	} {
		w := small()
		w.cfg.Mask = c.mask
		w.cached, w.fresh = []int{10}, []int{1}
		m := w.make(t)
		cache, err := kvpaged.New(kvpaged.Config{Layers: 2, PageTokens: 5, Width: w.width(), Format: kvpaged.F32, Pages: 4, Adopted: true})
		require.NoError(t, err)
		s, err := cache.Adopt([]int32{-1, 2, 0}, 10, 1)
		require.NoError(t, err)
		a := m.args()
		a.b.Cache, a.b.Seqs = cache, []*kvpaged.Seq{s}
		err = m.plan(t, m.limits(), nil).Forward(a.ctx, a.out, a.q, a.kv, a.b)
		if c.ok {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, mla.ErrUnmapped)
			require.ErrorContains(t, err, "position")
			var seq *mla.SeqError
			require.ErrorAs(t, err, &seq)
			require.Zero(t, seq.Index)
		}
		require.NoError(t, cache.Close())
	}
}

// TestSharedSlot: a new token may not be written where another sequence lives.
func TestSharedSlot(t *testing.T) {
	w := small()
	w.cached, w.fresh = []int{3}, []int{1}
	m := w.make(t)
	twin, err := m.cache.Adopt(m.seqs[0].Pages(), 3, 1)
	require.NoError(t, err)
	a := m.args()
	require.ErrorIs(t, m.plan(t, m.limits(), nil).Forward(a.ctx, a.out, a.q, a.kv, a.b), kvpaged.ErrShared)
	require.NoError(t, twin.Free())
	m.forward(t, m.plan(t, m.limits(), nil), mla.FormAuto)
}

// TestNothingToDo: no tokens, no sequences, only empty sequences.
func TestNothingToDo(t *testing.T) {
	w := small()
	w.cached, w.fresh = []int{4, 0}, []int{0, 0}
	m := w.make(t)
	p := m.plan(t, m.limits(), nil)
	before := slices.Clone(m.arena)
	a := m.args()
	require.NoError(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b))
	a.b.Seqs, a.b.Offsets = nil, []uint32{0}
	require.NoError(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b))
	var none context.Context
	require.NoError(t, p.Forward(none, a.out, a.q, a.kv, a.b), "a nil ctx is never cancelled")
	require.Equal(t, before, m.arena)
}

// TestClose: closing is idempotent, refused while a Forward runs, and final.
func TestClose(t *testing.T) {
	m := small().make(t)
	pool := mla.NewPool(2)
	p, err := bind(m.layer_, m.limits(), pool)
	require.NoError(t, err)
	a := m.args()

	inside, resume := make(chan struct{}), make(chan struct{})
	var once sync.Once
	pool.SetHook(func(int, int) { once.Do(func() { close(inside); <-resume }) })
	done := make(chan error)
	go func() { done <- p.Forward(a.ctx, a.out, a.q, a.kv, a.b) }()
	<-inside
	require.ErrorIs(t, p.Close(), mla.ErrBusy)
	require.ErrorIs(t, m.layer_.Close(), mla.ErrBusy)
	require.ErrorIs(t, m.cache.Close(), kvpaged.ErrBusy)
	require.ErrorIs(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b), mla.ErrBusy)
	second := m.plan(t, m.limits(), nil)
	require.ErrorIs(t, second.Forward(a.ctx, a.out, a.q, a.kv, a.b), kvpaged.ErrBusy, "one writer a sequence")
	close(resume)
	require.NoError(t, <-done)
	pool.SetHook(nil)

	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	require.ErrorIs(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b), mla.ErrClosed)
	require.NoError(t, m.layer_.Close())
	require.NoError(t, m.layer_.Close())
	require.ErrorIs(t, second.Forward(a.ctx, a.out, a.q, a.kv, a.b), mla.ErrClosed)
	_, err = bind(m.layer_, m.limits(), nil)
	require.ErrorIs(t, err, mla.ErrClosed)
	require.NoError(t, pool.Close())
}

// TestPools: a closed pool is an error of this package, a zero one works inline.
func TestPools(t *testing.T) {
	m := small().make(t)
	a := m.args()
	pool := mla.NewPool(2)
	p := m.plan(t, m.limits(), pool)
	require.NoError(t, pool.Close())
	require.ErrorIs(t, p.Forward(a.ctx, a.out, a.q, a.kv, a.b), mla.ErrClosed)
	want := m.forward(t, m.plan(t, m.limits(), nil), mla.FormAuto)
	sameBits(t, want, m.forward(t, m.plan(t, m.limits(), &mla.Pool{}), mla.FormAuto), "zero pool")
}

// TestManyPlansShareLayerAndPool runs plans side by side, each on sequences of
// its own, over one layer, one cache and one pool: the bits are those of a
// lonely call.
func TestManyPlansShareLayerAndPool(t *testing.T) {
	w := light([]int{70, 3, 129, 0}, []int{1, 9, 2, 20})
	m := w.make(t)
	pool := mla.NewPool(3)
	want := m.forward(t, m.plan(t, m.limits(), nil), mla.FormAuto)
	var wg sync.WaitGroup
	got := make([]answer, len(m.seqs))
	hd := w.cfg.Heads * (w.cfg.Nope + w.cfg.Rope)
	for b := range m.seqs {
		p := m.plan(t, m.limits(), pool)
		t0, t1 := int(m.offsets[b]), int(m.offsets[b+1])
		one := *m
		one.q, one.kvs = m.q[t0*hd:t1*hd], m.kvs[t0*w.width():t1*w.width()]
		one.seqs, one.offsets, one.tokens = m.seqs[b:b+1], []uint32{0, uint32(t1 - t0)}, t1-t0
		wg.Go(func() {
			for range 5 {
				got[b] = one.forward(t, p, mla.FormAuto)
			}
		})
	}
	wg.Wait()
	var all answer
	for _, a := range got {
		all.out, all.lse, all.top = append(all.out, a.out...), append(all.lse, a.lse...), append(all.top, a.top...)
	}
	sameBits(t, want, all, "side by side")
	require.NoError(t, pool.Close())
}

// TestDecodeErrors: Decode reads committed rows only.
func TestDecodeErrors(t *testing.T) {
	m := small().make(t)
	p := m.plan(t, m.limits(), nil)
	h := m.cfg.Heads
	q, out := mla.RowsF32(make([]float32, 4*h*m.width())), mla.RowsF32(make([]float32, 4*h*m.cfg.Latent))
	b := mla.Batch{Cache: m.cache, Layer: m.layer, Seqs: m.seqs[2:3], Offsets: []uint32{0, 4}}
	err := p.Decode(context.Background(), out, q, b)
	require.ErrorIs(t, err, mla.ErrShape)
	require.ErrorContains(t, err, "4 queries, but only 3 committed tokens (sequence 0 of the batch)")
	b.Offsets[1] = 3
	require.ErrorContains(t, p.Decode(context.Background(), out, q, b), "q has 984 values, want T*H*(R+P) = 738")
}
