package kvpaged_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

func TestFormatNames(t *testing.T) {
	names := []string{"bf16", "f16", "f32", "fp8_unit", "fp8_tensor", "fp8_token", "ds_mla_656", "v4_584",
		"v41_528_interleaved", "v41_528_planar", "v41_fp4_288_interleaved", "v41_fp4_288_planar"}
	require.Len(t, allFormats, len(names))
	for i, f := range allFormats {
		assert.EqualValues(t, i, f)
		assert.Equal(t, names[i], f.String())
		got, err := kvpaged.ParseFormat(names[i])
		require.NoError(t, err)
		assert.Equal(t, f, got)
	}
	for _, name := range []string{"", "BF16", "fp8", "656", "v41_528", "v41_fp4_288"} {
		_, err := kvpaged.ParseFormat(name)
		require.ErrorIs(t, err, kvpaged.ErrFormat)
		assert.ErrorContains(t, err, "v41_fp4_288_planar")
	}
	assert.Equal(t, "Format(12)", kvpaged.Format(12).String())
	assert.Equal(t, kvpaged.BF16, kvpaged.Config{}.Format)
}

// TestFormatScales asks every format which scales it takes from a Config, and
// gives it those, which are accepted, and the others, which are not.
func TestFormatScales(t *testing.T) {
	want := map[kvpaged.Format]kvpaged.ScaleKind{kvpaged.FP8Tensor: kvpaged.ScaleTensor, kvpaged.FP8Token: kvpaged.ScaleToken}
	for _, f := range allFormats {
		assert.Equal(t, want[f], f.Scales(), "%v", f)
		for kind, change := range map[kvpaged.ScaleKind]func(*kvpaged.Config){
			kvpaged.ScaleTensor: func(c *kvpaged.Config) { c.Scale = 0.5 },
			kvpaged.ScaleToken:  func(c *kvpaged.Config) { c.Group, c.Scales = 2, []float32{} },
		} {
			cfg := in(f, small())
			change(&cfg)
			if _, err := kvpaged.ArenaBytes(cfg); kind == f.Scales() {
				assert.NoError(t, err, "%v", f)
			} else {
				assert.ErrorIs(t, err, kvpaged.ErrConfig, "%v", f)
			}
		}
	}
	assert.Equal(t, kvpaged.ScaleNone, kvpaged.Format(12).Scales())
}

// TestFormatPlanar compares with the scales that a page of each format has.
func TestFormatPlanar(t *testing.T) {
	for _, f := range allFormats {
		_, scales, _ := planes(in(f, small()))
		assert.Equal(t, scales > 0, f.Planar(), "%v", f)
	}
	assert.False(t, kvpaged.Format(12).Planar())
}

// nearest rounds to a binary format of bits significant bits and smallest normal
// exponent low, ties to even, without its upper end. float64 is exact here.
func nearest(x float64, bits, low int) float64 {
	if x == 0 || math.IsInf(x, 0) || math.IsNaN(x) {
		return x
	}
	_, e := math.Frexp(x) // x in [2^(e-1), 2^e)
	ulp := math.Ldexp(1, max(e-1, low)-(bits-1))
	return math.RoundToEven(x/ulp) * ulp
}

// overflow replaces what is beyond the largest number of a format.
func overflow(x, largest, instead float64) float64 {
	if math.Abs(x) > largest {
		return math.Copysign(instead, x)
	}
	return x
}

// same compares bits, every NaN with every NaN.
func same(x, y float32) bool {
	return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
}

