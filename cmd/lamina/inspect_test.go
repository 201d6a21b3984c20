package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/checkpoint"
)

// printed is what -json prints.
type printed struct {
	inspection
	Metadata map[string]string `json:"metadata"`
	Tensors  []namedTensor     `json:"tensors"`
}

type namedTensor struct {
	Name string `json:"name"`
	foundTensor
}

// inspected runs the program on a path with -json.
func inspected(t *testing.T, path string) (i printed, status int, stderr string) {
	t.Helper()
	status, out, stderr := command("inspect", path, "-json")
	if out != "" {
		d := json.NewDecoder(strings.NewReader(out))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&i))
		require.Equal(t, 1, strings.Count(out, "\n"), "one object on one line")
	}
	return i, status, stderr
}

// TestContextCosts has the figures of DeepSeek-V3, by hand.
func TestContextCosts(t *testing.T) {
	costs := map[string]contextCost{}
	for _, c := range contextCosts(576, 61) {
		costs[c.Format] = c
	}
	assert.Equal(t, contextCost{"bf16", 0, 1152, 70272}, costs["bf16"])
	assert.Equal(t, contextCost{"f32", 0, 2304, 140544}, costs["f32"])
	assert.Equal(t, contextCost{"fp8_unit", 0, 576, 35136}, costs["fp8_unit"])
	assert.Equal(t, contextCost{"fp8_token", 128, 576 + 5*4, 61 * 596}, costs["fp8_token"])
	assert.Equal(t, contextCost{"ds_mla_656", 0, 656, 40016}, costs["ds_mla_656"])
	assert.NotContains(t, costs, "v4_584", "whose rows have 512 values")
}

func TestInspectFile(t *testing.T) {
	path := filepath.Join("testdata", "merge_plain.safetensors")
	i, status, stderr := inspected(t, path)
	require.Equal(t, statusOK, status, stderr)
	assert.Empty(t, stderr)
	assert.Equal(t, []string{path, "file"}, []string{i.Path, i.Kind})
	assert.Equal(t, "merge", i.Metadata["op"])
	assert.Nil(t, i.Model)
	f, err := checkpoint.Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Len(t, i.Tensors, f.Len())
	var sum int64
	for _, found := range i.Tensors {
		x, ok := f.Tensor(found.Name)
		require.True(t, ok)
		size, err := x.Size()
		require.NoError(t, err)
		assert.Equal(t, namedTensor{x.Name, foundTensor{x.DType.String(), x.Shape, size, "merge_plain.safetensors"}}, found)
		sum += size
	}
	assert.Equal(t, sum, i.Bytes)
	assert.Equal(t, []foundFile{{"merge_plain.safetensors", f.Len(), sum, 0}}, i.Files)
	assert.Equal(t, []foundType{{"F32", f.Len(), sum}}, i.Types)

	status, out, stderr := command("inspect", path)
	require.Equal(t, statusOK, status, stderr)
	for _, want := range []string{": file, ", "metadata op = \"merge\"", "parts.output", "\ntensors\n"} {
		assert.Contains(t, out, want)
	}
}

func TestInspectDirectory(t *testing.T) {
	m := newTinyModel(t)
	i, status, stderr := inspected(t, m.dir)
	require.Equal(t, statusOK, status, stderr)
	assert.Empty(t, stderr)
	assert.Equal(t, "directory", i.Kind)
	assert.Equal(t, foundModel{
		Type: "deepseek_v3", Layers: 2, Blocks: 2, Quantisation: "fp8, e4m3, blocks of 16 x 8", Hidden: tinyHidden, Heads: tinyHeads, Nope: tinyNope,
		Rope: tinyRope, V: tinyV, Latent: tinyLatent, QLora: tinyLora, RopeStyle: "interleaved", Scale: 0.28867513, Positions: 64,
	}, *i.Model)
	const values = 12*20 + 12 + 36*12 + 20*20 + 16 + 42*16 + 20*18
	assert.Equal(t, []foundBlock{
		{0, "model.layers.0.self_attn", "BF16", 2 * values, true, ""},
		{1, "model.layers.1.self_attn", "F8_E4M3", values + 28 + 4*(3+6+6+6+6), true, ""},
	}, i.Blocks)
	assert.Len(t, i.Tensors, 7+7+5)
	assert.Equal(t, []foundFile{{"model.safetensors", 19, i.Bytes, 0}}, i.Files)
	assert.Equal(t, i.Blocks[0].Bytes+i.Blocks[1].Bytes, i.Bytes)
	assert.Equal(t, contextCost{"bf16", 0, 40, 80}, i.Context[0])

	status, out, stderr := command("inspect", m.dir)
	require.Equal(t, statusOK, status, stderr)
	for _, want := range []string{
		": directory, 19 tensors, ", "model deepseek_v3, 2 layers, 2 attention blocks\n", "hidden 20, q_lora 12, heads 3, nope 8, rope 4 interleaved, v 6, latent 16\n",
		"  0       model.layers.0.self_attn  BF16  4.3 kB  runs\n", "  1       model.layers.1.self_attn  F8_E4M3  ",
		"context: bytes per token      one layer  all 2 layers\n", "  bf16                               40         80\n",
		"model.layers.1.self_attn.o_proj.weight_scale_inv",
	} {
		assert.Contains(t, out, want)
	}
}

