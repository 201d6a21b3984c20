package oracle

import "math"

// Block is what an attention block has around its core: the projections,
// dequantised, and the factors of some families.
type Block struct {
	Hidden, QLora int // E; A, or 0 where QB reads the hidden state

	QA  []float64 // [A][E]
	QB  []float64 // [H*(N+P)][A or E]
	KVA []float64 // [R+P][E]
	O   []float64 // [E][H*V]

	QGamma   []float64 // [A]
	QEpsilon float64
	// NormRound, when not nil, rounds the query's norm as Config.NormRound does.
	NormRound func(float64) float64

	QABias, KVABias, OBias []float64 // nil for none

	QScale   float64 // of the query; 0 means 1
	QBeta    float64 // 1 + QBeta*ln(1 + floor(pos/QContext)) multiplies the query; 0 means none
	QContext int
}

// Query is q [H][N+P] of one hidden state [E] at a position.
func (b *Block) Query(c *Config, hidden []float64, pos int) []float64 {
	x := hidden
	if b.QLora > 0 {
		low := plus(Product(x, b.QA, 1, b.QLora, b.Hidden), b.QABias)
		norm := Config{Gamma: b.QGamma, Epsilon: b.QEpsilon, NormRound: b.NormRound}
		x = norm.Norm(low)
	}
	q := Product(x, b.QB, 1, c.Heads*(c.Nope+c.Rope), len(x))
	f := 1.0
	if b.QScale != 0 {
		f = b.QScale
	}
	if b.QBeta != 0 {
		f *= 1 + b.QBeta*math.Log(1+math.Floor(float64(pos)/float64(b.QContext)))
	}
	for i := range q {
		q[i] *= f
	}
	return q
}

// KV is the raw row [R+P] of one hidden state [E].
func (b *Block) KV(c *Config, hidden []float64) []float64 {
	return plus(Product(hidden, b.KVA, 1, c.Latent+c.Rope, b.Hidden), b.KVABias)
}

// Output is the hidden state [E] of the heads' outputs [H*V] of one token.
func (b *Block) Output(heads []float64) []float64 {
	return plus(Product(heads, b.O, 1, b.Hidden, len(heads)), b.OBias)
}

func plus(x, bias []float64) []float64 {
	for i, v := range bias {
		x[i] += v
	}
	return x
}
