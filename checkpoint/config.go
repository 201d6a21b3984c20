package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/lamina-ml/lamina/mla"
)

const (
	configName = "config.json"
	compressed = "compressed-tensors"
)

// Config is what a config.json says of a model's attention.
type Config struct {
	ModelType    string // deepseek_v3, say; of a multimodal model that of its text_config
	Architecture string // DeepseekV3ForCausalLM, say: the first of architectures, "" if there is none

	// Layers is the number of decoder layers, and Blocks that of their attention blocks: as
	// many, or twice as many in LongCat. Predict is how many layers follow that predict
	// further tokens; their attention blocks have the numbers from Blocks on.
	Layers, Blocks, Predict int

	// Block is the geometry and the arithmetic of every attention block. The epsilon of its
	// norms is 1e-6, as in transformers, whatever rms_norm_eps says; who runs the model as
	// vLLM and SGLang do sets Block.Core.Epsilon to NormEpsilon, and both norms take it.
	Block mla.BlockConfig
	// Rope makes the table of rotations.
	Rope Rope
	// Bias says that q_a_proj, kv_a_proj_with_mqa and o_proj have biases (attention_bias).
	Bias bool

	Context     int     // max_position_embeddings, 0 if it is not said
	NormEpsilon float64 // rms_norm_eps, 0 if it is not said
	Scale       float64 // the softmax scale before it was rounded to Block.Core.Scale
	Quant       Quant

	layerTypes []string
	twice      bool // two attention blocks a layer, self_attn.0 and self_attn.1
}

// Quant is how weights are quantised; the zero Quant is not at all. What a tensor holds its
// own type says: under any Quant some may be left as they were.
type Quant struct {
	// Method is fp8, or compressed-tensors, whose floats of 8 bits are fp8 under another name
	// and whose other formats attention must be left out of, as Kimi does; or "" for none.
	Method string
	Format string // fmt: e4m3, e5m2, or ""
	// ScaleFormat is scale_fmt: ue8m0, which says that scales are powers of two, or "".
	ScaleFormat string
	// BlockRows and BlockCols are weight_block_size or block_structure; 0 where it is not said,
	// and each tensor, or each of its rows, has one scale.
	BlockRows, BlockCols int
	// Ignored are the modules that are said not to be quantised: modules_to_not_convert,
	// ignored_layers or ignore.
	Ignored []string
}

// ParseConfig reads a config.json with the default limits: see [Limits.ParseConfig].
func ParseConfig(b []byte) (Config, error) { return Limits{}.ParseConfig(b) }

// ParseConfig reads the text of a config.json: of deepseek_v2, deepseek_v3, kimi_k2,
// deepseek_v32, glm4_moe_lite, glm_moe_dsa, minicpm3, mistral4, longcat_flash, youtu, or of a
// multimodal model whose text_config is of one of these.
//
// Errors: ErrUnsupported for another architecture, quantisation method or kind of rope,
// ErrConfig for a key that is missing, has a value of the wrong kind or comes twice, or for
// rope_parameters and rope_scaling of different types, and ErrLimit. All name the key.
func (l Limits) ParseConfig(b []byte) (Config, error) {
	return l.readConfig(bytes.NewReader(b), int64(len(b)), l.budget())
}

func (l Limits) readConfig(r io.ReaderAt, size int64, b *budget) (Config, error) {
	if size > l.header() {
		return Config{}, fmt.Errorf("%w: the configuration is %d bytes long, at most %d are allowed", ErrLimit, size, l.header())
	}
	if err := fetched(r, size); err != nil {
		return Config{}, as(ErrConfig, err)
	}
	s := newScanner(r, 0, size, "configuration", b)
	s.loose = true
	var raw rawConfig
	err := s.object(func() error { return raw.member(s, b) })
	if err == nil {
		err = s.end()
	}
	if err != nil {
		return Config{}, as(ErrConfig, err)
	}
	return raw.config()
}

// family is what distinguishes the architectures that are known.
type family struct {
	theta    float64 // where the configuration says none
	half     bool    // always rotates halves
	choice   bool    // rope_interleave chooses
	indexer  bool    // index_topk is wanted
	longcat  bool    // two blocks a layer, and its factors
	position bool    // llama_4_scaling_beta is wanted
	valueDim bool    // v_head_dim may be missing: hidden_size / num_attention_heads
}

