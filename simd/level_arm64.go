//go:build arm64 && !purego

package simd

import "github.com/klauspost/cpuid/v2"

// machine is what this processor and its system can run, best first: NEON is part of every arm64. cpuid reports BF16 on
// Linux and macOS.
func machine() (all []supported) {
	if cpuid.CPU.Supports(cpuid.BF16) {
		all = append(all, supported{setNEONBF16, "neonbf16"})
	}
	return append(all, supported{setNEON, "neon"})
}

func machineExtras() extras { return extras{} }

// SlowSubnormals tells that an fma of a subnormal is many times slower than another on this processor: Arm's are not.
func SlowSubnormals() bool { return false }
