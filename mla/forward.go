package mla

import "context"

// Forward computes one layer for a ragged batch of new tokens, in a workspace that it fits in:
//
//	q    [T, H, N+P]  nope then rope, un-roped; f32, bf16 or f16; not modified
//	kv   [T, R+P]     latent then rope, before norm and rotation; f32, bf16, f16
//	out  [T, H, V]    written in full, rounded once; f32, bf16 or f16; must not
//	                  overlap an input, LSE or MaxLogit
//
// Each new token's row [RMSNorm(latent) | rope] is first stored in its reserved
// slot of the cache, then every query attends over the rows that the mask lets
// it see. Nothing is committed: committed rows, lengths and page tables are
// unchanged, whatever Forward returns; after an error or a cancellation out and
// the reserved slots hold anything. With T = 0 nothing is touched.
//
// The result has the same bits for any number of workers, any batch that a
// sequence is in (FormRuleMAX excepted), any page size and any Limits.Buffer.
// Forward allocates nothing unless it fails (see Pool), but for the first call of a
// geometry for which the workspace was not made. A nil ctx is never cancelled.
//
// Errors: ErrShape, ErrLimit (a batch beyond the Limits, or a workspace that is too
// small), ErrUnmapped, ErrIndexer, ErrBusy, ErrClosed, those of kvpaged (not reserved,
// shared slot, busy, closed), ErrClosed of a closed pool, ErrPanic, and ctx.Err. What is
// wrong with one sequence is a *SeqError.
func (l *Layer) Forward(ctx context.Context, w *Workspace, out, q, kv Rows, b Batch) error {
	if err := l.enter(); err != nil {
		return err
	}
	defer l.w.release()
	if err := w.enter(l.cfg.frame()); err != nil {
		return err
	}
	defer w.end()
	ctx = ctxOr(ctx)
	r := &w.run
	r.cfg, r.kind, r.batch, r.q, r.kv, r.out = &l.cfg, wholeLayer, b, q, kv, out
	if err := w.begin(ctx, &l.engine); err != nil || r.tokens == 0 {
		return err
	}
	return poolError(l.attend(ctx, w))
}

// attend stores the new rows of the call in w and attends.
func (l *Layer) attend(ctx context.Context, w *Workspace) error {
	c := &w.run.call
	c.Round = l.round(w.run.kv)
	if err := w.forms.Store(ctx, w.pool, c); err != nil {
		return err
	}
	err := w.forms.Run(ctx, w.pool, c)
	if sp := w.run.batch.Sparse; sp != nil && err == nil {
		sp.Ignored = c.Invalid
	}
	return err
}
