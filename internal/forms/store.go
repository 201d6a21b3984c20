package forms

import (
	"context"

	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// Rounding is what RMSNorm rounds to.
type Rounding uint8

const (
	RoundNone Rounding = iota
	RoundBF16
	RoundF16
)

// Norm is RMSNorm of x in place, rounded as r says.
func (r Rounding) Norm(x, gamma []float32, epsilon float32) {
	switch r {
	case RoundBF16:
		simd.RMSNormBF16(x, x, gamma, epsilon)
	case RoundF16:
		simd.RMSNormF16(x, x, gamma, epsilon)
	default:
		simd.RMSNorm(x, x, gamma, epsilon)
	}
}

// Times multiplies x by f, each product rounded to float32 and then as r says.
func (r Rounding) Times(x []float32, f float32) {
	for i := range x {
		x[i] = float32(x[i] * f)
	}
	switch r {
	case RoundBF16:
		for i := range x {
			x[i] = simd.BF16ToF32(simd.F32ToBF16(x[i]))
		}
	case RoundF16:
		for i := range x {
			x[i] = simd.F16ToF32(simd.F32ToF16(x[i]))
		}
	}
}

// Store norms, ropes and stores the new rows of a call, before attention, which must see them.
func (w *Workspace) Store(ctx context.Context, pool *workpool.Pool, c *Call) error {
	w.call = c
	defer func() { w.call = nil }()
	for i := range c.Seqs {
		s := &c.Seqs[i]
		for t := range s.Tokens {
			w.tok[s.Token+t] = int32(i)
		}
	}
	return pool.Run(ctx, (c.Tokens+storeTokens-1)/storeTokens, (*storeStage)(w))
}

// storeStage: item = storeTokens tokens.
type storeStage Workspace

func (q *storeStage) Do(worker, item int) error {
	w := (*Workspace)(q)
	c, s := w.call, &w.scratch[worker]
	width := c.width()
	for t := item * storeTokens; t < min((item+1)*storeTokens, c.Tokens); t++ {
		seq := &c.Seqs[w.tok[t]]
		pos := seq.Pos + t - seq.Token
		c.KV.Widen(s.row, t*width, width)
		latent, rope := s.row[:c.Latent], s.row[c.Latent:]
		c.Round.Norm(latent, c.Gamma, c.Epsilon)
		if c.LatentScale != 1 {
			c.Round.Times(latent, c.LatentScale)
		}
		w.rotate(s, rope, pos)
		seq.View.Write(pos, s.row)
	}
	return nil
}
