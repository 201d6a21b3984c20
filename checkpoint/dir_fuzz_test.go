package checkpoint_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
	"github.com/stretchr/testify/require"
)

// tinyDir is a whole directory as text, so small that a fuzzer changes what matters: config.json,
// the index, and the headers of two shards. An empty index is left out, and the first shard is then
// model.safetensors.
type tinyDir struct{ config, index, first, second string }

// tinyDirs are of every family, and of every way in which weights are stored.
func tinyDirs(t testing.TB) map[string]tinyDir {
	const sizes = `"hidden_size":6,"num_hidden_layers":1,"num_attention_heads":2,"qk_nope_head_dim":3,"qk_rope_head_dim":2,"v_head_dim":2,"kv_lora_rank":4`
	const fp8 = `,"quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[4,4]}`
	const yarn = `,"max_position_embeddings":64,"rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":16,"mscale":1,"mscale_all_dim":1,"beta_fast":32,"beta_slow":1}`
	one := func(config, prefix string, lora int, dtype, scale string, bias, single bool) tinyDir {
		d := tinyDir{config: "{" + config + "}"}
		type tensor struct {
			name, dtype string
			shape       []int
		}
		var all []tensor
		matrix := func(name string, rows, cols int) {
			all = append(all, tensor{prefix + name + ".weight", dtype, []int{rows, cols}})
			if scale != "" {
				all = append(all, tensor{prefix + name + ".weight_scale_inv", scale, []int{(rows + 3) / 4, (cols + 3) / 4}})
			}
		}
		vector := func(name string, n int) { all = append(all, tensor{prefix + name, "BF16", []int{n}}) }
		if lora > 0 {
			matrix("q_a_proj", lora, 6)
			vector("q_a_layernorm.weight", lora)
			matrix("q_b_proj", 10, lora)
		} else {
			matrix("q_proj", 10, 6)
		}
		matrix("kv_a_proj_with_mqa", 6, 6)
		vector("kv_a_layernorm.weight", 4)
		matrix("kv_b_proj", 10, 4)
		matrix("o_proj", 6, 4)
		if bias {
			vector("kv_a_proj_with_mqa.bias", 6)
			vector("o_proj.bias", 6)
		}
		cut := len(all) / 2
		if single {
			cut = len(all)
		}
		weightMap := map[string]string{}
		header := func(all []tensor, file string) string {
			var b strings.Builder
			b.WriteString("{")
			at := 0
			for i, x := range all {
				if i > 0 {
					b.WriteString(",")
				}
				n := bytesOfType[x.dtype]
				for _, d := range x.shape {
					n *= d
				}
				text, err := json.Marshal(map[string]any{"dtype": x.dtype, "shape": x.shape, "data_offsets": []int{at, at + n}})
				require.NoError(t, err)
				b.WriteString(`"` + x.name + `":` + string(text))
				at += n
				weightMap[x.name] = file
			}
			return b.String() + "}"
		}
		d.first, d.second = header(all[:cut], "a"), header(all[cut:], "b")
		if !single {
			text, err := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 1}, "weight_map": weightMap})
			require.NoError(t, err)
			d.index = string(text)
		}
		return d
	}
	const module, longcat = "model.layers.0.self_attn.", "model.layers.0.self_attn.1."
	return map[string]tinyDir{
		"v2":       one(`"model_type":"deepseek_v2",`+sizes+yarn, module, 0, "BF16", "", false, true),
		"v3":       one(`"model_type":"deepseek_v3","q_lora_rank":3,`+sizes+yarn+fp8, module, 3, "F8_E4M3", "F32", false, false),
		"v3 ue8m0": one(`"model_type":"deepseek_v3","q_lora_rank":3,"attention_bias":false,`+sizes+fp8, "language_model."+module, 3, "F8_E4M3", "F8_E8M0", false, false),
		"v32":      one(`"model_type":"deepseek_v32","q_lora_rank":3,"index_topk":3,`+sizes+fp8, module, 3, "F8_E5M2", "BF16", false, false),
		"glm":      one(`"model_type":"glm4_moe_lite","q_lora_rank":null,"attention_bias":true,"rope_interleave":false,`+sizes, module, 0, "F32", "", true, false),
		"minicpm3": one(`"model_type":"minicpm3","q_lora_rank":3,"max_position_embeddings":64,`+sizes+`,"rope_scaling":{"type":"longrope","original_max_position_embeddings":16,"short_factor":[1],"long_factor":[2]}`, module, 3, "F16", "", false, false),
		"mistral4": one(`"model_type":"x","text_config":{"model_type":"mistral4","q_lora_rank":3,`+sizes+`,"rope_parameters":{"rope_type":"default","rope_theta":10000,"llama_4_scaling_beta":0.1,"original_max_position_embeddings":2}}`, module, 3, "BF16", "", false, false),
		"longcat":  one(`"model_type":"longcat_flash","q_lora_rank":3,"num_layers":1,`+sizes, longcat, 3, "BF16", "", false, false),
		"youtu":    one(`"model_type":"youtu","q_lora_rank":3,`+sizes, module, 3, "BF16", "", false, false),
	}
}

