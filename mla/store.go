package mla

import "github.com/lamina-ml/lamina/simd"

// storeStage norms, ropes and stores the rows of storeTokens new tokens, before
// attention, which must see them.
type storeStage Plan

func (q *storeStage) Do(worker, item int) error {
	p := (*Plan)(q)
	c, s := &p.cfg, &p.scratch[worker]
	width := c.Width()
	for t := item * storeTokens; t < min((item+1)*storeTokens, p.call.tokens); t++ {
		p.call.kv.Widen(s.row, t*width, width)
		latent, rope := s.row[:c.Latent], s.row[c.Latent:]
		p.call.round.norm(latent, p.layer.gamma, c.Epsilon)
		if c.LatentScale != 1 {
			p.call.round.times(latent, c.LatentScale)
		}
		p.rotateAt(s, rope, t)
		seq := int(p.tokSeq[t])
		p.views[seq].Write(p.position(t), s.row)
	}
	return nil
}

// norm is RMSNorm of x in place, rounded as r says.
func (r rounding) norm(x, gamma []float32, epsilon float32) {
	switch r {
	case roundBF16:
		simd.RMSNormBF16(x, x, gamma, epsilon)
	case roundF16:
		simd.RMSNormF16(x, x, gamma, epsilon)
	default:
		simd.RMSNorm(x, x, gamma, epsilon)
	}
}

// position is the absolute position of batch token t.
func (p *Plan) position(t int) int {
	seq := p.tokSeq[t]
	return p.firstPosition(int(seq)) + t - int(p.call.Offsets[seq])
}

// firstPosition is the absolute position of the first query of sequence b: the
// new tokens follow the committed ones; queries of Decode end with them, and
// begin below 0 where MaskNull lets rows be fewer; those of a call over physical
// rows alone have none.
func (p *Plan) firstPosition(b int) int {
	switch p.call.kind {
	case coreSparse:
		return 0
	case coreDense:
		return p.views[b].Len() - p.newTokens(b)
	}
	return p.views[b].Len()
}

// rotateAt ropes x, the rope part of a query or key of batch token t, in place.
func (p *Plan) rotateAt(s *scratch, x []float32, t int) {
	if len(x) == 0 {
		return
	}
	at, freqs := p.position(t)*p.cfg.Rope, s.freqs
	if table := p.call.Freqs.F32(); table != nil {
		freqs = table[at : at+p.cfg.Rope]
	} else {
		p.call.Freqs.Widen(freqs, at, p.cfg.Rope)
	}
	p.cfg.rotate(x, freqs)
}
