package mla_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc64"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/mla"
)

// weights are those that the world's layer was made of.
func (m *made) weights() mla.Weights {
	return mla.Weights{KVB: m.kvb, Gamma: rowsOf(m.gamma, m.gammas)}
}

// save saves a layer and returns the path and what is in the file.
func save(t testing.TB, l *mla.Layer, source mla.Fingerprint) (string, []byte) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "layer.packed")
	require.NoError(t, l.Save(path, source))
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return path, b
}

// TestSaveAndLoad: a loaded layer gives the bits of the one that was saved, in both
// forms, for every kind of weights.
func TestSaveAndLoad(t *testing.T) {
	kinds := map[string]func(w *world){
		"E4M3 blocks":   func(w *world) {},
		"E4M3 in words": func(w *world) { w.weight = weightKind{fp8.ElemE4M3, 32, 32} },
		"per tensor":    func(w *world) { w.weight = weightKind{fp8.ElemE4M3, 0, 0} },
		"per row":       func(w *world) { w.weight = weightKind{fp8.ElemE4M3, 1, 72} },
		"E5M2":          func(w *world) { w.weight = weightKind{fp8.ElemE5M2, 64, 8} },
		"E4M3FNUZ":      func(w *world) { w.weight = weightKind{fp8.ElemE4M3FNUZ, 24, 40} },
		"E5M2FNUZ":      func(w *world) { w.weight = weightKind{fp8.ElemE5M2FNUZ, 24, 40} },
		"bf16":          func(w *world) { w.weight.elem, w.gamma = fp8.ElemBF16, "bf16" },
		"f16":           func(w *world) { w.weight.elem, w.gamma = fp8.ElemF16, "f16" },
		"f32":           func(w *world) { w.weight.elem = fp8.ElemF32 },
		"bf16 rows":     func(w *world) { w.gamma, w.kv = "bf16", "bf16" },
		"ActDynamic": func(w *world) {
			w.weight = weightKind{fp8.ElemE4M3, 32, 32}
			w.cfg.ActQuant = mla.ActDynamic
		},
	}
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			w := small()
			kind(&w)
			sameLoaded(t, w.make(t))
		})
	}
	t.Run("NaN codes", func(t *testing.T) {
		m := small().make(t)
		codes, scales := bytes.Repeat([]byte{0x38, 0x31, 0xB4}, 192*72/3), []float32{0.01, 0.02, 0.03, 0.04}
		codes[5*72+7], codes[50*72+3] = 0x7F, 0xFF // of a key and of a value, both of the first head
		var err error
		m.kvb, err = fp8.New(fp8.ElemE4M3, 192, 72, codes, fp8.ScalesF32(scales), 96, 40)
		require.NoError(t, err)
		m.layer_, err = mla.New(m.cfg, m.weights())
		require.NoError(t, err)
		a := sameLoaded(t, m)
		require.True(t, slices.ContainsFunc(a.out, isNaN), "a NaN code reaches the output")
		require.False(t, isNaN(a.out[len(a.out)-1]), "but not that of another head")
	})
}

// sameLoaded saves the world's layer, loads it, and compares all that they give.
func sameLoaded(t *testing.T, m *made) answer {
	t.Helper()
	source := m.weights().Fingerprint(m.cfg)
	path, b := save(t, m.layer_, source)
	loaded, err := mla.LoadPacked(m.cfg, path, source)
	require.NoError(t, err)
	require.Equal(t, m.layer_.Config(), loaded.Config())
	require.Equal(t, m.layer_.Bytes(), loaded.Bytes())
	_, again := save(t, loaded, source)
	require.True(t, bytes.Equal(b, again), "a loaded layer is saved as the same bytes")

	other := *m
	other.layer_ = loaded
	var a answer
	for _, form := range bothForms {
		a = m.forward(t, m.plan(t, m.limits(), nil), form)
		p, err := bind(loaded, m.limits(), nil)
		require.NoError(t, err)
		sameBits(t, a, other.forward(t, p, form), fmt.Sprintf("loaded, %v", form))
		require.NoError(t, p.Close())
	}
	require.NoError(t, loaded.Close())
	require.NoError(t, loaded.Close())
	require.ErrorIs(t, loaded.Save(path, source), mla.ErrClosed)
	return a
}

