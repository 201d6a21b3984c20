package mla

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/simd"
)

// quantised is the rows of a product's activation as E4M3 codes with a scale
// per group, in one worker's scratch. It serves any number of products.
type quantised struct {
	codes  []byte    // [rows][k]
	scales []float32 // [rows][groups]
	k      int
	group  int
}

// quantise fills z with m rows of k values of x.
func (z *quantised) quantise(x []float32, ldx, m, k, group int) {
	z.k, z.group = k, group
	groups := z.groups()
	for i := range m {
		simd.QuantDynamic(z.codes[i*k:(i+1)*k], z.scales[i*groups:(i+1)*groups], x[i*ldx:][:k], group)
	}
}

func (z *quantised) groups() int { return (z.k + z.group - 1) / z.group }

// mul is y[i][j-n0] = x[i] . w[h][j] for rows i < m and outputs j in [n0, n1),
// from the activations as they are, or from z if the layer quantises them.
func (p *Plan) mul(w *fp8.Packed, h int, y []float32, ldy int, x []float32, ldx int, z *quantised, m, n0, n1 int) {
	if p.cfg.ActQuant == ActDynamic {
		w.MulQuantPanels(h, y, ldy, z.codes, z.k, z.scales, z.groups(), z.group, m, n0, n1)
		return
	}
	w.MulPanels(h, y, ldy, x, ldx, m, n0, n1)
}

// activate readies m rows of k values of x for mul.
func (p *Plan) activate(z *quantised, x []float32, ldx, m, k, group int) {
	if p.cfg.ActQuant == ActDynamic {
		z.quantise(x, ldx, m, k, group)
	}
}
