package fp8

// Scaled gives scales to a plain matrix, which New does for 8-bit codes only: the
// vectors have weights that no 8-bit format holds.
func Scaled(m Matrix, s Scales, blockRows, blockCols int) (Matrix, error) {
	return m.scaledBy(s, blockRows, blockCols)
}

// UseHalf makes products that decode in registers take the kernel that this processor would not.
func UseHalf(p *Packed, half bool) {
	if p.decodes() {
		p.prescale = prescaleWord
		if half {
			p.prescale = prescaleHalf
		}
	}
}

// Decodes reports whether the weights can be decoded in registers.
func Decodes(p *Packed) bool { return p.decodes() }

// Prescaled reports whether an Activation can be used by weights that are.
func Prescaled(a *Activation) bool { return a.prescaled }

// FoldsIntoA reports whether scales are multiplied into activations.
func FoldsIntoA(p *Packed) bool { return p.scaling == foldedIntoA }

// Codes are the codes and scales of a quantised Activation.
func Codes(a *Activation) ([]byte, []float32) { return a.codes, a.codeScales }

// PutCodes makes rows of codes and scales the quantised Activation, where they lie.
func PutCodes(a *Activation, codes []byte, scales []float32) { a.codes, a.codeScales = codes, scales }

// KeptRows is how many activations of products that are over still hold the caller's rows, and of how
// many.
func KeptRows(p *Packed) (held, all int) {
	for _, t := range p.tasks.free {
		all += len(t.acts)
		for i := range t.acts {
			held += min(t.acts[i].x.Len(), 1)
		}
	}
	return held, all
}

// MulQuantValues is MulPanels for at most 32 quantised rows of one matrix whose values
// need not be those of codes: so are the vectors.
func MulQuantValues(p *Packed, y, x, sx []float32, group, m int) {
	var rows codeRows
	clear(y)
	for k0 := 0; k0 < p.k; k0 += pieceK {
		k1 := min(k0+pieceK, p.k)
		for i := range m {
			copy(rows[i*pieceK:][:k1-k0], x[i*p.k+k0:])
		}
		p.addCodes(0, y, p.n, &rows, sx, ceilDiv(p.k, group), group, m, k0, k1, 0, p.n)
	}
}

// CallRows, CallWidth and CallTerms are how a product is cut into calls of at most so many
// multiply-adds where a register tile has so many rows.
func CallRows(fma, tile, k, m, group int) int { return call{fma, tile, k}.rows(m, group) }

func CallWidth(fma, tile, k, rows int) int { return call{fma, tile, k}.width(rows) }

func CallTerms(fma, tile, k, rows, width int) int { return call{fma, tile, k}.terms(rows, width) }

// PieceRows is how a piece of k is cut into calls.
func PieceRows(m, most, outputs, k int) int { return callRows(m, most, outputs, k) }

const (
	GroupRows = groupRows
	PairGroup = pairGroup
)
