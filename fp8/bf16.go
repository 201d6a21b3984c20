package fp8

import (
	"context"
	"runtime"

	"github.com/lamina-ml/lamina/simd"
)

// How products in pairs are cut. None of it is in the bits.
const (
	// An item of work is at most so many rows, of which a worker holds so many
	// values as bf16.
	pairRows, pairValues = 256, 1 << 18
	// pairPanels are the panels of a call where weights become pairs first.
	pairPanels = 2
	// pairGroup are the rows of a call of the kernel that decodes in registers:
	// they stay in the first-level cache.
	pairGroup = 16
	// Of more rows than a group, farApart outputs from each other, a block is
	// computed aside, where its rows, tileLD apart, do not crowd into a few sets of
	// a cache: the kernel goes through them once for every piece of k.
	farApart = 4096
	tileLD   = blockOutputs + simd.Lanes
)

// MulBF16 is Mul in the second arithmetic: activations and weights are bf16, in
// pairs of columns. With
//
//	a[k] = x[k] as the nearest bf16, +0 for |x[k]| < 2^-60
//	w[k] = the code as the nearest bf16, +0 for less than 2^-52
//
// k is cut as for Mul, pairs start anew at each cut, and of a pair 2i, 2i+1 the
// second column comes first:
//
//	part = fma(a[2i+1], w[2i+1], part)
//	part = fma(a[2i], w[2i], part)
//
// The parts are summed and scaled as for Mul. Codes of 8 bits are exact in bf16. With
// a step below 16, x[k] is multiplied by its scale first, rounded to float32, and
// a[k] is made of that (Folds).
//
// The bits are the same for any pool, and on any machine; so are the errors.
func (p *Packed) MulBF16(ctx context.Context, pool *Pool, y []float32, x Rows, s Shape) error {
	return p.mul(ctx, pool, y, x, s, true)
}

// MulQuantBF16 is MulQuant in the second arithmetic: the same codes and scales of the
// activations, whose products with the weights' codes are summed in pairs, as MulBF16
// says.
func (p *Packed) MulQuantBF16(ctx context.Context, pool *Pool, y []float32, x Rows, s Shape, group int) error {
	return p.mulQuant(ctx, pool, y, x, s, group, true)
}

// Folds reports whether products multiply every activation by a scale of its own,
// for weights whose step is below 16. In the second arithmetic they need float32
// activations: MulFoldedBF16Panels has them, MulBF16Panels has all others.
func (p *Packed) Folds() bool { return p != nil && p.scaling == folded }

// MulBF16Panels is MulPanels in the second arithmetic (MulBF16) for m rows of bf16
// activations, as simd.NarrowActBF16 makes them:
//
//	y[i*ldy + j-n0] = sum over k < K of x[i*ldx + k] * W[b][j][k]
//
// n0 is a multiple of 16. Besides what MulPanels asks of its caller, the weights must
// not fold scales into activations (Folds).
func (p *Packed) MulBF16Panels(b int, y []float32, ldy int, x []uint16, ldx, m, n0, n1 int) {
	p.mulBF16(b, y, ldy, x, ldx, m, n0, n1, 0)
}

// mulBF16 is MulBF16Panels whose results may bypass the caches, with 1 for bypass.
func (p *Packed) mulBF16(b int, y []float32, ldy int, x []uint16, ldx, m, n0, n1, bypass int) {
	switch {
	case m <= 0:
		return
	case p.Folds():
		panic("fp8: MulBF16Panels of weights that need float32 activations")
	case p.Lifts() && m > pairGroup && ldy >= farApart:
		p.mulPairTiles(b, y, ldy, x, ldx, m, n0, n1, bypass)
	case p.Lifts():
		p.mulPairWords(b, y, ldy, x, ldx, m, n0, n1)
	default:
		p.mulPairs(b, y, ldy, x, nil, ldx, m, n0, n1)
	}
	runtime.KeepAlive(p) // the weights are not memory that the collector sees
}

