package ref

import "math"

// width is the number of sums that one inner loop keeps in registers.
const width = 8

// dot is the part of one row x and one panel, for the first lanes of the panel.
func dot(part *[Lanes]float32, x, panel []float32, lanes int) {
	for g := 0; g < min(lanes, Lanes); g += width {
		var sums [width]float64
		accumulate(&sums, x, panel[min(g, len(panel)):], Lanes, lanes-g)
		store(part[g:], &sums)
	}
}

// foldDot is dot with the activation scaled for each lane.
func foldDot(part *[Lanes]float32, x, panel, scale []float32, lanes int) {
	for g := 0; g < min(lanes, Lanes); g += width {
		var sums [width]float64
		fold(&sums, x, panel[min(g, len(panel)):], scale[min(g, len(scale)):])
		store(part[g:], &sums)
	}
}

// accumulate adds x[k] * b[k*stride+lane] to the sums of at most 8 lanes, by fma in the order of k.
func accumulate(sums *[width]float64, x, b []float32, stride, lanes int) {
	if lanes < width {
		few(sums[:lanes], x, b, stride)
		return
	}
	if k := short(sums, x, b, stride); k < len(x) {
		long(sums, x[k:], b[k*stride:], stride)
	}
}

// few is accumulate for any number of lanes.
func few(sums []float64, x, b []float32, stride int) {
	for k, v := range x {
		w, u := b[k*stride:][:len(sums)], float64(v)
		for lane, c := range sums {
			sums[lane] = plus(float64(u*float64(w[lane])), c)
		}
	}
}

// low29 are the bits of a float64 that a number of 24 bits does not have.
const low29 = 1<<29 - 1

// short is accumulate for 8 lanes up to the first product of more than 24 bits, and returns how many steps that took.
// FP8 weights by FP8 or bf16 activations have at most 12, and sums that are half-way between two f32 so often that a
// look at each would cost more than the sum. None is needed: to be half-way without being exact, the float64 sum of two
// numbers takes one that reaches from the half-way place to where float64 ends, which is 29 bits, or one of 25 bits
// that is half-way by itself.
func short(sums *[width]float64, x, b []float32, stride int) int {
	a0, a1, a2, a3, a4, a5, a6, a7 := sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]
	steps := len(x)
	for k, v := range x {
		w, u := (*[width]float32)(b[k*stride:]), float64(v)
		p0, p1, p2, p3 := float64(u*float64(w[0])), float64(u*float64(w[1])), float64(u*float64(w[2])), float64(u*float64(w[3]))
		p4, p5, p6, p7 := float64(u*float64(w[4])), float64(u*float64(w[5])), float64(u*float64(w[6])), float64(u*float64(w[7]))
		if (math.Float64bits(p0)|math.Float64bits(p1)|math.Float64bits(p2)|math.Float64bits(p3)|
			math.Float64bits(p4)|math.Float64bits(p5)|math.Float64bits(p6)|math.Float64bits(p7))&low29 != 0 {
			steps = k
			break
		}
		a0, a1, a2, a3 = round(p0+a0), round(p1+a1), round(p2+a2), round(p3+a3)
		a4, a5, a6, a7 = round(p4+a4), round(p5+a5), round(p6+a6), round(p7+a7)
	}
	*sums = [width]float64{a0, a1, a2, a3, a4, a5, a6, a7}
	return steps
}

// round is s as an f32.
func round(s float64) float64 { return float64(float32(s)) }

// long is accumulate for 8 lanes.
func long(sums *[width]float64, x, b []float32, stride int) {
	a0, a1, a2, a3, a4, a5, a6, a7 := sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]
	for k, v := range x {
		w, u := (*[width]float32)(b[k*stride:]), float64(v)
		a0 = plus(float64(u*float64(w[0])), a0)
		a1 = plus(float64(u*float64(w[1])), a1)
		a2 = plus(float64(u*float64(w[2])), a2)
		a3 = plus(float64(u*float64(w[3])), a3)
		a4 = plus(float64(u*float64(w[4])), a4)
		a5 = plus(float64(u*float64(w[5])), a5)
		a6 = plus(float64(u*float64(w[6])), a6)
		a7 = plus(float64(u*float64(w[7])), a7)
	}
	*sums = [width]float64{a0, a1, a2, a3, a4, a5, a6, a7}
}

// fold is accumulate for 8 lanes of panels, with the activation scaled for each lane.
func fold(sums *[width]float64, x, panel, scale []float32) {
	a0, a1, a2, a3, a4, a5, a6, a7 := sums[0], sums[1], sums[2], sums[3], sums[4], sums[5], sums[6], sums[7]
	for k, v := range x {
		w, f := (*[width]float32)(panel[k*Lanes:]), (*[width]float32)(scale[k*Lanes:])
		a0 = plus(float64(float64(float32(v*f[0]))*float64(w[0])), a0)
		a1 = plus(float64(float64(float32(v*f[1]))*float64(w[1])), a1)
		a2 = plus(float64(float64(float32(v*f[2]))*float64(w[2])), a2)
		a3 = plus(float64(float64(float32(v*f[3]))*float64(w[3])), a3)
		a4 = plus(float64(float64(float32(v*f[4]))*float64(w[4])), a4)
		a5 = plus(float64(float64(float32(v*f[5]))*float64(w[5])), a5)
		a6 = plus(float64(float64(float32(v*f[6]))*float64(w[6])), a6)
		a7 = plus(float64(float64(float32(v*f[7]))*float64(w[7])), a7)
	}
	*sums = [width]float64{a0, a1, a2, a3, a4, a5, a6, a7}
}

// store writes sums into at most 8 places.
func store(to []float32, sums *[width]float64) {
	for i := range min(width, len(to)) {
		to[i] = float32(sums[i])
	}
}
