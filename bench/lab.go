package bench

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
)

// Lab makes workloads from seeded data, and keeps the weights and worker pools
// that several of them share.
type Lab struct {
	seed   uint64
	layers map[Model]*layerWeights
	pools  map[int]*mla.Pool

	tamper func(y []float32) // test hook: spoils an answer before it is checked
}

// NewLab returns a lab whose data all follow from seed.
func NewLab(seed uint64) *Lab {
	return &Lab{seed: seed, layers: map[Model]*layerWeights{}, pools: map[int]*mla.Pool{}}
}

// Close frees the weights and ends the worker goroutines. The lab's workloads
// are closed before it.
func (l *Lab) Close() error {
	var errs []error
	for _, w := range l.layers {
		errs = append(errs, w.layer.Close())
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
	model Model
	kvb   matrix // [H*(N+V), R]
	gamma []float32
}

// layer makes the layer of a model once, with FP8 weights.
func (l *Lab) layer(m Model) (*layerWeights, error) {
	if w := l.layers[m]; w != nil {
		return w, nil
	}
	r := rng(l.seed)
	rows := m.Heads * (m.Nope + m.V)
	w := &layerWeights{model: m, gamma: r.normals(m.Latent, 0.1)}
	for i := range w.gamma {
		w.gamma[i] += 1
	}
	w.kvb = r.codedMatrix(rows, m.Latent)
	kvb, err := w.kvb.fp8()
	if err != nil {
		return nil, err
	}
	if w.layer, err = mla.New(m.config(), mla.Weights{KVB: kvb, Gamma: mla.RowsF32(w.gamma)}); err != nil {
		return nil, err
	}
	l.layers[m] = w
	return w, nil
}

// head decodes the up-projection of one head for the oracle.
func (w *layerWeights) head(h int) oracle.Head {
	m := w.model
	r0 := h * (m.Nope + m.V)
	return oracle.Head{UK: w.kvb.block(r0, r0+m.Nope), UV: w.kvb.block(r0+m.Nope, r0+m.Nope+m.V)}
}
