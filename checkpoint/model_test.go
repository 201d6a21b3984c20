package checkpoint_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// draft is a small model that a test writes, after it has changed something about it.
type draft struct {
	t       *testing.T
	rng     *rand.Rand
	config  map[string]any
	tensors []checkpoint.Tensor
	values  map[string][]float64 // of the weights: codes times scales
	shard   int64

	codes, scales checkpoint.DType // of the weights; codes may be plain values
	scaleName     string
	block         [2]int // of a scale; 0 for the whole tensor
}

// newDraft has GLM's heads of 448 rows, in blocks of 128, and one and a half of them in
// kv_a_proj_with_mqa.
func newDraft(t *testing.T) *draft {
	d := &draft{t: t, rng: rand.New(rand.NewPCG(1, 2)), values: map[string][]float64{}, codes: checkpoint.F8_E4M3, scales: checkpoint.F32,
		scaleName: ".weight_scale_inv", block: [2]int{128, 128}, shard: 1 << 19}
	d.config = map[string]any{
		"architectures": []string{"Glm4MoeLiteForCausalLM"}, "model_type": "glm4_moe_lite", "hidden_size": 160, "num_hidden_layers": 2,
		"num_attention_heads": 2, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "kv_lora_rank": 128, "q_lora_rank": 136,
		"rms_norm_eps": 1e-5, "rope_parameters": map[string]any{"rope_type": "default", "rope_theta": 1e6},
		"quantization_config": map[string]any{"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": []int{128, 128}},
	}
	return d
}

func (d *draft) n(key string) int { return d.config[key].(int) }

// data is n random elements of a type, as bytes and as values: near 1 and above 0 for norms.
func (d *draft) data(of checkpoint.DType, n int, positive bool) ([]byte, []float64) {
	var b []byte
	values := make([]float64, n)
	for i := range values {
		x := float32(d.rng.NormFloat64())
		if positive {
			x = 0.5 + d.rng.Float32()
		}
		switch of {
		case checkpoint.F8_E4M3:
			c := simd.F32ToE4M3(x, simd.Saturate)
			b, values[i] = append(b, c), float64(simd.E4M3ToF32(c))
		case checkpoint.F8_E5M2:
			c := simd.F32ToE5M2(x, simd.Saturate)
			b, values[i] = append(b, c), float64(simd.E5M2ToF32(c))
		case checkpoint.F8_E8M0:
			c := byte(127 - d.rng.IntN(4))
			b, values[i] = append(b, c), float64(simd.E8M0ToF32(c))
		case checkpoint.BF16:
			c := simd.F32ToBF16(x)
			b, values[i] = binary.LittleEndian.AppendUint16(b, c), float64(simd.BF16ToF32(c))
		case checkpoint.F16:
			c := simd.F32ToF16(x)
			b, values[i] = binary.LittleEndian.AppendUint16(b, c), float64(simd.F16ToF32(c))
		case checkpoint.F32:
			b, values[i] = binary.LittleEndian.AppendUint32(b, math.Float32bits(x)), float64(x)
		default:
			d.t.Fatalf("no data of %v", of)
		}
	}
	return b, values
}

func (d *draft) add(name string, of checkpoint.DType, positive bool, shape ...int) []float64 {
	n, err := checkpoint.Shape(shape).Elements()
	require.NoError(d.t, err)
	b, values := d.data(of, n, positive)
	d.tensors = append(d.tensors, checkpoint.Tensor{Name: name, DType: of, Shape: shape, Data: b})
	return values
}

// matrix adds a projection, with its scales.
func (d *draft) matrix(name string, rows, cols int) {
	values := d.add(name+".weight", d.codes, false, rows, cols)
	if d.codes != checkpoint.BF16 && d.codes != checkpoint.F16 && d.codes != checkpoint.F32 {
		br, bc := min(d.block[0], rows), min(d.block[1], cols)
		if d.block[0] == 0 {
			br = rows
		}
		if d.block[1] == 0 {
			bc = cols
		}
		across := (cols + bc - 1) / bc
		shape := []int{(rows + br - 1) / br, across}
		if d.block == [2]int{} {
			shape = []int{1}
		}
		scales := d.add(name+d.scaleName, d.scales, true, shape...)
		for i := range rows {
			for j := range cols {
				values[i*cols+j] *= scales[i/br*across+j/bc]
			}
		}
	}
	d.values[name] = values
}

// vector adds a norm or a bias.
func (d *draft) vector(name string, of checkpoint.DType, n int) {
	d.values[name] = d.add(name, of, true, n)
}

