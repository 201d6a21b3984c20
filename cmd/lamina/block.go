package main

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// blockCase is a case of op block: an attention block of a checkpoint that sequences of equal
// length go through together, in several calls.
type blockCase struct {
	dir    string // of the checkpoint
	block  int    // number of the attention block
	module string // prefix of its tensors
	mask   mla.Mask

	seqs, tokens int // B, S
	steps        []int
	hidden       mla.Rows // [B, S, E]
	dtype        checkpoint.DType
	width        int // E
	cache        kvpaged.Config

	output []float32 // [B, S, E]
	tol    tolerances
	scale  *float32 // if the file says one
}

// readBlock reads a case; the checkpoint is beside the file at path.
func readBlock(r *reader, path string) (*blockCase, error) {
	c := &blockCase{block: r.within("layer", 0, maxDim), module: r.text("module")}
	name := r.text("checkpoint")
	if r.err == nil && name == "" {
		r.failf("metadata checkpoint is empty, wanted a directory")
	}
	if c.dir = filepath.FromSlash(name); !filepath.IsAbs(c.dir) {
		c.dir = filepath.Join(filepath.Dir(path), c.dir)
	}
	var err error
	if mask := r.text("mask"); r.err == nil {
		if c.mask, err = mla.ParseMask(mask); err != nil {
			r.failf("metadata mask: %w", err)
		}
	}
	if r.has("scale") {
		scale := r.scale()
		c.scale = &scale
	}
	c.readStates(r)
	c.readCache(r)
	c.tol = r.tolerances()
	r.known()
	return c, r.err
}

// readStates reads the hidden states, the steps in which they come, and the answer.
func (c *blockCase) readStates(r *reader) {
	hidden := r.tensor("hidden", floatTypes, free("sequences"), free("tokens"), free("hidden"))
	steps := r.text("steps")
	if r.err != nil {
		return
	}
	c.seqs, c.tokens, c.width, c.dtype = hidden.Shape[0], hidden.Shape[1], hidden.Shape[2], hidden.DType
	r.atMost(hidden, "sequences", c.seqs, maxSeqs)
	r.atMost(hidden, "tokens of a sequence", c.tokens, maxTokens)
	r.atMost(hidden, "values of a state", c.width, maxDim)
	sum := 0
	for _, field := range strings.Split(steps, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || n < 0 || n > c.tokens-sum {
			r.failf("metadata steps is %q, wanted whole numbers whose sum is the %d tokens of tensor %v", steps, c.tokens, hidden)
			return
		}
		c.steps, sum = append(c.steps, n), sum+n
	}
	if sum != c.tokens {
		r.failf("metadata steps is %q, whose sum is %d, wanted the %d tokens of tensor %v", steps, sum, c.tokens, hidden)
	}
	c.hidden = r.rows(hidden)
	c.output = r.floats("expect.output", dim{"sequences", c.seqs}, dim{"tokens", c.tokens}, dim{"hidden", c.width})
}

// readCache reads what the cache is to be; it is empty before the first step.
func (c *blockCase) readCache(r *reader) {
	c.cache = kvpaged.Config{Layers: 1, PageTokens: r.within("page", 1, maxPage)}
	name := r.text("cache")
	if r.err != nil {
		return
	}
	var err error
	if c.cache.Format, err = kvpaged.ParseFormat(name); err != nil {
		r.failf("metadata cache is %q: %w", name, err)
		return
	}
	switch c.cache.Format.Scales() {
	case kvpaged.ScaleTensor:
		if scale := r.floats("cache.scale", dim{"", 1}); len(scale) == 1 {
			c.cache.Scale = scale[0]
		}
	case kvpaged.ScaleToken:
		c.cache.Group = r.whole("cache_group", 1)
	}
}

// run runs the case and compares. An error means that the checkpoint, or the library, refused
// it.
func (c *blockCase) run(ctx context.Context, p *player) (outcome, error) {
	m, err := checkpoint.OpenModel(c.dir)
	if err != nil {
		return outcome{}, err
	}
	defer m.Close()
	block, err := c.open(m, p)
	if err != nil {
		return outcome{}, err
	}
	defer block.Close()
	freqs, err := m.Config.Rope.Table(max(c.tokens, 1))
	if err != nil {
		return outcome{}, err
	}
	a := answer{output: c.output, tol: c.tol}
	a.in(p.arithmetic, flashDense, withProjections)
	s := stepper{blockCase: c, ctx: ctx, block: block, freqs: freqs, form: mla.FormAuto}
	if p.form != "" {
		s.form, _ = parseForm(p.form)
	}
	defer s.close()
	if err := s.open(p); err != nil {
		return outcome{}, err
	}
	for _, n := range c.steps {
		if err := s.step(n); err != nil {
			return outcome{}, fmt.Errorf("%d tokens from %d on of tensor hidden: %w", n, s.done, err)
		}
	}
	s.out.arithmetic = a.arithmetic
	s.out.compareOutput(checkpoint.Shape{c.seqs, c.tokens, c.width}, c.output, a.tol)
	return s.out, nil
}

