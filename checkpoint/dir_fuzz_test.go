package checkpoint_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
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

// tinySpec is what a tinyDir is made of. config is the keys that it has beside its sizes, which
// stand where SIZES does, or at the end.
type tinySpec struct {
	config                                      string
	module                                      string
	hidden, heads, nope, rope, v, latent, qLora int // qLora 0: q_proj
	dtype, scale                                string
	block                                       int // of scales, each way
	bias, single                                bool
}

// make makes the texts.
func (p tinySpec) make(t testing.TB) tinyDir {
	sizes := fmt.Sprintf(`"hidden_size":%d,"num_hidden_layers":1,"num_attention_heads":%d,"qk_nope_head_dim":%d,"qk_rope_head_dim":%d,"v_head_dim":%d,"kv_lora_rank":%d,"q_lora_rank":%d`,
		p.hidden, p.heads, p.nope, p.rope, p.v, p.latent, p.qLora)
	if p.scale != "" {
		sizes += fmt.Sprintf(`,"quantization_config":{"quant_method":"fp8","fmt":"e4m3","weight_block_size":[%d,%d]}`, p.block, p.block)
	}
	factors := strings.TrimSuffix(strings.Repeat("1.5,", p.rope/2), ",")
	d := tinyDir{config: "{" + strings.NewReplacer("SIZES", sizes, "FACTORS", factors).Replace(p.config) + "}"}
	type tensor struct {
		name, dtype string
		shape       []int
	}
	var all []tensor
	matrix := func(name string, rows, cols int) {
		all = append(all, tensor{p.module + name + ".weight", p.dtype, []int{rows, cols}})
		if p.scale != "" {
			all = append(all, tensor{p.module + name + ".weight_scale_inv", p.scale, []int{(rows-1)/p.block + 1, (cols-1)/p.block + 1}})
		}
	}
	vector := func(name string, n int) { all = append(all, tensor{p.module + name, "BF16", []int{n}}) }
	query := p.heads * (p.nope + p.rope)
	if p.qLora > 0 {
		matrix("q_a_proj", p.qLora, p.hidden)
		vector("q_a_layernorm.weight", p.qLora)
		matrix("q_b_proj", query, p.qLora)
	} else {
		matrix("q_proj", query, p.hidden)
	}
	matrix("kv_a_proj_with_mqa", p.latent+p.rope, p.hidden)
	vector("kv_a_layernorm.weight", p.latent)
	matrix("kv_b_proj", p.heads*(p.nope+p.v), p.latent)
	matrix("o_proj", p.hidden, p.heads*p.v)
	if p.bias {
		if p.qLora > 0 {
			vector("q_a_proj.bias", p.qLora)
		}
		vector("kv_a_proj_with_mqa.bias", p.latent+p.rope)
		vector("o_proj.bias", p.hidden)
	}
	cut := len(all) / 2
	if p.single {
		cut = len(all)
	}
	weightMap := map[string]string{}
	header := func(all []tensor, file string) string {
		var b strings.Builder
		at := 0
		for _, x := range all {
			n := bytesOfType[x.dtype]
			for _, d := range x.shape {
				n *= d
			}
			text, err := json.Marshal(map[string]any{"dtype": x.dtype, "shape": x.shape, "data_offsets": []int{at, at + n}})
			require.NoError(t, err)
			fmt.Fprintf(&b, ",%q:%s", x.name, text)
			at += n
			weightMap[x.name] = file
		}
		return "{" + strings.TrimPrefix(b.String(), ",") + "}"
	}
	d.first, d.second = header(all[:cut], "a"), header(all[cut:], "b")
	if !p.single {
		text, err := json.Marshal(map[string]any{"metadata": map[string]int{"total_size": 1}, "weight_map": weightMap})
		require.NoError(t, err)
		d.index = string(text)
	}
	return d
}

const tinyYaRN = `"max_position_embeddings":64,"rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":16,"mscale":1,"mscale_all_dim":1,"beta_fast":32,"beta_slow":1}`

// tinyFamilies are models of every family; the module is that of their last block.
var tinyFamilies = []struct {
	name, config, module string
	bias                 bool
}{
	{"v2", `"model_type":"deepseek_v2",SIZES,` + tinyYaRN, module0 + ".", false},
	{"v3", `"model_type":"deepseek_v3","num_nextn_predict_layers":0,` + tinyYaRN + `,SIZES`, module0 + ".", false},
	{"v3 within", `"model_type":"kimi_k25","text_config":{"model_type":"kimi_k2",SIZES}`, "language_model." + module0 + ".", false},
	{"v32", `"model_type":"deepseek_v32","index_topk":3,SIZES`, module0 + ".", false},
	{"glm", `"model_type":"glm4_moe_lite","attention_bias":true,"rope_interleave":false,SIZES`, module0 + ".", true},
	{"minicpm3", `"model_type":"minicpm3","max_position_embeddings":64,"rope_scaling":{"type":"longrope","original_max_position_embeddings":16,"short_factor":[FACTORS],"long_factor":[FACTORS]},SIZES`, module0 + ".", false},
	{"mistral4", `"model_type":"mistral4","rope_parameters":{"rope_type":"default","rope_theta":10000,"llama_4_scaling_beta":0.1,"original_max_position_embeddings":2},SIZES`, module0 + ".", false},
	{"longcat", `"model_type":"longcat_flash","num_layers":1,SIZES`, module0 + ".1.", false},
	{"youtu", `"model_type":"youtu",SIZES`, module0 + ".", false},
}

