package mla

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"github.com/lamina-ml/lamina/fp8"
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
	// denominator only; it is not multiplied by Scale. -Inf is none, +Inf
	// makes the output 0. nil means none.
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

// Forward computes one layer for a ragged batch of new tokens:
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
// Forward allocates nothing unless it fails (see Pool). A nil ctx is never cancelled.
//
// Errors: ErrShape, ErrLimit, ErrUnmapped, ErrIndexer, ErrBusy, ErrClosed, those of kvpaged
// (not reserved, shared slot, busy, closed), ErrClosed of a closed pool, ErrPanic,
// and ctx.Err.
func (p *Plan) Forward(ctx context.Context, out, q, kv Rows, b Batch) error {
	return p.run(ctx, call{out: out, q: q, kv: kv, Batch: b, kind: wholeLayer})
}

// Decode is the attention core of the absorbed form alone, without projections,
// norm and rope, and without writing to the cache:
//
//	q    [T, H, R+P]  absorbed queries q' = [q_nope . w_uk | roped]; f32, bf16, f16
//	out  [T, H, R]    the latent output of every row; f32, bf16 or f16
//
// The queries of sequence b stand at its last committed positions: with s of
// them and n committed tokens, at n-s .. n-1, and s is at most n. Under MaskNull
// without index lists positions play no part, and s may be more: over no rows the
// output is 0, LSE +Inf and MaxLogit -Inf. Freqs and Forms play no part.
// Everything else, errors included, is as for Forward.
func (p *Plan) Decode(ctx context.Context, out, q Rows, b Batch) error {
	b.Freqs, b.Forms = Rows{}, nil
	return p.run(ctx, call{out: out, q: q, Batch: b, kind: coreDense})
}

func (p *Plan) run(ctx context.Context, c call) error {
	if ctx == nil {
		ctx = context.Background()
	}
	if err := p.enter(); err != nil {
		return err
	}
	defer p.leave()
	if p.layer != nil {
		if err := p.layer.enter(); err != nil {
			return err
		}
		defer p.layer.w.release()
	}
	if c.Sparse != nil {
		c.Sparse.Ignored = 0
	}
	c.ctx = ctx
	p.call = c
	defer p.forget()
	if err := p.check(); err != nil {
		return err
	}
	if p.call.tokens == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	leased, err := p.lease()
	defer p.unlease(leased)
	if err != nil {
		return err
	}
	if err := p.checkLeased(); err != nil {
		return err
	}
	pools, err := p.leasePools()
	defer p.unleasePools(pools)
	if err != nil {
		return err
	}
	return poolError(p.compute(ctx))
}

// forget lets go of what the call was given.
func (p *Plan) forget() {
	if c := p.call.core; c != nil {
		c.sparse = Sparse{}
	}
	p.call = call{}
}

// poolError names the pool's errors as this package's.
func poolError(err error) error {
	if errors.Is(err, workpool.ErrClosed) {
		return fmt.Errorf("%w: %w", ErrClosed, err)
	}
	return err
}

func (p *Plan) compute(ctx context.Context) error {
	p.abs.ignored.Store(0)
	if p.call.block != nil {
		if err := p.call.block.project(ctx); err != nil {
			return err
		}
	}
	if p.call.kind == wholeLayer {
		stores := (p.call.tokens + storeTokens - 1) / storeTokens
		if err := p.pool.Run(ctx, stores, (*storeStage)(p)); err != nil {
			return err
		}
	}
	if err := p.runAbsorbed(ctx); err != nil {
		return err
	}
	if err := p.runExpanded(ctx); err != nil {
		return err
	}
	if p.call.Sparse != nil {
		p.call.Sparse.Ignored = p.abs.ignored.Load()
	}
	if p.call.ignored != nil {
		*p.call.ignored = p.abs.ignored.Load()
	}
	if p.call.block != nil {
		return p.call.block.output(ctx)
	}
	return nil
}

// newTokens is the number of new tokens of sequence b.
func (p *Plan) newTokens(b int) int {
	return int(p.call.Offsets[b+1]) - int(p.call.Offsets[b])
}

// check tests all that can be told without the sequences' leases.
func (p *Plan) check() error {
	if p.call.kind == coreSparse {
		if err := p.call.core.ready(); err != nil {
			return err
		}
	} else if err := p.checkBatch(); err != nil {
		return err
	}
	if p.call.block != nil {
		if err := p.call.block.ready(); err != nil {
			return err
		}
	}
	if err := p.checkShapes(); err != nil {
		return err
	}
	if err := p.checkOverlaps(); err != nil {
		return err
	}
	if err := p.checkSparse(); err != nil {
		return err
	}
	if p.call.kind != wholeLayer {
		return nil
	}
	r := p.cfg.NormRounding
	if r == NormAsGamma || r == NormAuto && p.call.kv.Kind() != fp8.ElemF32 {
		p.call.round = p.layer.gammaType
	}
	return nil
}

