package mla

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/simd"
)

// activation is rows of a product's activation as the products of a layer read
// them: as they are, lifted for the kernel that decodes FP8 weights in
// registers, rounded to bf16, or quantised. It lives in one worker's scratch and
// serves any number of heads.
type activation struct {
	x   []float32 // [rows][k], ldx apart
	ldx int

	lifted   []float32 // [rows][stride(k)]
	ldl      int
	isLifted bool

	halves []uint16 // [rows][ldh], of the second arithmetic
	ldh    int

	codes  []byte    // [rows][k] E4M3
	scales []float32 // [rows][groups]
	k      int
	group  int
}

func (z *activation) groups() int { return (z.k + z.group - 1) / z.group }

// activate readies m rows of k values of x for products with w.
func (p *Plan) activate(z *activation, w *fp8.Packed, x []float32, ldx, m, k, group int) {
	z.x, z.ldx, z.k, z.group = x, ldx, k, group
	switch {
	case p.cfg.ActQuant == ActDynamic:
		z.quantise(m)
	case p.cfg.Arithmetic == BF16:
		z.ldh = stride16(k)
		for i := range m { // of x, too, that weights which fold their scales take as it is
			simd.NarrowActBF16(z.halves[i*z.ldh:][:k], x[i*ldx:][:k])
		}
	default:
		z.ldl = stride(k)
		z.isLifted = w.Lift(z.lifted, z.ldl, x, ldx, m)
	}
}

func (z *activation) quantise(m int) {
	k, groups := z.k, z.groups()
	for i := range m {
		simd.QuantDynamic(z.codes[i*k:(i+1)*k], z.scales[i*groups:(i+1)*groups], z.x[i*z.ldx:][:k], z.group)
	}
}

// mul is y[i][j-n0] = x[i] . w[h][j] for rows i < m and outputs j in [n0, n1).
func (p *Plan) mul(w *fp8.Packed, h int, y []float32, ldy int, z *activation, m, n0, n1 int) {
	if p.cfg.Arithmetic == BF16 {
		p.mulPairs(w, h, y, ldy, z, m, n0, n1)
		return
	}
	switch {
	case p.cfg.ActQuant == ActDynamic:
		w.MulQuantPanels(h, y, ldy, z.codes, z.k, z.scales, z.groups(), z.group, m, n0, n1)
	case z.isLifted && w.Lifts():
		w.MulLifted(h, y, ldy, z.lifted, z.ldl, m, n0, n1)
	default:
		w.MulPanels(h, y, ldy, z.x, z.ldx, m, n0, n1)
	}
}

// mulPairs is mul in the second arithmetic.
func (p *Plan) mulPairs(w *fp8.Packed, h int, y []float32, ldy int, z *activation, m, n0, n1 int) {
	switch {
	case p.cfg.ActQuant == ActDynamic:
		w.MulQuantBF16Panels(h, y, ldy, z.codes, z.k, z.scales, z.groups(), z.group, m, n0, n1)
	case w.Folds():
		w.MulFoldedBF16Panels(h, y, ldy, z.x, z.ldx, m, n0, n1)
	default:
		w.MulBF16Panels(h, y, ldy, z.halves, z.ldh, m, n0, n1)
	}
}
