package bench

import (
	"context"
	"encoding/json"
	"math"
	"regexp"
	"testing"
	"time"

	"github.com/klauspost/cpuid/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestLevel(t *testing.T) { kerneltest.Level(t) }

// collect keeps what a run reports.
type collect struct {
	machines []Machine
	rows     []Row
	left     []LeftOut
	limits   []Limits
	steps    int
	onRow    func()
}

func (c *collect) Machine(m Machine) { c.machines = append(c.machines, m) }
func (c *collect) Limits(l Limits)   { c.limits = append(c.limits, l) }
func (c *collect) LeftOut(l LeftOut) { c.left = append(c.left, l) }
func (c *collect) Row(r Row) {
	c.rows = append(c.rows, r)
	if c.onRow != nil {
		c.onRow()
	}
}
func (c *collect) Progress(done, total int, what string) { c.steps++ }

// tiny runs in a moment: sizes that divide nothing.
func tiny() Options {
	o := Quick() // which has no Rows
	o.Model = Model{Name: "tiny", Heads: 3, Nope: 10, Rope: 4, V: 6, Latent: 20, RopeStyle: mla.Half, Hidden: 37, QLora: 15}
	o.KV = []kvpaged.Format{kvpaged.BF16, kvpaged.FP8Tensor}
	o.Ctx, o.Batch, o.Prefill, o.M, o.Threads = []int{5, 70}, []int{1, 2}, []int{9}, []int{1, 7}, []int{1, 2}
	o.TopK = []int{33}
	o.RowTime, o.Budget = 100*time.Microsecond, time.Minute
	o.window, o.tries, o.buffer = 200*time.Microsecond, 1, 1<<20
	return o
}

func TestRun(t *testing.T) {
	o := tiny()
	if !testing.Short() {
		o.KV = []kvpaged.Format{kvpaged.BF16, kvpaged.F16, kvpaged.F32, kvpaged.FP8Unit, kvpaged.FP8Tensor, kvpaged.FP8Token}
	}
	c := testRun(t, o)
	assert.Empty(t, c.left)
	require.Len(t, c.rows, len(o.Specs()))
	for i, s := range o.Specs() {
		assert.Equal(t, s.Op, c.rows[i].Op)
		assert.Equal(t, s.Threads, c.rows[i].Threads)
	}
}

// testRun tests that every row has results, and right ones.
func testRun(t *testing.T, o Options) collect {
	var c collect
	require.NoError(t, Run(t.Context(), o, &c))
	require.Len(t, c.machines, 1)
	require.Len(t, c.limits, 1)
	assert.Equal(t, len(c.rows)+2, c.steps)
	for _, r := range c.rows {
		assert.Positive(t, r.MS, r)
		assert.GreaterOrEqual(t, r.MSMedian, r.MS, r)
		assert.Positive(t, r.Runs, r)
		assert.Positive(t, r.GFlops, r)
		if r.Rival == "" {
			assert.Positive(t, r.Share, r)
			assert.Contains(t, []string{"fma", "dram", "l3", "l2"}, r.Limit, r)
		}
		assert.Positive(t, r.Memory, r)
		assert.Positive(t, r.Checked, r)
		assert.Positive(t, r.MaxErr, r)
		assert.Less(t, r.MaxErr, 1e-5, r)
		assert.False(t, r.Wrong)
	}
	return c
}

// A format of fixed width runs where the rows of the model, or in attention alone
// its latents, have that width. Elsewhere its rows are left out, and listed first.
func TestFixedWidth(t *testing.T) {
	o := tiny()
	o.Model = Model{Name: "wide", Heads: 2, Nope: 8, Rope: 64, V: 32, Latent: 512}
	o.Ctx, o.Batch, o.Threads, o.Ops = []int{70}, []int{1}, []int{1}, []Op{Decode, SparseDecode, Prefill, Layer}
	o.KV = []kvpaged.Format{kvpaged.DSMLA656, kvpaged.V4_584}
	if !testing.Short() {
		o.KV = Formats()
		require.Contains(t, o.KV, kvpaged.V41FP4_288Planar)
	}
	c := testRun(t, o)
	assert.Equal(t, len(o.Specs()), len(c.rows)+len(c.left))
	ran := map[string][]Op{}
	for _, r := range c.rows {
		ran[r.KV] = append(ran[r.KV], r.Op)
		switch {
		case r.Op == Layer:
			assert.Zero(t, r.DQK+r.DV)
		case r.KV == "v4_584":
			assert.Equal(t, []int{512, 512}, []int{r.DQK, r.DV})
		case r.KV == "ds_mla_656":
			assert.Equal(t, []int{576, 512}, []int{r.DQK, r.DV})
		}
	}
	assert.Equal(t, []Op{Decode, SparseDecode}, ran["v4_584"])
	assert.Equal(t, []Op{Decode, SparseDecode, Layer, Layer}, ran["ds_mla_656"])
	reasons := map[string]string{}
	for _, l := range c.left {
		reasons[l.What] = l.Reason
	}
	assert.Contains(t, reasons["layer wide ctx=70 batch=1 tokens=1 kv=v4_584 threads=1"], "has 576 values")
	assert.Contains(t, reasons["layer wide ctx=70 batch=1 tokens=1 kv=v4_584 threads=1"], "want 512 in v4_584")

	// V4's own geometry: a whole layer, too.
	o.Model.Latent, o.Ops, o.KV = 448, []Op{Decode, Layer}, o.KV[len(o.KV)-1:]
	c = testRun(t, o)
	assert.Empty(t, c.left)
	assert.Equal(t, []int{512, 448}, []int{c.rows[0].DQK, c.rows[0].DV})
}

// Every format has room for a row of some width, and the bench a Config for it.
func TestFormats(t *testing.T) {
	all := Formats()
	assert.Equal(t, kvpaged.BF16, all[0])
	for _, f := range all {
		s := Spec{Op: Decode, Model: models[0], Ctx: 65, Batch: 2, Tokens: 1, KV: f}
		width, value, err := s.dims()
		require.NoError(t, err)
		assert.Equal(t, 512, value)
		_, err = kvpaged.ArenaBytes(s.cache(width))
		assert.NoError(t, err)
	}
}

// What storedError allows holds what every format does to a row, and is not far
// more than that: a format that needs other bounds has to be named there.
func TestStoredError(t *testing.T) {
	r := rng(3)
	for _, f := range Formats() {
		s := Spec{Op: Decode, Model: models[0], Ctx: 64, Batch: 1, Tokens: 1, KV: f}
		width, _, err := s.dims()
		require.NoError(t, err)
		st := &store{spec: s, width: width, rng: rng(4)}
		require.NoError(t, st.open(1))
		seq, row, most := st.batch.Seqs[0], make([]float32, width), 0.0
		for _, scale := range []float32{1, 0.01, 1, 3, 0.3} {
			r.fill(row, scale)
			require.NoError(t, seq.WriteRows(0, 63, row))
			require.NoError(t, st.commit())
			rel, abs := storedError(f, largest(oracle.Widen(row)))
			for i, y := range st.fetch()(0, 63) {
				x := float64(row[i])
				share := math.Abs(y-x) / (rel*math.Abs(x) + abs)
				require.LessOrEqual(t, share, 1.0, "%v: %v is stored as %v", f, x, y)
				most = max(most, share)
			}
			require.NoError(t, st.rollback())
		}
		if f != kvpaged.F32 {
			assert.Greater(t, most, 0.3, f)
		}
		require.NoError(t, st.close())
	}
}

// Lists name rows of the sequence, each once, and end in -1 where the context has
// no more.
func TestChoose(t *testing.T) {
	lab := NewLab(1)
	for _, topk := range []int{1, 33, 100, 130} {
		s := Spec{Op: SparseDecode, Model: tiny().Model, Ctx: 100, TopK: topk, Batch: 3, Tokens: 2, Threads: 1}
		w, err := lab.Open(s)
		require.NoError(t, err)
		c := w.(*core)
		require.Len(t, c.sparse.Indices, 6*topk)
		for token := range 6 {
			seen := map[int32]bool{}
			pages := c.batch.Seqs[token/2].Pages()
			for i, row := range c.sparse.Indices[token*topk:][:topk] {
				if i >= 100 {
					assert.EqualValues(t, -1, row)
					continue
				}
				assert.False(t, seen[row])
				seen[row] = true
				assert.Contains(t, pages, row/pageTokens)
			}
		}
		require.NoError(t, w.Run(t.Context()))
		_, err = w.Check()
		require.NoError(t, err)
		assert.Zero(t, c.sparse.Ignored)
		require.NoError(t, w.Close())
	}
	require.NoError(t, lab.Close())
}

// A spoiled answer of any operation is found, reported in its row, and makes
// the run fail at its end.
func TestWrongAnswers(t *testing.T) {
	for _, spoil := range []func([]float32){
		func(y []float32) { y[0] *= 1.01 },
		func(y []float32) { y[len(y)-1] = float32(math.NaN()) },
	} {
		o := tiny()
		o.Ctx, o.Batch, o.M, o.Threads = []int{70}, []int{2}, []int{7}, []int{1}
		o.KV = o.KV[:1]
		o.tamper = spoil
		var c collect
		err := Run(t.Context(), o, &c)
		require.ErrorIs(t, err, ErrWrong)
		require.Len(t, c.rows, len(o.Specs()))
		for _, r := range c.rows {
			assert.True(t, r.Wrong, r)
			assert.Contains(t, err.Error(), string(r.Op)+" tiny")
		}
	}
}

// A right answer is right in rows of one value, too, where there is nothing but what may cancel.
func TestCancelling(t *testing.T) {
	one := tiny().Model
	one.Nope, one.Rope, one.V, one.Latent, one.Hidden = 3, 2, 1, 1, 1
	for _, s := range []Spec{
		{Op: Gemm, Model: one, M: 50, N: 1, K: 300},
		{Op: Decode, Model: one, Ctx: 300, Batch: 2, Tokens: 1, KV: kvpaged.F32},
		{Op: SparseDecode, Model: one, Ctx: 300, TopK: 3, Batch: 2, Tokens: 1, KV: kvpaged.F32},
		{Op: Prefill, Model: one, Ctx: 90, Batch: 1, Tokens: 90, KV: kvpaged.F32},
		{Op: Layer, Model: one, Ctx: 300, Batch: 2, Tokens: 1, KV: kvpaged.F32},
		{Op: Block, Model: one, Ctx: 300, Batch: 2, Tokens: 1, KV: kvpaged.F32},
	} {
		s.Threads = 1
		for seed := range uint64(25) {
			lab := NewLab(seed)
			w, err := lab.Open(s)
			require.NoError(t, err)
			require.NoError(t, w.Run(t.Context()))
			_, err = w.Check()
			assert.NoError(t, err, "seed %d", seed)
			require.NoError(t, w.Close())
			require.NoError(t, lab.Close())
		}
	}
}

// Rows beyond the budget are listed, not run.
func TestLeftOut(t *testing.T) {
	o := tiny()
	o.Prefill = append(o.Prefill, 1<<16)
	o.Budget = 20 * time.Second
	o.Ops = []Op{Prefill}
	var c collect
	require.NoError(t, Run(t.Context(), o, &c))
	assert.Len(t, c.rows, len(o.Specs())/2)
	require.Len(t, c.left, len(o.Specs())/2)
	assert.Equal(t, "left_out", c.left[0].Op)
	assert.Equal(t, "prefill tiny ctx=65536 batch=1 tokens=65536 kv=f32 threads=1", c.left[0].What)
	assert.Contains(t, c.left[0].Reason, "budget")
}

// A run that measures nothing is not a good one.
func TestNothingMeasured(t *testing.T) {
	o := tiny()
	o.Budget = time.Nanosecond
	var c collect
	err := Run(t.Context(), o, &c)
	require.ErrorIs(t, err, ErrBudget)
	assert.EqualError(t, err, "bench: nothing was measured: no row fits the budget of 1ns")
	assert.Empty(t, c.rows)
	require.Len(t, c.left, len(o.Specs()))
	assert.Contains(t, c.left[0].Reason, "were left for this and 73 more rows")
	assert.Contains(t, c.left[len(c.left)-2].Reason, "were left for this and 1 more row")
	assert.Contains(t, c.left[len(c.left)-1].Reason, "were left for this row")
}

func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	c := collect{onRow: cancel}
	require.ErrorIs(t, Run(ctx, tiny(), &c), context.Canceled)
	assert.Len(t, c.rows, 1)

	c = collect{}
	require.ErrorIs(t, Run(ctx, tiny(), &c), context.Canceled)
	assert.Empty(t, c.rows)
}