// MulFoldedBF16Panels is MulBF16Panels for weights that fold their scales into
// activations (Folds), and for no others: m rows of float32.
func (p *Packed) MulFoldedBF16Panels(b int, y []float32, ldy int, x []float32, ldx, m, n0, n1 int) {
	if m <= 0 {
		return
	}
	if !p.Folds() {
		panic("fp8: MulFoldedBF16Panels of weights that do not fold their scales")
	}
	p.mulPairs(b, y, ldy, nil, x, ldx, m, n0, n1)
	runtime.KeepAlive(p)
}

// mulPairWords has the words of a panel decoded in registers. It goes through y as
// mulLifted does.
func (p *Packed) mulPairWords(b int, y []float32, ldy int, x []uint16, ldx, m, n0, n1 int) {
	c := callOf(simd.Blocks().CallPairs, p.k)
	for n := n0; n < n1; n += blockOutputs {
		end := min(n+blockOutputs, n1)
		for i := 0; i < m; {
			rows := c.rows(m-i, pairGroup)
			width := c.width(rows)
			terms := c.terms(rows, width)
			for j := n; j < end; j += width {
				panel := j / simd.Lanes
				codes, scales := p.w.codes[p.codesAt(b, panel):], p.scales[p.scalesAt(b, panel, 0):]
				for k0 := 0; k0 < p.k; k0 += terms {
					simd.GemmE4M3Pairs(y[i*ldy+j-n0:], ldy, x[i*ldx:], ldx, codes, p.k*simd.Lanes, scales, p.groups*simd.Lanes,
						rows, min(j+width, end)-j, k0, min(k0+terms, p.k), p.step)
				}
			}
			i += rows
		}
	}
}

// mulPairTiles is mulPairWords by way of a tile of outputs.
func (p *Packed) mulPairTiles(b int, y []float32, ldy int, x []uint16, ldx, m, n0, n1, bypass int) {
	var tile [pairGroup * tileLD]float32
	for n := n0; n < n1; n += blockOutputs {
		end := min(n+blockOutputs, n1)
		for i := 0; i < m; i += pairGroup {
			rows := min(pairGroup, m-i)
			p.mulPairWords(b, tile[:], tileLD, x[i*ldx:], ldx, rows, n, end)
			simd.CopyRows(y[i*ldy+n-n0:], ldy, tile[:], tileLD, rows, end-n, bypass)
		}
	}
}

// pairLD is the distance between two panels of a pairBlock.
const pairLD = pieceK * simd.Lanes

// pairBlock is a piece of k of some panels of weights in pairs.
type pairBlock struct {
	w     [pairPanels * pairLD]uint16
	scale [pairPanels * simd.Lanes]float32 // of the outputs, unless they are folded
	lanes int                              // outputs
}

// mulPairs makes pairs of the weights, whatever they are, and multiplies x, or
// folded for weights that fold.
func (p *Packed) mulPairs(b int, y []float32, ldy int, x []uint16, folded []float32, ldx, m, n0, n1 int) {
	var block pairBlock
	for n := n0; n < n1; n += pairPanels * simd.Lanes {
		for k0 := 0; k0 < p.k; {
			k1 := p.cut(k0)
			p.load(&block, b, n, n1, k0, k1)
			if folded != nil {
				p.foldedPart(&block, y[n-n0:], ldy, folded[k0:], ldx, p.scalesAt(b, n/simd.Lanes, k0), m, k0, k1)
			} else {
				p.pairPart(&block, y[n-n0:], ldy, x[k0:], ldx, m, k0, k1)
			}
			k0 = k1
		}
	}
}

// load makes pairs of the piece k0 .. k1 of the panels from output n on, below n1.
func (p *Packed) load(block *pairBlock, b, n, n1, k0, k1 int) {
	block.lanes = min(pairPanels*simd.Lanes, n1-n)
	for i := 0; i*simd.Lanes < block.lanes; i++ {
		panel := panelOf{b: b, index: n/simd.Lanes + i}
		p.pairs(block.w[i*pairLD:], panel, k0, k1)
		if p.scaling == scaled {
			copy(block.scale[i*simd.Lanes:], p.scales[p.scalesAt(b, panel.index, p.scaleGroup(k0)):][:simd.Lanes])
		}
	}
}

