package kvpaged_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

func TestPoolView(t *testing.T) {
	c := newCache(t, small()) // 8 pages of 4
	a, b := newSeq(t, c), newSeq(t, c)
	appendRows(t, a, 6, rowOf(c, 1))
	appendRows(t, b, 3, rowOf(c, 2))
	for _, layer := range []int{-1, 2, math.MinInt, math.MaxInt} {
		_, err := c.Lease(layer)
		require.ErrorIs(t, err, kvpaged.ErrRange)
	}
	v, err := c.Lease(1)
	require.NoError(t, err)
	assert.Equal(t, 32, v.Rows())
	require.ErrorIs(t, c.Close(), kvpaged.ErrBusy)

	row := func(s *kvpaged.Seq, pos int32) int32 { return s.Pages()[pos/4]*4 + pos%4 }
	dst := make([]float32, 4*3)
	v.Gather(dst, 3, []int32{row(b, 2), row(a, 5), row(b, 2), 31})
	assert.Equal(t, rowOf(c, 2)(1, 2), dst[:3])
	assert.Equal(t, rowOf(c, 1)(1, 5), dst[3:6])
	assert.Equal(t, dst[:3], dst[6:9])
	assert.Equal(t, []float32{0, 0, 0}, dst[9:], "nobody's page")
	v.Gather(nil, 3, nil)
	for _, r := range []int32{-1, 32, math.MinInt32, math.MaxInt32} {
		assert.Panics(t, func() { v.Gather(dst, 3, []int32{0, r}) }, "%d", r)
	}

	w, err := c.Lease(0)
	require.NoError(t, err)
	w.Release()
	w.Release()
	assert.Zero(t, w.Rows())
	require.ErrorIs(t, c.Close(), kvpaged.ErrBusy, "the first is still out")
	require.NoError(t, a.Free(), "sequences come and go")
	v.Release()
	require.NoError(t, c.Close())
	_, err = c.Lease(0)
	require.ErrorIs(t, err, kvpaged.ErrClosed)
}

func TestGatherPositions(t *testing.T) {
	c := newCache(t, lent())
	s, err := c.Adopt([]int32{3, -1, 5}, 10, 1)
	require.NoError(t, err)
	v := lease(t, s, 0, 1)
	v.Write(10, []float32{1, 2, 3})
	dst := make([]float32, 9)
	v.Gather(dst, 3, []int32{10, 9, 0})
	assert.Equal(t, []float32{1, 2, 3, 0, 0, 0, 0, 0, 0}, dst)
	for _, pos := range []int32{-1, 4, 7, 11, math.MinInt32, math.MaxInt32} {
		assert.Panics(t, func() { v.Gather(dst, 3, []int32{pos}) }, "%d", pos)
	}
}
