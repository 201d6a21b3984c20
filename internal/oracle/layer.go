package oracle

import "math"

// Head is the up-projection of one head, dequantised: rows of kv_b_proj.
type Head struct {
	UK []float64 // [N][R]
	UV []float64 // [V][R]
}

// Config is the geometry of a layer and what is fixed for all its calls.
type Config struct {
	Heads, Nope, Rope, V, Latent int

	Scale, Epsilon float64
	Mask           Mask
	HalfRope       bool // pairs (i, i+P/2) instead of (2i, 2i+1)

	// Gamma [R] is the weight of the latent's RMSNorm. NormRound, when not nil,
	// rounds x*r and then that times gamma (a bf16 gamma rounds both to bf16).
	Gamma     []float64
	NormRound func(float64) float64
	// LatentScale multiplies the normed latent, and NormRound rounds that too; 0 means 1.
	LatentScale float64

	// Head gives the up-projection of head h; it is asked only for heads whose
	// rows are asked for.
	Head func(h int) Head
}

// SplitKVB serves the heads of a whole kv_b_proj [H*(N+V)][R]: per head N rows
// of UK, then V rows of UV.
func SplitKVB(w []float64, nope, v, latent int) func(h int) Head {
	return func(h int) Head {
		w := w[h*(nope+v)*latent:]
		return Head{UK: w[:nope*latent], UV: w[nope*latent : (nope+v)*latent]}
	}
}

// Call is one call of the layer on a ragged batch.
type Call struct {
	Config

	Q       []float64   // [T][H][N+P], nope then rope, un-roped
	Offsets []int       // [B+1], token ranges of the sequences
	Cached  []int       // [B], tokens in the cache before the call
	Rows    [][]float64 // per sequence [Cached+new][R+P], dequantised, as in the cache after the call
	Freqs   []float64   // [positions][P], cos and sin in turn
	Sink    []float64   // [H], nil for none

	// Select, when not nil, lists the positions that token t attends over in
	// place of the mask, repeats and all.
	Select func(t int) []int

	// Fetch, when not nil, is used in place of Rows: one row [R+P] of a sequence,
	// valid until the next call of Fetch. Only visible rows are asked for.
	Fetch func(seq, pos int) []float64
}

// cachedRow gives the rows of a sequence by position.
func (c *Call) cachedRow(seq int) func(pos int) []float64 {
	if c.Fetch != nil {
		return func(pos int) []float64 { return c.Fetch(seq, pos) }
	}
	return Table(c.Rows[seq], c.Latent+c.Rope)
}

// Row is the answer for token t of the batch and head h.
func (c *Call) Row(t, h int) Row { return c.absorbed(t, h) }

// All is the answers of every token and head, [T*H].
func (c *Call) All() []Row {
	tokens := c.Offsets[len(c.Offsets)-1]
	all := make([]Row, 0, tokens*c.Heads)
	for t := range tokens {
		for h := range c.Heads {
			all = append(all, c.Row(t, h))
		}
	}
	return all
}

// CacheRow is what the contract stores for a raw row kv [R+P] at position pos,
// before it is rounded to the cache's element type: [RMSNorm(latent) | rope].
func (c *Call) CacheRow(kv []float64, pos int) []float64 {
	latent := c.Norm(kv[:c.Latent])
	if c.LatentScale != 0 {
		for i := range latent {
			latent[i] *= c.LatentScale
			if c.NormRound != nil {
				latent[i] = c.NormRound(latent[i])
			}
		}
	}
	return append(latent, c.RoPE(kv[c.Latent:], pos)...)
}

// Norm is x / sqrt(mean(x^2) + epsilon) * gamma.
func (c *Config) Norm(x []float64) []float64 {
	round := c.NormRound
	if round == nil {
		round = func(x float64) float64 { return x }
	}
	r := 1 / math.Sqrt(dot(x, x)/float64(len(x))+c.Epsilon)
	y := make([]float64, len(x))
	for i := range y {
		y[i] = round(round(x[i]*r) * c.Gamma[i])
	}
	return y
}

// RoPE rotates the pairs of x [P] by the angles of position pos.
func (c *Call) RoPE(x []float64, pos int) []float64 {
	p := c.Rope
	y := make([]float64, p)
	for i := range p / 2 {
		cos, sin := c.Freqs[pos*p+2*i], c.Freqs[pos*p+2*i+1]
		re, im := 2*i, 2*i+1
		if c.HalfRope {
			re, im = i, i+p/2
		}
		y[re] = x[re]*cos - x[im]*sin
		y[im] = x[re]*sin + x[im]*cos
	}
	return y
}

// place finds the sequence of token t, its position, and the keys it may see.
func (c *Call) place(t int) (seq, pos int, visible []int) {
	for t >= c.Offsets[seq+1] {
		seq++
	}
	pos = c.Cached[seq] + t - c.Offsets[seq]
	keys := c.Cached[seq] + c.Offsets[seq+1] - c.Offsets[seq]
	if c.Select != nil {
		return seq, pos, c.Select(t)
	}
	return seq, pos, c.Mask.Visible(pos, keys)
}

func (c *Call) query(t, h int) (nope, rope []float64) {
	d := c.Nope + c.Rope
	q := c.Q[(t*c.Heads+h)*d:][:d]
	return q[:c.Nope], q[c.Nope:]
}

func (c *Call) sink(h int) float64 {
	if c.Sink == nil {
		return NoSink
	}
	return c.Sink[h]
}

// absorbed takes the query into the latent space: one product with UK, scores
// against the cached rows as they are, one product with UV.
func (c *Call) absorbed(t, h int) Row {
	seq, pos, visible := c.place(t)
	nope, rope := c.query(t, h)
	w := c.Head(h)
	q := sized{make([]float64, c.Latent, c.Latent+c.Rope), make([]float64, c.Latent, c.Latent+c.Rope)}
	for n, x := range nope {
		for r := range q.x {
			term := x * w.UK[n*c.Latent+r]
			q.x[r] += term
			q.size[r] += term * term
		}
	}
	for r, x := range q.x {
		q.size[r] = math.Max(math.Abs(x), math.Sqrt(q.size[r]))
	}
	turned := c.RoPE(rope, pos)
	q.x, q.size = append(q.x, turned...), append(q.size, turned...)
	cached := c.cachedRow(seq)
	value := func(j int) []float64 { return cached(j)[:c.Latent] }
	return attend(q, cached, value, visible, c.Scale, c.sink(h), c.Latent).Product(w.UV, c.V)
}

// expanded takes every visible row into the space of the query instead: the
// same function in another order, which this package's tests hold against absorbed.
func (c *Call) expanded(t, h int) Row {
	seq, pos, visible := c.place(t)
	nope, rope := c.query(t, h)
	w := c.Head(h)
	q := append(append([]float64(nil), nope...), c.RoPE(rope, pos)...)
	cached := c.cachedRow(seq)
	key := func(j int) []float64 {
		return append(Product(cached(j)[:c.Latent], w.UK, 1, c.Nope, c.Latent), cached(j)[c.Latent:]...)
	}
	value := func(j int) []float64 { return Product(cached(j)[:c.Latent], w.UV, 1, c.V, c.Latent) }
	return AttendApart(q, key, value, visible, c.Scale, c.sink(h), c.V)
}