// open makes the block, which must be the one that the case is about.
func (c *blockCase) open(m *checkpoint.Model, p *player) (*mla.Block, error) {
	if n := m.Config.Blocks + m.Config.Predict; c.block >= n {
		return nil, fmt.Errorf("metadata layer is %d, and %s has attention blocks 0 to %d", c.block, c.dir, n-1)
	}
	if module := m.Module(c.block); module != c.module {
		return nil, fmt.Errorf("metadata module is %q, and attention block %d of %s is %q", c.module, c.block, c.dir, module)
	}
	cfg, weights, err := m.LoadBlock(c.block)
	if err != nil {
		return nil, err
	}
	if cfg.Hidden != c.width {
		return nil, fmt.Errorf("tensor hidden has states of %d values, wanted the %d of %s", c.width, cfg.Hidden, c.dir)
	}
	if s := c.scale; s != nil && math.Abs(float64(*s-cfg.Core.Scale)) > 1e-6*math.Abs(float64(cfg.Core.Scale)) {
		return nil, fmt.Errorf("metadata scale is %v, wanted the %v of %s", *s, cfg.Core.Scale, c.dir)
	}
	cfg.Core.Mask, cfg.Core.Compute = c.mask, p.arithmetic
	bar := newBar(p.stderr, "packing "+c.module)
	weights.Progress = bar.progress
	block, err := mla.NewBlock(cfg, weights)
	bar.clear()
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", c.dir, c.module, err)
	}
	return block, nil
}

// stepper takes a case through its steps.
type stepper struct {
	*blockCase
	ctx   context.Context
	block *mla.Block
	ws    *mla.Workspace
	freqs []float32
	form  mla.Form
	store *kvpaged.Cache
	all   []*kvpaged.Seq
	done  int // tokens of each sequence
	out   outcome
}

// open makes the workspace, the cache and its sequences.
func (s *stepper) open(p *player) error {
	longest := 1
	for _, n := range s.steps {
		longest = max(longest, n)
	}
	s.out.output = newValues(checkpoint.F32, len(s.output))
	cfg := s.cache
	if p.page != 0 {
		cfg.PageTokens = p.page
	}
	cfg.Width = s.block.Config().Core.Width()
	if cfg.Pages = max(s.seqs*ceilDiv(s.tokens, cfg.PageTokens), 1); cfg.Pages > maxSize {
		return fmt.Errorf("%d sequences of %d tokens of tensor hidden: wanted at most %d pages", s.seqs, s.tokens, maxSize)
	}
	var err error
	if s.store, err = kvpaged.New(cfg); err != nil {
		return fmt.Errorf("the cache of metadata cache and page, %d pages of %d tokens: %w", cfg.Pages, cfg.PageTokens, err)
	}
	for range s.seqs {
		seq, err := s.store.NewSeq()
		if err != nil {
			return err
		}
		s.all = append(s.all, seq)
	}
	lim := mla.Limits{Tokens: max(s.seqs*longest, 1), Seqs: max(s.seqs, 1), Context: max(s.tokens, 1)}
	s.ws, err = mla.NewWorkspace(lim, p.pool, s.block)
	return err
}

func (s *stepper) close() {
	if s.ws != nil {
		s.ws.Close()
	}
	for _, seq := range s.all {
		seq.Free()
	}
	if s.store != nil {
		s.store.Close()
	}
}

// step is one call: the next n tokens of every sequence.
func (s *stepper) step(n int) error {
	b := mla.Batch{Cache: s.store, Seqs: s.all, Offsets: []uint32{0}, Freqs: mla.RowsF32(s.freqs)}
	states, row := make([]float32, s.seqs*n*s.width), n*s.width
	for i, seq := range s.all {
		s.hidden.Widen(states[i*row:], (i*s.tokens+s.done)*s.width, row)
		b.Offsets, b.Forms = append(b.Offsets, uint32((i+1)*n)), append(b.Forms, s.form)
		if err := seq.Reserve(n); err != nil {
			return err
		}
	}
	hidden := newValues(s.dtype, len(states))
	hidden.rows().Narrow(0, states) // exact: they come from there
	out := make([]float32, len(states))
	start := time.Now()
	if err := s.block.Forward(s.ctx, s.ws, mla.RowsF32(out), hidden.rows(), b); err != nil {
		return err
	}
	s.out.seconds += time.Since(start).Seconds()
	for i, seq := range s.all {
		copy(s.out.output.floats[(i*s.tokens+s.done)*s.width:], out[i*row:(i+1)*row])
		if err := seq.Commit(n); err != nil {
			return err
		}
	}
	if s.done += n; n == 0 || s.seqs == 0 {
		return nil
	}
	form := s.form
	if form == mla.FormAuto {
		form = s.block.Form(n, s.done)
	}
	switch s.out.form {
	case "", form.String():
		s.out.form = form.String()
	default:
		s.out.form = "mixed"
	}
	return nil
}
