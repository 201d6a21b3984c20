package mla

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"sync/atomic"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/attend"
	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/forms"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// defaultBuffer is Limits.Buffer of 0.
const defaultBuffer = 2048

// Limits bound the calls that a Workspace takes and size it.
type Limits struct {
	Tokens int // new tokens of a batch, or queries of a Core's call, at least 1
	Seqs   int // sequences of a batch, at least 1
	// Context is keys of one sequence, its new tokens included, at least 1. Index lists may have as
	// many entries, and 8,192 in any case.
	Context int
	// Buffer is how many key rows the expanded form holds expanded at a time, rounded up to whole
	// partitions of 512; 0 means 2048. Any size gives the same bits; a prompt may be longer.
	Buffer int
}

// Bounds of Limits; the books of a workspace, on the heap, stay small beside its memory.
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

// Runner is what runs in a Workspace: a *Layer, a *Block or a *Core.
type Runner interface {
	// frame is what the size of a workspace hangs on.
	frame() (frame, error)
}

// frame is the geometry of a Runner. Runners of the same frame lay a workspace out in the same way.
type frame struct {
	heads, nope, rope, v, latent int
	compute                      fp8.Compute
	groupQ, groupLatent          int // of quantised activations, else 0
	hidden, qLora                int // of a block
}

// frame is that of a layer of this configuration.
func (c *Config) frame() frame {
	return frame{
		heads: c.Heads, nope: c.Nope, rope: c.Rope, v: c.V, latent: c.Latent, compute: c.Compute,
		groupQ: c.product(c.ActBlockQ).Group, groupLatent: c.product(c.ActBlockLatent).Group,
	}
}

// core tells that there are no weights.
func (f *frame) core() bool { return f.v == 0 }

// layout is how a workspace's memory is cut for Runners of one frame.
type layout struct {
	bytes int
	laid  bool // it is not only counted
	forms forms.Workspace
	dense attend.Dense // of cores
	// Of blocks, for each new token, in float32. What is dead when the next is made shares its
	// memory: the low-rank query with the core's output, and the query with an output that is not
	// float32.
	q  []float32 // [T][max(H*(N+P), E)]: queries, then rows of the output
	kv []float32 // [T][R+P]
	o  []float32 // [T][max(A, H*V)]: low-rank queries, then outputs of the core
}

// Workspace is the memory in which layers, blocks and cores compute, one call at a time. It is
// sized for the largest of those it was made for, and serves all that fit, in turn: one is enough
// for all layers of a model. Any number of workspaces may share layers, a Pool and a cache.
//
// Memory is off the garbage-collected heap. NewWorkspace makes one: a zero Workspace counts as
// closed.
type Workspace struct {
	lim   Limits
	pool  *Pool
	mem   *mem.Block
	state atomic.Int32 // idle, busy, closed

	layouts map[frame]*layout // that were asked for
	*layout                   // of the call in hand

	run   run            // the call in hand
	views []kvpaged.View // one per sequence, leased while a call runs
	seqs  []forms.Seq
	addrs []uintptr // of sequences, to see that none is in a batch twice

	// of a Core's call over rows
	offsets []uint32 // [Seqs+1]
	args    SparseDecodeArgs
	sparse  Sparse
	prefill prefill

	stage blockStage // of a block's call
}

const (
	idle = iota
	busy
	closed
)

// NewWorkspace sizes and allocates a workspace for calls within lim of each of the runners, to be
// run on pool (nil: on the caller's goroutine). Errors: ErrConfig, ErrClosed, and the system's when
// there is no memory.
func NewWorkspace(lim Limits, pool *Pool, of ...Runner) (*Workspace, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	lim, err := lim.checked()
	if err != nil {
		return nil, err
	}
	if len(of) == 0 {
		return nil, fmt.Errorf("%w: a workspace for no layer, block or core", ErrConfig)
	}
	w := &Workspace{lim: lim, pool: pool, layouts: map[frame]*layout{}}
	need := 0
	for i, r := range of {
		if r == nil {
			return nil, fmt.Errorf("%w: runner %d is nil", ErrConfig, i)
		}
		f, err := r.frame()
		if err != nil {
			return nil, err
		}
		need = max(need, w.of(f).bytes)
	}
	if need > math.MaxInt/4 {
		return nil, fmt.Errorf("%w: the workspace would be %d bytes", ErrConfig, need)
	}
	w.views = make([]kvpaged.View, lim.Seqs)
	w.seqs = make([]forms.Seq, lim.Seqs)
	w.addrs, w.offsets = make([]uintptr, 0, lim.Seqs), make([]uint32, lim.Seqs+1)
	if w.mem, err = mem.Alloc(need); err != nil {
		return nil, fmt.Errorf("mla: a workspace of %d bytes: %w", need, err)
	}
	w.mem.Huge()
	// A net for a caller who drops the workspace: its memory is off the heap.
	runtime.AddCleanup(w, func(b *mem.Block) { b.Free() }, w.mem)
	for f := range w.layouts {
		if err := w.layOut(f); err != nil {
			w.mem.Free()
			return nil, err
		}
	}
	return w, nil
}

