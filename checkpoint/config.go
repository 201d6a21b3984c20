package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
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
	// Method is fp8, or compressed-tensors, whose floats of 8 bits are fp8 under another name;
	// or "" for none. Of any other method nothing is read but Ignored, and of compressed-tensors
	// no other format: attention must be left out, as in the int4 models of Kimi and those that
	// modelopt makes, whose experts alone are quantised. Where it is not, loading says so.
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
// Every key of rope_scaling, rope_parameters and quantization_config counts, and beside them
// those that change attention in other models: a key that is not known, or has another value
// than the one with which it changes nothing, is an error, never passed over. keys.go has the
// tables. Of methods of quantisation that are not read, no key counts but the method.
//
// Errors: ErrUnsupported for another architecture or kind of rope and for keys that are not
// computed, ErrConfig for a key that is missing, has a value of the wrong kind, comes twice or
// contradicts another, and ErrLimit. All name the key.
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
		if fam, ok = familyOf(text.modelType.v); ok {
			if text.quant == nil && text.compression == nil {
				text.quant, text.compression = r.quant, r.compression
			}
			if err := r.outer(text, fam); err != nil {
				return Config{}, err
			}
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
	if err := text.set(&c); err != nil {
		return Config{}, err
	}
	var err error
	if c.Quant, err = text.quantisation(); err != nil {
		return Config{}, err
	}
	return c, nil
}

