package simd_test

import (
	"math"
	"math/rand/v2"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
	"github.com/lamina-ml/lamina/simd/ref"
)

// pairTrials are those of the second arithmetic.
var pairTrials = map[string]trial{
	"NarrowActBF16":   narrowPairTrial,
	"NarrowValueBF16": narrowPairTrial,
	"FlushBF16": func(r *rand.Rand, class kerneltest.Class) []any {
		src := storedBF16(r, class, oneOf(r, convertLengths...))
		if r.IntN(2) == 0 {
			return []any{src, src}
		}
		return []any{make([]uint16, len(src)), src}
	},
	"TinyBF16": func(r *rand.Rand, class kerneltest.Class) []any {
		rows, cols := r.IntN(9), oneOf(r, convertLengths...)
		lds := rowsOf(r, cols)
		return []any{scarce(r, storedBF16(r, class, extent(rows, lds, cols))), lds, rows, cols}
	},
	"InterleaveBF16": func(r *rand.Rand, class kerneltest.Class) []any {
		keys, cols := oneOf(r, 0, 1, 2, 3, 4, 5, 9, 64), oneOf(r, lengths...)
		lds, ldd := rowsOf(r, cols), rowsOf(r, 2*cols)
		dst := make([]uint16, extent((keys+1)/2, ldd, 2*cols))
		return []any{dst, ldd, scarce(r, storedBF16(r, class, extent(keys, lds, cols))), lds, keys, cols}
	},
	"PackPairs": func(r *rand.Rand, class kerneltest.Class) []any {
		n, k := r.IntN(40), oneOf(r, lengths...)
		lds, ldd := rowsOf(r, k), rowsOf(r, pairSize(k))
		dst := make([]uint16, extent(panelCount(n), ldd, pairSize(k)))
		return []any{dst, ldd, nearPairBounds(r, class.Make(r, extent(n, lds, k))), lds, n, k}
	},
	"PairPanel": func(r *rand.Rand, class kerneltest.Class) []any {
		k := oneOf(r, lengths...)
		return []any{make([]uint16, pairSize(k)), nearPairBounds(r, class.Make(r, k*simd.Lanes)), k}
	},
	"PairPanelBF16": func(r *rand.Rand, class kerneltest.Class) []any {
		k := oneOf(r, lengths...)
		return []any{make([]uint16, pairSize(k)), scarce(r, storedBF16(r, class, k*simd.Lanes)), k}
	},
	"WidenE4M3Pairs": func(r *rand.Rand, _ kerneltest.Class) []any {
		codes := make([]byte, 64*r.IntN(20))
		for i := range codes {
			codes[i] = byte(r.Uint32())
		}
		return []any{make([]uint16, len(codes)), codes}
	},
	"PairSet":       func(r *rand.Rand, class kerneltest.Class) []any { return drawPair(r, class).args() },
	"PairAdd":       func(r *rand.Rand, class kerneltest.Class) []any { return drawPair(r, class).args() },
	"PairScale":     pairScaleTrial,
	"PairScaleRows": pairScaleRowsTrial,
	"PairFoldSet":   pairFoldTrial,
	"PairFoldAdd":   pairFoldTrial,
	"GemmE4M3Pairs": func(r *rand.Rand, class kerneltest.Class) []any {
		args := gemmTrial(1)(r, class)
		args[2] = actsBF16(r, class, len(args[2].([]float32)))
		return args[:len(args)-1] // which has no bypass
	},
	"SoftmaxTilePairs": func(r *rand.Rand, class kerneltest.Class) []any {
		args := softmaxTrial(r, class)
		keys, n := args[2].(int), args[3].(int)
		ldp := rowsOf(r, 2*n)
		fullNaNs(r, args[0].([]float32))
		return append([]any{make([]uint16, extent((keys+1)/2, ldp, 2*n)), ldp}, args...)
	},
	"ValueTilePairs": func(r *rand.Rand, class kerneltest.Class) []any {
		return append(valuePairTrial(r, class, false), make([]byte, oneOf(r, 0, 1, 64, 5000)))
	},
	"ValueTilePairsCausal": causalPairTrial,
	"ValueTilePairsMasked": func(r *rand.Rand, class kerneltest.Class) []any { return valuePairTrial(r, class, true) },
	"PairLoop": func(r *rand.Rand, class kerneltest.Class) []any {
		pair := func(values []uint16) uint32 { return uint32(values[0]) | uint32(values[1])<<16 }
		x := sums(class.Make(r, 192))
		return []any{x, pair(actsBF16(r, class, 2)), pair(valuesBF16(r, class, 2)), r.IntN(20)}
	},
}

