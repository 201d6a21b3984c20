package checkpoint_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const yarn40 = `{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"}`

const fp8Blocks = `{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","weight_block_size":[128,128]}`

const factors16 = `[1.0591234137867171,1.1241891283591912,1.2596935748670968,1.5380380402321725,2.093982484148734,3.1446935121267696,4.937952647693647,7.524541999994549,10.475458000005451,13.062047352306353,14.85530648787323,15.906017515851266,16.461961959767827,16.740306425132907,16.87581087164081,16.940876586213285]`

// configs are configurations of the families as hubs have them, as far as attention goes, in
// the old and the new spelling.
var configs = map[string]string{
	"DeepSeek-V2-Lite": `{"architectures":["DeepseekV2ForCausalLM"],"model_type":"deepseek_v2","attention_bias":false,"hidden_size":2048,"num_hidden_layers":27,"num_attention_heads":16,
		"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"kv_lora_rank":512,"q_lora_rank":null,"max_position_embeddings":163840,"rms_norm_eps":1e-06,"rope_theta":10000,
		"rope_scaling":{"beta_fast":32,"beta_slow":1,"factor":40,"mscale":0.707,"mscale_all_dim":0.707,"original_max_position_embeddings":4096,"type":"yarn"}}`,
	"DeepSeek-V3": `{"architectures":["DeepseekV3ForCausalLM"],"model_type":"deepseek_v3","attention_bias":false,"hidden_size":7168,"num_hidden_layers":61,"num_nextn_predict_layers":1,"num_attention_heads":128,
		"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"kv_lora_rank":512,"q_lora_rank":1536,"max_position_embeddings":163840,"rms_norm_eps":1e-06,"rope_theta":10000,
		"rope_scaling":` + yarn40 + `,"quantization_config":` + fp8Blocks + `}`,
	"DeepSeek-V3.2": `{"architectures":["DeepseekV32ForCausalLM"],"model_type":"deepseek_v32","index_topk":2048,"index_n_heads":64,"index_head_dim":128,"hidden_size":7168,"num_hidden_layers":61,"num_nextn_predict_layers":1,
		"num_attention_heads":128,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"kv_lora_rank":512,"q_lora_rank":1536,"max_position_embeddings":163840,"rms_norm_eps":1e-06,"rope_theta":10000,
		"rope_scaling":` + yarn40 + `,"quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","scale_fmt":"ue8m0","weight_block_size":[128,128]}}`,
	"Kimi-K2": `{"architectures":["DeepseekV3ForCausalLM"],"model_type":"kimi_k2","hidden_size":7168,"num_hidden_layers":61,"num_nextn_predict_layers":0,"num_attention_heads":64,"qk_nope_head_dim":128,
		"qk_rope_head_dim":64,"v_head_dim":128,"kv_lora_rank":512,"q_lora_rank":1536,"max_position_embeddings":131072,"rms_norm_eps":1e-06,"rope_theta":50000.0,
		"rope_scaling":{"beta_fast":1.0,"beta_slow":1.0,"factor":32.0,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"},"quantization_config":` + fp8Blocks + `}`,
	"Kimi-K2.5": `{"architectures":["KimiK25ForConditionalGeneration"],"model_type":"kimi_k25","vision_config":{"hidden_size":1152,"model_type":"vit"},"quantization_config":` + fp8Blocks + `,
		"text_config":{"architectures":["DeepseekV3ForCausalLM"],"model_type":"kimi_k2","hidden_size":7168,"num_hidden_layers":61,"num_attention_heads":64,"qk_nope_head_dim":128,
		"qk_rope_head_dim":64,"v_head_dim":128,"kv_lora_rank":512,"q_lora_rank":1536,"max_position_embeddings":262144,"rope_theta":50000.0,
		"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":64.0,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096,"type":"yarn"}}}`,
	"GLM-4.7-Flash": `{"architectures":["Glm4MoeLiteForCausalLM"],"model_type":"glm4_moe_lite","hidden_size":2048,"num_hidden_layers":47,"num_nextn_predict_layers":1,"num_attention_heads":20,"qk_nope_head_dim":192,
		"qk_rope_head_dim":64,"v_head_dim":256,"kv_lora_rank":512,"q_lora_rank":768,"max_position_embeddings":202752,"partial_rotary_factor":1.0,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":1000000}`,
	"GLM-5": `{"architectures":["GlmMoeDsaForCausalLM"],"model_type":"glm_moe_dsa","hidden_size":6144,"num_hidden_layers":78,"num_nextn_predict_layers":1,"num_attention_heads":64,"qk_nope_head_dim":192,"qk_rope_head_dim":64,
		"v_head_dim":256,"kv_lora_rank":512,"q_lora_rank":2048,"index_topk":2048,"indexer_rope_interleave":true,"max_position_embeddings":202752,"rms_norm_eps":1e-05,"rope_interleave":true,
		"rope_parameters":{"rope_theta":1000000,"rope_type":"default"},"indexer_types":["full","shared"],"layer_types":["deepseek_sparse_attention","deepseek_sparse_attention"]}`,
	"MiniCPM3-4B": `{"architectures":["MiniCPM3ForCausalLM"],"model_type":"minicpm3","hidden_size":2560,"num_hidden_layers":62,"num_attention_heads":40,"qk_nope_head_dim":64,"qk_rope_head_dim":32,"kv_lora_rank":256,
		"q_lora_rank":768,"max_position_embeddings":32768,"rms_norm_eps":1e-05,"scale_depth":1.4,
		"rope_scaling":{"type":"longrope","long_factor":` + factors16 + `,"short_factor":` + factors16 + `,"original_max_position_embeddings":32768}}`,
	"MiniCPM3-long": `{"model_type":"minicpm3","hidden_size":2560,"num_hidden_layers":62,"num_attention_heads":40,"qk_nope_head_dim":64,"qk_rope_head_dim":32,"kv_lora_rank":256,"v_head_dim":48,
		"q_lora_rank":768,"max_position_embeddings":32768,"original_max_position_embeddings":512,
		"rope_parameters":{"rope_type":"longrope","rope_theta":20000.0,"long_factor":` + factors16 + `,"short_factor":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2]}}`,
	"Mistral-Small-4": `{"architectures":["Mistral3ForConditionalGeneration"],"model_type":"mistral3","text_config":{"model_type":"mistral4","hidden_size":4096,"num_hidden_layers":36,"num_attention_heads":32,"qk_nope_head_dim":64,
		"qk_rope_head_dim":64,"v_head_dim":128,"kv_lora_rank":256,"q_lora_rank":1024,"max_position_embeddings":1048576,"rms_norm_eps":1e-06,"rope_interleave":true,"quantization_config":` + fp8Blocks + `,
		"rope_parameters":{"type":"yarn","rope_type":"yarn","rope_theta":10000.0,"factor":128.0,"original_max_position_embeddings":8192,"max_position_embeddings":1048576,"beta_fast":32.0,"beta_slow":1.0,
		"mscale_all_dim":1.0,"mscale":1.0,"llama_4_scaling_beta":0.1,"partial_rotary_factor":0.5}}}`,
	"LongCat-Flash": `{"architectures":["LongcatFlashForCausalLM"],"model_type":"longcat_flash","hidden_size":6144,"num_layers":28,"num_attention_heads":64,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
		"kv_lora_rank":512,"q_lora_rank":1536,"mla_scale_q_lora":true,"mla_scale_kv_lora":true,"max_position_embeddings":131072,"rms_norm_eps":1e-05,"attention_method":"MLA","num_nextn_predict_layers":1}`,
	"Youtu-LLM-2B": `{"architectures":["YoutuForCausalLM"],"model_type":"youtu","hidden_size":2048,"num_hidden_layers":32,"num_attention_heads":16,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,
		"kv_lora_rank":512,"q_lora_rank":1536,"max_position_embeddings":131072,"rms_norm_eps":1e-06,"rope_interleave":false,"rope_theta":1600000,"time_step_limit":[0.0,Infinity,-Infinity,NaN,-1.5]}`,
}

// edited is a configuration with a part of its text replaced.
func edited(t *testing.T, name string, oldNew ...string) []byte {
	t.Helper()
	text := configs[name]
	for i := 0; i < len(oldNew); i += 2 {
		require.Contains(t, text, oldNew[i], name)
		text = strings.Replace(text, oldNew[i], oldNew[i+1], 1)
	}
	return []byte(text)
}

