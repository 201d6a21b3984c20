package mla_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/mla"
)

func TestPlanChunks(t *testing.T) {
	chunk := func(length int, rows, cache []uint32) mla.Chunk {
		return mla.Chunk{RowOffsets: rows, CacheOffsets: cache, Length: length}
	}
	for _, c := range []struct {
		name      string
		lengths   []int
		page, buf int
		want      []mla.Chunk
	}{
		{"fits", []int{5, 3, 0, 9}, 4, 64, []mla.Chunk{
			chunk(24, []uint32{0, 8, 12, 12, 24}, []uint32{0, 0, 0, 0}),
		}},
		{"fits to the row", []int{4, 4}, 4, 8, []mla.Chunk{
			chunk(8, []uint32{0, 4, 8}, []uint32{0, 0}),
		}},
		{"one sequence in three chunks", []int{10}, 4, 5, []mla.Chunk{
			chunk(5, []uint32{0, 5}, []uint32{0}),
			chunk(5, []uint32{0, 5}, []uint32{5}),
			chunk(2, []uint32{0, 2}, []uint32{10}),
		}},
		{"borders inside sequences", []int{6, 3, 9}, 4, 10, []mla.Chunk{
			// 8, 4 and 12 rows: starts at 0, 8, 12, the end at 24
			chunk(10, []uint32{0, 8, 10, 10}, []uint32{0, 0, 0}),
			chunk(10, []uint32{0, 0, 2, 10}, []uint32{8, 2, 0}),
			chunk(4, []uint32{0, 0, 0, 4}, []uint32{8, 4, 8}),
		}},
		{"border between sequences", []int{8, 8}, 8, 8, []mla.Chunk{
			chunk(8, []uint32{0, 8, 8}, []uint32{0, 0}),
			chunk(8, []uint32{0, 0, 8}, []uint32{8, 0}),
		}},
		{"pages of one token", []int{1, 2}, 1, 2, []mla.Chunk{
			chunk(2, []uint32{0, 1, 2}, []uint32{0, 0}),
			chunk(1, []uint32{0, 0, 1}, []uint32{1, 1}),
		}},
		{"no keys", []int{0, 0}, 4, 8, []mla.Chunk{chunk(-1, []uint32{0, 0, 0}, []uint32{0, 0})}},
		{"no sequences", nil, 4, 8, []mla.Chunk{chunk(-1, []uint32{0}, []uint32{})}},
	} {
		got, err := mla.PlanChunks(c.lengths, c.page, c.buf)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got, c.name)
	}
}

// TestPlanChunksCovers takes plans apart: every token of every page is in one
// place of one chunk.
func TestPlanChunksCovers(t *testing.T) {
	lengths, page := []int{7, 0, 1, 16, 33, 2}, 4
	for buf := 1; buf < 90; buf++ {
		plan, err := mla.PlanChunks(lengths, page, buf)
		require.NoError(t, err)
		next := make([]int, len(lengths))
		for c, chunk := range plan {
			require.LessOrEqual(t, chunk.Length, buf)
			require.EqualValues(t, chunk.Length, chunk.RowOffsets[len(lengths)])
			for i := range lengths {
				rows := int(chunk.RowOffsets[i+1]) - int(chunk.RowOffsets[i])
				require.GreaterOrEqual(t, rows, 0)
				require.EqualValues(t, next[i], chunk.CacheOffsets[i], "buf %d, chunk %d, sequence %d", buf, c, i)
				next[i] += rows
			}
		}
		require.Equal(t, []int{8, 0, 4, 16, 36, 4}, next, "buf %d", buf)
	}
}

func TestPlanChunksErrors(t *testing.T) {
	for _, c := range []struct {
		name      string
		lengths   []int
		page, buf int
		text      string
	}{
		{"page", []int{1}, 0, 8, "pages of 0 tokens"},
		{"huge page", []int{1}, math.MaxInt, 8, "pages of"},
		{"buffer", []int{1}, 4, 0, "a buffer of 0 rows"},
		{"negative buffer", []int{1}, 4, math.MinInt, "a buffer of -"},
		{"huge buffer", []int{1}, 4, math.MaxInt, "a buffer of"},
		{"length", []int{3, -1}, 4, 8, "sequence 1 has -1 keys"},
		{"huge length", []int{math.MaxInt}, 4, 8, "sequence 0 has"},
		{"too many chunks", []int{1 << 30, 1 << 30}, 1 << 30, 1, "2147483648 chunks"},
	} {
		_, err := mla.PlanChunks(c.lengths, c.page, c.buf)
		require.ErrorIs(t, err, mla.ErrShape, c.name)
		require.ErrorContains(t, err, c.text, c.name)
	}
}
