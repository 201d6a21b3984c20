package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"unsafe"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
)

// Lab makes workloads from seeded data, and keeps the weights and worker pools
// that several of them share.
type Lab struct {
	seed   uint64
	layers map[source]*layerWeights
	blocks map[source]*blockWeights
	pools  map[int]*mla.Pool

	tamper func(y []float32) // test hook: spoils an answer before it is checked
}

// NewLab returns a lab whose data all follow from seed.
func NewLab(seed uint64) *Lab {
	return &Lab{seed: seed, layers: map[source]*layerWeights{}, blocks: map[source]*blockWeights{}, pools: map[int]*mla.Pool{}}
}

// Close frees the weights and ends the worker goroutines. The lab's workloads
// are closed before it.
func (l *Lab) Close() error {
	var errs []error
	for _, w := range l.layers {
		errs = append(errs, w.layer.Close())
	}
	for _, w := range l.blocks {
		errs = append(errs, w.block.Close())
	}
	for _, p := range l.pools {
		errs = append(errs, p.Close())
	}
	return errors.Join(errs...)
}

// Workload is one row of the bench, set up and ready to run again and again.
type Workload interface {
	// Run does the work once.
	Run(ctx context.Context) error
	// Check compares sampled rows of the answer of the last Run with the oracle.
	Check() (Checked, error)
	// Memory is the bytes of weights, cache and workspace.
	Memory() int64
	// RowBytes is the size of a cache row, 0 where there is none.
	RowBytes() int
	Close() error
}

// Checked is what a check saw.
type Checked struct {
	Rows   int     // rows compared
	MaxErr float64 // largest error, relative to the largest value of its row
}

// checkedRows is how many rows of an answer are compared.
const checkedRows = 6

// sample picks the rows of n to compare: the first, the last, and some between.
func sample(n int) []int {
	pick := rng(1)
	rows := []int{0}
	for n > 1 && len(rows) < min(checkedRows, n)-1 {
		rows = append(rows, pick.intn(n))
	}
	if n > 1 {
		rows = append(rows, n-1)
	}
	return rows
}

// row compares one row of attention with the oracle's.
func (c *Checked) row(s Spec, t, h int, got []float32, want oracle.Row, bound float64) error {
	c.Rows++
	for i, x := range got {
		diff := math.Abs(float64(x) - want.Out[i])
		c.MaxErr = math.Max(c.MaxErr, diff/want.Largest())
		if !(diff <= bound) { // NaN is wrong, too
			return fmt.Errorf("%w: %v: token %d, head %d, value %d is %v, want %v within %.2g",
				ErrWrong, s, t, h, i, x, want.Out[i], bound)
		}
	}
	return nil
}

// pairBound is the error that attention may have in the second arithmetic on bf16 data,
// of the largest size of a row's outputs (oracle.Row.CoreBound): a unit of bf16, half of which
// an output in bf16 may be off by. Rows of many values and keys stay below half of that.
const pairBound = 0x1p-8

// bound is f32, or what replaces it in the second arithmetic, where size is that of the
// row. It is twice as much for cached values that are no bf16 values, and again for a whole
// layer, which rounds the absorbed query or every key, and the latent output or every
// value, as well, and again for a block, which rounds the low-rank query and the outputs of
// the heads besides.
func (s Spec) bound(size, f32 float64) float64 {
	if s.Arithmetic == mla.ComputeF32 {
		return f32
	}
	bound := pairBound * size
	if s.pages() && s.KV != kvpaged.BF16 && s.KV != kvpaged.FP8Unit {
		bound *= 2
	}
	switch s.Op {
	case Layer:
		bound *= 2
	case Block:
		bound *= 4
	}
	return bound
}

// data makes x what the arithmetic takes without an error.
func (s Spec) data(x []float32) []float32 {
	if s.Arithmetic == mla.ComputeBF16 {
		asBF16(x)
	}
	return x
}

// arena is the memory of what a work reads and writes, in huge pages: rows of one head
// lie far apart, and in small pages each would be looked up anew.
type arena struct {
	blocks []*mem.Block
	err    error // of the first block that could not be had
}

// placed is room for n values in a.
func placed[T mem.Scalar](a *arena, n int) []T {
	var one T
	block, err := mem.Alloc(n * int(unsafe.Sizeof(one)))
	if err != nil {
		a.err = cmp.Or(a.err, err)
		return nil
	}
	block.Huge()
	a.blocks = append(a.blocks, block)
	return mem.Cast[T](block.Bytes())
}

// floats is x in a.
func (a *arena) floats(x []float32) []float32 {
	y := placed[float32](a, len(x))
	copy(y, x)
	return y
}