// familyOf is the family of a model_type.
func familyOf(modelType string) (family, bool) {
	switch modelType {
	case "deepseek_v2":
		return family{theta: 10000}, true
	case "deepseek_v3", "kimi_k2", "youtu", "youtu_llm", "glm4_moe_lite":
		return family{theta: 10000, choice: true}, true
	case "deepseek_v32", "glm_moe_dsa":
		return family{theta: 10000, indexer: true}, true
	case "minicpm3":
		return family{theta: 10000, half: true, valueDim: true}, true
	case "mistral4":
		return family{theta: 10000, choice: true, position: true}, true
	case "longcat_flash":
		return family{theta: 1e7, longcat: true}, true
	}
	return family{}, false
}

// known are the model types, for messages.
const known = "deepseek_v2, deepseek_v3, kimi_k2, deepseek_v32, glm4_moe_lite, glm_moe_dsa, minicpm3, mistral4, longcat_flash or youtu"

// config makes sense of what was read.
func (r *rawConfig) config() (Config, error) {
	text := r
	fam, ok := familyOf(r.modelType.v)
	if !ok && r.text != nil {
		text = r.text
		if fam, ok = familyOf(text.modelType.v); ok && text.quant == nil {
			text.quant = r.quant
		}
	}
	if !ok {
		return Config{}, r.unknown()
	}
	c := Config{ModelType: text.modelType.v, Architecture: r.architecture.v, Bias: text.bias.v, layerTypes: text.layerTypes, twice: fam.longcat}
	c.NormEpsilon = text.normEpsilon.v
	if !(c.NormEpsilon >= 0) || c.NormEpsilon > 1 {
		return Config{}, fmt.Errorf("%w: rms_norm_eps is %v, want 0 to 1", ErrConfig, c.NormEpsilon)
	}
	if text.positions.set {
		var err error
		if c.Context, err = text.positions.size("max_position_embeddings", 1, math.MaxInt32); err != nil {
			return Config{}, err
		}
	}
	if err := text.sizes(&c, fam); err != nil {
		return Config{}, err
	}
	if err := text.rotation(&c, fam); err != nil {
		return Config{}, err
	}
	if err := text.arithmetic(&c, fam); err != nil {
		return Config{}, err
	}
	if text.quant != nil {
		var err error
		if c.Quant, err = text.quant.quant(); err != nil {
			return Config{}, err
		}
	}
	return c, nil
}

// unknown is the error of an architecture that is none of those known.
func (r *rawConfig) unknown() error {
	if !r.modelType.set && r.text == nil {
		return fmt.Errorf("%w: model_type is missing", ErrConfig)
	}
	says := fmt.Sprintf("model_type %q", clip(r.modelType.v))
	if r.architecture.set {
		says += fmt.Sprintf(", architecture %q", clip(r.architecture.v))
	}
	if r.text != nil {
		says += fmt.Sprintf(", text_config.model_type %q", clip(r.text.modelType.v))
	}
	return fmt.Errorf("%w: %s: wanted %s", ErrUnsupported, says, known)
}

// maxSize is the largest size that mla takes, and maxLayers past what any model has.
const (
	maxSize   = 1 << 20
	maxLayers = 1 << 16
)

// size is one that must be there.
func (v value) size(key string, low, high int) (int, error) {
	switch {
	case !v.set:
		return 0, fmt.Errorf("%w: %s is missing", ErrConfig, key)
	case v.n < low || v.n > high:
		return 0, fmt.Errorf("%w: %s is %d, want %d to %d", ErrConfig, key, v.n, low, high)
	}
	return v.n, nil
}

func (r *rawConfig) sizes(c *Config, fam family) error {
	b := &c.Block
	if fam.valueDim && !r.v.set && r.heads.n > 0 {
		r.v = value{n: r.hidden.n / r.heads.n, set: r.hidden.set}
	}
	layers, key := r.layers, "num_hidden_layers"
	if fam.longcat {
		layers, key = r.longcatLayers, "num_layers"
	}
	for _, x := range []struct {
		to        *int
		key       string
		v         value
		low, high int
	}{
		{&c.Layers, key, layers, 1, maxLayers},
		{&b.Hidden, "hidden_size", r.hidden, 1, maxSize},
		{&b.Core.Heads, "num_attention_heads", r.heads, 1, maxSize},
		{&b.Core.Nope, "qk_nope_head_dim", r.nope, 1, maxSize},
		{&b.Core.Rope, "qk_rope_head_dim", r.rope, 0, maxRope},
		{&b.Core.V, "v_head_dim", r.v, 1, maxSize},
		{&b.Core.Latent, "kv_lora_rank", r.latent, 1, maxSize},
	} {
		var err error
		if *x.to, err = x.v.size(x.key, x.low, x.high); err != nil {
			return err
		}
	}
	// null, nothing at all and 0 are a query without a low rank.
	if r.qLora.set {
		var err error
		if b.QLora, err = r.qLora.size("q_lora_rank", 0, maxSize); err != nil {
			return err
		}
	}
	if b.Core.Rope%2 != 0 {
		return fmt.Errorf("%w: qk_rope_head_dim is %d, want an even number", ErrConfig, b.Core.Rope)
	}
	c.Blocks = c.Layers
	if c.twice {
		c.Blocks = 2 * c.Layers
	}
	if r.predict.set && !c.twice {
		var err error
		if c.Predict, err = r.predict.size("num_nextn_predict_layers", 0, maxLayers); err != nil {
			return err
		}
	}
	if fam.indexer || r.indexTopK.set {
		var err error
		if b.Core.IndexTopK, err = r.indexTopK.size("index_topk", 1, math.MaxInt32); err != nil {
			return err
		}
	}
	return nil
}

