package mla

import (
	"fmt"

	"github.com/lamina-ml/lamina/simd"
)

// Merge joins partial results of the same rows over disjoint keys
// (docs/arithmetic.md, Merge): with M = max lse_p and w_p = exp(lse_p - M),
//
//	out = sum w_p o_p / sum w_p     lse = M + ln(sum w_p)
//
// parts is [p, n, d] normalised outputs, partsLSE [p, n] natural logarithms,
// out [n, d], lse [n]. A part whose lse is -Inf or +Inf saw nothing: its values
// are not read. If no part of a row is live the row is 0 and its lse +Inf; a
// single live part comes back unchanged; a NaN lse makes its row NaN. out and
// lse must not overlap the parts, nor each other. Errors: ErrShape.
func Merge(out, lse, parts, partsLSE []float32, p, n, d int) error {
	if p < 0 || n < 0 || d < 0 || p > maxContext || n > maxContext || d > maxSize {
		return fmt.Errorf("%w: merge of p=%d parts of n=%d rows of d=%d values", ErrShape, p, n, d)
	}
	for _, s := range []struct {
		name, shape string
		got, want   int
	}{
		{"out", "n*d", len(out), n * d}, {"lse", "n", len(lse), n},
		{"partsLSE", "p*n", len(partsLSE), p * n},
	} {
		if s.got != s.want {
			return fmt.Errorf("%w: %s has %d values, want %s = %d", ErrShape, s.name, s.got, s.shape, s.want)
		}
	}
	if n > 0 && p > 0 && d > 0 && len(parts)/d/n != p || len(parts) != p*n*d {
		return fmt.Errorf("%w: parts has %d values, want p*n*d = %d*%d*%d", ErrShape, len(parts), p, n, d)
	}
	if RowsF32(out).Overlaps(RowsF32(lse)) {
		return fmt.Errorf("%w: lse overlaps out", ErrShape)
	}
	for _, in := range [][]float32{parts, partsLSE} {
		if in := RowsF32(in); in.Overlaps(RowsF32(out)) || in.Overlaps(RowsF32(lse)) {
			return fmt.Errorf("%w: out or lse overlaps the parts", ErrShape)
		}
	}
	if n == 0 {
		return nil
	}
	simd.MergeRows(out, lse, parts, partsLSE, p, n, d)
	return nil
}
