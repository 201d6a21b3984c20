package simd

import "github.com/lamina-ml/lamina/simd/ref"

// Lanes is the number of outputs in a panel of packed weights.
const Lanes = ref.Lanes

// Fma is a*b + c with one rounding.
func Fma(a, b, c float32) float32 { return ref.Fma(a, b, c) }

// Exp is e^x, for every x, with the same bits on every machine.
func Exp(x float32) float32 { return ref.Exp(x) }

// Log is the natural logarithm of x, with the same bits on every machine.
func Log(x float32) float32 { return ref.Log(x) }

// PackRows packs the rows of a matrix src[n][k], whose row stride is lds, into panels of 16 lanes:
// dst[(j/16)*ldd + kk*16 + j%16] = src[j*lds+kk]. ldd, the stride between panels, is at least 16*k. The lanes past n
// in the last panel become zero.
func PackRows(dst []float32, ldd int, src []float32, lds int, n, k int) {
	ref.PackRows(dst, ldd, src, lds, n, k)
}

// PartSet is y[i*ldy+j] = part(i,j), the sum over kk < k of x[i*ldx+kk] * b[(j/16)*ldb+kk*16+j%16], for i < m and
// j < n: fma from zero in the order of k. k is at most 256. b holds panels (PackRows).
func PartSet(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, m, n, k int) {
	ref.PartSet(y, ldy, x, ldx, b, ldb, m, n, k)
}

// PartAdd is y[i*ldy+j] += part(i,j), one rounding.
func PartAdd(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, m, n, k int) {
	ref.PartAdd(y, ldy, x, ldx, b, ldb, m, n, k)
}

// PartScale is y[i*ldy+j] = fma(part(i,j), scale[j], y[i*ldy+j]). scale has n values.
func PartScale(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, scale []float32, m, n, k int) {
	ref.PartScale(y, ldy, x, ldx, b, ldb, scale, m, n, k)
}

// PartFoldSet is PartSet with x[i*ldx+kk] * scale[(j/16)*lds+kk*16+j%16], rounded, in place of x[i*ldx+kk].
func PartFoldSet(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, scale []float32, lds int, m, n, k int) {
	ref.PartFoldSet(y, ldy, x, ldx, b, ldb, scale, lds, m, n, k)
}

// PartFoldAdd is PartFoldSet with y[i*ldy+j] += part(i,j), one rounding.
func PartFoldAdd(y []float32, ldy int, x []float32, ldx int, b []float32, ldb int, scale []float32, lds int, m, n, k int) {
	ref.PartFoldAdd(y, ldy, x, ldx, b, ldb, scale, lds, m, n, k)
}

// SoftmaxTile turns the dots of n rows with a tile of at most 64 keys, s[key*lds+j], into probabilities in place and
// moves the running maximum m[n] and sum l[n]; alpha[n] becomes the factor for what was summed before. Row j sees the
// keys lo[j] <= key < hi[j]; a key out of that range, or whose score is -Inf, is masked: its place becomes -0.
func SoftmaxTile(s []float32, lds, keys, n int, lo, hi []int32, scale float32, m, l, alpha []float32) {
	ref.SoftmaxTile(s, lds, keys, n, lo, hi, scale, m, l, alpha)
}

// ValueTile scales n rows of sums o[j*ldo+c] by alpha[j] and adds p[key*ldp+j] * v[key*ldv+c] for each of at most 64
// keys in order, by fma; a key whose p is -0 is skipped. c < cols.
func ValueTile(o []float32, ldo int, p []float32, ldp int, v []float32, ldv int, alpha []float32, keys, n, cols int) {
	ref.ValueTile(o, ldo, p, ldp, v, ldv, alpha, keys, n, cols)
}

// FoldRows folds a partition, its maximum m[n], sum l[n] and values o[j*ldo+c], into the running M[n], L[n],
// O[j*ldO+c] of n rows. A maximum of -Inf says that nothing was seen.
func FoldRows(O []float32, ldO int, M, L []float32, o []float32, ldo int, m, l []float32, n, cols int) {
	ref.FoldRows(O, ldO, M, L, o, ldo, m, l, n, cols)
}

// FinishRows divides n rows O[j*ldO+c] by L[j], or by L[j] + exp(sink[j]-M[j]), into out[j*ldout+c], and gives each
// row's lse[j] = M[j] + Log(L[j]) and maxlogit[j] = M[j]. sink, lse and maxlogit may be nil. A row that saw nothing
// gives 0, +Inf and -Inf.
func FinishRows(out []float32, ldout int, O []float32, ldO int, M, L, sink, lse, maxlogit []float32, n, cols int) {
	ref.FinishRows(out, ldout, O, ldO, M, L, sink, lse, maxlogit, n, cols)
}

// MergeRows merges p normalised partial results of n rows of d values, parts[p][n][d] with their log-sum-exps
// partsLSE[p][n], into out[n][d] and lse[n]. An lse of -Inf or +Inf marks a part that saw nothing; a row all of whose
// parts saw nothing gives 0 and +Inf.
func MergeRows(out []float32, lse []float32, parts []float32, partsLSE []float32, p, n, d int) {
	ref.MergeRows(out, lse, parts, partsLSE, p, n, d)
}

// SumSquares is the sum of the squares of x, in 32 lanes.
func SumSquares(x []float32) float32 { return ref.SumSquares(x) }

// RMSNorm is dst[i] = (x[i]*r) * gamma[i] with r = 1/sqrt(mean of x^2 + eps), each operation rounded to f32. dst may
// be x.
func RMSNorm(dst, x, gamma []float32, eps float32) { ref.RMSNorm(dst, x, gamma, eps) }

// RMSNormBF16 is RMSNorm with both products rounded to bf16, for a gamma held in bf16.
func RMSNormBF16(dst, x, gamma []float32, eps float32) { ref.RMSNormBF16(dst, x, gamma, eps) }

// RMSNormF16 is RMSNorm with both products rounded to f16, for a gamma held in f16.
func RMSNormF16(dst, x, gamma []float32, eps float32) { ref.RMSNormF16(dst, x, gamma, eps) }

// RopeInterleaved turns the adjacent pairs (x[2i], x[2i+1]) of one row by the angles of freqs, pairs (cos, sin), of the
// same length as x. dst may be x.
func RopeInterleaved(dst, x, freqs []float32) { ref.RopeInterleaved(dst, x, freqs) }

// RopeHalf turns the pairs (x[i], x[i+P/2]) of one row of P values by the same table: pair i reads freqs[2i],
// freqs[2i+1]. dst may be x.
func RopeHalf(dst, x, freqs []float32) { ref.RopeHalf(dst, x, freqs) }

// QuantDynamic quantises one row of activations x to E4M3 codes, with a scale for each group of columns, the last of
// which may be short: scale = min(max |x|, 1200)/448, code = E4M3(clamp(x/scale, -448, 448)), where x/scale is x times
// the rounded reciprocal of the scale, or 0 if that is not finite. Inf counts as 1200. A group that holds a NaN gets NaN
// codes and the scale NaN. codes has len(x) values, scales ceil(len(x)/group); group is at least 1.
func QuantDynamic(codes []byte, scales []float32, x []float32, group int) {
	ref.QuantDynamic(codes, scales, x, group)
}