// attention adds the tensors of one block.
func (d *draft) attention(module string) {
	hidden, query := d.n("hidden_size"), d.n("num_attention_heads")*(d.n("qk_nope_head_dim")+d.n("qk_rope_head_dim"))
	if d.config["q_lora_rank"] != nil {
		a := d.n("q_lora_rank")
		d.matrix(module+".q_a_proj", a, hidden)
		d.vector(module+".q_a_layernorm.weight", checkpoint.BF16, a)
		d.matrix(module+".q_b_proj", query, a)
	} else {
		d.matrix(module+".q_proj", query, hidden)
	}
	d.matrix(module+".kv_a_proj_with_mqa", d.n("kv_lora_rank")+d.n("qk_rope_head_dim"), hidden)
	d.vector(module+".kv_a_layernorm.weight", checkpoint.BF16, d.n("kv_lora_rank"))
	d.matrix(module+".kv_b_proj", d.n("num_attention_heads")*(d.n("qk_nope_head_dim")+d.n("v_head_dim")), d.n("kv_lora_rank"))
	d.matrix(module+".o_proj", hidden, d.n("num_attention_heads")*d.n("v_head_dim"))
}

// at is the tensor of a name.
func (d *draft) at(name string) *checkpoint.Tensor {
	i := slices.IndexFunc(d.tensors, func(x checkpoint.Tensor) bool { return x.Name == name })
	require.GreaterOrEqual(d.t, i, 0, name)
	return &d.tensors[i]
}

func (d *draft) remove(name string) {
	d.at(name)
	d.tensors = slices.DeleteFunc(d.tensors, func(x checkpoint.Tensor) bool { return x.Name == name })
}

// write writes the model to a directory, which it returns.
func (d *draft) write() string {
	dir := d.t.TempDir()
	require.NoError(d.t, checkpoint.WriteDir(dir, d.tensors, map[string]string{"format": "pt"}, d.shard))
	d.writeConfig(dir)
	return dir
}

func (d *draft) writeConfig(dir string) {
	text, err := json.MarshalIndent(d.config, "", "  ")
	require.NoError(d.t, err)
	require.NoError(d.t, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600))
}

func (d *draft) open(dir string) *checkpoint.Model {
	m, err := checkpoint.OpenModel(dir)
	require.NoError(d.t, err)
	d.t.Cleanup(func() { require.NoError(d.t, m.Close()) })
	return m
}

// same holds a loaded matrix against the values that were written.
func (d *draft) same(name string, m fp8.Matrix) {
	d.t.Helper()
	want, ok := d.values[name]
	require.True(d.t, ok, name)
	got := make([]float32, m.Rows()*m.Cols())
	require.Len(d.t, want, len(got), name)
	require.NoError(d.t, m.Dequantize(got))
	for i, x := range got {
		if float32(want[i]) != x {
			d.t.Fatalf("%s[%d, %d] is %v, want %v", name, i/m.Cols(), i%m.Cols(), x, want[i])
		}
	}
}

func (d *draft) sameRows(name string, r mla.Rows) {
	d.t.Helper()
	want, ok := d.values[name]
	require.True(d.t, ok, name)
	got := make([]float32, r.Len())
	r.Widen(got, 0, len(got))
	require.Len(d.t, want, len(got), name)
	for i := range got {
		require.Equal(d.t, float32(want[i]), got[i], "%s[%d]", name, i)
	}
}

// loads opens the model and compares a block with what was written for module.
func (d *draft) loads(m *checkpoint.Model, i int, module string) {
	d.t.Helper()
	require.Equal(d.t, module, m.Module(i))
	require.NoError(d.t, m.Check(i))
	cfg, w, err := m.LoadBlock(i)
	require.NoError(d.t, err)
	require.Equal(d.t, m.Config.Block, cfg)
	if cfg.QLora > 0 {
		d.same(module+".q_a_proj", w.QA)
		d.sameRows(module+".q_a_layernorm.weight", w.QGamma)
		d.same(module+".q_b_proj", w.QB)
	} else {
		d.same(module+".q_proj", w.QB)
		require.Zero(d.t, w.QA.Rows())
		require.Zero(d.t, w.QGamma.Len())
	}
	d.same(module+".kv_a_proj_with_mqa", w.KVA)
	d.same(module+".kv_b_proj", w.Core.KVB)
	d.sameRows(module+".kv_a_layernorm.weight", w.Core.Gamma)
	d.same(module+".o_proj", w.O)
	core, cw, err := m.LoadLayer(i)
	require.NoError(d.t, err)
	require.Equal(d.t, cfg.Core, core)
	d.same(module+".kv_b_proj", cw.KVB)
	d.sameRows(module+".kv_a_layernorm.weight", cw.Gamma)
}

const (
	module0 = "model.layers.0.self_attn"
	module1 = "model.layers.1.self_attn"
)

