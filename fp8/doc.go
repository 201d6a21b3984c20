// Package fp8 holds the small number formats, matrices of them with block
// scales, and the product that takes such a matrix as its weights.
//
// # Numbers
//
//	            7   6       3   2   0
//	E4M3       | s | exp 4   | man 3 |   bias 7,  max 448,   NaN 7F and FF, no Inf
//	E4M3FNUZ   | s | exp 4   | man 3 |   bias 8,  max 240,   NaN 80, no Inf, no -0
//	            7   6         2  1  0
//	E5M2       | s | exp 5     | m 2 |   bias 15, max 57344, NaN 7D-7F and FD-FF, Inf 7C and FC
//	E5M2FNUZ   | s | exp 5     | m 2 |   bias 16, max 57344, NaN 80, no Inf, no -0
//	            7                   0
//	E8M0       |       exp 8         |   bias 127: powers of two from 2^-127 to 2^127, NaN FF
//	            7  6  5  4  3  2  1  0
//	E2M1x2     |s| e 2 |m|s| e 2 |m  |   bias 1,  max 6: the first of two in the low half
//
// Rounding is to nearest, ties to even. What is too large becomes the largest
// value, NaN or Inf, as [Overflow] says; NaN stays NaN.
//
// # Matrices
//
// A [Matrix] is rows x cols of codes in row-major order, with one multiplier for
// each block of BlockRows x BlockCols codes; the blocks at the right and lower
// edge may be partial:
//
//	             BlockCols   BlockCols   rest
//	           +-----------+-----------+------+
//	BlockRows  |  s[0,0]   |  s[0,1]   | s[0,2]     value[i,j] = code[i,j] * s[i/BlockRows, j/BlockCols]
//	           +-----------+-----------+------+                  rounded to float32
//	rest       |  s[1,0]   |  s[1,1]   | s[1,2]
//	           +-----------+-----------+------+
//
// One scale for all is a block of the size of the matrix, one for each row a
// block of 1 x cols. Slicing keeps the place of the first row inside its block,
// so a slice may begin in the middle of one; transposing swaps the blocks too.
//
// # Packed weights and products
//
// [Pack] copies matrices of equal shape [N, K], one for each head, say, into
// panels of 16 outputs, off the garbage-collected heap:
//
//	codes   [batch][panel = n/16][k][lane = n%16]     lanes past N hold zero
//	        [batch][panel][k/4][lane][k%4]            E4M3 with scales, if K and the step allow
//	scales  [batch][panel][k/step][lane]              float32
//
// [PackOptions].Into puts them into the caller's memory instead, [Packed.WriteTo] into
// a file, from which [ReadPacked] has them back. [Packed.Mul] computes, for every
// matrix b of the batch,
//
//	y[b][i][j] = sum over k of x[b][i][k] * value[b][j][k]      i < M, j < N
//
// The order of roundings does not depend on the number of workers, on M, or on
// the machine. k is cut into pieces at multiples of 256 and, with scales, at
// multiples of the step, too; a piece starts from zero and runs through k in
// order by fused multiply-add. Then
//
//	no scales   y = part of the first piece, y = y + part of every other
//	scales      y = fma(part, scale, y) for every piece, from y = 0
//	step < 16   every x[k] is multiplied by its scale, rounded once; then as
//	            without scales
//
// That is [ComputeF32]. With [ComputeBF16] activations and weights are rounded to bf16 and the sums
// of pieces go by pairs of columns; all else is as above. It is up to twice as fast on processors
// that multiply pairs of bf16, errs by up to 2^-7 of the terms, and gives the same bits on all. Of
// the columns 2i and 2i+1, counted from the cut, the second comes first:
//
//	a[k]   x[k], for steps below 16 times its scale, as the nearest bf16; +0 for less than 2^-60
//	w[k]   the code as the nearest bf16; +0 for less than 2^-52
//	part   part = fma(a[2i+1], w[2i+1], part), then part = fma(a[2i], w[2i], part), for every i
//
// With a [Product].Group the activations are quantised to E4M3 first, for each row and group of
// columns, the last of which may be short:
//
//	amax  = the largest |x|; Inf counts as 1200
//	scale = min(amax, 1200)/448
//	recip = 1/scale, or 0 if that is not finite
//	code  = x*recip, clamped to +-448, to nearest even
//
// Then k is cut at the groups of both, whatever their size, part is the sum of the products of
// codes, and
//
//	y = fma(part, sx*sw, y)    sx*sw rounded, for every piece, from y = 0
//
// A group that holds a NaN makes all outputs of its row NaN.
//
// # Activations
//
// Products do not read x as it is: E4M3 weights of the second order of codes are decoded in
// registers, from activations that are multiplied by a power of two, exactly; others take bf16, or
// codes. An [Activation] is rows in that state. Packed.Mul makes them by itself; callers that split
// work themselves, or multiply the same rows by several weights, make one and use it as often as
// they like:
//
//	x [m][K]  ->  Packed.Activate  ->  Activation  ->  Packed.MulPanels  ->  y[i][n0 .. n1]
//	              of some weights                      of these or others    of matrix b
//
// Both are given a Compute and call its row of one table (compute.go). A new Compute is a constant
// and a row there and a file like f32.go or bf16.go, which says what a row of activations takes,
// makes it, multiplies panels by it and by codes, and cuts a product into items. Nothing else asks
// which one it is.
package fp8
