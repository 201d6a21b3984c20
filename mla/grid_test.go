package mla_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

var bothForms = []mla.Form{mla.FormAbsorbed, mla.FormExpanded}

var allMasks = []mla.Mask{
	{Kind: mla.MaskCausal}, {Kind: mla.MaskNull},
	{Kind: mla.MaskSlidingWindowCausal, Window: 7}, {Kind: mla.MaskSlidingWindowNonCausal, Window: 9},
	{Kind: mla.MaskChunked, Window: 8}, {Kind: mla.MaskChunkedCausal, Window: 16},
}

// TestOracleGrid walks every dimension of a call, one at a time from a base
// and in rotation against the others, in both forms, against float64. Whatever
// no query may read is NaN: unowned pages, page tails, other layers, cached rows
// outside every window.
func TestOracleGrid(t *testing.T) {
	worlds := map[string]func(*world){
		"base":      func(w *world) {},
		"one head":  func(w *world) { w.cfg.Heads = 1 },
		"H 20":      func(w *world) { w.cfg.Heads = 20 },
		"V below N": func(w *world) { w.cfg.V = 8 },
		"no rope":   func(w *world) { w.cfg.Rope = 0 },
		"one of everything": func(w *world) {
			w.cfg.Heads, w.cfg.Nope, w.cfg.V, w.cfg.Latent, w.cfg.Rope = 1, 1, 1, 1, 2
		},
		"half rope":             func(w *world) { w.cfg.RopeStyle = mla.Half },
		"R above 256":           func(w *world) { w.cfg.Latent = 300 },
		"D above 256":           func(w *world) { w.cfg.Nope = 260 },
		"epsilon":               func(w *world) { w.cfg.Epsilon = 0.5 },
		"sink":                  func(w *world) { w.sink = true },
		"bf16":                  func(w *world) { w.kv, w.gamma, w.format = "bf16", "bf16", kvpaged.BF16 },
		"bf16, f32 gamma":       func(w *world) { w.kv, w.format = "bf16", kvpaged.BF16 },
		"f16":                   func(w *world) { w.kv, w.format = "f16", kvpaged.F16 },
		"f32 kv, bf16 gamma":    func(w *world) { w.gamma = "bf16" },
		"fp8 unit":              func(w *world) { w.format = kvpaged.FP8Unit },
		"fp8 tensor":            func(w *world) { w.format = kvpaged.FP8Tensor },
		"fp8 token":             func(w *world) { w.format, w.group = kvpaged.FP8Token, 20 },
		"fp8 token of 1":        func(w *world) { w.format, w.group, w.page = kvpaged.FP8Token, 1, 3 },
		"ds_mla":                func(w *world) { w.packed(kvpaged.DSMLA656, 512, 64) },
		"v4":                    func(w *world) { w.packed(kvpaged.V4_584, 448, 64) },
		"v4.1 interleaved":      func(w *world) { w.packed(kvpaged.V41_528Interleaved, 448, 64) },
		"v4.1 planar":           func(w *world) { w.packed(kvpaged.V41_528Planar, 512, 0) },
		"v4.1 fp4":              func(w *world) { w.packed(kvpaged.V41FP4_288Planar, 480, 32) },
		"weights e5m2":          func(w *world) { w.weight = weightKind{fp8.ElemE5M2, 128, 128} },
		"weights e4m3fnuz":      func(w *world) { w.weight = weightKind{fp8.ElemE4M3FNUZ, 64, 64} },
		"weights e5m2fnuz":      func(w *world) { w.weight = weightKind{fp8.ElemE5M2FNUZ, 32, 16} },
		"weights per row":       func(w *world) { w.weight = weightKind{fp8.ElemE4M3, 1, 72} },
		"weights per tensor":    func(w *world) { w.weight = weightKind{fp8.ElemE4M3, 0, 0} },
		"weights by element":    func(w *world) { w.weight = weightKind{fp8.ElemE4M3, 1, 1} },
		"weights straddle":      func(w *world) { w.weight = weightKind{fp8.ElemE4M3, 40, 72} },
		"weights f32":           func(w *world) { w.weight = weightKind{elem: fp8.ElemF32} },
		"weights bf16":          func(w *world) { w.weight = weightKind{elem: fp8.ElemBF16} },
		"weights f16":           func(w *world) { w.weight = weightKind{elem: fp8.ElemF16} },
		"page 1":                func(w *world) { w.page = 1 },
		"page 3, layer major":   func(w *world) { w.page, w.order = 3, kvpaged.LayerMajor },
		"page 16, page major":   func(w *world) { w.page, w.order = 16, kvpaged.PageMajor },
		"page 64":               func(w *world) { w.page = 64 },
		"page 128":              func(w *world) { w.page = 128 },
		"one token":             func(w *world) { w.cached, w.fresh = []int{0}, []int{1} },
		"partitions":            func(w *world) { w.cached, w.fresh, w.page = []int{1030, 511}, []int{2, 2}, 64 },
		"prompt of 130":         func(w *world) { w.cached, w.fresh = []int{0}, []int{130} },
		"many sequences":        func(w *world) { w.cached, w.fresh = []int{3, 0, 1, 64, 63, 65, 0}, []int{1, 1, 0, 1, 2, 1, 3} },
		"pairs":                 func(w *world) { w.cfg.Compute = mla.ComputeBF16 },
		"pairs, bf16":           func(w *world) { w.cfg.Compute, w.kv, w.gamma, w.format = mla.ComputeBF16, "bf16", "bf16", kvpaged.BF16 },
		"pairs, bf16, page 128": func(w *world) { w.cfg.Compute, w.format, w.page = mla.ComputeBF16, kvpaged.BF16, 128 },
		"pairs, partitions": func(w *world) {
			w.cfg.Compute, w.cached, w.fresh, w.page = mla.ComputeBF16, []int{1030, 511}, []int{2, 2}, 64
		},
		"pairs, prompt of 130":  func(w *world) { w.cfg.Compute, w.cached, w.fresh = mla.ComputeBF16, []int{0}, []int{130} },
		"pairs, D, R above 256": func(w *world) { w.cfg.Compute, w.cfg.Nope, w.cfg.Latent, w.cfg.Scale = mla.ComputeBF16, 260, 300, 0.05 },
		"pairs, odd sizes":      func(w *world) { w.cfg.Compute, w.cfg.Nope, w.cfg.V, w.cfg.Latent = mla.ComputeBF16, 13, 9, 31 },
		"pairs, V above R":      func(w *world) { w.cfg.Compute, w.cfg.V, w.cfg.Latent = mla.ComputeBF16, 60, 20 },
		"pairs, sink":           func(w *world) { w.cfg.Compute, w.sink, w.format = mla.ComputeBF16, true, kvpaged.F16 },
		"pairs, v4":             func(w *world) { w.cfg.Compute = mla.ComputeBF16; w.packed(kvpaged.V4_584, 448, 64) },
		"pairs, negative scale": func(w *world) { w.cfg.Compute, w.cfg.Scale = mla.ComputeBF16, -0.2 },
		"pairs, many sequences": func(w *world) {
			w.cfg.Compute, w.cached, w.fresh = mla.ComputeBF16, []int{3, 0, 1, 64, 63, 65, 0}, []int{1, 1, 0, 1, 2, 1, 3}
		},
		"pairs, weights per row": func(w *world) { w.cfg.Compute, w.weight = mla.ComputeBF16, weightKind{fp8.ElemE4M3, 1, 72} },
		"pairs, weights f32":     func(w *world) { w.cfg.Compute, w.weight = mla.ComputeBF16, weightKind{elem: fp8.ElemF32} },
		"pairs, weights bf16":    func(w *world) { w.cfg.Compute, w.weight = mla.ComputeBF16, weightKind{elem: fp8.ElemBF16} },
		"GLM-like 448 rows":      func(w *world) { w.cfg.Nope, w.cfg.V, w.weight = 48, 64, weightKind{fp8.ElemE4M3, 32, 32} },
		"largest scale needed":   func(w *world) { w.cfg.Scale = 3 },
		"negative scale":         func(w *world) { w.cfg.Scale = -0.2 },
	}
	for name, change := range worlds {
		for i, mask := range allMasks {
			heavy := strings.HasSuffix(name, "partitions") || strings.HasSuffix(name, "prompt of 130") || name == "H 20"
			if heavy && (testing.Short() || (i+len(name))%3 != 0) || testing.Short() && (i+len(name))%12 != 0 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%v", name, mask), func(t *testing.T) {
				w := small()
				w.seed = uint64(i + 1)
				w.cfg.Mask, w.unread = mask, true
				change(&w)
				m := w.make(t)
				p := m.plan(t, m.limits(), nil)
				for _, form := range bothForms {
					m.check(t, m.forward(t, p, form))
				}
			})
		}
	}
}

