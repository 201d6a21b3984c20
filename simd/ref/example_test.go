package ref_test

import (
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/simd/ref"
)

// Attention of two query rows over three keys, of which the first row sees two: dots, softmax, values, division.
func Example() {
	const rows, keys, width, cols = 2, 3, 4, 2
	q := []float32{
		1, 0, 0, 0,
		0, 0, 0, 0,
	}
	cache := []float32{
		1, 2, 0, 0,
		1, 4, 0, 0,
		9, 9, 0, 0,
	}
	panel := make([]float32, ref.Lanes*width)
	ref.PackRows(panel, len(panel), q, width, rows, width)

	s := make([]float32, keys*rows)
	ref.PartSet(s, rows, cache, width, panel, len(panel), keys, rows, width)

	none := float32(math.Inf(-1))
	m, l, alpha := []float32{none, none}, make([]float32, rows), make([]float32, rows)
	ref.SoftmaxTile(s, rows, keys, rows, []int32{0, 0}, []int32{2, 3}, 1, m, l, alpha)

	o := make([]float32, rows*cols)
	ref.ValueTileMasked(o, cols, s, rows, cache, width, alpha, keys, rows, cols)

	out, lse := make([]float32, rows*cols), make([]float32, rows)
	ref.FinishRows(out, cols, o, cols, m, l, nil, lse, nil, rows, cols, 0)
	fmt.Println(out[:cols], lse[0])
	fmt.Println(out[cols:], lse[1])
	// Output:
	// [1 3] 1.6931472
	// [3.6666667 5] 1.0986123
}

// A product over k in two pieces, the second added to the first.
func ExamplePartAdd() {
	const n, k = 2, 3
	w := []float32{
		1, 2, 3,
		4, 5, 6,
	}
	panel := make([]float32, ref.Lanes*k)
	ref.PackRows(panel, len(panel), w, k, n, k)

	x, y := []float32{1, 10, 100}, make([]float32, n)
	ref.PartSet(y, n, x, k, panel, len(panel), 1, n, 2)
	ref.PartAdd(y, n, x[2:], k, panel[2*ref.Lanes:], len(panel), 1, n, 1)
	fmt.Println(y)
	// Output: [321 654]
}

func ExampleFma() {
	const unit = 0x1p-23
	fmt.Println(ref.Fma(1+unit, 1-unit, -1) == -unit*unit) // the product keeps all its bits
	// Output: true
}
