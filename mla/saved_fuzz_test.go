package mla_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc64"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// seal makes every checksum of a saved layer or block right again, as far as its header says where
// they are, so that what lies under them is looked at: the parts first, which the header counts.
func seal(b []byte) {
	table := crc64.MakeTable(crc64.ECMA)
	sum := func(at int, of []byte) { binary.LittleEndian.PutUint64(b[at:], crc64.Checksum(of, table)) }
	// take cuts n bytes off rest; what is left of a shorter one is all of it.
	take := func(rest *[]byte, n uint64) []byte {
		part := (*rest)[:min(n, uint64(len(*rest)))]
		*rest = (*rest)[len(part):]
		return part
	}
	field := func(at int) uint64 { return binary.LittleEndian.Uint64(b[at:]) }
	padded := func(values uint64) uint64 { return (4*min(values, 1<<32) + 63) &^ 63 }
	packed := func(p []byte) {
		if len(p) >= fp8.PackedHeader {
			binary.LittleEndian.PutUint64(p[96:], crc64.Checksum(p[fp8.PackedHeader:], table))
			binary.LittleEndian.PutUint64(p[120:], crc64.Checksum(p[:120], table))
		}
	}
	switch {
	case len(b) >= 192 && string(b[:8]) == "\x89LAMLAYR":
		rest := b[192:]
		gamma := take(&rest, padded(field(72)))
		for i := range 3 {
			packed(take(&rest, field(96+8*i)))
		}
		sum(120, gamma)
		sum(184, b[:184])
	case len(b) >= 256 && string(b[:8]) == "\x89LAMBLOK":
		rest := b[256:]
		vectors := take(&rest, padded(min(field(56), 1<<20)+min(field(176), 1<<20)+min(field(184), 1<<20)+min(field(192), 1<<20)))
		for i := range 4 {
			packed(take(&rest, field(136+8*i)))
		}
		seal(take(&rest, field(168)))
		sum(200, vectors)
		sum(248, b[:248])
	}
}

// TestSeal: a file that is sealed is what it was, and one that was changed in any byte is refused
// for that, or taken, but no more for a checksum.
func TestSeal(t *testing.T) {
	cfg, source, _, layer := tiny(t)
	blockCfg, _, blockSource, block := tinyBlock(t)
	for name, good := range map[string][]byte{"layer": layer, "block": block} {
		b := slices.Clone(good)
		seal(b)
		require.True(t, bytes.Equal(good, b), name)
		step := 1
		if testing.Short() {
			step = 7
		}
		for at := 0; at < len(b); at += step {
			b := slices.Clone(good)
			b[at] ^= 0x10
			seal(b)
			var err error
			if name == "layer" {
				_, err = mla.LoadBytes(cfg, b, source)
			} else {
				_, err = mla.LoadBlockBytes(blockCfg, b, blockSource)
			}
			if err != nil {
				require.NotContains(t, err.Error(), "checksum", "%s: byte %d", name, at)
			}
		}
	}
}

// fuzzed are the configurations that a file is loaded under: what its fields mean hangs on them.
func fuzzed(c mla.Config) []mla.Config {
	all := []mla.Config{c, c, c, c}
	all[1].Compute = mla.ComputeBF16
	all[2].ActQuant, all[2].ActBlockQ = mla.ActDynamic, 2
	all[3].ActQuant, all[3].ActBlockQ, all[3].Compute = mla.ActDynamic, 2, mla.ComputeBF16
	return all
}

// refused is an error that a file, or one under ActDynamic, may be refused with.
func refused(err error, quant mla.ActQuant) bool {
	return errors.Is(err, mla.ErrPacked) || errors.Is(err, mla.ErrStale) || quant == mla.ActDynamic && errors.Is(err, mla.ErrWeights)
}