// TestInspectBeside: a path beside or above a directory gets its name, and what a directory holds
// beside the model is said.
func TestInspectBeside(t *testing.T) {
	m := newTinyModel(t)
	const index = "model.safetensors.index.json"
	text := `{"weight_map":{"model.layers.0.self_attn.o_proj.weight":"model.safetensors"}}`
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, index), []byte(text), 0o600))
	for _, name := range []string{"config.json", index} {
		status, out, stderr := command("inspect", filepath.Join(m.dir, name))
		assert.Equal(t, statusUnusable, status)
		assert.Empty(t, out)
		assert.Contains(t, stderr, name+": it is a part of a checkpoint: give its directory, "+m.dir+"\n")
	}
	status, _, stderr := command("inspect", filepath.Dir(m.dir))
	assert.Equal(t, statusUnusable, status)
	assert.Contains(t, stderr, "these directories below it do: "+m.dir+"\n")

	for _, name := range []string{"consolidated.safetensors", "old\x1b.safetensors"} {
		require.NoError(t, checkpoint.WriteFile(filepath.Join(m.dir, name), nil, nil))
	}
	i, status, _ := inspected(t, m.dir)
	assert.Equal(t, statusUnusable, status, "tensors are missing")
	require.Len(t, i.Files, 1)
	assert.Equal(t, []int{1, 18}, []int{i.Files[0].Tensors, i.Files[0].LeftOut})
	assert.Equal(t, []string{"consolidated.safetensors", "old\x1b.safetensors"}, i.Unread)
	_, out, _ := command("inspect", m.dir)
	for _, want := range []string{"  and 18 that the index leaves out\n", "  consolidated.safetensors                 none of the model's: not read\n", `"old\x1b.safetensors" `} {
		assert.Contains(t, out, want)
	}
	assert.NotContains(t, out, "\x1b")

	// Which of two is the model, inspect does not choose either.
	require.NoError(t, os.WriteFile(filepath.Join(m.dir, index), []byte(strings.Replace(text, "model.safetensors", "other.safetensors", 1)), 0o600))
	status, _, stderr = command("inspect", m.dir)
	assert.Equal(t, statusUnusable, status)
	assert.Contains(t, stderr, "it holds model.safetensors and "+index)
}

// TestInspectPredict: blocks that predict further tokens are listed if they are there, and are no
// fault if they are not.
func TestInspectPredict(t *testing.T) {
	m := newTinyModel(t)
	m.config["num_nextn_predict_layers"] = 1
	m.writeConfig(t)
	i, status, stderr := inspected(t, m.dir)
	require.Equal(t, statusOK, status, stderr)
	assert.Equal(t, []int{2, 0, 2}, []int{i.Model.Blocks, i.Model.Predict, len(i.Blocks)})
	m.config["num_hidden_layers"] = 1
	m.writeConfig(t)
	i, status, stderr = inspected(t, m.dir)
	require.Equal(t, statusOK, status, stderr)
	assert.Equal(t, []int{1, 1, 2}, []int{i.Model.Blocks, i.Model.Predict, len(i.Blocks)})
	assert.Equal(t, 40, i.Context[0].All, "of the one layer that is no prediction")
	_, out, _ := command("inspect", m.dir)
	assert.Contains(t, out, "model deepseek_v3, 1 layer, 1 attention block and 1 that predict further tokens\n")
}

