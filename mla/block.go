package mla

import (
	"errors"
	"fmt"
	"sync"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/forms"
	"github.com/lamina-ml/lamina/simd"
)

// BlockConfig is the geometry of a whole attention block, from hidden states to
// hidden states; NewBlock checks it. Its sizes beside the core's: E = Hidden and,
// where queries have a low rank, A = QLora.
type BlockConfig struct {
	// Core is the attention inside. Its LatentScale is LongCat's factor of the
	// latent, its IndexTopK the limit of a model that has an indexer. NormRounding
	// is that of both norms: NormAuto means NormNone, since a block keeps float32
	// between its projections, and NormAsGamma rounds as transformers does.
	// ActDynamic quantises the activations of the projections that have scales as
	// well, each by its own k block. Its Arithmetic is that of the projections, too;
	// norms, biases and factors are float32 in either.
	Core Config

	Hidden int // E, values of a hidden state
	QLora  int // A, values of the low-rank query; 0 where q_proj takes the place of q_a_proj and q_b_proj

	// QEpsilon is the epsilon of the query's norm. 0 means the core's; EpsilonZero
	// means 0.
	QEpsilon float32
	// QScale multiplies the query, both parts, after its projection: LongCat's
	// sqrt(E/A). 0 means 1; otherwise finite.
	QScale float32
	// QBeta and QContext scale the query, both parts, by its position: Mistral 4's
	//
	//	1 + QBeta*ln(1 + floor(position/QContext))
	//
	// with QContext = original_max_position_embeddings and QBeta =
	// llama_4_scaling_beta. A QBeta of 0 means no such factor; otherwise it is
	// finite and QContext at least 1.
	QBeta    float32
	QContext int
}

// BlockWeights are the projections of an attention block, as a checkpoint holds
// them: each a matrix of FP8 codes with block scales or of plain bf16, f16 or f32
// values, whatever the others are. NewBlock packs copies: nothing of the
// caller's is retained.
type BlockWeights struct {
	QA     fp8.Matrix // q_a_proj [A, E]; empty where QLora is 0
	QGamma Rows       // q_a_layernorm [A], bf16, f16 or f32; empty where QLora is 0
	QB     fp8.Matrix // q_b_proj [H*(N+P), A], or q_proj [H*(N+P), E] where QLora is 0
	KVA    fp8.Matrix // kv_a_proj_with_mqa [R+P, E]
	Core   Weights    // kv_b_proj and kv_a_layernorm
	O      fp8.Matrix // o_proj [E, H*V]

	// The biases of the projections, bf16, f16 or f32; empty means none.
	QABias  Rows // [A]
	KVABias Rows // [R+P]
	OBias   Rows // [E]

	// Progress, if not nil, is called by NewBlock as packing goes on, with how many
	// weights are packed and of how many: those of kv_b_proj count three times, for
	// its keys are packed for either form.
	Progress func(done, total int64)
}

// checked returns c with its defaults filled in, or why it describes no block.
func (c BlockConfig) checked() (BlockConfig, error) {
	var err error
	if c.Core, err = c.Core.checked(); err != nil {
		return c, err
	}
	if c.Hidden < 1 || c.Hidden > maxSize {
		return c, fmt.Errorf("%w: Hidden is %d, want 1 to %d", ErrConfig, c.Hidden, maxSize)
	}
	if c.QLora < 0 || c.QLora > maxSize {
		return c, fmt.Errorf("%w: QLora is %d, want 0 to %d", ErrConfig, c.QLora, maxSize)
	}
	switch {
	case c.QEpsilon == 0:
		c.QEpsilon = c.Core.Epsilon
	case c.QEpsilon == EpsilonZero:
		c.QEpsilon = 0
	case !finite(c.QEpsilon) || c.QEpsilon < 0:
		return c, fmt.Errorf("%w: QEpsilon is %v, want a finite number above 0, or EpsilonZero", ErrConfig, c.QEpsilon)
	}
	if c.QScale == 0 {
		c.QScale = 1
	}
	if !finite(c.QScale) {
		return c, fmt.Errorf("%w: QScale is %v, want a finite number", ErrConfig, c.QScale)
	}
	switch {
	case !finite(c.QBeta):
		return c, fmt.Errorf("%w: QBeta is %v, want a finite number", ErrConfig, c.QBeta)
	case c.QBeta != 0 && (c.QContext < 1 || c.QContext > maxContext):
		return c, fmt.Errorf("%w: QContext is %d, want 1 to %d where QBeta is not 0", ErrConfig, c.QContext, maxContext)
	}
	return c, nil
}

