package kvpaged_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/kvpaged"
)

// memory is a cache in memory of the caller, which was full of NaN before.
type memory struct {
	*kvpaged.Cache
	cfg          kvpaged.Config
	arena, outer []byte
}

// newMemory makes a cache on the heap; apart, fp8_token scales get memory of their
// own.
func newMemory(t testing.TB, cfg kvpaged.Config, apart bool) memory {
	t.Helper()
	if apart {
		cfg.Scales = make([]float32, outerScales(cfg))
	}
	cfg.Arena = heapArena(t, cfg)
	return filled(t, cfg)
}

// newFenced makes one beside memory that may not be touched.
func newFenced(t testing.TB, cfg kvpaged.Config, apart bool, at kerneltest.Edge) memory {
	t.Helper()
	if apart {
		cfg.Scales = kerneltest.Fenced[float32](t, outerScales(cfg), at)
	}
	n, err := kvpaged.ArenaBytes(cfg)
	require.NoError(t, err)
	cfg.Arena = kerneltest.Fenced[byte](t, int(n), at)
	return filled(t, cfg)
}

func outerScales(cfg kvpaged.Config) int {
	return cfg.Layers * cfg.Pages * cfg.PageTokens * ((cfg.Width-1)/cfg.Group + 1)
}

func filled(t testing.TB, cfg kvpaged.Config) memory {
	t.Helper()
	outer := bytesOf(cfg.Scales)
	fill(cfg.Arena, 0xFF)
	fill(outer, 0xFF)
	return memory{newCache(t, cfg), cfg, cfg.Arena, outer}
}

func fill(b []byte, x byte) {
	for i := range b {
		b[i] = x
	}
}

func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

func (m *memory) at(page int32, layer, slot int) (row, scales []byte) {
	return bytesAt(m.cfg, m.arena, m.outer, int(page), layer, slot)
}

// rows draws values of all kinds, and values on and beside the borders between
// two codes under the scale that a group of them has.
func rows(rng *rand.Rand, n, width int) []float32 {
	x := values(rng, n*width)
	for i := range x {
		if rng.IntN(3) == 0 {
			border := math.Ldexp(float64(2*rng.IntN(32)+1), rng.IntN(60)-30)
			x[i] = math.Float32frombits(math.Float32bits(float32(border)) + uint32(rng.IntN(3)) - 1)
		}
		if x[i] != x[i] { // an FP8 code keeps the sign of a NaN where the processor does
			x[i] = float32(math.NaN())
		}
	}
	if rng.IntN(2) == 0 { // what a model writes
		for i := range x {
			x[i] = float32(rng.NormFloat64())
		}
	}
	return x
}

// TestTokens writes rows into pages of all formats, sizes and orders and reads
// them in every way; what lies where, and that nothing else was touched, is
// compared byte by byte with the formulas of codec_test.go.
func TestTokens(t *testing.T) {
	sizes := []int{1, 3, 5, 64}
	if testing.Short() {
		sizes = []int{1, 3}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range allFormats {
		for _, page := range sizes {
			for _, order := range allOrders {
				for _, apart := range []bool{false, true} {
					if apart && f != kvpaged.FP8Token {
						continue
					}
					cfg := in(f, kvpaged.Config{Layers: 2, PageTokens: page, Width: 5 + rng.IntN(40), Pages: 4 + rng.IntN(2), Order: order})
					name := fmt.Sprintf("kv=%v/page=%d/order=%d/apart=%v/width=%d", f, page, order, apart, cfg.Width)
					t.Run(name, func(t *testing.T) {
						checkTokens(t, name, newFenced(t, cfg, apart, kerneltest.Edges[rng.IntN(2)]), rng)
					})
				}
			}
		}
	}
}

func checkTokens(t *testing.T, name string, m memory, rng *rand.Rand) {
	t.Helper()
	w, page := m.cfg.Width, m.cfg.PageTokens
	n := 2*page + 1 + rng.IntN(page)
	other, s := newSeq(t, m.Cache), newSeq(t, m.Cache)
	first := rng.IntN(2) // so that s is now at the one, now at the other end of the arena
	require.NoError(t, other.Reserve(first*page))
	require.NoError(t, s.Reserve(n))
	require.NoError(t, other.Reserve(page-first*page)) // a page that stays zero
	var x [2][]float32
	for l := range x {
		x[l] = rows(rng, n, w)
		require.NoError(t, s.WriteRows(l, 0, x[l]))
	}
	require.NoError(t, s.Commit(n))
	want := fresh(m)
	for _, p := range append(s.Pages(), other.Pages()...) {
		want.clearPage(p)
	}
	for l := range x {
		var all []float32
		for pos := range n {
			p, slot := s.Pages()[pos/page], pos%page
			row, scales := want.at(p, l, slot)
			r, sc := encoded(m.cfg, x[l][pos*w:(pos+1)*w])
			copy(row, r)
			copy(scales, sc)
			all = append(all, decoded(m.cfg, row, scales)...)
		}
		checkReads(t, name, m, s, l, all)
	}
	requireBytes(t, name, want.arena, m.arena)
	requireBytes(t, name, want.outer, m.outer)
}

// fresh is the memory before anything was written.
func fresh(m memory) memory {
	m.arena, m.outer = make([]byte, len(m.arena)), make([]byte, len(m.outer))
	fill(m.arena, 0xFF)
	fill(m.outer, 0xFF)
	return m
}

// clearPage zeroes a page with its padding.
func (m *memory) clearPage(p int32) {
	_, _, size := planes(m.cfg)
	for l := range m.cfg.Layers {
		row, _ := m.at(p, l, 0)
		clear(row[:size:size])
		for slot := range m.cfg.PageTokens {
			_, scales := m.at(p, l, slot)
			clear(scales)
		}
	}
}

func requireBytes(t *testing.T, name string, want, got []byte) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, b := range want {
		if b != got[i] {
			require.Equal(t, b, got[i], "%s: byte %d of %d", name, i, len(want))
		}
	}
}