// forward runs three tokens and one more, of which the second call is decoding.
func forward(t testing.TB, width, in, out int, rope int, run func(out, in, kv mla.Rows, b mla.Batch) error) []float32 {
	t.Helper()
	cache, err := kvpaged.New(kvpaged.Config{Layers: 1, PageTokens: 16, Width: width, Format: kvpaged.F32, Pages: 1})
	require.NoError(t, err)
	defer cache.Close()
	seq, err := cache.NewSeq()
	require.NoError(t, err)
	defer seq.Free()
	x, kv, y := wave(4*in), wave(4*width), make([]float32, 4*out)
	freqs := make([]float32, 4*rope)
	for i := range freqs {
		freqs[i] = float32(1 - i%2)
	}
	at := 0
	for _, n := range []int{3, 1} {
		require.NoError(t, seq.Reserve(n))
		piece := func(x []float32, width int) mla.Rows { return mla.RowsF32(x[at*width : (at+n)*width]) }
		require.NoError(t, run(piece(y, out), piece(x, in), piece(kv, width), mla.Batch{
			Cache: cache, Seqs: []*kvpaged.Seq{seq}, Offsets: []uint32{0, uint32(n)}, Freqs: mla.RowsF32(freqs),
		}))
		require.NoError(t, seq.Commit(n))
		at += n
	}
	return y
}

var fuzzLimits = mla.Limits{Tokens: 3, Seqs: 1, Context: 4, Buffer: 16}

func forwardLayer(t testing.TB, l *mla.Layer) []float32 {
	c := l.Config()
	plan, err := bind(l, fuzzLimits, nil)
	require.NoError(t, err)
	defer plan.Close()
	return forward(t, c.Width(), c.Heads*(c.Nope+c.Rope), c.Heads*c.V, c.Rope, func(out, q, kv mla.Rows, b mla.Batch) error {
		return plan.Forward(context.Background(), out, q, kv, b)
	})
}

func forwardBlock(t testing.TB, b *mla.Block) []float32 {
	c := b.Config()
	plan, err := bindBlock(b, fuzzLimits, nil)
	require.NoError(t, err)
	defer plan.Close()
	return forward(t, c.Core.Width(), c.Hidden, c.Hidden, c.Core.Rope, func(out, hidden, _ mla.Rows, b mla.Batch) error {
		return plan.Forward(context.Background(), out, hidden, b)
	})
}

// sameAnswer compares bits, but those of a NaN: codes and norms of a file may be one.
func sameAnswer(t testing.TB, want, got []float32) {
	t.Helper()
	for i := range want {
		a, b := want[i], got[i]
		require.True(t, math.Float32bits(a) == math.Float32bits(b) || a != a && b != b, "out[%d] is %v, then %v", i, a, b)
	}
}

func finite(t testing.TB, x []float32) {
	t.Helper()
	for i := range x {
		require.False(t, math.IsNaN(float64(x[i])) || math.IsInf(float64(x[i]), 0), "out[%d] is %v", i, x[i])
	}
}

// patched is a copy of b with bytes changed, each by three of patch: where, and what to add. A
// mutation of patch, unlike one of b, leaves a file its length and its parts their places.
func patched(b, patch []byte) []byte {
	b = slices.Clone(b)
	for ; len(patch) >= 3 && len(b) > 0; patch = patch[3:] {
		b[int(binary.LittleEndian.Uint16(patch))%len(b)] += patch[2]
	}
	return b
}

// kvbs are matrices of every kind that packing tells apart.
func kvbs(t testing.TB, rows, cols int) []fp8.Matrix {
	x := wave(rows * cols)
	var all []fp8.Matrix
	for _, block := range [][2]int{{16, 16}, {2, 1}, {rows, cols}} {
		for _, elem := range []fp8.Elem{fp8.ElemE4M3, fp8.ElemE5M2, fp8.ElemE4M3FNUZ} {
			m, err := fp8.Quantize(elem, rows, cols, x, block[0], block[1])
			require.NoError(t, err)
			all = append(all, m)
		}
	}
	bits := make([]uint16, len(x))
	for i := range bits {
		bits[i] = 0x3C00 + uint16(i)
	}
	codes := make([]byte, len(x))
	for i := range codes {
		codes[i] = byte(i % 0x70)
	}
	for _, plain := range []func() (fp8.Matrix, error){
		func() (fp8.Matrix, error) { return fp8.PlainF32(rows, cols, x) },
		func() (fp8.Matrix, error) { return fp8.PlainBF16(rows, cols, bits) },
		func() (fp8.Matrix, error) { return fp8.PlainF16(rows, cols, bits) },
		func() (fp8.Matrix, error) {
			return fp8.New(fp8.ElemE4M3, rows, cols, codes, fp8.Scales{}, 0, 0)
		},
	} {
		m, err := plain()
		require.NoError(t, err)
		all = append(all, m)
	}
	return all
}

