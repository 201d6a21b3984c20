package main

import (
	"math"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// Answers in the second arithmetic are held to the tolerances that FlashMLA publishes, of kernels
// that round probabilities to bf16 as well.
var (
	flashDense         = tolerance{8e-4, 2.01 / 128, 5e-6}
	flashSparseDecode  = tolerance{1e-3, 2.01 / 128, 5e-6}
	flashSparsePrefill = tolerance{8e-4, 3.01 / 128, 7e-6}
	flashLSE           = tolerance{abs: 1e-6, rel: 8.01 / 65536}
)

const (
	// FlashMLA tests with values whose deviation is a tenth, of which attention makes outputs of
	// up to three deviations. Its abs goes by the largest output of a case.
	flashLargest = 0.3
	// What is smaller counts as zero.
	leastValue = 0x1p-52
	// FlashMLA sums probabilities before they are rounded; here their sum has the rounding of each.
	roundedSum = 0x1p-9
	// Where the operands of scores are rounded, log-sum-exps and largest logits err by a part of the
	// scores. A score may be larger than the log-sum-exp of its row, so the largest of the case counts.
	roundedScore = 0x1p-8
)

// allowance is how many times FlashMLA's abs and cos may be taken: once where all operands are
// bf16 as they come, as in its tests, and more where they have to be rounded, which the answer of a
// case knows nothing of. docs/arithmetic.md has the errors that were measured.
type allowance struct{ abs, cos float64 }

var (
	asPublished   = allowance{1, 1}
	roundedInputs = allowance{2, 2}
	// The absorbed query and the latent output are rounded too, or every key and value.
	withProducts = allowance{4, 2}
	// A latent output that is not quite the same may get the code next to its own.
	withCodes = allowance{6, 20}
	// The projections of a block round their operands as well.
	withProjections = allowance{6, 10}
)

// in makes the answer one of the arithmetic; the tolerances of a file are for F32.
func (a *answer) in(arithmetic mla.Compute, flash tolerance, more allowance) {
	a.arithmetic = arithmetic
	if arithmetic == mla.ComputeF32 {
		return
	}
	size := largest(a.output)
	a.tol = tolerances{out: tolerance{
		abs: max(more.abs*flash.abs*size/flashLargest, leastValue),
		rel: flash.rel,
		cos: more.cos * flash.cos,
	}}
	a.lseTol, a.maxLogitTol = tolerance{roundedSum, flashLSE.rel, 0}, flashLSE
	if more != asPublished {
		scores := roundedScore * (1 + max(largest(a.lse), largest(a.maxLogits)))
		a.lseTol.abs += scores
		a.maxLogitTol.abs += scores
	}
	if 0 < size && size < leastValue {
		// The keys are zeros to this arithmetic, and the scores of the answer are of other keys.
		a.lseTol.abs, a.maxLogitTol.abs = math.MaxFloat64, math.MaxFloat64
	}
}

// largest is the largest finite magnitude.
func largest(x []float32) float64 {
	most := 0.0
	for _, x := range x {
		if x := math.Abs(float64(x)); finite(x) {
			most = max(most, x)
		}
	}
	return most
}

// allowance is that of attention alone.
func (c *sparseCase) allowance() allowance {
	exact := c.dtype == checkpoint.BF16
	if c.kv != nil {
		exact = exact && c.kv.BF16() != nil
	} else {
		exact = exact && exactInBF16(c.cache.Format) && (c.extra == nil || exactInBF16(c.extra.cache.Format))
	}
	if exact {
		return asPublished
	}
	return roundedInputs
}

// exactInBF16 reports whether every value of a format is one of bf16: codes of few bits whose
// scales, if there are any, are powers of two or have few bits themselves.
func exactInBF16(f kvpaged.Format) bool {
	switch f {
	case kvpaged.F32, kvpaged.F16, kvpaged.FP8Tensor, kvpaged.FP8Token, kvpaged.DSMLA656:
		return false
	}
	return true
}
