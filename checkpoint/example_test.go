package checkpoint_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"strings"

	"github.com/lamina-ml/lamina/checkpoint"
)

func Example() {
	scales, err := binary.Append(nil, binary.LittleEndian, []float32{0.5, 2})
	if err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	err = checkpoint.Write(&file, []checkpoint.Tensor{
		{Name: "weight", DType: checkpoint.F8_E4M3, Shape: []int{2, 3}, Data: []byte{0x38, 0x40, 0x48, 0xB8, 0xC0, 0xC8}},
		{Name: "weight_scale_inv", DType: checkpoint.F32, Shape: []int{2, 1}, Data: scales},
	}, map[string]string{"format": "pt"})
	if err != nil {
		log.Fatal(err)
	}

	f, err := checkpoint.Parse(file.Bytes()) // or Open(path), which maps the file
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	for t := range f.Tensors() {
		fmt.Println(t)
	}
	scale, _ := f.Tensor("weight_scale_inv")
	values, err := scale.F32s()
	fmt.Println(values, err)
	_, err = scale.U16s()
	fmt.Println(err)
	// Output:
	// weight_scale_inv F32 [2, 1]
	// weight F8_E4M3 [2, 3]
	// [0.5 2] <nil>
	// checkpoint: wrong type: tensor weight_scale_inv F32 [2, 1], wanted U16 or BF16 or F16
}

// ExampleOpenModel makes a small model, as a hub has them, and loads its attention.
func ExampleOpenModel() {
	dir, err := os.MkdirTemp("", "model")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	config := `{"model_type": "deepseek_v2", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "qk_nope_head_dim": 8,
		"qk_rope_head_dim": 4, "v_head_dim": 8, "kv_lora_rank": 16, "q_lora_rank": null, "rope_theta": 10000}`
	if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o666); err != nil {
		log.Fatal(err)
	}
	const module = "model.layers.0.self_attn."
	bf16 := func(name string, shape ...int) checkpoint.Tensor {
		n, _ := checkpoint.Shape(shape).Elements()
		return checkpoint.Tensor{Name: module + name, DType: checkpoint.BF16, Shape: shape, Data: bytes.Repeat([]byte{0x80, 0x3C}, n)}
	}
	err = checkpoint.WriteDir(dir, []checkpoint.Tensor{
		bf16("q_proj.weight", 2*(8+4), 32), bf16("kv_a_proj_with_mqa.weight", 16+4, 32), bf16("kv_a_layernorm.weight", 16),
		bf16("kv_b_proj.weight", 2*(8+8), 16), bf16("o_proj.weight", 32, 2*8),
	}, nil, 2048)
	if err != nil {
		log.Fatal(err)
	}

	m, err := checkpoint.OpenModel(dir)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close()
	b, err := m.Block(0)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	fmt.Println(m.Config.ModelType, "with", m.Config.Blocks, "attention block in", len(m.Dir.Files()), "files")
	fmt.Printf("%d heads, softmax scale %.4f\n", b.Config().Core.Heads, b.Config().Core.Scale)
	table, err := m.Config.Rope.Table(2)
	fmt.Println(table, err)
	fmt.Println(strings.ReplaceAll(m.Check(1).Error(), dir, "DIR"))
	// Output:
	// deepseek_v2 with 1 attention block in 3 files
	// 2 heads, softmax scale 0.2887
	// [1 0 1 0 0.5403023 0.84147096 0.99995 0.009999833] <nil>
	// DIR: checkpoint: bad weights: attention block 1, and the model has 1
}