// projection is one of a block's products with its bias.
type projection struct {
	w     *fp8.Packed
	group int       // k block of the scales, 0 without scales
	bias  []float32 // [N], nil for none
}

// Block is one attention block, from hidden states to hidden states: its
// configuration and its packed weights. It is immutable and shared by
// goroutines; a call needs a Workspace. NewBlock and LoadPackedBlock make
// one: a zero Block counts as closed.
//
//	hidden [T, E]
//	   |-- q_a_proj -- q_a_layernorm -- q_b_proj --.     (or q_proj alone)
//	   |                                           q [T, H, N+P]
//	   |-- kv_a_proj_with_mqa -- kv [T, R+P]       |
//	                              \                |
//	                               the core, Layer.Forward: kv_a_layernorm, rope,
//	                               the cache, kv_b_proj, attention
//	                                               |
//	                                          [T, H, V] -- o_proj -- out [T, E]
type Block struct {
	cfg    BlockConfig
	core   *Layer
	qa     projection // its w is nil where QLora is 0
	qb     projection // or q_proj
	kva    projection
	o      projection     // leased first and given back last: it stands for all
	qGamma []float32      // [A], widened
	qRound forms.Rounding // of the query's norm under NormAsGamma

	mu     sync.Mutex
	closed bool
}

// NewBlock checks cfg, packs the weights (copies, off the garbage-collected heap)
// and returns the block. Errors are as for New: ErrConfig, ErrWeights naming the
// matrix, and what LAMINA_SIMD was asked for and this machine has not.
func NewBlock(cfg BlockConfig, w BlockWeights) (*Block, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	core := cfg.Core // New fills in its defaults itself
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	if err := w.check(cfg); err != nil {
		return nil, err
	}
	b := &Block{cfg: cfg, qGamma: widened(w.QGamma), qRound: gammaRounding(w.QGamma)}
	w.Core.progress = w.progress(cfg)
	for _, one := range []struct {
		to   *projection
		name string
		m    fp8.Matrix
		bias Rows
	}{
		{&b.qa, "QA", w.QA, w.QABias}, {&b.qb, "QB", w.QB, Rows{}},
		{&b.kva, "KVA", w.KVA, w.KVABias}, {&b.o, "O", w.O, w.OBias},
	} {
		if one.m.Rows() == 0 {
			continue // QA of a block without
		}
		one.to.w, err = fp8.Pack([]fp8.Matrix{one.m}, fp8.PackOptions{Progress: w.Core.progress})
		if err != nil {
			b.free()
			return nil, fmt.Errorf("%w: %s: %w", ErrWeights, one.name, err)
		}
		one.to.group, one.to.bias = one.m.BlockCols(), widened(one.bias)
	}
	if b.core, err = New(core, w.Core); err != nil {
		b.free()
		return nil, err
	}
	b.cfg.Core = b.core.Config()
	return b, nil
}

// check tests the shapes of all weights but the core's.
func (w *BlockWeights) check(c BlockConfig) error {
	heads := c.Core.Heads
	in := c.Hidden // of the last query projection
	if c.QLora > 0 {
		in = c.QLora
		if err := wantShape("QA", w.QA, c.QLora, c.Hidden); err != nil {
			return err
		}
	} else if w.QA.Rows() != 0 {
		return fmt.Errorf("%w: QA is [%d, %d], want none where QLora is 0", ErrWeights, w.QA.Rows(), w.QA.Cols())
	}
	for _, m := range []struct {
		name       string
		m          fp8.Matrix
		rows, cols int
	}{
		{"QB", w.QB, heads * (c.Core.Nope + c.Core.Rope), in},
		{"KVA", w.KVA, c.Core.Width(), c.Hidden},
		{"O", w.O, c.Hidden, heads * c.Core.V},
	} {
		if err := wantShape(m.name, m.m, m.rows, m.cols); err != nil {
			return err
		}
	}
	if w.QGamma.Len() != c.QLora {
		return fmt.Errorf("%w: QGamma has %d values, want QLora = %d", ErrWeights, w.QGamma.Len(), c.QLora)
	}
	for _, v := range []struct {
		name string
		v    Rows
		want int
	}{{"QABias", w.QABias, c.QLora}, {"KVABias", w.KVABias, c.Core.Width()}, {"OBias", w.OBias, c.Hidden}} {
		if v.v.Len() != 0 && v.v.Len() != v.want {
			return fmt.Errorf("%w: %s has %d values, want %d or none", ErrWeights, v.name, v.v.Len(), v.want)
		}
	}
	return nil
}

