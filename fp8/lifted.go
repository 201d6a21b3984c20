package fp8

import (
	"runtime"

	"github.com/lamina-ml/lamina/simd"
)

// liftFactor is what activations are multiplied by for the kernel that this
// processor is to use: the power of two that its reading of a code leaves out.
func liftFactor() float32 {
	if simd.SlowSubnormals() {
		return liftHalf
	}
	return liftWord
}

const (
	liftWord = 0x1p120 // simd.GemmE4M3
	liftHalf = 0x1p8   // simd.GemmE4M3Half
)

// Lifts reports whether the weights take lifted activations (Lift, MulLifted): E4M3
// codes, none of them NaN, with scales for steps of 16 or more, K and the step being
// multiples of 4.
func (p *Packed) Lifts() bool { return p != nil && p.lift != 0 }

// Lift readies m rows of K activations for MulLifted: dst[i*ldd + k] becomes
// x[i*ldx + k] times a power of two, exactly. dst may be x. The factor is the same
// for all weights on a machine, so that rows that are lifted for one serve all that
// Lifts.
//
// It returns false if the weights have no such product, or if a value is NaN,
// infinite, or too large to be lifted (2^8 and above, on most processors): dst is
// then undefined, and MulPanels gives the results.
func (p *Packed) Lift(dst []float32, ldd int, x []float32, ldx, m int) bool {
	if !p.Lifts() {
		return false
	}
	rows := max(1, liftedValues/p.k) // of a call, which cannot be interrupted
	for i := 0; i < m; i += rows {
		if !simd.Lift(dst[i*ldd:], ldd, x[i*ldx:], ldx, min(rows, m-i), p.k, p.lift) {
			return false
		}
	}
	return true
}

// MulLifted is MulPanels, to the bit, for rows that Lift has readied:
//
//	y[i*ldy + j-n0] = sum over k < K of x[i*ldx + k] * W[b][j][k]
//
// for i < m and n0 <= j < n1, n0 a multiple of 16, and x the rows before they were
// lifted. The weights are decoded in registers.
func (p *Packed) MulLifted(b int, y []float32, ldy int, lifted []float32, ldx, m, n0, n1 int) {
	p.mulLifted(b, y, ldy, lifted, ldx, m, n0, n1, 0)
}

// mulLifted is MulLifted whose results may bypass the caches, with 1 for bypass.
func (p *Packed) mulLifted(b int, y []float32, ldy int, lifted []float32, ldx, m, n0, n1, bypass int) {
	c := callOf(simd.Blocks().CallFMA, p.k)
	for n := n0; n < n1; n += blockOutputs {
		end := min(n+blockOutputs, n1)
		for i := 0; i < m; {
			rows := c.rows(m-i, groupRows)
			width := c.width(rows)
			terms := c.terms(rows, width)
			for j := n; j < end; j += width {
				for k0 := 0; k0 < p.k; k0 += terms {
					last := bypass
					if k0+terms < p.k {
						last = 0 // the next call reads them
					}
					p.kernel(b, y[i*ldy+j-n0:], ldy, lifted[i*ldx:], ldx, rows, j, min(j+width, end), k0, min(k0+terms, p.k), last)
				}
			}
			i += rows
		}
	}
	runtime.KeepAlive(p) // the weights are not memory that the collector sees
}

// call bounds the calls of a kernel that goes through pieces of k by itself.
type call struct {
	fma  int // multiply-adds that one should not exceed
	tile int // rows of the widest register tile
	k    int
}

func callOf(fma, k int) call { return call{fma, simd.Blocks().RowTile, k} }

// leastRows are in any call: with fewer, it decodes each weight for too few of them. Where
// 4 rows by 16 outputs are too much for one call, as those of 16,384 columns are on some
// levels, k is cut.
const leastRows = 4

// rows is how many of the next m rows a call takes, group at most or somewhat more, so
// that no small group remains.
func (c call) rows(m, group int) int {
	if fit := c.fma / (c.k * simd.Lanes); fit < group {
		if fit > c.tile {
			fit -= fit % c.tile
		}
		group = max(fit, leastRows)
	}
	switch {
	case m <= group:
		return m
	case m >= 3*group/2:
		return group
	case m*c.k*simd.Lanes <= c.fma:
		return m
	}
	return (m + 1) / 2
}

// width is how many outputs of so many rows a call computes: as many as the level
// allows, in whole register tiles if there is room for one.
func (c call) width(rows int) int {
	const tile = 64 // outputs of the widest
	n := c.fma / (rows * c.k)
	if n >= tile {
		return n / tile * tile
	}
	return max(simd.Lanes, n/simd.Lanes*simd.Lanes)
}

// terms is how many terms of the sums of so many rows by outputs a call adds up: all, or
// whole pieces of k in calls that are about as large as each other.
func (c call) terms(rows, outputs int) int {
	if rows*outputs*c.k <= c.fma {
		return c.k
	}
	fit := max(1, c.fma/(rows*outputs*pieceK)) // pieces
	return ceilDiv(ceilDiv(c.k, pieceK), ceilDiv(c.k, fit*pieceK)) * pieceK
}

// kernel is one call for the outputs n0 .. n1 and the terms k0 .. k1.
func (p *Packed) kernel(b int, y []float32, ldy int, lifted []float32, ldx, m, n0, n1, k0, k1, bypass int) {
	panel := n0 / simd.Lanes
	codes, scales := p.w.codes[p.codesAt(b, panel):], p.scales[p.scalesAt(b, panel, 0):]
	ldc, lds := p.k*simd.Lanes, p.groups*simd.Lanes
	if p.lift == liftHalf {
		simd.GemmE4M3Half(y, ldy, lifted, ldx, codes, ldc, scales, lds, m, n1-n0, k0, k1, p.step, bypass)
		return
	}
	simd.GemmE4M3(y, ldy, lifted, ldx, codes, ldc, scales, lds, m, n1-n0, k0, k1, p.step, bypass)
}

// lift readies m rows from element at on, as float32.
func (t *task) lift(dst []float32, at, m int) bool {
	k := t.p.k
	if t.x.Kind() == ElemF32 {
		return t.p.Lift(dst, k, t.x.F32()[at:], t.s.LdX, m)
	}
	for i := range m {
		t.x.v.widen(dst[i*k:][:k], at+i*t.s.LdX)
	}
	return t.p.Lift(dst, k, dst, k, m)
}