// checkBatch tests the batch, its cache and its layer.
func (p *Plan) checkBatch() error {
	c, b := &p.cfg, &p.call.Batch
	if err := p.checkOffsets(); err != nil {
		return err
	}
	if b.Cache == nil {
		return fmt.Errorf("%w: Batch.Cache is nil", ErrShape)
	}
	if err := p.checkCache("Batch", b.Cache, b.Layer); err != nil {
		return err
	}
	if c.Rope > 0 && p.call.kind == wholeLayer && b.Freqs.Len()%c.Rope != 0 {
		return fmt.Errorf("%w: Batch.Freqs has %d values, want rows of P = %d", ErrShape, b.Freqs.Len(), c.Rope)
	}
	for i, f := range b.Forms {
		if f > FormExpanded {
			return fmt.Errorf("%w: Batch.Forms[%d] is %d, which is no form", ErrShape, i, f)
		}
		if f == FormExpanded && b.Sparse != nil {
			return fmt.Errorf("%w: Batch.Forms[%d] is expanded, and index lists want the absorbed form", ErrShape, i)
		}
	}
	return nil
}

// checkCache tests that a cache has rows of the layer's width, and the layer.
func (p *Plan) checkCache(name string, cache *kvpaged.Cache, layer int) error {
	c, cc := &p.cfg, cache.Config()
	if cc.Width != c.Width() {
		return fmt.Errorf("%w: %s.Cache has rows of %d values, want R+P = %d+%d = %d", ErrShape, name, cc.Width, c.Latent, c.Rope, c.Width())
	}
	if layer < 0 || layer >= cc.Layers {
		return fmt.Errorf("%w: %s.Layer is %d, the cache has layers 0 to %d", ErrShape, name, layer, cc.Layers-1)
	}
	return nil
}

// checkShapes tests the lengths of all arguments but the lists.
func (p *Plan) checkShapes() error {
	c, b, t := &p.cfg, &p.call.Batch, p.call.tokens
	q, out := "T*H*(N+P)", "T*H*V"
	qWant, outWant := t*c.Heads*(c.Nope+c.Rope), t*c.Heads*c.V
	if p.call.coreOnly() {
		q, out = "T*H*(R+P)", "T*H*R"
		qWant, outWant = t*c.Heads*c.Width(), t*c.Heads*c.Latent
	}
	for _, s := range [...]struct {
		name, shape string
		got         int
		want        int
		optional    bool
	}{
		{"q", q, p.call.q.Len(), qWant, false},
		{"kv", "T*(R+P)", p.call.kv.Len(), t * c.Width(), p.call.coreOnly()},
		{"out", out, p.call.out.Len(), outWant, false},
		{"Batch.Forms", "B", len(b.Forms), p.call.nseq, b.Forms == nil},
		{"Batch.Sink", "H", len(b.Sink), c.Heads, b.Sink == nil},
		{"Batch.LSE", "T*H", len(b.LSE), t * c.Heads, b.LSE == nil},
		{"Batch.MaxLogit", "T*H", len(b.MaxLogit), t * c.Heads, b.MaxLogit == nil},
	} {
		if s.got != s.want && !s.optional {
			return fmt.Errorf("%w: %s has %d values, want %s = %d (T %d, B %d, H %d, N %d, P %d, V %d, R %d)",
				ErrShape, s.name, s.got, s.shape, s.want, t, p.call.nseq, c.Heads, c.Nope, c.Rope, c.V, c.Latent)
		}
	}
	return nil
}

// named is an argument and what to call it.
type named struct {
	name string
	r    Rows
}

// checkOverlaps tests that nothing is written where something else is
// written or read.
func (p *Plan) checkOverlaps() error {
	b := &p.call.Batch
	written := [...]named{{"out", p.call.out}, {"out", p.call.blockOut}, {"Batch.LSE", RowsF32(b.LSE)}, {"Batch.MaxLogit", RowsF32(b.MaxLogit)}}
	read := [...]named{{"q", p.call.q}, {"kv", p.call.kv}, {"kv", p.call.dense}, {"hidden", p.call.hidden}, {"Batch.Freqs", b.Freqs}, {"Batch.Sink", RowsF32(b.Sink)}}
	for i, w := range written {
		for _, other := range written[:i] {
			if w.r.Overlaps(other.r) {
				return fmt.Errorf("%w: %s overlaps %s", ErrShape, w.name, other.name)
			}
		}
		for _, in := range read {
			if w.r.Overlaps(in.r) {
				return fmt.Errorf("%w: %s overlaps %s", ErrShape, w.name, in.name)
			}
		}
	}
	return nil
}

