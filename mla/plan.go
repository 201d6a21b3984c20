package mla

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// The places of the arithmetic (arithmetic.md): in the bits of every result.
const (
	partitionKeys = 512 // keys [512p, 512p+512) end in one (m, l, o)
	tileKeys      = 64  // keys whose scores are normalised together
	pieceK        = 256 // terms of a dot product summed from zero at a time
)

// Blocking: sizes of work, in no bit of any result.
const (
	maxBlockRows  = 128      // (token, head) rows that share one widened tile, absorbed
	minBlockRows  = 32       // what maxBlockRows shrinks to when workers would idle
	tileRows      = 4        // what widening a tile costs, in rows of its products
	bypassBytes   = 16 << 20 // an output of so many bytes is written past the caches
	queryRows     = 64       // query tokens of one head that share expanded keys
	pairQueryRows = 256      // the same in Core.Prefill, where keys are laid in pairs for them
	pairTileRows  = 128      // of which so many share a tile's scores
	gatherTokens  = tileKeys // tokens of one product with per-head weights
	storeTokens   = 8        // tokens normed, roped and stored by one item
	maxWave       = 1 << 14  // tokens of a wave
	waveFloats    = 16 << 20 // packed queries and latent outputs of a wave, in float32s
	expandFloats  = 8 << 20  // expanded keys and values in flight, in float32s
	itemsAWorker  = 4        // items that a stage cuts for each worker
	defaultBuffer = 2048     // Limits.Buffer of 0
	finishedRows  = 16       // rows folded and divided by one item
	minSlots      = 8        // partitions that may wait for their fold
	narrowRows    = 8        // cache rows widened at a time on their way to bf16
)

// Limits bound the batches that a Plan accepts and size its workspace.
type Limits struct {
	Tokens  int // new tokens of a batch, at least 1
	Seqs    int // sequences of a batch, at least 1
	Context int // keys of one sequence, its new tokens included, at least 1
	// Buffer is how many key rows the expanded form holds expanded at a time;
	// 0 means 2048. Any size gives the same bits; a prompt may be longer.
	Buffer int
}

// Bounds of Limits; the books of a plan, on the heap, stay small beside its
// workspace.
const (
	maxTokens  = 1 << 22
	maxSeqs    = 1 << 20
	maxContext = 1 << 30
)

func (l Limits) checked() (Limits, error) {
	if l.Buffer == 0 {
		l.Buffer = defaultBuffer
	}
	for _, s := range []struct {
		name    string
		v, most int
	}{{"Tokens", l.Tokens, maxTokens}, {"Seqs", l.Seqs, maxSeqs}, {"Context", l.Context, maxContext}, {"Buffer", l.Buffer, maxContext}} {
		if s.v < 1 || s.v > s.most {
			return l, fmt.Errorf("%w: Limits.%s is %d, want 1 to %d", ErrConfig, s.name, s.v, s.most)
		}
	}
	l.Buffer = min(l.Buffer, l.Context)
	return l, nil
}

// Plan owns the workspace of one Forward at a time. Many plans may share a
// Layer, a Pool and a cache. Layer.Plan makes one: a zero Plan counts as closed.
type Plan struct {
	layer *Layer
	cfg   Config
	lim   Limits
	pool  *Pool
	mem   *mem.Block
	state atomic.Int32 // planIdle, planBusy, planClosed

	scratch []scratch      // one per worker
	views   []kvpaged.View // one per sequence, leased while Forward runs
	forms   []Form         // resolved, per sequence
	tokSeq  []int32        // sequence of each new token
	offsets []uint32       // [Seqs+1] of calls that have none
	sorted  []uintptr      // [Seqs] where the sequences of a batch lie, to see that none is in it twice

	call call
	abs  absorbed
	exp  expanded
	pre  prefill
}

const (
	planIdle = iota
	planBusy
	planClosed
)

// call is the arguments of one call, checked.
type call struct {
	ctx        context.Context
	out, q, kv Rows
	Batch
	nseq   int     // sequences
	tokens int     // new tokens, or queries
	kind   kind    // what is computed
	lists  [2]list // of a sparse call: of the cache and of the second one
	sparse bool
	fold   bool // the tokens of a sequence share their lists
	byHead bool // LSE and MaxLogit are [b, h, s_q] instead of [T, H]

	// of a Forward of a block, whose q, kv and out are in its workspace
	block    *BlockPlan // nil for none
	hidden   Rows       // [T, E]
	blockOut Rows       // [T, E]

	// of a coreSparse call
	core    *Core
	args    SparseDecodeArgs
	dense   Rows // its rows where there is no cache
	ignored *int64
	round   rounding
}

// kind is what a call computes.
type kind uint8

const (
	wholeLayer kind = iota // Forward
	coreDense              // attention alone, over committed rows of sequences
	coreSparse             // attention alone, over index lists
)

// coreOnly says that queries come absorbed and outputs leave latent.
func (c *call) coreOnly() bool { return c.kind != wholeLayer }

// rounding is what RMSNorm rounds to.
type rounding uint8

