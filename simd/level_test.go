package simd

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestChoose(t *testing.T) {
	c := choose("")
	assert.Equal(t, levels[0], c.supported)
	assert.NoError(t, c.err)

	if c.hasVBMI || c.hasVNNI {
		assert.Contains(t, Levels(), "avx512", "these come with it")
	}

	c = choose(Generic)
	assert.Equal(t, Generic, c.name)
	assert.NoError(t, c.err)
	assert.Contains(t, c.why, Env)

	for _, forced := range []string{"avx9", "GENERIC", "generic "} {
		c = choose(forced)
		assert.Equal(t, Generic, c.name, "the kernels must still work")
		assert.ErrorIs(t, c.err, ErrLevel)
		assert.ErrorContains(t, c.err, forced)
		assert.ErrorContains(t, c.err, Generic, "the error tells what there is")
	}
}

func TestLevels(t *testing.T) {
	assert.NoError(t, Err())
	assert.Contains(t, Levels(), Level())
	assert.Equal(t, Generic, Levels()[len(Levels())-1])
	assert.NotEmpty(t, Why())
	if forced := os.Getenv(Env); forced != "" {
		assert.Equal(t, forced, Level())
	}
	Levels()[0] = "changed"
	assert.NotContains(t, Levels(), "changed")
}

// TestBlockRows shows that a small second-level cache, or one that is not known, makes fewer rows share a tile.
func TestBlockRows(t *testing.T) {
	for l2, rows := range map[int]int{-1: 64, 0: 64, 512 << 10: 64, 1 << 20: 128, 16 << 20: 128} {
		assert.Equal(t, rows, neonRows(l2), l2)
	}
	assert.NotZero(t, Blocks().BlockRows)
}

// TestBlockings: every level has all sizes, a call of pairs is no longer than any other, one that rounds activations has
// a tenth, and there is room in it for a row of a panel and a whole piece.
func TestBlockings(t *testing.T) {
	for set, b := range blockings {
		assert.Positive(t, b.RowTile, set)
		assert.Positive(t, b.CallFMA, set)
		assert.Positive(t, b.CallPairs, set)
		assert.LessOrEqual(t, b.CallPairs, b.CallFMA, set)
		assert.GreaterOrEqual(t, b.CallFolds, Lanes*256, set)
		if set != int(setGeneric) {
			assert.LessOrEqual(t, b.CallFolds, b.CallFMA/10, set)
		}
		assert.Positive(t, b.BlockRows, set)
	}
}
