package fp8

import "github.com/lamina-ml/lamina/simd"

// f32Compute is ComputeF32. E4M3 weights that lie in words (words.go) are decoded in registers, by
// activations that are multiplied by a power of two first, exactly; all others, and those rows for
// which it would not be exact, by weights that are widened a panel at a time. The bits are the
// same.
type f32Compute struct{}

// prescaleFactor is what activations are multiplied by for the kernel that this processor is to
// use: the power of two that its reading of a code leaves out. It is the same for all weights, so
// that rows that are multiplied by it for some serve all that decode in registers.
func prescaleFactor() float32 {
	if simd.SlowSubnormals() {
		return prescaleHalf
	}
	return prescaleWord
}

const (
	prescaleWord = 0x1p120 // simd.GemmE4M3
	prescaleHalf = 0x1p8   // simd.GemmE4M3Half
)

// decodes reports whether the weights can be decoded in registers: E4M3 codes, none of them NaN,
// with scales for steps of 16 or more, K and the step being multiples of 4.
func (p *Packed) decodes() bool { return p.prescale != 0 }

func (f32Compute) perRow(s ActivationSpec) (floats, halves int) {
	switch {
	case s.only == nil:
		return padded(s.K), 0
	case s.only.decodes():
		return s.K, 0
	}
	return 0, 0 // in place, or widened a piece at a time
}

// activate multiplies the rows by a power of two, if p decodes in registers. It is not exact where
// a value is NaN, infinite or too large (2^8 and above, on most processors).
func (f32Compute) activate(p *Packed, a *Activation) {
	a.prescaled = false
	if !p.decodes() {
		return
	}
	if a.x.Kind() != ElemF32 {
		a.widen()
	}
	x, ldx := a.float32Rows()
	rows := max(1, heldValues/p.k) // of a call, which cannot be interrupted
	for i := 0; i < a.m; i += rows {
		if !simd.Lift(a.floats[i*a.ldf:], a.ldf, x[i*ldx:], ldx, min(rows, a.m-i), p.k, p.prescale) {
			return
		}
	}
	a.prescaled = true
}

func (f32Compute) panels(p *Packed, a *Activation, b int, y []float32, ldy, m, n0, n1, nonTemporal int) {
	switch {
	case a.prescaled && p.decodes():
		p.mulDecoded(b, y, ldy, a.floats, a.ldf, m, n0, n1, nonTemporal)
	case a.x.Kind() == ElemF32:
		p.mulF32(b, y, ldy, a.x.F32()[a.at:], a.ldx, m, n0, n1)
	default:
		for i := 0; i < m; i += wideRows {
			p.mulWidened(b, y[i*ldy:], ldy, &a.x, a.at+i*a.ldx, a.ldx, min(wideRows, m-i), n0, n1)
		}
	}
}

func (f32Compute) split(p *Packed, m, workers int) (g grid, items int) {
	if !p.decodes() {
		return p.split(m, workers)
	}
	rows := heldValues / p.k / groupRows * groupRows // whole groups
	return p.cutUp(m, workers, max(groupRows, min(heldRows, rows)), heldPanels)
}

// mulDecoded is the product of rows times the power of two with weights that are decoded in
// registers.
func (p *Packed) mulDecoded(b int, y []float32, ldy int, x []float32, ldx, m, n0, n1, nonTemporal int) {
	c := callOf(simd.Blocks().CallFMA, p.k)
	for n := n0; n < n1; n += blockOutputs {
		end := min(n+blockOutputs, n1)
		for i := 0; i < m; {
			rows := c.rows(m-i, groupRows)
			width := c.width(rows)
			terms := c.terms(rows, width)
			for j := n; j < end; j += width {
				for k0 := 0; k0 < p.k; k0 += terms {
					last := nonTemporal
					if k0+terms < p.k {
						last = 0 // the next call reads them
					}
					p.kernel(b, y[i*ldy+j-n0:], ldy, x[i*ldx:], ldx, rows, j, min(j+width, end), k0, min(k0+terms, p.k), last)
				}
			}
			i += rows
		}
	}
}

// kernel is one call for the outputs n0 .. n1 and the terms k0 .. k1.
func (p *Packed) kernel(b int, y []float32, ldy int, x []float32, ldx, m, n0, n1, k0, k1, nonTemporal int) {
	panel := n0 / simd.Lanes
	codes, scales := p.w.codes[p.codesAt(b, panel):], p.scales[p.scalesAt(b, panel, 0):]
	ldc, lds := p.k*simd.Lanes, p.groups*simd.Lanes
	if p.prescale == prescaleHalf {
		simd.GemmE4M3Half(y, ldy, x, ldx, codes, ldc, scales, lds, m, n1-n0, k0, k1, p.step, nonTemporal)
		return
	}
	simd.GemmE4M3(y, ldy, x, ldx, codes, ldc, scales, lds, m, n1-n0, k0, k1, p.step, nonTemporal)
}

// mulF32 is the product of rows of float32 with any weights.
func (p *Packed) mulF32(b int, y []float32, ldy int, x []float32, ldx, m, n0, n1 int) {
	var wide [pieceK * simd.Lanes]float32
	for n := n0; n < n1; n += simd.Lanes {
		panel := panelOf{b: b, index: n / simd.Lanes, lanes: min(simd.Lanes, n1-n)}
		for k0 := 0; k0 < p.k; {
			k1 := p.cut(k0)
			p.part(panel, y[n-n0:], ldy, x[k0:], ldx, p.codes(&wide, panel, k0, k1), m, k0, k1)
			k0 = k1
		}
	}
}