var bytesOfType = map[string]int{"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}

// maxTinyData is how much data a shard gets, whatever its header says of more.
const maxTinyData = 1 << 14

// shardOf is a file of that header: its length before it and behind it as much data as its offsets
// say, of which every element of any type is finite, and near 1 in scales that are powers of two.
func shardOf(header string) []byte {
	var all map[string]struct {
		DType   string   `json:"dtype"`
		Offsets []uint64 `json:"data_offsets"`
	}
	var data []byte
	if json.Unmarshal([]byte(header), &all) == nil {
		for _, name := range slices.Sorted(maps.Keys(all)) { // in an order, should they overlap
			x := all[name]
			for _, end := range x.Offsets {
				for uint64(len(data)) < min(end, maxTinyData) {
					data = append(data, byte(0x34+len(data)%9))
				}
			}
			if x.DType == "F8_E8M0" && len(x.Offsets) == 2 {
				for at := x.Offsets[0]; at < min(x.Offsets[1], uint64(len(data))); at++ {
					data[at] = byte(0x7C + at%4)
				}
			}
		}
	}
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

// put writes the directory.
func (d tinyDir) put(t testing.TB, dir string) {
	for name, b := range map[string][]byte{
		"config.json": []byte(d.config), "a": shardOf(d.first), "b": shardOf(d.second), "model.safetensors.index.json": []byte(d.index), "model.safetensors": nil,
	} {
		if d.index == "" {
			switch name {
			case "a", "model.safetensors.index.json":
				b = nil
			case "model.safetensors":
				b = shardOf(d.first)
			}
		}
		path := filepath.Join(dir, name)
		err := os.Remove(path)
		require.True(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
		if b != nil {
			require.NoError(t, os.WriteFile(path, b, 0o600))
		}
	}
}

// said reports whether an error is one of those that the package promises.
func said(err error) bool {
	return slices.ContainsFunc([]error{
		checkpoint.ErrFormat, checkpoint.ErrLimit, checkpoint.ErrConfig, checkpoint.ErrUnsupported, checkpoint.ErrWeights,
		mla.ErrConfig, mla.ErrWeights, fs.ErrNotExist, syscall.ENAMETOOLONG,
	}, func(kind error) bool { return errors.Is(err, kind) })
}

// run is what a block computes of three tokens and one more.
func run(m *checkpoint.Model, b *mla.Block) ([]float32, error) {
	const tokens = 4
	c := b.Config()
	table, err := m.Config.Rope.Table(tokens)
	if err != nil {
		return nil, err
	}
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: tokens, Width: c.Core.Width(), Format: kvpaged.F32, Pages: 1})
	if err != nil {
		return nil, err
	}
	defer cache.Close()
	plan, err := b.Plan(mla.Limits{Tokens: 3, Seqs: 1, Context: tokens, Buffer: 4}, nil)
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	seq, err := cache.NewSeq()
	if err != nil {
		return nil, err
	}
	hidden, out := make([]float32, tokens*c.Hidden), make([]float32, tokens*c.Hidden)
	for i := range hidden {
		hidden[i] = float32(i%7)/7 - 0.4
	}
	at := 0
	for _, n := range []int{3, 1} {
		if err := seq.Reserve(n); err != nil {
			return nil, err
		}
		piece := func(x []float32) mla.Rows { return mla.RowsF32(x[at*c.Hidden : (at+n)*c.Hidden]) }
		err := plan.Forward(context.Background(), piece(out), piece(hidden), mla.Batch{
			Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, uint32(n)}, Freqs: mla.RowsF32(table),
		})
		if err != nil {
			return nil, err
		}
		if err := seq.Commit(n); err != nil {
			return nil, err
		}
		at += n
	}
	return out, nil
}