const (
	roundNone rounding = iota
	roundBF16
	roundF16
)

// times multiplies x by f, each product rounded to float32 and then as r says.
func (r rounding) times(x []float32, f float32) {
	for i := range x {
		x[i] = float32(x[i] * f)
	}
	switch r {
	case roundBF16:
		for i := range x {
			x[i] = simd.BF16ToF32(simd.F32ToBF16(x[i]))
		}
	case roundF16:
		for i := range x {
			x[i] = simd.F16ToF32(simd.F32ToF16(x[i]))
		}
	}
}

// scratch is what one worker needs, cut from the plan's workspace.
type scratch struct {
	row   []float32 // [C] one cache row
	freqs []float32 // [P]
	tile  []float32 // [tileKeys][stride(C)] widened cache rows
	st    []float32 // [tileKeys][stride(rows)] scores, then probabilities
	xs    []float32 // [gatherTokens][N] gathered activations
	ys    []float32 // [gatherTokens][max(R,V)] products
	q     []float32 // [queryRows/Lanes][N+P][Lanes] packed queries of one head
	qrow  []float32 // [queryRows][N+P] the same before packing; of Core.Prefill [prefillRows][stride(d_qk)]

	alpha, lse, top, sink []float32 // per row
	lo, hi, rowLo, rowHi  []int32   // visible keys per row: in the tile, in the sequence
	picked                []int32   // [tileKeys] rows that a list selects

	// Activations of the products, used in turn, in one memory: [gatherTokens][N] for w_uk, and for
	// w_k and w_uv [tileKeys][R].
	queries, latents fp8.Activation
	activations      []float32

	// of the second arithmetic
	pairX     []uint16  // [tileKeys][stride16(C)] cache rows
	pairV     []uint16  // [tileKeys/2][2*stride(R)] their values, in pairs of keys
	pairP     []uint16  // [tileKeys/2][2*stride(rows)] probabilities
	pairQ     []uint16  // [queryRows/Lanes][pairPanel(N+P)] packed queries of one head, instead of q
	pairWide  []float32 // [narrowRows][C] rows on their way to bf16
	pairValue []uint16  // [tileKeys][stride16(V)] expanded values of one head, or the caller's
	holes     []int32   // [tileKeys]

	// of Core.Prefill
	values      []float32 // [tileKeys][stride(d_v)] widened values
	total, part result    // of prefillRows rows: running, and of the open partition
}

// rowsCap is the most rows of a tile.
const rowsCap = max(maxBlockRows, queryRows, pairTileRows)

// cutter hands out consecutive 64-byte aligned slices of float32; with no
// memory it only counts, so that one function both sizes and cuts a workspace.
type cutter struct {
	left []float32
	need int
}

func (c *cutter) cut(n int) []float32 {
	padded := roundUp(n, 16)
	c.need += padded
	if c.left == nil {
		return nil
	}
	out := c.left[:n:n]
	c.left = c.left[padded:]
	return out
}