// TestLoad loads what is stored in every way that checkpoints have.
func TestLoad(t *testing.T) {
	quant := func(d *draft) map[string]any { return d.config["quantization_config"].(map[string]any) }
	for name, change := range map[string]func(d *draft){
		"blocks that straddle": func(*draft) {},
		"weight_scale":         func(d *draft) { d.scaleName = ".weight_scale" },
		"scales in bf16":       func(d *draft) { d.scales = checkpoint.BF16 },
		"scales in E8M0":       func(d *draft) { d.scales = checkpoint.F8_E8M0; quant(d)["scale_fmt"] = "ue8m0" },
		"E5M2":                 func(d *draft) { d.codes = checkpoint.F8_E5M2; quant(d)["fmt"] = "e5m2" },
		"other blocks":         func(d *draft) { d.block = [2]int{96, 32}; quant(d)["weight_block_size"] = []int{96, 32} },
		"a scale for a tensor": func(d *draft) { d.block = [2]int{}; delete(quant(d), "weight_block_size") },
		"a scale for a row":    func(d *draft) { d.block = [2]int{1, 0}; quant(d)["weight_block_size"] = nil },
		"bf16":                 func(d *draft) { d.codes = checkpoint.BF16; delete(d.config, "quantization_config") },
		"f16":                  func(d *draft) { d.codes = checkpoint.F16; d.config["quantization_config"] = nil },
		"f32":                  func(d *draft) { d.codes = checkpoint.F32; delete(d.config, "quantization_config") },
		"compressed-tensors": func(d *draft) {
			d.scaleName = ".weight_scale"
			d.config["quantization_config"] = map[string]any{"quant_method": "compressed-tensors",
				"config_groups": map[string]any{"group_0": map[string]any{"weights": map[string]any{"num_bits": 8, "type": "float", "strategy": "block", "block_structure": []int{128, 128}}}}}
		},
		"compressed-tensors elsewhere": func(d *draft) {
			d.codes = checkpoint.BF16
			d.config["quantization_config"] = map[string]any{"quant_method": "compressed-tensors", "ignore": []string{"re:.*self_attn.*"}}
		},
		"bf16 in spite of fp8": func(d *draft) { d.codes = checkpoint.BF16 },
		"one file":             func(d *draft) { d.shard = 0 },
		"a file for each":      func(d *draft) { d.shard = 1 },
		"no q_lora_rank":       func(d *draft) { d.config["q_lora_rank"] = nil; d.config["model_type"] = "deepseek_v2" },
		"no rope_parameters":   func(d *draft) { delete(d.config, "rope_parameters"); d.config["rope_theta"] = 10000 },
		"index_topk":           func(d *draft) { d.config["model_type"], d.config["index_topk"] = "glm_moe_dsa", 2048 },
		"layer_types":          func(d *draft) { d.config["layer_types"] = []string{"deepseek_sparse_attention", "full_attention"} },
		"indexed layer_types":  func(d *draft) { d.config["layer_types"] = []string{"indexed_attention", "indexed_attention"} },
		"modules_to_not_convert": func(d *draft) {
			quant(d)["modules_to_not_convert"] = []string{"lm_head", module0 + ".kv_b_proj"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDraft(t)
			change(d)
			d.attention(module0)
			m := d.open(d.write())
			d.loads(m, 0, module0)
			l, err := m.Layer(0)
			require.NoError(t, err)
			require.NoError(t, l.Close())
		})
	}
}

// TestLoadLayers loads one layer after the other, and packs them.
func TestLoadLayers(t *testing.T) {
	d := newDraft(t)
	d.attention(module0)
	d.attention(module1)
	m := d.open(d.write())
	d.loads(m, 0, module0)
	d.loads(m, 1, module1)
	for i := range 2 {
		b, err := m.Block(i)
		require.NoError(t, err)
		require.NoError(t, b.Close())
	}
}

// TestLoadMixed leaves single projections unquantised.
func TestLoadMixed(t *testing.T) {
	for _, plain := range []string{"kv_b_proj", "o_proj", "q_a_proj"} {
		d := newDraft(t)
		d.attention(module0)
		d.remove(module0 + "." + plain + ".weight_scale_inv")
		w := d.at(module0 + "." + plain + ".weight")
		w.DType = checkpoint.BF16
		w.Data, d.values[module0+"."+plain] = d.data(checkpoint.BF16, w.Shape[0]*w.Shape[1], false)
		d.loads(d.open(d.write()), 0, module0)
	}
}

func TestLoadBiases(t *testing.T) {
	d := newDraft(t)
	d.config["attention_bias"] = true
	d.attention(module0)
	d.vector(module0+".q_a_proj.bias", checkpoint.BF16, 136)
	d.vector(module0+".kv_a_proj_with_mqa.bias", checkpoint.F32, 192)
	d.vector(module0+".o_proj.bias", checkpoint.F16, 160)
	m := d.open(d.write())
	d.loads(m, 0, module0)
	_, w, err := m.LoadBlock(0)
	require.NoError(t, err)
	d.sameRows(module0+".q_a_proj.bias", w.QABias)
	d.sameRows(module0+".kv_a_proj_with_mqa.bias", w.KVABias)
	d.sameRows(module0+".o_proj.bias", w.OBias)
	b, err := m.Block(0)
	require.NoError(t, err)
	require.NoError(t, b.Close())

	d = newDraft(t)
	d.config["attention_bias"], d.config["q_lora_rank"] = true, nil
	d.attention(module0)
	d.vector(module0+".kv_a_proj_with_mqa.bias", checkpoint.F32, 192)
	d.vector(module0+".o_proj.bias", checkpoint.F16, 160)
	d.loads(d.open(d.write()), 0, module0)
}

