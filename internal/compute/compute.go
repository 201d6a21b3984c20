package compute

import (
	"math"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// Shape is what a compute fixes: the places of its arithmetic, which are in the bits of every
// result, and what its kernels want of those who cut work, which is not.
type Shape struct {
	Partition int // places whose sums start from nothing
	Group     int // partitions of a leaf of the tree of merges
	Tile      int // places that are normalised together; Partition is a multiple of it
	// MaskUnit is how many aligned places must all be invalid before a tile may leave them out.
	MaskUnit int
	// Beta0 tells that the first tile of a row overwrites o (beta 0), which then need not be zero.
	Beta0 bool
	// DenseRows is the most query rows of a block over dense rows that the caller laid out.
	DenseRows int
}

// Geometry sizes a Worker.
type Geometry struct {
	K    int // values of a query and a key
	Cols int // values of a value
	Rows int // most query rows of a Unit
	// PackRows is the most rows that Pack takes of a type that is not float32.
	PackRows int
	// Dense tells that Keys may be the caller's dense rows.
	Dense bool
	Width int // values of a cache row, 0 if no keys come from a cache
}

// Compute is one way to compute: f32, bf16. Of makes them.
type Compute interface {
	Shape() Shape
	// PanelFloats is the memory of a panel, simd.Lanes packed queries of k values.
	PanelFloats(k int) int
	// HeadFloats is the memory of expanded keys and values of one head.
	HeadFloats(places, k, cols int) int
	// Head lays them out in memory of HeadFloats.
	Head(buf []float32, places, k, cols int) Dense
	// NewWorker makes a worker, which has no memory before its Carve.
	NewWorker() Worker
}

// Worker is the scratch and the kernels of one worker. One goroutine uses it at a time.
type Worker interface {
	// Carve lays out its memory.
	Carve(c *mem.Carver, g Geometry)
	// Pack packs n queries of k values into panels, Compute.PanelFloats apart: rows of x from
	// element at on, ld apart. k is at most Geometry.K or Geometry.Width.
	Pack(dst []float32, x fp8.Rows, at, ld, n, k int)
	// Attend sets u.Sums to the sums over the visible places of u.
	Attend(u *Unit)

	// Latent reads rows [pos, pos+n) of v of so many values, at most Shape.Tile, as this compute
	// reads cache values, and gives them as float32: row i is x[i*ld:].
	Latent(v View, width, pos, n int) (x []float32, ld int)
	// ExpandKeys is where products write the first values of the keys [at, at+n) of a head, at most
	// Shape.Tile: float32, ld apart. ExpandValues is the same of its values. What is written to the
	// one is taken by ExpandedKeys, with the rope values of each key at x[i*ldx:], before the other
	// is called.
	ExpandKeys(d *Dense, at, n int) (x []float32, ld int)
	ExpandValues(d *Dense, at, n int) (x []float32, ld int)
	ExpandedKeys(d *Dense, at, n, nope int, x []float32, ldx, rope int)
	ExpandedValues(d *Dense, at, n int)
}

// computes is the table of them. Nothing else asks which one it is.
var computes = [...]Compute{fp8.ComputeF32: f32Compute{}, fp8.ComputeBF16: bf16Compute{}}

// Of is the compute of that name, which fp8 knows.
func Of(c fp8.Compute) Compute { return computes[c] }

// Sums are the state of rows: the maximum score m, the sum of exponentials l, and the weighted
// values o, LD apart. A row that has seen nothing has m = -Inf.
type Sums struct {
	M, L, O []float32
	LD      int
}

// CarveSums cuts the sums of so many rows of cols values.
func CarveSums(c *mem.Carver, rows, cols int) Sums {
	ld := Stride(cols)
	return Sums{mem.Carve[float32](c, rows), mem.Carve[float32](c, rows), mem.Carve[float32](c, rows*ld), ld}
}

// From is the sums of the rows from row on.
func (s Sums) From(row int) Sums { return Sums{s.M[row:], s.L[row:], s.O[row*s.LD:], s.LD} }

// Empty makes n rows those that have seen nothing.
func (s Sums) Empty(n int) { fill(s.M[:n], NegInf) }

// start makes n rows ready for their first tile.
func (s Sums) start(n int, beta0 bool) {
	s.Empty(n)
	clear(s.L[:n])
	if !beta0 {
		clear(s.O[:n*s.LD])
	}
}

// Merge merges n rows of later into s, cols values each (docs/arithmetic.md, the merge).
func (s Sums) Merge(later Sums, n, cols int) {
	simd.FoldRows(s.O, s.LD, s.M, s.L, later.O, later.LD, later.M, later.L, n, cols)
}

// Set makes n rows of cols values those of from.
func (s Sums) Set(from Sums, n, cols int) {
	copy(s.M[:n], from.M)
	copy(s.L[:n], from.L)
	if s.LD == from.LD {
		copy(s.O[:n*s.LD], from.O)
		return
	}
	for i := range n {
		copy(s.O[i*s.LD:][:cols], from.O[i*from.LD:])
	}
}

// Unit is one partition of keys for one block of query rows.
type Unit struct {
	Rows    int
	K, Cols int
	Queries []float32 // packed panels of the rows
	Keys    *Keys
	// From, To are places of one partition; End is up to where the block goes on, for prefetches.
	From, To, End int
	// Lo, Hi are the absolute places [Lo[j], Hi[j]) that row j sees. Both grow with j. Of index
	// lists every row has all places, and Causal says the rest.
	Lo, Hi []int32
	Causal Causal
	Scale  float32
	Sums   Sums
	// Prefetch and Ahead, if not nil, are prefetched on the way in place of what follows in Keys:
	// Prefetch.Begin has cut the one for all partitions of a block, the other is told by the tile.
	Prefetch *Prefetch
	Ahead    *Ahead
	// Invalid is set: entries of an index list that were neither -1 nor a row.
	Invalid int64
}

// Causal says where the rows of a Unit stand whose keys are a list that several tokens share:
// row j is that of a token at Pos + (Row+j)/Heads, which must not see later positions. Heads 0:
// nothing is hidden.
type Causal struct {
	Pos, Row, Heads int
}

// NegInf is the maximum over no keys.
var NegInf = float32(math.Inf(-1))

// Stride is the distance between rows of n float32 that spreads columns over a cache: whole
// lines of 64 bytes, an odd number of them.
func Stride(n int) int { return (roundUp(n, 16)/16 | 1) * 16 }

// stride16 is Stride for values of 16 bits; interleaved pairs of n of them are 2*Stride(n) apart.
func stride16(n int) int { return 2 * Stride((n+1)/2) }

// Panels is how many panels n rows take.
func Panels(n int) int { return ceilDiv(n, simd.Lanes) }

func roundUp(n, to int) int { return (n + to - 1) / to * to }

func ceilDiv(n, by int) int { return (n + by - 1) / by }

// fill sets every value of x to v.
func fill[T float32 | int32](x []T, v T) {
	for i := range x {
		x[i] = v
	}
}

// words sees values of 16 bits in memory of float32.
func words(x []float32) []uint16 { return mem.Cast[uint16](mem.Bytes(x)) }
