package kvpaged

import (
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// f16: a value is a binary16, nearest even, overflow to Inf.

func encodeF16(dst []byte, row []float32) { simd.NarrowF16(mem.Cast[uint16](dst), row) }

func widenF16(t *tile, rows []byte) {
	src := mem.Cast[uint16](rows)
	for i, at := range t.rows[:t.n] {
		simd.WidenF16(t.row(i), src[at/2:][:t.width])
	}
}
