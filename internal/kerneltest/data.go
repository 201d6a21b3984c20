package kerneltest

import (
	"math"
	"math/rand/v2"
)

// Class is a kind of data, by what it does to a kernel's roundings.
type Class struct {
	Name  string
	Value func(r *rand.Rand) float32
}

// Classes are the kinds of data that every kernel must get right. The first is the plain one.
var Classes = []Class{
	{"normal", func(r *rand.Rand) float32 { return float32(r.NormFloat64()) }},
	{"short", short},
	{"integers", func(r *rand.Rand) float32 { return float32(r.IntN(33) - 16) }},
	{"wide", func(r *rand.Rand) float32 { return scaled(r, -40, 40) }},
	{"tiny", func(r *rand.Rand) float32 { return scaled(r, -76, -60) }},
	{"subnormal", func(r *rand.Rand) float32 { return scaled(r, -149, -120) }},
	{"huge", func(r *rand.Rand) float32 { return scaled(r, 50, 66) }},
	{"zeros", func(r *rand.Rand) float32 {
		return [...]float32{0, float32(math.Copysign(0, -1)), float32(r.NormFloat64())}[r.IntN(3)]
	}},
	{"special", special},
	{"bits", func(r *rand.Rand) float32 { return math.Float32frombits(r.Uint32()) }},
}

// scaled is a value whose exponent is uniform in [lo, hi].
func scaled(r *rand.Rand, lo, hi int) float32 {
	return float32(math.Ldexp(r.Float64()*2-1, lo+r.IntN(hi-lo+1)))
}

// short is a value with at most 8 bits of mantissa, as bf16 and FP8 values have: sums of their products are often
// half-way between two f32.
func short(r *rand.Rand) float32 {
	mask := uint32(0xFFFF0000)
	if r.IntN(2) == 0 {
		mask = 0xFFF00000
	}
	return math.Float32frombits(math.Float32bits(float32(r.NormFloat64())) & mask)
}

// special is mostly plain, with a NaN, an infinity or an extreme value among 16.
func special(r *rand.Rand) float32 {
	switch r.IntN(64) {
	case 0:
		return float32(math.NaN())
	case 1:
		return float32(math.Inf(1))
	case 2:
		return float32(math.Inf(-1))
	case 3:
		return math.MaxFloat32
	}
	return float32(r.NormFloat64())
}

// Rand is a source of numbers that are the same in every run.
func Rand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x6c616d696e61)) }

// Fill fills x with values of the class.
func (c Class) Fill(r *rand.Rand, x []float32) {
	for i := range x {
		x[i] = c.Value(r)
	}
}

// Make is n values of the class.
func (c Class) Make(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	c.Fill(r, x)
	return x
}
