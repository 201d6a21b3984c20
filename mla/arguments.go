package mla

import (
	"fmt"

	"github.com/lamina-ml/lamina/internal/forms"
	"github.com/lamina-ml/lamina/kvpaged"
)

// run is a call: what it was given, and what was found out about it.
type run struct {
	cfg    *Config // of a core: N = V = 0
	kind   kind
	batch  Batch
	tokens int

	q, kv, out Rows // of attention; those of a block lie in its workspace
	hidden     Rows // of a block
	blockOut   Rows
	plain      Rows // rows that a list selects from where there is no cache

	call   forms.Call
	pools  [2]kvpaged.PoolView // leased
	leased int                 // sequences that were leased
}

// kind is what a call computes.
type kind uint8

const (
	wholeLayer kind = iota // new rows are stored, queries and outputs go through weights
	overSeqs               // attention alone, over committed rows of sequences
	overRows               // attention alone, over physical or plain rows
)

// checkCache tests that a cache has rows of the layer's width, and the layer.
func checkCache(name string, cache *kvpaged.Cache, layer int, c *Config) error {
	cc := cache.Config()
	if cc.Width != c.Width() {
		return fmt.Errorf("%w: %s.Cache has rows of %d values, want R+P = %d+%d = %d", ErrShape, name, cc.Width, c.Latent, c.Rope, c.Width())
	}
	if layer < 0 || layer >= cc.Layers {
		return fmt.Errorf("%w: %s.Layer is %d, the cache has layers 0 to %d", ErrShape, name, layer, cc.Layers-1)
	}
	return nil
}

// checkShapes tests the lengths of all arguments but the lists.
func (r *run) checkShapes() error {
	c, b, t := r.cfg, &r.batch, r.tokens
	seqs := len(b.Offsets) - 1
	q, out := "T*H*(N+P)", "T*H*V"
	qWant, outWant := t*c.Heads*(c.Nope+c.Rope), t*c.Heads*c.V
	if r.kind != wholeLayer {
		q, out = "T*H*(R+P)", "T*H*R"
		qWant, outWant = t*c.Heads*c.Width(), t*c.Heads*c.Latent
	}
	for _, s := range [...]struct {
		name, shape string
		got         int
		want        int
		optional    bool
	}{
		{"q", q, r.q.Len(), qWant, false},
		{"kv", "T*(R+P)", r.kv.Len(), t * c.Width(), r.kind != wholeLayer},
		{"out", out, r.out.Len(), outWant, false},
		{"Batch.Forms", "B", len(b.Forms), seqs, b.Forms == nil},
		{"Batch.Sink", "H", len(b.Sink), c.Heads, b.Sink == nil},
		{"Batch.LSE", "T*H", len(b.LSE), t * c.Heads, b.LSE == nil},
		{"Batch.MaxLogit", "T*H", len(b.MaxLogit), t * c.Heads, b.MaxLogit == nil},
	} {
		if s.got != s.want && !s.optional {
			return fmt.Errorf("%w: %s has %d values, want %s = %d (T %d, B %d, H %d, N %d, P %d, V %d, R %d)",
				ErrShape, s.name, s.got, s.shape, s.want, t, seqs, c.Heads, c.Nope, c.Rope, c.V, c.Latent)
		}
	}
	return nil
}

// checkOverlaps tests that nothing is written where something else is written or read.
func (r *run) checkOverlaps() error {
	type named struct {
		name string
		r    Rows
	}
	b := &r.batch
	written := [...]named{{"out", r.out}, {"out", r.blockOut}, {"Batch.LSE", RowsF32(b.LSE)}, {"Batch.MaxLogit", RowsF32(b.MaxLogit)}}
	read := [...]named{{"q", r.q}, {"kv", r.kv}, {"kv", r.plain}, {"hidden", r.hidden}, {"Batch.Freqs", b.Freqs}, {"Batch.Sink", RowsF32(b.Sink)}}
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