// TestLoadPrefixes loads layers that are called otherwise.
func TestLoadPrefixes(t *testing.T) {
	for _, prefix := range []string{"model.", "language_model.model.", "model.language_model.", "", "thinker.model."} {
		d := newDraft(t)
		d.attention(prefix + "layers.1.self_attn")
		d.loads(d.open(d.write()), 1, prefix+"layers.1.self_attn")
	}
	d := newDraft(t)
	d.config = map[string]any{"model_type": "kimi_k25", "text_config": d.config, "vision_config": map[string]any{"model_type": "vit"}}
	text := d.config["text_config"].(map[string]any)
	text["model_type"] = "kimi_k2"
	d.config["quantization_config"] = text["quantization_config"]
	delete(text, "quantization_config")
	outer := d.config
	d.config = text
	d.attention("language_model.model.layers.0.self_attn")
	d.attention("vision.layers.0.self_attn") // of another geometry in earnest
	d.config = outer
	d.loads(d.open(d.write()), 0, "language_model.model.layers.0.self_attn")

	d = newDraft(t)
	d.attention("a.layers.0.self_attn")
	d.attention("b.layers.0.self_attn")
	_, err := checkpoint.OpenModel(d.write())
	assert.ErrorIs(t, err, checkpoint.ErrWeights)
	assert.ErrorContains(t, err, `layers begin with "a." and with "b.", wanted one model`)

	// A long one, which all of the blocks that config.json may claim would repeat, is none.
	d = newDraft(t)
	d.attention(strings.Repeat("x", 1000) + ".layers.0.self_attn")
	m, err := checkpoint.OpenModel(d.write())
	require.NoError(t, err)
	assert.Equal(t, "model.layers.0.self_attn", m.Module(0))
	assert.ErrorIs(t, m.Check(0), checkpoint.ErrWeights)
	require.NoError(t, m.Close())
}

// TestLoadLongCat loads two attention blocks a layer, and their factors.
func TestLoadLongCat(t *testing.T) {
	d := newDraft(t)
	d.config["model_type"], d.config["num_layers"] = "longcat_flash", 2
	var modules []string
	for i := range 4 {
		modules = append(modules, fmt.Sprintf("model.layers.%d.self_attn.%d", i/2, i%2))
		d.attention(modules[i])
	}
	d.attention("model.mtp.layers.0.self_attn") // predicts further tokens, and is none of the layers
	m := d.open(d.write())
	assert.Equal(t, 4, m.Config.Blocks)
	assert.Equal(t, float32(math.Sqrt(160.0/136)), m.Config.Block.QScale)
	assert.Equal(t, float32(math.Sqrt(160.0/128)), m.Config.Block.Core.LatentScale)
	for i, module := range modules {
		d.loads(m, i, module)
	}
	assert.ErrorContains(t, m.Check(4), "attention block 4, and the model has 4")
}

