package simd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lamina-ml/lamina/simd"
)

// TestKernelsDoNotAllocate holds calls through the door to no allocation.
func TestKernelsDoNotAllocate(t *testing.T) {
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		var y, x, b [simd.Lanes * 4]float32 // escape if a kernel is called through a variable
		var lo, hi [simd.Lanes]int32
		var codes [simd.Lanes * 4]byte
		simd.PackRows(b[:], len(b), x[:], 4, simd.Lanes, 4)
		simd.PartSet(y[:], simd.Lanes, x[:], 4, b[:], len(b), 4, simd.Lanes, 4)
		simd.GemmE4M3(y[:], simd.Lanes, x[:], 4, codes[:], len(codes), b[:], len(b), 4, simd.Lanes, 0, 4, 4, 0)
		simd.SoftmaxTile(y[:], simd.Lanes, 4, simd.Lanes, lo[:], hi[:], 1, x[:], x[simd.Lanes:], b[:])
		simd.ValueTile(y[:], 4, x[:], simd.Lanes, b[:], 4, b[:], 4, simd.Lanes, 4)
		simd.RMSNorm(y[:], x[:], b[:], 1)
		simd.QuantDynamic(codes[:], y[:], x[:], 16)
		simd.WidenE4M3(y[:], codes[:])
		var u, v [simd.Lanes * 4]uint16
		simd.PackPairs(v[:], len(v), x[:], 4, simd.Lanes, 4)
		simd.PairSet(y[:], simd.Lanes, u[:], 4, v[:], len(v), 4, simd.Lanes, 4)
		simd.PairAdd(y[:], simd.Lanes, u[:], 4, v[:], len(v), 4, simd.Lanes, 4)
		simd.PairScale(y[:], simd.Lanes, u[:], 4, v[:], len(v), b[:], 4, simd.Lanes, 4)
		simd.PairFoldSet(y[:], simd.Lanes, x[:], 4, v[:], len(v), b[:], len(b), 4, simd.Lanes, 4)
		simd.GemmE4M3Pairs(y[:], simd.Lanes, u[:], 4, codes[:], len(codes), b[:], len(b), 4, simd.Lanes, 0, 4, 4)
		simd.SoftmaxTilePairs(u[:], 2*simd.Lanes, y[:], simd.Lanes, 4, simd.Lanes, lo[:], hi[:], 1, x[:], x[simd.Lanes:], b[:])
		simd.InterleaveBF16(u[:], 8, v[:], 4, 4, 4)
		simd.ValueTilePairs(y[:], 4, u[:], 2*simd.Lanes, v[:], 8, b[:], 2, simd.Lanes, 4, nil)
		simd.ValueTilePairs(y[:], 4, u[:], 2*simd.Lanes, v[:], 8, b[:], 2, simd.Lanes, 4, codes[:])
		simd.FinishRowsBF16(u[:], 4, y[:], 4, x[:], b[:], nil, x[simd.Lanes:], x[2*simd.Lanes:], simd.Lanes, 4, 0)
		simd.Prefetch(codes[:], simd.Lanes, simd.Lanes, 4)
	}))
}