// FuzzDir takes a directory as one thing, from its files to the output of a block, whatever its
// configuration, its index and its headers say: an error that the package promises, or a block that
// computes the same every time and that loads as Check said. Neither costs more than a multiple of
// what the files hold. What the test itself wrote must run, and give finite numbers.
func FuzzDir(f *testing.F) {
	seeds := tinyDirs(f)
	whole := map[tinyDir]string{}
	for name, d := range seeds {
		whole[d] = name
		f.Add(d.config, d.index, d.first, d.second)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, config, index, first, second string) {
		d := tinyDir{config, index, first, second}
		if len(config)+len(index)+len(first)+len(second) > 1<<16 {
			return
		}
		name, untouched := whole[d]
		d.put(t, dir)
		var m *checkpoint.Model
		var err error
		n := allocated(func() { m, err = checkpoint.OpenModel(dir) })
		require.Less(t, n, int64(4<<20), "allocated to open")
		if err != nil {
			require.True(t, said(err), "%v", err)
			require.False(t, untouched, "%s: %v", name, err)
			return
		}
		defer m.Close()
		runs := 0
		for i := range min(m.Config.Blocks+m.Config.Predict, 4) {
			check := m.Check(i)
			var b *mla.Block
			n := allocated(func() { b, err = m.Block(i) })
			require.Less(t, n, int64(8<<20), "allocated to load")
			if check != nil {
				require.True(t, said(check), "%v", check)
				require.Error(t, err)
				continue
			}
			if err != nil {
				require.True(t, said(err), "%v", err)
				continue
			}
			var out []float32
			n = allocated(func() { out, err = run(m, b) })
			require.Less(t, n, int64(16<<20), "allocated to run")
			if err != nil {
				require.True(t, said(err) || errors.Is(err, mla.ErrIndexer), "%v", err)
				require.True(t, !untouched || name == "v32" && errors.Is(err, mla.ErrIndexer), "%s: %v", name, err)
				runs++
				require.NoError(t, b.Close())
				continue
			}
			again, err := run(m, b)
			require.NoError(t, err)
			for j, x := range out {
				y := again[j]
				require.True(t, math.Float32bits(x) == math.Float32bits(y) || x != x && y != y, "out[%d] is %v, then %v", j, x, y)
				require.False(t, untouched && (math.IsNaN(float64(x)) || math.IsInf(float64(x), 0)), "%s: out[%d] is %v", name, j, x)
			}
			runs++
			require.NoError(t, b.Close())
		}
		require.True(t, !untouched || runs == 1, "%s: %d blocks run", name, runs)
	})
}

// TestTinyDirs: the seeds of FuzzDir are whole, each with the one block that they have.
func TestTinyDirs(t *testing.T) {
	for name, d := range tinyDirs(t) {
		dir := t.TempDir()
		d.put(t, dir)
		m, err := checkpoint.OpenModel(dir)
		require.NoError(t, err, name)
		i := m.Config.Blocks - 1
		b, err := m.Block(i)
		require.NoError(t, err, name)
		out, err := run(m, b)
		if name == "v32" {
			require.ErrorIs(t, err, mla.ErrIndexer, "the fourth key is past index_topk")
		} else {
			require.NoError(t, err, name)
			require.False(t, slices.Equal(out, make([]float32, len(out))), "%s: all is zero", name)
		}
		require.NoError(t, b.Close())
		require.NoError(t, m.Close())
	}
}