// TestLoadRefuses has what is wrong with a model's tensors, by what is changed.
func TestLoadRefuses(t *testing.T) {
	const kvb, q = module0 + ".kv_b_proj", module0 + ".q_b_proj"
	quant := func(d *draft) map[string]any { return d.config["quantization_config"].(map[string]any) }
	for name, tt := range map[string]struct {
		change func(d *draft)
		err    error
		wants  string
	}{
		"seven heads": {func(d *draft) { d.config["num_attention_heads"] = 7 }, checkpoint.ErrWeights,
			"tensor " + q + ".weight F8_E4M3 [512, 136], wanted [1792, 136] by config.json: num_attention_heads 7, qk_nope_head_dim 192, qk_rope_head_dim 64, q_lora_rank 136"},
		"another rank": {func(d *draft) { d.config["kv_lora_rank"] = 256 }, checkpoint.ErrWeights,
			"tensor " + module0 + ".kv_a_proj_with_mqa.weight F8_E4M3 [192, 160], wanted [320, 160] by config.json: kv_lora_rank 256, qk_rope_head_dim 64, hidden_size 160"},
		"another width":  {func(d *draft) { d.config["hidden_size"] = 161 }, checkpoint.ErrWeights, "q_a_proj.weight F8_E4M3 [136, 160], wanted [136, 161] by config.json: q_lora_rank 136, hidden_size 161"},
		"no q_lora_rank": {func(d *draft) { d.config["q_lora_rank"] = nil }, checkpoint.ErrWeights, "tensor " + module0 + ".q_proj.weight is missing"},
		"q_proj as well": {func(d *draft) { d.add(module0+".q_proj.weight", checkpoint.BF16, false, 2) }, checkpoint.ErrWeights, module0 + ".q_proj.weight BF16 [2] is there, and by config.json q_lora_rank is not null"},
		"no weight":      {func(d *draft) { d.remove(kvb + ".weight") }, checkpoint.ErrWeights, "tensor " + kvb + ".weight is missing"},
		"no norm":        {func(d *draft) { d.remove(module0 + ".kv_a_layernorm.weight") }, checkpoint.ErrWeights, "kv_a_layernorm.weight is missing"},
		"norm of codes": {func(d *draft) {
			x := d.at(module0 + ".kv_a_layernorm.weight")
			x.DType, x.Data = checkpoint.F8_E4M3, x.Data[:128]
		}, checkpoint.ErrWeights, "kv_a_layernorm.weight F8_E4M3 [128], wanted F32, BF16 or F16"},
		"norm of two": {func(d *draft) { d.at(module0 + ".kv_a_layernorm.weight").Shape = []int{1, 128} }, checkpoint.ErrWeights, "kv_a_layernorm.weight BF16 [1, 128], wanted [128]"},
		"no scales":   {func(d *draft) { d.remove(kvb + ".weight_scale_inv") }, checkpoint.ErrWeights, "tensor " + kvb + ".weight F8_E4M3 [896, 128] has no scales: " + kvb + ".weight_scale_inv is missing"},
		"no scales, ignored": {func(d *draft) {
			d.remove(kvb + ".weight_scale_inv")
			quant(d)["ignored_layers"] = []string{kvb}
		}, checkpoint.ErrWeights, "is missing, and config.json says that it is not quantised"},
		"scales twice": {func(d *draft) { d.add(kvb+".weight_scale", checkpoint.F32, true, 7, 1) }, checkpoint.ErrWeights, "tensors " + kvb + ".weight_scale_inv F32 [7, 1] and " + kvb + ".weight_scale F32 [7, 1] are both there"},
		"scales of bf16": {func(d *draft) {
			x := d.at(kvb + ".weight")
			x.DType, x.Data = checkpoint.BF16, make([]byte, 2*len(x.Data))
		}, checkpoint.ErrWeights, kvb + ".weight_scale_inv F32 [7, 1] is there, but " + kvb + ".weight BF16 [896, 128] holds no codes"},
		"scales turned": {func(d *draft) { d.at(kvb + ".weight_scale_inv").Shape = []int{1, 7} }, checkpoint.ErrWeights, kvb + ".weight_scale_inv F32 [1, 7], wanted [7, 1]: one scale for each block of weight_block_size [128, 128] in [896, 128]"},
		"scales in f64": {func(d *draft) {
			x := d.at(kvb + ".weight_scale_inv")
			x.DType, x.Data = checkpoint.F64, make([]byte, 8*7)
		}, checkpoint.ErrWeights, kvb + ".weight_scale_inv F64 [7, 1], wanted F32, BF16 or F8_E8M0"},
		"scale of NaN":     {func(d *draft) { copy(d.at(kvb + ".weight_scale_inv").Data[20:], []byte{0, 0, 0xC0, 0x7F}) }, checkpoint.ErrWeights, kvb + ".weight_scale_inv F32 [7, 1]: fp8: "},
		"a negative scale": {func(d *draft) { d.at(kvb + ".weight_scale_inv").Data[3] |= 0x80 }, checkpoint.ErrWeights, "scale 0 is -"},
		"blocks of 64":     {func(d *draft) { quant(d)["weight_block_size"] = []int{64, 64} }, checkpoint.ErrWeights, "weight_scale_inv F32 [2, 2], wanted [3, 3]"},
		"blocks unsaid":    {func(d *draft) { delete(quant(d), "weight_block_size") }, checkpoint.ErrWeights, "weight_scale_inv F32 [2, 2], wanted [1] or [136, 1], since config.json has no weight_block_size"},
		"not quantised":    {func(d *draft) { delete(d.config, "quantization_config") }, checkpoint.ErrWeights, "holds codes, and config.json has no quantization_config"},
		"awq": {func(d *draft) { quant(d)["quant_method"] = "awq" }, checkpoint.ErrUnsupported,
			"q_a_proj.weight F8_E4M3 [136, 160], by quant_method \"awq\", which is read only where attention is left out: wanted F32, BF16 or F16, or the method fp8 or compressed-tensors"},
		// Attention in 4 bits, of every kind of file.
		"modelopt in FP8": {func(d *draft) { quant(d)["quant_method"] = "modelopt" }, checkpoint.ErrUnsupported, `q_a_proj.weight F8_E4M3 [136, 160], by quant_method "modelopt"`},
		"modelopt in NVFP4": {func(d *draft) {
			quant(d)["quant_method"] = "modelopt"
			d.at(module0 + ".q_a_proj.weight").DType = checkpoint.U8
			d.at(module0 + ".q_a_proj.weight").Shape = []int{136, 160}
			d.add(module0+".q_a_proj.weight_scale_2", checkpoint.F32, true)
		}, checkpoint.ErrUnsupported, "tensor " + module0 + ".q_a_proj.weight_scale_2 F32 [] is there, by quant_method \"modelopt\", and is not read: wanted " + module0 + ".q_a_proj.weight, plain or in FP8 with scales"},
		"modelopt in U8": {func(d *draft) {
			quant(d)["quant_method"] = "modelopt"
			d.at(q + ".weight").DType = checkpoint.U8
			for _, name := range []string{".q_a_proj", ".kv_a_proj_with_mqa", ".kv_b_proj", ".o_proj"} {
				x := d.at(module0 + name + ".weight")
				x.DType, x.Data = checkpoint.BF16, make([]byte, 2*len(x.Data))
				d.remove(module0 + name + ".weight_scale_inv")
			}
		}, checkpoint.ErrUnsupported, "q_b_proj.weight U8 [512, 136], by quant_method \"modelopt\""},
		"compressed-tensors, packed": {func(d *draft) {
			d.config["quantization_config"] = map[string]any{"quant_method": "compressed-tensors", "format": "pack-quantized"}
			d.at(kvb + ".weight").Name = kvb + ".weight_packed"
			d.remove(kvb + ".weight_scale_inv")
			d.at(module0 + ".q_a_proj.weight_scale_inv").Shape = []int{4}
			d.codes = checkpoint.BF16
			for _, name := range []string{".q_a_proj", ".q_b_proj", ".kv_a_proj_with_mqa", ".o_proj"} {
				x := d.at(module0 + name + ".weight")
				x.DType, x.Data = checkpoint.BF16, make([]byte, 2*len(x.Data))
				d.remove(module0 + name + ".weight_scale_inv")
			}
		}, checkpoint.ErrUnsupported, "tensor " + kvb + ".weight_packed F8_E4M3 [896, 128] is there, by quant_method \"compressed-tensors\""},
		"gptq": {func(d *draft) {
			delete(d.config, "quantization_config")
			d.at(module0 + ".q_a_proj.weight").Name = module0 + ".q_a_proj.qweight"
		}, checkpoint.ErrUnsupported, "q_a_proj.qweight F8_E4M3 [136, 160] is there, and is not read"},
		"factors of inputs": {func(d *draft) { d.add(module0+".o_proj.pre_quant_scale", checkpoint.F32, true, 512) }, checkpoint.ErrUnsupported, "o_proj.pre_quant_scale F32 [512] is there, by quant_method \"fp8\""},
		"zero points":       {func(d *draft) { d.add(q+".weight_zero_point", checkpoint.F32, true, 4) }, checkpoint.ErrUnsupported, "q_b_proj.weight_zero_point F32 [4] is there"},
		"weights of I32": {func(d *draft) {
			x := d.at(kvb + ".weight")
			x.DType, x.Data = checkpoint.I32, make([]byte, 4*len(x.Data))
		}, checkpoint.ErrWeights, kvb + ".weight I32 [896, 128], wanted F8_E4M3"},
		"biases missing":    {func(d *draft) { d.config["attention_bias"] = true }, checkpoint.ErrWeights, "tensor " + module0 + ".q_a_proj.bias is missing"},
		"a bias":            {func(d *draft) { d.add(module0+".o_proj.bias", checkpoint.F32, true, 160) }, checkpoint.ErrWeights, module0 + ".o_proj.bias F32 [160] is there, and by config.json attention_bias is false"},
		"a bias too many":   {func(d *draft) { d.add(module0+".kv_b_proj.bias", checkpoint.F32, true, 896) }, checkpoint.ErrWeights, module0 + ".kv_b_proj.bias F32 [896] is there, and by config.json this projection has none"},
		"linear attention":  {func(d *draft) { d.config["layer_types"] = []string{"linear_attention"} }, checkpoint.ErrUnsupported, `config.json: checkpoint: not supported: layer_types[0] is "linear_attention"`},
		"another's tensors": {func(d *draft) { d.tensors = []checkpoint.Tensor{bytesOf("x", 1)} }, checkpoint.ErrWeights, "tensor model.layers.0.self_attn.q_a_proj.weight is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDraft(t)
			d.attention(module0)
			tt.change(d)
			dir := d.write()
			_, _, err := checkpoint.LoadBlock(dir, 0)
			require.ErrorIs(t, err, tt.err)
			assert.ErrorContains(t, err, tt.wants)
			assert.ErrorContains(t, err, dir)
			if m, err := checkpoint.OpenModel(dir); err == nil {
				defer m.Close()
				_, err = m.Block(0)
				require.ErrorIs(t, err, tt.err)
				_, err = m.Fingerprint(0)
				if !strings.Contains(name, "NaN") && !strings.Contains(name, "negative") {
					require.ErrorIs(t, err, tt.err)
					require.ErrorIs(t, m.Check(0), tt.err)
				}
			}
		})
	}
	d := newDraft(t)
	d.attention(module0)
	dir := d.write()
	m := d.open(dir)
	for _, i := range []int{-1, 2, math.MaxInt} {
		require.ErrorIs(t, m.Check(i), checkpoint.ErrWeights)
		_, _, err := checkpoint.LoadLayer(dir, i)
		require.ErrorIs(t, err, checkpoint.ErrWeights)
	}
	require.ErrorContains(t, m.Check(1), "layers.1.self_attn.q_a_proj.weight is missing")
	_, err := checkpoint.OpenModel(t.TempDir())
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "config.json")
	require.NoError(t, os.Remove(filepath.Join(dir, "config.json")))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "config.json"), 0o777))
	_, err = checkpoint.OpenModel(dir)
	assert.ErrorContains(t, err, "no regular file")
	_, _, err = checkpoint.LoadBlock(filepath.Join(dir, "none"), 0)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

