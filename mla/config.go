package mla

import (
	"fmt"
	"math"
	"math/bits"
)

// RopeStyle says which values of a rope part are rotated together.
type RopeStyle uint8

const (
	// Interleaved rotates the pairs (2i, 2i+1): DeepSeek, GLM, LongCat.
	Interleaved RopeStyle = iota
	// Half rotates the pairs (i, i+P/2): MiniCPM3.
	Half
)

// FormRule says how FormAuto is resolved.
type FormRule uint8

const (
	// FormRulePerSequence chooses for each sequence by the integer rule of
	// Layer.Form, so its bits never depend on the rest of the batch. They do on how
	// a prompt is cut into calls.
	FormRulePerSequence FormRule = iota
	// FormRuleMAX takes the absorbed form for the whole batch when its longest
	// new part has at most Config.MAXThreshold tokens, else the expanded form,
	// as MAX's operator does. The bits of a sequence then hang on the batch.
	FormRuleMAX
	// FormRuleAbsorbed and FormRuleExpanded take one form for all: however a prompt
	// is cut into calls, or a prefix shared, the bits are those of one call. Calls
	// with index lists are absorbed under any rule.
	FormRuleAbsorbed
	FormRuleExpanded
)

// NormRounding says what RMSNorm rounds before the row is stored.
type NormRounding uint8

const (
	// NormAuto is NormAsGamma for kv in bf16 or f16 and NormNone for f32.
	NormAuto NormRounding = iota
	// NormAsGamma rounds as transformers does: with a bf16 gamma y = x*r is
	// rounded to bf16 and so is y*gamma (f16 likewise); with an f32 gamma
	// nothing is rounded.
	NormAsGamma
	// NormNone keeps float32 throughout.
	NormNone
)

// ActQuant says whether the activations of the products are quantised.
type ActQuant uint8

const (
	// ActNone computes with activations as they are, which is more accurate.
	ActNone ActQuant = iota
	// ActDynamic quantises them to E4M3 per row and group, as GPUs do (W8A8), so
	// that a deployment can be reproduced: q_nope and the latent output in the
	// absorbed form, the latent rows in the expanded one. The two forms then are
	// two different functions. It wants weights with scales.
	ActDynamic
)

const (
	// DefaultEpsilon stands for a zero Config.Epsilon: what every model of the
	// family uses in its latent norms.
	DefaultEpsilon float32 = 1e-6
	// EpsilonZero as Config.Epsilon asks for an epsilon of exactly 0.
	EpsilonZero float32 = -1
	// DefaultMAXThreshold is MAX's own.
	DefaultMAXThreshold = 8
)

// Config is the geometry and the arithmetic choices of a layer; New checks it.
type Config struct {
	Heads  int // H, query heads
	Nope   int // N, values of a head's query and key that are not rotated
	Rope   int // P, values that are rotated; even, may be 0
	V      int // V, values of a head's value; may differ from N
	Latent int // R, values of the latent part of a cache row

	// Scale multiplies the scores: (N+P)^-0.5, times mscale^2 for YaRN models.
	// Finite and not 0; never (R+P)^-0.5.
	Scale float32
	// Epsilon is added to the mean square in RMSNorm. 0 means DefaultEpsilon,
	// EpsilonZero means 0; otherwise finite and positive.
	Epsilon float32

	// LatentScale multiplies the latent part of a new row after its norm, before
	// it is stored: sqrt(hidden/R) in LongCat. 0 means 1; otherwise finite. Where
	// the norm rounds, so does this product.
	LatentScale float32
	// IndexTopK is set for models that choose keys by an indexer (index_topk of
	// DeepSeek-V3.2 and GLM-5): they are dense only up to so many visible keys. A
	// query that sees more, in a call without index lists, is ErrIndexer. 0 means
	// no indexer.
	IndexTopK int

	// Compute is in the bits of every result; ComputeF32 unless set.
	Compute      Compute
	Mask         Mask
	RopeStyle    RopeStyle
	FormRule     FormRule
	MAXThreshold int // for FormRuleMAX; 0 means DefaultMAXThreshold
	NormRounding NormRounding

	ActQuant ActQuant
	// ActBlockQ is how many values of q_nope share a scale under ActDynamic. 0
	// means the largest number that divides the weights' n block, N and V; it
	// must be set if that block is below 32.
	ActBlockQ int
	// ActBlockLatent is the same for the latent output and the latent rows; 0
	// means the weights' k block.
	ActBlockLatent int
}

// Width is C = R+P, the values of one cache row.
func (c Config) Width() int { return c.Latent + c.Rope }

// maxSize bounds every size of a Config, so that products of two fit an int.
const maxSize = 1 << 20