// mulWidened is mulF32 for at most 32 rows of bf16 or f16 from element at on: they are widened once
// for all panels.
func (p *Packed) mulWidened(b int, y []float32, ldy int, x *Rows, at, ldx, m, n0, n1 int) {
	var wide [pieceK * simd.Lanes]float32
	var rows [pieceK * wideRows]float32
	for k0 := 0; k0 < p.k; {
		k1 := p.cut(k0)
		for i := range m {
			x.v.widen(rows[i*pieceK:][:k1-k0], at+i*ldx+k0)
		}
		for n := n0; n < n1; n += simd.Lanes {
			panel := panelOf{b: b, index: n / simd.Lanes, lanes: min(simd.Lanes, n1-n)}
			p.part(panel, y[n-n0:], ldy, rows[:], pieceK, p.codes(&wide, panel, k0, k1), m, k0, k1)
		}
		k0 = k1
	}
}

// part adds the piece k0 .. k1 of a panel to y. x begins at k0; w are the codes.
func (p *Packed) part(panel panelOf, y []float32, ldy int, x []float32, ldx int, w []float32, m, k0, k1 int) {
	lanes, k := panel.lanes, k1-k0
	most, scale := simd.Blocks().CallFMA, []float32(nil)
	switch p.scaling {
	case scaled:
		scale = p.scales[p.scalesAt(panel.b, panel.index, p.scaleGroup(k0)):][:lanes]
		if k0 == 0 {
			for i := range m {
				clear(y[i*ldy:][:lanes])
			}
		}
	case foldedIntoA:
		scale = p.scales[p.scalesAt(panel.b, panel.index, p.scaleGroup(k0)):][:k*simd.Lanes]
		most /= 2 // of the kernels that multiply an activation before each multiply-add
	}
	rows := callRows(m, most, lanes, k)
	for i := 0; i < m; i += rows {
		y, x, rows := y[i*ldy:], x[i*ldx:], min(rows, m-i)
		switch {
		case p.scaling == scaled:
			simd.PartScale(y, ldy, x, ldx, w, 0, scale, rows, lanes, k)
		case p.scaling == foldedIntoA && k0 == 0:
			simd.PartFoldSet(y, ldy, x, ldx, w, 0, scale, 0, rows, lanes, k)
		case p.scaling == foldedIntoA:
			simd.PartFoldAdd(y, ldy, x, ldx, w, 0, scale, 0, rows, lanes, k)
		case k0 == 0:
			simd.PartSet(y, ldy, x, ldx, w, 0, rows, lanes, k)
		default:
			simd.PartAdd(y, ldy, x, ldx, w, 0, rows, lanes, k)
		}
	}
}

func (f32Compute) codes(p *Packed, a *Activation, i, b int, y []float32, ldy, m, n0, n1 int) {
	for end := i + m; i < end; i += wideRows {
		rows := min(wideRows, end-i)
		p.mulCodes(b, y, ldy, a, i, rows, n0, n1)
		if i+rows < end {
			y = y[rows*ldy:]
		}
	}
}

// codeRows are columns of at most 32 rows of codes as float32, a row every 256.
type codeRows [pieceK * wideRows]float32

// mulCodes is codes for at most 32 rows.
func (p *Packed) mulCodes(b int, y []float32, ldy int, a *Activation, i0, m, n0, n1 int) {
	var rows codeRows
	for i := range m {
		clear(y[i*ldy:][:n1-n0])
	}
	for k0 := 0; k0 < p.k; k0 += pieceK {
		k1 := min(k0+pieceK, p.k)
		for i := range m {
			simd.WidenE4M3(rows[i*pieceK:][:k1-k0], a.codes[(i0+i)*p.k+k0:][:k1-k0])
		}
		p.addCodes(b, y, ldy, &rows, a.codeScales[i0*a.groups:], a.groups, a.spec.Group, m, k0, k1, n0, n1)
	}
}

// addCodes adds at most 256 columns k0 .. k1, which rows holds, to y. Pieces may be
// as short as one column, so the weights are widened for all of them at once.
func (p *Packed) addCodes(b int, y []float32, ldy int, rows *codeRows, sx []float32, ldsx, group, m, k0, k1, n0, n1 int) {
	var wide [pieceK * simd.Lanes]float32
	for n := n0; n < n1; n += simd.Lanes {
		panel := panelOf{b: b, index: n / simd.Lanes, lanes: min(simd.Lanes, n1-n)}
		w := p.codes(&wide, panel, k0, k1)
		for from := k0; from < k1; {
			to := min(k1, from+(p.step-from%p.step), from+(group-from%group))
			p.partCodes(panel, y[n-n0:], ldy, rows[from-k0:], w[(from-k0)*simd.Lanes:], sx[from/group:], ldsx, m, from, to)
			from = to
		}
	}
}

// partCodes adds the piece k0 .. k1 of a panel to y. rows, w and sx begin at k0.
func (p *Packed) partCodes(panel panelOf, y []float32, ldy int, rows, w, sx []float32, ldsx, m, k0, k1 int) {
	sw := p.scales[p.scalesAt(panel.b, panel.index, p.scaleGroup(k0)):][:panel.lanes]
	call := callRows(m, simd.Blocks().CallFMA, panel.lanes, k1-k0)
	for i := 0; i < m; i += call {
		simd.PartScaleRows(y[i*ldy:], ldy, rows[i*pieceK:], pieceK, w, 0, sx[i*ldsx:], ldsx, sw, min(call, m-i), panel.lanes, k1-k0)
	}
}