// TestLoadTruncated shortens a shard between opening and loading.
func TestLoadTruncated(t *testing.T) {
	d := newDraft(t)
	d.attention(module0)
	dir := d.write()
	m := d.open(dir)
	require.NoError(t, m.Check(0))
	paths, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	for _, path := range paths {
		require.NoError(t, os.Truncate(path, 4096))
	}
	_, err = m.Block(0)
	require.ErrorIs(t, err, checkpoint.ErrRead)
	_, err = m.Layer(0)
	require.ErrorIs(t, err, checkpoint.ErrRead)
	_, err = m.Fingerprint(0)
	require.ErrorIs(t, err, checkpoint.ErrRead)
	assert.ErrorContains(t, err, ".safetensors: ")
}

// answer is what a block computes of some hidden states, which come in two calls.
func answer(t *testing.T, m *checkpoint.Model, b *mla.Block, calls ...int) ([]float32, error) {
	t.Helper()
	c := b.Config()
	tokens := 0
	for _, n := range calls {
		tokens += n
	}
	table, err := m.Config.Rope.Table(tokens)
	require.NoError(t, err)
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 16, Width: c.Core.Width(), Format: kvpaged.F32, Pages: 8})
	require.NoError(t, err)
	defer cache.Close()
	ws, err := mla.NewWorkspace(mla.Limits{Tokens: tokens, Seqs: 1, Context: tokens}, nil, b)
	require.NoError(t, err)
	defer ws.Close()
	seq, err := cache.NewSeq()
	require.NoError(t, err)
	hidden, out := make([]float32, tokens*c.Hidden), make([]float32, tokens*c.Hidden)
	for i := range hidden {
		hidden[i] = float32(i%7)/7 - 0.4
	}
	at := 0
	for _, n := range calls {
		require.NoError(t, seq.Reserve(n))
		piece := func(x []float32) mla.Rows { return mla.RowsF32(x[at*c.Hidden : (at+n)*c.Hidden]) }
		err := b.Forward(context.Background(), ws, piece(out), piece(hidden), mla.Batch{
			Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, uint32(n)}, Freqs: mla.RowsF32(table),
		})
		if err != nil {
			return nil, err
		}
		require.NoError(t, seq.Commit(n))
		at += n
	}
	return out, nil
}