// TestInspectFaults: what cannot be used is status 2 and named, beside all that can be told.
func TestInspectFaults(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, m *tinyModel)
		says  string
		runs  []bool // of the blocks, nil where the model is none that is known
	}{
		"architecture": {func(_ *testing.T, m *tinyModel) { m.config["model_type"] = "llama" }, "llama", nil},
		"method": {func(_ *testing.T, m *tinyModel) {
			m.config["quantization_config"].(map[string]any)["quant_method"] = "awq"
		}, "awq", []bool{true, false}}, // whose first block is plain
		"no config": {func(t *testing.T, m *tinyModel) { require.NoError(t, os.Remove(filepath.Join(m.dir, "config.json"))) }, "config.json", nil},
		"heads":     {func(_ *testing.T, m *tinyModel) { m.config["num_attention_heads"] = 5 }, "q_b_proj", []bool{false, false}},
		"layers":    {func(_ *testing.T, m *tinyModel) { m.config["num_hidden_layers"] = 3 }, "model.layers.2.self_attn", []bool{true, true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			m := newTinyModel(t)
			c.spoil(t, m)
			if name != "no config" {
				m.writeConfig(t)
			}
			i, status, stderr := inspected(t, m.dir)
			assert.Equal(t, statusUnusable, status)
			assert.Contains(t, stderr, m.dir)
			assert.Contains(t, stderr, c.says)
			assert.Len(t, i.Tensors, 19, "what there is, all the same")
			require.NotEmpty(t, i.Faults)
			assert.Equal(t, len(i.Faults), strings.Count(stderr, "\n"))
			var runs []bool
			for _, b := range i.Blocks {
				runs = append(runs, b.Runs)
				assert.Equal(t, b.Runs, b.Why == "")
			}
			assert.Equal(t, c.runs, runs)
			status, out, same := command("inspect", m.dir)
			assert.Equal(t, statusUnusable, status)
			assert.Equal(t, stderr, same)
			assert.Equal(t, runs != nil, strings.Contains(out, "does not run: "), out)
		})
	}
	// Of many faults the first are printed.
	m := newTinyModel(t)
	m.config["num_hidden_layers"] = 2 + manyFaults + 5
	m.writeConfig(t)
	i, status, stderr := inspected(t, m.dir)
	assert.Equal(t, statusUnusable, status)
	assert.Len(t, i.Faults, manyFaults+5)
	assert.Equal(t, manyFaults+1, strings.Count(stderr, "\n"))
	assert.Contains(t, stderr, "lamina inspect: and 5 faults more\n")

	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{}, "0 paths are given, wanted one file or directory"},
		{[]string{"a", "b"}, "2 paths are given"},
		{[]string{"-fast", "a"}, "flag provided but not defined: -fast"},
		{[]string{"no/such/file"}, "no such file"},
		{[]string{filepath.Join("testdata", "hashes.json")}, "hashes.json: checkpoint: malformed safetensors"},
		{[]string{"testdata"}, "testdata"},
	} {
		status, out, stderr := command(append([]string{"inspect"}, c.args...)...)
		assert.Equal(t, statusUnusable, status)
		assert.Empty(t, out)
		assert.Contains(t, stderr, c.says)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
	}
}

// TestInspectMany: many tensors that differ in numbers have one line, unless all are asked for.
func TestInspectMany(t *testing.T) {
	var all []checkpoint.Tensor
	for i := range manyTensors + 1 {
		all = append(all, float32s(fmt.Sprintf("model.layers.%d.mlp.experts.%d.w1.weight", i%3, i), checkpoint.Shape{2, 3}, make([]float32, 6)))
	}
	all = append(all, float32s("model.norm.weight", checkpoint.Shape{1}, []float32{1}))
	path := filepath.Join(t.TempDir(), "many.safetensors")
	require.NoError(t, checkpoint.WriteFile(path, all, nil))
	status, out, stderr := command("inspect", path)
	require.Equal(t, statusOK, status, stderr)
	assert.Contains(t, out, ": file, 202 tensors, 4.8 kB\n")
	assert.Contains(t, out, "  model.layers.*.mlp.experts.*.w1.weight  F32      [2, 3] x 201             4.8 kB  many.safetensors\n")
	assert.NotContains(t, out, "experts.7.")
	status, out, stderr = command("inspect", path, "-tensors")
	require.Equal(t, statusOK, status, stderr)
	assert.Contains(t, out, "  model.layers.1.mlp.experts.7.w1.weight ")
	i, _, _ := inspected(t, path)
	assert.Len(t, i.Tensors, 202)
}

