package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// graphCase is a case of op graph: one call of a layer. T new tokens in B sequences, H heads.
type graphCase struct {
	cfg     mla.Config
	weights mla.Weights
	form    mla.Form

	tokens  int
	dtype   checkpoint.DType // of q
	q       mla.Rows         // [T, H, N+P]
	kv      mla.Rows         // [T, R+P]
	freqs   mla.Rows         // [positions, P]
	sink    []float32        // [H] or nil
	offsets []uint32         // [B+1]

	cache kvpaged.Config // PageMajor, its memory still the file's
	layer int
	pages pageTable

	sparse *mla.Sparse // nil: dense; without its Extra
	extra  *extraCache // or nil

	want     answer    // [T, H, V] and [T, H]
	wantRows []float32 // [T, R+P], the cache rows of the new tokens, or nil
	rowsTol  tolerance
}

// readGraph reads and checks a case. What it lets pass the library may still refuse.
func readGraph(r *reader) (*graphCase, error) {
	g := &graphCase{}
	g.readConfig(r)
	g.readInputs(r)
	g.readWeights(r)
	g.readCache(r)
	g.readSparse(r)
	g.readAnswer(r)
	r.known()
	return g, r.err
}

func (g *graphCase) readConfig(r *reader) {
	c := &g.cfg
	c.Heads, c.Nope, c.Rope = r.within("heads", 1, maxDim), r.within("nope", 1, maxDim), r.within("rope", 0, maxDim)
	c.V, c.Latent = r.within("v", 1, maxDim), r.within("latent", 1, maxDim)
	if c.Rope%2 != 0 {
		r.failf("metadata rope is %d, wanted an even number", c.Rope)
	}
	c.Scale = r.scale()
	r.float("epsilon")
	if c.Epsilon = r.float32("epsilon"); c.Epsilon == 0 {
		c.Epsilon = mla.EpsilonZero
	}
	mask := r.text("mask")
	if r.err == nil {
		var err error
		if c.Mask, err = mla.ParseMask(mask); err != nil {
			r.failf("metadata mask is %q: %w", mask, err)
		}
	}
	if r.choice("rope_style", "interleaved", "half") == "half" {
		c.RopeStyle = mla.Half
	}
	if form := r.choice("form", "auto", "decode", "prefill"); r.err == nil {
		g.form, _ = parseForm(form)
	}
	g.readActQuant(r)
}

// readActQuant reads how activations are quantised. The forms then are two functions, and auto
// is the one that MAX takes.
func (g *graphCase) readActQuant(r *reader) {
	if r.choice("act_quant", "none", "dynamic") != "dynamic" {
		return
	}
	c := &g.cfg
	c.ActQuant = mla.ActDynamic
	if r.has("act_block_q") {
		c.ActBlockQ = r.whole("act_block_q", 1)
	}
	if r.has("act_block_latent") {
		c.ActBlockLatent = r.whole("act_block_latent", 1)
	}
	if g.form != mla.FormAuto {
		return
	}
	g.form = mla.FormExpanded
	if r.whole("max_seq_len", 0) <= mla.DefaultMAXThreshold {
		g.form = mla.FormAbsorbed
	}
}

func (g *graphCase) dynamic() bool { return g.cfg.ActQuant == mla.ActDynamic }

// parseForm reads the name of a form.
func parseForm(name string) (mla.Form, bool) {
	for _, f := range []mla.Form{mla.FormAuto, mla.FormAbsorbed, mla.FormExpanded} {
		if f.String() == name {
			return f, true
		}
	}
	return 0, false
}

func (g *graphCase) readInputs(r *reader) {
	c := g.cfg
	heads, width := dim{"heads", c.Heads}, dim{"latent+rope", c.Width()}
	q := r.tensor("q", floatTypes, free("tokens"), heads, dim{"nope+rope", c.Nope + c.Rope})
	if r.err != nil {
		return
	}
	r.atMost(q, "tokens", q.Shape[0], maxTokens)
	g.tokens, g.dtype = q.Shape[0], q.DType
	g.q = r.rows(q)
	g.kv = r.rows(r.tensor("kv", floatTypes, dim{"tokens", g.tokens}, width))
	g.freqs = r.rows(r.tensor("freqs_cis", types(checkpoint.F32, checkpoint.BF16), free("positions"), dim{"rope", c.Rope}))
	g.weights.Gamma = r.rows(r.tensor("kv_norm_gamma", types(checkpoint.BF16, checkpoint.F32), dim{"latent", c.Latent}))
	g.sink = r.optionalFloats("attn_sink", heads)
	g.readOffsets(r)
}

