package workshop

// The sizes that many kernels share.
const (
	panelsN = "(n+Lanes-1)/Lanes" // panels of n lanes
	panelK  = "k*Lanes"           // values of a panel
	pairK   = "(k+1)/2*2*Lanes"   // the same in pairs
)

// both is the bodies of a generator that serves AVX2 and AVX-512.
func both(gen func(g *G)) []Body { return []Body{{avx2, "", gen}, {avx512, "", gen}} }

// everywhere is both, and the body for arm64.
func everywhere(gen func(g *G), arm func(a *A)) []Body { return append(both(gen), Body{neon, "", arm}) }

// inPairs is the bodies of a generator that multiplies pairs where the processor does, and splits them elsewhere.
func inPairs(gen func(g *G)) []Body { return append(both(gen), Body{avx512bf16, "", gen}) }

// inPairsNEON is inPairs, and the bodies for arm64 without and with instructions for pairs.
func inPairsNEON(gen func(g *G), arm, dots func(a *A)) []Body {
	return append(inPairs(gen), Body{neon, "", arm}, Body{neonbf16, "", dots})
}

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
		Doc: `is the terms from k0 to k of a product with E4M3 weights under block scales, for activations x that are lifted by 2^120 (Lift), which the weights make good: they count as their values times 2^-120.

	if k0 == 0 { y[i*ldy+j] = 0 }
	for each piece [a, b) of [k0, k), cut at the multiples of 256 and of step {
		part := sum of x[i*ldx+kk] * (E4M3ToF32(code(j,kk)) * 0x1p-120), by fma from zero in the order of kk
		y[i*ldy+j] = fma(part, scale[(j/16)*lds + a/step*16 + j%16], y[i*ldy+j])
	}

for i < m and j < n. code(j,kk) is codes[(j/16)*ldc + kk/4*64 + j%16*4 + kk%4]: the codes of four consecutive kk of an output are one word. A product that is cut where a piece begins has the bits of a whole one, call after call. k0, k and step are multiples of 4, k is more than k0. No code may be NaN. bypass is 1 for a y so large that it is better written past the caches, else 0; bodies may ignore it.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("codes", "byte", panelsN, "ldc", panelK), num("ldc", "int"), in("scale", "float32", panelsN, "lds", "(k+step-1)/step*Lanes"), num("lds", "int"), num("m", "int"), num("n", "int"), num("k0", "int"), num("k", "int"), num("step", "int"), num("bypass", "int")},
		Needs:  "k0 >= 0 && k > k0 && k0%4 == 0 && k%4 == 0 && step >= 4 && step%4 == 0",
		Bodies: everywhere(gemmE4M3, gemmNEON),
	},
	{
		Name: "GemmE4M3Half", File: "gemm",
		Doc:    `is GemmE4M3 for activations lifted by 2^8 and weights that count as their values times 2^-8, which are no subnormals: for processors on which an fma of a subnormal is slow.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("codes", "byte", panelsN, "ldc", panelK), num("ldc", "int"), in("scale", "float32", panelsN, "lds", "(k+step-1)/step*Lanes"), num("lds", "int"), num("m", "int"), num("n", "int"), num("k0", "int"), num("k", "int"), num("step", "int"), num("bypass", "int")},
		Needs:  "k0 >= 0 && k > k0 && k0%4 == 0 && k%4 == 0 && step >= 4 && step%4 == 0",
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
		Name: "ValueTileCausal", File: "value",
		Doc:    `is ValueTileMasked for the p of a causal mask: row j sees the keys below seen+j, and p is -0 at the others and only there. seen is at least 0.`,
		Args:   []Arg{inout("o", "float32", "n", "ldo", "cols"), num("ldo", "int"), in("p", "float32", "keys", "ldp", "n"), num("ldp", "int"), in("v", "float32", "keys", "ldv", "cols"), num("ldv", "int"), opt(in("alpha", "float32", "n")), num("keys", "int"), num("n", "int"), num("cols", "int"), num("seen", "int")},
		Needs:  "seen >= 0",
		Bodies: everywhere(valueTileCausal, valueCausalNEON),
	},
	{
		Name: "NarrowActBF16", File: "pair",
		Doc: `is, for activations of the second arithmetic,

	for i := range src { dst[i] = F32ToBF16(src[i]) }

with +0 for values below 2^-60, before they are rounded.`,
		Args:   []Arg{out("dst", "uint16", "len(src)"), in("src", "float32", "len(src)")},
		Bodies: append(inPairs(narrowActBF16), Body{neon, "", narrowActBF16NEON}),
	},
	{
		Name: "NarrowValueBF16", File: "pair",
		Doc: `is, for keys, values and weights of the second arithmetic,

	for i := range src { dst[i] = F32ToBF16(src[i]) }

with +0 for results below 2^-52.`,
		Args:   []Arg{out("dst", "uint16", "len(src)"), in("src", "float32", "len(src)")},
		Bodies: append(inPairs(narrowValueBF16), Body{neon, "", narrowValueBF16NEON}),
	},
	{
		Name: "FlushBF16", File: "pair",
		Doc: `is, for keys and values that are stored in bf16,

	for i := range src { dst[i] = src[i] }

with +0 for values below 2^-52. dst may be src.`,
		Args:   []Arg{out("dst", "uint16", "len(src)"), in("src", "uint16", "len(src)")},
		Bodies: everywhere(flushBF16, flushBF16NEON),
	},
	{
		Name: "TinyBF16", File: "pair",
		Doc:    `tells whether FlushBF16 would change a value other than zero of rows src[i*lds+c], i < rows and c < cols. Where it would not, rows serve the Pair kernels as they are.`,
		Args:   []Arg{in("src", "uint16", "rows", "lds", "cols"), num("lds", "int"), num("rows", "int"), num("cols", "int")},
		Result: "bool",
		Bodies: everywhere(tinyBF16, tinyBF16NEON),
	},
	{
		Name: "InterleaveBF16", File: "pair",
		Doc:    `lays the keys of a tile in pairs, as ValueTilePairs reads them: dst[(key/2)*ldd + 2*c + key%2] = src[key*lds+c] for key < keys and c < cols, with +0 for values below 2^-52, and in the second place of a last pair that has one key. It tells whether one of those values is not zero.`,
		Args:   []Arg{out("dst", "uint16", "(keys+1)/2", "ldd", "2*cols"), num("ldd", "int"), in("src", "uint16", "keys", "lds", "cols"), num("lds", "int"), num("keys", "int"), num("cols", "int")},
		Result: "bool",
		Bodies: everywhere(interleaveBF16, interleaveBF16NEON),
	},
	{
		Name: "PackPairs", File: "pair",
		Doc:    `packs the rows of a matrix src[n][k] of activations, whose row stride is lds, into panels of 16 lanes, in pairs: dst[(j/16)*ldd + kk/2*32 + j%16*2 + kk%2] = src[j*lds+kk], as NarrowActBF16 has it. ldd, the stride between panels, is at least 32 times the pairs. The lanes past n in the last panel become +0, and so does the second place of the last pair if k is odd.`,
		Args:   []Arg{out("dst", "uint16", panelsN, "ldd", pairK), num("ldd", "int"), in("src", "float32", "n", "lds", "k"), num("lds", "int"), num("n", "int"), num("k", "int")},
		Bodies: append(inPairs(packPairs), Body{neon, "", packPairsNEON}),
	},
	{
		Name: "PairPanel", File: "pair",
		Doc:    `lays a panel of k weights for 16 outputs in pairs: dst[kk/2*32 + lane*2 + kk%2] = src[kk*16+lane], as NarrowValueBF16 has it. The second place of the last pair becomes +0 if k is odd.`,
		Args:   []Arg{out("dst", "uint16", pairK), in("src", "float32", panelK), num("k", "int")},
		Bodies: everywhere(pairPanel, pairPanelNEON),
	},
	{
		Name: "PairPanelBF16", File: "pair",
		Doc:    `is PairPanel for weights in bf16: dst[kk/2*32 + lane*2 + kk%2] = src[kk*16+lane], with +0 for values below 2^-52.`,
		Args:   []Arg{out("dst", "uint16", pairK), in("src", "uint16", panelK), num("k", "int")},
		Bodies: everywhere(pairPanelBF16, pairPanelBF16NEON),
	},
	{
		Name: "WidenE4M3Pairs", File: "pair",
		Doc: `lays words of codes, of four consecutive k of an output each (GemmE4M3), in pairs:

	for kk := range len(codes)/16 {
		for lane := range 16 {
			c := codes[kk/4*64 + lane*4 + kk%4]
			dst[kk/2*32 + lane*2 + kk%2] = F32ToBF16(E4M3ToF32(c))
		}
	}

len(codes) is a multiple of 64.`,
		Args:   []Arg{out("dst", "uint16", "len(codes)"), in("codes", "byte", "len(codes)")},
		Needs:  "len(codes)%64 == 0",
		Bodies: append(both(widenE4M3Pairs), Body{avx512bf16, "VBMI", widenE4M3PairsVBMI}, Body{avx512bf16, "", widenE4M3PairsOwn}, Body{neon, "", widenE4M3PairsNEON}),
	},
	{
		Name: "PairSet", File: "pairpart",
		Doc:    `is y[i*ldy+j] = part(i,j), the sum over the bf16 pairs kk = 0, 2, ... below k of x[i*ldx+kk+1] * w[kk+1], then x[i*ldx+kk] * w[kk], for i < m and j < n, by fma from zero, where w[kk] is b[(j/16)*ldb + kk/2*32 + j%16*2 + kk%2]: the second of a pair comes first. k is at most 256. b holds panels (PackPairs, PairPanel); if k is odd, the second place of the last pair is zero. Of x and b, one holds nothing below 2^-60 but zeros and the other nothing below 2^-52.`,
		Args:   []Arg{out("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "uint16", "m", "ldx", "k"), num("ldx", "int"), in("b", "uint16", panelsN, "ldb", pairK), num("ldb", "int"), num("m", "int"), num("n", "int"), num("k", "int")},
		Needs:  "k <= 256",
		Bodies: inPairsNEON(pairSet, pairSetNEON, pairSetDotsNEON),
	},
	{
		Name: "PairAdd", File: "pairpart",
		Doc:    `is PairSet with y[i*ldy+j] += part(i,j), one rounding.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "uint16", "m", "ldx", "k"), num("ldx", "int"), in("b", "uint16", panelsN, "ldb", pairK), num("ldb", "int"), num("m", "int"), num("n", "int"), num("k", "int")},
		Needs:  "k <= 256",
		Bodies: inPairsNEON(pairAdd, pairAddNEON, pairAddDotsNEON),
	},
	{
		Name: "PairScale", File: "pairpart",
		Doc:    `is PairSet with y[i*ldy+j] = fma(part(i,j), scale[j], y[i*ldy+j]). scale has n values.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "uint16", "m", "ldx", "k"), num("ldx", "int"), in("b", "uint16", panelsN, "ldb", pairK), num("ldb", "int"), in("scale", "float32", "n"), num("m", "int"), num("n", "int"), num("k", "int")},
		Needs:  "k <= 256",
		Bodies: inPairsNEON(pairScale, pairScaleNEON, pairScaleDotsNEON),
	},
	{
		Name: "PairScaleRows", File: "pairpart",
		Doc:    `is PairScale with rows[i*ldr] * scale[j], rounded, in place of scale[j]: a scale for each row as well.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "uint16", "m", "ldx", "k"), num("ldx", "int"), in("b", "uint16", panelsN, "ldb", pairK), num("ldb", "int"), in("rows", "float32", "m", "ldr", "1"), num("ldr", "int"), in("scale", "float32", "n"), num("m", "int"), num("n", "int"), num("k", "int")},
		Needs:  "k <= 256",
		Bodies: inPairsNEON(pairScaleRows, pairScaleRowsNEON, pairScaleRowsDotsNEON),
	},
	{
		Name: "PairFoldSet", File: "pairpart",
		Doc:    `is PairSet for float32 activations, with x[i*ldx+kk] * scale[(j/16)*lds+kk*16+j%16], rounded, then as NarrowActBF16 has it, in place of x[i*ldx+kk]. Rounding for each output takes some ten times as long as the multiply-add: Blocks().CallFolds bounds a call.`,
		Args:   []Arg{out("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("b", "uint16", panelsN, "ldb", pairK), num("ldb", "int"), in("scale", "float32", panelsN, "lds", panelK), num("lds", "int"), num("m", "int"), num("n", "int"), num("k", "int")},
		Needs:  "k <= 256",
		Bodies: everywhere(pairFoldSet, pairFoldSetNEON),
	},
	{
		Name: "PairFoldAdd", File: "pairpart",
		Doc:    `is PairFoldSet with y[i*ldy+j] += part(i,j), one rounding.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "float32", "m", "ldx", "k"), num("ldx", "int"), in("b", "uint16", panelsN, "ldb", pairK), num("ldb", "int"), in("scale", "float32", panelsN, "lds", panelK), num("lds", "int"), num("m", "int"), num("n", "int"), num("k", "int")},
		Needs:  "k <= 256",
		Bodies: everywhere(pairFoldAdd, pairFoldAddNEON),
	},
	{
		Name: "GemmE4M3Pairs", File: "pairgemm",
		Doc: `is the terms from k0 to k of a product with E4M3 weights under block scales, for bf16 activations:

	if k0 == 0 { y[i*ldy+j] = 0 }
	for each piece [a, b) of [k0, k), cut at the multiples of 256 and of step {
		part := sum over kk = a, a+2, ... of x[i*ldx+kk+1] * E4M3ToF32(code(j,kk+1)), then x[i*ldx+kk] * E4M3ToF32(code(j,kk)), by fma from zero
		y[i*ldy+j] = fma(part, scale[(j/16)*lds + a/step*16 + j%16], y[i*ldy+j])
	}

for i < m and j < n. code(j,kk) is codes[(j/16)*ldc + kk/4*64 + j%16*4 + kk%4], as for GemmE4M3. k0, k and step are multiples of 4, k is more than k0. x holds nothing below 2^-60 but zeros. No code may be NaN.`,
		Args:   []Arg{inout("y", "float32", "m", "ldy", "n"), num("ldy", "int"), in("x", "uint16", "m", "ldx", "k"), num("ldx", "int"), in("codes", "byte", panelsN, "ldc", panelK), num("ldc", "int"), in("scale", "float32", panelsN, "lds", "(k+step-1)/step*Lanes"), num("lds", "int"), num("m", "int"), num("n", "int"), num("k0", "int"), num("k", "int"), num("step", "int")},
		Needs:  "k0 >= 0 && k > k0 && k0%4 == 0 && k%4 == 0 && step >= 4 && step%4 == 0",
		Bodies: append(both(gemmE4M3Pairs), Body{avx512bf16, "VBMI", gemmE4M3PairsVBMI}, Body{avx512bf16, "", gemmE4M3PairsOwn}, Body{neon, "", gemmE4M3PairsNEON}, Body{neonbf16, "", gemmE4M3PairsDotsNEON}),
	},
	{
		Name: "CopyRows", File: "copy",
		Doc:    `is dst[i*ldd+j] = src[i*lds+j] for i < rows and j < cols. bypass is 1 for a dst so large that it is better written past the caches, else 0; bodies may ignore it.`,
		Args:   []Arg{out("dst", "float32", "rows", "ldd", "cols"), num("ldd", "int"), in("src", "float32", "rows", "lds", "cols"), num("lds", "int"), num("rows", "int"), num("cols", "int"), num("bypass", "int")},
		Bodies: everywhere(copyRows, copyRowsNEON),
	},
	{
		Name: "SoftmaxTilePairs", File: "pairsoftmax",
		Doc:    `is SoftmaxTile with probabilities that are rounded to bf16, as NarrowActBF16 has it, before they are summed, and laid in pairs of keys: p[(key/2)*ldp + 2*j + key%2]. A masked place is -0, and so is the second place of the last pair if keys is odd. s becomes the scores, -Inf where masked. A row that sees no key has the alpha -1, one that sees its first -0.`,
		Args:   []Arg{out("p", "uint16", "(keys+1)/2", "ldp", "2*n"), num("ldp", "int"), inout("s", "float32", "keys", "lds", "n"), num("lds", "int"), num("keys", "int"), num("n", "int"), in("lo", "int32", "n"), in("hi", "int32", "n"), num("scale", "float32"), inout("m", "float32", "n"), inout("l", "float32", "n"), out("alpha", "float32", "n")},
		Result: "bool",
		Bodies: append(inPairs(softmaxTilePairs), Body{neon, "", softmaxTilePairsNEON}),
	},
	{
		Name: "ValueTilePairs", File: "pairvalue",
		Doc:    `scales n rows of sums o[j*ldo+c] by alpha[j], rounded, with +0 for results below 2^-95, and adds for each of at most 32 pairs of keys in order p[i*ldp+2*j+1] * v[i*ldv+2*c+1], then p[i*ldp+2*j] * v[i*ldv+2*c], by fma. c < cols. A row whose alpha is -0 begins at +0, whatever it holds. One whose alpha is -1 is left as it is, and so are all if alpha is nil: it must hold nothing below 2^-95 but +0 then. p holds nothing below 2^-60 but zeros, v nothing below 2^-52. next is memory that is read soon: bodies may ask for its lines on the way.`,
		Args:   []Arg{inout("o", "float32", "n", "ldo", "cols"), num("ldo", "int"), in("p", "uint16", "pairs", "ldp", "2*n"), num("ldp", "int"), in("v", "uint16", "pairs", "ldv", "2*cols"), num("ldv", "int"), opt(in("alpha", "float32", "n")), num("pairs", "int"), num("n", "int"), num("cols", "int"), hint("next", "byte")},
		Needs:  "pairs <= 32",
		Bodies: inPairsNEON(valueTilePairs, valueTilePairsNEON, valueTilePairsDotsNEON),
	},
	{
		Name: "ValueTilePairsMasked", File: "pairvalue",
		Doc:    `is ValueTilePairs that skips a key whose p is -0, whatever its values are: a pair of two such keys has no step, in a pair with one its p and v count as 0. A row whose alpha is -1 has no other keys.`,
		Args:   []Arg{inout("o", "float32", "n", "ldo", "cols"), num("ldo", "int"), in("p", "uint16", "pairs", "ldp", "2*n"), num("ldp", "int"), in("v", "uint16", "pairs", "ldv", "2*cols"), num("ldv", "int"), opt(in("alpha", "float32", "n")), num("pairs", "int"), num("n", "int"), num("cols", "int")},
		Needs:  "pairs <= 32",
		Bodies: inPairsNEON(valueTilePairsMasked, valueTilePairsMaskedNEON, valueTilePairsMaskedDotsNEON),
	},
	{
		Name: "ValueTilePairsCausal", File: "pairvalue",
		Doc:    `is ValueTilePairsMasked for the p of a causal mask: row j sees the keys below seen+j, and p is -0 at the others and only there. seen is at least 0.`,
		Args:   []Arg{inout("o", "float32", "n", "ldo", "cols"), num("ldo", "int"), in("p", "uint16", "pairs", "ldp", "2*n"), num("ldp", "int"), in("v", "uint16", "pairs", "ldv", "2*cols"), num("ldv", "int"), opt(in("alpha", "float32", "n")), num("pairs", "int"), num("n", "int"), num("cols", "int"), num("seen", "int")},
		Needs:  "pairs <= 32 && seen >= 0",
		Bodies: inPairsNEON(valueTilePairsCausal, valueTilePairsCausalNEON, valueTilePairsCausalDotsNEON),
	},
	{
		Name: "FoldRows", File: "fold",
		Doc:    `folds a partition, its maximum m[n], sum l[n] and values o[j*ldo+c], into the running M[n], L[n], O[j*ldO+c] of n rows. A maximum of -Inf says that nothing was seen.`,
		Args:   []Arg{inout("O", "float32", "n", "ldO", "cols"), num("ldO", "int"), inout("M", "float32", "n"), inout("L", "float32", "n"), in("o", "float32", "n", "ldo", "cols"), num("ldo", "int"), in("m", "float32", "n"), in("l", "float32", "n"), num("n", "int"), num("cols", "int")},
		Bodies: everywhere(foldRows, foldRowsNEON),
	},
	{
		Name: "FinishRows", File: "fold",
		Doc:    `divides n rows O[j*ldO+c] by L[j], or by L[j] + exp(sink[j]-M[j]), into out[j*ldout+c], and gives each row's lse[j] = M[j] + Log(L[j]) and maxlogit[j] = M[j]. sink, lse and maxlogit may be nil. A row that saw nothing gives 0, +Inf and -Inf. out may be O. bypass is 1 for rows that are better written past the caches, else 0; bodies may ignore it.`,
		Args:   []Arg{out("out", "float32", "n", "ldout", "cols"), num("ldout", "int"), in("O", "float32", "n", "ldO", "cols"), num("ldO", "int"), in("M", "float32", "n"), in("L", "float32", "n"), opt(in("sink", "float32", "n")), opt(out("lse", "float32", "n")), opt(out("maxlogit", "float32", "n")), num("n", "int"), num("cols", "int"), num("bypass", "int")},
		Bodies: everywhere(finishRows, finishRowsNEON),
	},
	{
		Name: "FinishRowsBF16", File: "fold",
		Doc:    `is FinishRows with outputs rounded to bfloat16, to nearest even. out may not be O.`,
		Args:   []Arg{out("out", "uint16", "n", "ldout", "cols"), num("ldout", "int"), in("O", "float32", "n", "ldO", "cols"), num("ldO", "int"), in("M", "float32", "n"), in("L", "float32", "n"), opt(in("sink", "float32", "n")), opt(out("lse", "float32", "n")), opt(out("maxlogit", "float32", "n")), num("n", "int"), num("cols", "int"), num("bypass", "int")},
		Bodies: everywhere(finishRowsBF16, finishRowsBF16NEON),
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
		Name: "PairLoop", File: "limits",
		Doc:    `measures what pair steps can do: for i < 192, n times, x[i] = fma(a[1], b[1], x[i]), then x[i] = fma(a[0], b[0], x[i]), all in registers. a and b are a pair of bf16 each, the first value in the lower half. x has 192 values; none, and no sum, may be subnormal.`,
		Args:   []Arg{inout("x", "float32", "192"), num("a", "uint32"), num("b", "uint32"), num("n", "int")},
		Bodies: inPairsNEON(pairLoop, pairLoopNEON, pairLoopDotsNEON),
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
		Doc:    `asks the processor for the lines of rows x[i*ld:][:n], for i < rows, which will be read soon. It is a hint: it reads nothing, and wants nothing of ld, n and rows.`,
		Args:   []Arg{hint("x", "byte"), num("ld", "int"), num("n", "int"), num("rows", "int")},
		Bodies: []Body{{avx2, "", prefetchLines}, {neon, "", prefetchNEON}},
	},
}
