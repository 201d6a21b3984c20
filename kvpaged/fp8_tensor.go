package kvpaged

import "github.com/lamina-ml/lamina/simd"

// fp8_tensor: the code of x is that of x/scale in fp8_unit, divided in float32,
// and a code is worth code*scale, rounded once. The scale is one number for the
// whole cache and is taken as it is: under a scale of 0, NaN or Inf the two
// formulas give what they give.

func encodeFP8Tensor(dst []byte, row []float32, scale float32) {
	simd.NarrowE4M3Scaled(dst, row, scale)
}

func widenFP8Tensor(t *tile, rows []byte, scale float32) {
	for i, at := range t.rows[:t.n] {
		simd.WidenE4M3Scaled(t.row(i), rows[at:][:t.width], scale)
	}
}
