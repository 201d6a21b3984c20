package forms

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/attend"
	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/kvpaged"
)

// Layer is the geometry, the choices and the weights of a layer. Of attention alone Nope and V are
// 0 and there are no weights: queries come absorbed and outputs leave latent.
type Layer struct {
	Heads, Nope, Rope, V, Latent int

	Compute fp8.Compute
	Scale   float32
	Mask    attend.Mask

	Epsilon, LatentScale float32
	Half                 bool // halves are rotated, not pairs
	// GroupQ and GroupLatent are values that share a scale of quantised activations; 0: none are.
	GroupQ, GroupLatent int

	UK    *fp8.Packed // [R, N] a head: absorbed query
	K     *fp8.Packed // [N, R] a head: expanded key
	UV    *fp8.Packed // [V, R] a head: value, both forms
	Gamma []float32   // [R]
}

func (l *Layer) width() int { return l.Latent + l.Rope }

// activations are what w_uk multiplies, and w_k and w_uv.
func (l *Layer) activations() (query, latent fp8.ActivationSpec) {
	return fp8.ActivationSpec{Product: fp8.Product{Compute: l.Compute, Group: l.GroupQ}, Rows: productTokens, K: l.Nope},
		fp8.ActivationSpec{Product: fp8.Product{Compute: l.Compute, Group: l.GroupLatent}, Rows: productTokens, K: l.Latent}
}

// must holds the promise that a layer's sizes were checked.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// core tells that there are no weights.
func (l *Layer) core() bool { return l.V == 0 }

// Seq is the new tokens, or the queries, of one sequence.
type Seq struct {
	Token, Tokens int // of the call
	Pos           int // position of the first
	Keys          int // of the sequence, the new ones included
	View          compute.View
	Expanded      bool
}

// Lists are an index list for every token, [T, Stride].
type Lists struct {
	Indices  []int32
	Stride   int
	Lengths  []int32 // nil: Stride
	PerToken bool    // Lengths is [T], else [B]
	Logical  bool    // entries are positions of the token's sequence
	// Physical entries are rows of Pool, or of Plain.
	Pool  *kvpaged.PoolView
	Plain fp8.Rows
	Rows  int
}

// Of is the entries of token t, of sequence seq, that count.
func (l *Lists) Of(t, seq int) []int32 {
	n := l.Stride
	if l.Lengths != nil {
		at := seq
		if l.PerToken {
			at = t
		}
		n = min(max(int(l.Lengths[at]), 0), n)
	}
	return l.Indices[t*l.Stride : t*l.Stride+n]
}

// Call is one call, checked.
type Call struct {
	*Layer
	Tokens int
	Seqs   []Seq
	Q      fp8.Rows // [T, H, N+P], or of attention alone [T, H, R+P]
	KV     fp8.Rows // [T, R+P] new rows to store
	Round  Rounding
	Freqs  fp8.Rows // [positions, P]
	Out    fp8.Rows // [T, H, V], or [T, H, R]

	Lists  [2]Lists
	Sparse int  // how many of Lists there are; 0: dense
	Shared bool // the tokens of a sequence share their lists

	Sink, LSE, MaxLogit []float32
	ByHead              bool // LSE and MaxLogit are [b, h, s_q] instead of [T, H]

	Invalid int64 // set: entries of the lists that were neither -1 nor a row
}

// outputs is what attention does with finished rows that go to the caller.
func (c *Call) outputs() attend.Outputs {
	o := attend.Outputs{Sink: c.Sink, LSE: c.LSE, MaxLogit: c.MaxLogit, PerToken: c.Heads, PerHead: 1}
	if c.ByHead && len(c.Seqs) > 0 {
		o.PerToken, o.PerHead = 1, c.Seqs[0].Tokens // every sequence has as many
	}
	return o
}

// lseAt is the element of LSE and MaxLogit of head 0 of a token of a sequence.
func (c *Call) lseAt(seq, token int) int {
	if c.ByHead {
		s := &c.Seqs[seq]
		return s.Token*c.Heads + token - s.Token
	}
	return token * c.Heads
}
