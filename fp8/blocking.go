package fp8

import "github.com/lamina-ml/lamina/simd"

// How products are cut. None of it is in the bits.
const (
	// An item of work is at most so many rows by so many panels of weights.
	blockRows, blockPanels = 64, 8
	// The same for rows in a workspace. A worker holds those of an item, and few columns of weights
	// stay in its second-level cache.
	heldRows, heldPanels = 132, 192
	// heldValues bounds the values of float32 that an item holds, long rows aside.
	heldValues = 1 << 16
	// wideRows are the rows of bf16, f16 or codes that are widened at a time.
	wideRows = 32

	// Products with weights that are decoded in registers go through blocks of outputs, whose codes
	// stay in the second-level cache for all rows; in a block through groups of rows, which stay in
	// the first level; a call of the kernel is some of a block for a group. Both are made of whole
	// register tiles of every instruction set.
	blockOutputs = 192
	groupRows    = 12
)

// grid cuts a product into items of work: blocks of rows of groups of panels of matrices.
type grid struct {
	rows   int // in an item
	panels int // in an item
	across int // items across a matrix
	down   int // items down the rows
}

// split cuts a product of m rows and returns the number of items.
func (p *Packed) split(m, workers int) (g grid, items int) {
	return p.cutUp(m, workers, blockRows, blockPanels)
}

// cutUp makes items of some rows by at most so many panels, as large as leaves every worker a few.
func (p *Packed) cutUp(m, workers, rows, panels int) (g grid, items int) {
	g.rows, g.down = rows, ceilDiv(m, rows)
	all := p.batch * p.panels * g.down
	g.across = ceilDiv(p.panels, max(1, min(panels, all/(4*workers))))
	g.panels = ceilDiv(p.panels, g.across)
	g.across = ceilDiv(p.panels, g.panels)
	return g, p.batch * g.across * g.down
}

// item is the matrix, the first row and the first output of an item.
func (g grid) item(i int) (b, i0, n0 int) {
	i, block := i/g.down, i%g.down
	b, group := i/g.across, i%g.across
	return b, block * g.rows, group * g.panels * simd.Lanes
}

// call bounds the calls of a kernel that goes through pieces of k by itself.
type call struct {
	fma  int // multiply-adds that one should not exceed
	tile int // rows of the widest register tile
	k    int
}

func callOf(fma, k int) call { return call{fma, simd.Blocks().RowTile, k} }

// leastRows are in any call: with fewer, it decodes each weight for too few of them. Where
// 4 rows by 16 outputs are too much for one call, as those of 16,384 columns are on some
// levels, k is cut.
const leastRows = 4

// rows is how many of the next m rows a call takes, group at most or somewhat more, so
// that no small group remains.
func (c call) rows(m, group int) int {
	if fit := c.fma / (c.k * simd.Lanes); fit < group {
		if fit > c.tile {
			fit -= fit % c.tile
		}
		group = max(fit, leastRows)
	}
	switch {
	case m <= group:
		return m
	case m >= 3*group/2:
		return group
	case m*c.k*simd.Lanes <= c.fma:
		return m
	}
	return (m + 1) / 2
}

// width is how many outputs of so many rows a call computes: as many as the level
// allows, in whole register tiles if there is room for one.
func (c call) width(rows int) int {
	const tile = 64 // outputs of the widest
	n := c.fma / (rows * c.k)
	if n >= tile {
		return n / tile * tile
	}
	return max(simd.Lanes, n/simd.Lanes*simd.Lanes)
}

// terms is how many terms of the sums of so many rows by outputs a call adds up: all, or
// whole pieces of k in calls that are about as large as each other.
func (c call) terms(rows, outputs int) int {
	if rows*outputs*c.k <= c.fma {
		return c.k
	}
	fit := max(1, c.fma/(rows*outputs*pieceK)) // pieces
	return ceilDiv(ceilDiv(c.k, pieceK), ceilDiv(c.k, fit*pieceK)) * pieceK
}

// callRows is how many of m rows a call takes that has no more than most multiply-adds,
// if one row has not, for outputs in whole panels and a piece of k. The calls for all rows
// are about as large as each other.
func callRows(m, most, outputs, k int) int {
	fit := max(1, most/(ceilDiv(outputs, simd.Lanes)*simd.Lanes*k))
	return ceilDiv(m, max(1, ceilDiv(m, fit)))
}