// packed is a cache of packed records, whose width is fixed.
func (w *world) packed(f kvpaged.Format, latent, rope int) {
	w.format, w.cfg.Latent, w.cfg.Rope, w.kv, w.gamma = f, latent, rope, "bf16", "bf16"
	w.cfg.Heads, w.cfg.Nope, w.cfg.V, w.cfg.Scale = 2, 16, 12, 0.05
	w.cached, w.fresh = []int{9, 0}, []int{3, 4}
}

// TestRows holds the stored rows to the contract: norm, rope, rounding.
func TestRows(t *testing.T) {
	for _, kind := range []string{"f32", "bf16", "f16"} {
		for _, gamma := range []string{"f32", "bf16"} {
			w := small()
			w.kv, w.gamma = kind, gamma
			w.format = map[string]kvpaged.Format{"f32": kvpaged.F32, "bf16": kvpaged.BF16, "f16": kvpaged.F16}[kind]
			m := w.make(t)
			m.forward(t, m.plan(t, m.limits(), nil), mla.FormAuto)
			call := m.oracle(t)
			step := map[string]float64{"f32": 2e-7, "bf16": 1.0 / 200, "f16": 1.0 / 1900}[kind]
			for b := range m.seqs {
				rows := m.stored(t, b)
				for pos := m.cached[b]; pos < m.cached[b]+m.fresh[b]; pos++ {
					tok := int(m.offsets[b]) + pos - m.cached[b]
					want := call.CacheRow(float64s(m.kvs[tok*w.width():(tok+1)*w.width()]), pos)
					for i, x := range want {
						require.InDelta(t, x, float64(rows[pos*w.width()+i]), 1e-6+step*max(x, -x), "%s/%s position %d value %d", kind, gamma, pos, i)
					}
				}
			}
		}
	}
}

