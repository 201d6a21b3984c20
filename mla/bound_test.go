package mla_test

import (
	"context"

	"github.com/lamina-ml/lamina/mla"
)

// bound is a layer, and attention alone in its geometry, with a workspace for them.
type bound struct {
	*mla.Workspace
	layer *mla.Layer
	core  *mla.Core
}

func bind(l *mla.Layer, lim mla.Limits, pool *mla.Pool) (*bound, error) {
	c := l.Config()
	core, err := mla.NewCore(mla.CoreConfig{
		Heads: c.Heads, Width: c.Width(), V: c.Latent, Scale: c.Scale, Mask: c.Mask, Compute: c.Compute,
	})
	if err != nil {
		return nil, err
	}
	ws, err := mla.NewWorkspace(lim, pool, l, core)
	return &bound{ws, l, core}, err
}

func (b *bound) Forward(ctx context.Context, out, q, kv mla.Rows, batch mla.Batch) error {
	return b.layer.Forward(ctx, b.Workspace, out, q, kv, batch)
}

func (b *bound) Decode(ctx context.Context, out, q mla.Rows, batch mla.Batch) error {
	return b.core.Decode(ctx, b.Workspace, out, q, batch)
}

// boundBlock is a block with a workspace for it.
type boundBlock struct {
	*mla.Workspace
	block *mla.Block
}

func bindBlock(b *mla.Block, lim mla.Limits, pool *mla.Pool) (*boundBlock, error) {
	ws, err := mla.NewWorkspace(lim, pool, b)
	return &boundBlock{ws, b}, err
}

func (b *boundBlock) Forward(ctx context.Context, out, hidden mla.Rows, batch mla.Batch) error {
	return b.block.Forward(ctx, b.Workspace, out, hidden, batch)
}

// boundCore is attention alone with a workspace for it.
type boundCore struct {
	*mla.Workspace
	core *mla.Core
}

func newCore(cfg mla.CoreConfig, lim mla.Limits, pool *mla.Pool) (*boundCore, error) {
	core, err := mla.NewCore(cfg)
	if err != nil {
		return nil, err
	}
	ws, err := mla.NewWorkspace(lim, pool, core)
	return &boundCore{ws, core}, err
}

func (c *boundCore) Decode(ctx context.Context, out, q mla.Rows, b mla.Batch) error {
	return c.core.Decode(ctx, c.Workspace, out, q, b)
}

func (c *boundCore) SparseDecode(ctx context.Context, out, q mla.Rows, a *mla.SparseDecodeArgs) error {
	return c.core.SparseDecode(ctx, c.Workspace, out, q, a)
}

func (c *boundCore) SparsePrefill(ctx context.Context, out, q, kv mla.Rows, a *mla.SparsePrefillArgs) error {
	return c.core.SparsePrefill(ctx, c.Workspace, out, q, kv, a)
}

func (c *boundCore) Prefill(ctx context.Context, out, q, k, v mla.Rows, a *mla.PrefillArgs) error {
	return c.core.Prefill(ctx, c.Workspace, out, q, k, v, a)
}