func TestConfigs(t *testing.T) {
	for name, want := range map[string]struct {
		heads, nope, rope, v, latent, qLora, hidden int
		layers, blocks, predict, topK               int
		scale, theta                                float64
		style                                       mla.RopeStyle
		kind                                        checkpoint.RopeKind
	}{
		"DeepSeek-V2-Lite": {16, 128, 64, 128, 512, 0, 2048, 27, 27, 0, 0, 0.1147213867929261, 10000, mla.Interleaved, checkpoint.RopeYaRN},
		"DeepSeek-V3":      {128, 128, 64, 128, 512, 1536, 7168, 61, 61, 1, 0, 0.1352337788608801, 10000, mla.Interleaved, checkpoint.RopeYaRN},
		"DeepSeek-V3.2":    {128, 128, 64, 128, 512, 1536, 7168, 61, 61, 1, 2048, 0.1352337788608801, 10000, mla.Interleaved, checkpoint.RopeYaRN},
		"Kimi-K2":          {64, 128, 64, 128, 512, 1536, 7168, 61, 61, 0, 0, math.Pow(0.1*math.Log(32)+1, 2) / math.Sqrt(192), 50000, mla.Interleaved, checkpoint.RopeYaRN},
		"Kimi-K2.5":        {64, 128, 64, 128, 512, 1536, 7168, 61, 61, 0, 0, math.Pow(0.1*math.Log(64)+1, 2) / math.Sqrt(192), 50000, mla.Interleaved, checkpoint.RopeYaRN},
		"GLM-4.7-Flash":    {20, 192, 64, 256, 512, 768, 2048, 47, 47, 1, 0, 0.0625, 1e6, mla.Interleaved, checkpoint.RopeDefault},
		"GLM-5":            {64, 192, 64, 256, 512, 2048, 6144, 78, 78, 1, 2048, 0.0625, 1e6, mla.Interleaved, checkpoint.RopeDefault},
		"MiniCPM3-4B":      {40, 64, 32, 64, 256, 768, 2560, 62, 62, 0, 0, 1 / math.Sqrt(96), 10000, mla.Half, checkpoint.RopeLong},
		"MiniCPM3-long":    {40, 64, 32, 48, 256, 768, 2560, 62, 62, 0, 0, 1 / math.Sqrt(96), 20000, mla.Half, checkpoint.RopeLong},
		"Mistral-Small-4":  {32, 64, 64, 128, 256, 1024, 4096, 36, 36, 0, 0, 0.19496949473302969, 10000, mla.Interleaved, checkpoint.RopeYaRN},
		"LongCat-Flash":    {64, 128, 64, 128, 512, 1536, 6144, 28, 56, 0, 0, 1 / math.Sqrt(192), 1e7, mla.Interleaved, checkpoint.RopeDefault},
		"Youtu-LLM-2B":     {16, 128, 64, 128, 512, 1536, 2048, 32, 32, 0, 0, 1 / math.Sqrt(192), 1.6e6, mla.Half, checkpoint.RopeDefault},
	} {
		c, err := checkpoint.ParseConfig([]byte(configs[name]))
		require.NoError(t, err, name)
		b, k := c.Block, c.Block.Core
		assert.Equal(t, []int{want.heads, want.nope, want.rope, want.v, want.latent, want.qLora, want.hidden}, []int{k.Heads, k.Nope, k.Rope, k.V, k.Latent, b.QLora, b.Hidden}, name)
		assert.Equal(t, []int{want.layers, want.blocks, want.predict, want.topK}, []int{c.Layers, c.Blocks, c.Predict, k.IndexTopK}, name)
		assert.InEpsilon(t, want.scale, c.Scale, 5e-16, name)
		assert.Equal(t, float32(c.Scale), k.Scale, name)
		assert.Equal(t, want.style, k.RopeStyle, name)
		assert.Equal(t, want.kind, c.Rope.Kind, name)
		assert.Equal(t, want.theta, c.Rope.Theta, name)
		assert.Equal(t, want.rope, c.Rope.Dim, name)
		assert.Zero(t, k.Epsilon, "%s: 1e-6, whatever rms_norm_eps says", name)
		if c.Rope.Kind != checkpoint.RopeLong {
			assert.Equal(t, 1.0, c.Rope.Magnitude, name)
		}
		quantised := strings.Contains(configs[name], "quantization_config")
		assert.Equal(t, quantised, c.Quant.Method == "fp8" && c.Quant.BlockRows == 128 && c.Quant.BlockCols == 128, name)
		switch name {
		case "LongCat-Flash":
			assert.Equal(t, float32(2), b.QScale)
			assert.Equal(t, float32(math.Sqrt(12)), k.LatentScale)
		default:
			assert.Zero(t, b.QScale, name)
			assert.Zero(t, k.LatentScale, name)
		}
		if name == "Mistral-Small-4" {
			assert.Equal(t, float32(0.1), b.QBeta)
			assert.Equal(t, 8192, b.QContext)
		} else {
			assert.Zero(t, b.QBeta, name)
		}
	}
	c, err := checkpoint.ParseConfig([]byte(configs["Kimi-K2"]))
	require.NoError(t, err)
	assert.InEpsilon(t, 0.13086079996295, c.Scale, 1e-13)
	c, err = checkpoint.ParseConfig([]byte(configs["MiniCPM3-long"]))
	require.NoError(t, err)
	assert.Equal(t, 512, c.Rope.Original)
	assert.InEpsilon(t, math.Sqrt(1+math.Log(64)/math.Log(512)), c.Rope.Magnitude, 4e-16)
	c, err = checkpoint.ParseConfig([]byte(configs["Kimi-K2.5"]))
	require.NoError(t, err)
	assert.Equal(t, "kimi_k2", c.ModelType)
	assert.Equal(t, "KimiK25ForConditionalGeneration", c.Architecture)
	c, err = checkpoint.ParseConfig([]byte(configs["GLM-4.7-Flash"]))
	require.NoError(t, err)
	assert.Equal(t, 1e-5, c.NormEpsilon)
	assert.Equal(t, 202752, c.Context)
}

