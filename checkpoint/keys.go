package checkpoint

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/lamina-ml/lamina/mla"
)

// Here stand the keys of a config.json that are known and not used, each with the values for
// which that changes nothing. Any other value is an error. The keys that are used stand where
// they are read, in rawconfig.go.
//
// A dictionary of rotations or of quantisation is understood as a whole: a key of it that is
// neither used nor listed is an error. A configuration has hundreds of keys that do not concern
// attention, so of these only what is listed is looked at.

// setting is a key beside the dictionaries that changes attention in models of other kinds.
type setting struct {
	harmless func(x literal, c *Config) bool
	wanted   string
}

var settings = map[string]setting{
	// Scores that are changed before the softmax, and queries by their position.
	"attn_logit_softcapping": {isZero, "null or 0"},
	"attn_logit_softcap":     {isZero, "null or 0"},
	"attn_temperature_tuning": {func(x literal, _ *Config) bool {
		return x == "false" || isZero(x, nil)
	}, "null, false or 0"},
	"llama_4_scaling":        {never, "null; mistral4 has llama_4_scaling_beta in rope_parameters"},
	"attention_multiplier":   {never, "null"},
	"query_pre_attn_scalar":  {never, "null"},
	"attention_scale":        {never, "null"},
	"softmax_scale":          {never, "null"},
	"use_attention_sink":     {isFalse, "null or false"},
	"use_attention_sinks":    {isFalse, "null or false"},
	"attention_output_gate":  {isFalse, "null or false"},
	"attn_output_gate":       {isFalse, "null or false"},
	"mla_use_output_gate":    {isFalse, "null or false"},
	"use_qk_norm":            {isFalse, "null or false"},
	"qk_layernorm":           {isFalse, "null or false"},
	"qk_norm":                {isFalse, "null or false"},
	"use_qk_l2norm":          {isFalse, "null or false"},
	"qk_latent_layernorm":    {isTrue, "null or true: a norm of the latent"},
	"attention_method":       {is(`"MLA"`), `null or "MLA"`},
	"use_mla":                {func(x literal, _ *Config) bool { return x == "true" || x == "1" }, "null or true"},
	"mla_use_nope":           {isFalse, "null or false"},
	"no_rope_layers":         {is("[]"), "null or []"},
	"no_rope_layer_interval": {isZero, "null or 0"},
	// Masks, which are the caller's: Block.Core.Mask is causal unless it is set.
	"sliding_window":               {isZero, "null or 0, or use_sliding_window false"},
	"use_sliding_window":           {isFalse, "null or false"},
	"attention_chunk_size":         {isZero, "null or 0"},
	"is_causal":                    {isTrue, "null or true"},
	"use_bidirectional_attention":  {isFalse, "null or false"},
	"use_bidirectional_mask":       {isFalse, "null or false"},
	"add_swa_attention_sink_bias":  {isFalse, "null or false"},
	"add_full_attention_sink_bias": {isFalse, "null or false"},
	"head_dim":                     {isHeadDim, "null, or one of the sizes of a head: qk_rope_head_dim, qk_nope_head_dim, their sum, v_head_dim or hidden_size / num_attention_heads"},
	"qk_head_dim":                  {func(x literal, c *Config) bool { return x.is(c.Block.Core.Nope + c.Block.Core.Rope) }, "null or qk_nope_head_dim + qk_rope_head_dim"},
	"rope_interleaved":             {isInterleaved, "null, or what rope_interleave says"},
}

// set returns an error for the first setting, by name, that is neither missing nor harmless.
func (r *rawConfig) set(c *Config) error {
	for _, key := range slices.Sorted(maps.Keys(r.settings)) {
		x := r.settings[key]
		if x == "" || settings[key].harmless(x, c) || key == "sliding_window" && r.settings["use_sliding_window"] == "false" {
			continue
		}
		return fmt.Errorf("%w: %s is %s, and %s is attention without it: wanted %s", ErrUnsupported, key, x, c.ModelType, settings[key].wanted)
	}
	return nil
}

func never(literal, *Config) bool       { return false }
func isFalse(x literal, _ *Config) bool { return x == "false" }
func isTrue(x literal, _ *Config) bool  { return x == "true" }
func isZero(x literal, _ *Config) bool  { return x.is(0) }
func is(y literal) func(literal, *Config) bool {
	return func(x literal, _ *Config) bool { return x == y }
}

func isInterleaved(x literal, c *Config) bool {
	return x == "true" && c.Block.Core.RopeStyle == mla.Interleaved || x == "false" && c.Block.Core.RopeStyle == mla.Half
}

// is reports whether x is a number.
func (x literal) is(n int) bool {
	f, err := strconv.ParseFloat(string(x), 64)
	return err == nil && f == float64(n)
}

// isHeadDim says that head_dim is no other than the sizes that a head has anyway. What it is
// to mean differs from one program to the next, and none computes from it where heads have a
// part with and one without rotation.
func isHeadDim(x literal, c *Config) bool {
	k := c.Block.Core
	return slices.ContainsFunc([]int{k.Rope, k.Nope, k.Nope + k.Rope, k.V, c.Block.Hidden / k.Heads}, x.is)
}

// ropeKey is a key of a dictionary of rotations that is there, and what it means to a family.
type ropeKey struct {
	key      string
	value    any
	kinds    uint8 // the kinds of rope that use it, a bit each
	harmless bool  // under the others, with this value
	wanted   string
}

const (
	byYaRN = 1 << RopeYaRN
	byLong = 1 << RopeLong
	byAll  = 1<<RopeDefault | byYaRN | byLong
)

