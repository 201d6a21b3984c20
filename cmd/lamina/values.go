package main

import (
	"encoding/binary"
	"hash"
	"math"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
)

// values is an output in the type of a case's q: F32, BF16 or F16.
type values struct {
	dtype  checkpoint.DType
	floats []float32 // F32
	halves []uint16  // bits of BF16 or F16
}

func newValues(d checkpoint.DType, n int) values {
	if d == checkpoint.F32 {
		return values{dtype: d, floats: make([]float32, n)}
	}
	return values{dtype: d, halves: make([]uint16, n)}
}

// rows is the values as the library takes them.
func (v values) rows() mla.Rows {
	switch v.dtype {
	case checkpoint.BF16:
		return mla.RowsBF16(v.halves)
	case checkpoint.F16:
		return mla.RowsF16(v.halves)
	}
	return mla.RowsF32(v.floats)
}

// widened is the values as float32, which holds all three types.
func (v values) widened() []float32 {
	if v.dtype == checkpoint.F32 {
		return v.floats
	}
	out := make([]float32, len(v.halves))
	v.rows().Widen(out, 0, len(out))
	return out
}

// addTo hashes the bits, little-endian. A NaN is a class, not bits: each becomes the quiet
// positive one of its type first.
func (v values) addTo(h hash.Hash) {
	var b []byte
	for _, x := range v.floats {
		bits := math.Float32bits(x)
		if x != x {
			bits = 0x7FC00000
		}
		b = binary.LittleEndian.AppendUint32(b, bits)
	}
	inf, nan := uint16(0x7F80), uint16(0x7FC0)
	if v.dtype == checkpoint.F16 {
		inf, nan = 0x7C00, 0x7E00
	}
	for _, bits := range v.halves {
		if bits&0x7FFF > inf {
			bits = nan
		}
		b = binary.LittleEndian.AppendUint16(b, bits)
	}
	h.Write(b)
}
