package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// rounding says whether the operands of float64 attention are rounded, where docs/arithmetic.md
// rounds them: all but probabilities.
type rounding bool

const (
	unrounded rounding = false
	toBF16    rounding = true
)

// act is a value of a query or of an activation.
func (r rounding) act(x float64) float64 {
	switch {
	case !bool(r):
		return x
	case math.Abs(x) < 0x1p-60:
		return 0
	}
	return roundTo(checkpoint.BF16, x)
}

// value is one of a key, of a value or of a weight.
func (r rounding) value(x float64) float64 {
	if !bool(r) {
		return x
	}
	if x = roundTo(checkpoint.BF16, x); math.Abs(x) < 0x1p-52 {
		return 0
	}
	return x
}

func mapped(x []float64, f func(float64) float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = f(v)
	}
	return y
}

// attention is a case of one of the ops that attend.
type attention struct {
	want  *answer
	dtype *checkpoint.DType
	flash tolerance
	more  allowance

	heads, v, each int // each: tokens of a sequence in [B, h, S]
	// truth is the answer in float64, by token and head.
	truth func(testing.TB, rounding) []oracle.Row
	run   func() (outcome, error)
}

// openAttention reads a case and sets it to the second arithmetic; nil for a merge.
func openAttention(t testing.TB, path string) *attention {
	f, err := checkpoint.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	r := newReader(f)
	r.choice("lamina.case", "1")
	r.text("name")
	switch op := r.text("op"); op {
	case "graph":
		g, err := readGraph(r)
		require.NoError(t, err)
		g.cfg.Compute = mla.ComputeBF16
		a := &attention{want: &g.want, dtype: &g.dtype, flash: flashDense, more: withProducts, heads: g.cfg.Heads, v: g.cfg.V, each: 1}
		if g.dynamic() {
			a.more = withCodes
		}
		a.truth = func(t testing.TB, r rounding) []oracle.Row { return g.truth(t, r) }
		a.run = func() (outcome, error) { return g.run(context.Background(), nil, options{}) }
		return a
	case "sparse_decode", "sparse_prefill":
		c, err := readSparseCase(r, op)
		require.NoError(t, err)
		c.core.Compute = mla.ComputeBF16
		a := &attention{want: &c.want, dtype: &c.dtype, flash: flashSparseDecode, more: c.allowance(), heads: c.core.Heads, v: c.core.V, each: c.each}
		if op == "sparse_prefill" {
			a.flash, a.each = flashSparsePrefill, 1
		}
		a.truth = func(t testing.TB, r rounding) []oracle.Row { return c.truth(t, r) }
		a.run = func() (outcome, error) { return c.run(context.Background(), nil, options{}) }
		return a
	}
	return nil
}

// answers are the truth in the layout of a case's answer.
func (a *attention) answers(rows []oracle.Row) (output, lse, maxLogits []float32) {
	lse, maxLogits = make([]float32, len(rows)), make([]float32, len(rows))
	for i, r := range rows {
		for _, x := range r.Out {
			output = append(output, float32(x))
		}
		token, h := i/a.heads, i%a.heads
		at := (token/a.each*a.heads+h)*a.each + token%a.each
		lse[at], maxLogits[at] = float32(r.LSE), float32(r.MaxLogit)
	}
	return output, lse, maxLogits
}

// attentionCases are the paths of the cases that attend: of goldenEnv's folder, or the embedded ones.
func attentionCases(t testing.TB) []string {
	folder := os.Getenv(goldenEnv)
	if folder == "" {
		folder = "testdata"
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	require.NoError(t, err)
	merges := func(path string) bool { ok, _ := filepath.Match("merge_*", filepath.Base(path)); return ok }
	paths = slices.DeleteFunc(paths, merges)
	require.NotEmpty(t, paths)
	return paths
}

// TestRoundedOperands holds the second arithmetic to the tolerances that FlashMLA publishes, as they
// are: rel and cos to the letter, abs by the size of the outputs. The truth is float64 on operands
// that are rounded where the arithmetic says, as FlashMLA's is on operands that are bf16; the same
// truth without the roundings must be the answer of the case. What remains is the rounding of
// probabilities, which a log-sum-exp shows by at most 2^-9, and of latent outputs.
func TestRoundedOperands(t *testing.T) {
	for _, path := range attentionCases(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			a := openAttention(t, path)
			w := a.want
			output, lse, _ := a.answers(a.truth(t, unrounded))
			tol := w.tol.out
			if w.tol.f32 != nil {
				tol = *w.tol.f32
			}
			require.Empty(t, check{what: "truth", shape: w.shape, tol: tol, cosine: true}.compare(output, w.output).fault)
			if w.lse != nil {
				require.Empty(t, check{what: "true lse", shape: w.perHead, tol: w.lseTol}.compare(lse, w.lse).fault)
			}

			w.output, w.lse, w.maxLogits = a.answers(a.truth(t, toBF16))
			w.in(mla.ComputeBF16, a.flash, asPublished)
			w.lseTol.abs = roundedSum
			if a.more == withProducts || a.more == withCodes {
				// A float32 sum near the middle of two values of bf16 may be rounded to the other one.
				w.maxLogitTol = w.lseTol
			}
			*a.dtype = checkpoint.F32
			o, err := a.run()
			require.NoError(t, err)
			assert.Empty(t, o.faults)
			if largest(w.output) > 1e-3 {
				for i := range o.output.floats {
					o.output.floats[i] *= 1.005
				}
				v := check{tol: w.tol.out, cosine: true}.compare(o.output.floats, w.output)
				assert.NotEmpty(t, v.fault, "all outputs by 1.005")
			}
			t.Logf("largest %.2g, max abs %.2g, cos %.2g, lse %.2g", largest(w.output), o.verdict.maxAbs, o.verdict.cosDiff, *o.lseMaxAbs)
		})
	}
}