func requireSame(t *testing.T, name string, want, got []float32) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, x := range want {
		if !same(x, got[i]) {
			require.Equal(t, math.Float32bits(x), math.Float32bits(got[i]), "%s: value %d is %v, want %v", name, i, got[i], x)
		}
	}
}

// checkReads reads all tokens of a layer in all ways.
func checkReads(t *testing.T, name string, m memory, s *kvpaged.Seq, layer int, want []float32) {
	t.Helper()
	w, page, n := m.cfg.Width, m.cfg.PageTokens, s.Len()
	got := make([]float32, n*w)
	require.NoError(t, s.ReadRows(got, layer, 0, n))
	requireSame(t, name, want, got)

	v := lease(t, s, layer, 0)
	pool, err := m.Lease(layer)
	require.NoError(t, err)
	defer pool.Release()
	var positions, physical []int32
	for i := range n { // backwards, the last twice
		pos := n - 1 - i
		positions = append(positions, int32(pos))
		physical = append(physical, s.Pages()[pos/page]*int32(page)+int32(pos%page))
	}
	positions, physical = append(positions, int32(n-1)), append(physical, physical[0])
	ld := w + 3
	for _, read := range []func(dst []float32){
		func(dst []float32) { v.Gather(dst, ld, positions) },
		func(dst []float32) { pool.Gather(dst, ld, physical) },
	} {
		dst := make([]float32, n*ld+w) // the stride may end where the last row does
		read(dst)
		for i, pos := range positions {
			requireSame(t, name, want[int(pos)*w:int(pos+1)*w], dst[i*ld:i*ld+w])
			if end := i*ld + w; end < len(dst) {
				require.Equal(t, []float32{0, 0, 0}, dst[end:end+3], "%s: between the rows", name)
			}
		}
	}
	dst := make([]float32, n*ld)
	v.Widen(dst, ld, 1, n-1)
	for i := range n - 1 {
		requireSame(t, name, want[(i+1)*w:(i+2)*w], dst[i*ld:i*ld+w])
	}
	v.Release()
	checkRaw(t, name, m, s, layer)
}

// checkRaw looks at the bytes that a view shows.
func checkRaw(t *testing.T, name string, m memory, s *kvpaged.Seq, layer int) {
	t.Helper()
	page, n := m.cfg.PageTokens, s.Len()
	r, sc, _ := planes(m.cfg)
	require.Equal(t, r+sc, m.RowBytes(), name)
	v := lease(t, s, layer, 0)
	for pos := range n {
		run, count := v.Run(pos)
		scales := v.Scales(pos)
		require.Equal(t, min(page-pos%page, n-pos), count, name)
		require.Len(t, run, count*r)
		require.Len(t, scales, count*sc)
		require.Equal(t, [2]int{len(run), len(scales)}, [2]int{cap(run), cap(scales)})
		for i := range count {
			wantRow, wantScales := m.at(s.Pages()[pos/page], layer, pos%page+i)
			requireBytes(t, name, wantRow, run[i*r:(i+1)*r])
			requireBytes(t, name, wantScales, scales[i*sc:(i+1)*sc])
		}
		requireBytes(t, name, run[:r], v.Row(pos))
	}
	v.Release()
}

// hostileScales are scales that no writer makes.
var hostileScales = []float32{
	0, float32(math.Copysign(0, -1)), 1, -1, 0.3, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
	math.MaxFloat32, math.SmallestNonzeroFloat32, 0x1p-126, -0x1.234568p-130, 1e-40, 3e38,
}

