package workshop

// The sizes that many kernels share.
const (
	panelsN = "(n+Lanes-1)/Lanes" // panels of n lanes
	panelK  = "k*Lanes"           // values of a panel
)

// both is the bodies of a generator that serves AVX2 and AVX-512.
func both(gen func(g *G)) []Body { return []Body{{avx2, "", gen}, {avx512, "", gen}} }

// everywhere is both, and the body for arm64.
func everywhere(gen func(g *G), arm func(a *A)) []Body { return append(both(gen), Body{neon, "", arm}) }

// kernels is the list: one row for each kernel.
var kernels = []*Kernel{
	{
		Name: "WidenBF16", File: "convert",
		Doc: `is

	for i := range src { dst[i] = BF16ToF32(src[i]) }

All conversions of slices need len(dst) >= len(src) and write len(src) values.`,
		Args:   []Arg{out("dst", "float32", "len(src)"), in("src", "uint16", "len(src)")},
		Bodies: everywhere(widenBF16, widenBF16NEON),
	},
	{
		Name: "WidenF16", File: "convert",
		Doc: `is

	for i := range src { dst[i] = F16ToF32(src[i]) }`,
		Args:   []Arg{out("dst", "float32", "len(src)"), in("src", "uint16", "len(src)")},
		Bodies: everywhere(widenF16, widenF16NEON),
	},
	{
		Name: "WidenE4M3", File: "convert",
		Doc: `is

	for i := range src { dst[i] = E4M3ToF32(src[i]) }`,
		Args:   []Arg{out("dst", "float32", "len(src)"), in("src", "byte", "len(src)")},
		Bodies: everywhere(widenE4M3, widenE4M3NEON),
	},
	{
		Name: "WidenE5M2", File: "convert",
		Doc: `is

	for i := range src { dst[i] = E5M2ToF32(src[i]) }`,
		Args:   []Arg{out("dst", "float32", "len(src)"), in("src", "byte", "len(src)")},
		Bodies: everywhere(widenE5M2, widenE5M2NEON),
	},
	{
		Name: "WidenE4M3FNUZ", File: "convert",
		Doc: `is

	for i := range src { dst[i] = E4M3FNUZToF32(src[i]) }`,
		Args:   []Arg{out("dst", "float32", "len(src)"), in("src", "byte", "len(src)")},
		Bodies: everywhere(widenE4M3FNUZ, widenE4M3FNUZNEON),
	},
	{
		Name: "WidenE5M2FNUZ", File: "convert",
		Doc: `is

	for i := range src { dst[i] = E5M2FNUZToF32(src[i]) }`,
		Args:   []Arg{out("dst", "float32", "len(src)"), in("src", "byte", "len(src)")},
		Bodies: everywhere(widenE5M2FNUZ, widenE5M2FNUZNEON),
	},
	{
		Name: "WidenE4M3Scaled", File: "convert",
		Doc: `is

	for i := range src { dst[i] = E4M3ToF32(src[i]) * scale }

with the product rounded once.`,
		Args:   []Arg{out("dst", "float32", "len(src)"), in("src", "byte", "len(src)"), num("scale", "float32")},
		Bodies: everywhere(widenE4M3Scaled, widenE4M3ScaledNEON),
	},
	{
		Name: "WidenE4M3Groups", File: "convert",
		Doc: `is

	for i := range src { dst[i] = E4M3ToF32(src[i]) * scales[i/group] }

with the product rounded once. The last group may be short; group is at least 1.`,
		Args:   []Arg{out("dst", "float32", "len(src)"), in("src", "byte", "len(src)"), in("scales", "float32", "(len(src)+group-1)/group"), num("group", "int")},
		Needs:  "group >= 1",
		Bodies: everywhere(widenE4M3Groups, widenE4M3GroupsNEON),
	},
	{
		Name: "WidenE2M1Groups", File: "convert",
		Doc: `is

	for i := range 2*len(src) { dst[i] = E2M1ToF32(src[i/2] >> (i%2*4)) * scales[i/group] }

with the product rounded once: a byte is two codes, the first in its lower half. The last group may be short; group is at least 1.`,
		Args:   []Arg{out("dst", "float32", "2*len(src)"), in("src", "byte", "len(src)"), in("scales", "float32", "(2*len(src)+group-1)/group"), num("group", "int")},
		Needs:  "group >= 1",
		Bodies: everywhere(widenE2M1Groups, widenE2M1GroupsNEON),
	},
	{
		Name: "NarrowBF16", File: "convert",
		Doc: `is

	for i := range src { dst[i] = F32ToBF16(src[i]) }`,
		Args:   []Arg{out("dst", "uint16", "len(src)"), in("src", "float32", "len(src)")},
		Bodies: everywhere(narrowBF16, narrowBF16NEON),
	},
	{
		Name: "NarrowF16", File: "convert",
		Doc: `is

	for i := range src { dst[i] = F32ToF16(src[i]) }`,
		Args:   []Arg{out("dst", "uint16", "len(src)"), in("src", "float32", "len(src)")},
		Bodies: everywhere(narrowF16, narrowF16NEON),
	},
	{
		Name: "NarrowE4M3", File: "convert",
		Doc: `is

	for i := range src { dst[i] = F32ToE4M3(src[i], Saturate) }`,
		Args:   []Arg{out("dst", "byte", "len(src)"), in("src", "float32", "len(src)")},
		Bodies: everywhere(narrowE4M3, narrowE4M3NEON),
	},
	{
		Name: "NarrowE5M2", File: "convert",
		Doc: `is

	for i := range src { dst[i] = F32ToE5M2(src[i], Saturate) }`,
		Args:   []Arg{out("dst", "byte", "len(src)"), in("src", "float32", "len(src)")},
		Bodies: everywhere(narrowE5M2, narrowE5M2NEON),
	},
	{
		Name: "NarrowE4M3FNUZ", File: "convert",
		Doc: `is

	for i := range src { dst[i] = F32ToE4M3FNUZ(src[i], Saturate) }`,
		Args:   []Arg{out("dst", "byte", "len(src)"), in("src", "float32", "len(src)")},
		Bodies: everywhere(narrowE4M3FNUZ, narrowE4M3FNUZNEON),
	},
	{
		Name: "NarrowE5M2FNUZ", File: "convert",
		Doc: `is

	for i := range src { dst[i] = F32ToE5M2FNUZ(src[i], Saturate) }`,
		Args:   []Arg{out("dst", "byte", "len(src)"), in("src", "float32", "len(src)")},
		Bodies: everywhere(narrowE5M2FNUZ, narrowE5M2FNUZNEON),
	},
	{
		Name: "NarrowE4M3Scaled", File: "convert",
		Doc: `is

	for i := range src { dst[i] = F32ToE4M3(src[i]/scale, Saturate) }

with the quotient rounded once to float32. Where it is NaN, the code is 7F with the sign bit of src[i].`,
		Args:   []Arg{out("dst", "byte", "len(src)"), in("src", "float32", "len(src)"), num("scale", "float32")},
		Bodies: everywhere(narrowE4M3Scaled, narrowE4M3ScaledNEON),
	},
	{
		Name: "PackRows", File: "pack",
		Doc:    `packs the rows of a matrix src[n][k], whose row stride is lds, into panels of 16 lanes: dst[(j/16)*ldd + kk*16 + j%16] = src[j*lds+kk]. ldd, the stride between panels, is at least 16*k. The lanes past n in the last panel become zero.`,
		Args:   []Arg{out("dst", "float32", panelsN, "ldd", panelK), num("ldd", "int"), in("src", "float32", "n", "lds", "k"), num("lds", "int"), num("n", "int"), num("k", "int")},
		Bodies: everywhere(packRows, packRowsNEON),
	},
	{
		Name: "Lift", File: "pack",
		Doc:    `is dst[i*ldd+kk] = x[i*ldx+kk] * by, rounded, for i < m and kk < k, and tells whether all results are finite. by is a power of two. dst may be x.`,
		Args:   []Arg{out("dst", "float32", "m", "ldd", "k"), num("ldd", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), num("m", "int"), num("k", "int"), num("by", "float32")},
		Result: "bool",
		Bodies: everywhere(lift, liftNEON),
	},
	{
		Name: "PartSet", File: "part",
		Doc:    `is y[i*ldy+j] = part(i,j), the sum over kk < k of x[i*ldx+kk] * b[(j/16)*ldb+kk*16+j%16], for i < m and j < n: fma from zero in the order of k. k is at most 256. b holds panels (PackRows).`,
		Args:   []Arg{out("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("b", "float32", panelsN, "ldb", panelK), num("ldb", "int"), num("m", "int"), num("n", "int"), num("k", "int")},
		Bodies: everywhere(partSet, partSetNEON),
	},
	{
		Name: "PartAdd", File: "part",
		Doc:    `is y[i*ldy+j] += part(i,j), one rounding.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("b", "float32", panelsN, "ldb", panelK), num("ldb", "int"), num("m", "int"), num("n", "int"), num("k", "int")},
		Bodies: everywhere(partAdd, partAddNEON),
	},
	{
		Name: "PartScale", File: "part",
		Doc:    `is y[i*ldy+j] = fma(part(i,j), scale[j], y[i*ldy+j]). scale has n values.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("b", "float32", panelsN, "ldb", panelK), num("ldb", "int"), in("scale", "float32", "n"), num("m", "int"), num("n", "int"), num("k", "int")},
		Bodies: everywhere(partScale, partScaleNEON),
	},
	{
		Name: "PartScaleRows", File: "part",
		Doc:    `is PartScale with rows[i*ldr] * scale[j], rounded, in place of scale[j]: a scale for each row as well.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("b", "float32", panelsN, "ldb", panelK), num("ldb", "int"), in("rows", "float32", "m", "ldr", "1"), num("ldr", "int"), in("scale", "float32", "n"), num("m", "int"), num("n", "int"), num("k", "int")},
		Bodies: everywhere(partScaleRows, partScaleRowsNEON),
	},
	{
		Name: "PartFoldSet", File: "part",
		Doc:    `is PartSet with x[i*ldx+kk] * scale[(j/16)*lds+kk*16+j%16], rounded, in place of x[i*ldx+kk].`,
		Args:   []Arg{out("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("b", "float32", panelsN, "ldb", panelK), num("ldb", "int"), in("scale", "float32", panelsN, "lds", panelK), num("lds", "int"), num("m", "int"), num("n", "int"), num("k", "int")},
		Bodies: everywhere(partFoldSet, partFoldSetNEON),
	},
	{
		Name: "PartFoldAdd", File: "part",
		Doc:    `is PartFoldSet with y[i*ldy+j] += part(i,j), one rounding.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("b", "float32", panelsN, "ldb", panelK), num("ldb", "int"), in("scale", "float32", panelsN, "lds", panelK), num("lds", "int"), num("m", "int"), num("n", "int"), num("k", "int")},
		Bodies: everywhere(partFoldAdd, partFoldAddNEON),
	},
	{
		Name: "GemmE4M3", File: "gemm",
		Doc: `is a whole product with E4M3 weights under block scales, for activations x that are lifted by 2^120 (Lift), which the weights make good: they count as their values times 2^-120.

	y[i*ldy+j] = 0
	for each piece [k0, k1) of [0, k), cut at the multiples of 256 and of step {
		part := sum of x[i*ldx+kk] * (E4M3ToF32(code(j,kk)) * 0x1p-120), by fma from zero in the order of kk
		y[i*ldy+j] = fma(part, scale[(j/16)*lds + k0/step*16 + j%16], y[i*ldy+j])
	}

for i < m and j < n. code(j,kk) is codes[(j/16)*ldc + kk/4*64 + j%16*4 + kk%4]: the codes of four consecutive kk of an output are one word. k and step are multiples of 4, k at least 4. No code may be NaN.`,
		Args:   []Arg{out("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("codes", "byte", panelsN, "ldc", panelK), num("ldc", "int"), in("scale", "float32", panelsN, "lds", "(k+step-1)/step*Lanes"), num("lds", "int"), num("m", "int"), num("n", "int"), num("k", "int"), num("step", "int")},
		Needs:  "k >= 4 && k%4 == 0 && step >= 4 && step%4 == 0",
		Bodies: everywhere(gemmE4M3, gemmNEON),
	},
	{
		Name: "GemmE4M3Half", File: "gemm",
		Doc:    `is GemmE4M3 for activations lifted by 2^8 and weights that count as their values times 2^-8, which are no subnormals: for processors on which an fma of a subnormal is slow.`,
		Args:   []Arg{out("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("codes", "byte", panelsN, "ldc", panelK), num("ldc", "int"), in("scale", "float32", panelsN, "lds", "(k+step-1)/step*Lanes"), num("lds", "int"), num("m", "int"), num("n", "int"), num("k", "int"), num("step", "int")},
		Needs:  "k >= 4 && k%4 == 0 && step >= 4 && step%4 == 0",
		Bodies: everywhere(gemmE4M3Half, gemmHalfNEON),
	},
	{
		Name: "SoftmaxTile", File: "softmax",
		Doc:    `turns the dots of n rows with a tile of at most 64 keys, s[key*lds+j], into probabilities in place and moves the running maximum m[n] and sum l[n]; alpha[n] becomes the factor for what was summed before. Row j sees the keys lo[j] <= key < hi[j]; a key out of that range, or whose score is -Inf, is masked: its place becomes -0. The result tells whether a key in the range of its row was masked.`,
		Args:   []Arg{inout("s", "float32", "keys", "lds", "n"), num("lds", "int"), num("keys", "int"), num("n", "int"), in("lo", "int32", "n"), in("hi", "int32", "n"), num("scale", "float32"), inout("m", "float32", "n"), inout("l", "float32", "n"), out("alpha", "float32", "n")},
		Result: "bool",
		Bodies: everywhere(softmaxTile, softmaxTileNEON),
	},
	{
		Name: "ValueTile", File: "value",
		Doc:    `scales n rows of sums o[j*ldo+c] by alpha[j], rounded, and adds p[key*ldp+j] * v[key*ldv+c] for each of at most 64 keys in order, by fma. c < cols. alpha may be nil: no row is scaled.`,
		Args:   []Arg{inout("o", "float32", "n", "ldo", "cols"), num("ldo", "int"), in("p", "float32", "keys", "ldp", "n"), num("ldp", "int"), in("v", "float32", "keys", "ldv", "cols"), num("ldv", "int"), opt(in("alpha", "float32", "n")), num("keys", "int"), num("n", "int"), num("cols", "int")},
		Bodies: everywhere(valueTile, valueNEON),
	},
	{
		Name: "ValueTileMasked", File: "value",
		Doc:    `is ValueTile that skips a key whose p is -0, whatever its values are.`,
		Args:   []Arg{inout("o", "float32", "n", "ldo", "cols"), num("ldo", "int"), in("p", "float32", "keys", "ldp", "n"), num("ldp", "int"), in("v", "float32", "keys", "ldv", "cols"), num("ldv", "int"), opt(in("alpha", "float32", "n")), num("keys", "int"), num("n", "int"), num("cols", "int")},
		Bodies: everywhere(valueTileMasked, valueMaskedNEON),
	},
	{
		Name: "FoldRows", File: "fold",
		Doc:    `folds a partition, its maximum m[n], sum l[n] and values o[j*ldo+c], into the running M[n], L[n], O[j*ldO+c] of n rows. A maximum of -Inf says that nothing was seen.`,
		Args:   []Arg{inout("O", "float32", "n", "ldO", "cols"), num("ldO", "int"), inout("M", "float32", "n"), inout("L", "float32", "n"), in("o", "float32", "n", "ldo", "cols"), num("ldo", "int"), in("m", "float32", "n"), in("l", "float32", "n"), num("n", "int"), num("cols", "int")},
		Bodies: everywhere(foldRows, foldRowsNEON),
	},
	{
		Name: "FinishRows", File: "fold",
		Doc:    `divides n rows O[j*ldO+c] by L[j], or by L[j] + exp(sink[j]-M[j]), into out[j*ldout+c], and gives each row's lse[j] = M[j] + Log(L[j]) and maxlogit[j] = M[j]. sink, lse and maxlogit may be nil. A row that saw nothing gives 0, +Inf and -Inf. out may be O.`,
		Args:   []Arg{out("out", "float32", "n", "ldout", "cols"), num("ldout", "int"), in("O", "float32", "n", "ldO", "cols"), num("ldO", "int"), in("M", "float32", "n"), in("L", "float32", "n"), opt(in("sink", "float32", "n")), opt(out("lse", "float32", "n")), opt(out("maxlogit", "float32", "n")), num("n", "int"), num("cols", "int")},
		Bodies: everywhere(finishRows, finishRowsNEON),
	},
	{
		Name: "MergeRows", File: "fold",
		Doc:    `merges p normalised partial results of n rows of d values, parts[p][n][d] with their log-sum-exps partsLSE[p][n], into out[n][d] and lse[n]. An lse of -Inf or +Inf marks a part that saw nothing; a row all of whose parts saw nothing gives 0 and +Inf.`,
		Args:   []Arg{out("out", "float32", "n*d"), out("lse", "float32", "n"), in("parts", "float32", "p*n*d"), in("partsLSE", "float32", "p*n"), num("p", "int"), num("n", "int"), num("d", "int")},
		Bodies: everywhere(mergeRows, mergeRowsNEON),
	},
	{
		Name: "SumSquares", File: "rows",
		Doc:    `is the sum of the squares of x, in 32 lanes.`,
		Args:   []Arg{in("x", "float32", "len(x)")},
		Result: "float32",
		Bodies: everywhere(sumSquares, sumSquaresNEON),
	},
	{
		Name: "RMSNorm", File: "rows",
		Doc:    `is dst[i] = (x[i]*r) * gamma[i] with r = 1/sqrt(mean of x^2 + eps), each operation rounded to f32. dst may be x.`,
		Args:   []Arg{out("dst", "float32", "len(x)"), in("x", "float32", "len(x)"), in("gamma", "float32", "len(x)"), num("eps", "float32")},
		Bodies: everywhere(rmsNorm, rmsNormNEON),
	},
	{
		Name: "RMSNormBF16", File: "rows",
		Doc:    `is RMSNorm with both products rounded to bf16, for a gamma held in bf16.`,
		Args:   []Arg{out("dst", "float32", "len(x)"), in("x", "float32", "len(x)"), in("gamma", "float32", "len(x)"), num("eps", "float32")},
		Bodies: everywhere(rmsNormBF16, rmsNormBF16NEON),
	},
	{
		Name: "RMSNormF16", File: "rows",
		Doc:    `is RMSNorm with both products rounded to f16, for a gamma held in f16.`,
		Args:   []Arg{out("dst", "float32", "len(x)"), in("x", "float32", "len(x)"), in("gamma", "float32", "len(x)"), num("eps", "float32")},
		Bodies: everywhere(rmsNormF16, rmsNormF16NEON),
	},
	{
		Name: "RopeInterleaved", File: "rows",
		Doc:    `turns the adjacent pairs (x[2i], x[2i+1]) of one row by the angles of freqs, pairs (cos, sin), of the same length as x. dst may be x.`,
		Args:   []Arg{out("dst", "float32", "len(x)"), in("x", "float32", "len(x)"), in("freqs", "float32", "len(x)")},
		Bodies: everywhere(ropeInterleaved, ropeInterleavedNEON),
	},
	{
		Name: "RopeHalf", File: "rows",
		Doc:    `turns the pairs (x[i], x[i+P/2]) of one row of P values by the same table: pair i reads freqs[2i], freqs[2i+1]. dst may be x.`,
		Args:   []Arg{out("dst", "float32", "len(x)"), in("x", "float32", "len(x)"), in("freqs", "float32", "len(x)")},
		Bodies: everywhere(ropeHalf, ropeHalfNEON),
	},
	{
		Name: "QuantDynamic", File: "rows",
		Doc:    `quantises one row of activations x to E4M3 codes, with a scale for each group of columns, the last of which may be short: scale = min(max |x|, 1200)/448, code = E4M3(clamp(x/scale, -448, 448)), where x/scale is x times the rounded reciprocal of the scale, or 0 if that is not finite. Inf counts as 1200. A group that holds a NaN gets NaN codes and the scale NaN. codes has len(x) values, scales ceil(len(x)/group); group is at least 1.`,
		Args:   []Arg{out("codes", "byte", "len(x)"), out("scales", "float32", "(len(x)+group-1)/group"), in("x", "float32", "len(x)"), num("group", "int")},
		Needs:  "group >= 1",
		Bodies: everywhere(quantDynamic, quantDynamicNEON),
	},
	{
		Name: "FmaLoop", File: "limits",
		Doc:    `measures what fma can do: for i < 192, n times, x[i] = fma(x[i], a, b), all in registers. x has 192 values.`,
		Args:   []Arg{inout("x", "float32", "192"), num("a", "float32"), num("b", "float32"), num("n", "int")},
		Bodies: everywhere(fmaLoop, fmaLoopNEON),
	},
	{
		Name: "XorWords", File: "limits",
		Doc:    `measures how fast memory is read: it is the exclusive or of all words of x.`,
		Args:   []Arg{in("x", "uint64", "len(x)")},
		Result: "uint64",
		Bodies: everywhere(xorWords, xorWordsNEON),
	},
	{
		Name: "Prefetch", File: "limits",
		Doc:    `asks the processor for the lines of x, which will be read soon. It is a hint: it reads nothing.`,
		Args:   []Arg{hint("x", "byte")},
		Bodies: []Body{{avx2, "", prefetchLines}, {neon, "", prefetchNEON}},
	},
}