// table is all rows of a cache's layer, by page*PageTokens + offset.
func table(t testing.TB, c *kvpaged.Cache, layer int, r rounding) (rows [][]float64) {
	cfg := c.Config()
	pages := make([]int32, cfg.Pages)
	for i := range pages {
		pages[i] = int32(i)
	}
	n := cfg.Pages * cfg.PageTokens
	s, err := c.Adopt(pages, n, 0)
	require.NoError(t, err)
	x := make([]float32, n*cfg.Width)
	require.NoError(t, s.ReadRows(x, layer, 0, n))
	require.NoError(t, s.Free())
	return rowsOf(oracle.Widen(x), cfg.Width, r)
}

func rowsOf(x []float64, width int, r rounding) (rows [][]float64) {
	for ; len(x) > 0; x = x[width:] {
		rows = append(rows, mapped(x[:width], r.value))
	}
	return rows
}

// extraTable is the rows of a second cache, if there is one.
func extraTable(t testing.TB, x *extraCache, r rounding) [][]float64 {
	if x == nil {
		return nil
	}
	e, err := x.open()
	require.NoError(t, err)
	defer func() { require.NoError(t, e.Cache.Close()) }()
	return table(t, e.Cache, 0, r)
}

func float64s(r mla.Rows) []float64 {
	x := make([]float32, r.Len())
	r.Widen(x, 0, len(x))
	return oracle.Widen(x)
}

// of are the entries of a token's list that are rows.
func (l indexList) of(token, seq, rows int) (valid []int) {
	n := l.stride
	if l.lengths != nil {
		at := seq
		if l.per == mla.TopKPerToken {
			at = token
		}
		n = max(0, min(n, int(l.lengths[at])))
	}
	for _, i := range l.indices[token*l.stride:][:n] {
		if i >= 0 && int(i) < rows {
			valid = append(valid, int(i))
		}
	}
	return valid
}

func sinkOf(sink []float32, h int) float64 {
	if sink == nil {
		return oracle.NoSink
	}
	return float64(sink[h])
}

// softmax is attention over all rows.
func softmax(q []float64, keys, values [][]float64, scale float32, sink float64, v int) oracle.Row {
	all := make([]int, len(keys))
	for i := range all {
		all[i] = i
	}
	key := func(j int) []float64 { return keys[j] }
	value := func(j int) []float64 { return values[j][:v] }
	return oracle.AttendApart(q, key, value, all, float64(scale), sink, v)
}

func (c *sparseCase) truth(t testing.TB, r rounding) (out []oracle.Row) {
	var first [][]float64
	second := extraTable(t, c.extra, r)
	w, h := c.core.Width, c.core.Heads
	if c.kv != nil {
		first = rowsOf(float64s(*c.kv), w, r)
	} else {
		cache, err := openCopy(firstCache, c.cache)
		require.NoError(t, err)
		defer func() { require.NoError(t, cache.Close()) }()
		first = table(t, cache, 0, r)
	}
	q := mapped(float64s(c.q), r.act)
	for token := range c.seqs * c.each {
		var rows [][]float64
		for _, i := range c.of(token, token/c.each, len(first)) {
			rows = append(rows, first[i])
		}
		if c.extra != nil {
			for _, i := range c.extra.of(token, token/c.each, len(second)) {
				rows = append(rows, second[i])
			}
		}
		for head := range h {
			out = append(out, softmax(q[(token*h+head)*w:][:w], rows, rows, c.core.Scale, sinkOf(c.sink, head), c.core.V))
		}
	}
	return out
}

