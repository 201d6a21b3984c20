package mla

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/lamina-ml/lamina/internal/forms"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/kvpaged"
)

// Batch says where the new tokens of a call belong. T is their number, B the
// number of sequences. Slices are read (LSE and MaxLogit written) during the
// call and not retained.
type Batch struct {
	Cache *kvpaged.Cache
	Layer int // of the cache

	// Seqs are the B sequences. Sequence b has cached tokens Seqs[b].Len(), and at
	// least its new tokens reserved. In a Forward each is there at most once, even
	// if it brings no token; Decode only reads, and takes one any number of times.
	Seqs []*kvpaged.Seq
	// Offsets [B+1]: tokens Offsets[b] .. Offsets[b+1] of q and kv are the new
	// tokens of sequence b. Offsets[0] is 0, Offsets[B] is T.
	Offsets []uint32
	// Freqs [positions, P], f32 or bf16 (or f16): columns 2i and 2i+1 hold the
	// cosine and sine of pair i at that position, whatever the rope style.
	Freqs Rows

	// Forms [B] fixes the form of each sequence; nil means auto for all.
	Forms []Form
	// Sink [H] is a natural-log logit per head that adds to the softmax's
	// denominator only; it is not multiplied by Scale. -Inf adds nothing, +Inf
	// makes the output 0. nil: no sinks.
	Sink []float32

	// Sparse, if not nil, selects the keys by index lists; all forms are then
	// absorbed.
	Sparse *Sparse

	// LSE [T, H], if not nil, receives the natural logarithm of the sum of the
	// exponentials of a row's visible scores, sink not included: +Inf for a
	// row that saw nothing.
	LSE []float32
	// MaxLogit [T, H], if not nil, receives the largest visible score: -Inf for
	// a row that saw nothing.
	MaxLogit []float32
}

// SeqError is the error of one sequence of a batch.
type SeqError struct {
	Index int // in Batch.Seqs
	Err   error
}

// Error names the sequence.
func (e *SeqError) Error() string {
	return fmt.Sprintf("%v (sequence %d of the batch)", e.Err, e.Index)
}

// Unwrap is what is wrong with it.
func (e *SeqError) Unwrap() error { return e.Err }

// poolError names the pool's errors as this package's.
func poolError(err error) error {
	if errors.Is(err, workpool.ErrClosed) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}

