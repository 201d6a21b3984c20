// Package simd is the door to the kernels: it picks the instruction set once, when the program starts, and has one
// function for each kernel. It speaks raw lanes of f32 and codes, and knows no head and no page.
//
//	fp8, kvpaged, mla
//	       |
//	     simd          a direct call for each kernel
//	       |
//	      ref          pure Go: the definition, and the level "generic"
//
// Every level gives the same bits (package ref says which). LAMINA_SIMD forces a level; if it names one that this
// machine or build lacks, Err tells so and the constructors of the packages above return it.
//
// Weights w[n][k] lie in panels of 16 outputs (PackRows), which the Part kernels read; k runs down:
//
//	             lane 0    lane 1          lane 15
//	panel 0      w[0][0]   w[1][0]   ...   w[15][0]        k = 0
//	             w[0][1]   w[1][1]   ...   w[15][1]        k = 1
//	             ...
//	panel 1      w[16][0]  w[17][0]  ...   w[31][0]        ldb values after panel 0
//	             ...
//
// A tile of attention lies key by key, with a lane for each query row:
//
//	s[key*lds+row]    dots, then probabilities; a masked place is -0
//	v[key*ldv+c]      values
//	o[row*ldo+c]      sums
//
// Arguments named ld are strides in elements. Lengths are the caller's duty: an array must reach the last element that
// its strides and counts name, and need not reach further. Outputs may not overlap inputs unless a kernel says so.
// No kernel allocates, and none keeps its arguments.
package simd
