package compute

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lamina-ml/lamina/simd"
)

// Calls for a tile are within what assembly may take, unless that is too little for a register
// tile, and not many times shorter.
func TestTileCalls(t *testing.T) {
	tile := simd.Blocks().RowTile
	for _, most := range []int{1_000, 50_000, 100_000, 1 << 18, 1 << 19, 5 << 18, 1 << 30} {
		within := func(work, least int, args ...any) {
			t.Helper()
			assert.LessOrEqual(t, work, max(most, least), args...)
			assert.Greater(t, 4*work, most, args...)
		}
		for keys := 1; keys <= 64; keys++ {
			for _, k := range []int{24, 192, 256, 576} {
				rows, some := scoreCall(most, keys, k)
				assert.Zero(t, rows%simd.Lanes)
				assert.Positive(t, rows)
				assert.LessOrEqual(t, some, keys)
				assert.Positive(t, some)
				within(rows*some*min(k, 256), simd.Lanes*4*min(k, 256), "%d keys of %d terms", keys, k)
			}
			for n := 1; n <= 128; n++ {
				rows, cols := valueCall(most, n, keys)
				assert.LessOrEqual(t, rows, n)
				assert.True(t, rows == n || rows%tile == 0, "%d of %d rows", rows, n)
				assert.Zero(t, cols%32)
				assert.Positive(t, cols)
				within(rows*keys*cols, tile*keys*32, "%d rows, %d keys", n, keys)
			}
		}
	}
}