// FuzzLoadPacked: any bytes, with all checksums made right or not, are an ErrPacked, an ErrStale,
// or a layer that is saved as the bytes it came from and computes, the same every time.
func FuzzLoadPacked(f *testing.F) {
	cfg, source, _, first := tiny(f)
	good := [][]byte{first}
	for _, kvb := range kvbs(f, 7, 20) {
		l, err := mla.New(cfg, mla.Weights{KVB: kvb, Gamma: mla.RowsF32(wave(20))})
		require.NoError(f, err)
		b, err := mla.SaveBytes(l, source)
		require.NoError(f, err)
		good = append(good, b)
		require.NoError(f, l.Close())
	}
	for _, b := range good {
		f.Add(b, []byte{}, false)
		f.Add(b, []byte{192, 0, 1, 200, 1, 3}, true)
		f.Add(b, []byte{80, 0, 1, 88, 0, 7}, true)
	}
	f.Add(first[:192], []byte{}, true)
	f.Add(first[:len(first)-1], []byte{}, true)
	f.Add([]byte(strings.Repeat("\x89LAMLAYR", 30)), []byte{}, true)
	f.Fuzz(func(t *testing.T, b, patch []byte, sealed bool) {
		b = patched(b, patch)
		if sealed {
			seal(b)
		}
		whole := slices.ContainsFunc(good, func(g []byte) bool { return bytes.Equal(g, b) })
		for _, cfg := range fuzzed(cfg) {
			l, err := mla.LoadBytes(cfg, b, source)
			if err != nil {
				require.True(t, refused(err, cfg.ActQuant), "%v", err)
				require.False(t, whole && cfg.ActQuant == mla.ActNone, "%v", err)
				continue
			}
			again, err := mla.SaveBytes(l, source)
			require.NoError(t, err)
			require.True(t, bytes.Equal(b, again))
			out := forwardLayer(t, l)
			sameAnswer(t, out, forwardLayer(t, l))
			if whole {
				finite(t, out)
			}
			require.NoError(t, l.Close())
		}
	})
}

// FuzzLoadPackedBlock is FuzzLoadPacked of a block.
func FuzzLoadPackedBlock(f *testing.F) {
	cfg, w, source, first := tinyBlock(f)
	good := [][]byte{first}
	qas, qbs, kvas, outs, kvbs := kvbs(f, 3, 6), kvbs(f, 6, 3), kvbs(f, 7, 6), kvbs(f, 6, 3), kvbs(f, 7, 5)
	for i := range qas {
		w := w
		w.QA, w.QB, w.KVA, w.O, w.Core.KVB = qas[i], qbs[i], kvas[i], outs[i], kvbs[i]
		w.KVABias, w.OBias = mla.Rows{}, mla.RowsF32(wave(6))
		l, err := mla.NewBlock(cfg, w)
		require.NoError(f, err)
		b, err := mla.SaveBlockBytes(l, source)
		require.NoError(f, err)
		good = append(good, b)
		require.NoError(f, l.Close())
	}
	for _, b := range good {
		f.Add(b, []byte{}, false)
		f.Add(b, []byte{0, 1, 1, 130, 1, 3}, true)
		f.Add(b, []byte{104, 0, 1, 112, 0, 7}, true)
	}
	f.Add(first[:256], []byte{}, true)
	f.Add(first[:len(first)-1], []byte{}, true)
	f.Fuzz(func(t *testing.T, b, patch []byte, sealed bool) {
		b = patched(b, patch)
		if sealed {
			seal(b)
		}
		whole := slices.ContainsFunc(good, func(g []byte) bool { return bytes.Equal(g, b) })
		for _, core := range fuzzed(cfg.Core) {
			cfg := cfg
			cfg.Core = core
			l, err := mla.LoadBlockBytes(cfg, b, source)
			if err != nil {
				require.True(t, refused(err, core.ActQuant), "%v", err)
				require.False(t, whole && core.ActQuant == mla.ActNone, "%v", err)
				continue
			}
			again, err := mla.SaveBlockBytes(l, source)
			require.NoError(t, err)
			require.True(t, bytes.Equal(b, again))
			out := forwardBlock(t, l)
			sameAnswer(t, out, forwardBlock(t, l))
			if whole {
				finite(t, out)
			}
			require.NoError(t, l.Close())
		}
	})
}
