package bench

import (
	"fmt"
	"math"
	"strings"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// Op is what a row of the bench does.
type Op string

// The operations; the package comment says what each of them times.
const (
	Decode       Op = "decode"
	SparseDecode Op = "sparse_decode"
	Prefill      Op = "prefill"
	Gemm         Op = "gemm"
	Layer        Op = "layer"
	Block        Op = "block"
)

// Ops lists the operations in the order of the table.
func Ops() []Op { return []Op{Decode, SparseDecode, Prefill, Layer, Block, Gemm} }

// pages says that an operation works on a paged cache.
func (s Spec) pages() bool { return s.Op != Gemm && s.Op != Prefill }

// isCore says that an operation is attention alone, in the absorbed form.
func (op Op) isCore() bool { return op == Decode || op == SparseDecode }

// Spec says what one row does, before it is done.
type Spec struct {
	Op      Op
	Model   Model
	Threads int
	// Arithmetic is mla.ComputeF32 or mla.ComputeBF16. For BF16 the data are bf16 values, in whatever
	// type they lie.
	Arithmetic mla.Compute

	// Weights, if not nil, are those of a layer or block, in place of made ones; Model
	// is then Weights.Model().
	Weights *Weights

	// Attention: Batch sequences, each with Tokens new tokens of which the last
	// sees Ctx keys, its own included.
	Ctx, Batch, Tokens int
	// Shortest, if not 0, makes the batch a ragged one: the first sequence has so
	// many keys, the last Ctx, and each the same factor more than the one before.
	Shortest int
	KV       kvpaged.Format // of the cache; F32 for prefill, whose keys and values are that
	TopK     int            // sparse_decode: entries of a token's index list

	// Gemm: y[M,N] = x[M,K] . w[N,K]^T, or Batch of these, each on weights and rows
	// of its own, as the products per head are. Rival, when not empty, names who
	// computes it in place of this library.
	M, N, K int
	Rival   string
}

// Gonum is the rival of the gemm rows: gonum's sgemm on the dequantised weights.
const Gonum = "gonum"

// String names the row as progress and errors do.
func (s Spec) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", s.Op, s.Model.Name)
	if s.Op == Gemm {
		fmt.Fprintf(&b, " m=%d n=%d k=%d", s.M, s.N, s.K)
		if s.Batch > 1 {
			fmt.Fprintf(&b, " batch=%d", s.Batch)
		}
		if s.Rival != "" {
			fmt.Fprintf(&b, " rival=%s", s.Rival)
		}
	} else {
		b.WriteString(" ctx=")
		if s.ragged() {
			fmt.Fprintf(&b, "%d..", s.Shortest)
		}
		fmt.Fprint(&b, s.Ctx)
		if s.Op == SparseDecode {
			fmt.Fprintf(&b, " topk=%d", s.TopK)
		}
		fmt.Fprintf(&b, " batch=%d tokens=%d kv=%v", s.Batch, s.tokens(), s.KV)
	}
	if s.Arithmetic != mla.ComputeF32 {
		fmt.Fprintf(&b, " arithmetic=%v", s.Arithmetic)
	}
	fmt.Fprintf(&b, " threads=%d", s.Threads)
	return b.String()
}

// Title names the work in words, whatever the number of threads.
func (s Spec) Title() string {
	if s.Arithmetic != mla.ComputeF32 {
		f32 := s
		f32.Arithmetic = mla.ComputeF32
		return fmt.Sprintf("%s, %v arithmetic", f32.Title(), s.Arithmetic)
	}
	heads := fmt.Sprintf("%s, %d heads", s.Op, s.Model.Heads)
	switch {
	case s.Op == Gemm:
		return s.gemmTitle()
	case s.Op == Prefill:
		return fmt.Sprintf("%s, %s tokens, causal", heads, thousands(s.Tokens))
	case s.Tokens > 1:
		return fmt.Sprintf("%s, %s tokens, %v", heads, thousands(s.Tokens), s.KV)
	case s.Op == SparseDecode:
		return fmt.Sprintf("%s, %s of %s keys, %v", heads, thousands(s.keys()), thousands(s.Ctx), s.KV)
	case s.ragged():
		return fmt.Sprintf("%s, %d sequences of %s to %s keys, %v", heads, s.Batch, thousands(s.Shortest), thousands(s.Ctx), s.KV)
	case s.Batch > 1:
		return fmt.Sprintf("%s, %d sequences of %s keys, %v", heads, s.Batch, thousands(s.Ctx), s.KV)
	}
	return fmt.Sprintf("%s, %s keys, %v", heads, thousands(s.Ctx), s.KV)
}

func (s Spec) gemmTitle() string {
	weights, times := "FP8 weights", ""
	if s.Rival != "" {
		weights = s.Rival + " on f32 weights"
	}
	if s.Batch > 1 {
		times = fmt.Sprintf("%d of ", s.Batch)
	}
	return fmt.Sprintf("%s, %s, %sN %s, K %s, M %d", s.Op, weights, times, thousands(s.N), thousands(s.K), s.M)
}

