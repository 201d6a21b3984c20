package fp8

import "github.com/lamina-ml/lamina/simd"

// How products in pairs are cut. None of it is in the bits.
const (
	// An item of work is at most so many rows, of which a worker holds so many values as bf16.
	pairRows, pairValues = 256, 1 << 18
	// pairPanels are the panels of a call where weights are interleaved first.
	pairPanels = 2
	// pairGroup are the rows of a call of the kernel that decodes in registers: they stay in the
	// first-level cache.
	pairGroup = 16
	// Of more rows than a group, farApart outputs from each other, a block is computed aside, where
	// its rows, tileLD apart, do not crowd into a few sets of a cache: the kernel goes through them
	// once for every piece of k.
	farApart = 4096
	tileLD   = blockOutputs + simd.Lanes
)

// bf16Compute is ComputeBF16: activations and weights are bf16, in pairs of columns. With
//
//	a[k] = x[k] as the nearest bf16, +0 for |x[k]| < 2^-60
//	w[k] = the code as the nearest bf16, +0 for less than 2^-52
//
// pairs start anew at each cut of k, and of a pair 2i, 2i+1 the second column comes first:
//
//	part = fma(a[2i+1], w[2i+1], part)
//	part = fma(a[2i], w[2i], part)
//
// Codes of 8 bits are exact in bf16. With a step below 16, x[k] is multiplied by its scale first,
// rounded to float32, and a[k] is made of that: so such weights read the rows as float32.
type bf16Compute struct{}

func (bf16Compute) perRow(s ActivationSpec) (floats, halves int) {
	switch {
	case s.only == nil:
		return 0, 2 * padded((s.K+1)/2)
	case s.only.scaling != foldedIntoA:
		return 0, s.K
	case s.elem != ElemF32:
		return s.K, 0
	}
	return 0, 0 // in place
}

func (bf16Compute) activate(p *Packed, a *Activation) {
	switch {
	case a.ldh > 0:
		for i := range a.m {
			a.narrow(a.halves[i*a.ldh:][:p.k], a.at+i*a.ldx)
		}
	case a.ldf > 0:
		a.widen()
	}
}

// narrow makes bf16 of the row from element at on.
func (a *Activation) narrow(dst []uint16, at int) {
	if x := a.x.F32(); x != nil {
		simd.NarrowActBF16(dst, x[at:][:len(dst)])
		return
	}
	var wide [pieceK]float32
	for k0 := 0; k0 < len(dst); k0 += pieceK {
		w := wide[:min(pieceK, len(dst)-k0)]
		a.x.v.widen(w, at+k0)
		simd.NarrowActBF16(dst[k0:][:len(w)], w)
	}
}

func (bf16Compute) panels(p *Packed, a *Activation, b int, y []float32, ldy, m, n0, n1, nonTemporal int) {
	switch {
	case p.scaling == foldedIntoA:
		x, ldx := a.float32Rows()
		p.mulPairs(b, y, ldy, nil, x, ldx, m, n0, n1)
	case p.decodes() && m > pairGroup && ldy >= farApart:
		p.mulPairTiles(b, y, ldy, a.halves, a.ldh, m, n0, n1, nonTemporal)
	case p.decodes():
		p.mulPairWords(b, y, ldy, a.halves, a.ldh, m, n0, n1)
	default:
		p.mulPairs(b, y, ldy, a.halves, nil, a.ldh, m, n0, n1)
	}
}

func (bf16Compute) split(p *Packed, m, workers int) (g grid, items int) {
	rows := min(pairRows, pairValues/p.k/pairGroup*pairGroup)
	return p.cutUp(m, workers, min(m, max(pairGroup, rows)), heldPanels)
}

// mulPairWords has the words of a panel decoded in registers. It goes through y as
// mulDecoded does.
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
func (p *Packed) mulPairTiles(b int, y []float32, ldy int, x []uint16, ldx, m, n0, n1, nonTemporal int) {
	var tile [pairGroup * tileLD]float32
	for n := n0; n < n1; n += blockOutputs {
		end := min(n+blockOutputs, n1)
		for i := 0; i < m; i += pairGroup {
			rows := min(pairGroup, m-i)
			p.mulPairWords(b, tile[:], tileLD, x[i*ldx:], ldx, rows, n, end)
			simd.CopyRows(y[i*ldy+n-n0:], ldy, tile[:], tileLD, rows, end-n, nonTemporal)
		}
	}
}

// pairLD is the distance between two panels of a pairBlock.
const pairLD = pieceK * simd.Lanes

// pairBlock is a piece of k of some panels of weights, interleaved.
type pairBlock struct {
	w     [pairPanels * pairLD]uint16
	scale [pairPanels * simd.Lanes]float32 // of the outputs, unless they are folded into x
	lanes int                              // outputs
}

// mulPairs interleaves the weights, whatever they are, and multiplies them by x, or by floats if
// their scales are folded into those.
func (p *Packed) mulPairs(b int, y []float32, ldy int, x []uint16, floats []float32, ldx, m, n0, n1 int) {
	var block pairBlock
	for n := n0; n < n1; n += pairPanels * simd.Lanes {
		for k0 := 0; k0 < p.k; {
			k1 := p.cut(k0)
			p.load(&block, b, n, n1, k0, k1)
			if p.scaling == foldedIntoA {
				p.foldedPart(&block, y[n-n0:], ldy, floats[k0:], ldx, p.scalesAt(b, n/simd.Lanes, k0), m, k0, k1)
			} else {
				p.pairPart(&block, y[n-n0:], ldy, x[k0:], ldx, m, k0, k1)
			}
			k0 = k1
		}
	}
}

// load interleaves the piece k0 .. k1 of the panels from output n on, below n1.
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

func (bf16Compute) codes(p *Packed, a *Activation, i, b int, y []float32, ldy, m, n0, n1 int) {
	for end := i + m; i < end; i += wideRows {
		rows := min(wideRows, end-i)
		p.mulCodePairs(b, y, ldy, a, i, rows, n0, n1)
		if i+rows < end {
			y = y[rows*ldy:]
		}
	}
}

// codePairs are columns of at most 32 rows of codes as bf16, a row every 256.
type codePairs [pieceK * wideRows]uint16

// mulCodePairs is codes for at most 32 rows.
func (p *Packed) mulCodePairs(b int, y []float32, ldy int, a *Activation, i0, m, n0, n1 int) {
	var rows codePairs
	var wide [pieceK]float32
	for i := range m {
		clear(y[i*ldy:][:n1-n0])
	}
	for k0 := 0; k0 < p.k; k0 += pieceK {
		k1 := min(k0+pieceK, p.k)
		for i := range m {
			w := wide[:k1-k0]
			simd.WidenE4M3(w, a.codes[(i0+i)*p.k+k0:][:k1-k0])
			simd.NarrowActBF16(rows[i*pieceK:][:k1-k0], w) // exact
		}
		p.addCodePairs(b, y, ldy, &rows, a.codeScales[i0*a.groups:], a.groups, a.spec.Group, m, k0, k1, n0, n1)
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