// checkSparse tests the index lists and readies them.
func (p *Plan) checkSparse() error {
	sp := p.call.Sparse
	if sp == nil {
		return nil
	}
	t, b := p.call.tokens, p.call.nseq
	p.call.sparse, p.call.fold = true, sp.FoldShared
	first := &p.call.lists[0]
	first.name, first.indices, first.stride = "Sparse.Indices", sp.Indices, sp.Stride
	first.lengths, first.logical = sp.Lengths, sp.Logical
	if err := first.check(sp.LengthsPer, t, b); err != nil {
		return err
	}
	if rows := first.source.rows; !first.logical {
		if p.call.Cache != nil {
			rows = physicalRows(p.call.Cache)
		}
		if err := first.checkReach(rows); err != nil {
			return err
		}
	}
	second := &p.call.lists[1]
	if x := sp.Extra; x != nil {
		if x.Cache == nil {
			return fmt.Errorf("%w: Sparse.Extra.Cache is nil", ErrShape)
		}
		if err := p.checkCache("Sparse.Extra", x.Cache, x.Layer); err != nil {
			return err
		}
		second.name, second.indices, second.stride, second.lengths = "Extra.Indices", x.Indices, x.Stride, x.Lengths
		if err := second.check(x.LengthsPer, t, b); err != nil {
			return err
		}
		if err := second.checkReach(physicalRows(x.Cache)); err != nil {
			return err
		}
	}
	if !sp.FoldShared {
		return nil
	}
	for i := range p.call.lists {
		if err := p.checkFolded(&p.call.lists[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkOffsets tests Offsets and Seqs against each other and the limits.
func (p *Plan) checkOffsets() error {
	b := &p.call.Batch
	if len(b.Offsets) != len(b.Seqs)+1 {
		return fmt.Errorf("%w: Batch.Offsets has %d values, want B+1 = %d", ErrShape, len(b.Offsets), len(b.Seqs)+1)
	}
	if b.Offsets[0] != 0 {
		return fmt.Errorf("%w: Batch.Offsets[0] is %d, want 0", ErrShape, b.Offsets[0])
	}
	for i := range b.Seqs {
		if b.Offsets[i+1] < b.Offsets[i] {
			return fmt.Errorf("%w: Batch.Offsets decreases from %d to %d at sequence %d", ErrShape, b.Offsets[i], b.Offsets[i+1], i)
		}
	}
	t := int(b.Offsets[len(b.Seqs)])
	if len(b.Seqs) > p.lim.Seqs {
		return fmt.Errorf("%w: the batch has %d sequences, Limits.Seqs is %d", ErrLimit, len(b.Seqs), p.lim.Seqs)
	}
	if t > p.lim.Tokens {
		return fmt.Errorf("%w: the batch has %d new tokens, Limits.Tokens is %d", ErrLimit, t, p.lim.Tokens)
	}
	p.call.tokens, p.call.nseq = t, len(b.Seqs)
	for i, s := range b.Seqs {
		if s == nil {
			return fmt.Errorf("%w: Batch.Seqs[%d] is nil", ErrShape, i)
		}
		if s.Cache() != b.Cache {
			return fmt.Errorf("%w: Batch.Seqs[%d] belongs to another cache", ErrShape, i)
		}
		for j := int(b.Offsets[i]); j < int(b.Offsets[i+1]); j++ {
			p.tokSeq[j] = int32(i)
		}
	}
	if p.call.kind != wholeLayer {
		return nil
	}
	return p.checkTwice()
}

// checkTwice tests that no sequence is in the batch twice.
func (p *Plan) checkTwice() error {
	seqs := p.call.Seqs
	p.sorted = p.sorted[:0]
	for _, s := range seqs {
		p.sorted = append(p.sorted, uintptr(unsafe.Pointer(s)))
	}
	slices.Sort(p.sorted)
	for i := 1; i < len(p.sorted); i++ {
		if p.sorted[i] != p.sorted[i-1] {
			continue
		}
		same := func(s *kvpaged.Seq) bool { return uintptr(unsafe.Pointer(s)) == p.sorted[i] }
		first := slices.IndexFunc(seqs, same)
		return fmt.Errorf("%w: Batch.Seqs[%d] and Batch.Seqs[%d] are the same sequence, which may bring new tokens once",
			ErrShape, first, first+1+slices.IndexFunc(seqs[first+1:], same))
	}
	return nil
}

// lease takes the lease of every sequence with new tokens, to write them or
// only to read, and says how many sequences it went through. A sequence that
// another running call writes is busy.
func (p *Plan) lease() (int, error) {
	b := &p.call.Batch
	for i, s := range b.Seqs { // none in a call over physical rows alone
		n := p.newTokens(i)
		if n == 0 {
			continue
		}
		written := n
		if p.call.coreOnly() {
			written = 0
		}
		v, err := s.Lease(b.Layer, written)
		if err != nil {
			return i, fmt.Errorf("mla: sequence %d of the batch: %w", i, err)
		}
		p.views[i] = v
	}
	return len(b.Seqs), nil
}

func (p *Plan) unlease(n int) {
	for i := range n {
		if p.newTokens(i) > 0 {
			p.views[i].Release()
		}
		p.views[i] = kvpaged.View{}
	}
}

// leasePools leases the pages that physical indices point into, and says how
// many of the two lists hold one.
func (p *Plan) leasePools() (int, error) {
	if !p.call.sparse {
		return 0, nil
	}
	caches := [2]*kvpaged.Cache{p.call.Cache}
	layers := [2]int{p.call.Layer}
	if x := p.call.Sparse.Extra; x != nil {
		caches[1], layers[1] = x.Cache, x.Layer
	}
	for i := range p.call.lists {
		l := &p.call.lists[i]
		if caches[i] == nil || l.logical {
			continue
		}
		v, err := caches[i].Lease(layers[i])
		if err != nil {
			return i, fmt.Errorf("mla: %s: %w", l.name, err)
		}
		l.source.pool, l.source.rows, l.source.leased = v, v.Rows(), true
	}
	return len(p.call.lists), nil
}

func (p *Plan) unleasePools(n int) {
	for i := range n {
		if s := &p.call.lists[i].source; s.leased {
			s.pool.Release()
		}
	}
}

// checkLeased tests the lengths, pages and positions of the leased sequences,
// and resolves their forms.
func (p *Plan) checkLeased() error {
	c, b := &p.cfg, &p.call.Batch
	if p.call.kind == coreSparse {
		for i := range p.call.nseq {
			p.forms[i] = FormAbsorbed
		}
		return nil
	}
	longest := 0
	for i := range b.Seqs {
		longest = max(longest, p.newTokens(i))
	}
	for i := range b.Seqs {
		s := p.newTokens(i)
		if s == 0 {
			p.forms[i] = FormAuto
			continue
		}
		first := p.firstPosition(i)
		keys := first + s
		// Only the null mask looks at no positions, and lists do, for what follows a token is none to it.
		if first < 0 && (p.call.sparse || c.Mask.Kind != MaskNull) {
			return fmt.Errorf("%w: sequence %d has %d queries, but only %d committed tokens", ErrShape, i, s, p.views[i].Len())
		}
		if keys > p.lim.Context {
			return fmt.Errorf("%w: sequence %d has %d keys, Limits.Context is %d", ErrLimit, i, keys, p.lim.Context)
		}
		if c.Rope > 0 && !p.call.coreOnly() && keys > b.Freqs.Len()/c.Rope {
			return fmt.Errorf("%w: Batch.Freqs has %d rows, sequence %d reaches position %d", ErrShape, b.Freqs.Len()/c.Rope, i, keys-1)
		}
		if p.call.sparse {
			p.forms[i] = FormAbsorbed
			continue
		}
		if err := p.checkMapped(i, first, s); err != nil {
			return err
		}
		if err := p.checkIndexer(i, first, s); err != nil {
			return err
		}
		p.forms[i] = p.formOf(i, s, keys, longest)
	}
	return nil
}

// checkMapped tests that every position that a new token sees is mapped.
func (p *Plan) checkMapped(i, first, s int) error {
	seg := segment{pos0: first, keys: first + s}
	lo, hi := p.visibleTo(&seg, 0, s-1)
	page := p.call.Cache.Config().PageTokens
	for pos := lo; pos < hi; pos += page - pos%page {
		if !p.views[i].Mapped(pos) {
			return fmt.Errorf("%w: sequence %d, position %d, which its new tokens see", ErrUnmapped, i, pos)
		}
	}
	return nil
}

// checkIndexer tests that no new token sees more keys than a model with an
// indexer attends to without its lists.
func (p *Plan) checkIndexer(i, first, s int) error {
	most := p.cfg.IndexTopK
	if most == 0 || first+s <= most {
		return nil
	}
	for pos := first; pos < first+s; pos++ {
		if lo, hi := p.cfg.Mask.visible(pos, first+s); hi-lo > most {
			return fmt.Errorf("%w: sequence %d, position %d sees %d keys, more than IndexTopK = %d, and Batch.Sparse is nil",
				ErrIndexer, i, pos, hi-lo, most)
		}
	}
	return nil
}

func (p *Plan) formOf(i, s, keys, longest int) Form {
	if p.call.coreOnly() {
		return FormAbsorbed
	}
	if f := p.call.Forms; f != nil && f[i] != FormAuto {
		return f[i]
	}
	if p.cfg.FormRule == PerSequence {
		return p.cfg.form(s, keys)
	}
	if longest <= p.cfg.MAXThreshold {
		return FormAbsorbed
	}
	return FormExpanded
}