// TestQuantisedExperts runs the attention of models whose experts are quantised in ways that are
// not read, which is no business of attention: it gives what it gives without them.
func TestQuantisedExperts(t *testing.T) {
	run := func(change func(d *draft)) []float32 {
		d := newDraft(t)
		d.codes = checkpoint.BF16
		delete(d.config, "quantization_config")
		d.attention(module0)
		change(d)
		m := d.open(d.write())
		d.loads(m, 0, module0)
		b, err := m.Block(0)
		require.NoError(t, err)
		defer b.Close()
		out, err := answer(t, m, b, 3, 1)
		require.NoError(t, err)
		return out
	}
	want := run(func(*draft) {})
	expert := func(d *draft, suffix string, of checkpoint.DType, size int, shape ...int) {
		d.tensors = append(d.tensors, checkpoint.Tensor{Name: "model.layers.0.mlp.experts.0.up_proj" + suffix, DType: of, Shape: shape, Data: make([]byte, size)})
	}
	for name, change := range map[string]func(d *draft){
		"NVFP4 of modelopt": func(d *draft) {
			d.config["quantization_config"] = map[string]any{"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": []string{"lm_head", "model.layers.0.self_attn*"},
				"kv_cache_scheme": map[string]any{"dynamic": false, "num_bits": 8, "type": "float"}, "producer": map[string]any{"name": "modelopt", "version": "0.33.0"},
				"config_groups": map[string]any{"group_0": map[string]any{"weights": map[string]any{"num_bits": 4, "type": "float", "group_size": 16}, "input_activations": map[string]any{"num_bits": 4}, "targets": []string{"Linear"}}}}
			expert(d, ".weight", checkpoint.U8, 8*80, 8, 80)
			expert(d, ".weight_scale", checkpoint.F8_E4M3, 8*10, 8, 10)
			expert(d, ".weight_scale_2", checkpoint.F32, 4)
			expert(d, ".input_scale", checkpoint.F32, 4)
		},
		"AWQ": func(d *draft) {
			d.config["quantization_config"] = map[string]any{"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm", "modules_to_not_convert": []string{"self_attn"}}
			expert(d, ".qweight", checkpoint.I32, 4*160, 160, 1)
			expert(d, ".qzeros", checkpoint.I32, 4*5, 5, 1)
			expert(d, ".scales", checkpoint.F16, 2*40, 5, 8)
		},
		"int4 of compressed-tensors": func(d *draft) {
			d.config["quantization_config"] = map[string]any{"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": []string{"re:.*self_attn.*"},
				"config_groups": map[string]any{"group_0": map[string]any{"weights": map[string]any{"num_bits": 4, "type": "int", "group_size": 32, "block_structure": nil}}}}
			expert(d, ".weight_packed", checkpoint.I32, 4*160, 8, 20)
			expert(d, ".weight_scale", checkpoint.BF16, 2*40, 8, 5)
		},
		// Attention's own input_scale tells how its inputs may be rounded, and they are not.
		"scales of inputs": func(d *draft) {
			d.config["quantization_config"] = map[string]any{"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": nil}
			d.add(module0+".o_proj.input_scale", checkpoint.F32, true)
		},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, want, run(change)) })
	}
}

