package workshop

import "math"

// gemmPairs multiplies activations in bf16 by codes.
type gemmPairs interface {
	open(a *A, scratch GP) // takes and fills what it needs all the time
	// multiply adds the products of four steps, whose codes are at cp, to sums. x has the steps of a row in its first 8
	// bytes.
	multiply(g *gemmWriter, sums, x []Vec)
}

// gemmE4M3PairsNEON is gemmNEON with bf16 activations, in its tile. Weights are multiplied by the 2^120 that their reading
// leaves out.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  V0 to V2 masks and 2^120; then x, 4 steps of a row in each; the sums, 2 to a row; codes and weights
//	reads      x by 4 values of k and codes by words of 8 lanes, both for each half of a panel; y once for each piece
//	order      as gemmNEON, k by two, the second first
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmE4M3PairsNEON(a *A) { gemmBodyNEON(a, nil, &gemmSplitPairs{}) }

// gemmE4M3PairsDotsNEON is gemmE4M3PairsNEON by BFMLALT and BFMLALB, with weights in bf16. They lie as their codes do: the
// second values of both pairs in one vector, the first ones in another.
//
//	computes   y = x * codes, piece of k by piece of k, y = fma(part, scale, y)
//	registers  V0 to V3 constants; then x, 4 steps of a row in each; the sums, 2 to a row; codes and weights
//	reads      as gemmE4M3PairsNEON
//	order      as gemmE4M3PairsNEON
//	limits     k0, k and step are multiples of 4, k > k0; no NaN codes
func gemmE4M3PairsDotsNEON(a *A) { gemmBodyNEON(a, nil, &gemmDotPairs{}) }

// pairSums takes and fills the sums of n rows of half a panel over a piece.
func (g *gemmWriter) pairSums(n int) []Vec {
	x, sums := g.Vecs("x", n), g.Vecs("sums", n*gemmVecs)
	g.toPiece(sums)
	loop := g.Fresh("loop")
	g.Label(loop)
	for i := range x {
		g.FMOVD(g.xs[i].Post(8), x[i])
	}
	g.pairs.multiply(g, sums, x)
	g.ADD(Imm(4*4*tileVecs), g.cp, g.cp)
	g.SUBS(Imm(gemmSteps), g.left, g.left)
	g.BNE(loop)
	g.FreeVecs(x...)
	return sums
}

// gemmSplitPairs makes float32 of codes and of activations.
type gemmSplitPairs struct{ halves, upper, by Vec }

func (m *gemmSplitPairs) open(a *A, scratch GP) {
	m.halves, m.upper, m.by = a.halves(0x87F0, scratch), a.words(0xFFFF0000, scratch), a.words(math.Float32bits(0x1p120), scratch)
}

// multiply has five registers for codes and weights. The second vector is decoded as those of the first are used up.
func (m *gemmSplitPairs) multiply(g *gemmWriter, sums, x []Vec) {
	r := g.Vecs("weights", 5)
	weight := func(v Vec) { g.VFMUL(m.by.S4(), v.S4(), v.S4()) }
	// open leaves steps 0 and 2 in the halves of the words of codes, and 1 and 3 in those of odd.
	open := func(w int, codes, odd Vec) {
		g.FMOVQ(g.cp.At(16*w), codes)
		g.VSSHR(4, codes.H8(), odd.H8())
		g.VSHL(8, codes.H8(), codes.H8())
		g.VAND(m.halves.B16(), odd.B16(), odd.B16())
		g.VSSHR(4, codes.H8(), codes.H8())
		g.VAND(m.halves.B16(), codes.B16(), codes.B16())
	}
	lower := func(v, to Vec) {
		g.VSHL(16, v.S4(), to.S4())
		weight(to)
	}
	upper := func(v Vec) {
		g.VAND(m.upper.B16(), v.B16(), v.B16())
		weight(v)
	}
	add := func(w, step int, weight Vec) {
		for i := range x {
			g.VFMLA(x[i].S(step), weight.S4(), sums[i*gemmVecs+w].S4())
		}
	}
	even, odd, first, second := r[0], r[1], r[2], r[3]
	open(0, even, odd)
	for i := range x {
		g.VSHLL(16, x[i].H4(), x[i].S4())
	}
	lower(odd, second)
	lower(even, first)
	upper(odd)
	upper(even)
	add(0, 1, second)
	even2, odd2 := r[4], second
	open(1, even2, odd2)
	add(0, 0, first)
	second2 := first
	lower(odd2, second2)
	add(0, 3, odd)
	first2 := odd
	lower(even2, first2)
	add(0, 2, even)
	upper(odd2)
	upper(even2)
	add(1, 1, second2)
	add(1, 0, first2)
	add(1, 3, odd2)
	add(1, 2, even2)
	g.FreeVecs(r...)
}

// gemmDotPairs makes bf16 of codes.
type gemmDotPairs struct{ *pairsOfCodes }

func (m *gemmDotPairs) open(a *A, scratch GP) { m.pairsOfCodes = a.newPairsOfCodes(scratch) }

func (m *gemmDotPairs) multiply(g *gemmWriter, sums, x []Vec) {
	codes, even, low, upper := g.Vec("codes"), g.Vec("even"), g.Vec("low"), g.Vec("upper")
	for w := range gemmVecs {
		g.FMOVQ(g.cp.At(16*w), codes)
		m.bytes(codes, even, low, upper)
		odd := low
		g.VTRN1(codes.B16(), low.B16(), even.B16())
		g.VTRN2(codes.B16(), low.B16(), odd.B16())
		for _, s := range []struct {
			step int
			add  func(m, n, d View)
			of   Vec
		}{{1, g.VBFMLALB, odd}, {0, g.VBFMLALB, even}, {3, g.VBFMLALT, odd}, {2, g.VBFMLALT, even}} {
			for i := range x {
				s.add(x[i].H(s.step), s.of.H8(), sums[i*gemmVecs+w].S4())
			}
		}
	}
	g.FreeVecs(codes, even, low, upper)
}