// thousands prints n in groups of three digits.
func thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// tokens is the number of new tokens in the whole batch.
func (s Spec) tokens() int { return s.Batch * s.Tokens }

// ragged says that the sequences of the batch have different lengths.
func (s Spec) ragged() bool { return s.Shortest != 0 && s.Batch > 1 }

// length is the number of keys of a sequence of the batch, its new tokens included.
func (s Spec) length(seq int) int {
	if !s.ragged() {
		return s.Ctx
	}
	ratio := float64(s.Ctx) / float64(s.Shortest)
	return int(math.Round(float64(s.Shortest) * math.Pow(ratio, float64(seq)/float64(s.Batch-1))))
}

// place is the sequence of new token t and its position there.
func (s Spec) place(t int) (seq, pos int) {
	seq = t / s.Tokens
	return seq, s.length(seq) - s.Tokens + t%s.Tokens
}

// keys is how many keys a token of sparse_decode attends over.
func (s Spec) keys() int { return min(s.TopK, s.Ctx) }

// rows is how many rows are in the cache, pairs of how many new tokens and keys
// that they see attention consists.
func (s Spec) rows() (rows, pairs int) {
	for seq := range s.Batch {
		n := s.length(seq)
		rows += n
		pairs += s.Tokens*(n-s.Tokens) + s.Tokens*(s.Tokens+1)/2
	}
	if s.Op == SparseDecode {
		pairs = s.tokens() * s.keys()
	}
	return rows, pairs
}

// products is how many products a gemm is.
func (s Spec) products() int { return max(s.Batch, 1) }

// reading says that a row is about reading its weights: a product with one row
// of x does two operations with each of them.
func (s Spec) reading() bool { return s.Op == Gemm && s.M == 1 }

// cached is how many values are in the cache.
func (s Spec) cached() int {
	if !s.pages() {
		return 0
	}
	width, _, _ := s.dims()
	rows, _ := s.rows()
	return rows * width
}

// Flops is the floating-point operations of one run, a multiplication and an
// addition each counted:
//
//	decode         2*H*pairs*(C+R)      pairs of a new token and a key it sees
//	sparse_decode  2*H*T*topk*(C+R)     or of all keys, where they are fewer
//	prefill        2*H*pairs*(N+P+V)
//	layer          the cheaper of decode + 2*T*H*R*(N+V) and prefill + 2*keys*H*R*(N+V)
//	block          layer + 2*T*(weights of the projections)
//	gemm           2*M*N*K              of each product
//
// In a format of rows that are the value as a whole, decode and sparse_decode
// have R for C.
func (s Spec) Flops() float64 {
	if s.Op == Gemm {
		return 2 * float64(s.products()) * float64(s.M) * float64(s.N) * float64(s.K)
	}
	m := s.Model
	heads := float64(m.Heads)
	rows, pairs := s.rows()
	width, value, _ := s.dims()
	absorbed := 2 * heads * float64(pairs) * float64(width+value)
	expanded := 2 * heads * float64(pairs) * float64(m.Nope+m.Rope+m.V)
	switch s.Op {
	case Decode, SparseDecode:
		return absorbed
	case Prefill:
		return expanded
	}
	product := 2 * heads * float64(m.Latent) * float64(m.Nope+m.V) // of a row
	layer := min(absorbed+product*float64(s.tokens()), expanded+product*float64(rows))
	if s.Op == Block {
		layer += 2 * float64(s.tokens()) * float64(m.projected())
	}
	return layer
}

// Bytes is what one run has to read from memory at least once, given the size
// of a cache row: cache rows, weight codes, and for gemm x and y. A weight that the
// bench makes is one byte.
func (s Spec) Bytes(rowBytes int) float64 {
	switch s.Op {
	case Decode:
		rows, _ := s.rows()
		return float64(rows) * float64(rowBytes)
	case SparseDecode:
		return float64(s.tokens()) * float64(s.keys()) * float64(rowBytes)
	case Layer, Block:
		rows, _ := s.rows()
		return float64(rows)*float64(rowBytes) + s.weightBytes()
	case Gemm:
		code := 1.0
		if s.Rival != "" {
			code = 4
		}
		return float64(s.products()) * (code*float64(s.N)*float64(s.K) + 4*float64(s.M)*float64(s.N+s.K))
	}
	return 0 // prefill on ready keys reads next to nothing
}

// weightBytes are the codes that a layer or a block reads.
func (s Spec) weightBytes() float64 {
	m := s.Model
	up := float64(m.Heads) * float64(m.Nope+m.V) * float64(m.Latent)
	around := float64(m.projected())
	if w := s.Weights; w != nil {
		up *= float64(w.Block.Core.KVB.Elem().Size())
		around = 0
		for _, p := range w.projections() {
			around += float64(p.Rows()) * float64(p.Cols()) * float64(p.Elem().Size())
		}
	}
	if s.Op == Layer {
		return up
	}
	return up + around
}
