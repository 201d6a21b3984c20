package mla_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/mla"
)

// TestSaveAndLoadBlock: a loaded block gives the bits of the one that was saved.
func TestSaveAndLoadBlock(t *testing.T) {
	for name, change := range map[string]func(w *blockWorld){
		"mixed":         func(w *blockWorld) {},
		"q_proj":        func(w *blockWorld) { w.lora = 0 },
		"biases":        func(w *blockWorld) { w.bias = true },
		"no lora, bias": func(w *blockWorld) { w.bias, w.lora = true, 0 },
		"bf16 norms":    func(w *blockWorld) { w.gamma, w.cfg.NormRounding = "bf16", mla.NormAsGamma },
		"in words":      func(w *blockWorld) { w.qa, w.o = weightKind{fp8.ElemE4M3, 16, 16}, weightKind{fp8.ElemE4M3, 24, 24} },
		"ActDynamic": func(w *blockWorld) {
			w.weight, w.cfg.ActQuant = weightKind{fp8.ElemE4M3, 32, 32}, mla.ActDynamic
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := smallBlock()
			change(&w)
			m := w.make(t)
			source := m.w.Fingerprint(m.config)
			path := filepath.Join(t.TempDir(), "block")
			require.NoError(t, m.block.Save(path, source))
			want := m.forward(t, m.plan(t, nil), mla.FormAuto)
			loaded, err := mla.LoadPackedBlock(m.config, path, source)
			require.NoError(t, err)
			require.Equal(t, m.block.Config(), loaded.Config())
			require.Equal(t, m.block.Bytes(), loaded.Bytes())
			a, err := mla.SaveBlockBytes(m.block, source)
			require.NoError(t, err)
			b, err := mla.SaveBlockBytes(loaded, source)
			require.NoError(t, err)
			require.True(t, bytes.Equal(a, b), "a loaded block is saved as the same bytes")

			other := *m
			other.block = loaded
			p, err := bindBlock(loaded, m.limits(), nil)
			require.NoError(t, err)
			sameBits(t, want, other.forward(t, p, mla.FormAuto), "loaded")
			require.NoError(t, p.Close())
			require.NoError(t, loaded.Close())
			require.ErrorIs(t, loaded.Save(path, source), mla.ErrClosed)

			// The file is of no arithmetic: one of either gives blocks of both.
			pairs := w
			pairs.cfg.Compute = mla.ComputeBF16
			other = *pairs.make(t)
			require.Equal(t, source, other.w.Fingerprint(other.config))
			inPairs, err := mla.SaveBlockBytes(other.block, source)
			require.NoError(t, err)
			require.True(t, bytes.Equal(a, inPairs), "both computes are saved as the same bytes")
			want = other.forward(t, other.plan(t, nil), mla.FormAuto)
			other.block, err = mla.LoadPackedBlock(other.config, path, source)
			require.NoError(t, err)
			require.Equal(t, mla.ComputeBF16, other.block.Config().Core.Compute)
			p, err = bindBlock(other.block, m.limits(), nil)
			require.NoError(t, err)
			sameBits(t, want, other.forward(t, p, mla.FormAuto), "loaded, in the second arithmetic")
			require.NoError(t, p.Close())
			require.NoError(t, other.block.Close())
		})
	}
}

// tinyBlock is a block whose file is small enough to damage every byte of it.
func tinyBlock(t testing.TB) (mla.BlockConfig, mla.BlockWeights, mla.Fingerprint, []byte) {
	t.Helper()
	x := make([]float32, 7*20)
	for i := range x {
		x[i] = float32(i%5) - 2
	}
	of := func(rows, cols int) fp8.Matrix {
		m, err := fp8.Quantize(fp8.ElemE4M3, rows, cols, x[:rows*cols], 16, 16)
		require.NoError(t, err)
		return m
	}
	cfg := mla.BlockConfig{Core: mla.Config{Heads: 1, Nope: 4, Rope: 2, V: 3, Latent: 5, Scale: 1}, Hidden: 6, QLora: 3}
	w := mla.BlockWeights{
		QA: of(3, 6), QB: of(6, 3), KVA: of(7, 6), O: of(6, 3), QGamma: mla.RowsF32(x[:3]), KVABias: mla.RowsF32(x[:7]),
		Core: mla.Weights{KVB: of(7, 5), Gamma: mla.RowsF32(x[:5])},
	}
	l, err := mla.NewBlock(cfg, w)
	require.NoError(t, err)
	defer l.Close()
	source := w.Fingerprint(cfg)
	b, err := mla.SaveBlockBytes(l, source)
	require.NoError(t, err)
	return cfg, w, source, b
}

