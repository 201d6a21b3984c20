package kvpaged_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// TestNothingIsAllocated covers what a kernel calls, with buffers on the stack.
func TestNothingIsAllocated(t *testing.T) {
	for _, f := range allFormats {
		cfg := in(f, kvpaged.Config{Layers: 2, PageTokens: 3, Width: 8, Pages: 5})
		w := cfg.Width
		c := newCache(t, cfg)
		s := newSeq(t, c)
		appendRows(t, s, 7, func(int, int) []float32 { return make([]float32, w) })
		require.NoError(t, s.Reserve(4))
		assert.Zero(t, testing.AllocsPerRun(20, func() {
			var row [576]float32
			var tile [12 * 600]float32
			v, err := s.Lease(1, 4)
			if err != nil {
				t.Fatal(err)
			}
			for pos := range 4 {
				v.Write(7+pos, row[:w])
			}
			v.Widen(tile[:], w, 0, 11)
			v.Widen(tile[:], w+2, 2, 7)
			list := [3]int32{10, 0, 3}
			v.Gather(tile[:], w+1, list[:])
			v.Row(3)
			v.Run(4)
			v.Scales(4)
			v.Release()
			p, err := c.Lease(0)
			if err != nil {
				t.Fatal(err)
			}
			p.Gather(tile[:], w+1, list[:])
			p.Release()
			if s.WriteRows(0, 8, tile[:w]) != nil || s.ReadRows(tile[:7*w], 0, 0, 7) != nil {
				t.Fatal("rows")
			}
		}), "%v", f)
	}
}

// benchTile is how many rows attention reads at a time, and benchPad how far apart its rows are beyond their width.
const benchTile, benchPad = 64, 16

// BenchmarkWiden reads a whole sequence, tile by tile, as attention does. An operation is a tile, the throughput is that
// of stored bytes.
func BenchmarkWiden(b *testing.B) {
	const ctx = 4096
	for _, f := range allFormats {
		for _, page := range []int{16, 64} {
			b.Run(fmt.Sprintf("ctx=%d/kv=%v/page=%d/simd=%s", ctx, f, page, simd.Level()), func(b *testing.B) {
				s := benchSeq(b, f, page, ctx)
				v, err := s.Lease(0, 0)
				require.NoError(b, err)
				defer v.Release()
				ld := s.Cache().Config().Width + benchPad
				dst := make([]float32, benchTile*ld)
				b.SetBytes(int64(benchTile * s.Cache().RowBytes()))
				for pos := 0; b.Loop(); pos = (pos + benchTile) % ctx {
					v.Widen(dst, ld, pos, benchTile)
				}
			})
		}
	}
}

// BenchmarkWrite stores the rows of new tokens.
func BenchmarkWrite(b *testing.B) {
	const tokens = 64
	for _, f := range allFormats {
		b.Run(fmt.Sprintf("tokens=%d/kv=%v/simd=%s", tokens, f, simd.Level()), func(b *testing.B) {
			s := benchSeq(b, f, 64, 1)
			require.NoError(b, s.Reserve(tokens))
			v, err := s.Lease(0, tokens)
			require.NoError(b, err)
			defer v.Release()
			row := make([]float32, s.Cache().Config().Width)
			for i := range row {
				row[i] = float32(i) / 7
			}
			b.SetBytes(int64(tokens * s.Cache().RowBytes()))
			for b.Loop() {
				for i := range tokens {
					v.Write(1+i, row)
				}
			}
		})
	}
}

// BenchmarkGather reads rows that an index list names, in no order: positions of a sequence, or physical rows.
func BenchmarkGather(b *testing.B) {
	const ctx = 4096
	for _, f := range allFormats {
		s := benchSeq(b, f, 64, ctx)
		seq, err := s.Lease(0, 0)
		require.NoError(b, err)
		defer seq.Release()
		pool, err := s.Cache().Lease(0)
		require.NoError(b, err)
		defer pool.Release()
		list := make([]int32, ctx)
		for i := range list {
			list[i] = int32(i * 1789 % ctx)
		}
		ld := s.Cache().Config().Width + benchPad
		dst := make([]float32, benchTile*ld)
		for _, from := range []string{"seq", "pool"} {
			b.Run(fmt.Sprintf("ctx=%d/kv=%v/from=%s/simd=%s", ctx, f, from, simd.Level()), func(b *testing.B) {
				b.SetBytes(int64(benchTile * s.Cache().RowBytes()))
				for k := 0; b.Loop(); k = (k + benchTile) % ctx {
					if from == "seq" {
						seq.Gather(dst, ld, list[k:k+benchTile])
					} else {
						pool.Gather(dst, ld, list[k:k+benchTile])
					}
				}
			})
		}
	}
}

func benchSeq(b *testing.B, f kvpaged.Format, page, ctx int) *kvpaged.Seq {
	cfg := in(f, kvpaged.Config{Layers: 1, PageTokens: page, Width: 576, Pages: ctx/page + 66})
	c, width := newCache(b, cfg), cfg.Width
	s := newSeq(b, c)
	require.NoError(b, s.Reserve(ctx))
	rows := make([]float32, ctx*width)
	for i := range rows {
		rows[i] = float32(i%1000)/50 - 10
	}
	require.NoError(b, s.WriteRows(0, 0, rows))
	require.NoError(b, s.Commit(ctx))
	return s
}
