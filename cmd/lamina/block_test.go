package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/bf16"
	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/mla"
)

// tinyModel is a checkpoint of two attention blocks, small and odd, that a test writes, and the
// numbers in it. Its second block is in FP8, its first in bf16.
type tinyModel struct {
	variant
	dir    string
	config map[string]any
	values []map[string][]float64 // of a block: tensor name without prefix -> values, dequantised
}

// variant is how a family of models differs from the plainest: in its configuration and, as
// docs say of it, in what it computes.
type variant struct {
	config map[string]any // put over the plain one; nil takes a key away
	within string         // key under which it all is

	prefix string // of names, before "layers."
	twice  bool   // two blocks in a layer
	plain  bool   // q_proj
	bias   bool
	half   bool // half-split rope

	scale, qScale, latentScale, beta float64 // factors; 0 is none
	context                          int     // of beta
	freq                             func(pair int) float64
	magnitude                        float64 // of the rope table
}

func (v *variant) module(block int) string {
	prefix := v.prefix
	if prefix == "" {
		prefix = "model."
	}
	if v.twice {
		return fmt.Sprintf("%slayers.%d.self_attn.%d", prefix, block/2, block%2)
	}
	return fmt.Sprintf("%slayers.%d.self_attn", prefix, block)
}

// shapes are the tensors of a block.
func (v *variant) shapes() map[string]checkpoint.Shape {
	all := maps.Clone(tinyShapes)
	if v.plain {
		delete(all, "q_a_proj.weight")
		delete(all, "q_a_layernorm.weight")
		delete(all, "q_b_proj.weight")
		all["q_proj.weight"] = checkpoint.Shape{tinyHeads * (tinyNope + tinyRope), tinyHidden}
	}
	if v.bias {
		all["kv_a_proj_with_mqa.bias"], all["o_proj.bias"] = checkpoint.Shape{tinyLatent + tinyRope}, checkpoint.Shape{tinyHidden}
		if !v.plain {
			all["q_a_proj.bias"] = checkpoint.Shape{tinyLora}
		}
	}
	return all
}

const (
	tinyHidden, tinyLora, tinyHeads, tinyNope, tinyRope, tinyV, tinyLatent = 20, 12, 3, 8, 4, 6, 16

	tinyTheta, tinyLayers = 100.0, 2
)

// tinyShapes are the tensors of an attention block.
var tinyShapes = map[string]checkpoint.Shape{
	"q_a_proj.weight": {tinyLora, tinyHidden}, "q_a_layernorm.weight": {tinyLora},
	"q_b_proj.weight":           {tinyHeads * (tinyNope + tinyRope), tinyLora},
	"kv_a_proj_with_mqa.weight": {tinyLatent + tinyRope, tinyHidden}, "kv_a_layernorm.weight": {tinyLatent},
	"kv_b_proj.weight": {tinyHeads * (tinyNope + tinyV), tinyLatent}, "o_proj.weight": {tinyHidden, tinyHeads * tinyV},
}

func newTinyModel(t testing.TB) *tinyModel { return newVariant(t, variant{}) }

func newVariant(t testing.TB, v variant) *tinyModel {
	t.Helper()
	m := &tinyModel{variant: v, dir: filepath.Join(t.TempDir(), "tiny"), config: map[string]any{
		"architectures": []string{"DeepseekV3ForCausalLM"}, "model_type": "deepseek_v3", "hidden_size": tinyHidden, "num_attention_heads": tinyHeads,
		"num_hidden_layers": tinyLayers, "qk_nope_head_dim": tinyNope, "qk_rope_head_dim": tinyRope, "v_head_dim": tinyV, "kv_lora_rank": tinyLatent,
		"q_lora_rank": tinyLora, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "attention_bias": false, "rope_interleave": true,
		"rope_parameters": map[string]any{"rope_type": "default", "rope_theta": tinyTheta},
		"quantization_config": map[string]any{
			"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": []int{16, 8},
			"modules_to_not_convert": []string{v.module(0)},
		},
	}}
	for key, value := range v.config {
		if m.config[key] = value; value == nil {
			delete(m.config, key)
		}
	}
	r := rand.New(rand.NewPCG(5, 5))
	var all []checkpoint.Tensor
	for block := range tinyLayers {
		m.values = append(m.values, map[string][]float64{})
		for name, shape := range m.shapes() {
			n, err := shape.Elements()
			require.NoError(t, err)
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(r.NormFloat64() / math.Sqrt(float64(shape[len(shape)-1])))
				if len(shape) == 1 {
					x[i]++
				}
			}
			prefix := m.module(block) + "."
			if block == 0 || len(shape) == 1 {
				all = append(all, m.halves(prefix, name, block, shape, x))
				continue
			}
			all = append(all, m.codes(t, prefix, name, block, shape, x)...)
		}
	}
	require.NoError(t, os.MkdirAll(m.dir, 0o700))
	f, err := os.Create(filepath.Join(m.dir, "model.safetensors"))
	require.NoError(t, err)
	require.NoError(t, checkpoint.Write(f, all, nil))
	require.NoError(t, f.Close())
	m.writeConfig(t)
	return m
}