// TestWeightsEntryPoints gives the same weights as KVB and as K, UK, UV: the
// same bits.
func TestWeightsEntryPoints(t *testing.T) {
	w := small()
	m := w.make(t)
	want := m.forward(t, m.plan(t, m.limits(), nil), mla.FormAuto)
	c := w.cfg
	whole := make([]float32, m.kvb.Rows()*c.Latent)
	for i := range m.kvb.Rows() {
		for j := range c.Latent {
			whole[i*c.Latent+j] = m.kvb.At(i, j)
		}
	}
	var uk, uv []fp8.Matrix
	for h := range c.Heads {
		r0 := h * (c.Nope + c.V)
		k, err := m.kvb.Slice(r0, r0+c.Nope)
		require.NoError(t, err)
		u := k.Transpose()
		v, err := m.kvb.Slice(r0+c.Nope, r0+c.Nope+c.V)
		require.NoError(t, err)
		uk, uv = append(uk, u), append(uv, v)
	}
	l, err := mla.New(c, mla.Weights{UK: uk, UV: uv, Gamma: rowsOf(w.gamma, m.gammas)})
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	old := m.layer_
	m.layer_ = l
	p, err := bind(l, m.limits(), nil)
	require.NoError(t, err)
	sameBits(t, want, m.forward(t, p, mla.FormAuto), "UK and UV")
	require.NoError(t, p.Close())
	m.layer_ = old
}