// pairSize is the values of a panel of k terms in pairs.
func pairSize(k int) int { return (k + 1) / 2 * 2 * simd.Lanes }

// The bounds of the second arithmetic: below them, activations, stored values and sums count as zero.
const actBound, valueBound, sumBound = 0x1p-60, 0x1p-52, 0x1p-95

// nearPairBounds puts values that are next to the bounds into x, of both signs.
func nearPairBounds(r *rand.Rand, x []float32) []float32 {
	bounds := [...]float32{actBound, valueBound, sumBound}
	for i := range x {
		if r.IntN(4) == 0 {
			bits := math.Float32bits(bounds[r.IntN(len(bounds))])
			bits += uint32(r.IntN(1<<17) - 1<<16)
			if r.IntN(2) == 0 {
				bits = bits&0xFFFF0000 + uint32(r.IntN(3)) - 1
			}
			x[i] = math.Float32frombits(bits | r.Uint32()&(1<<31))
		}
	}
	return x
}

// fullNaNs sets, half of the time, all bits of the NaN in x. Where NaN keep theirs through sums and products, as on Arm,
// rounding those as numbers gives -0.
func fullNaNs(r *rand.Rand, x []float32) []float32 {
	if r.IntN(2) == 0 {
		for i, v := range x {
			if v != v {
				x[i] = math.Float32frombits(0x7FFFFFFF | r.Uint32()&(1<<31))
			}
		}
	}
	return x
}

func narrowPairTrial(r *rand.Rand, class kerneltest.Class) []any {
	args := narrowTrial(ref.BF16ToF32)(r, class)
	nearPairBounds(r, args[1].([]float32))
	return args
}

// storedBF16 is what a cache may hold: anything.
func storedBF16(r *rand.Rand, class kerneltest.Class, n int) []uint16 {
	dst := make([]uint16, n)
	ref.NarrowBF16(dst, nearPairBounds(r, class.Make(r, n)))
	return dst
}

// scarce leaves few values that are tiny, one or none.
func scarce(r *rand.Rand, x []uint16) []uint16 {
	if r.IntN(3) > 0 && len(x) > 0 {
		at := r.IntN(len(x))
		keep := x[at]
		ref.FlushBF16(x, x)
		if r.IntN(2) == 0 {
			x[at] = keep
		}
	}
	return x
}

// actsBF16 are activations and valuesBF16 stored values as the products read them. Some cancel in a pair, some overflow
// with its first step or its second.
func actsBF16(r *rand.Rand, class kerneltest.Class, n int) []uint16 {
	dst := make([]uint16, n)
	ref.NarrowActBF16(dst, pairClasses(r, class.Make(r, n)))
	return dst
}

func valuesBF16(r *rand.Rand, class kerneltest.Class, n int) []uint16 {
	dst := make([]uint16, n)
	ref.NarrowValueBF16(dst, pairClasses(r, class.Make(r, n)))
	return dst
}

func pairClasses(r *rand.Rand, x []float32) []float32 {
	switch r.IntN(5) {
	case 0: // the least that there are, which cancel
		for i := range x {
			x[i] = [...]float32{actBound, -actBound, valueBound, -valueBound, 0x1.02p-60, -0x1.fep-60, 0x1.02p-52, 0x1p-61, 0}[r.IntN(9)]
		}
	case 1: // products about the largest, which overflow or just do not
		for i := range x {
			x[i] = float32(math.Ldexp(1+r.Float64(), 62+r.IntN(3)) * float64(1-2*r.IntN(2)))
		}
	case 2:
		nearPairBounds(r, x)
	}
	return x
}