// writeConfig writes config.json as it now is.
func (m *tinyModel) writeConfig(t testing.TB) {
	t.Helper()
	config := m.config
	if m.within != "" {
		config = map[string]any{"architectures": []string{"WrapperForConditionalGeneration"}, "model_type": "wrapper", m.within: m.config}
	}
	b, err := json.Marshal(config)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, "config.json"), b, 0o600))
}

// halves is a tensor of bf16.
func (m *tinyModel) halves(prefix, name string, block int, shape checkpoint.Shape, x []float32) checkpoint.Tensor {
	var data []byte
	for _, v := range x {
		h := bf16.FromFloat32(v)
		data = binary.LittleEndian.AppendUint16(data, uint16(h))
		m.values[block][name] = append(m.values[block][name], float64(h.Float32()))
	}
	return checkpoint.Tensor{Name: prefix + name, DType: checkpoint.BF16, Shape: shape, Data: data}
}

// codes is a tensor of E4M3 in blocks of 16 x 8, and its scales.
func (m *tinyModel) codes(t testing.TB, prefix, name string, block int, shape checkpoint.Shape, x []float32) []checkpoint.Tensor {
	t.Helper()
	down, across := ceilDiv(shape[0], 16), ceilDiv(shape[1], 8)
	scales, data := make([]float32, down*across), make([]byte, len(x))
	var bits []byte
	for i := range scales {
		scales[i] = 0.001 * float32(i%3+1)
		bits = binary.LittleEndian.AppendUint32(bits, math.Float32bits(scales[i]))
	}
	for i, v := range x {
		scale := scales[i/shape[1]/16*across+i%shape[1]/8]
		code := fp8.E4M3FromFloat32(v/scale, fp8.Saturate)
		data[i] = code.Bits()
		m.values[block][name] = append(m.values[block][name], float64(code.Float32())*float64(scale))
	}
	return []checkpoint.Tensor{
		{Name: prefix + name, DType: checkpoint.F8_E4M3, Shape: shape, Data: data},
		{Name: prefix + name + "_scale_inv", DType: checkpoint.F32, Shape: checkpoint.Shape{down, across}, Data: bits},
	}
}

// answer is the block in float64 on hidden states [B][S][E], from what docs say of it.
func (m *tinyModel) answer(block, seqs, tokens int, mask oracle.Mask, hidden []float32) []float32 {
	w := m.values[block]
	around := &oracle.Block{
		Hidden: tinyHidden, QLora: tinyLora, QA: w["q_a_proj.weight"], QB: w["q_b_proj.weight"], KVA: w["kv_a_proj_with_mqa.weight"],
		O: w["o_proj.weight"], QGamma: w["q_a_layernorm.weight"], QEpsilon: 1e-6,
		QABias: w["q_a_proj.bias"], KVABias: w["kv_a_proj_with_mqa.bias"], OBias: w["o_proj.bias"],
		QScale: m.qScale, QBeta: m.beta, QContext: m.context,
	}
	if m.plain {
		around.QLora, around.QB = 0, w["q_proj.weight"]
	}
	freq, magnitude, scale := m.freq, m.magnitude, m.scale
	if freq == nil {
		freq = plainFreq
	}
	if magnitude == 0 {
		magnitude = 1
	}
	if scale == 0 {
		scale = 1
	}
	var freqs []float64
	for pos := range tokens {
		for i := range tinyRope / 2 {
			angle := float64(pos) * freq(i)
			freqs = append(freqs, magnitude*math.Cos(angle), magnitude*math.Sin(angle))
		}
	}
	var out []float32
	for s := range seqs {
		call := &oracle.Call{
			Config: oracle.Config{
				Heads: tinyHeads, Nope: tinyNope, Rope: tinyRope, V: tinyV, Latent: tinyLatent, Scale: scale / math.Sqrt(tinyNope+tinyRope),
				HalfRope: m.half, LatentScale: m.latentScale, Epsilon: 1e-6, Mask: mask, Gamma: w["kv_a_layernorm.weight"], Head: oracle.SplitKVB(w["kv_b_proj.weight"], tinyNope, tinyV, tinyLatent),
			},
			Offsets: []int{0, tokens}, Cached: []int{0}, Rows: [][]float64{nil}, Freqs: freqs,
		}
		for pos := range tokens {
			x := oracle.Widen(hidden[(s*tokens+pos)*tinyHidden:][:tinyHidden])
			call.Q = append(call.Q, around.Query(&call.Config, x, pos)...)
			call.Rows[0] = append(call.Rows[0], call.CacheRow(around.KV(&call.Config, x), pos)...)
		}
		for pos := range tokens {
			var heads []float64
			for h := range tinyHeads {
				heads = append(heads, call.Row(pos, h).Out...)
			}
			for _, y := range around.Output(heads) {
				out = append(out, float32(y))
			}
		}
	}
	return out
}

