//go:build amd64 && !purego

package simd

import "github.com/klauspost/cpuid/v2"

// machine is what this processor and its system can run, best first.
func machine() (all []supported) {
	// cpuid reports a set only if the system saves its registers.
	if !cpuid.CPU.Supports(cpuid.AVX, cpuid.AVX2, cpuid.FMA3, cpuid.F16C) {
		return nil
	}
	if cpuid.CPU.Supports(cpuid.AVX512F, cpuid.AVX512BW, cpuid.AVX512DQ, cpuid.AVX512VL) {
		if cpuid.CPU.Supports(cpuid.AVX512BF16) {
			all = append(all, supported{setAVX512BF16, "avx512bf16"})
		}
		all = append(all, supported{setAVX512, "avx512"})
	}
	return append(all, supported{setAVX2, "avx2"})
}

func machineExtras() extras {
	return extras{hasVBMI: cpuid.CPU.Supports(cpuid.AVX512VBMI), hasVNNI: cpuid.CPU.Supports(cpuid.AVX512VNNI)}
}

// SlowSubnormals tells that an fma of a subnormal is many times slower than another on this processor: Intel's take a
// microcode assist for it.
func SlowSubnormals() bool { return cpuid.CPU.VendorID == cpuid.Intel }