// TestLoadBlockDamage flips every byte and cuts the file at every length.
func TestLoadBlockDamage(t *testing.T) {
	cfg, _, source, b := tinyBlock(t)
	load := func(b []byte) error {
		l, err := mla.LoadBlockBytes(cfg, b, source)
		if err == nil {
			require.NoError(t, l.Close())
		}
		return err
	}
	require.NoError(t, load(b))
	core := bytes.Index(b, []byte("\x89LAMLAYR"))
	for at := range b {
		damaged := slices.Clone(b)
		damaged[at] ^= 0x10
		want := mla.ErrPacked
		if at >= 8 && at < 12 || at >= core+8 && at < core+12 {
			want = mla.ErrStale // a version
		}
		require.ErrorIs(t, load(damaged), want, "byte %d", at)
	}
	for n := range b {
		require.ErrorIs(t, load(b[:n]), mla.ErrPacked, "%d bytes", n)
	}
	require.ErrorContains(t, load(append(slices.Clone(b), 0)), "1 bytes follow the last")
	require.ErrorContains(t, load(b[:100]), "size is 100")
	require.ErrorContains(t, load(b[:300]), "the vectors has 64 bytes, and the file 44 left")
}

// resealBlock makes the checksum of the header right again.
func resealBlock(b []byte) []byte {
	if len(b) >= 256 {
		binary.LittleEndian.PutUint64(b[248:], crc64.Checksum(b[:248], crc64.MakeTable(crc64.ECMA)))
	}
	return b
}