// begin checks the call in w.run and leases what it reads and writes. end gives that back, whatever
// begin returned. With no tokens there is nothing to do.
func (w *Workspace) begin(ctx context.Context, layer *forms.Layer) error {
	r := &w.run
	if sp := r.batch.Sparse; sp != nil {
		sp.Ignored = 0
	}
	if r.kind != overRows {
		if err := w.checkBatch(); err != nil {
			return err
		}
	}
	if err := r.checkShapes(); err != nil {
		return err
	}
	if err := r.checkOverlaps(); err != nil {
		return err
	}
	if err := w.checkLists(); err != nil || r.tokens == 0 {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.lease(); err != nil {
		return err
	}
	if err := w.placeSeqs(); err != nil {
		return err
	}
	if err := w.leasePools(); err != nil {
		return err
	}
	c := &r.call
	c.Layer, c.Tokens, c.Seqs = layer, r.tokens, w.seqs[:len(r.batch.Offsets)-1]
	c.Q, c.KV, c.Out, c.Freqs = r.q, r.kv, r.out, r.batch.Freqs
	c.Sink, c.LSE, c.MaxLogit = r.batch.Sink, r.batch.LSE, r.batch.MaxLogit
	return nil
}

// end gives back what begin leased and lets go of the call.
func (w *Workspace) end() {
	r := &w.run
	for i := range w.views[:r.leased] {
		w.views[i].Release()
	}
	for i := range r.pools {
		r.pools[i].Release()
	}
	clear(w.seqs[:min(len(r.call.Seqs), len(w.seqs))])
	*r = run{}
	w.leave()
}

// newTokens is the number of new tokens of sequence b.
func (b *Batch) newTokens(i int) int { return int(b.Offsets[i+1]) - int(b.Offsets[i]) }

// checkBatch tests what the batch says of its sequences, its cache and its layer, and counts its
// tokens.
func (w *Workspace) checkBatch() error {
	r := &w.run
	b, c := &r.batch, r.cfg
	if err := w.checkOffsets(); err != nil {
		return err
	}
	if b.Cache == nil {
		return fmt.Errorf("%w: Batch.Cache is nil", ErrShape)
	}
	if err := checkCache("Batch", b.Cache, b.Layer, c); err != nil {
		return err
	}
	if r.kind != wholeLayer {
		return nil
	}
	if c.Rope > 0 && b.Freqs.Len()%c.Rope != 0 {
		return fmt.Errorf("%w: Batch.Freqs has %d values, want rows of P = %d", ErrShape, b.Freqs.Len(), c.Rope)
	}
	for i, f := range b.Forms {
		if f > FormExpanded {
			return &SeqError{i, fmt.Errorf("%w: Batch.Forms[%d] is %d, which is no form", ErrShape, i, f)}
		}
		if f == FormExpanded && b.Sparse != nil {
			return &SeqError{i, fmt.Errorf("%w: Batch.Forms[%d] is expanded, and index lists want the absorbed form", ErrShape, i)}
		}
	}
	return w.checkTwice()
}

// checkOffsets tests Offsets and Seqs against each other and the limits.
func (w *Workspace) checkOffsets() error {
	b := &w.run.batch
	if len(b.Offsets) != len(b.Seqs)+1 {
		return fmt.Errorf("%w: Batch.Offsets has %d values, want B+1 = %d", ErrShape, len(b.Offsets), len(b.Seqs)+1)
	}
	if b.Offsets[0] != 0 {
		return fmt.Errorf("%w: Batch.Offsets[0] is %d, want 0", ErrShape, b.Offsets[0])
	}
	for i := range b.Seqs {
		if b.Offsets[i+1] < b.Offsets[i] {
			return &SeqError{i, fmt.Errorf("%w: Batch.Offsets decreases from %d to %d at sequence %d", ErrShape, b.Offsets[i], b.Offsets[i+1], i)}
		}
	}
	t := int(b.Offsets[len(b.Seqs)])
	if len(b.Seqs) > w.lim.Seqs {
		return fmt.Errorf("%w: the batch has %d sequences, Limits.Seqs is %d", ErrLimit, len(b.Seqs), w.lim.Seqs)
	}
	if t > w.lim.Tokens {
		return fmt.Errorf("%w: the batch has %d new tokens, Limits.Tokens is %d", ErrLimit, t, w.lim.Tokens)
	}
	w.run.tokens = t
	for i, s := range b.Seqs {
		if s == nil {
			return &SeqError{i, fmt.Errorf("%w: Batch.Seqs[%d] is nil", ErrShape, i)}
		}
		if s.Cache() != b.Cache {
			return &SeqError{i, fmt.Errorf("%w: Batch.Seqs[%d] belongs to another cache", ErrShape, i)}
		}
	}
	return nil
}

// checkTwice tests that no sequence is in the batch twice.
func (w *Workspace) checkTwice() error {
	seqs := w.run.batch.Seqs
	w.addrs = w.addrs[:0]
	for _, s := range seqs {
		w.addrs = append(w.addrs, uintptr(unsafe.Pointer(s)))
	}
	slices.Sort(w.addrs)
	for i := 1; i < len(w.addrs); i++ {
		if w.addrs[i] != w.addrs[i-1] {
			continue
		}
		same := func(s *kvpaged.Seq) bool { return uintptr(unsafe.Pointer(s)) == w.addrs[i] }
		first := slices.IndexFunc(seqs, same)
		second := first + 1 + slices.IndexFunc(seqs[first+1:], same)
		return &SeqError{second, fmt.Errorf("%w: Batch.Seqs[%d] and Batch.Seqs[%d] are the same sequence, which may bring new tokens once",
			ErrShape, first, second)}
	}
	return nil
}

// lease takes the lease of every sequence with new tokens, to write them or only to read. A
// sequence that another running call writes is busy.
func (w *Workspace) lease() error {
	r := &w.run
	for i, s := range r.batch.Seqs {
		n := r.batch.newTokens(i)
		if r.leased = i + 1; n == 0 {
			continue
		}
		written := n
		if r.kind != wholeLayer {
			written = 0
		}
		v, err := s.Lease(r.batch.Layer, written)
		if err != nil {
			return &SeqError{i, fmt.Errorf("mla: %w", err)}
		}
		w.views[i] = v
	}
	return nil
}

// placeSeqs tests the lengths, pages and positions of the leased sequences, and resolves their
// forms.
func (w *Workspace) placeSeqs() error {
	r := &w.run
	b, longest := &r.batch, 0
	for i := range len(b.Offsets) - 1 {
		longest = max(longest, b.newTokens(i))
	}
	for i := range len(b.Offsets) - 1 {
		s := forms.Seq{Token: int(b.Offsets[i]), Tokens: b.newTokens(i)}
		s.Keys = s.Tokens
		if r.kind != overRows && s.Tokens > 0 {
			s.View = &w.views[i]
			if s.Pos = s.View.Len(); r.kind == overSeqs {
				s.Pos -= s.Tokens // queries end with the committed tokens
			}
			s.Keys = s.Pos + s.Tokens
			if err := w.checkSeq(&s); err != nil {
				return &SeqError{i, err}
			}
			if r.kind == wholeLayer {
				s.Expanded = r.form(i, &s, longest) == FormExpanded
			}
		}
		w.seqs[i] = s
	}
	return nil
}

// checkSeq tests a leased sequence.
func (w *Workspace) checkSeq(s *forms.Seq) error {
	r := &w.run
	c, b := r.cfg, &r.batch
	// Only the null mask looks at no positions; lists do, for what follows a token is invalid for
	// it.
	if s.Pos < 0 && (b.Sparse != nil || c.Mask.Kind != MaskNull) {
		return fmt.Errorf("%w: %d queries, but only %d committed tokens", ErrShape, s.Tokens, s.View.Len())
	}
	if s.Keys > w.lim.Context {
		return fmt.Errorf("%w: %d keys, Limits.Context is %d", ErrLimit, s.Keys, w.lim.Context)
	}
	if c.Rope > 0 && r.kind == wholeLayer && s.Keys > b.Freqs.Len()/c.Rope {
		return fmt.Errorf("%w: Batch.Freqs has %d rows, and position %d is reached", ErrShape, b.Freqs.Len()/c.Rope, s.Keys-1)
	}
	if b.Sparse != nil {
		return nil
	}
	lo, _ := c.Mask.visible(s.Pos, s.Keys)
	_, hi := c.Mask.visible(s.Pos+s.Tokens-1, s.Keys)
	page := b.Cache.Config().PageTokens
	for pos := lo; pos < hi; pos += page - pos%page {
		if !s.View.Mapped(pos) {
			return fmt.Errorf("%w: position %d, which its new tokens see", ErrUnmapped, pos)
		}
	}
	// A model with an indexer attends to so many keys without its lists.
	most := c.IndexTopK
	if most == 0 || s.Keys <= most {
		return nil
	}
	for pos := s.Pos; pos < s.Keys; pos++ {
		if lo, hi := c.Mask.visible(pos, s.Keys); hi-lo > most {
			return fmt.Errorf("%w: position %d sees %d keys, more than IndexTopK = %d, and Batch.Sparse is nil",
				ErrIndexer, pos, hi-lo, most)
		}
	}
	return nil
}

// form resolves the form of sequence i.
func (r *run) form(i int, s *forms.Seq, longest int) Form {
	switch c := r.cfg; {
	case r.batch.Sparse != nil:
		return FormAbsorbed
	case r.batch.Forms != nil && r.batch.Forms[i] != FormAuto:
		return r.batch.Forms[i]
	default:
		return c.rule(s.Tokens, s.Keys, longest)
	}
}