// The names of the fields are an interface.
func TestJSON(t *testing.T) {
	o := tiny()
	o.Ctx, o.Batch, o.M, o.Threads, o.KV = []int{70}, []int{2}, []int{7}, []int{1}, o.KV[:1]
	var c collect
	require.NoError(t, Run(t.Context(), o, &c))
	keys := func(v any) map[string]any {
		text, err := json.Marshal(v)
		require.NoError(t, err)
		m := map[string]any{}
		require.NoError(t, json.Unmarshal(text, &m))
		return m
	}
	machine := keys(c.machines[0])
	assert.Equal(t, "machine", machine["op"])
	for _, k := range []string{"cpu", "cores", "simd", "levels", "peak_gflops_1", "peak_gflops_n", "dram_gbps_1", "dram_gbps_n", "threads", "go"} {
		assert.Contains(t, machine, k)
	}
	always := []string{"op", "model", "threads", "arithmetic", "ms", "ms_median", "runs", "gflops", "checked", "max_err"}
	attention := append([]string{"heads", "ctx", "batch", "tokens", "kv", "simd", "tok_per_s", "share", "limit"}, always...)
	for _, r := range c.rows {
		row, want := keys(r), attention
		assert.Equal(t, r.Op == SparseDecode, row["topk"] != nil)
		assert.Equal(t, r.Op.isCore() || r.Op == Prefill, row["d_qk"] != nil && row["d_v"] != nil)
		if r.Op == Gemm {
			want = append([]string{"m", "n", "k", "weights", "gbps"}, always...)
			assert.Equal(t, r.Rival == "", row["simd"] == simd.Level())
			assert.Equal(t, r.Rival == "", row["share"] != nil && row["limit"] != nil)
			assert.NotContains(t, row, "kv")
		}
		for _, k := range want {
			assert.Contains(t, row, k, r)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, spoil := range map[string]func(*Options){
		"no ctx":      func(o *Options) { o.Ctx = nil },
		"batch 0":     func(o *Options) { o.Batch = []int{0} },
		"huge m":      func(o *Options) { o.M = []int{1 << 30} },
		"topk 0":      func(o *Options) { o.TopK = []int{0} },
		"no fit":      func(o *Options) { o.Ops, o.KV = []Op{Decode, Layer}, []kvpaged.Format{kvpaged.DSMLA656} },
		"op":          func(o *Options) { o.Ops = []Op{"fly"} },
		"no op":       func(o *Options) { o.Ops = nil },
		"no model":    func(o *Options) { o.Model = Model{} },
		"no time":     func(o *Options) { o.RowTime = 0 },
		"past budget": func(o *Options) { o.Budget = -1 },
	} {
		o := tiny()
		spoil(&o)
		assert.ErrorIs(t, Run(t.Context(), o, &collect{}), ErrOptions, name)
	}
	o := tiny()
	o.Match = regexp.MustCompile("nothing")
	err := o.Check()
	assert.ErrorIs(t, err, ErrOptions)
	assert.ErrorContains(t, err, `no row matches "nothing"`)
	assert.NoError(t, Defaults().Check())
	assert.NoError(t, Quick().Check())
}

func TestParseModel(t *testing.T) {
	for _, m := range Models() {
		got, err := ParseModel(m.Name)
		require.NoError(t, err)
		assert.Equal(t, m, got)
	}
	_, err := ParseModel("gpt")
	require.ErrorIs(t, err, ErrModel)
	assert.EqualError(t, err, `bench: unknown model "gpt", want one of v3, v2-lite, kimi-k2, glm-4.7-flash, glm-5, minicpm3`)
}

// A list longer than a context makes a row only if no context is long enough.
func TestSparseSpecs(t *testing.T) {
	o := tiny()
	o.Ops, o.Batch, o.Threads, o.KV = []Op{SparseDecode}, []int{1}, []int{1}, o.KV[:1]
	o.TopK = []int{5, 33, 71}
	var pairs [][2]int
	for _, s := range o.Specs() {
		pairs = append(pairs, [2]int{s.TopK, s.Ctx})
	}
	assert.Equal(t, [][2]int{{5, 5}, {71, 5}, {5, 70}, {33, 70}, {71, 70}}, pairs)
}

// Rows take the place of combinations; Ops and Match choose of both.
func TestRows(t *testing.T) {
	o := tiny()
	o.Rows, o.Arithmetic = Table(), []mla.Compute{mla.ComputeF32, mla.ComputeBF16}
	assert.Len(t, o.Specs(), 2*len(Table()))
	o.Arithmetic = o.Arithmetic[1:]
	assert.Len(t, o.Specs(), 2*len(tableBF16()))
	o.Arithmetic = []mla.Compute{mla.ComputeF32}
	assert.Len(t, o.Specs(), 2*(len(Table())-len(tableBF16())))
	o.Ops = []Op{Gemm, Layer}
	for _, s := range o.Specs() {
		assert.Contains(t, o.Ops, s.Op)
	}
	o.Match = regexp.MustCompile(`^layer .*tokens=1 .*threads=2$`)
	rows := o.Specs()
	require.Len(t, rows, 1)
	assert.Equal(t, "layer v3 ctx=4096 batch=1 tokens=1 kv=bf16 threads=2", rows[0].String())
	o.Rows = nil
	assert.Len(t, o.Specs(), 2*2) // formats and contexts of one sequence
}

// Every operation in the second arithmetic: named so, right within its bounds, and found
// out when it is not.
func TestRunBF16(t *testing.T) {
	o := tiny()
	o.Arithmetic = []mla.Compute{mla.ComputeBF16}
	var c collect
	require.NoError(t, Run(t.Context(), o, &c))
	assert.Positive(t, c.machines[0].Pairs1)
	ops := map[Op]bool{}
	for _, r := range c.rows {
		ops[r.Op] = true
		assert.Equal(t, "bf16", r.Arithmetic)
		assert.Empty(t, r.Rival)
		assert.Positive(t, r.Checked)
		if r.Op == Gemm {
			assert.Less(t, r.MaxErr, 2e-6)
		} else {
			assert.Less(t, r.MaxErr, 0x1p-6, r)
			assert.Greater(t, r.MaxErr, 1e-5, "rounded to bf16")
		}
	}
	assert.Len(t, ops, len(Ops()))

	o.tamper = func(y []float32) { y[len(y)-1] += 0.1 }
	assert.ErrorIs(t, Run(t.Context(), o, &collect{}), ErrWrong)
}

// A ragged batch, and products of several matrices.
func TestBatches(t *testing.T) {
	o := tiny()
	decode := Spec{Op: Decode, Model: o.Model, Ctx: 90, Shortest: 3, Batch: 4, Tokens: 1}
	layer := decode
	layer.Op, layer.Tokens = Layer, 2
	products := Spec{Op: Gemm, Model: o.Model, M: 3, N: 21, K: 33, Batch: 5}
	o.Rows = []Spec{decode, layer, products}
	c := testRun(t, o)
	require.Len(t, c.rows, 6)
	assert.Equal(t, []int{3, 90, 4}, []int{c.rows[0].CtxMin, c.rows[0].Ctx, c.rows[0].Batch})
	assert.Equal(t, 8, c.rows[2].Tokens)
	assert.Equal(t, 5, c.rows[4].Batch)
	assert.Equal(t, "decode tiny ctx=3..90 batch=4 tokens=4 kv=bf16 threads=0", decode.String())
	assert.Equal(t, "gemm tiny m=3 n=21 k=33 batch=5 threads=0", products.String())

	o.tamper = func(y []float32) { y[len(y)-1] *= 1.01 }
	c = collect{}
	require.ErrorIs(t, Run(t.Context(), o, &c), ErrWrong)
	for _, r := range c.rows {
		assert.True(t, r.Wrong, r)
	}

	lab := NewLab(1)
	defer func() { require.NoError(t, lab.Close()) }()
	decode.Op, decode.TopK = SparseDecode, 2
	_, err := lab.Open(decode)
	assert.ErrorContains(t, err, "ragged")
	products.Rival = Gonum
	_, err = lab.Open(products)
	assert.ErrorContains(t, err, "5 products")
}

// Prefill takes prompts of several sequences, with keys and values of their own.
func TestPrefill(t *testing.T) {
	o := tiny()
	prompts := Spec{Op: Prefill, Model: o.Model, Ctx: 37, Batch: 3, Tokens: 37, KV: kvpaged.F32}
	o.Rows = []Spec{prompts}
	c := testRun(t, o)
	require.Len(t, c.rows, 2)
	assert.Equal(t, []int{14, 6, 111}, []int{c.rows[0].DQK, c.rows[0].DV, c.rows[0].Tokens})

	lab := NewLab(1)
	defer func() { require.NoError(t, lab.Close()) }()
	for _, spoil := range []func(*Spec){func(s *Spec) { s.KV = kvpaged.BF16 }, func(s *Spec) { s.Ctx++ }} {
		s := prompts
		spoil(&s)
		_, err := lab.Open(s)
		assert.ErrorContains(t, err, "ready keys and values are those of the prompt")
	}
	for arithmetic, want := range map[mla.Compute][]int{
		mla.ComputeF32: {16, 16, 48, 80, 208, 144}, mla.ComputeBF16: {32, 32, 32, 96, 224, 160},
	} {
		s := Spec{Arithmetic: arithmetic}
		var got []int
		for _, n := range []int{1, 16, 17, 64, 192, 128} {
			got = append(got, s.oddLines(n))
		}
		assert.Equal(t, want, got)
	}
}

// The limits of a machine are there, and ordered as memories are.
func TestMeasure(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the machine for seconds; so does every run of the benchmarks")
	}
	m, err := Measure(t.Context(), 2)
	require.NoError(t, err)
	assert.Positive(t, m.Peak1)
	assert.Positive(t, m.PeakN)
	assert.Positive(t, m.DRAM1)
	assert.Positive(t, m.DRAMN)
	assert.Equal(t, m.L1Bytes > 0, m.L1 > 0)
	assert.Equal(t, m.L2Bytes > 0, m.L2 > 0)
	assert.Equal(t, m.L3Bytes > 0, m.L3 > 0)
	assert.Contains(t, m.Limits(), " GFLOP/s, dram ")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Measure(ctx, 1)
	assert.ErrorIs(t, err, context.Canceled)
}

// What reading is about is measured by reading, even where computing takes longer.
func TestLimit(t *testing.T) {
	m := &meter{known: map[knownLimit]float64{
		{limitFMA, 1}: 1e9, {limitDRAM, 1}: 10e9, {limitL3, 1}: 20e9, {limitL2, 1}: 30e9,
	}}
	one, many := gemmOf(1, 1000, 1000), gemmOf(2, 1000, 1000)
	one.Threads, many.Threads = 1, 1
	seconds, name := m.limit(one, 1e6, 1<<40)
	assert.Equal(t, limitDRAM, name)
	assert.InDelta(t, 1e-4, seconds, 1e-9)
	seconds, name = m.limit(many, 1e6, 1<<40)
	assert.Equal(t, limitFMA, name)
	assert.InDelta(t, 4e-3, seconds, 1e-9)
	_, name = m.limit(many, 1e9, 1<<40)
	assert.Equal(t, limitDRAM, name)
	if cache := cpuid.CPU.Cache; cache.L3 > cache.L2 && cache.L2 > 1000 {
		_, name = m.limit(one, 1e6, int64(cache.L2))
		assert.Equal(t, limitL3, name)
		_, name = m.limit(one, 1e6, 1000)
		assert.Equal(t, limitL2, name)
	}
}

// The formulas of the contract, for DeepSeek-V3.
func TestWork(t *testing.T) {
	v3 := models[0]
	decode := Spec{Op: Decode, Model: v3, Ctx: 1000, Batch: 3, Tokens: 1}
	assert.Equal(t, 3*1000*278528.0, decode.Flops())
	assert.Equal(t, 3*1000*1152.0, decode.Bytes(1152))

	sparse := Spec{Op: SparseDecode, Model: v3, Ctx: 9000, TopK: 1000, Batch: 3, Tokens: 1}
	assert.Equal(t, decode.Flops(), sparse.Flops())
	assert.Equal(t, decode.Bytes(656), sparse.Bytes(656))
	sparse.KV = kvpaged.V4_584
	assert.Equal(t, 3*1000*2*128*1024.0, sparse.Flops())
	sparse.Ctx = 10
	assert.Equal(t, 3*10*2*128*1024.0, sparse.Flops())

	decode.Op = Layer
	assert.Equal(t, 3*(1000*278528.0+33554432), decode.Flops())
	assert.Equal(t, 3*1000*1152.0+16777216, decode.Bytes(1152))

	prompt := Spec{Op: Prefill, Model: v3, Ctx: 512, Batch: 1, Tokens: 512}
	assert.Equal(t, 40960.0*512*513, prompt.Flops())
	prompt.Op = Layer
	assert.Equal(t, 40960.0*512*513+512*33554432, prompt.Flops())

	const projected = 1536*7168 + 24576*1536 + 576*7168 + 7168*16384
	decode.Op, prompt.Op = Block, Block
	assert.Equal(t, 3*(1000*278528.0+33554432+2*projected), decode.Flops())
	assert.Equal(t, 3*1000*1152.0+16777216+projected, decode.Bytes(1152))
	assert.Equal(t, 40960.0*512*513+512*(33554432+2*projected), prompt.Flops())
	lite := decode
	lite.Model = models[1]
	assert.Equal(t, 16*192*2048+576*2048+2048*2048, lite.Model.projected())

	ragged := Spec{Op: Decode, Model: v3, Ctx: 8000, Shortest: 1000, Batch: 4, Tokens: 1}
	assert.Equal(t, []int{1000, 2000, 4000, 8000}, []int{ragged.length(0), ragged.length(1), ragged.length(2), ragged.length(3)})
	assert.Equal(t, 15000*278528.0, ragged.Flops())
	assert.Equal(t, 15000*1152.0, ragged.Bytes(1152))
	ragged.Batch = 1
	assert.Equal(t, 8000*278528.0, ragged.Flops())

	products := Spec{Op: Gemm, M: 3, N: 5, K: 7, Batch: 11}
	assert.Equal(t, 11*2*3*5*7.0, products.Flops())
	assert.Equal(t, 11*(35+4*3*12.0), products.Bytes(0))

	assert.Equal(t, 2*3*5*7.0, Spec{Op: Gemm, M: 3, N: 5, K: 7}.Flops())
	assert.Equal(t, 35+4*3*12.0, Spec{Op: Gemm, M: 3, N: 5, K: 7}.Bytes(0))
}

// The bench decodes its weights by itself; the library's way must agree.
func TestMatrixDecodes(t *testing.T) {
	r := rng(5)
	m := r.codedMatrix(130, 131)
	f, err := m.fp8()
	require.NoError(t, err)
	var square float64
	for i := range m.rows {
		for j, x := range m.row(i) {
			require.InDelta(t, x, f.At(i, j), math.Abs(x)*0x1p-24)
			square += x * x
		}
	}
	assert.InDelta(t, 1, square/float64(m.rows), 0.6, "rows have a norm of about 1")
	for c, x := range e4m3 {
		assert.True(t, kerneltest.SameBits(simd.E4M3ToF32(byte(c)), float32(x)), "code %#x is %v", c, x)
	}
}

func TestNormal(t *testing.T) {
	r := rng(7)
	var sum, square float64
	const n = 20000
	for range n {
		x := float64(r.normal())
		sum += x
		square += x * x
	}
	assert.InDelta(t, 0, sum/n, 0.05)
	assert.InDelta(t, 1, square/n, 0.05)
}

func TestDigits(t *testing.T) {
	assert.Equal(t, 1.235, digits(1.23456))
	assert.Equal(t, 123500.0, digits(123456))
	assert.Equal(t, 0.0, digits(math.NaN()))
	assert.Equal(t, 0.0, digits(math.Inf(1)))
}
