// Package avx512bf16 holds the bodies of the kernels for AVX-512 F, BW, DQ, VL and BF16, as the workshop in simd/_gen
// writes them: those that multiply bf16 values in pairs. Only package simd calls them; package ref says what each
// computes. A body whose name ends in a further feature, such as VBMI, needs that as well.
package avx512bf16
