package fp8

import "github.com/lamina-ml/lamina/simd"

// panelOf names a panel of a matrix, and how many of its lanes are wanted.
type panelOf struct {
	b, index, lanes int
}

// cut is where the piece of k that begins at k0 ends.
func (p *Packed) cut(k0 int) int {
	k1 := min(k0+pieceK-k0%pieceK, p.k)
	if p.scaling == scaled {
		k1 = min(k1, k0+(p.step-k0%p.step))
	}
	return k1
}

// codes are the values of a piece of a panel, without scales: widened into buf, or
// where they lie if they are float32.
func (p *Packed) codes(buf *[pieceK * simd.Lanes]float32, panel panelOf, k0, k1 int) []float32 {
	at, n := p.codesAt(panel.b, panel.index)+k0*simd.Lanes, (k1-k0)*simd.Lanes
	if p.elem == ElemF32 {
		return p.w.floats[at : at+n]
	}
	if p.words {
		widenWords(buf[:n], p.w.codes[at:at+n])
	} else {
		p.w.widen(buf[:n], at)
	}
	return buf[:n]
}
