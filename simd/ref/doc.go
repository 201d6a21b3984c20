// Package ref is every kernel in pure Go: the definition of the kernels of package simd, and the body that runs where
// no other does.
//
// Each comment says what a kernel is, as a loop in Go, and with it the order of its roundings. Every body for an
// instruction set gives the same bits. fma is one rounding; every other operation in those loops rounds to f32, to
// nearest even; subnormal values are kept; a NaN is a class and not bits, except in Exp and the bf16 and f16
// conversions.
//
// One output is one lane: no sum is taken across lanes but the halving steps of SumSquares, so the shape of a
// tile, the width of a register and the number of rows do not touch the bits. A matrix of weights w[n][k] is read in
// panels of 16 outputs, which PackRows makes:
//
//	             lane 0    lane 1          lane 15
//	panel 0      w[0][0]   w[1][0]   ...   w[15][0]        k = 0
//	             w[0][1]   w[1][1]   ...   w[15][1]        k = 1
//	             ...
//	panel 1      w[16][0]  w[17][0]  ...   w[31][0]        ldb values after panel 0
//	             ...
//
// Attention reads a tile of at most 64 keys by n query rows. Its dots are a product whose weights are the query rows,
// so they lie key by key, a lane for each row, and turn into probabilities where they are:
//
//	             row 0     row 1           row n-1
//	s, p         key 0     key 0     ...   key 0           lds values to key 1
//	             ...
//	             key 63    key 63    ...   key 63
//	m, l, alpha  running maximum, sum and factor of each row
//	o            row by row, cols values each
//	v            key by key, cols values each
//
// The second arithmetic multiplies bf16 values in pairs: two consecutive terms, or keys, side by side, the first one in
// front (PackPairs, InterleaveBF16). A pair step adds the product of the second before that of the first, each by fma:
//
//	             lane 0             lane 1                  lane 15
//	panel 0      w[0][0] w[0][1]    w[1][0] w[1][1]   ...   w[15][0] w[15][1]        k = 0 and 1
//	             ...
//	p            row 0              row 1
//	             key 0   key 1      key 0   key 1     ...                            ldp values to keys 2 and 3
//	v            column 0           column 1
//	             key 0   key 1      key 0   key 1     ...                            ldv values to keys 2 and 3
//
// Lengths are the caller's duty: an array must reach its last element, and need not reach further. Strides are in
// elements. A count may be 0, unless a kernel says more: nothing of what it counts is read or written then, whatever the
// stride, and a sum of no terms is +0. Outputs may not overlap inputs unless a kernel says so.
package ref