// of is the layout of a frame, laid out or only counted.
func (w *Workspace) of(f frame) *layout {
	l := w.layouts[f]
	if l == nil {
		l = &layout{}
		var c mem.Carver
		l.carve(&c, f, w.lim, w.pool.Workers())
		l.bytes = c.Bytes()
		w.layouts[f] = l
	}
	return l
}

// layOut makes the workspace ready for calls of a frame.
func (w *Workspace) layOut(f frame) error {
	l, have := w.of(f), w.mem.Bytes()
	if l.bytes > len(have) {
		return fmt.Errorf("%w: the workspace has %d bytes, and this layer, block or core needs %d within its Limits", ErrLimit, len(have), l.bytes)
	}
	if !l.laid {
		l.carve(mem.NewCarver(have), f, w.lim, w.pool.Workers())
		l.laid = true
	}
	w.layout = l
	return nil
}

// carve lays out the memory of a frame.
func (y *layout) carve(c *mem.Carver, f frame, lim Limits, workers int) {
	l := forms.Layer{
		Heads: f.heads, Nope: f.nope, Rope: f.rope, V: f.v, Latent: f.latent, Compute: f.compute,
		GroupQ: f.groupQ, GroupLatent: f.groupLatent,
	}
	g := forms.Geometry{
		Layer: &l, Tokens: lim.Tokens, Context: lim.Context, Buffer: lim.Buffer, Workers: workers,
	}
	if f.core() {
		g.DenseRows = attend.RowsOfDense(compute.Of(f.compute), lim.Tokens)
	}
	y.forms.Carve(c, g)
	if f.core() {
		y.dense.Carve(c, &y.forms.Workers, g.DenseRows, f.latent+f.rope, lim.Seqs)
	}
	if f.hidden > 0 {
		y.q = mem.Carve[float32](c, lim.Tokens*max(f.heads*(f.nope+f.rope), f.hidden))
		y.kv = mem.Carve[float32](c, lim.Tokens*(f.latent+f.rope))
		y.o = mem.Carve[float32](c, lim.Tokens*max(f.qLora, f.heads*f.v))
	}
}

// made reports that NewWorkspace made w.
func (w *Workspace) made() bool { return w != nil && w.mem != nil }

var errNoWorkspace = fmt.Errorf("%w: the workspace is nil or a zero value", ErrClosed)

// Bytes is the memory that the workspace holds.
func (w *Workspace) Bytes() int64 {
	if !w.made() {
		return 0
	}
	return int64(len(w.mem.Bytes()))
}

// Limits returns the checked limits, defaults filled in.
func (w *Workspace) Limits() Limits {
	if !w.made() {
		return Limits{}
	}
	return w.lim
}

// Close frees the memory. It is idempotent, and returns ErrBusy while a call runs; afterwards calls
// return ErrClosed.
func (w *Workspace) Close() error {
	if !w.made() {
		return errNoWorkspace
	}
	if !w.state.CompareAndSwap(idle, closed) {
		if w.state.Load() == closed {
			return nil
		}
		return fmt.Errorf("%w: a call runs in this workspace", ErrBusy)
	}
	return w.mem.Free()
}

// enter claims the workspace for one call of a frame.
func (w *Workspace) enter(f frame) error {
	if !w.made() {
		return errNoWorkspace
	}
	if !w.state.CompareAndSwap(idle, busy) {
		if w.state.Load() == closed {
			return fmt.Errorf("%w: the workspace is closed", ErrClosed)
		}
		return fmt.Errorf("%w: another call runs in this workspace", ErrBusy)
	}
	if err := w.layOut(f); err != nil {
		w.leave()
		return err
	}
	return nil
}

func (w *Workspace) leave() { w.state.Store(idle) }

// ctxOr is ctx, or one that is never cancelled.
func ctxOr(ctx context.Context) context.Context {
	if ctx == nil {
		return context.Background()
	}
	return ctx
}
