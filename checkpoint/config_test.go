package checkpoint_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
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
		{"GLM-5", []string{`"rope_interleave":true`, `"rope_interleave":false`}, func(c config) any { return c.Block.Core.RopeStyle }, mla.Interleaved, false},
		{"DeepSeek-V2-Lite", []string{`"model_type"`, `"rope_interleave":false,"model_type"`}, func(c config) any { return c.Block.Core.RopeStyle }, mla.Interleaved, false},
		{"DeepSeek-V3", []string{`"mscale":1.0`, `"mscale":0.5`}, func(c config) any { return c.Rope.Magnitude }, get(0.5) / get(1), true},
		{"DeepSeek-V3", []string{`"mscale":1.0,`, ``}, func(c config) any { return c.Rope.Magnitude }, get(1), true},
		{"DeepSeek-V3", []string{`"mscale":1.0,`, `"attention_factor":0.75,`}, func(c config) any { return c.Rope.Magnitude }, 0.75, false},
		{"DeepSeek-V3", []string{`"mscale_all_dim":1.0`, `"mscale_all_dim":0`}, func(c config) any { return c.Scale }, 1 / math.Sqrt(192), true},
		{"DeepSeek-V3", []string{`"mscale_all_dim":1.0`, `"mscale_all_dim":0`}, func(c config) any { return c.Rope.Magnitude }, get(1), true},
		{"DeepSeek-V3", []string{`"factor":40`, `"factor":1`}, func(c config) any { return c.Scale }, 1 / math.Sqrt(192), true},
		{"DeepSeek-V3", []string{`"factor":40,`, ``}, func(c config) any { return c.Rope.Factor }, 40.0, false},
		{"DeepSeek-V3", []string{`"factor":40`, `"truncate":false,"factor":40`}, func(c config) any { return c.Rope.Exact }, true, false},
		{"DeepSeek-V3", []string{`"beta_fast":32,`, ``}, func(c config) any { return c.Rope.BetaFast }, 32.0, false},
		{"DeepSeek-V3", []string{`"type":"yarn"`, `"type":"default","rope_type":"yarn"`}, func(c config) any { return c.Rope.Kind }, checkpoint.RopeYaRN, false},
		{"DeepSeek-V3", []string{`"rope_theta":10000,`, ``}, func(c config) any { return c.Rope.Theta }, 10000.0, false},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":20000,"rope_parameters":{"rope_theta":30000}`}, func(c config) any { return c.Rope.Theta }, 30000.0, false},
		{"DeepSeek-V3", []string{`"rope_scaling"`, `"rope_parameters":null,"rope_scaling"`}, func(c config) any { return c.Rope.Factor }, 40.0, false},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_parameters":{"rope_theta":30000}`}, func(c config) any { return []any{c.Rope.Theta, c.Rope.Kind, c.Rope.Factor} }, []any{30000.0, checkpoint.RopeYaRN, 40.0}, false},
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_theta":20000,"rope_parameters":{"rope_type":"yarn","factor":8,"original_max_position_embeddings":64}`}, func(c config) any { return []any{c.Rope.Theta, c.Rope.Factor} }, []any{20000.0, 8.0}, false},
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
		{"MiniCPM3-long", []string{`"rope_type":"longrope"`, `"original_max_position_embeddings":1024,"rope_type":"longrope"`}, func(c config) any { return c.Rope.Original }, 512, false},
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
		{"DeepSeek-V3", []string{`"quant_method":"fp8"`, `"quant_method":"awq"`}, checkpoint.ErrUnsupported, `quantization_config.quant_method "awq", wanted fp8 or compressed-tensors`},
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
		{"DeepSeek-V3", []string{`"rope_theta":10000`, `"rope_parameters":{"rope_type":"default"}`}, checkpoint.ErrConfig, `rope_scaling is of type "yarn", and rope_parameters of "default"`},
		{"DeepSeek-V3.2", []string{`"index_topk":2048,`, ``}, checkpoint.ErrConfig, "index_topk is missing"},
		{"GLM-5", []string{`"index_topk":2048`, `"index_topk":0`}, checkpoint.ErrConfig, "index_topk is 0"},
		{"LongCat-Flash", []string{`"num_layers":28`, `"num_hidden_layers":28`}, checkpoint.ErrConfig, "num_layers is missing"},
		{"Mistral-Small-4", []string{`"llama_4_scaling_beta":0.1,`, ``}, checkpoint.ErrConfig, "llama_4_scaling_beta is missing"},
		{"Mistral-Small-4", []string{`"original_max_position_embeddings":8192,`, ``}, checkpoint.ErrConfig, "original_max_position_embeddings is missing"},
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
	})
}