// cut16 is cut for values of 16 bits.
func (c *cutter) cut16(n int) []uint16 {
	b := c.cut((n + 1) / 2)
	if b == nil {
		return nil
	}
	return mem.Cast[uint16](mem.Bytes(b))[:n:n]
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// Plan sizes and allocates the workspace for batches within lim, to be run on
// pool (nil: inline, on the caller's goroutine). Errors: ErrConfig, ErrClosed,
// and the system's when there is no memory.
func (l *Layer) Plan(lim Limits, pool *Pool) (*Plan, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	if err := l.enter(); err != nil {
		return nil, err
	}
	defer l.w.release()
	return newPlan(l.cfg, l, lim, pool)
}

// newPlan makes a plan for a layer, or with none for the core alone.
func newPlan(cfg Config, l *Layer, lim Limits, pool *Pool) (*Plan, error) {
	lim, err := lim.checked()
	if err != nil {
		return nil, err
	}
	p := &Plan{layer: l, cfg: cfg, lim: lim, pool: pool}
	p.scratch = make([]scratch, pool.Workers())
	p.views = make([]kvpaged.View, lim.Seqs)
	p.forms = make([]Form, lim.Seqs)
	p.tokSeq = make([]int32, lim.Tokens)
	p.offsets = make([]uint32, lim.Seqs+1)
	p.sorted = make([]uintptr, 0, lim.Seqs)
	if l == nil {
		p.pre.ends = make([]int, 0, lim.Seqs)
	}
	p.abs.size(p)
	if l != nil {
		p.exp.size(p)
	}

	var c cutter
	p.cut(&c)
	if c.need > math.MaxInt/4 {
		return nil, fmt.Errorf("%w: the workspace would be %d floats", ErrConfig, c.need)
	}
	if p.mem, err = mem.Alloc(c.need * 4); err != nil {
		return nil, fmt.Errorf("mla: a workspace of %d bytes: %w", c.need*4, err)
	}
	p.mem.Huge()
	// A net for a caller who drops the plan: its workspace is off the heap.
	runtime.AddCleanup(p, func(b *mem.Block) { b.Free() }, p.mem)
	c = cutter{left: mem.Cast[float32](p.mem.Bytes())}
	p.cut(&c)
	for i := range p.scratch {
		if err := p.scratch[i].initActivations(&cfg, l); err != nil {
			p.mem.Free()
			return nil, err
		}
	}
	return p, nil
}

// initActivations makes the activations of a layer's products; a core has none.
func (s *scratch) initActivations(cfg *Config, l *Layer) error {
	if l == nil {
		return nil
	}
	return cmp.Or(s.queries.Init(cfg.queryActivations(), s.activations), s.latents.Init(cfg.latentActivations(), s.activations))
}

// cut lays out the workspace.
func (p *Plan) cut(c *cutter) {
	cfg := p.cfg
	d, v, rows := cfg.Nope+cfg.Rope, cfg.V, queryRows
	if p.layer == nil { // queries come absorbed or expanded
		d, v, rows = cfg.Width(), cfg.Latent, min(cfg.prefillRows(), max(roundUp(p.lim.Tokens, simd.Lanes), queryRows))
	}
	for i := range p.scratch {
		s := &p.scratch[i]
		s.row = c.cut(cfg.Width())
		s.freqs = c.cut(cfg.Rope)
		s.tile = c.cut(tileKeys * stride(cfg.Width()))
		s.st = c.cut(tileKeys * stride(rowsCap))
		s.xs = c.cut(gatherTokens * cfg.Nope)
		s.ys = c.cut(gatherTokens * max(cfg.Latent, cfg.V))
		if p.layer == nil {
			s.values = c.cut(tileKeys * stride(cfg.Latent))
			for _, r := range []*result{&s.total, &s.part} {
				r.m, r.l, r.o = c.cut(rows), c.cut(rows), c.cut(rows*stride(cfg.Latent))
			}
			s.qrow = c.cut(rows * stride(d))
		} else {
			s.qrow = c.cut(rows * d)
		}
		if p.layer != nil {
			s.activations = c.cut(max(cfg.queryActivations().Floats(), cfg.latentActivations().Floats()))
		}
		if cfg.Arithmetic == BF16 {
			s.cutPairs(c, &cfg, rows, d, v)
		} else {
			s.q = c.cut(rows * d)
		}
		for _, f := range []*[]float32{&s.alpha, &s.lse, &s.top, &s.sink} {
			*f = c.cut(max(rowsCap, rows))
		}
		if c.left == nil {
			continue
		}
		for _, f := range []*[]int32{&s.lo, &s.hi, &s.rowLo, &s.rowHi} {
			*f = make([]int32, max(rowsCap, rows))
		}
		s.picked = make([]int32, tileKeys)
	}
	p.abs.cut(p, c)
	p.exp.cut(p, c)
}

// cutPairs lays out what the second arithmetic needs, for rows queries of d values, and values of so many.
func (s *scratch) cutPairs(c *cutter, cfg *Config, rows, d, values int) {
	s.pairX = c.cut16(tileKeys * stride16(cfg.Width()))
	s.pairV = c.cut16(tileKeys * max(stride(cfg.Latent), stride(askCols)))
	s.pairP = c.cut16(tileKeys * stride(rowsCap))
	s.pairQ = c.cut16(rows / simd.Lanes * pairPanel(d))
	s.pairWide = c.cut(narrowRows * cfg.Width())
	s.pairValue = c.cut16(tileKeys * stride16(values))
	if c.left != nil {
		s.holes = make([]int32, tileKeys)
	}
}

// Bytes is the memory that the plan's workspace holds.
func (p *Plan) Bytes() int64 {
	if !p.made() {
		return 0
	}
	return int64(len(p.mem.Bytes()))
}

// Limits returns the checked limits, defaults filled in.
func (p *Plan) Limits() Limits {
	if !p.made() {
		return Limits{}
	}
	return p.lim
}

// made reports that newPlan made p.
func (p *Plan) made() bool { return p != nil && p.mem != nil }

var errNoPlan = fmt.Errorf("%w: the plan is nil or a zero value", ErrClosed)

// Close frees the workspace. It is idempotent, and returns ErrBusy while a
// Forward runs; afterwards Forward returns ErrClosed.
func (p *Plan) Close() error {
	if !p.made() {
		return errNoPlan
	}
	if !p.state.CompareAndSwap(planIdle, planClosed) {
		if p.state.Load() == planClosed {
			return nil
		}
		return fmt.Errorf("%w: a Forward runs on this plan", ErrBusy)
	}
	return p.mem.Free()
}

// enter claims the plan for one Forward.
func (p *Plan) enter() error {
	if !p.made() {
		return errNoPlan
	}
	if p.state.CompareAndSwap(planIdle, planBusy) {
		return nil
	}
	if p.state.Load() == planClosed {
		return fmt.Errorf("%w: the plan is closed", ErrClosed)
	}
	return fmt.Errorf("%w: another Forward runs on this plan", ErrBusy)
}

func (p *Plan) leave() { p.state.Store(planIdle) }