// checked returns c with its defaults filled in, or why it describes no layer.
func (c Config) checked() (Config, error) {
	for _, s := range []struct {
		name    string
		v, low  int
		evenish bool
	}{
		{"Heads", c.Heads, 1, false}, {"Nope", c.Nope, 1, false}, {"Rope", c.Rope, 0, true},
		{"V", c.V, 1, false}, {"Latent", c.Latent, 1, false},
	} {
		if s.v < s.low || s.v > maxSize {
			return c, fmt.Errorf("%w: %s is %d, want %d to %d", ErrConfig, s.name, s.v, s.low, maxSize)
		}
		if s.evenish && s.v%2 != 0 {
			return c, fmt.Errorf("%w: %s is %d, want an even number", ErrConfig, s.name, s.v)
		}
	}
	if !finite(c.Scale) || c.Scale == 0 {
		return c, fmt.Errorf("%w: Scale is %v, want a finite number other than 0", ErrConfig, c.Scale)
	}
	switch {
	case c.Epsilon == 0:
		c.Epsilon = DefaultEpsilon
	case c.Epsilon == EpsilonZero:
		c.Epsilon = 0
	case !finite(c.Epsilon) || c.Epsilon < 0:
		return c, fmt.Errorf("%w: Epsilon is %v, want a finite number above 0, or EpsilonZero", ErrConfig, c.Epsilon)
	}
	if c.LatentScale == 0 {
		c.LatentScale = 1
	}
	if !finite(c.LatentScale) {
		return c, fmt.Errorf("%w: LatentScale is %v, want a finite number", ErrConfig, c.LatentScale)
	}
	if c.IndexTopK < 0 {
		return c, fmt.Errorf("%w: IndexTopK is %d, want at least 0", ErrConfig, c.IndexTopK)
	}
	if err := c.Mask.check(); err != nil {
		return c, err
	}
	if c.MAXThreshold < 0 {
		return c, fmt.Errorf("%w: MAXThreshold is %d, want at least 0", ErrConfig, c.MAXThreshold)
	}
	if c.MAXThreshold == 0 {
		c.MAXThreshold = DefaultMAXThreshold
	}
	if _, err := ParseCompute(c.Compute.String()); err != nil {
		return c, fmt.Errorf("%w: Compute %d is unknown", ErrConfig, c.Compute)
	}
	if c.RopeStyle > Half {
		return c, fmt.Errorf("%w: RopeStyle %d is unknown", ErrConfig, c.RopeStyle)
	}
	if c.FormRule > FormRuleExpanded {
		return c, fmt.Errorf("%w: FormRule %d is unknown", ErrConfig, c.FormRule)
	}
	if c.NormRounding > NormNone {
		return c, fmt.Errorf("%w: NormRounding %d is unknown", ErrConfig, c.NormRounding)
	}
	if c.ActQuant > ActDynamic {
		return c, fmt.Errorf("%w: ActQuant %d is unknown", ErrConfig, c.ActQuant)
	}
	if c.ActBlockQ < 0 || c.ActBlockLatent < 0 {
		return c, fmt.Errorf("%w: ActBlockQ is %d and ActBlockLatent %d, want at least 0", ErrConfig, c.ActBlockQ, c.ActBlockLatent)
	}
	return c, nil
}

func finite(x float32) bool {
	return !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0)
}

// Form names one of the two ways to compute a sequence.
type Form uint8

const (
	// FormAuto leaves the choice to Config.FormRule.
	FormAuto Form = iota
	// FormAbsorbed attends over the latent rows as they lie ("decode").
	FormAbsorbed
	// FormExpanded expands keys and values per head first ("prefill").
	FormExpanded
)

// String is "auto", "decode" or "prefill", as case files and reports name them.
func (f Form) String() string {
	switch f {
	case FormAuto:
		return "auto"
	case FormAbsorbed:
		return "decode"
	case FormExpanded:
		return "prefill"
	}
	return fmt.Sprintf("Form(%d)", f)
}

// rule is the form that FormAuto means for s new tokens and n keys, in a batch whose longest new part
// is longest.
func (c *Config) rule(s, n, longest int) Form {
	switch {
	case c.FormRule == FormRuleAbsorbed, c.FormRule == FormRuleMAX && longest <= c.MAXThreshold:
		return FormAbsorbed
	case c.FormRule == FormRulePerSequence:
		return c.form(s, n)
	}
	return FormExpanded
}

// form is the integer rule of arithmetic.md for s new tokens and n keys: absorbed if
//
//	pairs*(C+R) + s*R*(N+V) <= pairs*(N+P+V) + n*R*(N+V)
//
// where pairs counts (query, key) pairs: s*n for a null mask, else as if causal.
// It is compared as pairs*(C+R-N-P-V) <= (n-s)*R*(N+V), in 128 bits.
func (c Config) form(s, n int) Form {
	pairs := s*(n-s) + s*(s+1)/2
	if c.Mask.Kind == MaskNull {
		pairs = s * n
	}
	more := c.Width() + c.Latent - c.Nope - c.Rope - c.V
	if more <= 0 {
		return FormAbsorbed
	}
	lh, ll := bits.Mul64(uint64(pairs), uint64(more))
	rows := (n - s) * c.Latent
	rh, rl := bits.Mul64(uint64(rows), uint64(c.Nope+c.V))
	if lh < rh || lh == rh && ll <= rl {
		return FormAbsorbed
	}
	return FormExpanded
}