// ropeSpelling is what says how to rotate. The new spelling has all in rope_parameters, the old
// one theta beside rope_scaling; a file that has both was converted, and must not contradict
// itself.
func (r *rawConfig) ropeSpelling() (*rawRope, string, error) {
	p, old := r.parameters, r.scaling
	switch {
	case p == nil && old == nil:
		return &rawRope{}, "rope_parameters", nil
	case p == nil || old != nil && !p.kind().set:
		return old, "rope_scaling", nil
	case old != nil && old.kind().set && old.kind().v != p.kind().v:
		return nil, "", fmt.Errorf("%w: rope_scaling is of type %q, and rope_parameters of %q", ErrConfig, clip(old.kind().v), clip(p.kind().v))
	}
	return p, "rope_parameters", nil
}

// kind is rope_type, or type as it was called.
func (p *rawRope) kind() str {
	if p.ropeType.set {
		return p.ropeType
	}
	return p.oldType
}

// rotation fills in the rope.
func (r *rawConfig) rotation(c *Config, fam family) error {
	p, name, err := r.ropeSpelling()
	if err != nil {
		return err
	}
	kind := p.kind()
	rope := Rope{Dim: c.Block.Core.Rope, Theta: fam.theta, Magnitude: 1}
	switch {
	case r.parameters != nil && r.parameters.theta.set:
		rope.Theta = r.parameters.theta.v
	case p.theta.set:
		rope.Theta = p.theta.v
	case r.theta.set:
		rope.Theta = r.theta.v
	}
	if p.nested != "" {
		return fmt.Errorf("%w: %s.%s is an object: parameters for each type of layer", ErrUnsupported, name, clip(p.nested))
	}
	original := r.original // before the one of p, as in transformers
	if !original.set {
		original = p.original
	}
	if !original.set {
		original = r.positions
	}
	switch kind.v {
	case "default", "":
	case "yarn":
		rope.Kind, rope.Exact = RopeYaRN, p.truncate.set && !p.truncate.v
		rope.BetaFast, rope.BetaSlow, rope.Factor = 32, 1, p.factor.v
		if p.betaFast.set {
			rope.BetaFast = p.betaFast.v
		}
		if p.betaSlow.set {
			rope.BetaSlow = p.betaSlow.v
		}
	case "longrope", "su":
		rope.Kind, rope.Short, rope.Long = RopeLong, p.short, p.long
	default:
		return fmt.Errorf("%w: %s: rope_type %q, wanted default, yarn or longrope", ErrUnsupported, name, clip(kind.v))
	}
	if rope.Kind != RopeDefault {
		if rope.Original, err = original.size(name+".original_max_position_embeddings", 1, math.MaxInt32); err != nil {
			return err
		}
		stretch := float64(r.positions.n) / float64(rope.Original)
		if rope.Kind == RopeYaRN && !p.factor.set {
			if !r.positions.set {
				return fmt.Errorf("%w: %s.factor is missing, and max_position_embeddings too", ErrConfig, name)
			}
			rope.Factor = stretch
		}
		if rope.Kind == RopeLong && p.factor.set {
			stretch = p.factor.v
		}
		if err := p.magnitude(&rope, stretch); err != nil {
			return err
		}
	}
	if err := rope.check(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.Rope = rope
	c.Block.Core.RopeStyle = mla.Interleaved
	if fam.half || fam.choice && r.interleave.set && !r.interleave.v {
		c.Block.Core.RopeStyle = mla.Half
	}
	return nil
}

// magnitude fills in what tables are multiplied by. stretch is by how much LongRoPE's context
// was extended.
func (p *rawRope) magnitude(rope *Rope, stretch float64) error {
	switch {
	case p.attentionFactor.set:
		rope.Magnitude = p.attentionFactor.v
	case rope.Kind == RopeLong:
		if stretch > 1 && rope.Original > 1 {
			rope.Magnitude = math.Sqrt(1 + log(stretch)/log(float64(rope.Original)))
		}
	case !(rope.Factor > 0) || math.IsInf(rope.Factor, 0): // check says so
	case p.mscale.v != 0 && p.mscaleAllDim.v != 0:
		rope.Magnitude = yarnScale(rope.Factor, p.mscale.v) / yarnScale(rope.Factor, p.mscaleAllDim.v)
	default:
		rope.Magnitude = yarnScale(rope.Factor, 1)
	}
	return nil
}

// arithmetic fills in the factors.
func (r *rawConfig) arithmetic(c *Config, fam family) error {
	b := &c.Block
	c.Scale = 1 / math.Sqrt(float64(b.Core.Nope+b.Core.Rope))
	p, name, err := r.ropeSpelling()
	if err != nil {
		return err
	}
	if c.Rope.Kind == RopeYaRN && p.mscaleAllDim.v != 0 {
		m := yarnScale(c.Rope.Factor, p.mscaleAllDim.v)
		c.Scale = float64(float64(c.Scale*m) * m)
	}
	b.Core.Scale = float32(c.Scale)
	if b.Core.Scale == 0 || math.IsInf(c.Scale, 0) || math.IsInf(float64(b.Core.Scale), 0) || math.IsNaN(c.Scale) {
		return fmt.Errorf("%w: the softmax scale is %v, by mscale_all_dim %v and factor %v", ErrConfig, c.Scale, p.mscaleAllDim.v, c.Rope.Factor)
	}
	if fam.longcat {
		ratio := func(rank int) float32 { return float32(math.Sqrt(float64(b.Hidden) / float64(rank))) }
		if b.QLora > 0 && (r.scaleQ.v || !r.scaleQ.set) {
			b.QScale = ratio(b.QLora)
		}
		if r.scaleKV.v || !r.scaleKV.set {
			b.Core.LatentScale = ratio(b.Core.Latent)
		}
	}
	if fam.position {
		if !p.beta.set {
			return fmt.Errorf("%w: %s.llama_4_scaling_beta is missing", ErrConfig, name)
		}
		original := r.original // before the one of p, as in transformers
		if !original.set {
			original = p.original
		}
		if b.QContext, err = original.size(name+".original_max_position_embeddings", 1, 1<<30); err != nil {
			return err
		}
		b.QBeta = float32(p.beta.v)
		if math.IsInf(float64(b.QBeta), 0) {
			return fmt.Errorf("%w: rope_parameters.llama_4_scaling_beta is %v, which float32 does not hold", ErrConfig, p.beta.v)
		}
	}
	return nil
}

func (q *rawQuant) quant() (Quant, error) {
	out := Quant{Method: q.method.v, Format: q.format.v, ScaleFormat: q.scaleFormat.v, Ignored: q.ignored}
	if !q.method.set {
		return Quant{}, fmt.Errorf("%w: quantization_config.quant_method is missing", ErrConfig)
	}
	if out.Method != "fp8" && out.Method != compressed {
		return Quant{}, fmt.Errorf("%w: quantization_config.quant_method %q, wanted fp8 or %s", ErrUnsupported, clip(out.Method), compressed)
	}
	if q.differ {
		return Quant{}, fmt.Errorf("%w: quantization_config.config_groups have different block_structure", ErrUnsupported)
	}
	switch strings.TrimPrefix(out.Format, "float8_") {
	case "", "e4m3", "e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz":
	default:
		return Quant{}, fmt.Errorf("%w: quantization_config.fmt %q, wanted e4m3 or e5m2", ErrUnsupported, clip(out.Format))
	}
	switch out.ScaleFormat {
	case "", "ue8m0", "e8m0", "float", "float32":
	default:
		return Quant{}, fmt.Errorf("%w: quantization_config.scale_fmt %q, wanted ue8m0 or float", ErrUnsupported, clip(out.ScaleFormat))
	}
	if q.block != nil {
		if len(q.block) != 2 || q.block[0] < 1 || q.block[1] < 1 || max(q.block[0], q.block[1]) > maxSize {
			return Quant{}, fmt.Errorf("%w: quantization_config.weight_block_size is %v, want two numbers from 1 to %d", ErrConfig, q.block, maxSize)
		}
		out.BlockRows, out.BlockCols = int(q.block[0]), int(q.block[1])
	}
	return out, nil
}