// TestConfigChoices changes a configuration in one place at a time.
func TestConfigChoices(t *testing.T) {
	type config = checkpoint.Config
	get := func(s float64) float64 { return 0.1*math.Log(40)*s + 1 }
	for _, tt := range []struct {
		name   string
		edits  []string
		of     func(c config) any
		wants  any
		approx bool
	}{
		{"DeepSeek-V3", []string{`"attention_bias":false`, `"attention_bias":true`}, func(c config) any { return c.Bias }, true, false},
		{"DeepSeek-V3", []string{`"model_type"`, `"rope_interleave":false,"model_type"`}, func(c config) any { return c.Block.Core.RopeStyle }, mla.Half, false},
		{"DeepSeek-V3", []string{`"model_type"`, `"rope_interleave":null,"model_type"`}, func(c config) any { return c.Block.Core.RopeStyle }, mla.Interleaved, false},
		{"DeepSeek-V3", []string{`"mscale":1.0`, `"mscale":0.5`}, func(c config) any { return c.Rope.Magnitude }, get(0.5) / get(1), true},
		{"DeepSeek-V3", []string{`"mscale":1.0,`, ``}, func(c config) any { return c.Rope.Magnitude }, get(1), true},
		{"DeepSeek-V3", []string{`"mscale":1.0,`, `"attention_factor":0.75,`}, func(c config) any { return c.Rope.Magnitude }, 0.75, false},
		{"DeepSeek-V3", []string{`"mscale_all_dim":1.0`, `"mscale_all_dim":0`}, func(c config) any { return c.Scale }, 1 / math.Sqrt(192), true},
		{"DeepSeek-V3", []string{`"mscale_all_dim":1.0`, `"mscale_all_dim":0`}, func(c config) any { return c.Rope.Magnitude }, get(1), true},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":1`}, func(c config) any { return c.Scale }, 1 / math.Sqrt(192), true},
		{"DeepSeek-V3", []string{`"factor":40,`, ``}, func(c config) any { return c.Rope.Factor }, 40.0, false},
		{"DeepSeek-V3", []string{`"factor":40`, `"truncate":false,"factor":40`}, func(c config) any { return c.Rope.Exact }, true, false},
		{"DeepSeek-V3", []string{`"beta_fast":32,`, ``}, func(c config) any { return c.Rope.BetaFast }, 32.0, false},
		{"DeepSeek-V3", []string{`"rope_theta":10000,`, ``}, func(c config) any { return c.Rope.Theta }, 10000.0, false},
		{"DeepSeek-V3", []string{`"rope_scaling"`, `"rope_parameters":null,"rope_scaling"`}, func(c config) any { return c.Rope.Factor }, 40.0, false},
		{"DeepSeek-V3", []string{`"q_lora_rank":1536`, `"q_lora_rank":0`}, func(c config) any { return c.Block.QLora }, 0, false},
		{"DeepSeek-V3", nil, func(c config) any { return c.Block.Core.IndexTopK }, 0, false},
		{"DeepSeek-V3", []string{`"model_type"`, `"index_topk":64,"model_type"`}, func(c config) any { return c.Block.Core.IndexTopK }, 64, false},
		{"DeepSeek-V3", []string{`"weight_block_size":[128,128]`, `"weight_block_size":null`}, func(c config) any { return c.Quant.BlockRows }, 0, false},
		{"DeepSeek-V3", []string{`"fmt"`, `"ignored_layers":["lm_head","model.layers.0.self_attn.kv_b_proj"],"fmt"`}, func(c config) any { return c.Quant.Ignored }, []string{"lm_head", "model.layers.0.self_attn.kv_b_proj"}, false},
		{"DeepSeek-V3", []string{`"fmt"`, `"modules_to_not_convert":["lm_h\u0065ad"],"fmt"`}, func(c config) any { return c.Quant.Ignored }, []string{"lm_head"}, false},
		{"DeepSeek-V3", []string{`"quantization_config":` + fp8Blocks, `"quantization_config":null`}, func(c config) any { return c.Quant }, checkpoint.Quant{}, false},
		{"DeepSeek-V3.2", nil, func(c config) any { return c.Quant.ScaleFormat }, "ue8m0", false},
		{"DeepSeek-V3", []string{fp8Blocks, `{"quant_method":"compressed-tensors","format":"pack-quantized","ignore":["re:.*self_attn.*"],"config_groups":{"group_0":{"targets":["Linear"],"weights":{"num_bits":4,"type":"int","block_structure":null,"group_size":32}}}}`},
			func(c config) any { return []any{c.Quant.Method, c.Quant.BlockRows, c.Quant.Ignored} }, []any{"compressed-tensors", 0, []string{"re:.*self_attn.*"}}, false},
		{"DeepSeek-V3", []string{fp8Blocks, `{"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"block_structure":[64,128]}},"b":{"weights":{"block_structure":[64,128]}}}}`},
			func(c config) any { return []int{c.Quant.BlockRows, c.Quant.BlockCols} }, []int{64, 128}, false},
		{"LongCat-Flash", []string{`"mla_scale_q_lora":true`, `"mla_scale_q_lora":false`}, func(c config) any { return c.Block.QScale }, float32(0), false},
		{"LongCat-Flash", []string{`"mla_scale_kv_lora":true,`, ``}, func(c config) any { return c.Block.Core.LatentScale }, float32(math.Sqrt(12)), false},
		{"LongCat-Flash", []string{`"mla_scale_kv_lora":true,`, `"rope_theta":5000000.5,`}, func(c config) any { return c.Rope.Theta }, 5000000.5, false},
		{"MiniCPM3-4B", []string{`"original_max_position_embeddings":32768`, `"attention_factor":1.5`}, func(c config) any { return []any{c.Rope.Magnitude, c.Rope.Original} }, []any{1.5, 32768}, false},
		{"MiniCPM3-long", []string{`"rope_type":"longrope"`, `"factor":16,"rope_type":"longrope"`}, func(c config) any { return c.Rope.Magnitude }, math.Sqrt(1 + math.Log(16)/math.Log(512)), true},
		{"DeepSeek-V3", []string{`"rope_theta":10000,`, `"rope_parameters":{"rope_type":"yarn","rope_theta":30000,` + yarn40[1:len(yarn40)-len(`,"type":"yarn"}`)] + `},"rope_theta":30000,`},
			func(c config) any { return []any{c.Rope.Theta, c.Rope.Factor} }, []any{30000.0, 40.0}, false},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_parameters":{},"rope_theta":20000`}, func(c config) any { return []any{c.Rope.Theta, c.Rope.Kind} }, []any{20000.0, checkpoint.RopeYaRN}, false},
		{"DeepSeek-V3", []string{`"type":"yarn"`, `"type":"yarn","rope_type":"yarn"`}, func(c config) any { return c.Rope.Kind }, checkpoint.RopeYaRN, false},
		{"DeepSeek-V3", []string{`"type":"yarn"`, `"type":"yarn","attn_factor":1,"extrapolation_factor":1.0,"llama_4_scaling_beta":0,"partial_rotary_factor":1.0,"facter":null`}, func(c config) any { return c.Rope.Factor }, 40.0, false},
		{"DeepSeek-V3", []string{`"rope_scaling":` + yarn40, `"rope_scaling":{}`}, func(c config) any { return c.Rope.Kind }, checkpoint.RopeDefault, false},
		{"DeepSeek-V3", []string{`"rope_scaling":` + yarn40, `"rope_scaling":{"factor":1,"mscale":0,"original_max_position_embeddings":4096,"attention_factor":1}`},
			func(c config) any { return []any{c.Rope.Kind, c.Rope.Magnitude} }, []any{checkpoint.RopeDefault, 1.0}, false},
		{"MiniCPM3-long", []string{`"rope_type":"longrope"`, `"original_max_position_embeddings":512,"rope_type":"longrope","type":"su"`}, func(c config) any { return c.Rope.Original }, 512, false},
		{"MiniCPM3-long", []string{`"model_type"`, `"rope_interleave":false,"model_type"`}, func(c config) any { return c.Block.Core.RopeStyle }, mla.Half, false},
		// What SGLang's pull request 26203 measures: no m^2, and the tables as ever.
		{"Mistral-Small-4", []string{`"mscale":1.0`, `"mscale":1.0,"apply_yarn_scaling":false`}, func(c config) any { return c.Scale }, 1 / math.Sqrt(128), true},
		{"Mistral-Small-4", []string{`"mscale":1.0`, `"mscale":1.0,"apply_yarn_scaling":false`}, func(c config) any { return []any{c.Block.Core.Scale, c.Rope.Magnitude, c.Rope.Factor} }, []any{float32(0.088388347648), 1.0, 128.0}, false},
		{"Mistral-Small-4", []string{`"mscale":1.0`, `"apply_yarn_scaling":false`}, func(c config) any { return []any{c.Block.Core.Scale, c.Rope.Magnitude} }, []any{float32(0.088388347648), 1.0}, false},
		{"Mistral-Small-4", []string{`"mscale":1.0`, `"mscale":1.0,"apply_yarn_scaling":true,"apply_scale":false`}, func(c config) any { return c.Block.Core.Scale }, float32(0.088388347648), false},
		{"Mistral-Small-4", []string{`"mscale":1.0`, `"mscale":1.0,"apply_yarn_scaling":true`}, func(c config) any { return c.Scale }, 0.19496949473302969, true},
		{"DeepSeek-V3", []string{`"mscale_all_dim":1.0`, `"apply_yarn_scaling":false`}, func(c config) any { return []any{c.Block.Core.Scale, c.Rope.Magnitude} }, []any{float32(1 / math.Sqrt(192)), get(1)}, false},
		{"DeepSeek-V3", []string{`"mscale":1.0,"mscale_all_dim":1.0`, `"mscale":0.5,"apply_yarn_scaling":false`}, func(c config) any { return c.Rope.Magnitude }, get(0.5), true},
		{"DeepSeek-V3", []string{`"mscale":1.0,`, `"attention_factor":0.75,"apply_yarn_scaling":false,`}, func(c config) any { return c.Rope.Magnitude }, 0.75, false},
		{"DeepSeek-V3", []string{`"quant_method":"fp8"`, `"quant_method":"awq","bits":4`}, func(c config) any { return c.Quant }, checkpoint.Quant{Method: "awq"}, false},
		{"DeepSeek-V3", []string{`"quantization_config"`, `"compression_config"`}, func(c config) any { return []int{c.Quant.BlockRows, c.Quant.BlockCols} }, []int{128, 128}, false},
		{"DeepSeek-V3", []string{`"model_type"`, `"attn_logit_softcapping":0.0,"sliding_window":4096,"use_sliding_window":false,"use_qk_norm":false,"head_dim":64,"qk_head_dim":192,"use_mla":true,"no_rope_layers":[],"rope_interleaved":true,"mla_scale_q_lora":false,"is_causal":true,"softmax_scale":null,"model_type"`},
			func(c config) any { return c.Block.Core.Heads }, 128, false},
		{"Kimi-K2.5", []string{`"rope_theta":50000.0,`, `"rope_theta":50000.0,"quantization_config":{"quant_method":"fp8","weight_block_size":[64,32]},`}, func(c config) any { return []int{c.Quant.BlockRows, c.Quant.BlockCols} }, []int{64, 32}, false},
	} {
		c, err := checkpoint.ParseConfig(edited(t, tt.name, tt.edits...))
		require.NoError(t, err, "%v", tt.edits)
		if tt.approx {
			assert.InEpsilon(t, tt.wants, tt.of(c), 5e-16, "%v", tt.edits)
		} else {
			assert.Equal(t, tt.wants, tt.of(c), "%v", tt.edits)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for _, tt := range []struct {
		name  string
		edits []string
		err   error
		wants string
	}{
		{"DeepSeek-V3", []string{`"quant_method":"fp8",`, ``}, checkpoint.ErrConfig, "quantization_config.quant_method is missing"},
		{"DeepSeek-V3", []string{`"fmt":"e4m3"`, `"fmt":"int4"`}, checkpoint.ErrUnsupported, `quantization_config.fmt "int4"`},
		{"DeepSeek-V3", []string{`"fmt"`, `"scale_fmt":"e4m3","fmt"`}, checkpoint.ErrUnsupported, `quantization_config.scale_fmt "e4m3"`},
		{"DeepSeek-V3", []string{fp8Blocks, `{"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"block_structure":[64,128]}},"b":{"weights":{"block_structure":[128,128]}}}}`}, checkpoint.ErrUnsupported, "config_groups have different block_structure"},
		{"DeepSeek-V3", []string{`[128,128]`, `[128]`}, checkpoint.ErrConfig, "weight_block_size is [128]"},
		{"DeepSeek-V3", []string{`[128,128]`, `[128,0]`}, checkpoint.ErrConfig, "weight_block_size is [128 0]"},
		{"DeepSeek-V3", []string{`[128,128]`, `[128,-1]`}, checkpoint.ErrConfig, "quantization_config: weight_block_size: the configuration is not JSON of the form wanted"},
		{"DeepSeek-V3", []string{`"model_type":"deepseek_v3"`, `"model_type":"llama"`}, checkpoint.ErrUnsupported, `model_type "llama", architecture "DeepseekV3ForCausalLM": wanted deepseek_v2`},
		{"DeepSeek-V3", []string{`"model_type":"deepseek_v3",`, ``}, checkpoint.ErrConfig, "model_type is missing"},
		{"Kimi-K2.5", []string{`"model_type":"kimi_k2"`, `"model_type":"qwen3"`}, checkpoint.ErrUnsupported, `model_type "kimi_k25", architecture "KimiK25ForConditionalGeneration", text_config.model_type "qwen3"`},
		{"Kimi-K2.5", []string{`"model_type":"kimi_k2"`, `"text_config":{}`}, checkpoint.ErrConfig, "text_config: text_config: it is inside another"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128,`, ``}, checkpoint.ErrConfig, "num_attention_heads is missing"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":null`}, checkpoint.ErrConfig, "num_attention_heads is missing"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":0`}, checkpoint.ErrConfig, "num_attention_heads is 0, want 1 to 1048576"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":-5`}, checkpoint.ErrConfig, "num_attention_heads is -5"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":1e300`}, checkpoint.ErrConfig, "num_attention_heads is 2147483647"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":1e400`}, checkpoint.ErrConfig, "overflows float64"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":12.5`}, checkpoint.ErrConfig, "num_attention_heads: it is 12.5, want a whole number"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":"128"`}, checkpoint.ErrConfig, "num_attention_heads: the configuration is not JSON of the form wanted"},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":128,"num_attention_heads":128`}, checkpoint.ErrConfig, `key "num_attention_heads" comes twice`},
		{"DeepSeek-V3", []string{`"num_attention_heads":128`, `"num_attention_heads":` + strings.Repeat("1", 100)}, checkpoint.ErrConfig, "more than 64 characters"},
		{"DeepSeek-V3", []string{`"attention_bias":false`, `"attention_bias":0`}, checkpoint.ErrConfig, "attention_bias: the configuration is not JSON of the form wanted"},
		{"DeepSeek-V3", []string{`"qk_rope_head_dim":64`, `"qk_rope_head_dim":63`}, checkpoint.ErrConfig, "qk_rope_head_dim is 63, want an even number"},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":1`}, checkpoint.ErrConfig, "theta is 1, want a number above 1"},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":NaN`}, checkpoint.ErrConfig, "rope_theta: the configuration is not JSON"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":0`}, checkpoint.ErrConfig, "factor is 0"},
		{"DeepSeek-V3", []string{`"beta_fast":32`, `"beta_fast":-1`}, checkpoint.ErrConfig, "beta_fast is -1"},
		{"DeepSeek-V3", []string{`"beta_fast":32`, `"beta_fast":1e308`}, checkpoint.ErrConfig, "beta_fast is 1e+308"},
		{"DeepSeek-V3", []string{`"beta_slow":1`, `"beta_slow":1e-320`}, checkpoint.ErrConfig, "beta_slow is 1e-320"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":1e300`}, checkpoint.ErrConfig, "factor is 1e+300"},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":1e300`}, checkpoint.ErrConfig, "theta is 1e+300"},
		{"DeepSeek-V3", []string{`"mscale":1.0,`, `"mscale":-1e300,`}, checkpoint.ErrConfig, "attention factor is"},
		{"DeepSeek-V3", []string{`"type":"yarn"`, `"type":"linear"`}, checkpoint.ErrUnsupported, `rope_scaling: rope_type "linear", wanted default, yarn or longrope`},
		{"DeepSeek-V3", []string{`"type":"yarn"`, `"full_attention":{"rope_type":"yarn"}`}, checkpoint.ErrUnsupported, "rope_scaling.full_attention is an object"},
		{"DeepSeek-V3", []string{`"max_position_embeddings":163840,`, ``, `"factor":40,`, ``}, checkpoint.ErrConfig, "rope_scaling.factor is missing"},
		{"DeepSeek-V3", []string{`"max_position_embeddings":163840,`, ``, `"original_max_position_embeddings":4096,`, ``}, checkpoint.ErrConfig, "rope_scaling.original_max_position_embeddings is missing"},
		{"DeepSeek-V3", []string{`"max_position_embeddings":163840`, `"max_position_embeddings":-1`}, checkpoint.ErrConfig, "max_position_embeddings is -1, want 1 to"},
		{"DeepSeek-V3", []string{`"rms_norm_eps":1e-06`, `"rms_norm_eps":-1e-06`}, checkpoint.ErrConfig, "rms_norm_eps is -1e-06, want 0 to 1"},
		{"DeepSeek-V3", []string{`"mscale_all_dim":1.0`, `"mscale_all_dim":1e200`}, checkpoint.ErrConfig, "attention factor is"},
		{"DeepSeek-V3", []string{`"mscale_all_dim":1.0`, `"attention_factor":1,"mscale_all_dim":1e200`}, checkpoint.ErrConfig, "the softmax scale is"},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_parameters":{"rope_type":"default"}`}, checkpoint.ErrConfig, `rope_scaling and rope_parameters differ: rope_type is "yarn" and "default"`},
		{"DeepSeek-V3.2", []string{`"index_topk":2048,`, ``}, checkpoint.ErrConfig, "index_topk is missing"},
		{"GLM-5", []string{`"index_topk":2048`, `"index_topk":0`}, checkpoint.ErrConfig, "index_topk is 0"},
		{"LongCat-Flash", []string{`"num_layers":28`, `"num_hidden_layers":28`}, checkpoint.ErrConfig, "num_layers is missing"},
		{"Mistral-Small-4", []string{`"llama_4_scaling_beta":0.1,`, ``}, checkpoint.ErrConfig, "llama_4_scaling_beta is missing"},
		{"Mistral-Small-4", []string{`"original_max_position_embeddings":8192,`, ``}, checkpoint.ErrConfig, "original_max_position_embeddings is missing"},
		// Keys of a dictionary that are not known, or mean something that is not computed.
		{"DeepSeek-V3", []string{`"factor":40`, `"facter":40`}, checkpoint.ErrUnsupported, "rope_scaling.facter is 40, and no key of this name is known"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"fa\u0063ter":"x\n","other":1`}, checkpoint.ErrUnsupported, `rope_scaling.facter is "x\n", and no key`},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"mrope_section":[16,24,24]`}, checkpoint.ErrUnsupported, "rope_scaling.mrope_section is [...], and no key"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"full_attention":[ ]`}, checkpoint.ErrUnsupported, "rope_scaling.full_attention is [], and no key"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"facter":` + strings.Repeat("1", 100)}, checkpoint.ErrUnsupported, "rope_scaling.facter is " + strings.Repeat("1", 64) + ","},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"attn_factor":0.5`}, checkpoint.ErrUnsupported, "rope_scaling.attn_factor is 0.5, wanted 1 or nothing"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"extrapolation_factor":2`}, checkpoint.ErrUnsupported, "rope_scaling.extrapolation_factor is 2, wanted 1 or nothing"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"llama_4_scaling_beta":0.1`}, checkpoint.ErrUnsupported, "rope_scaling.llama_4_scaling_beta is 0.1, wanted 0 or nothing"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"partial_rotary_factor":0.5`}, checkpoint.ErrUnsupported, "rope_scaling.partial_rotary_factor is 0.5, wanted 1: qk_rope_head_dim 64 says what is rotated of 192"},
		{"Mistral-Small-4", []string{`"partial_rotary_factor":0.5`, `"partial_rotary_factor":0.25`}, checkpoint.ErrUnsupported, "rope_parameters.partial_rotary_factor is 0.25"},
		{"GLM-4.7-Flash", []string{`"partial_rotary_factor":1.0`, `"partial_rotary_factor":0.5`}, checkpoint.ErrUnsupported, "partial_rotary_factor is 0.5, wanted 1"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"apply_yarn_scaling":0`}, checkpoint.ErrConfig, "apply_yarn_scaling: the configuration is not JSON of the form wanted"},
		// Keys of another type of rope, or of none.
		{"DeepSeek-V3", []string{`"type":"yarn"`, `"type":"default"`}, checkpoint.ErrConfig, "rope_scaling.factor is 40, which rope_type default does not use"},
		{"DeepSeek-V3", []string{`,"type":"yarn"`, ``}, checkpoint.ErrConfig, "rope_scaling.rope_type is missing, and factor is 40"},
		{"DeepSeek-V3", []string{`"factor":40,`, ``, `,"type":"yarn"`, ``}, checkpoint.ErrConfig, "rope_scaling.rope_type is missing, and beta_fast is 32"},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":40,"long_factor":[1,2]`}, checkpoint.ErrConfig, "rope_scaling.long_factor is a list of 2 numbers, which rope_type yarn does not use"},
		{"MiniCPM3-4B", []string{`"type":"longrope"`, `"type":"longrope","mscale_all_dim":1`}, checkpoint.ErrConfig, "rope_scaling.mscale_all_dim is 1, which rope_type longrope does not use"},
		{"DeepSeek-V3", []string{`"type":"yarn"`, `"type":"default","rope_type":"yarn"`}, checkpoint.ErrConfig, `rope_scaling.rope_type is "yarn", and type, its old name, "default"`},
		// What stands twice.
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":20000,"rope_parameters":{"rope_theta":30000}`}, checkpoint.ErrConfig, `rope_scaling and rope_parameters differ: rope_type is "yarn" and missing`},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":10000,"rope_parameters":` + strings.Replace(yarn40, `"factor":40`, `"factor":8`, 1)}, checkpoint.ErrConfig, "rope_scaling and rope_parameters differ: factor is 40 and 8"},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":10000,"rope_parameters":` + strings.Replace(yarn40, `"beta_slow":1,`, ``, 1)}, checkpoint.ErrConfig, "rope_scaling and rope_parameters differ: beta_slow is 1 and missing"},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":10000,"rope_parameters":` + strings.Replace(yarn40, `{`, `{"truncate":false,`, 1)}, checkpoint.ErrConfig, "rope_scaling and rope_parameters differ: truncate is missing and false"},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":10000,"rope_parameters":` + strings.Replace(yarn40, `{`, `{"rope_theta":30000,`, 1)}, checkpoint.ErrConfig, "rope_scaling and rope_parameters differ: rope_theta is 10000 and 30000"},
		{"MiniCPM3-4B", []string{`"rope_scaling":`, `"rope_parameters":{"rope_type":"su","long_factor":` + strings.Replace(factors16, "1.5380380402321725", "1.5", 1) + `,"short_factor":` + factors16 + `,"original_max_position_embeddings":32768},"rope_scaling":`}, checkpoint.ErrConfig, "long_factor differs from number 3 on"},
		{"GLM-5", []string{`"rope_interleave":true`, `"rope_theta":20000`}, checkpoint.ErrConfig, "rope_theta is 20000, and rope_parameters.rope_theta 1e+06"},
		{"MiniCPM3-long", []string{`"rope_type":"longrope"`, `"original_max_position_embeddings":1024,"rope_type":"longrope"`}, checkpoint.ErrConfig, "original_max_position_embeddings is 512, and rope_parameters.original_max_position_embeddings 1024"},
		{"Kimi-K2.5", []string{`"vision_config"`, `"rope_scaling":` + yarn40 + `,"vision_config"`}, checkpoint.ErrConfig, "rope_scaling and text_config.rope_scaling differ: "},
		{"Kimi-K2.5", []string{`"vision_config"`, `"rope_parameters":` + yarn40 + `,"vision_config"`}, checkpoint.ErrConfig, "rope_parameters stands beside text_config, wanted it inside"},
		{"Kimi-K2.5", []string{`"vision_config"`, `"rope_theta":10000,"vision_config"`}, checkpoint.ErrConfig, "rope_theta is 10000, and in text_config 50000"},
		// How pairs are formed, where a family has no choice.
		{"GLM-5", []string{`"rope_interleave":true`, `"rope_interleave":false`}, checkpoint.ErrUnsupported, "rope_interleave is false, and glm_moe_dsa always has true"},
		{"DeepSeek-V3.2", []string{`"model_type"`, `"rope_interleave":false,"model_type"`}, checkpoint.ErrUnsupported, "rope_interleave is false, and deepseek_v32 always has true"},
		{"DeepSeek-V2-Lite", []string{`"model_type"`, `"rope_interleave":false,"model_type"`}, checkpoint.ErrUnsupported, "rope_interleave is false, and deepseek_v2 always has true"},
		{"LongCat-Flash", []string{`"model_type"`, `"rope_interleave":false,"model_type"`}, checkpoint.ErrUnsupported, "rope_interleave is false, and longcat_flash always has true"},
		{"MiniCPM3-4B", []string{`"model_type"`, `"rope_interleave":true,"model_type"`}, checkpoint.ErrUnsupported, "rope_interleave is true, and minicpm3 always has false"},
		// Keys of quantisation.
		{"DeepSeek-V3", []string{`"fmt"`, `"weight_block":[64,64],"fmt"`}, checkpoint.ErrUnsupported, "quantization_config: weight_block is [...], and no key of this name is known"},
		{"DeepSeek-V3", []string{`"activation_scheme":"dynamic"`, `"activation_scheme":"none"`}, checkpoint.ErrUnsupported, `quantization_config.activation_scheme is "none", wanted dynamic or static`},
		{"DeepSeek-V3", []string{fp8Blocks, `{"quant_method":"compressed-tensors","transform_config":{"config_groups":{}}}`}, checkpoint.ErrUnsupported, "quantization_config.transform_config is {...}, wanted {}"},
		{"DeepSeek-V3", []string{fp8Blocks, `{"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"zero":true}}}}`}, checkpoint.ErrUnsupported, "quantization_config: zero is true"},
		{"DeepSeek-V3", []string{fp8Blocks, `{"quant_method":"compressed-tensors","config_groups":{"a":{"rotation":1}}}`}, checkpoint.ErrUnsupported, "quantization_config: rotation is 1"},
		{"DeepSeek-V3", []string{`"quantization_config"`, `"compression_config":` + fp8Blocks + `,"quantization_config"`}, checkpoint.ErrConfig, "quantization_config and compression_config are both there"},
		// Attention of other models.
		{"DeepSeek-V3", []string{`"model_type"`, `"mla_scale_kv_lora":true,"model_type"`}, checkpoint.ErrUnsupported, "mla_scale_kv_lora true, which only longcat_flash has"},
		{"DeepSeek-V3", []string{`"model_type"`, `"attn_logit_softcapping":50.0,"model_type"`}, checkpoint.ErrUnsupported, "attn_logit_softcapping is 50.0, and deepseek_v3 is attention without it: wanted null or 0"},
		{"DeepSeek-V3", []string{`"model_type"`, `"sliding_window":4096,"model_type"`}, checkpoint.ErrUnsupported, "sliding_window is 4096"},
		{"DeepSeek-V3", []string{`"model_type"`, `"use_qk_norm":true,"model_type"`}, checkpoint.ErrUnsupported, "use_qk_norm is true"},
		{"DeepSeek-V3", []string{`"model_type"`, `"head_dim":100,"model_type"`}, checkpoint.ErrUnsupported, "head_dim is 100"},
		{"DeepSeek-V3", []string{`"model_type"`, `"qk_head_dim":128,"model_type"`}, checkpoint.ErrUnsupported, "qk_head_dim is 128"},
		{"DeepSeek-V3", []string{`"model_type"`, `"softmax_scale":0.1,"model_type"`}, checkpoint.ErrUnsupported, "softmax_scale is 0.1"},
		{"LongCat-Flash", []string{`"attention_method":"MLA"`, `"attention_method":"GQA"`}, checkpoint.ErrUnsupported, `attention_method is "GQA"`},
		{"MiniCPM3-4B", []string{`"long_factor":[1.0591234137867171,`, `"long_factor":[`}, checkpoint.ErrConfig, "long_factor has 15 values, want P/2 = 16"},
		{"MiniCPM3-4B", []string{`"long_factor":[1.0591234137867171,`, `"long_factor":[0,`}, checkpoint.ErrConfig, "long_factor[0] is 0"},
		{"MiniCPM3-4B", []string{`"long_factor":` + factors16 + `,`, ``}, checkpoint.ErrConfig, "long_factor has 0 values"},
	} {
		_, err := checkpoint.ParseConfig(edited(t, tt.name, tt.edits...))
		require.ErrorIs(t, err, tt.err, "%v", tt.edits)
		assert.ErrorContains(t, err, tt.wants, "%v", tt.edits)
	}
	for text, wants := range map[string]string{
		"": "the end of the configuration", "[]": "wanted '{'", "{": "the end of the configuration", "{}": "model_type is missing",
		`{"x":` + strings.Repeat("[", 1<<20): "nests deeper than 64", `{}x`: "nothing more",
		`{"model_type":"` + strings.Repeat("x", 300) + `"}`: "300 bytes, wanted less than 256",
	} {
		_, err := checkpoint.ParseConfig([]byte(text))
		assert.ErrorIs(t, err, checkpoint.ErrConfig, "%.100s", text)
		assert.ErrorContains(t, err, wants)
	}
	_, err := checkpoint.Limits{Header: 100}.ParseConfig([]byte(configs["DeepSeek-V3"]))
	assert.ErrorIs(t, err, checkpoint.ErrLimit)
}

// published are configurations as hubs have them, in what TestConfigs has not: whole dictionaries
// of rotations and quantisation, and whatever else stands there that seems to concern attention.
var published = map[string]struct {
	text   string
	method string
	scale  float64
}{
	"DeepSeek-R1": {`{"architectures":["DeepseekV3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"auto_map":{"AutoConfig":"configuration_deepseek.DeepseekV3Config"},"bos_token_id":0,"ep_size":1,
		"first_k_dense_replace":3,"hidden_act":"silu","hidden_size":7168,"initializer_range":0.02,"intermediate_size":18432,"kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v3","moe_layer_freq":1,
		"n_group":8,"n_routed_experts":256,"num_attention_heads":128,"num_experts_per_tok":8,"num_hidden_layers":61,"num_key_value_heads":128,"num_nextn_predict_layers":1,"q_lora_rank":1536,"qk_nope_head_dim":128,
		"qk_rope_head_dim":64,"quantization_config":` + fp8Blocks + `,"rms_norm_eps":1e-06,"rope_scaling":` + yarn40 + `,"rope_theta":10000,"scoring_func":"sigmoid","topk_method":"noaux_tc","v_head_dim":128,"use_cache":true}`, "fp8", 0.1352337788608801},
	"DeepSeek-V3.1": {`{"attention_bias":false,"hidden_size":7168,"kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v3","num_attention_heads":128,"num_hidden_layers":61,"num_key_value_heads":128,
		"num_nextn_predict_layers":1,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"rope_scaling":` + yarn40 + `,"rope_theta":10000,
		"quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3","quant_method":"fp8","scale_fmt":"ue8m0","weight_block_size":[128,128]}}`, "fp8", 0.1352337788608801},
	"DeepSeek-R1-NVFP4": {`{"attention_bias":false,"hidden_size":7168,"kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v3","num_attention_heads":128,"num_hidden_layers":61,"q_lora_rank":1536,
		"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"rope_scaling":` + yarn40 + `,"rope_theta":10000,"quantization_config":{"config_groups":{"group_0":{"input_activations":{"dynamic":false,"num_bits":4,
		"type":"float","group_size":16},"weights":{"dynamic":false,"num_bits":4,"type":"float","group_size":16},"targets":["Linear"]}},"ignore":["lm_head","model.layers.0.self_attn*"],"quant_algo":"NVFP4",
		"kv_cache_scheme":{"dynamic":false,"num_bits":8,"type":"float"},"producer":{"name":"modelopt","version":"0.33.0"},"quant_method":"modelopt"}}`, "modelopt", 0.1352337788608801},
	"DeepSeek-V3-AWQ": {`{"hidden_size":7168,"kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v3","num_attention_heads":128,"num_hidden_layers":61,"q_lora_rank":1536,
		"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"rope_scaling":` + yarn40 + `,"rope_theta":10000,"quantization_config":{"bits":4,"group_size":64,"modules_to_not_convert":["self_attn"],"quant_method":"awq",
		"version":"gemm","zero_point":true}}`, "awq", 0.1352337788608801},
	"Kimi-K2-Thinking": {`{"hidden_size":7168,"kv_lora_rank":512,"max_position_embeddings":262144,"model_type":"kimi_k2","num_attention_heads":64,"num_hidden_layers":61,"num_key_value_heads":64,"q_lora_rank":1536,
		"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"rope_theta":50000.0,"rope_scaling":{"beta_fast":1.0,"beta_slow":1.0,"factor":64.0,"mscale":1.0,"mscale_all_dim":1.0,
		"original_max_position_embeddings":4096,"type":"yarn"},"quantization_config":{"config_groups":{"group_0":{"input_activations":null,"output_activations":null,"targets":["Linear"],"weights":{"actorder":null,
		"block_structure":null,"dynamic":false,"group_size":32,"num_bits":4,"observer":"minmax","observer_kwargs":{},"strategy":"group","symmetric":true,"type":"int"}}},"format":"pack-quantized",
		"ignore":["lm_head","re:.*self_attn.*","re:.*shared_experts.*"],"kv_cache_scheme":null,"quant_method":"compressed-tensors","quantization_status":"compressed"}}`, "compressed-tensors", math.Pow(0.1*math.Log(64)+1, 2) / math.Sqrt(192)},
	"DeepSeek-V3-FP8-llmcompressor": {`{"hidden_size":7168,"kv_lora_rank":512,"max_position_embeddings":163840,"model_type":"deepseek_v3","num_attention_heads":128,"num_hidden_layers":61,"q_lora_rank":1536,"head_dim":64,
		"qk_head_dim":192,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"rope_interleave":true,"rope_scaling":{"beta_fast":32.0,"beta_slow":1.0,"factor":40.0,"mscale":1.0,"mscale_all_dim":1.0,
		"original_max_position_embeddings":4096,"rope_type":"yarn","type":"yarn"},"rope_theta":10000,"quantization_config":{"config_groups":{"group_0":{"format":"float-quantized","input_activations":{"actorder":null,
		"block_structure":null,"dynamic":true,"group_size":128,"num_bits":8,"observer":null,"observer_kwargs":{},"scale_dtype":null,"strategy":"group","symmetric":true,"type":"float","zp_dtype":null},
		"output_activations":null,"targets":["Linear"],"weights":{"actorder":null,"block_structure":[128,128],"dynamic":false,"group_size":null,"num_bits":8,"observer":"static_minmax","observer_kwargs":{},
		"scale_dtype":null,"strategy":"block","symmetric":true,"type":"float","zp_dtype":null}}},"format":"float-quantized","global_compression_ratio":null,"ignore":["lm_head"],"kv_cache_scheme":null,
		"quant_method":"compressed-tensors","quantization_status":"compressed","sparsity_config":{},"transform_config":{},"version":"0.12.3"}}`, "compressed-tensors", 0.1352337788608801},
	"GLM-5-FP8": {`{"architectures":["GlmMoeDsaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"head_dim":64,"hidden_size":6144,"index_head_dim":128,"index_n_heads":32,"index_topk":2048,"indexer_rope_interleave":true,
		"kv_lora_rank":512,"max_position_embeddings":202752,"model_type":"glm_moe_dsa","num_attention_heads":64,"num_hidden_layers":78,"num_key_value_heads":64,"num_nextn_predict_layers":1,"q_lora_rank":2048,"qk_head_dim":256,
		"qk_nope_head_dim":192,"qk_rope_head_dim":64,"rope_interleave":true,"rope_parameters":{"rope_theta":1000000,"rope_type":"default"},"v_head_dim":256,"quantization_config":{"activation_scheme":"dynamic","fmt":"e4m3",
		"modules_to_not_convert":["lm_head","model.embed_tokens"],"quant_method":"fp8","weight_block_size":[128,128]}}`, "fp8", 0.0625},
	"Mistral-Small-4-FP8": {`{"architectures":["Mistral3ForConditionalGeneration"],"model_type":"mistral3","quantization_config":{"activation_scheme":"static","dequantize":false,"modules_to_not_convert":["model.vision_tower",
		"lm_head"],"quant_method":"fp8","weight_block_size":null},"text_config":{"attention_dropout":0.0,"head_dim":128,"hidden_size":4096,"kv_lora_rank":256,"max_position_embeddings":1048576,"model_type":"mistral4",
		"num_attention_heads":32,"num_hidden_layers":36,"num_key_value_heads":32,"q_lora_rank":1024,"qk_head_dim":128,"qk_nope_head_dim":64,"qk_rope_head_dim":64,"rope_interleave":true,"rope_parameters":{"beta_fast":32.0,
		"beta_slow":1.0,"factor":128.0,"llama_4_scaling_beta":0.1,"max_position_embeddings":1048576,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":8192,"partial_rotary_factor":0.5,"rope_theta":10000.0,
		"rope_type":"yarn","type":"yarn"},"sliding_window":null,"v_head_dim":128}}`, "fp8", 0.19496949473302969},
	"LongCat-Flash-FP8": {`{"attention_bias":false,"attention_method":"MLA","hidden_size":6144,"kv_lora_rank":512,"max_position_embeddings":131072,"mla_scale_kv_lora":true,"mla_scale_q_lora":true,"model_type":"longcat_flash",
		"num_attention_heads":64,"num_layers":28,"q_lora_rank":1536,"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"rope_theta":10000000.0,"zero_expert_num":256,"quantization_config":{"activation_scheme":"dynamic",
		"fmt":"e4m3","ignored_layers":["lm_head"],"quant_method":"fp8","weight_block_size":[128,128]}}`, "fp8", 1 / math.Sqrt(192)},
	"Moonlight": {`{"attention_bias":false,"hidden_size":2048,"kv_lora_rank":512,"max_position_embeddings":8192,"model_type":"deepseek_v3","num_attention_heads":16,"num_hidden_layers":27,"num_key_value_heads":16,"q_lora_rank":null,
		"qk_nope_head_dim":128,"qk_rope_head_dim":64,"v_head_dim":128,"rope_scaling":null,"rope_theta":50000.0}`, "", 1 / math.Sqrt(192)},
}

// TestPublished demands that no model is refused for a key that its configuration really has.
func TestPublished(t *testing.T) {
	for name, want := range published {
		c, err := checkpoint.ParseConfig([]byte(want.text))
		require.NoError(t, err, name)
		assert.Equal(t, want.method, c.Quant.Method, name)
		assert.InEpsilon(t, want.scale, c.Scale, 5e-16, name)
		assert.Equal(t, 1.0, c.Rope.Magnitude, name)
	}
}

// TestHostileConfig counts what a configuration can make the reader allocate.
func TestHostileConfig(t *testing.T) {
	size := headerSize()
	head := `{"quantization_config":{"ignored_layers":[`
	for name, text := range map[string]string{
		"names":       filled(size-1, head, func(i int) string { return fmt.Sprintf("%q", fmt.Sprint(i)) }, "]}}"),
		"long names":  filled(size-1, head, func(i int) string { return fmt.Sprintf(`"%01000d"`, i) }, "]}}"),
		"one name":    head + `"` + strings.Repeat("x", size-100) + `"]}}`,
		"factors":     filled(size-1, `{"rope_scaling":{"long_factor":[`, always("0"), "]}}"),
		"layer types": filled(size-1, `{"layer_types":[`, always(`""`), "]}"),
		"model type":  `{"model_type":"` + strings.Repeat("x", size-100) + `"}`,
		"unknown":     filled(size-1, `{"x":[`, always(`{"y":[1,2,3.5e7]}`), "]}"),
		"number":      `{"x":1` + strings.Repeat("0", size-100) + `}`,
		"rope keys":   filled(size-1, `{"rope_scaling":{`, func(i int) string { return fmt.Sprintf(`"%x":[1,2]`, i) }, "}}"),
		"long value":  `{"quantization_config":{"x":"` + strings.Repeat("x", size-100) + `"}}`,
		"keys":        filled(size, `{`, func(i int) string { return fmt.Sprintf(`"%x":0`, i) }, "}"),
	} {
		var err error
		n := allocated(func() { _, err = checkpoint.ParseConfig([]byte(text)) })
		require.Error(t, err, name)
		t.Logf("%s: %d bytes: %.200v", name, n, err)
		assert.Less(t, n, budgetOf(size)+int64(len(text)), name) // the text is copied
	}
}

// tableHash is the SHA-256 of a family's table: the first 1024 positions, as if there were so
// many, and some far ones.
func tableHash(t *testing.T, r checkpoint.Rope, context int) string {
	table, err := r.Table(1024)
	require.NoError(t, err)
	h := sha256.New()
	require.NoError(t, binary.Write(h, binary.LittleEndian, table))
	for _, p := range []int{4095, 4096, 32767, 65535, context - 1} {
		require.NoError(t, binary.Write(h, binary.LittleEndian, checkpoint.Row(r, p, context)))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// TestTables holds the table of each family to its bits, which are the same on every machine.
func TestTables(t *testing.T) {
	want := map[string]string{
		"DeepSeek-V2-Lite": "0dbd6aa053aab169031f1217250575b076ac8db70e48394ccbd81bf6dde043cd",
		"DeepSeek-V3":      "0dbd6aa053aab169031f1217250575b076ac8db70e48394ccbd81bf6dde043cd",
		"DeepSeek-V3.2":    "0dbd6aa053aab169031f1217250575b076ac8db70e48394ccbd81bf6dde043cd",
		"GLM-4.7-Flash":    "021cc397146e1e10d4a6d1b23aea160f9eb7b9c4931dd3da6e8dbde4ff361ed7",
		"GLM-5":            "021cc397146e1e10d4a6d1b23aea160f9eb7b9c4931dd3da6e8dbde4ff361ed7",
		"Kimi-K2":          "24f83d0d12ae0347541af939c7d47cf70be04db6340310d8d561b352e41e230b",
		"Kimi-K2.5":        "eb3b1b42f8b84fdc4793ab68a7b5dc09b17a72283fee84096896961797f00d5f",
		"LongCat-Flash":    "92b1af1761bdaaee44eb6ff7902a77ec5b664bd9dbcfffca11bcf3b67057c03c",
		"MiniCPM3-4B":      "52dae41ed4128d808dc5d348c39f11fe0e75f0b54f6104c74cc32ae118054d34",
		"MiniCPM3-long":    "1e615d666c740d83d379b47b1745b00169707e273a1f5e29349642e422683c24",
		"Mistral-Small-4":  "81ea54ab17e5ae8e5cf534c891043051f886c8c99214354f9fe9fb4b7dc0ad7f",
		"Youtu-LLM-2B":     "848ddf50533b552c69b7e2b8f365dd89d21aa967bcbde7e9ad3f317d9887ca6b",
	}
	require.ElementsMatch(t, slices.Collect(maps.Keys(configs)), slices.Collect(maps.Keys(want)))
	for name, text := range configs {
		c, err := checkpoint.ParseConfig([]byte(text))
		require.NoError(t, err)
		assert.Equal(t, want[name], tableHash(t, c.Rope, c.Context), name)
	}
}

// TestTablesAreRight computes angles in other ways: with Go's functions, and exactly.
func TestTablesAreRight(t *testing.T) {
	pi := bigPi()
	half := new(big.Float).SetPrec(bits).Quo(pi, float(2))
	for name, text := range configs {
		c, err := checkpoint.ParseConfig([]byte(text))
		require.NoError(t, err)
		r := c.Rope
		for _, positions := range []int{r.Original, c.Context} {
			f, err := r.Frequencies(positions)
			require.NoError(t, err)
			require.Len(t, f, r.Dim/2)
			for i := range f {
				want := math.Pow(r.Theta, -2*float64(i)/float64(r.Dim))
				switch r.Kind {
				case checkpoint.RopeLong:
					if positions > r.Original {
						want /= r.Long[i]
					} else {
						want /= r.Short[i]
					}
				case checkpoint.RopeYaRN:
					corr := func(b float64) float64 {
						return float64(r.Dim) * math.Log(float64(r.Original)/(2*math.Pi*b)) / (2 * math.Log(r.Theta))
					}
					low, high := max(0, math.Floor(corr(r.BetaFast))), min(float64(r.Dim-1), math.Ceil(corr(r.BetaSlow)))
					ramp := min(1, max(0, (float64(i)-low)/(high-low)))
					want = want/r.Factor*ramp + want*(1-ramp)
				}
				require.InEpsilon(t, want, f[i], 1e-14, "%s: frequency %d", name, i)
			}
			for _, p := range []int{0, 1, 511, 4096, c.Context - 1} {
				row := checkpoint.Row(r, p, positions)
				for i := range f {
					x := new(big.Float).SetPrec(bits).Mul(float(f[i]), float(float64(p)))
					angle, _ := x.Float64() // one rounding, as the table has
					sin, _ := bigSin(float(angle), pi).Float64()
					cos, _ := bigSin(new(big.Float).SetPrec(bits).Add(float(angle), half), pi).Float64()
					require.InDelta(t, cos*r.Magnitude, row[2*i], 6.1e-8, "%s: position %d", name, p)
					require.InDelta(t, sin*r.Magnitude, row[2*i+1], 6.1e-8, "%s: position %d", name, p)
				}
			}
		}
	}
}

func TestTableRefuses(t *testing.T) {
	r := checkpoint.Rope{Dim: 64, Theta: 10000, Magnitude: 1}
	for _, n := range []int{-1, math.MaxInt, 1 << 26} {
		_, err := r.Table(n)
		assert.ErrorIs(t, err, checkpoint.ErrLimit, "%d", n)
	}
	_, err := r.Frequencies(-1)
	assert.ErrorIs(t, err, checkpoint.ErrLimit)
	_, err = r.Frequencies(math.MaxInt)
	assert.NoError(t, err, "a context that no table reaches has frequencies all the same")
	// Factors below 1 speed rotations up, to angles of which nothing is left in a turn.
	fast := checkpoint.Rope{Kind: checkpoint.RopeLong, Dim: 2, Theta: 10000, Magnitude: 1, Original: 4096, Short: []float64{1e-12}, Long: []float64{1}}
	_, err = fast.Table(1)
	assert.NoError(t, err)
	_, err = fast.Table(2)
	assert.ErrorIs(t, err, checkpoint.ErrLimit)
	assert.ErrorContains(t, err, "the angle of pair 0 at position 1 is 1e+12, want less than 2^31")
	table, err := r.Table(0)
	require.NoError(t, err)
	assert.Empty(t, table)
	table, err = checkpoint.Rope{Theta: 10000, Magnitude: 1}.Table(1 << 40)
	require.NoError(t, err, "P = 0 has a table of any length")
	assert.Empty(t, table)
	for _, bad := range []checkpoint.Rope{{Dim: 3, Theta: 10, Magnitude: 1}, {Dim: 2, Magnitude: 1}, {Dim: 2, Theta: math.Inf(1), Magnitude: 1}, {Dim: 2, Theta: 10}, {Dim: 2, Theta: 10, Magnitude: 1, Kind: 9}, {Dim: 1 << 20, Theta: 10, Magnitude: 1}} {
		_, err := bad.Table(1)
		assert.ErrorIs(t, err, checkpoint.ErrConfig)
	}
	assert.Equal(t, "default yarn longrope RopeKind(9)", fmt.Sprint(checkpoint.RopeDefault, " ", checkpoint.RopeYaRN, " ", checkpoint.RopeLong, " ", checkpoint.RopeKind(9)))
}

// FuzzConfig demands of a configuration that passes sizes within their bounds, numbers that
// are finite, and a table.
func FuzzConfig(f *testing.F) {
	for _, text := range configs {
		f.Add([]byte(text))
	}
	for _, p := range published {
		f.Add([]byte(p.text))
	}
	paths, err := filepath.Glob("testdata/configs/*.json")
	require.NoError(f, err)
	for _, path := range paths {
		b, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := checkpoint.ParseConfig(b)
		if err != nil {
			return
		}
		for _, n := range []int{c.Layers, c.Blocks, c.Block.Hidden, c.Block.Core.Heads, c.Block.Core.Nope, c.Block.Core.V, c.Block.Core.Latent} {
			require.True(t, n >= 1 && n <= 1<<20, "%+v", c)
		}
		require.Zero(t, c.Block.Core.Rope%2)
		for _, x := range []float64{c.Scale, float64(c.Block.Core.Scale), float64(c.Block.QBeta), float64(c.Block.QScale), c.Rope.Theta, c.Rope.Magnitude} {
			require.False(t, math.IsNaN(x) || math.IsInf(x, 0), "%+v", c)
		}
		// A narrow table: powers take most of the time of a wide one.
		r := c.Rope
		r.Dim = min(r.Dim, 2)
		r.Short, r.Long = r.Short[:min(len(r.Short), 1)], r.Long[:min(len(r.Long), 1)]
		if r.Dim > 0 {
			table, err := r.Table(3)
			require.NoError(t, err)
			require.Len(t, table, 3*r.Dim)
			for _, x := range table {
				require.False(t, x != x, "%+v", c)
			}
		}
		again, err := checkpoint.ParseConfig(bytes.Clone(b))
		require.NoError(t, err)
		require.Equal(t, c, again)
		foreign(t, c, b)
	})
}

// foreign puts a key that nobody knows into each dictionary of a configuration that passes: it
// must not pass any more.
func foreign(t *testing.T, c checkpoint.Config, b []byte) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var all map[string]any
	if d.Decode(&all) != nil { // what Python writes, and Go's reader does not take
		return
	}
	text := all
	if all["model_type"] != c.ModelType {
		text = all["text_config"].(map[string]any)
	}
	for _, key := range []string{"rope_scaling", "rope_parameters", "quantization_config", "compression_config"} {
		dictionary, ok := text[key].(map[string]any)
		if !ok || !strings.HasPrefix(key, "rope") && c.Quant.Method != "fp8" && c.Quant.Method != "compressed-tensors" {
			continue
		}
		const unknown = "a key that nobody knows"
		dictionary[unknown] = 1
		more, err := json.Marshal(all)
		require.NoError(t, err)
		_, err = checkpoint.ParseConfig(more)
		require.Error(t, err, "%s", more)
		require.ErrorContains(t, err, unknown, "%s", more)
		delete(dictionary, unknown)
	}
}
