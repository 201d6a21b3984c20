//go:build (!amd64 && !arm64) || purego

package simd_test

var bodies []body