// readOffsets reads the token ranges of the sequences.
func (g *graphCase) readOffsets(r *reader) {
	const name = "input_row_offsets"
	t := r.tensor(name, types(checkpoint.I32), free("sequences+1"))
	offsets := r.intsOf(t)
	if r.err != nil {
		return
	}
	r.atMost(t, "sequences", len(offsets)-1, maxSeqs)
	if len(offsets) == 0 {
		r.failf("tensor %s is [0], wanted at least [1]", name)
		return
	}
	longest, last := 0, int32(0)
	for i, x := range offsets {
		if x < last || i == 0 && x != 0 {
			r.failf("tensor %s [%d]: value %d is %d, wanted 0 first and no decrease, it follows %d", name, len(offsets), i, x, last)
			return
		}
		longest = max(longest, int(x-last))
		g.offsets, last = append(g.offsets, uint32(x)), x
	}
	if int(last) != g.tokens {
		r.failf("tensor %s [%d] ends with %d, wanted the %d tokens of q", name, len(offsets), last, g.tokens)
	}
	if most := r.whole("max_seq_len", 0); most < longest {
		r.failf("metadata max_seq_len is %d, a sequence has %d new tokens", most, longest)
	}
}

// newTokens are the new tokens of sequence b.
func (g *graphCase) newTokens(b int) int { return int(g.offsets[b+1] - g.offsets[b]) }

var (
	codeTypes  = types(checkpoint.F8_E4M3, checkpoint.F8_E5M2, checkpoint.F8_E4M3FNUZ, checkpoint.F8_E5M2FNUZ)
	scaleTypes = types(checkpoint.F32, checkpoint.BF16, checkpoint.F8_E8M0)
)

var elemOf = map[checkpoint.DType]fp8.Elem{
	checkpoint.F8_E4M3: fp8.ElemE4M3, checkpoint.F8_E5M2: fp8.ElemE5M2,
	checkpoint.F8_E4M3FNUZ: fp8.ElemE4M3FNUZ, checkpoint.F8_E5M2FNUZ: fp8.ElemE5M2FNUZ,
}

func (g *graphCase) readWeights(r *reader) {
	const weight, scale = "kv_b_proj.weight", "kv_b_proj.weight_scale_inv"
	if r.err != nil {
		return
	}
	c := g.cfg
	nBlock, kBlock := g.blocks(r)
	rows, cols := c.Heads*(c.Nope+c.V), c.Latent
	all := append(append(types(), codeTypes...), floatTypes...)
	w := r.tensor(weight, all, dim{"heads*(nope+v)", rows}, dim{"latent", cols})
	if r.err != nil {
		return
	}
	var err error
	elem, quantised := elemOf[w.DType]
	_, scaled := r.file.Tensor(scale)
	switch {
	case quantised && !scaled:
		r.failf("tensor %s is missing: %s is %v", scale, weight, w.DType)
		return
	case !quantised && g.dynamic():
		r.failf("tensor %v: metadata act_quant is dynamic, wanted codes with scales", w)
		return
	case !quantised && scaled:
		r.failf("tensor %s is there, but %s is %v and has no scales", scale, weight, w.DType)
		return
	case quantised:
		r.text("n_block")
		r.text("k_block")
		if g.dynamic() && c.ActBlockQ == 0 && nBlock < 32 {
			r.failf("metadata act_block_q is missing: n_block is %d, below 32", nBlock)
		}
		if r.err != nil {
			return
		}
		s := r.tensor(scale, scaleTypes, dim{"rows/n_block", ceilDiv(rows, nBlock)}, dim{"latent/k_block", ceilDiv(cols, kBlock)})
		scales := r.scales(s)
		if r.err != nil {
			return
		}
		var codes []byte
		if codes, err = w.U8s(); err != nil {
			break
		}
		g.weights.KVB, err = fp8.New(elem, rows, cols, codes, scales, nBlock, kBlock)
		if errors.Is(err, fp8.ErrScale) {
			r.failf("tensor %v: %w", s, err)
		}
	case w.DType == checkpoint.F32:
		g.weights.KVB, err = fp8.PlainF32(rows, cols, r.valuesOf(w))
	default:
		var bits []uint16
		if bits, err = w.U16s(); err != nil {
			break
		}
		if w.DType == checkpoint.BF16 {
			g.weights.KVB, err = fp8.PlainBF16(rows, cols, bits)
		} else {
			g.weights.KVB, err = fp8.PlainF16(rows, cols, bits)
		}
	}
	if err != nil {
		r.failf("tensor %v: %w", w, err)
	}
}