// progress is what counts the weights of all matrices for Progress, nil without it.
func (w *BlockWeights) progress(c BlockConfig) func(codes int) {
	if w.Progress == nil {
		return nil
	}
	var done int64
	total := int64(c.Core.Heads) * int64(2*c.Core.Nope+c.Core.V) * int64(c.Core.Latent)
	for _, m := range []fp8.Matrix{w.QA, w.QB, w.KVA, w.O} {
		total += int64(m.Rows()) * int64(m.Cols())
	}
	return func(codes int) {
		done += int64(codes)
		w.Progress(done, total)
	}
}

// widened is the values of r, nil for none.
func widened(r Rows) []float32 {
	if r.Len() == 0 {
		return nil
	}
	x := make([]float32, r.Len())
	r.Widen(x, 0, len(x))
	return x
}

// Config returns the checked configuration, defaults filled in.
func (b *Block) Config() BlockConfig {
	if b == nil {
		return BlockConfig{}
	}
	return b.cfg
}

// made reports that NewBlock or LoadPackedBlock made b.
func (b *Block) made() bool { return b != nil && b.core != nil }

var errNoBlock = fmt.Errorf("%w: the block is nil or a zero value", ErrClosed)

// Form is what FormAuto means in this block's core; see Layer.Form.
func (b *Block) Form(newTokens, keys int) Form { return b.Config().Core.form(newTokens, keys) }

// projections are those that there are, o first.
func (b *Block) projections() []*projection {
	all := []*projection{&b.o, &b.kva, &b.qb}
	if b.qa.w != nil {
		all = append(all, &b.qa)
	}
	return all
}

// Bytes is the memory that the packed weights hold.
func (b *Block) Bytes() int64 {
	if !b.made() {
		return 0
	}
	n := b.core.Bytes()
	for _, p := range b.projections() {
		n += p.w.Bytes()
	}
	return n
}

// Close frees the packed weights. It is idempotent, and returns ErrBusy while a
// Forward uses them; afterwards Forward returns ErrClosed.
func (b *Block) Close() error {
	if !b.made() {
		return errNoBlock
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil
	}
	if err := b.o.w.Close(); err != nil {
		return fmt.Errorf("%w: a Forward uses the block: %w", ErrBusy, err)
	}
	b.closed = true
	return b.free()
}

// free frees what there is; nobody else may use it.
func (b *Block) free() error {
	var errs []error
	for _, p := range []*projection{&b.o, &b.kva, &b.qb, &b.qa} {
		if p.w != nil {
			errs = append(errs, p.w.Close())
		}
	}
	if b.core != nil {
		errs = append(errs, b.core.Close())
	}
	return errors.Join(errs...)
}

// enter leases the weights for one Forward. Close goes for o first: while that is
// held, nothing else is closed.
func (b *Block) enter() error {
	if !b.made() {
		return errNoBlock
	}
	if err := b.o.w.Acquire(); err != nil {
		return fmt.Errorf("%w: the block is closed: %w", ErrClosed, err)
	}
	return nil
}

func (b *Block) leave() { b.o.w.Release() }

// positionScale is the factor of a query at a position; see BlockConfig.QBeta.
func (c *BlockConfig) positionScale(pos int) float32 {
	if c.QBeta == 0 {
		return 1
	}
	return 1 + float32(c.QBeta*simd.Log(float32(1+pos/c.QContext)))
}

func (b *Block) frame() (frame, error) {
	if err := b.enter(); err != nil {
		return frame{}, err
	}
	defer b.leave()
	f := b.cfg.Core.frame()
	f.hidden, f.qLora = b.cfg.Hidden, b.cfg.QLora
	return f, nil
}
