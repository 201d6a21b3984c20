// Package neon holds the bodies of the kernels for arm64's baseline, ARMv8.0 with its vectors, as the workshop in simd/_gen
// writes them. Only package simd calls them; package ref says what each computes.
package neon
