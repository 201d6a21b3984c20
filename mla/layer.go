package mla

import (
	"fmt"
	"runtime"
	"sync"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/forms"
	"github.com/lamina-ml/lamina/simd"
)

// Layer is one attention layer: its configuration and its packed weights. It
// is immutable and shared by goroutines; a call needs a Workspace. New and LoadPacked make
// one: a zero Layer counts as closed.
type Layer struct {
	cfg       Config
	w         *packed
	gamma     []float32      // [R], widened
	gammaType forms.Rounding // what NormAsGamma rounds to
	engine    forms.Layer

	mu     sync.Mutex
	closed bool
}

// New checks cfg, packs the weights (a copy, off the garbage-collected heap)
// and returns the layer. Errors: ErrConfig, ErrWeights, and what LAMINA_SIMD
// was asked for and this machine has not. A weight scale that is NaN, Inf or
// negative is an error; NaN codes are not, they propagate.
func New(cfg Config, w Weights) (*Layer, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	cfg, err := cfg.checked()
	if err != nil {
		return nil, err
	}
	l := &Layer{cfg: cfg, gammaType: gammaRounding(w.Gamma)}
	if w.Gamma.Len() != cfg.Latent {
		return nil, fmt.Errorf("%w: Gamma has %d values, want R = %d", ErrWeights, w.Gamma.Len(), cfg.Latent)
	}
	l.gamma = make([]float32, cfg.Latent)
	w.Gamma.Widen(l.gamma, 0, cfg.Latent)
	if l.w, err = w.pack(cfg); err != nil {
		return nil, err
	}
	return l.ready()
}

// ready completes a layer that has its weights, or frees them.
func (l *Layer) ready() (*Layer, error) {
	if err := l.readyActQuant(); err != nil {
		l.w.close()
		return nil, err
	}
	l.engine = l.newEngine()
	// A net for a caller who drops the layer: its memory is off the heap.
	runtime.AddCleanup(l, func(p *packed) { p.close() }, l.w)
	return l, nil
}

// readyActQuant fills in the groups of ActDynamic from the weights' blocks.
func (l *Layer) readyActQuant() error {
	c, w := &l.cfg, l.w
	if c.ActQuant == ActNone {
		return nil
	}
	if !w.scaled {
		return fmt.Errorf("%w: ActDynamic wants weights with scales, and these have none", ErrWeights)
	}
	if c.ActBlockQ == 0 {
		if w.nBlock < 32 {
			return fmt.Errorf("%w: ActBlockQ must be set, since the n block is %d, below 32", ErrConfig, w.nBlock)
		}
		c.ActBlockQ = gcd(w.nBlock, gcd(c.Nope, c.V))
	}
	if c.ActBlockLatent == 0 {
		c.ActBlockLatent = w.kBlock
	}
	c.ActBlockQ, c.ActBlockLatent = min(c.ActBlockQ, c.Nope), min(c.ActBlockLatent, c.Latent)
	return nil
}

// Config returns the checked configuration, defaults filled in.
func (l *Layer) Config() Config {
	if l == nil {
		return Config{}
	}
	return l.cfg
}

// made reports that New or LoadPacked made l.
func (l *Layer) made() bool { return l != nil && l.w != nil }

var errNoLayer = fmt.Errorf("%w: the layer is nil or a zero value", ErrClosed)

// Bytes is the memory that the packed weights hold.
func (l *Layer) Bytes() int64 {
	if !l.made() {
		return 0
	}
	return l.w.bytes()
}

// Form is what FormAuto means for a sequence with newTokens new tokens and keys
// keys, the new ones included, under FormRule PerSequence (arithmetic.md): the
// cheaper form by an integer rule that is the same on every machine.
func (l *Layer) Form(newTokens, keys int) Form { return l.Config().form(newTokens, keys) }

// Close frees the packed weights. It is idempotent, and returns ErrBusy while a
// Forward uses them; afterwards Forward returns ErrClosed.
func (l *Layer) Close() error {
	if !l.made() {
		return errNoLayer
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	// uk is leased first and given back last: once it is closed, no Forward holds
	// the others and none can come.
	if err := l.w.uk.Close(); err != nil {
		return fmt.Errorf("%w: a Forward uses the layer: %w", ErrBusy, err)
	}
	l.closed = true
	return l.w.close()
}

// enter leases the weights for one Forward.
func (l *Layer) enter() error {
	if !l.made() {
		return errNoLayer
	}
	if err := l.w.acquire(); err != nil {
		return fmt.Errorf("%w: the layer is closed: %w", ErrClosed, err)
	}
	return nil
}

// newEngine is the layer as internal/forms computes it.
func (l *Layer) newEngine() forms.Layer {
	c := &l.cfg
	e := forms.Layer{
		Heads: c.Heads, Nope: c.Nope, Rope: c.Rope, V: c.V, Latent: c.Latent,
		Compute: c.Compute, Scale: c.Scale, Mask: c.Mask.engine(),
		Epsilon: c.Epsilon, LatentScale: c.LatentScale, Half: c.RopeStyle == Half,
		UK: l.w.uk, K: l.w.k, UV: l.w.uv, Gamma: l.gamma,
	}
	if c.ActQuant == ActDynamic {
		e.GroupQ, e.GroupLatent = c.ActBlockQ, c.ActBlockLatent
	}
	return e
}

func (l *Layer) frame() (frame, error) {
	if err := l.enter(); err != nil {
		return frame{}, err
	}
	defer l.w.release()
	return l.cfg.frame(), nil
}

// round is what the norm of new rows of this type rounds to.
func (l *Layer) round(kv Rows) forms.Rounding {
	if r := l.cfg.NormRounding; r == NormAsGamma || r == NormAuto && kv.Kind() != fp8.ElemF32 {
		return l.gammaType
	}
	return forms.RoundNone
}

// gammaRounding is what NormAsGamma rounds to with a gamma of this type.
func gammaRounding(gamma Rows) forms.Rounding {
	switch gamma.Kind() {
	case fp8.ElemBF16:
		return forms.RoundBF16
	case fp8.ElemF16:
		return forms.RoundF16
	}
	return forms.RoundNone
}