// blocks reads the sizes of the blocks that share a scale; 0 if the file does not say.
func (g *graphCase) blocks(r *reader) (n, k int) {
	if r.has("n_block") {
		n = r.whole("n_block", 1)
	}
	if r.has("k_block") {
		k = r.whole("k_block", 1)
	}
	return n, k
}

// scales are block scales as the library takes them.
func (r *reader) scales(t checkpoint.Tensor) fp8.Scales {
	if r.err != nil {
		return fp8.Scales{}
	}
	switch t.DType {
	case checkpoint.F8_E8M0:
		codes, err := t.U8s()
		if err != nil {
			r.failf("%w", err)
		}
		return fp8.ScalesE8M0(codes)
	case checkpoint.BF16:
		bits, err := t.U16s()
		if err != nil {
			r.failf("%w", err)
		}
		return fp8.ScalesBF16(bits)
	}
	return fp8.ScalesF32(r.valuesOf(t))
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// readSparse reads the index lists and the second cache of a sparse case.
func (g *graphCase) readSparse(r *reader) {
	q := queries{seqs: len(g.offsets) - 1, tokens: g.tokens, dims: []dim{{"tokens", g.tokens}}}
	fold := r.flag("fold_shared_index")
	if g.extra = r.extra(q, dim{"latent+rope", g.cfg.Width()}); r.err != nil {
		return
	}
	_, some := r.file.Tensor("indices")
	if _, lengths := r.file.Tensor("topk_lengths"); !some && !lengths && g.extra == nil {
		if fold {
			r.failf("metadata fold_shared_index is true, but the case has no tensor indices")
		}
		return
	}
	l := r.list(firstCache, q)
	g.sparse = &mla.Sparse{
		Indices: l.indices, Stride: l.stride, Lengths: l.lengths, LengthsPer: l.per, FoldShared: fold,
		Logical: r.choice("index_kind", "logical", "physical") == "logical",
	}
	if r.meta["form"] == "prefill" {
		r.failf("metadata form is prefill, wanted auto or decode for a case with index lists")
	}
	g.form = mla.FormAuto
}

func (g *graphCase) readAnswer(r *reader) {
	if r.err != nil {
		return
	}
	tokens, heads := dim{"tokens", g.tokens}, dim{"heads", g.cfg.Heads}
	g.want = r.answer([]dim{tokens, heads, {"v", g.cfg.V}}, []dim{tokens, heads})
	g.wantRows = r.optionalFloats("expect.rows", tokens, dim{"latent+rope", g.cfg.Width()})
	if g.wantRows != nil {
		g.rowsTol = r.named("rows")
	}
}

// run runs the case and compares. An error means that the library refused it.
func (g *graphCase) run(ctx context.Context, pool *mla.Pool, o options) (outcome, error) {
	if o.page != 0 && g.pages.holes(g.cache) {
		// Pages of another size may mix positions that are mapped with some that are not. That
		// no token sees one of these the file's own pages tell.
		if _, err := g.run(ctx, pool, options{form: o.form}); err != nil {
			return outcome{}, err
		}
	}
	cache, seqs, err := g.openCache(o.page)
	if err != nil {
		return outcome{}, err
	}
	defer cache.Close()
	if g.extra != nil {
		if g.sparse.Extra, err = g.extra.open(); err != nil {
			return outcome{}, err
		}
		defer g.sparse.Extra.Cache.Close()
	}
	layer, err := mla.New(g.cfg, g.weights)
	if err != nil {
		return outcome{}, fmt.Errorf("the layer of metadata heads, nope, rope, v, latent and act_block_* and of tensor kv_b_proj.weight: %w", err)
	}
	defer layer.Close()
	lim := mla.Limits{Tokens: max(g.tokens, 1), Seqs: max(len(seqs), 1), Context: max(g.pages.longest(), 1)}
	ws, err := mla.NewWorkspace(lim, pool, layer)
	if err != nil {
		return outcome{}, fmt.Errorf("%d tokens of tensor q, %d sequences and up to %d keys of tensor cache.lengths: %w",
			g.tokens, len(seqs), g.pages.longest(), err)
	}
	defer ws.Close()

	batch := mla.Batch{Cache: cache, Layer: g.layer, Seqs: seqs, Offsets: g.offsets, Freqs: g.freqs,
		Forms: g.forms(o.form), Sink: g.sink, Sparse: g.sparse}
	out, err := g.want.judge(g.dtype, func(rows mla.Rows, lse, maxLogits []float32) error {
		batch.LSE, batch.MaxLogit = lse, maxLogits
		return g.forward(ctx, layer, ws, rows, batch)
	})
	if err != nil {
		return outcome{}, err
	}
	out.form = g.formName(layer, batch.Forms)
	return out, g.compareRows(&out, batch)
}

// forward is layer.Forward, with faults that lie in the page table or the lists named so.
func (g *graphCase) forward(ctx context.Context, layer *mla.Layer, ws *mla.Workspace, out mla.Rows, b mla.Batch) error {
	err := layer.Forward(ctx, ws, out, g.q, g.kv, b)
	switch {
	case errors.Is(err, mla.ErrUnmapped) || errors.Is(err, kvpaged.ErrShared):
		return fmt.Errorf("tensor cache.lookup %v: %w", g.pages.shape(), err)
	case g.sparse != nil && errors.Is(err, mla.ErrShape):
		return fmt.Errorf("tensor indices [%d, %d]%s: %w", g.tokens, g.sparse.Stride, g.extra.named(), err)
	}
	return err
}

// forms is what Batch.Forms is to be: the form that the case asks for, or the user. The user
// has no choice where there is one form, or where the answer is that of one.
func (g *graphCase) forms(forced string) []mla.Form {
	form := g.form
	if forced != "" && g.sparse == nil && !g.dynamic() {
		form, _ = parseForm(forced)
	}
	if form == mla.FormAuto {
		return nil
	}
	forms := make([]mla.Form, len(g.offsets)-1)
	for b := range forms {
		forms[b] = form
	}
	return forms
}

// formName says which form ran: decode, prefill, mixed, or nothing for no new tokens.
func (g *graphCase) formName(layer *mla.Layer, forms []mla.Form) string {
	name := ""
	for b := range g.pages.lengths {
		if g.newTokens(b) == 0 {
			continue
		}
		form := layer.Form(g.newTokens(b), g.pages.keys(b))
		switch {
		case g.sparse != nil:
			form = mla.FormAbsorbed
		case forms != nil:
			form = forms[b]
		}
		if name != "" && name != form.String() {
			return "mixed"
		}
		name = form.String()
	}
	return name
}

// compareRows holds the stored rows of the new tokens against the answers.
func (g *graphCase) compareRows(o *outcome, b mla.Batch) error {
	if g.wantRows == nil {
		return nil
	}
	rows, err := g.newRows(b)
	if err != nil {
		return err
	}
	o.add(check{what: "rows", shape: checkpoint.Shape{g.tokens, g.cfg.Width()}, tol: g.rowsTol}.compare(rows, g.wantRows))
	return nil
}

// newRows reads the stored rows of the new tokens back, [T, R+P].
func (g *graphCase) newRows(b mla.Batch) ([]float32, error) {
	width := g.cfg.Width()
	rows := make([]float32, g.tokens*width)
	for i, s := range b.Seqs {
		n := g.newTokens(i)
		if n == 0 {
			continue
		}
		v, err := s.Lease(b.Layer, n)
		if err != nil {
			return nil, fmt.Errorf("reading the new rows of sequence %d: %w", i, err)
		}
		v.Widen(rows[int(g.offsets[i])*width:], width, v.Len(), n)
		v.Release()
	}
	return rows, nil
}
