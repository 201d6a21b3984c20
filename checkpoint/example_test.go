package checkpoint_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log"

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
