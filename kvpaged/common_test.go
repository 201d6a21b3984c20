package kvpaged_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
)

var (
	allFormats = []kvpaged.Format{kvpaged.BF16, kvpaged.F16, kvpaged.F32, kvpaged.FP8Unit, kvpaged.FP8Tensor, kvpaged.FP8Token, kvpaged.DSMLA656,
		kvpaged.V4_584, kvpaged.V41_528Interleaved, kvpaged.V41_528Planar, kvpaged.V41FP4_288Interleaved, kvpaged.V41FP4_288Planar}
	allOrders = []kvpaged.Order{kvpaged.LayerMajor, kvpaged.PageMajor}
	pageSizes = []int{1, 3, 16, 64, 128}
)

// small is a config for tests that are not about its numbers.
func small() kvpaged.Config {
	return kvpaged.Config{Layers: 2, PageTokens: 4, Width: 3, Format: kvpaged.F32, Pages: 8}
}

// lent is small for page tables from outside.
func lent() kvpaged.Config {
	cfg := small()
	cfg.Adopted = true
	return cfg
}

// requireHeld tests which pages of a cache of Config.Adopted are held: there no
// other sequence gets slots for new tokens.
func requireHeld(t testing.TB, c *kvpaged.Cache, held []int32, about ...any) {
	t.Helper()
	for p := range int32(c.Config().Pages) {
		seqs, err := kvpaged.ImportLookup(c, []int32{p}, []int{0}, []int{1})
		if slices.Contains(held, p) {
			require.ErrorIs(t, err, kvpaged.ErrShared, about...)
			continue
		}
		require.NoError(t, err, about...)
		require.NoError(t, seqs[0].Free())
	}
}

// in gives a config the format f, and what else f needs: its own width if it has
// one, a scale, groups of which the last is short.
func in(f kvpaged.Format, cfg kvpaged.Config) kvpaged.Config {
	cfg.Format = f
	if w := records[f].width; w != 0 {
		cfg.Width = w
	}
	if f == kvpaged.FP8Tensor {
		cfg.Scale = 0.37
	}
	if f == kvpaged.FP8Token {
		cfg.Group = (cfg.Width + 2) / 2
	}
	return cfg
}

func newCache(t testing.TB, cfg kvpaged.Config) *kvpaged.Cache {
	t.Helper()
	c, err := kvpaged.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func newSeq(t testing.TB, c *kvpaged.Cache) *kvpaged.Seq {
	t.Helper()
	s, err := c.NewSeq()
	require.NoError(t, err)
	return s
}

// appendRows reserves, writes and commits rows in every layer.
func appendRows(t testing.TB, s *kvpaged.Seq, n int, row func(layer, pos int) []float32) {
	t.Helper()
	require.NoError(t, s.Reserve(n))
	writeRows(t, s, n, row)
}

// writeRows writes and commits reserved rows in every layer.
func writeRows(t testing.TB, s *kvpaged.Seq, n int, row func(layer, pos int) []float32) {
	t.Helper()
	at := s.Len()
	for l := range s.Cache().Config().Layers {
		for pos := at; pos < at+n; pos++ {
			require.NoError(t, s.WriteRows(l, pos, row(l, pos)))
		}
	}
	require.NoError(t, s.Commit(n))
}

// rowOf makes rows that tell sequence, layer and position.
func rowOf(c *kvpaged.Cache, seq int) func(layer, pos int) []float32 {
	return func(layer, pos int) []float32 {
		row := make([]float32, c.Config().Width)
		for i := range row {
			row[i] = float32(seq*10_000_000 + layer*1_000_000 + pos*100 + i + 1)
		}
		return row
	}
}

// requireRows compares the committed rows of a sequence with those of a function.
func requireRows(t testing.TB, s *kvpaged.Seq, row func(layer, pos int) []float32) {
	t.Helper()
	cfg, n := s.Cache().Config(), s.Len()
	got := make([]float32, n*cfg.Width)
	for l := range cfg.Layers {
		require.NoError(t, s.ReadRows(got, l, 0, n))
		for pos := range n {
			require.Equal(t, row(l, pos), got[pos*cfg.Width:(pos+1)*cfg.Width], "layer %d, position %d", l, pos)
		}
	}
}

// heapArena is an arena in which the race detector sees every access, which it
// does not in mapped memory.
func heapArena(t testing.TB, cfg kvpaged.Config) []byte {
	t.Helper()
	n, err := kvpaged.ArenaBytes(cfg)
	require.NoError(t, err)
	return make([]byte, n)
}

// values draws from all kinds of float32.
func values(rng *rand.Rand, n int) []float32 {
	special := []float32{
		0, float32(math.Copysign(0, -1)), 1, -1, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
		math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, 0x1p-126, 0x1p-9, 0x1p-10, 0x1.8p-9, 0x1p-14, 0x1p-24, 0x1p-25,
		448, 464, 464.0001, -480, 65504, 65519.996, 65520, 3.3895314e38, 3.3961776e38,
	}
	x := make([]float32, n)
	for i := range x {
		switch rng.IntN(4) {
		case 0:
			x[i] = special[rng.IntN(len(special))]
		case 1:
			x[i] = math.Float32frombits(rng.Uint32())
		default:
			x[i] = float32(rng.NormFloat64()) * float32(math.Exp2(float64(rng.IntN(40)-20)))
		}
	}
	return x
}
