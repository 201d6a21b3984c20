package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/oracle"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestLevel(t *testing.T) { kerneltest.Level(t) }

const config = `{
	"architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 1, "hidden_size": 10,
	"num_attention_heads": 2, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5, "kv_lora_rank": 8, "q_lora_rank": null,
	"rope_theta": 100, "max_position_embeddings": 64, "attention_bias": false
}`

// weights of a block without a low-rank query, by name.
var shapes = map[string]checkpoint.Shape{
	"q_proj": {2 * (6 + 4), 10}, "kv_a_proj_with_mqa": {8 + 4, 10}, "kv_a_layernorm": {8}, "kv_b_proj": {2 * (6 + 5), 8}, "o_proj": {10, 2 * 5},
}

// write makes a checkpoint of float32 weights and returns them.
func write(t *testing.T, dir string) map[string][]float64 {
	r := rand.New(rand.NewPCG(1, 2))
	all, values := []checkpoint.Tensor{}, map[string][]float64{}
	for name, shape := range shapes {
		n, err := shape.Elements()
		require.NoError(t, err)
		var data []byte
		for range n {
			x := float32(r.NormFloat64() / math.Sqrt(float64(shape[len(shape)-1])))
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
			values[name] = append(values[name], float64(x))
		}
		all = append(all, checkpoint.Tensor{Name: "model.layers.0.self_attn." + name + ".weight", DType: checkpoint.F32, Shape: shape, Data: data})
	}
	require.NoError(t, checkpoint.WriteDir(dir, all, nil, 0))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	return values
}

// TestLength: an example is to be read at a glance.
func TestLength(t *testing.T) {
	text, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Less(t, bytes.Count(text, []byte("\n")), 60)
}

// TestRun holds what the example prints against float64, within what a bf16 cache rounds.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	w := write(t, dir)
	var out bytes.Buffer
	run(dir, &out)

	block := &oracle.Block{Hidden: 10, QB: w["q_proj"], KVA: w["kv_a_proj_with_mqa"], O: w["o_proj"]}
	call := &oracle.Call{
		Config: oracle.Config{
			Heads: 2, Nope: 6, Rope: 4, V: 5, Latent: 8, Scale: 1 / math.Sqrt(10), Epsilon: 1e-6,
			Gamma: w["kv_a_layernorm"], Head: oracle.SplitKVB(w["kv_b_proj"], 6, 5, 8),
		},
		Offsets: []int{0, tokens}, Cached: []int{0}, Rows: [][]float64{nil},
	}
	for pos := range tokens {
		x := make([]float64, 10)
		for i := range x {
			x[i] = math.Sin(0.7 * float64(pos*10+i))
		}
		call.Freqs = append(call.Freqs, math.Cos(float64(pos)), math.Sin(float64(pos)), math.Cos(0.1*float64(pos)), math.Sin(0.1*float64(pos)))
		call.Q = append(call.Q, block.Query(&call.Config, x, pos)...)
		call.Rows[0] = append(call.Rows[0], call.CacheRow(block.KV(&call.Config, x), pos)...)
	}
	printed := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, printed, 1+tokens-prompt, "a prompt, then one token at a time")
	for i, line := range printed {
		last, n := prompt+i, 1
		if i == 0 {
			n = prompt
		}
		want := block.Output(append(call.Row(last-1, 0).Out, call.Row(last-1, 1).Out...))
		head, got, _ := strings.Cut(line, ": [")
		require.Contains(t, head, fmt.Sprintf("%2d new of %2d tokens, ", n, last))
		for j, field := range strings.Fields(strings.TrimSuffix(got, "]")) {
			var x float64
			_, err := fmt.Sscan(field, &x)
			require.NoError(t, err)
			require.InDelta(t, want[j], x, 0.01, line)
		}
	}
}