// TestLoadWithAnotherConfig: what packing does not hang on is the loader's to choose.
func TestLoadWithAnotherConfig(t *testing.T) {
	w := small()
	m := w.make(t)
	path, _ := save(t, m.layer_, mla.Fingerprint{1})
	w.cfg.Mask = mla.Mask{Kind: mla.MaskSlidingWindowCausal, Window: 5}
	w.cfg.Scale, w.cfg.RopeStyle, w.cfg.Epsilon, w.cfg.Compute = 0.3, mla.Half, 1e-3, mla.ComputeBF16
	other := w.make(t)
	want := other.forward(t, other.plan(t, other.limits(), nil), mla.FormAbsorbed)
	loaded, err := mla.LoadPacked(w.cfg, path, mla.Fingerprint{1})
	require.NoError(t, err)
	defer loaded.Close()
	other.layer_ = loaded
	p, err := bind(loaded, other.limits(), nil)
	require.NoError(t, err)
	defer p.Close()
	sameBits(t, want, other.forward(t, p, mla.FormAbsorbed), "loaded with another configuration")

	w.cfg.Scale = 0
	_, err = mla.LoadPacked(w.cfg, path, mla.Fingerprint{1})
	require.ErrorIs(t, err, mla.ErrConfig)
	w = small()
	w.weight.elem = fp8.ElemF32
	path, _ = save(t, w.make(t).layer_, mla.Fingerprint{1})
	w.cfg.ActQuant = mla.ActDynamic
	_, err = mla.LoadPacked(w.cfg, path, mla.Fingerprint{1})
	require.ErrorIs(t, err, mla.ErrWeights)
}

// TestStale: a file of other weights, of another geometry or of another version is
// refused, and the reason is said.
func TestStale(t *testing.T) {
	m := small().make(t)
	source := m.weights().Fingerprint(m.cfg)
	path, b := save(t, m.layer_, source)
	for says, change := range map[string]func(c *mla.Config, s *mla.Fingerprint){
		"packed from " + source.String() + ", want ": func(_ *mla.Config, s *mla.Fingerprint) { s[31]++ },
		"Heads is 3, want 4":                         func(c *mla.Config, _ *mla.Fingerprint) { c.Heads = 4 },
		"Nope is 24, want 40":                        func(c *mla.Config, _ *mla.Fingerprint) { c.Nope = 40 },
		"V is 40, want 24":                           func(c *mla.Config, _ *mla.Fingerprint) { c.V = 24 },
		"Latent is 72, want 64":                      func(c *mla.Config, _ *mla.Fingerprint) { c.Latent = 64 },
	} {
		cfg, s := m.cfg, source
		change(&cfg, &s)
		_, err := mla.LoadPacked(cfg, path, s)
		require.ErrorIs(t, err, mla.ErrStale)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, path)
	}
	b[8] = 2
	require.NoError(t, os.WriteFile(path, b, 0o600))
	_, err := mla.LoadPacked(m.cfg, path, source)
	require.ErrorIs(t, err, mla.ErrStale)
	require.ErrorContains(t, err, "version is 2, want 1")
}

// TestFingerprint: whatever the packed form hangs on is in it, and nothing else.
func TestFingerprint(t *testing.T) {
	m := small().make(t)
	w := m.weights()
	want := w.Fingerprint(m.cfg)
	require.Equal(t, want, m.weights().Fingerprint(m.cfg))
	cfg := m.cfg
	cfg.Scale, cfg.Mask, cfg.Rope, cfg.Epsilon = 3, mla.Mask{Kind: mla.MaskNull}, 2, 1
	require.Equal(t, want, w.Fingerprint(cfg))

	seen := map[mla.Fingerprint]string{want: "the weights"}
	add := func(name string, f mla.Fingerprint) {
		require.Empty(t, seen[f], "%s is like %s", name, seen[f])
		seen[f] = name
	}
	for i, change := range []func(c *mla.Config){
		func(c *mla.Config) { c.Heads++ }, func(c *mla.Config) { c.Nope++ }, func(c *mla.Config) { c.V++ }, func(c *mla.Config) { c.Latent++ },
	} {
		cfg := m.cfg
		change(&cfg)
		add(fmt.Sprintf("size %d", i), w.Fingerprint(cfg))
	}
	head, err := m.kvb.Slice(0, 24)
	require.NoError(t, err)
	add("no weights", mla.Weights{}.Fingerprint(m.cfg))
	add("K", mla.Weights{K: m.kvb, Gamma: w.Gamma}.Fingerprint(m.cfg))
	add("UK", mla.Weights{UK: []fp8.Matrix{head}, Gamma: w.Gamma}.Fingerprint(m.cfg))
	add("UV", mla.Weights{UV: []fp8.Matrix{head}, Gamma: w.Gamma}.Fingerprint(m.cfg))
	add("two UV", mla.Weights{UV: []fp8.Matrix{head, head}, Gamma: w.Gamma}.Fingerprint(m.cfg))
	add("part", mla.Weights{KVB: head, Gamma: w.Gamma}.Fingerprint(m.cfg))
	add("gamma's type", mla.Weights{KVB: m.kvb, Gamma: rowsOf("bf16", m.gammas)}.Fingerprint(m.cfg))
	m.gammas[71] += 0.5
	add("gamma", mla.Weights{KVB: m.kvb, Gamma: rowsOf("f32", m.gammas)}.Fingerprint(m.cfg))
	require.Len(t, want.String(), 64)
}