// rows is x in a, in the type of the arithmetic.
func (a *arena) rows(of Spec, x []float32) mla.Rows {
	if of.Arithmetic != mla.ComputeBF16 {
		return mla.RowsF32(a.floats(x))
	}
	y := placed[uint16](a, len(x))
	if y != nil {
		mla.RowsBF16(y).Narrow(0, x)
	}
	return mla.RowsBF16(y)
}

func (a *arena) free() error {
	var err error
	for _, block := range a.blocks {
		err = errors.Join(err, block.Free())
	}
	a.blocks = nil
	return err
}

// valueBytes is the size of a value in the type of the arithmetic.
func (s Spec) valueBytes() int {
	if s.Arithmetic == mla.ComputeBF16 {
		return 2
	}
	return 4
}

// ErrWrong marks an answer that is further from the oracle's than it may be.
var ErrWrong = errors.New("bench: wrong answer")

// Open sets a row up. Errors: those of the packages it uses; simd.Err.
func (l *Lab) Open(s Spec) (Workload, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	var w Workload
	var err error
	switch {
	case s.Op.isCore():
		w, err = l.openCore(s)
	case s.Op == Layer:
		w, err = l.openForward(s)
	case s.Op == Block:
		w, err = l.openBlock(s)
	case s.Op == Prefill:
		w, err = l.openPrefill(s)
	case s.Rival == "":
		w, err = l.openProduct(s)
	default:
		w, err = l.openRival(s)
	}
	if err != nil {
		return nil, fmt.Errorf("bench: %v: %w", s, err)
	}
	return w, nil
}

// pool is the shared pool of that many threads; nil, inline, for one.
func (l *Lab) pool(threads int) *mla.Pool {
	if threads <= 1 {
		return nil
	}
	if l.pools[threads] == nil {
		l.pools[threads] = mla.NewPool(threads)
	}
	return l.pools[threads]
}

// layerWeights is a layer and the weights it was made from.
type layerWeights struct {
	layer *mla.Layer
	inner
}

// inner is what the oracle needs of a layer: its sizes and its weights, as they were
// before the library had them.
type inner struct {
	model Model
	kvb   decoder // [H*(N+V), R]
	gamma []float32
	freqs func(positions int) ([]float32, error) // [positions][P]
}

// layer makes the layer of a row once, with FP8 weights if it has to make them.
func (l *Lab) layer(s Spec) (*layerWeights, error) {
	if w := l.layers[s.source()]; w != nil {
		return w, nil
	}
	cfg, weights, own, err := l.innerOf(s)
	if err != nil {
		return nil, err
	}
	w := &layerWeights{inner: own}
	if w.layer, err = mla.New(cfg, weights); err != nil {
		return nil, err
	}
	l.layers[s.source()] = w
	return w, nil
}

// innerOf is the configuration and weights of a row's layer, for the library and for
// the oracle.
func (l *Lab) innerOf(s Spec) (mla.Config, mla.Weights, inner, error) {
	if w := s.Weights; w != nil {
		cfg := w.Config.Core
		cfg.Compute = s.Arithmetic
		return cfg, w.Block.Core, w.inner(), nil
	}
	m := s.Model
	cfg := m.config()
	cfg.Compute = s.Arithmetic
	r := rng(l.seed)
	gamma := r.gamma(m.Latent)
	kvb := r.codedMatrix(m.Heads*(m.Nope+m.V), m.Latent)
	table := func(n int) ([]float32, error) { return freqs(n, m.Rope), nil }
	packed, err := kvb.fp8()
	return cfg, mla.Weights{KVB: packed, Gamma: mla.RowsF32(gamma)}, inner{m, kvb, gamma, table}, err
}

// gamma is the weight of a norm: about 1.
func (r *rng) gamma(n int) []float32 {
	x := r.normals(n, 0.1)
	for i := range x {
		x[i] += 1
	}
	return x
}

// oracle is the layer for the oracle, as cfg, which is checked, has it.
func (c *inner) oracle(cfg mla.Config) oracle.Config {
	m := c.model
	return oracle.Config{
		Heads: m.Heads, Nope: m.Nope, Rope: m.Rope, V: m.V, Latent: m.Latent,
		Scale: float64(cfg.Scale), Epsilon: float64(cfg.Epsilon), HalfRope: m.RopeStyle == mla.Half,
		Gamma: oracle.Widen(c.gamma), LatentScale: float64(cfg.LatentScale), Head: c.head,
	}
}

// head decodes the up-projection of one head for the oracle.
func (c *inner) head(h int) oracle.Head {
	m := c.model
	r0 := h * (m.Nope + m.V)
	return oracle.Head{UK: block(c.kvb, r0, r0+m.Nope), UV: block(c.kvb, r0+m.Nope, r0+m.Nope+m.V)}
}
