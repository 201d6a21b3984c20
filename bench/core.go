package bench

import (
	"context"
	"errors"
	"math"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
)

// core is attention alone over the cache: Core.Decode over all keys of the
// sequences, or Core.SparseDecode over some.
type core struct {
	store
	value  int // d_v
	scale  float32
	core   *mla.Core
	ws     *mla.Workspace
	q, out []float32
	sparse *mla.SparseDecodeArgs // nil: dense
	chosen []int                 // [T][keys] positions behind sparse.Indices
	tamper func([]float32)
}

func (l *Lab) openCore(s Spec) (Workload, error) {
	if s.Op == SparseDecode && s.ragged() {
		return nil, errors.New("index lists over a ragged batch are not made here")
	}
	width, value, err := s.dims()
	if err != nil {
		return nil, err
	}
	m := s.Model
	c := &core{
		store: store{spec: s, width: width, rng: rng(l.seed + 1)},
		value: value, scale: m.config().Scale, tamper: l.tamper,
	}
	// Absorbed queries of a size that makes scores of variance 1.
	sigma := 1 / (float64(c.scale) * math.Sqrt(float64(width)))
	c.q = c.arena.floats(s.data(c.rng.normals(s.tokens()*m.Heads*width, float32(sigma))))
	c.out = placed[float32](&c.arena, s.tokens()*m.Heads*value)
	if err = c.open(0); err == nil {
		c.core, err = mla.NewCore(
			mla.CoreConfig{Heads: m.Heads, Width: width, V: value, Scale: c.scale, Compute: s.Arithmetic},
		)
	}
	if err == nil {
		c.ws, err = mla.NewWorkspace(mla.Limits{Tokens: s.tokens(), Seqs: s.Batch, Context: s.Ctx}, l.pool(s.Threads), c.core)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	if s.Op == SparseDecode {
		c.choose()
	}
	return c, nil
}

// choose fills the index lists: for each token different positions of its
// sequence in random order, as physical rows. A context of fewer keys than TopK
// is chosen whole, and its list filled up with -1.
func (c *core) choose() {
	s, keys := c.spec, c.spec.keys()
	c.sparse = &mla.SparseDecodeArgs{Seqs: s.Batch, Tokens: s.Tokens, Cache: c.cache, Stride: s.TopK}
	positions := make([]int, s.Ctx)
	for i := range positions {
		positions[i] = i
	}
	for t := range s.tokens() {
		seq, _ := s.place(t)
		pages := c.batch.Seqs[seq].Pages()
		for i := range keys {
			j := i + c.rng.intn(s.Ctx-i)
			positions[i], positions[j] = positions[j], positions[i]
			pos := positions[i]
			c.sparse.Indices = append(c.sparse.Indices, pages[pos/pageTokens]*pageTokens+int32(pos%pageTokens))
		}
		c.chosen = append(c.chosen, positions[:keys]...)
		for range s.TopK - keys {
			c.sparse.Indices = append(c.sparse.Indices, -1)
		}
	}
}

func (c *core) Run(ctx context.Context) error {
	out, q := mla.RowsF32(c.out), mla.RowsF32(c.q)
	if c.sparse != nil {
		return c.core.SparseDecode(ctx, c.ws, out, q, c.sparse)
	}
	return c.core.Decode(ctx, c.ws, out, q, c.batch)
}

// visible lists the positions that new token t attends over.
func (c *core) visible(t int) []int {
	if c.sparse != nil {
		keys := c.spec.keys()
		return c.chosen[t*keys:][:keys]
	}
	_, pos := c.spec.place(t)
	return oracle.Mask{}.Visible(pos, c.spec.Ctx)
}

// Check compares sampled rows within the bound of attention alone. The oracle
// reads the cache by sequence and position.
func (c *core) Check() (Checked, error) {
	if c.tamper != nil {
		c.tamper(c.out)
	}
	var sum Checked
	fetch, heads := c.fetch(), c.spec.Model.Heads
	for _, row := range sample(c.spec.tokens() * heads) {
		t, h := row/heads, row%heads
		seq, _ := c.spec.place(t)
		q := oracle.Widen(c.q[row*c.width:][:c.width])
		cached := func(j int) []float64 { return fetch(seq, j) }
		want := oracle.Attend(q, cached, c.visible(t), float64(c.scale), oracle.NoSink, c.value)
		got := c.out[row*c.value:][:c.value]
		if err := sum.row(c.spec, t, h, got, want, c.spec.bound(want.Size(), want.CoreBound())); err != nil {
			return sum, err
		}
	}
	return sum, nil
}

func (c *core) Memory() int64 {
	indices := 0
	if c.sparse != nil {
		indices = 4 * len(c.sparse.Indices)
	}
	return c.ws.Bytes() + c.bytes() + int64(indices)
}

func (c *core) Close() error {
	var err error
	if c.ws != nil {
		err = c.ws.Close()
	}
	return errors.Join(err, c.close())
}
