package bench

import (
	"fmt"
	"strings"

	"github.com/lamina-ml/lamina/kvpaged"
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
)

// Ops lists the operations in the order of the table.
func Ops() []Op { return []Op{Decode, SparseDecode, Prefill, Layer, Gemm} }

// isCore says that an operation is attention alone, in the absorbed form.
func (op Op) isCore() bool { return op == Decode || op == SparseDecode }

// Spec says what one row does, before it is done.
type Spec struct {
	Op      Op
	Model   Model
	Threads int

	// Attention: Batch sequences, each with Tokens new tokens of which the last
	// sees Ctx keys, its own included.
	Ctx, Batch, Tokens int
	KV                 kvpaged.Format
	TopK               int // sparse_decode: entries of a token's index list

	// Gemm: y[M,N] = x[M,K] . w[N,K]^T. Rival, when not empty, names who
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
		if s.Rival != "" {
			fmt.Fprintf(&b, " rival=%s", s.Rival)
		}
	} else {
		fmt.Fprintf(&b, " ctx=%d", s.Ctx)
		if s.Op == SparseDecode {
			fmt.Fprintf(&b, " topk=%d", s.TopK)
		}
		fmt.Fprintf(&b, " batch=%d tokens=%d kv=%v", s.Batch, s.tokens(), s.KV)
	}
	fmt.Fprintf(&b, " threads=%d", s.Threads)
	return b.String()
}

// tokens is the number of new tokens in the whole batch.
func (s Spec) tokens() int { return s.Batch * s.Tokens }

// place is the sequence of new token t and its position there.
func (s Spec) place(t int) (seq, pos int) {
	return t / s.Tokens, s.Ctx - s.Tokens + t%s.Tokens
}

// keys is how many keys a token of sparse_decode attends over.
func (s Spec) keys() int { return min(s.TopK, s.Ctx) }

// cached is how many values are in the cache.
func (s Spec) cached() int {
	if s.Op == Gemm {
		return 0
	}
	width, _, _ := s.dims()
	return s.Batch * s.Ctx * width
}

// Flops is the floating-point operations of one run, a multiplication and an
// addition each counted:
//
//	decode         2*H*pairs*(C+R)      pairs of a new token and a key it sees
//	sparse_decode  2*H*T*topk*(C+R)     or of all keys, where they are fewer
//	prefill        2*H*pairs*(N+P+V)
//	layer          the cheaper of decode + 2*T*H*R*(N+V) and prefill + 2*keys*H*R*(N+V)
//	gemm           2*M*N*K
//
// In a format of rows that are the value as a whole, decode and sparse_decode
// have R for C.
func (s Spec) Flops() float64 {
	if s.Op == Gemm {
		return 2 * float64(s.M) * float64(s.N) * float64(s.K)
	}
	m := s.Model
	heads := float64(m.Heads)
	pairs := float64(s.Batch) * (float64(s.Tokens)*float64(s.Ctx-s.Tokens) + float64(s.Tokens)*float64(s.Tokens+1)/2)
	if s.Op == SparseDecode {
		pairs = float64(s.tokens()) * float64(s.keys())
	}
	width, value, _ := s.dims()
	absorbed := 2 * heads * pairs * float64(width+value)
	expanded := 2 * heads * pairs * float64(m.Nope+m.Rope+m.V)
	switch s.Op {
	case Decode, SparseDecode:
		return absorbed
	case Prefill:
		return expanded
	}
	row := 2 * heads * float64(m.Latent) * float64(m.Nope+m.V)
	return min(absorbed+row*float64(s.tokens()), expanded+row*float64(s.Batch*s.Ctx))
}

// Bytes is what one run has to read from memory at least once, given the size
// of a cache row: cache rows, weight codes, and for gemm x and y.
func (s Spec) Bytes(rowBytes int) float64 {
	rows := float64(s.Batch) * float64(s.Ctx) * float64(rowBytes)
	m := s.Model
	switch s.Op {
	case Decode:
		return rows
	case SparseDecode:
		return float64(s.tokens()) * float64(s.keys()) * float64(rowBytes)
	case Layer:
		return rows + float64(m.Heads)*float64(m.Nope+m.V)*float64(m.Latent)
	case Gemm:
		code := 1.0
		if s.Rival != "" {
			code = 4
		}
		return code*float64(s.N)*float64(s.K) + 4*float64(s.M)*float64(s.N+s.K)
	}
	return 0 // prefill on ready keys reads next to nothing
}