// exactLayer is a case of op graph in float64.
type exactLayer struct {
	*graphCase
	rounding
	layer         *mla.Layer // for its defaults and its choice of a form
	first, second [][]float64
	q, w          []float64   // [T, H, N+P], kv_b_proj
	call          oracle.Call // for RoPE
}

func (g *graphCase) truth(t testing.TB, r rounding) (out []oracle.Row) {
	layer, err := mla.New(g.cfg, g.weights)
	require.NoError(t, err)
	defer func() { require.NoError(t, layer.Close()) }()
	x := &exactLayer{graphCase: g, rounding: r, layer: layer, q: float64s(g.q), w: make([]float64, g.weights.KVB.Rows()*g.cfg.Latent)}
	x.first, x.second = g.stored(t, layer, r), extraTable(t, g.extra, r)
	x.call = oracle.Call{Config: oracle.Config{Rope: g.cfg.Rope, HalfRope: g.cfg.RopeStyle == mla.Half}, Freqs: float64s(g.freqs)}
	for i := range x.w {
		x.w[i] = x.weight(i/g.cfg.Latent, i%g.cfg.Latent)
	}
	for b := range g.pages.lengths {
		form := layer.Form(g.newTokens(b), g.pages.keys(b))
		if forms := g.forms(""); forms != nil {
			form = forms[b]
		}
		for s := range g.newTokens(b) {
			token, pos := int(g.offsets[b])+s, g.pages.lengths[b]+s
			rows := x.visible(b, token, pos)
			for h := range g.cfg.Heads {
				if g.sparse != nil || form == mla.FormAbsorbed {
					out = append(out, x.absorbed(t, token, pos, h, rows))
				} else {
					out = append(out, x.expanded(token, pos, h, rows))
				}
			}
		}
	}
	return out
}

// stored is the cache after the call.
func (g *graphCase) stored(t testing.TB, layer *mla.Layer, r rounding) [][]float64 {
	cache, seqs, err := g.openCache(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, cache.Close()) }()
	if g.extra != nil {
		g.sparse.Extra, err = g.extra.open()
		require.NoError(t, err)
		defer func() { require.NoError(t, g.sparse.Extra.Cache.Close()) }()
	}
	lim := mla.Limits{Tokens: max(g.tokens, 1), Seqs: max(len(seqs), 1), Context: max(g.pages.longest(), 1)}
	ws, err := mla.NewWorkspace(lim, nil, layer)
	require.NoError(t, err)
	defer func() { require.NoError(t, ws.Close()) }()
	out := make([]float32, g.tokens*g.cfg.Heads*g.cfg.V)
	require.NoError(t, layer.Forward(context.Background(), ws, mla.RowsF32(out), g.q, g.kv, mla.Batch{Cache: cache, Layer: g.layer,
		Seqs: seqs, Offsets: g.offsets, Freqs: g.freqs, Sink: g.sink, Sparse: g.sparse}))
	for b, s := range seqs {
		require.NoError(t, s.Commit(g.newTokens(b)))
		require.NoError(t, s.Free())
	}
	return table(t, cache, g.layer, r)
}

func (x *exactLayer) weight(i, j int) float64 {
	m := &x.weights.KVB
	code := float64(m.Code(i, j))
	if !m.Scaled() {
		return x.value(code)
	}
	return code * float64(m.Scale(i, j)) // codes are exact, scales go to the sums
}

// visible are the rows that a token sees.
func (x *exactLayer) visible(b, token, pos int) (rows [][]float64) {
	if x.sparse == nil {
		kind, _, _ := strings.Cut(x.cfg.Mask.String(), ":")
		mask := oracle.Mask{Kind: kind, Window: x.cfg.Mask.Window}
		for _, k := range mask.Visible(pos, x.pages.keys(b)) {
			rows = append(rows, x.first[x.physical(b, k)])
		}
		return rows
	}
	s, limit := x.sparse, len(x.first)
	if s.Logical {
		limit = pos + 1
	}
	for _, k := range (indexList{s.Indices, s.Stride, s.Lengths, s.LengthsPer}).of(token, b, limit) {
		if s.Logical {
			k = x.physical(b, k)
		}
		if k >= 0 {
			rows = append(rows, x.first[k])
		}
	}
	if x.extra != nil {
		for _, k := range x.extra.of(token, b, len(x.second)) {
			rows = append(rows, x.second[k])
		}
	}
	return rows
}