func plainFreq(pair int) float64 { return math.Pow(tinyTheta, -2*float64(pair)/tinyRope) }

// yarn is the frequencies of YaRN for a context that was extended by a factor.
func yarn(factor, original float64) func(pair int) float64 {
	border := func(beta float64) float64 {
		return tinyRope * math.Log(original/(2*math.Pi*beta)) / (2 * math.Log(tinyTheta))
	}
	low, high := max(math.Floor(border(32)), 0), min(math.Ceil(border(1)), tinyRope-1)
	if low == high {
		high += 0.001
	}
	return func(pair int) float64 {
		ramp := min(max((float64(pair)-low)/(high-low), 0), 1)
		return plainFreq(pair)/factor*ramp + plainFreq(pair)*(1-ramp)
	}
}

// blockDraft is a case on the model's second block: two sequences of nine tokens in four steps.
func (m *tinyModel) blockDraft(t testing.TB, steps, mask string) draft {
	t.Helper()
	const seqs, tokens = 2, 9
	r := rand.New(rand.NewPCG(6, 6))
	x := make([]float32, seqs*tokens*tinyHidden)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	kind, window, _ := strings.Cut(mask, ":")
	width := 0
	fmt.Sscan(window, &width)
	shape := checkpoint.Shape{seqs, tokens, tinyHidden}
	return draft{
		map[string]string{
			"lamina.case": "1", "name": "tiny", "op": "block", "source": "internal/oracle", "checkpoint": "tiny", "layer": "1",
			"module": m.module(1), "steps": steps, "cache": "f32", "page": "4", "mask": mask, "abs": "1e-6", "rel": "1e-5", "cos": "1e-11",
		},
		map[string]checkpoint.Tensor{
			"hidden":        float32s("hidden", shape, x),
			"expect.output": float32s("expect.output", shape, m.answer(1, seqs, tokens, oracle.Mask{Kind: kind, Window: width}, x)),
		},
	}
}