// resealLayer makes the checksum of the header right again.
func resealLayer(b []byte) []byte {
	if len(b) >= 192 {
		binary.LittleEndian.PutUint64(b[184:], crc64.Checksum(b[:184], crc64.MakeTable(crc64.ECMA)))
	}
	return b
}

// tiny is a layer whose file is small enough to damage every byte of it.
func tiny(t testing.TB) (mla.Config, mla.Fingerprint, string, []byte) {
	t.Helper()
	cfg := mla.Config{Heads: 1, Nope: 4, Rope: 2, V: 3, Latent: 20, Scale: 1}
	x := make([]float32, 7*20)
	for i := range x {
		x[i] = float32(i%5) - 2
	}
	kvb, err := fp8.Quantize(fp8.ElemE4M3, 7, 20, x, 16, 16)
	require.NoError(t, err)
	w := mla.Weights{KVB: kvb, Gamma: mla.RowsF32(x[:20])}
	l, err := mla.New(cfg, w)
	require.NoError(t, err)
	defer l.Close()
	source := w.Fingerprint(cfg)
	path, b := save(t, l, source)
	return cfg, source, path, b
}

// TestLoadDamage flips every byte and cuts the file at every length.
func TestLoadDamage(t *testing.T) {
	cfg, source, _, b := tiny(t)
	load := func(b []byte) error {
		_, err := mla.LoadBytes(cfg, b, source)
		return err
	}
	require.NoError(t, load(b))
	for at := range b {
		damaged := slices.Clone(b)
		damaged[at] ^= 0x10
		want := mla.ErrPacked
		if at >= 8 && at < 12 {
			want = mla.ErrStale // the version
		}
		require.ErrorIs(t, load(damaged), want, "byte %d", at)
	}
	for n := range b {
		require.ErrorIs(t, load(b[:n]), mla.ErrPacked, "%d bytes", n)
	}
	require.ErrorIs(t, load(append(slices.Clone(b), 0)), mla.ErrPacked)
	require.ErrorContains(t, load(append(slices.Clone(b), 0)), "1 bytes follow the last")
	require.ErrorContains(t, load(b[:100]), "size is 100")
	require.ErrorContains(t, load(b[:200]), "gamma has 128 bytes, and the file 8 left")
}