// outer holds what stands beside a text_config against it: attention has one rotation.
func (r *rawConfig) outer(text *rawConfig, fam family) error {
	if r.theta.set && text.theta.set && r.theta.v != text.theta.v {
		return fmt.Errorf("%w: rope_theta is %v, and in text_config %v", ErrConfig, r.theta.v, text.theta.v)
	}
	for _, x := range []struct {
		name         string
		outer, inner *rawRope
	}{{"rope_scaling", r.scaling, text.scaling}, {"rope_parameters", r.parameters, text.parameters}} {
		switch {
		case x.outer.empty(fam):
		case x.inner.empty(fam):
			return fmt.Errorf("%w: %s stands beside text_config, wanted it inside", ErrConfig, x.name)
		default:
			if diff := text.difference(x.outer, x.inner, fam); diff != "" {
				return fmt.Errorf("%w: %s and text_config.%s differ: %s", ErrConfig, x.name, x.name, diff)
			}
		}
	}
	return nil
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

// ropeSpelling is what says how to rotate, and its name. The new spelling has all in
// rope_parameters, the old one theta beside rope_scaling; a file that has both was converted,
// and must not contradict itself.
func (r *rawConfig) ropeSpelling(fam family) (*rawRope, string, error) {
	p, old := r.parameters, r.scaling
	switch {
	case p.empty(fam) && old.empty(fam):
		return &rawRope{}, "rope_parameters", nil
	case p.empty(fam):
		return old, "rope_scaling", nil
	case old.empty(fam):
		return p, "rope_parameters", nil
	}
	if diff := r.difference(old, p, fam); diff != "" {
		return nil, "", fmt.Errorf("%w: rope_scaling and rope_parameters differ: %s", ErrConfig, diff)
	}
	return p, "rope_parameters", nil
}

// empty reports whether there is nothing in a dictionary.
func (p *rawRope) empty(fam family) bool {
	return p == nil || !p.kind().set && len(p.keys(fam)) == 0
}

// difference says where two dictionaries of rotations differ, which spell the type as they like;
// one that has no theta means that beside it. "" if nowhere.
func (r *rawConfig) difference(a, b *rawRope, fam family) string {
	if x, y := a.kind(), b.kind(); canonical(x.v) != canonical(y.v) {
		return fmt.Sprintf("rope_type is %s and %s", x, y)
	}
	values := func(p *rawRope) map[string]any {
		all := map[string]any{}
		if r.theta.set {
			all["rope_theta"] = r.theta.v
		}
		for _, k := range p.keys(fam) {
			all[k.key] = k.value
		}
		return all
	}
	x, y := values(a), values(b)
	for _, key := range slices.Sorted(maps.Keys(x)) {
		if _, ok := y[key]; !ok {
			return fmt.Sprintf("%s is %s and missing", shown(key), brief(x[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(y)) {
		if _, ok := x[key]; !ok {
			return fmt.Sprintf("%s is missing and %s", shown(key), brief(y[key]))
		}
		if v, ok := x[key].([]float64); ok {
			if i := firstDifference(v, y[key].([]float64)); i >= 0 {
				return fmt.Sprintf("%s differs from number %d on", key, i)
			}
		} else if x[key] != y[key] {
			return fmt.Sprintf("%s is %v and %v", shown(key), x[key], y[key])
		}
	}
	return ""
}

// firstDifference is where two lists differ first, -1 if nowhere.
func firstDifference(a, b []float64) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	if len(a) == len(b) {
		return -1
	}
	return min(len(a), len(b))
}

// kind is rope_type, or type as it was called.
func (p *rawRope) kind() str {
	if p.ropeType.set {
		return p.ropeType
	}
	return p.oldType
}

// canonical is one name for each kind of rope.
func canonical(kind string) string {
	switch kind {
	case "":
		return "default"
	case "su":
		return "longrope"
	}
	return kind
}

// String is a string of a configuration in a message.
func (x str) String() string {
	if !x.set {
		return "missing"
	}
	return strconv.Quote(clip(x.v))
}

// rotation fills in the rope, the softmax scale and the style of rotation.
func (r *rawConfig) rotation(c *Config, fam family) error {
	p, name, err := r.ropeSpelling(fam)
	if err != nil {
		return err
	}
	if p.ropeType.set && p.oldType.set && canonical(p.ropeType.v) != canonical(p.oldType.v) {
		return fmt.Errorf("%w: %s.rope_type is %s, and type, its old name, %s", ErrConfig, name, p.ropeType, p.oldType)
	}
	rope := Rope{Dim: c.Block.Core.Rope, Theta: fam.theta, Magnitude: 1}
	switch kind := p.kind(); canonical(kind.v) {
	case "default":
	case "yarn":
		rope.Kind = RopeYaRN
	case "longrope":
		rope.Kind = RopeLong
	default:
		return fmt.Errorf("%w: %s: rope_type %s, wanted default, yarn or longrope", ErrUnsupported, name, kind)
	}
	if err := p.understood(name, rope.Kind, fam); err != nil {
		return err
	}
	if err := r.partialRotation(p, name, c, fam); err != nil {
		return err
	}
	switch {
	case r.theta.set && p.theta.set && r.theta.v != p.theta.v:
		return fmt.Errorf("%w: rope_theta is %v, and %s.rope_theta %v", ErrConfig, r.theta.v, name, p.theta.v)
	case p.theta.set:
		rope.Theta = p.theta.v
	case r.theta.set:
		rope.Theta = r.theta.v
	}
	if err := r.stretched(p, name, &rope); err != nil {
		return err
	}
	if err := rope.check(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.Rope = rope
	if err := r.scale(p, c); err != nil {
		return err
	}
	return r.style(c, fam)
}

// partialRotation holds partial_rotary_factor against the sizes, which say how much of a head is
// rotated: the factor is of the rotated part, or in mistral4 of the whole head.
func (r *rawConfig) partialRotation(p *rawRope, name string, c *Config, fam family) error {
	k := c.Block.Core
	for _, x := range []struct {
		key string
		v   number
	}{{"partial_rotary_factor", r.partial}, {name + ".partial_rotary_factor", p.partial}} {
		switch {
		case !x.v.set || x.v.v == 1:
		case fam.position && float64(x.v.v*float64(k.Nope+k.Rope)) == float64(k.Rope):
		default:
			return fmt.Errorf("%w: %s is %v, wanted 1: qk_rope_head_dim %d says what is rotated of %d", ErrUnsupported, x.key, x.v.v, k.Rope, k.Nope+k.Rope)
		}
	}
	return nil
}

// originalContext is original_max_position_embeddings, which stands in a dictionary of rotations
// or beside it.
func (r *rawConfig) originalContext(p *rawRope, name string) (value, error) {
	switch {
	case r.original.set && p.original.set && r.original.n != p.original.n:
		return value{}, fmt.Errorf("%w: original_max_position_embeddings is %d, and %s.original_max_position_embeddings %d", ErrConfig, r.original.n, name, p.original.n)
	case r.original.set:
		return r.original, nil
	}
	return p.original, nil
}

// stretched fills in what YaRN and LongRoPE have.
func (r *rawConfig) stretched(p *rawRope, name string, rope *Rope) error {
	switch rope.Kind {
	case RopeDefault:
		return nil
	case RopeYaRN:
		rope.Exact = p.truncate.set && !p.truncate.v
		rope.BetaFast, rope.BetaSlow, rope.Factor = 32, 1, p.factor.v
		if p.betaFast.set {
			rope.BetaFast = p.betaFast.v
		}
		if p.betaSlow.set {
			rope.BetaSlow = p.betaSlow.v
		}
	case RopeLong:
		rope.Short, rope.Long = p.short, p.long
	}
	original, err := r.originalContext(p, name)
	if err != nil {
		return err
	}
	if !original.set {
		original = r.positions
	}
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
	p.magnitude(rope, stretch)
	return nil
}

// style fills in how pairs are formed. A family that always does it one way is not to be told
// another: its weights would be of another model.
func (r *rawConfig) style(c *Config, fam family) error {
	style := mla.Interleaved
	if fam.half {
		style = mla.Half
	}
	if r.interleave.set {
		wanted := mla.Half
		if r.interleave.v {
			wanted = mla.Interleaved
		}
		if wanted != style && !fam.choice {
			return fmt.Errorf("%w: rope_interleave is %v, and %s always has %v", ErrUnsupported, r.interleave.v, c.ModelType, !r.interleave.v)
		}
		style = wanted
	}
	c.Block.Core.RopeStyle = style
	return nil
}

// magnitude fills in what tables are multiplied by. stretch is by how much LongRoPE's context
// was extended.
func (p *rawRope) magnitude(rope *Rope, stretch float64) {
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
	case p.unscaled():
		// The flag is of vLLM and SGLang, whose tables have a ratio always, of mscale 1 and
		// mscale_all_dim 0 unless they are said.
		mscale := 1.0
		if p.mscale.set {
			mscale = p.mscale.v
		}
		rope.Magnitude = yarnScale(rope.Factor, mscale) / yarnScale(rope.Factor, p.mscaleAllDim.v)
	default:
		rope.Magnitude = yarnScale(rope.Factor, 1)
	}
}

// unscaled reports whether YaRN is not to change the softmax scale. Tables keep their factor.
func (p *rawRope) unscaled() bool {
	return p.apply.set && !p.apply.v || p.applyScale.set && !p.applyScale.v
}

// scale fills in the softmax scale.
func (r *rawConfig) scale(p *rawRope, c *Config) error {
	b := &c.Block
	c.Scale = 1 / math.Sqrt(float64(b.Core.Nope+b.Core.Rope))
	if c.Rope.Kind == RopeYaRN && p.mscaleAllDim.v != 0 && !p.unscaled() {
		m := yarnScale(c.Rope.Factor, p.mscaleAllDim.v)
		c.Scale = float64(float64(c.Scale*m) * m)
	}
	b.Core.Scale = float32(c.Scale)
	if b.Core.Scale == 0 || math.IsInf(c.Scale, 0) || math.IsInf(float64(b.Core.Scale), 0) || math.IsNaN(c.Scale) {
		return fmt.Errorf("%w: the softmax scale is %v, by mscale_all_dim %v and factor %v", ErrConfig, c.Scale, p.mscaleAllDim.v, c.Rope.Factor)
	}
	return nil
}

// arithmetic fills in the factors of single families.
func (r *rawConfig) arithmetic(c *Config, fam family) error {
	b := &c.Block
	p, name, err := r.ropeSpelling(fam)
	if err != nil {
		return err
	}
	if fam.longcat {
		ratio := func(rank int) float32 { return float32(math.Sqrt(float64(b.Hidden) / float64(rank))) }
		if b.QLora > 0 && (r.scaleQ.v || !r.scaleQ.set) {
			b.QScale = ratio(b.QLora)
		}
		if r.scaleKV.v || !r.scaleKV.set {
			b.Core.LatentScale = ratio(b.Core.Latent)
		}
	} else if r.scaleQ.v || r.scaleKV.v {
		return fmt.Errorf("%w: mla_scale_q_lora is %v and mla_scale_kv_lora %v, which only longcat_flash has", ErrUnsupported, r.scaleQ.v, r.scaleKV.v)
	}
	if fam.position {
		if !p.beta.set {
			return fmt.Errorf("%w: %s.llama_4_scaling_beta is missing", ErrConfig, name)
		}
		original, err := r.originalContext(p, name)
		if err != nil {
			return err
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

// quantisation is what the dictionary says, under its name or the old one of compressed-tensors.
func (r *rawConfig) quantisation() (Quant, error) {
	switch {
	case r.quant != nil && r.compression != nil:
		return Quant{}, fmt.Errorf("%w: quantization_config and compression_config are both there, wanted one", ErrConfig)
	case r.quant != nil:
		return r.quant.quant("quantization_config")
	case r.compression != nil:
		return r.compression.quant("compression_config")
	}
	return Quant{}, nil
}

// quant is how weights are quantised. name is what the dictionary is called.
func (q *rawQuant) quant(name string) (Quant, error) {
	if !q.method.set {
		return Quant{}, fmt.Errorf("%w: %s.quant_method is missing", ErrConfig, name)
	}
	out := Quant{Method: q.method.v, Ignored: q.ignored}
	if !out.read() {
		return out, nil // whose tensors say whether attention is left out
	}
	if err := q.understood(name); err != nil {
		return Quant{}, err
	}
	out.Format, out.ScaleFormat = q.format.v, q.scaleFormat.v
	if q.differ {
		return Quant{}, fmt.Errorf("%w: %s.config_groups have different block_structure", ErrUnsupported, name)
	}
	switch strings.TrimPrefix(out.Format, "float8_") {
	case "", "e4m3", "e5m2", "e4m3fn", "e4m3fnuz", "e5m2fnuz":
	default:
		return Quant{}, fmt.Errorf("%w: %s.fmt %q, wanted e4m3 or e5m2", ErrUnsupported, name, clip(out.Format))
	}
	switch out.ScaleFormat {
	case "", "ue8m0", "e8m0", "float", "float32":
	default:
		return Quant{}, fmt.Errorf("%w: %s.scale_fmt %q, wanted ue8m0 or float", ErrUnsupported, name, clip(out.ScaleFormat))
	}
	if q.block != nil {
		if len(q.block) != 2 || q.block[0] < 1 || q.block[1] < 1 || max(q.block[0], q.block[1]) > maxSize {
			return Quant{}, fmt.Errorf("%w: %s.weight_block_size is %v, want two numbers from 1 to %d", ErrConfig, name, q.block, maxSize)
		}
		out.BlockRows, out.BlockCols = int(q.block[0]), int(q.block[1])
	}
	return out, nil
}

// read reports whether codes of this method are read.
func (q *Quant) read() bool {
	return q.Method == "" || q.Method == "fp8" || q.Method == compressed
}
