package ref_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

// pairScores is product without scales in the second arithmetic, for rows x that are keys and queries q.
func pairScores(y []float32, x []uint16, q []float32, m, n, k int) {
	const pairLanes = 2 * ref.Lanes
	ld := (k + 1) / 2 * pairLanes
	panels := make([]uint16, (n+ref.Lanes-1)/ref.Lanes*ld)
	ref.PackPairs(panels, ld, q, k, n, k)
	for k0 := 0; k0 < k; k0 += piece {
		panel, size := panels[k0/2*pairLanes:], min(piece, k-k0)
		if k0 == 0 {
			ref.PairSet(y, n, x, k, panel, ld, m, n, size)
		} else {
			ref.PairAdd(y, n, x[k0:], k, panel, ld, m, n, size)
		}
	}
}

// addPairs is add in the second arithmetic.
func (a *attention) addPairs(q []float32, cache []uint16, width int, visible []int32, scale float32) (scores []float32) {
	const partition, tile = 512, 64
	keys := len(cache) / width
	for first := 0; first < keys; first += partition {
		m, l, o := make([]float32, a.rows), make([]float32, a.rows), make([]float32, a.rows*a.cols)
		for j := range m {
			m[j] = float32(math.Inf(-1))
		}
		for key := first; key < min(first+partition, keys); key += tile {
			n := min(tile, keys-key)
			rows := cache[key*width:][:n*width]
			s := make([]float32, n*a.rows)
			pairScores(s, rows, q, n, a.rows, width)
			lo, hi, alpha := make([]int32, a.rows), make([]int32, a.rows), make([]float32, a.rows)
			for j := range hi {
				hi[j] = visible[j] - int32(key)
			}
			pairs := (n + 1) / 2
			p, v := make([]uint16, pairs*2*a.rows), make([]uint16, pairs*2*a.cols)
			ref.SoftmaxTilePairs(p, 2*a.rows, s, a.rows, n, a.rows, lo, hi, scale, m, l, alpha)
			scores = append(scores, s...)
			ref.InterleaveBF16(v, 2*a.cols, rows, width, n, a.cols)
			ref.ValueTilePairsMasked(o, a.cols, p, 2*a.rows, v, 2*a.cols, alpha, pairs, a.rows, a.cols)
		}
		ref.FoldRows(a.O, a.cols, a.M, a.L, o, a.cols, m, l, a.rows, a.cols)
	}
	return scores
}

// stored is a cache as the second arithmetic reads it.
func stored(values []float32) []uint16 {
	cache := make([]uint16, len(values))
	ref.NarrowValueBF16(cache, values)
	return cache
}

func TestPairVectors(t *testing.T) {
	all := vectors(t)
	q, cache, want := all["bf16.q"], all["bf16.cache"], all["bf16.output"]
	a := newAttention(q.shape[0], want.shape[1])
	a.addPairs(q.values, stored(cache.values), q.shape[1], all["bf16.visible"].numbers, all["bf16.scale"].values[0])
	out, lse := a.finish(nil)
	kerneltest.Equal(t, want.values, out, "output")
	kerneltest.Equal(t, all["bf16.lse"].values, lse, "lse")
}

func TestPairTinyVectors(t *testing.T) {
	all := vectors(t)
	q, cache, want := all["bf16_tiny.q"], all["bf16_tiny.cache"], all["bf16_tiny.output"]
	rows, keys := q.shape[0], cache.shape[0]
	visible, scale := all["bf16_tiny.visible"].numbers, all["bf16_tiny.scale"].values[0]
	a := newAttention(rows, want.shape[1])
	got := a.addPairs(q.values, stored(cache.values), q.shape[1], visible, scale)
	out, _ := a.finish(nil)
	kerneltest.Equal(t, want.values, out, "output")
	// The vectors hold the scores of a row one after the other, those of keys that are not seen too.
	for j := range rows {
		for key := range int(visible[j]) {
			require.Equal(t, math.Float32bits(all["bf16_tiny.scores"].values[j*keys+key]), math.Float32bits(got[key*rows+j]), "row %d, key %d", j, key)
		}
	}
}
