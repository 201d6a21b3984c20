package fp8_test

import (
	"context"
	"fmt"

	"github.com/lamina-ml/lamina/fp8"
)

func Example() {
	for _, x := range []float32{1, 0.3, 464, 465} {
		c, n := fp8.E4M3FromFloat32(x, fp8.Saturate), fp8.E4M3FromFloat32(x, fp8.NoSaturate)
		fmt.Printf("%v -> %02X = %v, or %02X = %v\n", x, c.Bits(), c, n.Bits(), n)
	}
	// Output:
	// 1 -> 38 = 1, or 38 = 1
	// 0.3 -> 2A = 0.3125, or 2A = 0.3125
	// 464 -> 7E = 448, or 7E = 448
	// 465 -> 7E = 448, or 7F = NaN
}

// Four rows in scale blocks of 3 x 2: the last row and the last column have
// partial blocks.
func ExampleMatrix() {
	one, two := byte(0x38), byte(0x40)
	codes := []byte{
		one, one, two,
		one, two, two,
		two, one, one,
		two, two, one,
	}
	scales := fp8.ScalesF32([]float32{
		1, 10,
		100, 1000,
	})
	m, err := fp8.New(fp8.ElemE4M3, 4, 3, codes, scales, 3, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.At(1, 1), m.At(1, 2), m.At(3, 1), m.At(3, 2))

	lower, err := m.Slice(2, 4) // begins in the last row of the upper blocks
	if err != nil {
		fmt.Println(err)
		return
	}
	values := make([]float32, lower.Rows()*lower.Cols())
	if err := lower.Dequantize(values); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(values)
	// Output:
	// 2 20 200 1000
	// [2 1 10 200 200 1000]
}

// y[M,N] = x[M,K] * W[N,K]^T with weights quantised in blocks of 2 x 4.
func ExamplePacked_Mul() {
	w, err := fp8.Quantize(fp8.ElemE4M3, 3, 4, []float32{
		1, 2, 3.5, 7,
		0.5, 0.25, 1, 3,
		100, 0, 0, -200,
	}, 2, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	packed, err := fp8.Pack([]fp8.Matrix{w}, fp8.PackOptions{Step: 16})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer packed.Close()

	x := []float32{
		1, 1, 1, 1,
		0, 0, 0, 2,
	}
	y := make([]float32, 2*3)
	err = packed.Mul(context.Background(), nil, y, fp8.RowsF32(x), fp8.Shape{M: 2}, fp8.Product{})
	fmt.Println(y[:3], y[3:], err)
	// Output:
	// [13.5 4.75 -100] [14 6 -400] <nil>
}

// Activations quantised in groups of two columns: each is rounded to the nearest E4M3 code under the
// scale of its group.
func ExampleProduct() {
	w, err := fp8.Quantize(fp8.ElemE4M3, 1, 4, []float32{1, 1, 1, 448}, 1, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	packed, err := fp8.Pack([]fp8.Matrix{w}, fp8.PackOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer packed.Close()

	y, x := make([]float32, 1), []float32{448, 1.03, 224, 0.52}
	fmt.Println(packed.Mul(context.Background(), nil, y, fp8.RowsF32(x), fp8.Shape{M: 1}, fp8.Product{Group: 2}), y)
	fmt.Println(packed.Mul(context.Background(), nil, y, fp8.RowsF32(x), fp8.Shape{M: 1}, fp8.Product{}), y)
	// Output:
	// <nil> [897]
	// <nil> [905.99]
}

// A caller that splits work itself: rows that are readied once serve the matrices of several heads.
func ExampleActivation() {
	var heads []fp8.Matrix
	for _, w := range [][]float32{{1, 2, 3, 4}, {4, 3, 2, 1}} {
		m, err := fp8.PlainF32(1, 4, w)
		if err != nil {
			fmt.Println(err)
			return
		}
		heads = append(heads, m)
	}
	packed, err := fp8.Pack(heads, fp8.PackOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer packed.Close()
	if err := packed.Acquire(); err != nil {
		fmt.Println(err)
		return
	}
	defer packed.Release()

	spec := fp8.ActivationSpec{Product: fp8.Product{Compute: fp8.ComputeBF16}, Rows: 2, K: 4}
	a := new(fp8.Activation)
	if err := a.Init(spec, make([]float32, spec.Floats())); err != nil {
		fmt.Println(err)
		return
	}
	packed.Activate(a, []float32{1, 1, 1, 1, 1, 0, 0, 2}, 4, 2)
	y := make([]float32, 2)
	for b := range heads {
		packed.MulPanels(b, y, 1, a, 2, 0, 1)
		fmt.Println(y)
	}
	// Output:
	// [10 9]
	// [10 6]
}
