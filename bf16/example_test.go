package bf16_test

import (
	"fmt"

	"github.com/lamina-ml/lamina/bf16"
)

func Example() {
	for _, x := range []float32{1, 1.00390625, 1.01171875, 3.4e38} {
		b := bf16.FromFloat32(x)
		fmt.Printf("%v -> %04X = %v\n", x, b.Bits(), b)
	}
	// Output:
	// 1 -> 3F80 = 1
	// 1.0039062 -> 3F80 = 1
	// 1.0117188 -> 3F82 = 1.015625
	// 3.4e+38 -> 7F80 = +Inf
}

// Tensors of a checkpoint are little-endian bytes; they are read where they lie.
func ExampleFromBytes() {
	row, err := bf16.FromBytes([]byte{0x80, 0x3F, 0x00, 0xC0})
	if err != nil {
		fmt.Println(err)
		return
	}
	wide := make([]float32, len(row))
	bf16.ToFloat32s(wide, row)
	fmt.Println(row, wide)

	_, err = bf16.FromBytes([]byte{0x80, 0x3F, 0x00})
	fmt.Println(err)
	// Output:
	// [1 -2] [1 -2]
	// bf16: wrong length: 3 bytes, want 2 for each element
}