// sums are results of earlier products: nothing below the bound but +0.
func sums(x []float32) []float32 {
	for i, v := range x {
		if math.Abs(float64(v)) < sumBound {
			x[i] = 0
		}
	}
	return x
}

// pairCall is what the Pair kernels have in common.
type pairCall struct {
	y                      []float32
	x, b                   []uint16
	ldy, ldx, ldb, m, n, k int
}

func drawPair(r *rand.Rand, class kerneltest.Class) pairCall {
	d := drawPart(r, class)
	p := pairCall{y: d.y, ldy: d.ldy, ldx: d.ldx, m: d.m, n: d.n, k: min(d.k, 256)}
	if d.m > 0 && r.IntN(8) == 0 {
		p.k = 256
		p.ldx = rowsOf(r, p.k)
		p.m, p.n = min(p.m, 6), min(p.n, 20)
	}
	p.ldb = rowsOf(r, pairSize(p.k))
	x, b := actsBF16, valuesBF16
	if r.IntN(2) == 0 {
		x, b = b, x
	}
	p.x = x(r, class, extent(p.m, p.ldx, p.k))
	p.b = b(r, class, extent(panelCount(p.n), p.ldb, pairSize(p.k)))
	p.endPairs()
	return p
}

// endPairs makes the second place of the last pairs zero if k is odd.
func (p pairCall) endPairs() {
	if p.k%2 == 1 {
		for at := 0; at < len(p.b); at += p.ldb {
			for lane := range simd.Lanes {
				p.b[at+p.k/2*2*simd.Lanes+2*lane+1] = 0
			}
		}
	}
}

func (p pairCall) args(more ...any) []any {
	args := append([]any{p.y, p.ldy, p.x, p.ldx, p.b, p.ldb}, more...)
	return append(args, p.m, p.n, p.k)
}

func pairScaleTrial(r *rand.Rand, class kerneltest.Class) []any {
	p := drawPair(r, class)
	return p.args(class.Make(r, p.n))
}

func pairScaleRowsTrial(r *rand.Rand, class kerneltest.Class) []any {
	p := drawPair(r, class)
	ldr := 1 + r.IntN(3)
	return p.args(class.Make(r, extent(p.m, ldr, 1)), ldr, class.Make(r, p.n))
}

// pairFoldTrial has weights as stored: the activations are rounded in the kernel.
func pairFoldTrial(r *rand.Rand, class kerneltest.Class) []any {
	p := drawPair(r, class)
	p.b = valuesBF16(r, class, len(p.b))
	p.endPairs()
	x := fullNaNs(r, nearPairBounds(r, class.Make(r, extent(p.m, p.ldx, p.k))))
	lds := rowsOf(r, simd.Lanes*p.k)
	scale := class.Make(r, extent(panelCount(p.n), lds, simd.Lanes*p.k))
	if r.IntN(2) == 0 { // of which the activations can be seen
		for i := range scale {
			scale[i] = 1
		}
	}
	args := p.args(scale, lds)
	args[2] = x
	return args
}

// causalPairTrial is valuePairTrial with a staircase, whose first row sees some keys, none or all.
func causalPairTrial(r *rand.Rand, class kerneltest.Class) []any {
	args := valuePairTrial(r, class, false)
	p, ldp, v, ldv, alpha := args[2].([]uint16), args[3].(int), args[4].([]uint16), args[5].(int), args[6].([]float32)
	keys, n, cols := 2*args[7].(int), args[8].(int), args[9].(int)
	seen := oneOf(r, 0, 1, 1, 2, r.IntN(keys+1), r.IntN(keys+1), r.IntN(keys+1), keys, keys+3)
	for key := range keys {
		for j := range n {
			if key >= seen+j {
				p[key/2*ldp+2*j+key%2] = 0x8000
			}
		}
		for c := 0; n > 0 && key >= seen+n-1 && c < cols; c++ { // what no row sees reaches nothing
			v[key/2*ldv+2*c+key%2] = 0x7FC0
		}
	}
	if seen == 0 && n > 0 && alpha != nil && r.IntN(2) == 0 {
		alpha[0] = -1
	}
	return append(args, seen)
}