// pairs are the weights of a piece of a panel, without scales.
func (p *Packed) pairs(dst []uint16, panel panelOf, k0, k1 int) {
	at, k := p.codesAt(panel.b, panel.index)+k0*simd.Lanes, k1-k0
	switch {
	case p.words: // pieces are whole words
		simd.WidenE4M3Pairs(dst[:k*simd.Lanes], p.w.codes[at:][:k*simd.Lanes])
	case p.elem == ElemBF16:
		simd.PairPanelBF16(dst, p.w.halves[at:], k)
	default:
		var wide [pieceK * simd.Lanes]float32
		simd.PairPanel(dst, p.codes(&wide, panel, k0, k1), k)
	}
}

// pairPart adds a piece to y, which begins at the block's first output. x begins at k0.
func (p *Packed) pairPart(block *pairBlock, y []float32, ldy int, x []uint16, ldx, m, k0, k1 int) {
	lanes, k := block.lanes, k1-k0
	if p.scaling == scaled && k0 == 0 {
		for i := range m {
			clear(y[i*ldy:][:lanes])
		}
	}
	rows := callRows(m, simd.Blocks().CallPairs, lanes, k)
	for i := 0; i < m; i += rows {
		y, x, rows := y[i*ldy:], x[i*ldx:], min(rows, m-i)
		switch {
		case p.scaling == scaled:
			simd.PairScale(y, ldy, x, ldx, block.w[:], pairLD, block.scale[:lanes], rows, lanes, k)
		case k0 == 0:
			simd.PairSet(y, ldy, x, ldx, block.w[:], pairLD, rows, lanes, k)
		default:
			simd.PairAdd(y, ldy, x, ldx, block.w[:], pairLD, rows, lanes, k)
		}
	}
}

// foldedPart is pairPart for float32 activations and the scales from place at on, by
// which they are multiplied. The kernels go through rows panel by panel: so do the calls.
func (p *Packed) foldedPart(block *pairBlock, y []float32, ldy int, x []float32, ldx, at, m, k0, k1 int) {
	k := k1 - k0
	rows := callRows(m, simd.Blocks().CallFolds, simd.Lanes, k)
	for j := 0; j < block.lanes; j += simd.Lanes {
		panel, lanes := j/simd.Lanes, min(simd.Lanes, block.lanes-j)
		w, scales := block.w[panel*pairLD:], p.scales[at+panel*p.groups*simd.Lanes:]
		for i := 0; i < m; i += rows {
			y, x, rows := y[i*ldy+j:], x[i*ldx:], min(rows, m-i)
			if k0 == 0 {
				simd.PairFoldSet(y, ldy, x, ldx, w, 0, scales, 0, rows, lanes, k)
			} else {
				simd.PairFoldAdd(y, ldy, x, ldx, w, 0, scales, 0, rows, lanes, k)
			}
		}
	}
}

// splitPairs is split for rows in bf16.
func (p *Packed) splitPairs(m, workers int) (g grid, items int) {
	rows := min(pairRows, pairValues/p.k/pairGroup*pairGroup)
	return p.cutUp(m, workers, min(m, max(pairGroup, rows)), liftedPanels)
}

// doPairs computes an item: m rows of x, from element at on, by the outputs n0 .. n1.
func (t *task) doPairs(worker, b int, y []float32, at, m, n0, n1 int) {
	p := t.p
	if !p.Folds() {
		x := t.halves[worker*t.rows*p.k:][:m*p.k]
		t.narrow(x, at, m)
		p.mulBF16(b, y, t.s.LdY, x, p.k, m, n0, n1, t.bypass)
		return
	}
	x, ldx := t.x.F32(), t.s.LdX
	if x != nil {
		x = x[at:]
	} else {
		x, ldx = t.lifted[worker*t.rows*p.k:][:m*p.k], p.k
		for i := range m {
			t.x.v.widen(x[i*p.k:][:p.k], at+i*t.s.LdX)
		}
	}
	p.MulFoldedBF16Panels(b, y, t.s.LdY, x, ldx, m, n0, n1)
}

