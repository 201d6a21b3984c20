package kvpaged_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/bf16"
	"github.com/lamina-ml/lamina/kvpaged"
)

// asBF16 is what the second arithmetic reads for a value that Widen gives.
func asBF16(x float32) uint16 {
	u := uint16(bf16.FromFloat32(x))
	if math.Abs(float64(bf16.BF16(u).Float32())) < 0x1p-52 {
		return 0
	}
	return u
}

// requireBF16 compares rows, of which NaNs count as equal, with those of Widen. What is between them is untouched.
func requireBF16(t testing.TB, want []float32, width int, got []uint16, ld int, untouched uint16) {
	t.Helper()
	for i, u := range got {
		w := untouched
		if i%ld < width {
			w = asBF16(want[i/ld*width+i%ld])
		}
		if u != w && !(bf16.BF16(w).IsNaN() && bf16.BF16(u).IsNaN()) {
			require.Equal(t, w, u, "value %d of row %d: %v", i%ld, i/ld, want[min(i/ld*width+i%ld, len(want)-1)])
		}
	}
}

// TestReadBF16 reads rows of every format with room for one row, some, and all at a time.
func TestReadBF16(t *testing.T) {
	const rows, other = 69, 0xABCD
	for _, f := range allFormats {
		for _, page := range []int{3, 64} {
			cfg := in(f, kvpaged.Config{Layers: 2, PageTokens: page, Width: 37, Pages: 2*rows/page + 8})
			c := newCache(t, cfg)
			width := c.Config().Width
			rng := rand.New(rand.NewPCG(5, uint64(f)))
			s, beside := newSeq(t, c), newSeq(t, c)
			draw := func(int, int) []float32 {
				x := values(rng, width)
				for i := range x { // near the bound, and below
					if i%5 == 0 {
						x[i] = float32(math.Ldexp(rng.Float64()-0.5, -50-rng.IntN(4)))
					}
				}
				return x
			}
			for range 3 { // pages of the two take turns
				appendRows(t, s, rows/3, draw)
				appendRows(t, beside, page, draw)
			}
			v := lease(t, s, 1, 0)
			pool, err := c.Lease(1)
			require.NoError(t, err)
			want := make([]float32, rows*width)
			v.Widen(want, width, 0, rows)
			positions, physical := make([]int32, rows), make([]int32, rows)
			for i, pos := range rng.Perm(rows) {
				positions[i] = int32(pos)
				physical[i] = s.Pages()[pos/page]*int32(page) + int32(pos%page)
			}
			gathered := make([]float32, rows*width)
			v.Gather(gathered, width, positions)

			ld := width + 3
			for _, room := range []int{width, 7*width + 1, 100 * width} {
				scratch := make([]float32, room)
				for name, read := range map[string]func(dst []uint16) []float32{
					"read":            func(dst []uint16) []float32 { v.ReadBF16(dst, ld, scratch, 0, rows); return want },
					"gather":          func(dst []uint16) []float32 { v.GatherBF16(dst, ld, scratch, positions); return gathered },
					"gather physical": func(dst []uint16) []float32 { pool.GatherBF16(dst, ld, scratch, physical); return gathered },
				} {
					dst := make([]uint16, (rows-1)*ld+width) // ends where the last row does
					for i := range dst {
						dst[i] = other
					}
					require.NotPanics(t, func() { requireBF16(t, read(dst), width, dst, ld, other) }, "%v %s", f, name)
				}
			}
			assert.Panics(t, func() { v.ReadBF16(make([]uint16, width), width, make([]float32, width-1), 0, 1) })

			for pos := range rows {
				n := min(page-pos%page, rows-pos)
				run := v.RunBF16(pos, n)
				if f != kvpaged.BF16 {
					require.Nil(t, run)
					continue
				}
				require.Len(t, run, n*width)
				for i, u := range run { // as stored: not flushed
					x := bf16.FromFloat32(want[pos*width+i])
					if x.Bits() != u && !(x.IsNaN() && bf16.BF16(u).IsNaN()) {
						require.Equal(t, x.Bits(), u)
					}
				}
				require.Nil(t, v.RunBF16(pos, n+1), "beyond the page or the lease")
			}
			pool.Release()
		}
	}
}

func TestReadBF16OutOfRange(t *testing.T) {
	c := newCache(t, in(kvpaged.BF16, lent()))
	s, err := c.Adopt([]int32{3, -1, 5}, 10, 1)
	require.NoError(t, err)
	v := lease(t, s, 0, 1)
	dst, scratch := make([]uint16, 12), make([]float32, 3)
	v.ReadBF16(dst, 3, scratch, 0, 0)
	v.GatherBF16(dst, 3, scratch, nil)
	for _, pos := range []int{-1, 4, 7, 11, math.MinInt32, math.MaxInt32} {
		assert.Panics(t, func() { v.RunBF16(pos, 1) }, "%d", pos)
		assert.Panics(t, func() { v.ReadBF16(dst, 3, scratch, pos, 1) }, "%d", pos)
		assert.Panics(t, func() { v.GatherBF16(dst, 3, scratch, []int32{int32(pos)}) }, "%d", pos)
	}
	p, err := c.Lease(0)
	require.NoError(t, err)
	defer p.Release()
	p.GatherBF16(dst, 3, scratch, nil)
	for _, r := range []int32{-1, 32, math.MinInt32, math.MaxInt32} {
		assert.Panics(t, func() { p.GatherBF16(dst, 3, scratch, []int32{0, r}) }, "%d", r)
	}
}