// TestTensorScales takes scales as they are.
func TestTensorScales(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	in := []float32{0, 1, -1, 3e38, inf, -inf, nan, 1e-40}
	for _, scale := range []float32{1, 0, -2, inf, -inf, nan, 0x1p-126, 1e-40, 3e38} {
		t.Run(fmt.Sprint(scale), func(t *testing.T) {
			cfg := kvpaged.Config{Layers: 1, PageTokens: 2, Width: len(in), Format: kvpaged.FP8Tensor, Pages: 1, Scale: scale}
			c := newCache(t, cfg)
			s := newSeq(t, c)
			require.NoError(t, s.Reserve(1))
			require.NoError(t, s.WriteRows(0, 0, in))
			require.NoError(t, s.Commit(1))
			out := make([]float32, len(in))
			require.NoError(t, s.ReadRows(out, 0, 0, 1))
			for i, x := range in {
				row, _ := encoded(cfg, []float32{x})
				want := decoded(cfg, row, nil)[0]
				assert.True(t, same(want, out[i]), "%v is %v, want %v", x, out[i], want)
			}
		})
	}
}

// TestArenaLayout finds the rows in the caller's arena by the formulas of the
// package comment.
func TestArenaLayout(t *testing.T) {
	const layers, pages, width = 3, 5, 2
	for _, page := range pageSizes {
		for _, order := range allOrders {
			cfg := kvpaged.Config{Layers: layers, PageTokens: page, Width: width, Format: kvpaged.F32, Pages: pages, Order: order}
			cfg.Arena = append(heapArena(t, cfg), 0xAA, 0xBB) // more than needed
			c := newCache(t, cfg)
			s := newSeq(t, c)
			row := rowOf(c, 0)
			appendRows(t, s, 3*page, row)
			for pos := range 3 * page {
				for l := range layers {
					p, slot := int(s.Pages()[pos/page]), pos%page
					token := ((l*pages)+p)*page + slot
					if order == kvpaged.PageMajor {
						token = ((p*layers)+l)*page + slot
					}
					for i, want := range row(l, pos) {
						bits := binary.LittleEndian.Uint32(cfg.Arena[(token*width+i)*4:])
						require.Equal(t, want, math.Float32frombits(bits), "page size %d, order %d, layer %d, position %d", page, order, l, pos)
					}
				}
			}
			assert.Equal(t, []byte{0xAA, 0xBB}, cfg.Arena[len(cfg.Arena)-2:])
			assert.Equal(t, 4*width, c.RowBytes())
			assert.Equal(t, 4*width*page*layers, c.PageBytes())
		}
	}
}

// TestMAXBlocks reads a tensor [num_blocks, 1, layers, page, 1, C] of bf16 that
// somebody else has written.
func TestMAXBlocks(t *testing.T) {
	const blocks, layers, page, width = 4, 2, 3, 5
	arena := make([]byte, blocks*layers*page*width*2)
	value := func(b, l, s, i int) float32 { return float32(b*64 + l*32 + s*8 + i) } // exact in bf16
	at := 0
	for b := range blocks {
		for l := range layers {
			for s := range page {
				for i := range width {
					binary.LittleEndian.PutUint16(arena[at:], uint16(math.Float32bits(value(b, l, s, i))>>16))
					at += 2
				}
			}
		}
	}
	c := newCache(t, kvpaged.Config{Layers: layers, PageTokens: page, Width: width, Format: kvpaged.BF16, Pages: blocks,
		Arena: arena, Order: kvpaged.PageMajor, Adopted: true})
	table := []uint32{2, 0, blocks, 3, blocks, blocks}
	seqs, err := kvpaged.ImportLookup(c, table, []uint32{5, 2}, []uint32{0, 1})
	require.NoError(t, err)
	for i, s := range seqs {
		requireRows(t, s, func(l, pos int) []float32 {
			row := make([]float32, width)
			for j := range row {
				row[j] = value(int(table[i*3+pos/page]), l, pos%page, j)
			}
			return row
		})
	}
	require.NoError(t, seqs[1].WriteRows(1, 2, []float32{1, 2, 3, 4, 5}))
	bits := binary.LittleEndian.Uint16(arena[(((3*layers)+1)*page+2)*width*2:])
	assert.Equal(t, uint16(0x3F80), bits, "block 3, layer 1, slot 2")
}
