// Package avx2 holds the bodies of the kernels for AVX2 with FMA and F16C, as the workshop in simd/_gen writes them. Only
// package simd calls them; package ref says what each computes.
package avx2
