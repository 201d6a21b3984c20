package simd

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestChoose(t *testing.T) {
	c := choose("")
	assert.Equal(t, levels[0], c.level)
	assert.NoError(t, c.err)

	c = choose(Generic)
	assert.Equal(t, Generic, c.level)
	assert.NoError(t, c.err)
	assert.Contains(t, c.why, Env)

	for _, forced := range []string{"avx9", "GENERIC", "generic "} {
		c = choose(forced)
		assert.Equal(t, Generic, c.level, "the kernels must still work")
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
