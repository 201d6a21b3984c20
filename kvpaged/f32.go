package kvpaged

import "github.com/lamina-ml/lamina/internal/mem"

// f32: a value is a float32, bit for bit.

func encodeF32(dst []byte, row []float32) { copy(mem.Cast[float32](dst), row) }

func widenF32(dst []float32, src []byte) { copy(dst, mem.Cast[float32](src)) }
