package workshop

import "slices"

// Level is an instruction set: a folder of bodies, and what its machines promise.
type Level struct {
	Name   string // as LAMINA_SIMD names it
	Set    string // the door's constant
	Arch   string // GOARCH
	Lanes  int    // float32 in a vector
	ISA    []string
	Extras map[string]string // features that a row may name: the ISA each adds
}

// The levels, worst first within an architecture. avo names the instruction sets of amd64, MMX+ being what SSE has in
// PREFETCHT0; GNU as names those of arm64.
var (
	avx2 = &Level{
		Name: "avx2", Set: "setAVX2", Arch: "amd64", Lanes: 8,
		ISA: []string{"MMX+", "SSE", "SSE2", "AVX", "AVX2", "FMA3", "F16C"},
	}
	avx512 = &Level{
		Name: "avx512", Set: "setAVX512", Arch: "amd64", Lanes: 16,
		ISA:    []string{"MMX+", "SSE", "SSE2", "AVX", "AVX2", "FMA3", "F16C", "AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"},
		Extras: map[string]string{"VBMI": "AVX512VBMI", "VNNI": "AVX512VNNI"},
	}
	avx512bf16 = &Level{
		Name: "avx512bf16", Set: "setAVX512BF16", Arch: "amd64", Lanes: 16,
		ISA:    append(slices.Clone(avx512.ISA), "AVX512_BF16"),
		Extras: avx512.Extras,
	}
	neon = &Level{
		Name: "neon", Set: "setNEON", Arch: "arm64", Lanes: 4, // the baseline of arm64: ARMv8.0 with ASIMD
		Extras: map[string]string{"DOTPROD": "dotprod", "FP16": "fp16", "FP16FML": "fp16fml", "I8MM": "i8mm", "BF16": "bf16"},
	}
	neonbf16 = &Level{
		Name: "neonbf16", Set: "setNEONBF16", Arch: "arm64", Lanes: 4,
		ISA:    []string{"bf16"},
		Extras: map[string]string{"DOTPROD": "dotprod", "FP16": "fp16", "FP16FML": "fp16fml", "I8MM": "i8mm"},
	}
	levels = []*Level{avx2, avx512, avx512bf16, neon, neonbf16}
)
