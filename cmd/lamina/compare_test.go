package main

import (
	"math"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/stretchr/testify/assert"
)

func TestElement(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	plain := check{tol: tolerance{abs: 1e-3, rel: 1e-2}}
	exact := check{}
	bf16 := check{tol: tolerance{abs: 1, rel: 1}, rounded: &tolerance{abs: 1e-6}, dtype: checkpoint.BF16}
	f16 := check{tol: tolerance{abs: 1, rel: 1}, rounded: &tolerance{rel: 1e-6}, dtype: checkpoint.F16}
	tests := []struct {
		name      string
		c         check
		got, want float64
		pass      bool
	}{
		{"equal", exact, 1, 1, true},
		{"zeros of both signs", exact, math.Copysign(0, -1), 0, true},
		{"exact", exact, math.Nextafter(1, 2), 1, false},
		{"absolute", plain, 0.001, 0, true},
		{"above absolute", plain, 0.0011, 0, false},
		{"relative", plain, 101, 100, true},
		{"above relative", plain, 101.001, 100, false},
		{"negative reference", plain, -101, -100, true},
		{"either is enough", plain, 0.0009, 0.0001, true},
		{"NaN both", plain, nan, nan, true},
		{"NaN here", plain, nan, 1, false},
		{"NaN there", plain, 1, nan, false},
		{"inf both", plain, -inf, -inf, true},
		{"inf of another sign", plain, inf, -inf, false},
		{"inf here", plain, inf, 1, false},
		{"inf there", plain, 1, inf, false},
		{"NaN for inf", plain, nan, inf, false},
		{"rounded", bf16, 1, 1.001, true},
		{"rounded the wrong way", bf16, 1 + 0x1p-7, 1.001, false},
		{"on the border either way", bf16, 1 + 0x1p-7, 1 + 0x1p-8, true},
		{"on the border either way down", bf16, 1, 1 + 0x1p-8, true},
		{"the answer overflows", f16, inf, 65521, true},
		{"the answer does not", f16, inf, 65504, false},
		{"overflow of the wrong sign", f16, -inf, 65521, false},
		{"overflow kept finite", f16, 65504, 65540, false},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.pass, tt.c.element(tt.got, tt.want) <= 1, tt.name)
	}
}

func TestCompare(t *testing.T) {
	nan := float32(math.NaN())
	c := check{what: "output", shape: checkpoint.Shape{2, 3}, tol: tolerance{abs: 0.1, cos: 1e-3}, cosine: true}

	v := c.compare([]float32{1, 2, nan, 4, 5, 6.05}, []float32{1, 2, nan, 4, 5, 6})
	assert.Empty(t, v.fault)
	assert.InDelta(t, 0.05, v.maxAbs, 1e-6)
	assert.InDelta(t, 0.05/6, v.maxRel, 1e-6)
	assert.Equal(t, checkpoint.Shape{1, 2}, place(v.worst, c.shape))

	v = c.compare([]float32{1, 2, 3, 4, nan, 6.05}, []float32{1, 2, 3, 4, 5, 6})
	assert.Equal(t, "output[1, 1] is NaN, wanted 5 within 0.1; 1 of 6 values are wrong", v.fault)

	// Every element within its tolerance, the whole turned too far.
	v = c.compare([]float32{0.1, 0.1, 0, 0, 0, 0}, []float32{0.1, 0.01, 0, 0, 0, 0})
	assert.Contains(t, v.fault, "the cosine difference is 0.26")
	assert.Greater(t, v.cosDiff, 0.2)

	// Too small for a cosine to mean anything.
	v = c.compare([]float32{1e-7, 0, 0, 0, 0, 0}, []float32{0, 1e-7, 0, 0, 0, 0})
	assert.Empty(t, v.fault)
	assert.Zero(t, v.cosDiff)

	// Where that ends: the sum of the squares of the answer, from 1e-12 on.
	v = c.compare([]float32{0.99e-6, 0, 0, 0, 0, 0}, []float32{0, 0.99e-6, 0, 0, 0, 0})
	assert.Empty(t, v.fault)
	v = c.compare([]float32{1.01e-6, 0, 0, 0, 0, 0}, []float32{0, 1.01e-6, 0, 0, 0, 0})
	assert.Equal(t, "output: the cosine difference is 1, wanted at most 0.001", v.fault)

	v = check{shape: checkpoint.Shape{0, 3}}.compare(nil, nil)
	assert.Equal(t, verdict{}, v)
}