// head is a query's two parts, the second rotated, and the weights of its head.
func (x *exactLayer) head(token, pos, h int) (nope, rope, uk, uv []float64) {
	c := x.cfg
	q := x.q[(token*c.Heads+h)*(c.Nope+c.Rope):][:c.Nope+c.Rope]
	w := oracle.SplitKVB(x.w, c.Nope, c.V, c.Latent)(h)
	return q[:c.Nope], mapped(x.call.RoPE(q[c.Nope:], pos), x.act), w.UK, w.UV
}

func (x *exactLayer) absorbed(t testing.TB, token, pos, h int, rows [][]float64) oracle.Row {
	c, m := x.layer.Config(), &x.weights.KVB
	nope, rope, uk, uv := x.head(token, pos, h)
	folds := m.Scaled() && !x.dynamic() && gcd(m.BlockRows(), gcd(c.Nope, c.V)) < 16
	if x.dynamic() {
		nope = quantised(nope, c.ActBlockQ)
	}
	q := make([]float64, c.Latent)
	for n, y := range nope {
		for r := range q {
			switch w := uk[n*c.Latent+r]; {
			case x.dynamic():
				q[r] += y * w
			case folds: // the activation takes the scale
				scale := float64(m.Scale(h*(c.Nope+c.V)+n, r))
				q[r] += x.act(y*scale) * (w / scale)
			default:
				q[r] += x.act(y) * w
			}
		}
	}
	q = append(mapped(q, x.act), rope...)
	row := softmax(q, rows, rows, c.Scale, sinkOf(x.sink, h), c.Latent)
	if x.dynamic() {
		if x.rounding == toBF16 {
			row.Out = x.latent(t, q, rows, row)
		}
		row.Out = quantised(row.Out, c.ActBlockLatent)
	}
	row.Out = oracle.Product(row.Out, uv, 1, c.V, c.Latent)
	return row
}

// latent is the latent output of the second arithmetic itself, which must be near the true one: the
// codes that it gets hang on its last bits.
func (x *exactLayer) latent(t testing.TB, q []float64, rows [][]float64, want oracle.Row) []float64 {
	c := x.cfg
	core, err := mla.NewCore(mla.CoreConfig{Heads: 1, Width: len(q), V: c.Latent, Scale: c.Scale, Compute: mla.ComputeBF16})
	require.NoError(t, err)
	ws, err := mla.NewWorkspace(mla.Limits{Tokens: 1, Seqs: 1, Context: max(len(rows), 1)}, nil, core)
	require.NoError(t, err)
	defer func() { require.NoError(t, ws.Close()) }()
	out, all := make([]float32, c.Latent), make([]int32, len(rows))
	for i := range all {
		all[i] = int32(i)
	}
	narrow := func(x []float64) mla.Rows {
		y := make([]float32, len(x))
		for i, v := range x {
			y[i] = float32(v)
		}
		return mla.RowsF32(y)
	}
	args := &mla.SparsePrefillArgs{Indices: all, Stride: len(all)}
	require.NoError(t, core.SparsePrefill(context.Background(), ws, mla.RowsF32(out), narrow(q), narrow(slices.Concat(rows...)), args))
	tol := tolerance{abs: flashDense.abs * want.Largest() / flashLargest, rel: flashDense.rel}
	for i, y := range out {
		require.InDelta(t, want.Out[i], y, tol.of(want.Out[i]))
	}
	return oracle.Widen(out)
}