// TestScalesAreHonoured reads all codes under all scales of one byte and under
// float32 scales of all kinds.
func TestScalesAreHonoured(t *testing.T) {
	for _, f := range allFormats[5:] {
		cfg := in(f, kvpaged.Config{Layers: 1, PageTokens: 256, Width: 257, Pages: 1, Adopted: true})
		m := newMemory(t, cfg, false)
		for slot := range 256 {
			row, scales := m.at(0, 0, slot)
			for i := range row { // every code comes under every scale
				row[i] = byte(i + slot)
			}
			fill(scales, byte(slot))
			hostile := func(b []byte, i int) {
				s := hostileScales[(slot+i)%len(hostileScales)]
				binary.LittleEndian.PutUint32(b[4*i:], math.Float32bits(s))
			}
			switch f {
			case kvpaged.FP8Token:
				hostile(scales, 0)
				hostile(scales, 1)
			case kvpaged.DSMLA656:
				for i := range 4 {
					hostile(row[512:], i)
				}
			case kvpaged.V41_528Interleaved:
				fill(row[512:], byte(slot))
			case kvpaged.V41FP4_288Interleaved:
				fill(row[256:], byte(slot))
			}
		}
		s, err := m.Adopt([]int32{0}, 256, 0)
		require.NoError(t, err)
		var want []float32
		for slot := range 256 {
			row, scales := m.at(0, 0, slot)
			want = append(want, decoded(m.cfg, row, scales)...)
		}
		got := make([]float32, len(want))
		require.NoError(t, s.ReadRows(got, 0, 0, 256))
		requireSame(t, f.String(), want, got)
	}
}

// TestWritersScale has values by hand.
func TestWritersScale(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	minus := float32(math.Copysign(0, -1))
	const tiny = 0x1p-13 // the smallest power of two that is not below 1e-4
	for _, c := range []struct {
		in    []float32
		scale float32
		codes []byte
	}{
		{[]float32{0, minus, 0, 0}, tiny, []byte{0, 0x80, 0, 0}},
		{[]float32{448, -448, 1, 0}, 1, []byte{0x7E, 0xFE, 0x38, 0}},
		{[]float32{448.00003, 0, 0, 224}, 2, []byte{0x76, 0, 0, 0x6E}},
		{[]float32{inf, -inf, 448, nan}, 1, []byte{0x7E, 0xFE, 0x7E, 0x7F}},
		{[]float32{inf, nan, nan, -inf}, tiny, []byte{0x7E, 0x7F, 0x7F, 0xFE}},
		{[]float32{1e-40, 0, 0, 0}, tiny, []byte{0, 0, 0, 0}},
		{[]float32{448 * tiny, 0, 0, tiny}, tiny, []byte{0x7E, 0, 0, 0x38}},
		{[]float32{math.MaxFloat32, 0, 1, 0}, 0x1p120, []byte{0x78, 0, 0, 0}},
	} {
		cfg := kvpaged.Config{Layers: 1, PageTokens: 1, Width: 4, Format: kvpaged.FP8Token, Group: 4, Pages: 1}
		m := newMemory(t, cfg, false)
		appendRows(t, newSeq(t, m.Cache), 1, func(int, int) []float32 { return c.in })
		assert.Equal(t, c.codes, m.arena[:4], "%v", c.in)
		assert.Equal(t, []float32{c.scale}, floats(m.arena[4:]), "%v", c.in)
	}
	for _, c := range []struct {
		in    [4]float32 // and twelve zeros
		scale byte
		codes [2]byte
	}{
		{[4]float32{}, 0x01, [2]byte{}},
		{[4]float32{6, -6, minus, 1}, 0x38, [2]byte{0xF7, 0x28}}, // 1
		{[4]float32{0.25, 0.75, 2.5, 6}, 0x38, [2]byte{0x20, 0x74}},
		{[4]float32{6 * 448, 0, 0, 0}, 0x7E, [2]byte{0x07, 0}},
		{[4]float32{math.MaxFloat32, -1e30, 0, 0}, 0x7E, [2]byte{0xF7, 0}},
		{[4]float32{inf, -inf, 6, 1}, 0x38, [2]byte{0xF7, 0x27}},
		{[4]float32{nan, 6, -1, 0}, 0x7F, [2]byte{0x77, 0x0A}},
		{[4]float32{0x1p-9, 0, 0x1p-11, 0x1.8p-11}, 0x01, [2]byte{0x02, 0x10}},
		{[4]float32{6.2, 3, 0, 0}, 0x38, [2]byte{0x57, 0}}, // 6.2/6 is nearest to 1, 6.2 saturates
	} {
		m := newMemory(t, in(kvpaged.V41FP4_288Planar, kvpaged.Config{Layers: 1, PageTokens: 1, Pages: 1}), false)
		row := make([]float32, 512)
		copy(row, c.in[:])
		for i := 16; i < 512; i++ {
			row[i] = 6
		}
		appendRows(t, newSeq(t, m.Cache), 1, func(int, int) []float32 { return row })
		assert.Equal(t, c.codes[:], m.arena[:2], "%v", c.in)
		assert.Equal(t, c.scale, m.arena[256], "%v", c.in)
		assert.Equal(t, []byte{0x77, 0x38}, []byte{m.arena[8], m.arena[257]}, "the next group is unharmed by %v", c.in)
	}
}