// valuePairTrial has rows that see no key, where keys may be masked.
func valuePairTrial(r *rand.Rand, class kerneltest.Class, masked bool) []any {
	args := valueTrial(r, class, masked)
	f32, alpha := args[2].([]float32), args[6].([]float32)
	keys, n, cols, ld := args[7].(int), args[8].(int), args[9].(int), args[3].(int)
	pairs := (keys + 1) / 2
	ldp, ldv := rowsOf(r, 2*n), rowsOf(r, 2*cols)
	p := actsBF16(r, class, extent(pairs, ldp, 2*n))
	if r.IntN(2) == 0 { // as probabilities are
		for i := range p {
			p[i] &= 0x7FFF
		}
	}
	const hidden = 0x8000
	for i := range p {
		if p[i] == hidden {
			p[i] = 0
		}
	}
	for i := range pairs {
		for j := range n {
			for place := range 2 {
				key := 2*i + place
				if masked && key < keys && math.Float32bits(f32[key*ld+j]) == 1<<31 {
					p[i*ldp+2*j+place] = hidden
				}
			}
		}
	}
	o := args[0].([]float32)
	if alpha == nil {
		sums(o)
	}
	if masked && alpha != nil {
		for j := range alpha {
			if r.IntN(6) > 0 && alpha[j] != -1 {
				continue
			}
			alpha[j] = -1
			for i := range pairs {
				p[i*ldp+2*j], p[i*ldp+2*j+1] = hidden, hidden
			}
		}
	}
	if !masked {
		for j := range alpha {
			if alpha[j] == -1 {
				alpha[j] = 1
			}
		}
	}
	ldo := args[1].(int)
	if r.IntN(2) == 0 {
		few := oneOf(r, 3, 100, 10_000) // of so many sums, one has a product next to the bound
		for j := range alpha {
			if alpha[j] != -1 {
				alpha[j] = scaling(r, alpha[j], o[min(j*ldo, len(o)):min(j*ldo+cols, len(o))], few)
			}
		}
	} else if cols > 0 {
		for j := range alpha { // rows that begin, on what another left there
			if alpha[j] != -1 && r.IntN(8) == 0 {
				alpha[j] = float32(math.Copysign(0, -1))
				for c := range o[j*ldo:][:cols] {
					o[j*ldo+c] = []float32{float32(math.NaN()), float32(math.Inf(1)), -1, o[j*ldo+c]}[r.IntN(4)]
				}
			}
		}
	}
	v := valuesBF16(r, class, extent(pairs, ldv, 2*cols))
	for key := 0; masked && key < 2*pairs; key++ { // what no row sees reaches nothing
		at := key/2*ldp + key%2
		unseen := n > 0
		for j := range n {
			unseen = unseen && p[at+2*j] == hidden
		}
		for c := 0; unseen && c < cols; c++ {
			v[key/2*ldv+2*c+key%2] = 0x7FC0
		}
	}
	return []any{o, args[1], p, ldp, v, ldv, alpha, pairs, n, cols}
}

// scaling draws a factor that begins no row: as a row that has seen keys gets, above 0 and seldom more than 1, or the
// magnitude of any. One of few sums has a product with it next to the bound, on either side of it.
func scaling(r *rand.Rand, some float32, sums []float32, few int) float32 {
	alpha := float32(math.Abs(float64(some)))
	if r.IntN(4) > 0 {
		alpha = float32(math.Ldexp(1-r.Float64()/2, oneOf(r, 1, 0, 0, -1, -r.IntN(20), -r.IntN(120))))
	}
	for c := range sums {
		if r.IntN(few) == 0 {
			if x := nextTo(r, sumBound) / alpha; !math.IsInf(float64(x), 0) {
				sums[c] = x
			}
		}
	}
	return alpha
}

// nextTo is the bound, one of its neighbours or a value around it, of either sign.
func nextTo(r *rand.Rand, bound float32) float32 {
	bits := math.Float32bits(bound) + uint32(oneOf(r, -1, 0, 1, r.IntN(1<<24)-1<<23))
	return math.Float32frombits(bits | r.Uint32()&(1<<31))
}
