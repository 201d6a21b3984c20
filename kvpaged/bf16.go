package kvpaged

import (
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// bf16: a value is the upper half of a float32, nearest even, overflow to Inf.

func encodeBF16(dst []byte, row []float32) { simd.NarrowBF16(mem.Cast[uint16](dst), row) }

func widenBF16(dst []float32, src []byte) { simd.WidenBF16(dst, mem.Cast[uint16](src)) }