// TestInspectHostile: what a header claims is printed at a small part of its size, whatever it
// is, and without what terminals obey.
func TestInspectHostile(t *testing.T) {
	const n = 100_000
	empty := checkpoint.Shape{0}
	many := make([]checkpoint.Tensor, n)
	for i := range many {
		many[i] = checkpoint.Tensor{Name: fmt.Sprintf("%x", i), DType: checkpoint.U8, Shape: empty}
	}
	long := strings.Repeat("é.\n", 1<<20)
	for name, c := range map[string]struct {
		tensors  []checkpoint.Tensor
		metadata map[string]string
	}{
		"tensors":  {many, nil},
		"name":     {append(many[:manyTensors:manyTensors], checkpoint.Tensor{Name: long, DType: checkpoint.U8, Shape: empty}), nil},
		"metadata": {nil, map[string]string{long: long + "\""}},
	} {
		path := filepath.Join(t.TempDir(), "x.safetensors")
		require.NoError(t, checkpoint.WriteFile(path, c.tensors, c.metadata))
		f, err := checkpoint.Open(path)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		for _, flag := range []string{"-json=false", "-json", "-tensors"} {
			var out discarded
			var before, during runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			out.after = func() { runtime.GC(); runtime.ReadMemStats(&during) }
			require.Equal(t, statusOK, runInspect(t.Context(), []string{path, flag}, &out, &out), "%s %s", name, flag)
			grown := int64(during.HeapAlloc) - int64(before.HeapAlloc)
			info, err := os.Stat(path)
			require.NoError(t, err)
			assert.Less(t, grown, info.Size()+4<<20, "%s %s: kept while it prints", name, flag)
			if flag != "-json" && name != "tensors" {
				assert.Less(t, out.n, 1<<20, "%s %s", name, flag)
			}
		}
		i, status, stderr := inspected(t, path)
		require.Equal(t, statusOK, status, stderr)
		require.Len(t, i.Tensors, len(c.tensors))
		for k, x := range c.tensors {
			require.Equal(t, x.Name, i.Tensors[k].Name)
		}
		assert.Equal(t, c.metadata, i.Metadata)
	}

	path := filepath.Join(t.TempDir(), "x.safetensors")
	name := "\x1b[31mred\nline"
	require.NoError(t, checkpoint.WriteFile(path, []checkpoint.Tensor{{Name: name, DType: checkpoint.U8, Shape: empty}}, map[string]string{name: name}))
	_, out, _ := command("inspect", path)
	assert.NotContains(t, out, "\x1b")
	assert.Equal(t, 2, strings.Count(out, `"\x1b[31mred\nline" `))
	i, _, _ := inspected(t, path)
	assert.Equal(t, name, i.Tensors[0].Name)
}

// discarded counts what is written, and looks around after the first of it.
type discarded struct {
	n     int
	after func()
}

func (d *discarded) Write(p []byte) (int, error) {
	if d.n += len(p); d.after != nil {
		d.after()
		d.after = nil
	}
	return len(p), nil
}

func TestAmounts(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 999: "999 B", 1000: "1.0 kB", 1_500_000: "1.50 MB", 688_586_727_753: "688.59 GB"} {
		assert.Equal(t, want, amount(n))
	}
	assert.Equal(t, "70,272", thousands(70272))
	assert.Equal(t, []string{"1 layer", "1,000 layers"}, []string{counted(1, "layer"), counted(1000, "layer")})
	assert.Equal(t, "model.layers.*.self_attn.*.q_b.weight", pattern("model.layers.12.self_attn.0.q_b.weight"))
	assert.Equal(t, "a..b1.*", pattern("a..b1.07"))
}
