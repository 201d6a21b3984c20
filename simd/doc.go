// Package simd is the kernels: it picks the instruction set once, when the program starts, and has one function for each
// kernel. It speaks raw lanes of f32 and codes, and knows no head and no page. It is public for those who read and
// measure it, and outside the promise of compatibility: kernels come, go and change with what is above them.
//
//	     fp8, kvpaged, mla
//	             |
//	           simd              a direct call for each kernel, in a switch over the levels
//	      /      |      \
//	amd64/*   arm64/*   ref      generated assembly, and pure Go: the definition, and the level "generic"
//
// The levels, of which the best that the machine has is in use:
//
//	avx512bf16  amd64 with AVX-512 F, BW, DQ, VL and BF16
//	avx512      amd64 with AVX-512 F, BW, DQ and VL
//	avx2        amd64 with AVX2, FMA and F16C
//	neonbf16    arm64 with BF16
//	neon        arm64
//	generic     every machine, and every build with the tag purego
//
// A kernel without a body for a level runs that of the next level down of its architecture, or its definition. Every
// level gives the same bits (package ref says which). LAMINA_SIMD forces a level; if it names one that this machine or
// build lacks, Err tells so and the constructors of the packages above return it.
//
// Weights w[n][k] lie in panels of 16 outputs (PackRows), which the Part kernels read; k runs down:
//
//	             lane 0    lane 1          lane 15
//	panel 0      w[0][0]   w[1][0]   ...   w[15][0]        k = 0
//	             w[0][1]   w[1][1]   ...   w[15][1]        k = 1
//	             ...
//	panel 1      w[16][0]  w[17][0]  ...   w[31][0]        ldb values after panel 0
//	             ...
//
// A tile of attention lies key by key, with a lane for each query row:
//
//	s[key*lds+row]    dots, then probabilities; a masked place is -0
//	v[key*ldv+c]      values
//	o[row*ldo+c]      sums
//
// GemmE4M3 reads codes in panels, too, those of four consecutive k of an output side by side as one word:
//
//	codes[panel*ldc + k/4*64 + lane*4 + k%4]
//
// The kernels of pairs take bf16 values two by two, terms k and k+1 of a product or keys of a tile:
//
//	b[panel*ldb + k/2*32 + lane*2 + k%2]    weights or packed queries
//	p[key/2*ldp + 2*row + key%2]            probabilities; a masked place is -0
//	v[key/2*ldv + 2*c + key%2]              values
//
// Arguments named ld are strides in elements. An array must reach the last element that its strides and counts name, and
// need not reach further; one that is shorter is a panic, before anything is read or written. Outputs may not overlap
// inputs unless a kernel says so. No kernel allocates, and none keeps its arguments. In a race build, calls of assembly
// tell the race detector what they read and write.
//
// A call cannot be interrupted while assembly runs, not even by the garbage collector: callers cut their work into calls
// of at most Blocks().CallFMA multiply-adds, Blocks().CallPairs in pairs, or Blocks().CallFolds in pairs that are rounded
// for every output.
package simd
