//go:build (!amd64 && !arm64) || purego

package simd

func machine() []supported { return nil }

func machineExtras() extras { return extras{} }

// SlowSubnormals tells that an fma of a subnormal is many times slower than another on this processor.
func SlowSubnormals() bool { return false }
