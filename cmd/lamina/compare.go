package main

import (
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/checkpoint"
)

// tolerance says which differences pass: |d| <= abs or |d| <= rel*|ref|, and besides a cosine
// difference up to cos.
type tolerance struct{ abs, rel, cos float64 }

// of is what the tolerance allows at one reference value.
func (t tolerance) of(ref float64) float64 { return max(t.abs, t.rel*math.Abs(ref)) }

// check compares one tensor with its answer.
type check struct {
	what  string // for messages: "output in BF16", "lse"
	shape checkpoint.Shape
	tol   tolerance
	// cosine asks for the cosine difference too.
	cosine bool
	// rounded, if not nil, are the tolerances of an output before it was rounded once to
	// dtype: an element must then lie between the roundings of ref-tol and ref+tol.
	rounded *tolerance
	dtype   checkpoint.DType
}

// verdict is what a check found.
type verdict struct {
	maxAbs, maxRel, cosDiff float64 // over places where both are finite
	worst                   int     // the place nearest to failing, or that failed worst
	fault                   string  // empty: passed
}

// compare holds got against want, which have the same length.
func (c check) compare(got, want []float32) verdict {
	var v verdict
	highest := -1.0
	bad := 0
	for i := range want {
		g, w := float64(got[i]), float64(want[i])
		share := c.element(g, w)
		if share > highest {
			highest, v.worst = share, i
		}
		if share > 1 {
			bad++
		}
		if finite(g) && finite(w) {
			d := math.Abs(g - w)
			v.maxAbs = max(v.maxAbs, d)
			if w != 0 {
				v.maxRel = max(v.maxRel, d/math.Abs(w))
			}
		}
	}
	if c.cosine {
		v.cosDiff = cosineDifference(got, want)
	}
	switch {
	case bad > 0:
		i := v.worst
		v.fault = fmt.Sprintf("%s%v is %v, wanted %v within %.3g; %d of %d values are wrong",
			c.what, place(i, c.shape), got[i], want[i], c.tol.of(float64(want[i])), bad, len(want))
	case !(v.cosDiff <= c.tol.cos) && c.cosine:
		v.fault = fmt.Sprintf("%s: the cosine difference is %.3g, wanted at most %.3g", c.what, v.cosDiff, c.tol.cos)
	}
	return v
}

// element is the share of its tolerance that a difference takes: above 1 it fails.
func (c check) element(got, want float64) float64 {
	if math.IsNaN(want) || math.IsInf(want, 0) {
		if got == want || math.IsNaN(got) && math.IsNaN(want) {
			return 0
		}
		return math.Inf(1)
	}
	if math.IsNaN(got) {
		return math.Inf(1)
	}
	if math.IsInf(got, 0) {
		// Right only where the answer itself may overflow in the type of the output.
		if c.rounded != nil && c.between(got, want) {
			return 0
		}
		return math.Inf(1)
	}
	d := math.Abs(got - want)
	if d == 0 {
		return 0
	}
	share := math.Inf(1)
	if tol := c.tol.of(want); tol > 0 {
		share = d / tol
	}
	// The quotient is for the report; what decides is the comparison itself.
	if d <= c.tol.abs || d <= c.tol.rel*math.Abs(want) {
		share = min(share, 1)
	} else {
		share = max(share, above1)
	}
	if c.rounded != nil && !c.between(got, want) {
		share = max(share, above1)
	}
	return share
}

var above1 = math.Nextafter(1, 2)

// between reports whether got is a rounding of a value within the unrounded tolerance.
func (c check) between(got, want float64) bool {
	tol := c.rounded.of(want)
	return roundTo(c.dtype, want-tol) <= got && got <= roundTo(c.dtype, want+tol)
}

// cosineDifference is 1 - 2*sum(ab)/sum(a^2+b^2) over the places where both are finite; 0
// where the answer is too small for it to mean anything.
func cosineDifference(got, want []float32) float64 {
	var product, squares, reference float64
	for i := range want {
		g, w := float64(got[i]), float64(want[i])
		if !finite(g) || !finite(w) {
			continue
		}
		product += g * w
		squares += g*g + w*w
		reference += w * w
	}
	if reference < 1e-12 {
		return 0
	}
	return 1 - 2*product/squares
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

// place is the index of element i in a tensor of this shape.
func place(i int, shape checkpoint.Shape) checkpoint.Shape {
	at := make(checkpoint.Shape, len(shape))
	for d := len(shape) - 1; d >= 0 && shape[d] > 0; d-- {
		at[d] = i % shape[d]
		i /= shape[d]
	}
	return at
}
