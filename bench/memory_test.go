package bench

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
)

// layersOf are the layers of the models, as their configurations say.
var layersOf = map[string]int{"v3": 61, "v2-lite": 27, "kimi-k2": 61, "glm-4.7-flash": 47, "glm-5": 78, "minicpm3": 62}

// TestReadmeMemory holds the table of memory in the README to what caches and packed weights take up.
func TestReadmeMemory(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	for _, m := range Models() {
		layers := layersOf[m.Name]
		require.NotZero(t, layers, m.Name)
		line := fmt.Sprintf("| %s | %d |", m.Name, layers)
		for _, format := range []kvpaged.Format{kvpaged.BF16, kvpaged.FP8Token} {
			for _, ctx := range []int{4096, 32768} {
				line += fmt.Sprintf(" %s, %s |", mebibytes(cacheBytes(t, m, format, 1, ctx)), mebibytes(cacheBytes(t, m, format, layers, ctx)))
			}
		}
		weights := weightBytes(t, m)
		line += fmt.Sprintf(" %s, %s |\n", mebibytes(weights), mebibytes(weights*int64(layers)))
		assert.True(t, strings.Contains(string(readme), line), "the README lacks this line:\n%s", line)
	}
}

// mebibytes prints a size, with one digit behind the point if there is but one before it.
func mebibytes(n int64) string {
	if mib := float64(n) / (1 << 20); mib < 10 {
		return fmt.Sprintf("%.1f", mib)
	}
	return thousands(int((n + 1<<19) >> 20))
}

// cacheBytes is the memory of a cache for one sequence.
func cacheBytes(t *testing.T, m Model, format kvpaged.Format, layers, ctx int) int64 {
	cfg := Spec{KV: format, Batch: 1, Ctx: ctx}.cache(m.Width())
	cfg.Layers = layers
	n, err := kvpaged.ArenaBytes(cfg)
	require.NoError(t, err)
	return n
}

// weightBytes is the memory of the packed weights of a layer, in FP8 with scales for blocks of 128 by 128: the absorbed
// query [R, N], the key [N, R] and the value [V, R] of each head.
func weightBytes(t *testing.T, m Model) (sum int64) {
	step := 128 // where scales may change along N
	for m.Nope%step != 0 || m.V%step != 0 {
		step /= 2
	}
	for _, w := range []struct{ rows, cols, step int }{{m.Latent, m.Nope, step}, {m.Nope, m.Latent, 0}, {m.V, m.Latent, 0}} {
		scales := fp8.ScalesF32(make([]float32, ceil(w.rows, 128)*ceil(w.cols, 128)))
		head, err := fp8.New(fp8.ElemE4M3, w.rows, w.cols, make([]byte, w.rows*w.cols), scales, 128, 128)
		require.NoError(t, err)
		n, err := fp8.PackedBytes(slices.Repeat([]fp8.Matrix{head}, m.Heads), fp8.PackOptions{Step: w.step})
		require.NoError(t, err)
		sum += n
	}
	return sum
}

// TestWeightBytes compares weightBytes with weights that are packed.
func TestWeightBytes(t *testing.T) {
	m := Model{Name: "few heads", Heads: 3, Nope: 192, Rope: 64, V: 256, Latent: 512} // GLM's heads: blocks straddle
	lab := NewLab(1)
	defer lab.Close()
	w, err := lab.layer(Spec{Model: m})
	require.NoError(t, err)
	assert.Equal(t, w.layer.Bytes(), weightBytes(t, m))
}
