package kvpaged_test

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// layout is a page of testdata/kv_layouts.json: rows that were given to a writer,
// the bytes that it wrote, and the values that a reader finds in them.
type layout struct {
	Page             int
	Input            []string `json:"input_bf16"`
	Dequant          []string `json:"dequant_bf16"`
	Block            string   `json:"block_bytes"`
	BlockStride      int      `json:"block_stride"`
	PlanarBlock      string   `json:"planar_block_bytes"`
	PlanarStride     int      `json:"planar_block_stride"`
	InterleavedBlock string   `json:"interleaved_block_bytes"`
}

// page is one layout of one format.
type page struct {
	format        kvpaged.Format
	tokens        int
	input, values [][]float32
	bytes         []byte
}

func layouts(t testing.TB) []page {
	t.Helper()
	text, err := os.ReadFile("testdata/kv_layouts.json")
	require.NoError(t, err)
	var file struct {
		V32   layout `json:"V32_656"`
		V4    layout `json:"V4_584_planar"`
		V41   layout `json:"V41_528"`
		V41F4 layout `json:"V41_FP4_288"`
	}
	require.NoError(t, json.Unmarshal(text, &file))
	make := func(f kvpaged.Format, l layout, block string, stride int) page {
		b, err := hex.DecodeString(block)
		require.NoError(t, err)
		require.NotEmpty(t, b)
		require.True(t, stride == 0 || stride == len(b))
		require.Len(t, l.Input, l.Page)
		require.Len(t, l.Dequant, l.Page)
		return page{f, l.Page, bf16Rows(t, l.Input), bf16Rows(t, l.Dequant), b}
	}
	return []page{
		make(kvpaged.DSMLA656, file.V32, file.V32.Block, 0),
		make(kvpaged.V4_584, file.V4, file.V4.Block, file.V4.BlockStride),
		make(kvpaged.V41_528Interleaved, file.V41, file.V41.InterleavedBlock, 0),
		make(kvpaged.V41_528Planar, file.V41, file.V41.PlanarBlock, file.V41.PlanarStride),
		make(kvpaged.V41FP4_288Interleaved, file.V41F4, file.V41F4.InterleavedBlock, 0),
		make(kvpaged.V41FP4_288Planar, file.V41F4, file.V41F4.PlanarBlock, file.V41F4.PlanarStride),
	}
}

// bf16Rows reads rows of bf16, each value as four hexadecimal digits.
func bf16Rows(t testing.TB, rows []string) [][]float32 {
	var out [][]float32
	for _, text := range rows {
		b, err := hex.DecodeString(text)
		require.NoError(t, err)
		row := make([]float32, len(b)/2)
		for i := range row {
			row[i] = simd.BF16ToF32(uint16(b[2*i])<<8 | uint16(b[2*i+1]))
		}
		out = append(out, row)
	}
	return out
}

func (p *page) config(order kvpaged.Order) kvpaged.Config {
	return kvpaged.Config{Layers: 1, PageTokens: p.tokens, Width: len(p.input[0]), Format: p.format, Pages: 1, Order: order}
}

// TestLayoutsAreRead takes each page as the arena of a cache.
func TestLayoutsAreRead(t *testing.T) {
	for _, p := range layouts(t) {
		for _, order := range allOrders {
			cfg := p.config(order)
			n, err := kvpaged.ArenaBytes(cfg)
			require.NoError(t, err)
			require.EqualValues(t, len(p.bytes), n, "%v", p.format)
			cfg.Arena, cfg.Adopted = p.bytes, true
			c := newCache(t, cfg)
			s, err := c.Adopt([]int32{0}, p.tokens, 0)
			require.NoError(t, err)
			requireRows(t, s, func(_, pos int) []float32 { return p.values[pos] })
		}
	}
}

// TestLayoutsAreWritten writes the inputs, and then the values, of which a page
// with other scales may come that reads the same, into memory full of rubbish.
func TestLayoutsAreWritten(t *testing.T) {
	for _, p := range layouts(t) {
		for _, order := range allOrders {
			cfg := p.config(order)
			cfg.Arena = heapArena(t, cfg)
			for i := range cfg.Arena {
				cfg.Arena[i] = 0xFF
			}
			c := newCache(t, cfg)
			s := newSeq(t, c)
			appendRows(t, s, p.tokens, func(_, pos int) []float32 { return p.input[pos] })
			for i, want := range p.bytes {
				require.Equal(t, want, cfg.Arena[i], "%v, byte %d of the page", p.format, i)
			}
			require.NoError(t, s.Truncate(0))
			appendRows(t, s, p.tokens, func(_, pos int) []float32 { return p.values[pos] })
			requireRows(t, s, func(_, pos int) []float32 { return p.values[pos] })
		}
	}
}

// TestLayoutsAreExported moves tokens from planar pages into interleaved ones and
// back, and looks at the bytes.
func TestLayoutsAreExported(t *testing.T) {
	pages := map[kvpaged.Format]page{}
	for _, p := range layouts(t) {
		pages[p.format] = p
	}
	for planar, interleaved := range map[kvpaged.Format]kvpaged.Format{
		kvpaged.V41_528Planar:    kvpaged.V41_528Interleaved,
		kvpaged.V41FP4_288Planar: kvpaged.V41FP4_288Interleaved,
	} {
		from, to := pages[planar], pages[interleaved]
		t.Run(fmt.Sprint(planar), func(t *testing.T) {
			a, b := adopted(t, from), adopted(t, to)
			records, err := a.Export(0, 0, from.tokens)
			require.NoError(t, err)
			assert.Equal(t, to.bytes, records)
			block, err := a.ExportPage(0, 0)
			require.NoError(t, err)
			assert.Equal(t, from.bytes, block)
			same, err := b.Export(0, 0, from.tokens)
			require.NoError(t, err)
			assert.Equal(t, to.bytes, same)
			block, err = b.ExportPage(0, 0)
			require.NoError(t, err)
			assert.Equal(t, to.bytes, block)

			s := newSeq(t, newCache(t, from.config(kvpaged.PageMajor)))
			require.NoError(t, s.Reserve(from.tokens))
			require.NoError(t, s.Import(0, 0, records))
			require.NoError(t, s.Commit(from.tokens))
			block, err = s.ExportPage(0, 0)
			require.NoError(t, err)
			assert.Equal(t, from.bytes, block)
		})
	}
}

// adopted is the tokens of a page.
func adopted(t *testing.T, p page) *kvpaged.Seq {
	cfg := p.config(kvpaged.LayerMajor)
	cfg.Arena, cfg.Adopted = p.bytes, true
	s, err := newCache(t, cfg).Adopt([]int32{0}, p.tokens, 0)
	require.NoError(t, err)
	return s
}
