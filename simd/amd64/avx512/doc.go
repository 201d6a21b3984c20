// Package avx512 holds the bodies of the kernels for AVX-512 F, BW, DQ and VL, as the workshop in simd/_gen writes them.
// Only package simd calls them; package ref says what each computes. A body whose name ends in a further feature, such as
// VBMI, needs that as well.
package avx512