// TestLoadFields writes every field of the header wrong under a right checksum.
func TestLoadFields(t *testing.T) {
	cfg, source, path, good := tiny(t)
	uk, k, uv := binary.LittleEndian.Uint64(good[96:]), binary.LittleEndian.Uint64(good[104:]), binary.LittleEndian.Uint64(good[112:])
	at := 192 + 128 // where UK begins
	for name, c := range map[string]struct {
		spoil func(b []byte)
		want  error
		says  string
	}{
		"gamma's type": {put64(8, 1|3<<32), mla.ErrPacked, "type of gamma is 3"},
		"source":       {put64(16, 7), mla.ErrStale, "packed from "},
		"heads":        {put64(48, math.MaxUint64), mla.ErrStale, "Heads is 18446744073709551615, want 1"},
		"nope":         {put64(56, 1<<40), mla.ErrStale, "Nope is"},
		"v":            {put64(64, 0), mla.ErrStale, "V is 0"},
		"latent":       {put64(72, 1<<63), mla.ErrStale, "Latent is"},
		"n block":      {put64(80, 0), mla.ErrPacked, "scale blocks are 0 and 16"},
		"k block":      {put64(88, 1<<63), mla.ErrPacked, "scale blocks are 16 and 9223372036854775808"},
		"uk huge":      {put64(96, 1<<63), mla.ErrPacked, "UK has 9223372036854775808 bytes"},
		"uk short":     {put64(96, uk-64), mla.ErrPacked, "64 bytes follow"},
		"uk long":      {put64(96, uk+64), mla.ErrPacked, "UV has"},
		"k huge":       {put64(104, math.MaxUint64), mla.ErrPacked, "K has"},
		"k and uv":     {func(b []byte) { put64(104, k+64)(b); put64(112, uv-64)(b) }, mla.ErrPacked, "K: fp8: bad packed file: size is"},
		"uv none":      {put64(112, 0), mla.ErrPacked, "bytes follow the last"},
		"gamma's sum":  {put64(120, 1), mla.ErrPacked, "checksum of gamma"},
		"past gamma": {func(b []byte) {
			b[192+127] = 1
			put64(120, crc64.Checksum(b[192:192+128], crc64.MakeTable(crc64.ECMA)))(b)
		}, mla.ErrPacked, "behind gamma"},
		"unused": {put64(176, 1), mla.ErrPacked, "unused fields"},
		"uk and k": {func(b []byte) { // exchanged, both whole
			swapped := append(slices.Clone(b[at+int(uk):at+int(uk+k)]), b[at:at+int(uk)]...)
			copy(b[at:], swapped)
			put64(96, k)(b)
			put64(104, uk)(b)
		}, mla.ErrPacked, "UK is [1, 4, 20], want [1, 20, 4]"},
	} {
		t.Run(name, func(t *testing.T) {
			b := slices.Clone(good)
			c.spoil(b)
			require.NoError(t, os.WriteFile(path, resealLayer(b), 0o600))
			_, err := mla.LoadPacked(cfg, path, source)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, path)
		})
	}
}

func put64(at int, x uint64) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], x) }
}

// TestSaveFiles: Save replaces a file or leaves it alone, and never leaves another.
func TestSaveFiles(t *testing.T) {
	m := small().make(t)
	dir := t.TempDir()
	names := func() (names []string) {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	path := filepath.Join(dir, "layer")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	require.NoError(t, m.layer_.Save(path, mla.Fingerprint{}))
	require.Equal(t, []string{"layer"}, names())
	info, err := os.Stat(path)
	require.NoError(t, err)
	if runtime.GOOS != "windows" { // which has no such bits
		require.Equal(t, os.FileMode(0o600), info.Mode(), "what is replaced leaves its permissions")
	}
	l, err := mla.LoadPacked(m.cfg, path, mla.Fingerprint{})
	require.NoError(t, err)
	require.NoError(t, l.Close())

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("layer", link))
	require.NoError(t, m.layer_.Save(link, mla.Fingerprint{1}))
	to, err := os.Readlink(link)
	require.NoError(t, err, "a link stays one")
	require.Equal(t, "layer", to)
	l, err = mla.LoadPacked(m.cfg, path, mla.Fingerprint{1})
	require.NoError(t, err, "and what it leads to is replaced")
	require.NoError(t, l.Close())
	require.NoError(t, os.Remove(link))

	taken := filepath.Join(dir, "taken")
	require.NoError(t, os.MkdirAll(filepath.Join(taken, "x"), 0o700))
	err = m.layer_.Save(taken, mla.Fingerprint{})
	require.Error(t, err)
	require.ErrorContains(t, err, taken)
	require.Equal(t, []string{"layer", "taken"}, names(), "nothing is left of a failure")
	require.ErrorIs(t, m.layer_.Save(filepath.Join(dir, "none", "layer"), mla.Fingerprint{}), os.ErrNotExist)

	_, err = mla.LoadPacked(m.cfg, filepath.Join(dir, "none"), mla.Fingerprint{})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = mla.LoadPacked(m.cfg, taken, mla.Fingerprint{})
	require.ErrorIs(t, err, mla.ErrPacked)
	require.ErrorContains(t, err, "no regular file")
}

// TestReplaceFailure: a write that fails half-way leaves the old file, and no other.
func TestReplaceFailure(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "layer")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	err := mla.Replace(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "half")
		require.NoError(t, err)
		return io.ErrShortWrite
	})
	require.ErrorIs(t, err, io.ErrShortWrite)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(b))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
}
