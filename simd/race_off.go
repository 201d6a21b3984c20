//go:build !race && (amd64 || arm64) && !purego

package simd

const raceEnabled = false

func raceTell[T any](x []T, rows, stride, n int, write bool) {}