func (x *exactLayer) expanded(token, pos, h int, rows [][]float64) oracle.Row {
	c := x.layer.Config()
	nope, rope, uk, uv := x.head(token, pos, h)
	keys, values := make([][]float64, len(rows)), make([][]float64, len(rows))
	for i, row := range rows {
		latent := row[:c.Latent]
		if x.dynamic() {
			latent = quantised(latent, c.ActBlockLatent)
		}
		keys[i] = append(mapped(oracle.Product(latent, uk, 1, c.Nope, c.Latent), x.value), row[c.Latent:]...)
		values[i] = mapped(oracle.Product(latent, uv, 1, c.V, c.Latent), x.value)
	}
	return softmax(append(mapped(nope, x.act), rope...), keys, values, c.Scale, sinkOf(x.sink, h), c.V)
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// quantised is x in E4M3 codes with a scale for each group, multiplied out.
func quantised(x []float64, group int) []float64 {
	y := make([]float64, 0, len(x))
	for g := range slices.Chunk(x, group) {
		amax := 0.0
		for _, v := range g {
			amax = max(amax, math.Abs(float64(float32(v))))
		}
		scale := float32(min(amax, 1200)) / 448
		recip := 1 / scale
		if math.IsInf(float64(recip), 0) {
			recip = 0
		}
		for _, v := range g {
			code := roundDigits(max(-448, min(448, float64(float32(v)*recip))), 4, -9, 448)
			y = append(y, code*float64(scale))
		}
	}
	return y
}

// TestJudgementBites demands that replay's judgement finds a head that is 2% too large and a
// log-sum-exp that is off, in every case of the second arithmetic.
func TestJudgementBites(t *testing.T) {
	for _, path := range attentionCases(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			a := openAttention(t, path)
			w := a.want
			w.in(mla.ComputeBF16, a.flash, a.more)
			*a.dtype = checkpoint.F32
			o, err := a.run()
			require.NoError(t, err)
			require.Empty(t, o.faults)
			faults := func(output, lse []float32) []string {
				o, err := w.judge(checkpoint.F32, func(to mla.Rows, l, m []float32) error {
					to.Narrow(0, output)
					copy(l, lse)
					copy(m, w.maxLogits)
					return nil
				})
				require.NoError(t, err)
				return o.faults
			}
			require.Empty(t, faults(o.output.floats, o.lse))
			size := largest(w.output)

			// One head, that of the largest output, is scaled.
			if size >= leastValue {
				at := slices.IndexFunc(w.output, func(x float32) bool { return math.Abs(float64(x)) == size })
				scaled := slices.Clone(o.output.floats)
				for i := range scaled {
					if i/a.v%a.heads == at/a.v%a.heads {
						scaled[i] *= 1.02
					}
				}
				assert.NotEmpty(t, faults(scaled, o.lse), "a head by 1.02")
			}
			// One log-sum-exp is off by 0.05, or by a hundredth where scores are in the hundreds.
			for i, x := range w.lse {
				if finite(float64(x)) && (size == 0 || size >= leastValue) {
					lse := slices.Clone(o.lse)
					lse[i] += max(0.05, 0.01*float32(largest(w.lse)))
					assert.NotEmpty(t, faults(o.output.floats, lse), "lse[%d] off", i)
				}
				lse := slices.Clone(o.lse)
				lse[i] = float32(math.Inf(-1))
				assert.NotEmpty(t, faults(o.output.floats, lse), "lse[%d] -Inf", i)
			}
		})
	}
}

// TestMaskedKeyBites lets queries see keys that are masked, or not see some that are not.
func TestMaskedKeyBites(t *testing.T) {
	for name, mask := range map[string]mla.Mask{
		"graph_mask_chunked_causal":  {Kind: mla.MaskSlidingWindowCausal, Window: 16},
		"graph_ragged_prefill_page1": {Kind: mla.MaskNull},
		"graph_mask_null":            {Kind: mla.MaskCausal},
		"graph_shared_prefix":        {Kind: mla.MaskNull},
	} {
		assert.NotEmpty(t, altered(t, name, func(g *graphCase) { g.cfg.Mask = mask }), "%s: %v", name, mask)
	}
	for _, name := range []string{"sparse_decode_small_f32q", "sparse_prefill_small_f32", "sparse_decode_v4_extra"} {
		f, err := checkpoint.Open(fmt.Sprintf("testdata/%s.safetensors", name))
		require.NoError(t, err)
		r := newReader(f)
		r.text("name")
		c, err := readSparseCase(r, r.text("op"))
		require.NoError(t, err)
		c.core.Compute, c.dtype = mla.ComputeBF16, checkpoint.F32
		c.want.in(mla.ComputeBF16, flashSparseDecode, c.allowance())
		c.indices = slices.Clone(c.indices)
		at := slices.IndexFunc(c.indices, func(i int32) bool { return i > 0 })
		c.indices[at] = c.indices[slices.IndexFunc(c.indices, func(i int32) bool { return i >= 0 && i != c.indices[at] })]
		o, err := c.run(context.Background(), nil, options{})
		require.NoError(t, err)
		assert.NotEmpty(t, o.faults, name)
		require.NoError(t, f.Close())
	}
}

// altered are the faults of an embedded case that is changed.
func altered(t *testing.T, name string, change func(*graphCase)) []string {
	f, err := checkpoint.Open(fmt.Sprintf("testdata/%s.safetensors", name))
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	r := newReader(f)
	r.text("name")
	r.text("op")
	g, err := readGraph(r)
	require.NoError(t, err)
	g.cfg.Compute, g.dtype = mla.ComputeBF16, checkpoint.F32
	g.want.in(mla.ComputeBF16, flashDense, withProducts)
	g.wantRows = nil
	change(g)
	o, err := g.run(context.Background(), nil, options{})
	require.NoError(t, err)
	return o.faults
}
