package kvpaged

import "github.com/lamina-ml/lamina/simd"

// fp8_unit: a value is an E4M3FN code, nearest even; what is beyond 448, Inf
// included, becomes 448, and NaN stays NaN.

func encodeFP8Unit(dst []byte, row []float32) { simd.NarrowE4M3(dst, row) }

func widenFP8Unit(t *tile, rows []byte) {
	for i, at := range t.rows[:t.n] {
		simd.WidenE4M3(t.row(i), rows[at:][:t.width])
	}
}
