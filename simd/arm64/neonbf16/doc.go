// Package neonbf16 holds the bodies of the kernels for arm64 with BF16, as the workshop in simd/_gen writes them: those
// that multiply bf16 values in pairs. Only package simd calls them; package ref says what each computes.
package neonbf16
