package simd_test

import (
	"fmt"

	"github.com/lamina-ml/lamina/simd"
)

// One row x times two rows of weights, scaled by the block scale of each output.
func Example() {
	const n, k = 2, 3
	w := []float32{
		1, 2, 3,
		4, 5, 6,
	}
	panel := make([]float32, simd.Lanes*k)
	simd.PackRows(panel, len(panel), w, k, n, k)

	x, y := []float32{1, 10, 100}, make([]float32, n)
	simd.PartScale(y, n, x, k, panel, len(panel), []float32{0.5, 2}, 1, n, k)
	fmt.Println(y)
	// Output: [160.5 1308]
}

// A row of four values, normalised and then turned by a quarter and a half.
func ExampleRopeInterleaved() {
	row := []float32{3, 1, 1, 3}
	simd.RMSNorm(row, row, []float32{1, 1, 1, 1}, 4)
	fmt.Println(row)
	simd.RopeInterleaved(row, row, []float32{0, 1, -1, 0})
	fmt.Println(row)
	// Output:
	// [1 0.33333334 0.33333334 1]
	// [-0.33333334 1 -0.33333334 -1]
}

// Two groups of columns, each with a scale of its own.
func ExampleQuantDynamic() {
	x := []float32{1, -448, 0.5, 0, 1e30, 600}
	codes, scales, values := make([]byte, 6), make([]float32, 2), make([]float32, 6)
	simd.QuantDynamic(codes, scales, x, 4)
	simd.WidenE4M3(values, codes)
	fmt.Println(values[:4], scales[0])
	fmt.Println(values[4:], scales[1])
	// Output:
	// [1 -448 0.5 0] 1
	// [448 224] 2.6785715
}

func ExampleErr() {
	if err := simd.Err(); err != nil {
		fmt.Println("LAMINA_SIMD:", err)
		return
	}
	fmt.Println(simd.Levels()[len(simd.Levels())-1])
	// Output: generic
}