// narrow makes activations of m rows from element at on.
func (t *task) narrow(dst []uint16, at, m int) {
	k := t.p.k
	for i := range m {
		row, from := dst[i*k:][:k], at+i*t.s.LdX
		if x := t.x.F32(); x != nil {
			simd.NarrowActBF16(row, x[from:][:k])
			continue
		}
		var wide [pieceK]float32
		for k0 := 0; k0 < k; k0 += pieceK {
			w := wide[:min(pieceK, k-k0)]
			t.x.v.widen(w, from+k0)
			simd.NarrowActBF16(row[k0:][:len(w)], w)
		}
	}
}

// codePairs are columns of at most 32 rows of codes as bf16, a row every 256.
type codePairs [pieceK * wideRows]uint16

// MulQuantBF16Panels is MulQuantPanels in the second arithmetic (MulQuantBF16).
func (p *Packed) MulQuantBF16Panels(b int, y []float32, ldy int, codes []byte, ldc int, sx []float32, ldsx, group, m, n0, n1 int) {
	if !p.Scaled() {
		panic("fp8: MulQuantBF16Panels of weights without scales")
	}
	for i := 0; i < m; i += wideRows {
		p.mulCodePairs(b, y[i*ldy:], ldy, codes[i*ldc:], ldc, sx[i*ldsx:], ldsx, group, min(wideRows, m-i), n0, n1)
	}
	runtime.KeepAlive(p)
}

// mulCodePairs is MulQuantBF16Panels for at most 32 rows.
func (p *Packed) mulCodePairs(b int, y []float32, ldy int, codes []byte, ldc int, sx []float32, ldsx, group, m, n0, n1 int) {
	var rows codePairs
	var wide [pieceK]float32
	for i := range m {
		clear(y[i*ldy:][:n1-n0])
	}
	for k0 := 0; k0 < p.k; k0 += pieceK {
		k1 := min(k0+pieceK, p.k)
		for i := range m {
			w := wide[:k1-k0]
			simd.WidenE4M3(w, codes[i*ldc+k0:][:k1-k0])
			simd.NarrowActBF16(rows[i*pieceK:][:k1-k0], w) // exact
		}
		p.addCodePairs(b, y, ldy, &rows, sx, ldsx, group, m, k0, k1, n0, n1)
	}
}

// addCodePairs adds at most 256 columns k0 .. k1, which rows holds, to y. The weights
// become float32 for all of them at once, and pairs cut by cut.
func (p *Packed) addCodePairs(b int, y []float32, ldy int, rows *codePairs, sx []float32, ldsx, group, m, k0, k1, n0, n1 int) {
	var wide [pieceK * simd.Lanes]float32
	var pairs [pieceK * simd.Lanes]uint16
	for n := n0; n < n1; n += simd.Lanes {
		panel := panelOf{b: b, index: n / simd.Lanes, lanes: min(simd.Lanes, n1-n)}
		w := p.codes(&wide, panel, k0, k1)
		for from := k0; from < k1; {
			to := min(k1, from+(p.step-from%p.step), from+(group-from%group))
			simd.PairPanel(pairs[:], w[(from-k0)*simd.Lanes:], to-from)
			sw := p.scales[p.scalesAt(b, panel.index, p.scaleGroup(from)):][:panel.lanes]
			call := callRows(m, simd.Blocks().CallPairs, panel.lanes, to-from)
			for i := 0; i < m; i += call {
				simd.PairScaleRows(y[i*ldy+n-n0:], ldy, rows[i*pieceK+from-k0:], pieceK, pairs[:], 0, sx[i*ldsx+from/group:], ldsx,
					sw, min(call, m-i), panel.lanes, to-from)
			}
			from = to
		}
	}
}
