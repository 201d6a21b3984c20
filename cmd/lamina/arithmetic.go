package main

import (
	"math"

	"github.com/lamina-ml/lamina/mla"
)

// Answers in the second arithmetic are held to the tolerances that FlashMLA publishes, of kernels
// that round probabilities to bf16 as well (contract of the cases, section 7): abs counts for
// outputs of the size of its test data, a tenth, rel and cos for any.
var (
	flashDense         = tolerance{8e-4, 2.01 / 128, 5e-6}
	flashSparseDecode  = tolerance{1e-3, 2.01 / 128, 5e-6}
	flashSparsePrefill = tolerance{8e-4, 3.01 / 128, 7e-6}
)

const (
	flashSize = 0.1
	// Queries and caches of FlashMLA's tests are bf16 and there are no products around its
	// attention; in a case they may be anything, and there are: twice the error.
	roundingsMore = 2
	// Projections of a block round their operands as well.
	blockMore = 4
	// A value that is quantised after it was rounded may get the code next to its own.
	quantisedMore = 5
	// What is smaller counts as zero.
	leastValue = 0x1p-52
)

// in makes the answer one of the arithmetic; the tolerances of a file are for F32. What scores
// err by hangs on terms that cancel in them, so that of lse and max logits only infinities and
// NaN are judged; the difference is reported.
func (a *answer) in(arithmetic mla.Arithmetic, flash tolerance, more float64) {
	a.arithmetic = arithmetic
	if arithmetic == mla.F32 {
		return
	}
	largest := 0.0
	for _, x := range a.output {
		if x := math.Abs(float64(x)); finite(x) {
			largest = max(largest, x)
		}
	}
	a.tol = tolerances{out: tolerance{
		abs: max(more*flash.abs/flashSize*largest, leastValue),
		rel: more * flash.rel,
		cos: more * more * flash.cos, // a square of errors
	}}
	a.lseTol = tolerance{abs: math.MaxFloat64, cos: math.Inf(1)}
}
