package kvpaged

import (
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// bf16: a value is the upper half of a float32, nearest even, overflow to Inf.

func encodeBF16(dst []byte, row []float32) { simd.NarrowBF16(mem.Cast[uint16](dst), row) }

func widenBF16(t *tile, rows []byte) {
	src := mem.Cast[uint16](rows)
	for i, at := range t.rows[:t.n] {
		simd.WidenBF16(t.row(i), src[at/2:][:t.width])
	}
}
