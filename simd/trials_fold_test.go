package simd_test

import (
	"math"
	"math/rand/v2"

	"github.com/lamina-ml/lamina/internal/kerneltest"
)

var foldTrials = map[string]trial{
	"FoldRows":       foldTrial,
	"FinishRows":     finishTrial,
	"FinishRowsBF16": finishBF16Trial,
	"MergeRows":      mergeTrial,
}

// arrayOf is n numbers of a class, one a row, with edges among them in some.
func arrayOf(r *rand.Rand, class kerneltest.Class, n int) []float32 {
	x := class.Make(r, n)
	sprinkle(r, x)
	return x
}

// strideOf is a stride of rows of cols values.
func strideOf(r *rand.Rand, cols int) int { return cols + oneOf(r, 0, 0, 1, 5, 16) }

func foldTrial(r *rand.Rand, class kerneltest.Class) []any {
	n, cols := r.IntN(12), oneOf(r, lengths...)
	ldO, ldo := strideOf(r, cols), strideOf(r, cols)
	O, o := class.Make(r, extent(n, ldO, cols)), class.Make(r, extent(n, ldo, cols))
	M, L, m, l := arrayOf(r, class, n), arrayOf(r, class, n), arrayOf(r, class, n), arrayOf(r, class, n)
	return []any{O, ldO, M, L, o, ldo, m, l, n, cols}
}

func finishTrial(r *rand.Rand, class kerneltest.Class) []any {
	n, cols := r.IntN(12), oneOf(r, lengths...)
	ldO, ldout := strideOf(r, cols), strideOf(r, cols)
	O, out := class.Make(r, extent(n, ldO, cols)), make([]float32, extent(n, ldout, cols))
	if r.IntN(3) == 0 {
		ldout, out = ldO, O
	}
	bypass := r.IntN(3) & 1
	if bypass == 1 && r.IntN(2) == 0 {
		cols += -cols & 15 // whole lines
		ldO = cols
		ldout, O, out = ldO, class.Make(r, n*cols), make([]float32, n*cols)
	}
	M, L := arrayOf(r, class, n), arrayOf(r, class, n)
	optional := func() []float32 {
		if r.IntN(3) == 0 {
			return nil
		}
		return arrayOf(r, class, n)
	}
	return []any{out, ldout, O, ldO, M, L, optional(), optional(), optional(), n, cols, bypass}
}

// finishBF16Trial has quotients on both sides of what bf16 holds, halfway between two of its values and next to that.
func finishBF16Trial(r *rand.Rand, class kerneltest.Class) []any {
	args := finishTrial(r, class)
	O, L := args[2].([]float32), args[5].([]float32)
	out := make([]uint16, len(args[0].([]float32)))
	if r.IntN(2) == 0 {
		for i := range O {
			if r.IntN(3) == 0 {
				O[i] = math.Float32frombits(math.Float32bits(O[i])&^0xFFFF | uint32(oneOf(r, 0, 0x7FFF, 0x8000, 0x8001, 0xFFFF)))
			}
		}
		for i := range L {
			L[i] = 1
		}
	}
	args[0] = out
	return args
}

func mergeTrial(r *rand.Rand, class kerneltest.Class) []any {
	p, n, d := r.IntN(6), r.IntN(8), oneOf(r, lengths...)
	return []any{make([]float32, n*d), make([]float32, n), class.Make(r, p*n*d), arrayOf(r, class, p*n), p, n, d}
}