func float32s(name string, shape checkpoint.Shape, x []float32) checkpoint.Tensor {
	var data []byte
	for _, v := range x {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return checkpoint.Tensor{Name: name, DType: checkpoint.F32, Shape: shape, Data: data}
}

// in writes the case beside the model.
func (d draft) in(t testing.TB, m *tinyModel) string {
	t.Helper()
	path := filepath.Join(filepath.Dir(m.dir), "case.safetensors")
	d.writeTo(t, path)
	return path
}

// TestBlockCases runs a block against float64, in one step and in many, on 1 and 2 threads and
// other pages; steps do not touch the bits in one form.
func TestBlockCases(t *testing.T) {
	m := newTinyModel(t)
	for _, mask := range []string{"causal", "sliding_window_causal:3"} {
		hashes := map[string]string{}
		for _, steps := range []string{"9", "5,1,0,3", "1,1,1,1,1,1,1,1,1"} {
			for _, flags := range [][]string{{"-threads", "1"}, {"-threads", "2", "-page", "1"}, {"-form", "decode"}, {"-form", "prefill"}} {
				lines, status, stderr := replay(t, append(flags, m.blockDraft(t, steps, mask).in(t, m))...)
				require.Equal(t, statusOK, status, stderr)
				require.Empty(t, stderr)
				require.Len(t, lines, 1)
				l := lines[0]
				assert.True(t, l.Pass)
				assert.Equal(t, "block", l.Op)
				assert.Nil(t, l.LSEMaxAbs)
				assert.Positive(t, l.Seconds)
				assert.Less(t, l.MaxAbs, 2e-6)
				require.Len(t, l.Hash, 64)
				key := steps // the form is by the rule, which looks at the steps
				if flags[0] == "-form" {
					key = flags[1]
					assert.Equal(t, key, l.Form)
				}
				if hashes[key] == "" {
					hashes[key] = l.Hash
				}
				assert.Equal(t, hashes[key], l.Hash, "steps %s, %v", steps, flags)
			}
		}
	}
}

// TestBlockCasesBF16 runs a block in the second arithmetic: within its tolerances, with the
// same bits in other steps, pages and threads, which are not those of the first.
func TestBlockCasesBF16(t *testing.T) {
	m := newTinyModel(t)
	hash := ""
	for _, steps := range []string{"9", "5,1,0,3"} {
		for _, flags := range [][]string{{"-threads", "1"}, {"-threads", "2", "-page", "1"}} {
			path := m.blockDraft(t, steps, "causal").in(t, m)
			lines, status, stderr := replay(t, append(flags, "-form", "prefill", "-arithmetic", "bf16", path)...)
			require.Equal(t, statusOK, status, stderr)
			l := lines[0]
			assert.Equal(t, "bf16", l.Arithmetic)
			assert.Greater(t, l.MaxAbs, 1e-4)
			if hash == "" {
				hash = l.Hash
			}
			assert.Equal(t, hash, l.Hash, "steps %s, %v", steps, flags)
		}
	}
	lines, _, _ := replay(t, "-form", "prefill", m.blockDraft(t, "9", "causal").in(t, m))
	assert.Equal(t, "f32", lines[0].Arithmetic)
	assert.NotEqual(t, hash, lines[0].Hash)

	// A wrong answer is found, by a tenth of its largest value.
	d := m.blockDraft(t, "9", "causal")
	want := d.tensors["expect.output"].Data
	x, largest := math.Float32frombits(binary.LittleEndian.Uint32(want)), float32(0)
	for at := 0; at < len(want); at += 4 {
		largest = max(largest, float32(math.Abs(float64(math.Float32frombits(binary.LittleEndian.Uint32(want[at:]))))))
	}
	binary.LittleEndian.PutUint32(want, math.Float32bits(x+0.1*largest))
	_, status, stderr := replay(t, "-arithmetic", "bf16", d.in(t, m))
	assert.Equal(t, statusWrong, status)
	assert.Contains(t, stderr, "output in F32[0, 0, 0]")
}

// variants are the families, each with what is odd about it. The contexts are short so that nine
// tokens reach past them.
var variants = map[string]variant{
	"deepseek_v2": {
		plain: true, scale: math.Pow(0.1*0.707*math.Log(40)+1, 2), freq: yarn(40, 4096),
		config: map[string]any{
			"model_type": "deepseek_v2", "architectures": []string{"DeepseekV2ForCausalLM"}, "q_lora_rank": nil, "rope_parameters": nil, "rope_theta": tinyTheta,
			"rope_scaling": map[string]any{"type": "yarn", "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
				"original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1},
		},
	},
	"deepseek_v3 with biases": {bias: true, config: map[string]any{"attention_bias": true}},
	"plain with biases":       {bias: true, plain: true, config: map[string]any{"attention_bias": true, "q_lora_rank": nil}},
	"deepseek_v32": {config: map[string]any{"model_type": "deepseek_v32", "architectures": []string{"DeepseekV32ForCausalLM"},
		"index_topk": 9, "index_n_heads": 2, "index_head_dim": 8}},
	"glm4_moe_lite": {config: map[string]any{"model_type": "glm4_moe_lite", "architectures": []string{"Glm4MoeLiteForCausalLM"}, "rms_norm_eps": 1e-5}},
	"glm_moe_dsa": {config: map[string]any{"model_type": "glm_moe_dsa", "architectures": []string{"GlmMoeDsaForCausalLM"},
		"index_topk": 2048, "index_n_heads": 2, "index_head_dim": 8}},
	"youtu": {config: map[string]any{"model_type": "youtu", "architectures": []string{"YoutuForCausalLM"}}},
	"minicpm3": {
		half: true, magnitude: math.Sqrt(1 + math.Log(8)/math.Log(8)), freq: func(pair int) float64 { return plainFreq(pair) / (1.5 + float64(pair)) },
		config: map[string]any{
			"model_type": "minicpm3", "architectures": []string{"MiniCPM3ForCausalLM"}, "rope_parameters": nil, "rope_theta": tinyTheta, "rope_interleave": nil,
			"rope_scaling": map[string]any{"type": "longrope", "short_factor": []float64{1, 1}, "long_factor": []float64{1.5, 2.5},
				"original_max_position_embeddings": 8},
		},
	},
	"mistral4": {
		scale: math.Pow(0.1*math.Log(16)+1, 2), freq: yarn(16, 4), beta: 0.1, context: 4,
		config: map[string]any{
			"model_type": "mistral4", "architectures": []string{"Mistral4ForCausalLM"},
			"rope_parameters": map[string]any{"rope_type": "yarn", "rope_theta": tinyTheta, "factor": 16, "original_max_position_embeddings": 4,
				"beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1, "llama_4_scaling_beta": 0.1},
		},
	},
	"longcat_flash": {
		twice: true, qScale: math.Sqrt(float64(tinyHidden) / tinyLora), latentScale: math.Sqrt(float64(tinyHidden) / tinyLatent),
		config: map[string]any{"model_type": "longcat_flash", "architectures": []string{"LongcatFlashForCausalLM"}, "num_hidden_layers": nil, "num_layers": 1},
	},
	"text_config": {within: "text_config", prefix: "language_model.model."},
}

// TestBlockVariants takes a block of every family from its files to float64's answer.
func TestBlockVariants(t *testing.T) {
	for name, v := range variants {
		t.Run(name, func(t *testing.T) {
			m := newVariant(t, v)
			i, status, stderr := inspected(t, m.dir)
			require.Equal(t, statusOK, status, stderr)
			require.Len(t, i.Blocks, 2)
			for _, form := range []string{"decode", "prefill"} {
				lines, status, stderr := replay(t, "-form", form, m.blockDraft(t, "4,1,4", "causal").in(t, m))
				require.Equal(t, statusOK, status, stderr)
				assert.Less(t, lines[0].MaxAbs, 3e-6)
				assert.Positive(t, lines[0].MaxAbs)
			}
		})
	}
	v := variants["deepseek_v32"]
	v.config = maps.Clone(v.config)
	v.config["index_topk"] = 8
	m := newVariant(t, v)
	_, status, stderr := replay(t, m.blockDraft(t, "4,1,4", "causal").in(t, m))
	assert.Equal(t, statusUnusable, status)
	assert.Contains(t, stderr, "4 tokens from 5 on of tensor hidden: mla: index lists are missing: position 8 sees 9 keys, more than IndexTopK = 8")
	_, status, stderr = replay(t, m.blockDraft(t, "4,1,4", "sliding_window_causal:8").in(t, m))
	assert.Equal(t, statusOK, status, stderr)
}

// TestBlockFormats runs a block on caches of other formats, within what these round.
func TestBlockFormats(t *testing.T) {
	m := newTinyModel(t)
	for format, abs := range map[string]string{"bf16": "1e-2", "f16": "2e-3", "fp8_unit": "0.2", "fp8_tensor": "0.2", "fp8_token": "0.2"} {
		d := m.blockDraft(t, "4,5", "causal")
		d.meta["cache"], d.meta["abs"], d.meta["cos"] = format, abs, "1e-2"
		switch format {
		case "fp8_tensor":
			d.tensors["cache.scale"] = float32s("cache.scale", checkpoint.Shape{1}, []float32{0.02})
		case "fp8_token":
			d.meta["cache_group"] = "7"
		}
		lines, status, stderr := replay(t, d.in(t, m))
		require.Equal(t, statusOK, status, "%s: %s", format, stderr)
		assert.Greater(t, lines[0].MaxAbs, 1e-5, format)
	}
}

// TestWrongBlocks: a wrong answer is status 1.
func TestWrongBlocks(t *testing.T) {
	m := newTinyModel(t)
	d := m.blockDraft(t, "4,5", "causal")
	d.float32("expect.output", 17*tinyHidden+3, 9)
	lines, status, stderr := replay(t, d.in(t, m))
	assert.Equal(t, statusWrong, status)
	assert.False(t, lines[0].Pass)
	assert.Equal(t, []int{1, 8, 3}, lines[0].Worst)
	assert.Contains(t, stderr, "output in F32[1, 8, 3] is")
	d = m.blockDraft(t, "4,5", "causal")
	d.meta["mask"] = "null" // which a later step cannot undo
	_, status, _ = replay(t, d.in(t, m))
	assert.Equal(t, statusWrong, status)
}

// TestEmptyBlocks: no sequences, or no tokens, are right.
func TestEmptyBlocks(t *testing.T) {
	m := newTinyModel(t)
	for _, shape := range []checkpoint.Shape{{0, 9, tinyHidden}, {2, 0, tinyHidden}} {
		d := m.blockDraft(t, fmt.Sprint(shape[1]), "causal")
		d.shape("hidden", shape...)
		d.shape("expect.output", shape...)
		lines, status, stderr := replay(t, d.in(t, m))
		require.Equal(t, statusOK, status, stderr)
		assert.Empty(t, lines[0].Form)
	}
}

// TestRefusedBlocks has a case, or a checkpoint, that cannot be used for every demand.
func TestRefusedBlocks(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(m *tinyModel, d draft)
		says  string
	}{
		"no checkpoint":      {func(_ *tinyModel, d draft) { delete(d.meta, "checkpoint") }, "metadata checkpoint is missing"},
		"empty checkpoint":   {func(_ *tinyModel, d draft) { d.meta["checkpoint"] = "" }, "metadata checkpoint is empty"},
		"another checkpoint": {func(_ *tinyModel, d draft) { d.meta["checkpoint"] = "../none" }, "none"},
		"layer":              {func(_ *tinyModel, d draft) { d.meta["layer"] = "2" }, "metadata layer is 2, and"},
		"negative layer":     {func(_ *tinyModel, d draft) { d.meta["layer"] = "-1" }, "metadata layer is \"-1\""},
		"module":             {func(_ *tinyModel, d draft) { d.meta["layer"] = "0" }, `metadata module is "model.layers.1.self_attn", and attention block 0 of`},
		"steps":              {func(_ *tinyModel, d draft) { d.meta["steps"] = "4,4" }, `metadata steps is "4,4", whose sum is 8, wanted the 9 tokens`},
		"too many steps":     {func(_ *tinyModel, d draft) { d.meta["steps"] = "4,6" }, `metadata steps is "4,6", wanted whole numbers`},
		"no number":          {func(_ *tinyModel, d draft) { d.meta["steps"] = "4,,5" }, `metadata steps is "4,,5", wanted whole numbers`},
		"huge steps":         {func(_ *tinyModel, d draft) { d.meta["steps"] = "9223372036854775807,9223372036854775807" }, "wanted whole numbers"},
		"no steps":           {func(_ *tinyModel, d draft) { delete(d.meta, "steps") }, "metadata steps is missing"},
		"mask":               {func(_ *tinyModel, d draft) { d.meta["mask"] = "round" }, `metadata mask: mla: bad configuration: mask "round"`},
		"cache":              {func(_ *tinyModel, d draft) { d.meta["cache"] = "bf15" }, `metadata cache is "bf15"`},
		"cache of a width":   {func(_ *tinyModel, d draft) { d.meta["cache"] = "ds_mla_656" }, "the cache of metadata cache and page"},
		"cache scale":        {func(_ *tinyModel, d draft) { d.meta["cache"] = "fp8_tensor" }, "tensor cache.scale is missing"},
		"cache group":        {func(_ *tinyModel, d draft) { d.meta["cache"] = "fp8_token" }, "metadata cache_group is missing"},
		"page":               {func(_ *tinyModel, d draft) { d.meta["page"] = "0" }, `metadata page is "0"`},
		"epsilon":            {func(_ *tinyModel, d draft) { d.meta["epsilon"] = "1e-6" }, "metadata epsilon is \"1e-6\", which has no meaning in this case of op block"},
		"scale":              {func(_ *tinyModel, d draft) { d.meta["scale"] = "0.3" }, "metadata scale is 0.3, wanted the 0.288675"},
		"abs":                {func(_ *tinyModel, d draft) { delete(d.meta, "abs") }, "metadata abs is missing"},
		"hidden":             {func(_ *tinyModel, d draft) { delete(d.tensors, "hidden") }, "tensor hidden is missing"},
		"hidden of a type":   {func(_ *tinyModel, d draft) { d.dtype("hidden", checkpoint.I32) }, "tensor hidden is [2, 9, 20] I32"},
		"hidden of two":      {func(_ *tinyModel, d draft) { d.shape("hidden", 18, 20) }, "tensor hidden is [18, 20], wanted [sequences, tokens, hidden]"},
		"another width": {func(_ *tinyModel, d draft) { d.shape("hidden", 2, 9, 19); d.shape("expect.output", 2, 9, 19) },
			"tensor hidden has states of 19 values, wanted the 20 of"},
		"answer":       {func(_ *tinyModel, d draft) { d.shape("expect.output", 2, 8, 20) }, "tensor expect.output is [2, 8, 20], wanted [sequences 2, tokens 9, hidden 20]"},
		"lse":          {func(_ *tinyModel, d draft) { d.add("expect.lse", checkpoint.F32, 18, 3) }, "tensor expect.lse has no place"},
		"architecture": {func(m *tinyModel, _ draft) { m.config["model_type"] = "llama" }, "llama"},
		"method":       {func(m *tinyModel, _ draft) { m.config["quantization_config"].(map[string]any)["quant_method"] = "awq" }, "awq"},
		"heads":        {func(m *tinyModel, _ draft) { m.config["num_attention_heads"] = 5 }, "q_b_proj"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTinyModel(t)
			d := m.blockDraft(t, "4,5", "causal")
			c.spoil(m, d)
			m.writeConfig(t)
			path := d.in(t, m)
			lines, status, stderr := replay(t, path)
			assert.Equal(t, statusUnusable, status, stderr)
			assert.Empty(t, lines)
			assert.Contains(t, stderr, path)
			assert.Contains(t, stderr, c.says)
		})
	}
	m := newTinyModel(t)
	d := m.blockDraft(t, "4,5", "causal")
	d.meta["scale"] = "0.28867513"
	_, status, stderr := replay(t, d.in(t, m))
	assert.Equal(t, statusOK, status, stderr)
	d.meta["checkpoint"] = m.dir // an absolute path
	_, status, stderr = replay(t, d.in(t, m))
	assert.Equal(t, statusOK, status, stderr)
}

// TestGoldenBlocks runs the cases and checkpoints beside the reference cases, if a folder of
// these is named; the tests above stand for them elsewhere.
func TestGoldenBlocks(t *testing.T) {
	folder := os.Getenv(goldenEnv)
	if folder == "" {
		fmt.Printf("golden: %s names no folder, no more than the block that tests make\n", goldenEnv)
		newTinyModel(t)
		return
	}
	folder = filepath.Join(folder, "checkpoints")
	paths, err := filepath.Glob(filepath.Join(folder, "cases", "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	hashes := map[string]string{}
	for _, flags := range [][]string{{"-threads", "1"}, {"-threads", "2"}, {"-threads", "2", "-page", "3"}} {
		lines, status, stderr := replay(t, append(flags, filepath.Join(folder, "cases"))...)
		require.Equal(t, statusOK, status, stderr)
		require.Len(t, lines, len(paths))
		for _, l := range lines {
			if hashes[l.Name] == "" {
				hashes[l.Name] = l.Hash
			}
			assert.Equal(t, hashes[l.Name], l.Hash, "%s %v", l.Name, flags)
		}
	}
	for name, want := range map[string]foundModel{
		"v3-fp8":       {Type: "deepseek_v3", Layers: 2, Blocks: 2, Heads: 4, QLora: 192},
		"v2-lite-bf16": {Type: "deepseek_v2", Layers: 2, Blocks: 2, Heads: 4},
		"glm-lite-fp8": {Type: "glm4_moe_lite", Layers: 2, Blocks: 2, Heads: 3, QLora: 128},
		"longcat-fp8":  {Type: "longcat_flash", Layers: 1, Blocks: 2, Heads: 4, QLora: 128},
	} {
		i, status, stderr := inspected(t, filepath.Join(folder, name))
		require.Equal(t, statusOK, status, stderr)
		got := foundModel{Type: i.Model.Type, Layers: i.Model.Layers, Blocks: i.Model.Blocks, Heads: i.Model.Heads, QLora: i.Model.QLora}
		assert.Equal(t, want, got)
		assert.Equal(t, contextCost{"bf16", 0, 1152, 2 * 1152}, i.Context[0], name)
		require.Len(t, i.Blocks, 2)
		for _, b := range i.Blocks {
			assert.True(t, b.Runs, "%s: %s", b.Module, b.Why)
		}
	}
	testRefusedCheckpoints(t, filepath.Join(folder, "broken"))
}

// testRefusedCheckpoints inspects what EXPECT.txt lists as broken: each is refused, by its
// name.
func testRefusedCheckpoints(t *testing.T, folder string) {
	expect, err := os.ReadFile(filepath.Join(folder, "EXPECT.txt"))
	require.NoError(t, err)
	refused := 0
	for entry := range strings.Lines(string(expect)) {
		name, _, ok := strings.Cut(entry, ": ")
		if !ok {
			continue
		}
		path := filepath.Join(folder, strings.TrimSuffix(name, "/"))
		if _, err := os.Stat(path); err != nil {
			continue // a line of prose
		}
		status, _, stderr := command("inspect", path)
		assert.Equal(t, statusUnusable, status, name)
		assert.Contains(t, stderr, path)
		assert.Contains(t, stderr, map[string]string{
			"dtype-unknown.safetensors": `tensor "a": dtype "F7"`, "trailing.safetensors": "24 bytes follow the last tensor",
			"overlap.safetensors": `tensors "a" and "b" overlap`, "missing-shard/": "model-00001-of-00001.safetensors: no such file",
			"shard-outside/": "no plain file name", "no-scale/": "kv_b_proj.weight_scale_inv is missing",
			"heads-7/": "num_attention_heads 7", "quant-awq/": `"awq"`,
		}[name])
		refused++
	}
	assert.GreaterOrEqual(t, refused, 14)
}

// FuzzReplayBlock makes a few changes to a case of a block, drawn from a seed; whatever the case
// then says, it runs or is refused.
func FuzzReplayBlock(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed)
	}
	m := newTinyModel(f)
	values := []string{"", "-1", "0", "1", "2", "3", "9", "8,1", "9,0", "1,1,7", "0,0,9,0", "1073741824", "0.5", "1e-30", "1e30", "null", "causal",
		"chunked:1", "sliding_window_noncausal:1000000000", "bf16", "f32", "f16", "fp8_unit", "fp8_token", "fp8_tensor", "v4_584", "tiny", "..", "/", "model.layers.0.self_attn"}
	dtypes := []checkpoint.DType{checkpoint.BF16, checkpoint.F16, checkpoint.F32, checkpoint.U8, checkpoint.I32}
	pool := mla.NewPool(1)
	f.Cleanup(func() { pool.Close() })
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		d := m.blockDraft(t, "5,1,3", "causal")
		keys, tensors := slices.Sorted(maps.Keys(d.meta)), slices.Sorted(maps.Keys(d.tensors))
		keys = append(keys, "scale", "cache_group")
		for range 1 + rng.IntN(3) {
			key, name := keys[rng.IntN(len(keys))], tensors[rng.IntN(len(tensors))]
			x := d.tensors[name]
			switch rng.IntN(5) {
			case 0, 1:
				d.meta[key] = values[rng.IntN(len(values))]
			case 2:
				for n := len(x.Data); n > 0 && rng.IntN(4) > 0; {
					x.Data[rng.IntN(n)] = byte(rng.Uint32())
				}
			case 3:
				d.dtype(name, dtypes[rng.IntN(len(dtypes))])
			case 4:
				shape := slices.Clone(x.Shape)
				shape[rng.IntN(len(shape))] = rng.IntN(12)
				d.shape(name, shape...)
			}
		}
		var b, out, stderr bytes.Buffer
		require.NoError(t, checkpoint.Write(&b, slices.Collect(maps.Values(d.tensors)), d.meta))
		file, err := checkpoint.Parse(b.Bytes())
		require.NoError(t, err)
		p := &player{options: options{hash: true, page: rng.IntN(20)}, pool: pool, stdout: json.NewEncoder(&out), stderr: &stderr}
		p.play(context.Background(), m.dir, file, nil)
		require.Equal(t, p.status == statusUnusable, out.Len() == 0, stderr.String())
	})
}