// TestLoadBlockFields writes every field of the header wrong under a right checksum.
func TestLoadBlockFields(t *testing.T) {
	cfg, _, source, good := tinyBlock(t)
	qa, qb := binary.LittleEndian.Uint64(good[136:]), binary.LittleEndian.Uint64(good[144:])
	path := filepath.Join(t.TempDir(), "block")
	for name, c := range map[string]struct {
		spoil func(b []byte)
		want  error
		says  string
	}{
		"version":      {put64(8, 2), mla.ErrStale, "version is 2, want 1"},
		"gamma's type": {put64(8, 1|3<<32), mla.ErrPacked, "type of gamma is 3"},
		"source":       {put64(16, 7), mla.ErrStale, "packed from "},
		"hidden":       {put64(48, math.MaxUint64), mla.ErrStale, "Hidden is 18446744073709551615, want 6"},
		"lora":         {put64(56, 0), mla.ErrStale, "QLora is 0, want 3"},
		"heads":        {put64(64, 2), mla.ErrStale, "Heads is 2, want 1"},
		"nope":         {put64(72, 2), mla.ErrStale, "Nope is 2"},
		"rope":         {put64(80, 4), mla.ErrStale, "Rope is 4, want 2"},
		"v":            {put64(88, 4), mla.ErrStale, "V is 4"},
		"latent":       {put64(96, 4), mla.ErrStale, "Latent is 4"},
		"k block":      {put64(104, 0), mla.ErrPacked, "the scale block of QA is 0, of weights with scales: true"},
		"k block huge": {put64(128, 1<<63), mla.ErrPacked, "the scale block of O is 9223372036854775808"},
		"qa none":      {put64(136, 0), mla.ErrPacked, "bytes follow the last"},
		"qa huge":      {put64(136, 1<<63), mla.ErrPacked, "QA has 9223372036854775808 bytes"},
		"qa and qb":    {func(b []byte) { put64(136, qa+64)(b); put64(144, qb-64)(b) }, mla.ErrPacked, "QA: fp8: bad packed file: size is"},
		"core huge":    {put64(168, math.MaxUint64), mla.ErrPacked, "the core has"},
		"bias":         {put64(184, 6), mla.ErrPacked, "the bias of KVA has 6 values, want 7 or none"},
		"bias huge":    {put64(176, 1<<63), mla.ErrPacked, "the bias of QA has"},
		"no bias":      {put64(184, 0), mla.ErrPacked, "something lies behind the vectors"},
		"sum":          {put64(200, 1), mla.ErrPacked, "checksum of the vectors"},
		"unused":       {put64(240, 1), mla.ErrPacked, "unused fields"},
		"qa and qb exchanged": {func(b []byte) {
			at := 256 + 64
			copy(b[at:], append(slices.Clone(b[at+int(qa):at+int(qa+qb)]), b[at:at+int(qa)]...))
			put64(136, qb)(b)
			put64(144, qa)(b)
		}, mla.ErrPacked, "QA is [1, 6, 3], want [1, 3, 6]"},
	} {
		t.Run(name, func(t *testing.T) {
			b := slices.Clone(good)
			c.spoil(b)
			require.NoError(t, os.WriteFile(path, resealBlock(b), 0o600))
			_, err := mla.LoadPackedBlock(cfg, path, source)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, path)
		})
	}
	cfg.Core.Scale = 0
	_, err := mla.LoadPackedBlock(cfg, path, source)
	require.ErrorIs(t, err, mla.ErrConfig)
	cfg.Core.Scale, cfg.QLora = 1, 0
	_, err = mla.LoadPackedBlock(cfg, filepath.Join(t.TempDir(), "none"), source)
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestBlockFingerprint: whatever the packed form hangs on is in it, and nothing else.
func TestBlockFingerprint(t *testing.T) {
	cfg, w, want, _ := tinyBlock(t)
	other := cfg
	other.Core.Scale, other.QScale, other.QEpsilon, other.QBeta, other.QContext = 3, 2, 1, 1, 1
	require.Equal(t, want, w.Fingerprint(other))
	w.Progress = func(_, _ int64) {}
	require.Equal(t, want, w.Fingerprint(cfg))

	seen := map[mla.Fingerprint]string{want: "the weights"}
	add := func(name string, f mla.Fingerprint) {
		require.Empty(t, seen[f], "%s is like %s", name, seen[f])
		seen[f] = name
	}
	for i, change := range []func(c *mla.BlockConfig){
		func(c *mla.BlockConfig) { c.Hidden++ }, func(c *mla.BlockConfig) { c.QLora++ }, func(c *mla.BlockConfig) { c.Core.Heads++ },
		func(c *mla.BlockConfig) { c.Core.Rope++ }, func(c *mla.BlockConfig) { c.Core.V++ },
	} {
		c := cfg
		change(&c)
		add(fmt.Sprintf("size %d", i), w.Fingerprint(c))
	}
	x := []float32{1, 2, 3, 4, 5, 6, 7}
	for name, change := range map[string]func(w *mla.BlockWeights){
		"QA": func(w *mla.BlockWeights) { w.QA = w.QB }, "QB": func(w *mla.BlockWeights) { w.QB = w.QA },
		"KVA": func(w *mla.BlockWeights) { w.KVA = w.QA }, "O": func(w *mla.BlockWeights) { w.O = w.QA },
		"gamma": func(w *mla.BlockWeights) { w.QGamma = mla.RowsF32(x[:3]) },
		"gamma's type": func(w *mla.BlockWeights) {
			w.QGamma = rowsOf("bf16", values(w.QGamma))
		},
		"q_a's bias":   func(w *mla.BlockWeights) { w.QABias = mla.RowsF32(x[:3]) },
		"kv_a's bias":  func(w *mla.BlockWeights) { w.KVABias = mla.RowsF32(x) },
		"no bias":      func(w *mla.BlockWeights) { w.KVABias = mla.Rows{} },
		"o's bias":     func(w *mla.BlockWeights) { w.OBias = mla.RowsF32(x[:6]) },
		"latent gamma": func(w *mla.BlockWeights) { w.Core.Gamma = mla.RowsF32(x[:5]) },
		"kv_b_proj":    func(w *mla.BlockWeights) { w.Core.KVB = w.KVA },
	} {
		v := w
		change(&v)
		add(name, v.Fingerprint(cfg))
	}
}
