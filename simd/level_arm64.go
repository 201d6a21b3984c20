//go:build arm64 && !purego

package simd

// machine is what this processor and its system can run: NEON is part of every arm64.
func machine() []supported { return []supported{{setNEON, "neon"}} }

func machineExtras() extras { return extras{} }

// SlowSubnormals tells that an fma of a subnormal is many times slower than another on this processor: Arm's are not.
func SlowSubnormals() bool { return false }
