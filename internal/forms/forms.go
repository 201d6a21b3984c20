package forms

import (
	"context"

	"github.com/lamina-ml/lamina/internal/attend"
	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// Geometry sizes a Workspace.
type Geometry struct {
	*Layer
	Tokens, Context, Buffer int
	Workers                 int
	// DenseRows is set for attention alone that also runs over the caller's dense rows: the most
	// rows of a block.
	DenseRows int
}

// Workspace is the memory of one call at a time.
type Workspace struct {
	attend.Workers
	scratch  []scratch
	absorbed absorbed
	expanded expanded

	call *Call
	pool *workpool.Pool
	tok  []int32 // [Tokens] sequence of each token
}

// Carve lays out the workspace.
func (w *Workspace) Carve(c *mem.Carver, g Geometry) {
	l, kind := g.Layer, compute.Of(g.Compute)
	at := attend.Geometry{
		Geometry: compute.Geometry{K: max(l.width(), l.Nope+l.Rope), Cols: max(l.Latent, l.V), Rows: attend.BlockRows, Width: l.width()},
		Places:   g.Context, WholeRows: attend.HeadRows, WholeCols: l.V,
	}
	if l.core() {
		at.WholeRows, at.WholeCols, at.Own, at.Dense = g.DenseRows, l.Latent, g.DenseRows > 0, g.DenseRows > 0
		at.Rows, at.PackRows = max(at.Rows, g.DenseRows), max(simd.Lanes, g.DenseRows)
	}
	w.Workers.Carve(c, kind, at, g.Workers)
	if len(w.scratch) != g.Workers {
		w.scratch = make([]scratch, g.Workers)
	}
	for i := range w.scratch {
		s := &w.scratch[i]
		s.row = mem.Carve[float32](c, l.width())
		s.freqs = mem.Carve[float32](c, l.Rope)
		if l.core() {
			continue
		}
		s.xs = mem.Carve[float32](c, productTokens*l.Nope)
		s.ys = mem.Carve[float32](c, productTokens*l.V)
		s.rows = mem.Carve[float32](c, max(attend.HeadRows*(l.Nope+l.Rope), simd.Lanes*l.width()))
		s.queries = mem.Carve[float32](c, attend.HeadRows/simd.Lanes*kind.PanelFloats(l.Nope+l.Rope))
		query, latent := l.activations()
		act := mem.Carve[float32](c, max(query.Floats(), latent.Floats()))
		if c.Real() {
			must(s.queryAct.Init(query, act))
			must(s.latentAct.Init(latent, act))
		}
	}
	if len(w.tok) < g.Tokens && c.Real() {
		w.tok = make([]int32, g.Tokens)
	}
	w.absorbed.carve(c, w, g)
	if !l.core() {
		w.expanded.carve(c, w, g)
	}
}

// Run computes a call: the sequences of the absorbed form, then those of the expanded one.
func (w *Workspace) Run(ctx context.Context, pool *workpool.Pool, c *Call) error {
	w.call, w.pool = c, pool
	defer w.forget()
	w.absorbed.wave.Invalid.Store(0)
	if err := w.runAbsorbed(ctx); err != nil {
		return err
	}
	if err := w.runExpanded(ctx); err != nil {
		return err
	}
	c.Invalid = w.absorbed.wave.Invalid.Load()
	return nil
}

func (w *Workspace) forget() {
	w.call, w.pool = nil, nil
	w.absorbed.forget()
	w.expanded.heads.Forget()
}