// tinyStores are the ways in which weights are stored.
var tinyStores = []struct{ dtype, scale string }{
	{"BF16", ""}, {"F16", ""}, {"F32", ""}, {"F8_E4M3", "F32"}, {"F8_E4M3", "F8_E8M0"}, {"F8_E5M2", "BF16"},
}

// tinyDirs is one of every family, stored in every way.
func tinyDirs(t testing.TB) map[string]tinyDir {
	all := map[string]tinyDir{}
	for i, f := range tinyFamilies {
		store := tinyStores[i%len(tinyStores)]
		all[f.name] = tinySpec{
			config: f.config, module: f.module, hidden: 6, heads: 2, nope: 3, rope: 2, v: 2, latent: 4, qLora: 3 * (i % 2),
			dtype: store.dtype, scale: store.scale, block: 4, bias: f.bias, single: i%3 == 0,
		}.make(t)
	}
	return all
}

var bytesOfType = map[string]int{"BF16": 2, "F16": 2, "F32": 4, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}

// maxTinyData is how much data a shard gets, whatever its header says of more.
const maxTinyData = 1 << 17

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
	ws, err := mla.NewWorkspace(mla.Limits{Tokens: 3, Seqs: 1, Context: tokens, Buffer: 4}, nil, b)
	if err != nil {
		return nil, err
	}
	defer ws.Close()
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
		err := b.Forward(context.Background(), ws, piece(out), piece(hidden), mla.Batch{
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

// takes opens a directory and runs its blocks: an error that the package promises, or a block that
// computes the same every time and that loads as Check said. Neither costs more than a multiple of
// what the files hold. A whole one must run, up to the keys that an indexer allows, and give finite
// numbers.
func (d tinyDir) takes(t *testing.T, dir, whole string) {
	d.put(t, dir)
	var m *checkpoint.Model
	var err error
	n := allocated(func() { m, err = checkpoint.OpenModel(dir) })
	require.Less(t, n, int64(4<<20), "allocated to open")
	if err != nil {
		require.True(t, said(err), "%v", err)
		require.Empty(t, whole, "%v", err)
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
		runs++
		var out []float32
		n = allocated(func() { out, err = run(m, b) })
		require.Less(t, n, int64(16<<20), "allocated to run")
		if err != nil {
			require.True(t, said(err) || errors.Is(err, mla.ErrIndexer), "%v", err)
			require.True(t, whole == "" || whole == "v32" && errors.Is(err, mla.ErrIndexer), "%s: %v", whole, err)
			require.NoError(t, b.Close())
			continue
		}
		again, err := run(m, b)
		require.NoError(t, err)
		for j, x := range out {
			y := again[j]
			require.True(t, math.Float32bits(x) == math.Float32bits(y) || x != x && y != y, "out[%d] is %v, then %v", j, x, y)
			require.False(t, whole != "" && (math.IsNaN(float64(x)) || math.IsInf(float64(x), 0)), "%s: out[%d] is %v", whole, j, x)
		}
		require.NoError(t, b.Close())
	}
	require.True(t, whole == "" || runs == 1, "%s: %d blocks run", whole, runs)
}

// FuzzDir takes a directory as one thing, from its files to the output of a block, whatever its
// configuration, its index and its headers say.
func FuzzDir(f *testing.F) {
	whole := map[tinyDir]string{}
	for name, d := range tinyDirs(f) {
		whole[d] = name
		f.Add(d.config, d.index, d.first, d.second)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, config, index, first, second string) {
		d := tinyDir{config, index, first, second}
		if len(config)+len(index)+len(first)+len(second) <= 1<<16 {
			d.takes(t, dir, whole[d])
		}
	})
}

// FuzzDirSizes takes directories of any geometry, family and store, which fit together but for what
// a patch changes of their texts: two bytes for where, and one that is written there.
func FuzzDirSizes(f *testing.F) {
	for i := range tinyFamilies {
		for j := range tinyStores {
			f.Add(uint8(i), uint8(j), uint8(1+3*j), []byte{5, 1, 2, 2, 2, 6, byte(i * j % 7)}, []byte{})
			f.Add(uint8(i), uint8(j), uint8(i), []byte{33, 3, 17, 8, 19, 35, byte(i)}, []byte{byte(9 * i), byte(j), '7'})
		}
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, family, store, choice uint8, sizes, patch []byte) {
		if len(sizes) != 7 {
			return
		}
		size := func(i, low, most int) int { return low + int(sizes[i])%most }
		fam, st := tinyFamilies[int(family)%len(tinyFamilies)], tinyStores[int(store)%len(tinyStores)]
		d := tinySpec{
			config: fam.config, module: fam.module, bias: fam.bias, dtype: st.dtype, scale: st.scale,
			hidden: size(0, 1, 40), heads: size(1, 1, 5), nope: size(2, 1, 24), rope: 2 * size(3, 0, 9), v: size(4, 1, 24), latent: size(5, 1, 40), qLora: size(6, 0, 24),
			block: 1 + int(choice>>1)%20, single: choice&1 != 0,
		}.make(t)
		whole := fam.name
		texts := []*string{&d.config, &d.index, &d.first, &d.second}
		for ; len(patch) >= 3; patch = patch[3:] {
			at := int(binary.LittleEndian.Uint16(patch))
			if text := texts[at%4]; *text != "" {
				b := []byte(*text)
				b[at/4%len(b)] = patch[2]
				*text, whole = string(b), ""
			}
		}
		d.takes(t, dir, whole)
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