// TestIndexer runs a block of a model that has an indexer: dense up to index_topk keys, then
// an error.
func TestIndexer(t *testing.T) {
	d := newDraft(t)
	d.config["model_type"], d.config["index_topk"] = "glm_moe_dsa", 6
	d.attention(module0)
	m := d.open(d.write())
	b, err := m.Block(0)
	require.NoError(t, err)
	defer b.Close()
	_, err = answer(t, m, b, 5, 1)
	require.NoError(t, err)
	_, err = answer(t, m, b, 5, 1, 1)
	require.ErrorIs(t, err, mla.ErrIndexer)
}

func TestPacked(t *testing.T) {
	d := newDraft(t)
	d.attention(module0)
	d.attention(module1)
	dir := d.write()
	m := d.open(dir)
	b, err := m.Block(0)
	require.NoError(t, err)
	defer b.Close()
	want, err := answer(t, m, b, 4, 1)
	require.NoError(t, err)

	path := filepath.Join(dir, "block-0.lamina")
	require.NoError(t, m.SavePacked(0, b, path))
	loaded, err := m.LoadPacked(0, path)
	require.NoError(t, err)
	got, err := answer(t, m, loaded, 4, 1)
	require.NoError(t, err)
	require.NoError(t, loaded.Close())
	assert.Equal(t, want, got)

	refused := func(m *checkpoint.Model, i int, path string, err error, wants string) {
		t.Helper()
		_, got := m.LoadPacked(i, path)
		require.ErrorIs(t, got, err)
		assert.ErrorContains(t, got, wants)
	}
	refused(m, 1, path, mla.ErrStale, "packed from")
	refused(m, 0, filepath.Join(dir, "none"), fs.ErrNotExist, "none")
	refused(m, 0, filepath.Join(dir, "config.json"), mla.ErrPacked, "magic")
	refused(m, 9, path, checkpoint.ErrWeights, "attention block 9")

	// The same tensors in other files are the same source.
	d.shard = 0
	moved := d.open(d.write())
	same, err := moved.LoadPacked(0, path)
	require.NoError(t, err)
	require.NoError(t, same.Close())
	// Another mask or arithmetic is the caller's business, another geometry is not.
	moved.Config.Block.Core.Mask, moved.Config.Block.Core.Compute = mla.Mask{Kind: mla.MaskNull}, mla.ComputeBF16
	same, err = moved.LoadPacked(0, path)
	require.NoError(t, err)
	require.Equal(t, mla.ComputeBF16, same.Config().Core.Compute)
	require.NoError(t, same.Close())
	same, err = moved.Block(0)
	require.NoError(t, err)
	require.Equal(t, mla.ComputeBF16, same.Config().Core.Compute)
	require.NoError(t, same.Close())

	// One bit of one weight, of one scale or of a norm makes another.
	for _, name := range []string{".o_proj.weight", ".q_b_proj.weight_scale_inv", ".kv_a_layernorm.weight"} {
		x := d.at(module0 + name)
		x.Data[1] ^= 1
		refused(d.open(d.write()), 0, path, mla.ErrStale, "packed from")
		x.Data[1] ^= 1
	}
	prints := map[mla.Fingerprint]bool{}
	for i := range 2 {
		f, err := m.Fingerprint(i)
		require.NoError(t, err)
		prints[f] = true
	}
	assert.Len(t, prints, 2)
	damaged, err := os.ReadFile(path)
	require.NoError(t, err)
	damaged[len(damaged)/2] ^= 1
	require.NoError(t, os.WriteFile(path, damaged, 0o600))
	refused(m, 0, path, mla.ErrPacked, path)
}

// TestBrokenModels opens the reference data's directories whose configuration says that they
// cannot be used, whatever the tensors are.
func TestBrokenModels(t *testing.T) {
	for name, wants := range map[string]string{
		"missing-shard": "model-00001-of-00001.safetensors: ",
		"shard-outside": `tensor "model.layers.0.self_attn.kv_a_proj_with_mqa.weight_scale_inv": the index names the file "../../outside.safetensors"`,
	} {
		dir := filepath.Join("testdata", "broken", name)
		_, err := checkpoint.OpenModel(dir)
		assert.ErrorContains(t, err, wants, name)
		assert.ErrorContains(t, err, dir, name)
	}
}
