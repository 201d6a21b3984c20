package kvpaged_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

// One fuzz target for each reader: whatever is in the pages, a reader neither
// panics nor finds other values than the definitions say.

func FuzzReadPlain(f *testing.F) {
	fuzzReader(f, kvpaged.BF16, kvpaged.F16, kvpaged.F32, kvpaged.FP8Unit, kvpaged.FP8Tensor)
}
func FuzzReadFP8Token(f *testing.F) { fuzzReader(f, kvpaged.FP8Token) }
func FuzzReadDSMLA656(f *testing.F) { fuzzReader(f, kvpaged.DSMLA656) }
func FuzzReadV4(f *testing.F)       { fuzzReader(f, kvpaged.V4_584) }
func FuzzReadV41(f *testing.F)      { fuzzReader(f, kvpaged.V41_528Interleaved, kvpaged.V41_528Planar) }
func FuzzReadV41FP4(f *testing.F) {
	fuzzReader(f, kvpaged.V41FP4_288Interleaved, kvpaged.V41FP4_288Planar)
}

func fuzzReader(f *testing.F, formats ...kvpaged.Format) {
	for i := range formats {
		for _, seed := range [][]byte{{}, {0xFF}, {0x7F, 0x80}, []byte("\x00\x01\x7e\x7f\x80\x81\xfe\xff\x3f\xc0\x55"), {0x00, 0x00, 0xC0, 0x7F}} {
			f.Add(seed, uint8(i), uint8(3*i+1), uint32(0x3F800000))
			f.Add(seed, uint8(i), uint8(0xF0+i), uint32(0x7FC00000))
		}
	}
	f.Fuzz(func(t *testing.T, content []byte, which, shape uint8, scale uint32) {
		cfg := kvpaged.Config{Layers: 1 + int(shape>>7), PageTokens: 1 + int(shape&3), Width: 1 + int(shape>>2&15), Pages: 3,
			Order: kvpaged.Order(shape >> 6 & 1), Adopted: true}
		cfg = in(formats[int(which)%len(formats)], cfg)
		if cfg.Format == kvpaged.FP8Tensor {
			cfg.Scale = math.Float32frombits(scale)
		}
		if cfg.Format == kvpaged.FP8Token {
			cfg.Group = 1 + int(which)%20
		}
		m := newMemory(t, cfg, cfg.Format == kvpaged.FP8Token && scale&1 == 0)
		pour(m.arena, content)
		pour(m.outer, content)
		n := 2*cfg.PageTokens + 1
		s, err := m.Adopt([]int32{2, 0, 1}, n, 0)
		require.NoError(t, err)
		for l := range cfg.Layers {
			var want []float32
			for pos := range n {
				row, scales := m.at(s.Pages()[pos/cfg.PageTokens], l, pos%cfg.PageTokens)
				want = append(want, decoded(m.cfg, row, scales)...)
			}
			checkReads(t, cfg.Format.String(), m, s, l, want)
			records, err := s.Export(l, 0, n)
			require.NoError(t, err)
			requireBytes(t, cfg.Format.String(), m.exported(s, l), records)
		}
	})
}

// pour fills b with content again and again, each time one byte off.
func pour(b, content []byte) {
	for i := range b {
		if len(content) > 0 {
			b[i] = content[(i+i/len(content))%len(content)]
		}
	}
}

// exported is what Export must give of all tokens.
func (m *memory) exported(s *kvpaged.Seq, layer int) []byte {
	var all []byte
	for pos := range s.Len() {
		row, scales := m.at(s.Pages()[pos/m.cfg.PageTokens], layer, pos%m.cfg.PageTokens)
		all = append(append(all, row...), scales...)
		if m.cfg.Format == kvpaged.V4_584 {
			all[len(all)-1] = 0
		}
	}
	return all
}
