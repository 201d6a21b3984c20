package simd

import "github.com/klauspost/cpuid/v2"

// Blocking is the sizes that suit the kernels of a level. They decide how work is cut, and are in no bit of any result.
type Blocking struct {
	// RowTile is how many rows the widest register tile of ValueTile and Part takes: a cut at multiples of it wastes
	// nothing.
	RowTile int
	// CallFMA is the most multiply-adds of one call of a kernel. Go cannot interrupt assembly: a call must end within
	// about 50 microseconds on the slowest processor of its level, or a garbage collection waits for it.
	CallFMA int
	// CallPairs is the same for the products of the second arithmetic: where there is no instruction for a pair, its two
	// multiply-adds take up to twice as long.
	CallPairs int
	// CallFolds is the same for PairFoldSet and PairFoldAdd, which scale and round an activation for every output: ten
	// multiply-adds would take about as long.
	CallFolds int
	// BlockRows is how many query rows at most should share a tile of keys. With the tile, some 150 KB, they go through
	// the second-level cache for every tile: a row is 4.5 KB of query and output.
	BlockRows int
}

// blockings is the one place of these sizes.
//
//	avx2     6 rows by 16 lanes, 12 accumulators of 16 registers; 2^19 are 10 us at 50 GFMA/s, 50 us on a slow laptop
//	avx512   8 rows by 32 lanes, 16 accumulators of 32 registers; 5*2^18 are 22 us at 59 GFMA/s, 50 us at 26;
//	         avx512bf16 too, pairs included
//	neon     8 rows by 8 or 12 lanes; 10^5 are 50 us on a Cortex-A53; neonbf16 too, pairs included
//	         PairFold 12 instructions for a multiply-add of 4 lanes: 10^4 are 25 us at 1.4 GHz
//	generic  pure Go is interrupted anywhere
//
// A tile and 64 rows are 450 KB, which a second-level cache of 512 KB holds; a tile and 128 rows are 740 KB. On amd64
// what the second level does not hold is in a fast third one, so the tile is shared by more rows; boards have slow memory
// behind the second.
var blockings = [...]Blocking{
	setGeneric:    {RowTile: 1, CallFMA: 1 << 30, CallPairs: 1 << 30, CallFolds: 1 << 30, BlockRows: 128},
	setAVX2:       {RowTile: 6, CallFMA: 1 << 19, CallPairs: 1 << 18, CallFolds: (1 << 19) / 10, BlockRows: 128},
	setAVX512:     {RowTile: 8, CallFMA: 5 << 18, CallPairs: 5 << 17, CallFolds: (5 << 18) / 10, BlockRows: 128},
	setAVX512BF16: {RowTile: 8, CallFMA: 5 << 18, CallPairs: 5 << 18, CallFolds: (5 << 18) / 10, BlockRows: 128},
	setNEON:       {RowTile: 8, CallFMA: 100_000, CallPairs: 50_000, CallFolds: 10_000, BlockRows: neonRows(cpuid.CPU.Cache.L2)},
	setNEONBF16:   {RowTile: 8, CallFMA: 100_000, CallPairs: 100_000, CallFolds: 10_000, BlockRows: neonRows(cpuid.CPU.Cache.L2)},
}

// neonRows is BlockRows for a second-level cache of so many bytes. On Arm only macOS tells: -1 means not known.
func neonRows(l2 int) int {
	if l2 >= 1<<20 {
		return 128
	}
	return 64
}

// Blocks is the blocking of the level in use.
func Blocks() Blocking { return blockings[chosen.set] }