// keys are those that are there, but for the two spellings of the type, in a fixed order.
func (p *rawRope) keys(fam family) []ropeKey {
	var there []ropeKey
	number := func(key string, x number, kinds uint8, neutral float64) {
		if x.set {
			there = append(there, ropeKey{key, x.v, kinds, x.v == neutral, fmt.Sprint(neutral)})
		}
	}
	whole := func(key string, x value) {
		if x.set {
			there = append(there, ropeKey{key, x.n, byAll, true, ""})
		}
	}
	yes := func(key string, x flag, kinds uint8) {
		if x.set {
			there = append(there, ropeKey{key, x.v, kinds, x.v, "true"})
		}
	}
	list := func(key string, x []float64) {
		if x != nil {
			there = append(there, ropeKey{key, x, byLong, false, ""})
		}
	}
	if p.other.key != "" {
		there = append(there, ropeKey{p.other.key, p.other.value, 0, false, ""})
	}
	byPosition := uint8(0)
	if fam.position {
		byPosition = byAll
	}
	number("rope_theta", p.theta, byAll, 0)
	number("factor", p.factor, byYaRN|byLong, 1)
	number("attention_factor", p.attentionFactor, byYaRN|byLong, 1)
	number("beta_fast", p.betaFast, byYaRN, math.NaN())
	number("beta_slow", p.betaSlow, byYaRN, math.NaN())
	number("mscale", p.mscale, byYaRN, 0)
	number("mscale_all_dim", p.mscaleAllDim, byYaRN, 0)
	yes("truncate", p.truncate, byYaRN)
	list("short_factor", p.short)
	list("long_factor", p.long)
	number("llama_4_scaling_beta", p.beta, byPosition, 0)
	// The length of the context is only a reference for those above: without them it stretches
	// nothing. max_position_embeddings repeats what stands beside the dictionary.
	whole("original_max_position_embeddings", p.original)
	whole("max_position_embeddings", p.positions)
	// What these turn off there is only in YaRN.
	number("partial_rotary_factor", p.partial, byAll, 1)
	yes("apply_yarn_scaling", p.apply, byAll)
	yes("apply_scale", p.applyScale, byAll)
	// Factors of vLLM and SGLang that no family has.
	number("attn_factor", p.attnFactor, 0, 1)
	number("extrapolation_factor", p.extrapolation, 0, 1)
	return there
}

// understood returns an error for a key that changes rotations of another kind, or of none that
// is known, and so must be a mistake or something that is not computed here.
func (p *rawRope) understood(name string, kind RopeKind, fam family) error {
	for _, k := range p.keys(fam) {
		switch {
		case k.kinds>>kind&1 != 0 || k.harmless:
		case k.kinds == 0 && k.wanted == "" && k.value == literal("{...}"):
			return fmt.Errorf("%w: %s.%s is an object: parameters for each type of layer", ErrUnsupported, name, clip(k.key))
		case k.kinds == 0 && k.wanted == "":
			return fmt.Errorf("%w: %s.%s is %v, and no key of this name is known", ErrUnsupported, name, shown(k.key), k.value)
		case k.kinds == 0:
			return fmt.Errorf("%w: %s.%s is %v, wanted %s or nothing", ErrUnsupported, name, k.key, k.value, k.wanted)
		case !p.kind().set:
			return fmt.Errorf("%w: %s.rope_type is missing, and %s is %s: without a type only default rotations are meant, which do not use it", ErrConfig, name, k.key, brief(k.value))
		default:
			return fmt.Errorf("%w: %s.%s is %s, which rope_type %s does not use", ErrConfig, name, k.key, brief(k.value), kind)
		}
	}
	return nil
}

// brief is a value in a message: of a list only how long it is.
func brief(x any) string {
	if list, ok := x.([]float64); ok {
		return fmt.Sprintf("a list of %d numbers", len(list))
	}
	return fmt.Sprint(x)
}

// quantHarmless are keys of a dictionary of quantisation that say nothing about how the numbers
// of a weight are to be read, whatever their values: what a tensor holds its own type, shape and
// scales say.
var quantHarmless = [...]string{
	"format", "quantization_status", "version", "global_compression_ratio", "run_compressed",
	// How tensors were laid out for saving: one that is not laid out plainly has other names.
	"sparsity_config",
	// Decoding weights as they are loaded gives the same values.
	"dequantize",
	// What else was quantised: embeddings, experts.
	"modules_to_convert", "expert_dtype",
	// The format of the cache, which is the caller's to choose.
	"kv_cache_scheme", "kv_cache_quant_algo", "kv_cache_quant_method",
}

// Likewise of one of the config_groups, and of its weights. That activations were rounded says
// how the model was meant to run; here they are only if the caller wants it.
var (
	groupHarmless        = [...]string{"targets", "format", "input_activations", "output_activations"}
	groupWeightsHarmless = [...]string{
		"num_bits", "type", "strategy", "symmetric", "dynamic", "group_size", "actorder", "observer", "observer_kwargs", "scale_dtype", "zp_dtype",
	}
)

// understood returns an error for a key of a dictionary of quantisation that is none of these.
func (q *rawQuant) understood(name string) error {
	switch q.activation {
	// Whether activations are rounded, and with which scales, is the caller's.
	case "", `"dynamic"`, `"static"`:
	default:
		return fmt.Errorf("%w: %s.activation_scheme is %s, wanted dynamic or static", ErrUnsupported, name, q.activation)
	}
	switch q.transforms {
	case "", "{}":
	default:
		return fmt.Errorf("%w: %s.transform_config is %s, wanted {}: rotations of weights and activations are not undone", ErrUnsupported, name, q.transforms)
	}
	if q.other.key != "" {
		return fmt.Errorf("%w: %s: %s is %s, and no key of this name is known", ErrUnsupported, name, shown(q.other.key), q.other.value)
	}
	return nil
}
