package kvpaged

import "github.com/lamina-ml/lamina/internal/mem"

// f32: a value is a float32, bit for bit.

func encodeF32(dst []byte, row []float32) { copy(mem.Cast[float32](dst), row) }

func widenF32(t *tile, rows []byte) {
	src := mem.Cast[float32](rows)
	for i, at := range t.rows[:t.n] {
		copy(t.row(i), src[at/4:][:t.width])
	}
}
