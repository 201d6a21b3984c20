package mla_test

import (
	"math"
	"testing"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// geometry is a small call of any kind that the package has, drawn from bytes. What it holds is
// the same for every variant in which it is run: see variants in differential_test.go.
type geometry struct {
	blockWorld
	call    call
	forms   int // of all sequences; len(formsOf): another for each
	pages   [2]int
	buffers [2]int
	class   kerneltest.Class // of the caller's values
	freqsOf string           // type of Batch.Freqs
	sinkOf  int
	odd     int // added to the width of a core's rows, whose rope part needs no pairs

	lists   int // noLists, logicalLists, physicalLists
	shared  bool
	stride  int
	lengths mla.TopKPer // TopKAuto: no lengths
	extra   bool
	second  kvpaged.Format
	xstride int

	headMajor  bool // of Core.Prefill
	padK, padV int

	workers int    // that did work in one of the variants
	checked bool   // against float64
	hash    string // of the outcome
}

const (
	noLists = iota
	logicalLists
	physicalLists
)

var formsOf = []mla.Form{mla.FormAuto, mla.FormAbsorbed, mla.FormExpanded}

// The values of the sinks.
const (
	noSinks = iota
	finiteSinks
	withoutOne // the first is -Inf
	withAll    // the first is +Inf, which makes the outputs of its head 0
)

// call is a kind of call. prepare makes what all variants share.
type call struct {
	name    string
	core    bool // queries come absorbed or expanded, and nothing is written to the cache
	prepare func(g *geometry, t testing.TB) run
}

// run computes one variant of a call.
type run func(t testing.TB, v variant) outcome

// calls are drawn with equal chances; what stands twice, twice as often.
var calls = []call{
	{"Layer.Forward", false, (*geometry).layerCall},
	{"Block.Forward", false, (*geometry).blockCall},
	{"Core.Decode", true, (*geometry).decodeCall},
	{"Core.SparseDecode", true, (*geometry).sparseDecodeCall},
	{"Core.SparsePrefill", true, (*geometry).sparsePrefillCall},
	{"Core.Prefill", true, (*geometry).prefillCall},
	{"Layer.Forward", false, (*geometry).layerCall},
	{"Block.Forward", false, (*geometry).blockCall},
}

// weightKinds are the ways in which a projection is stored. Blocks are cut by heads as they come.
var weightKinds = []weightKind{
	{fp8.ElemE4M3, 5, 7}, {fp8.ElemE4M3, 24, 40}, {elem: fp8.ElemBF16}, {fp8.ElemE4M3, 1, 1 << 10},
	{elem: fp8.ElemE4M3}, {elem: fp8.ElemF32}, {fp8.ElemE5M2, 128, 128}, {elem: fp8.ElemF16},
	{fp8.ElemE4M3FNUZ, 3, 32}, {fp8.ElemE5M2FNUZ, 64, 9}, {fp8.ElemE4M3, 1, 1},
}

// dimensions are all that a geometry is drawn from, a byte or more each. To add a compute, a
// format, a mask or a kind of call, add it to the table that its row names (computes,
// formats, allMasks, calls, weightKinds); to add a dimension, add a row at the end, so that the
// bytes of old corpora mean what they meant. A byte of 0, and so bytes that are not there,
// draws the first value of a row: let that be the simplest one.
var dimensions = []struct {
	name string
	draw func(g *geometry, d *draw)
}{
	{"call", func(g *geometry, d *draw) { g.call = one(d, calls...) }},
	{"compute", func(g *geometry, d *draw) { g.cfg.Compute = one(d, computes...) }},
	{"latent", func(g *geometry, d *draw) {
		g.cfg.Latent = one(d, 1, 16, 17, 31, 33, 48, 2, 15, 32, 47, 65, 257)
	}},
	{"forms", func(g *geometry, d *draw) { g.forms = d.below(len(formsOf) + 1) }},
	{"heads", func(g *geometry, d *draw) { g.cfg.Heads = 1 + d.below(5) }},
	{"nope", func(g *geometry, d *draw) { g.cfg.Nope = one(d, 1, 2, 3, 8, 13, 24) }},
	{"rope", func(g *geometry, d *draw) { g.cfg.Rope = one(d, 0, 2, 4, 6, 10, 16) }},
	{"v", func(g *geometry, d *draw) { g.cfg.V = one(d, 1, 2, 3, 8, 9, 17, 40) }},
	{"sequences", func(g *geometry, d *draw) {
		n := 1 + d.below(4)
		for i := range 4 {
			cached := one(d, 0, 1, 2, 5, 16, 17, 33, 63, 64, 70, 514)
			fresh := one(d, 1, 2, 3, 0, 5, 9, 17, 70)
			if i < n {
				g.cached, g.fresh = append(g.cached, cached), append(g.fresh, fresh)
			}
		}
	}},
	{"mask", func(g *geometry, d *draw) {
		g.cfg.Mask.Kind, g.cfg.Mask.Window = one(d, allMasks...).Kind, 1+d.below(9)
	}},
	{"format", func(g *geometry, d *draw) {
		// Formats whose rows have one width make larger calls: one in eight.
		f, fixed := one(d, formats...), d.below(8) == 1
		for i := 0; ofAnyWidth(f.format) == fixed; i++ {
			f = formats[i]
		}
		g.format = f.format
		if fixed {
			g.cfg.Latent, g.cfg.Rope = f.latent, f.rope
		}
		g.group, g.scale = 1+d.below(20), 0.037
	}},
	{"pages", func(g *geometry, d *draw) {
		g.pages = one(d, [2]int{3, 16}, [2]int{1, 5}, [2]int{16, 7}, [2]int{64, 3}, [2]int{2, 128})
		g.order = one(d, kvpaged.LayerMajor, kvpaged.PageMajor)
		g.layers = 1 + d.below(3)
		g.layer = d.below(3) % g.layers
	}},
	{"buffers", func(g *geometry, d *draw) {
		g.buffers = one(d, [2]int{0, 1}, [2]int{0, 7}, [2]int{64, 5}, [2]int{512, 63})
	}},
	{"weights", func(g *geometry, d *draw) {
		for _, to := range []*weightKind{&g.weight, &g.qa, &g.qb, &g.kva, &g.o} {
			*to = one(d, weightKinds...)
		}
	}},
	{"quantised activations", func(g *geometry, d *draw) {
		g.cfg.ActQuant = one(d, mla.ActNone, mla.ActNone, mla.ActDynamic)
		g.cfg.ActBlockQ, g.cfg.ActBlockLatent = one(d, 1, 3, 8, 32), one(d, 0, 5, 16, 128)
	}},
	{"types", func(g *geometry, d *draw) {
		g.kv, g.gamma = one(d, "f32", "bf16", "f16"), one(d, "f32", "bf16", "f16")
		g.freqsOf = one(d, "f32", "bf16")
	}},
	{"norm", func(g *geometry, d *draw) {
		g.cfg.NormRounding = one(d, mla.NormAuto, mla.NormAsGamma, mla.NormNone)
		g.cfg.LatentScale, g.cfg.Epsilon = one[float32](d, 0, 1.7), one[float32](d, 0, 0.5)
	}},
	{"rope style", func(g *geometry, d *draw) { g.cfg.RopeStyle = one(d, mla.Interleaved, mla.Half) }},
	{"form rule", func(g *geometry, d *draw) {
		g.cfg.FormRule = one(d, mla.FormRulePerSequence, mla.FormRuleMAX)
		g.cfg.MAXThreshold = one(d, 0, 2)
	}},
	{"scale", func(g *geometry, d *draw) { g.cfg.Scale = one[float32](d, 1, -1, 3) }},
	{"sinks", func(g *geometry, d *draw) {
		g.sinkOf = one(d, noSinks, finiteSinks, withoutOne, withAll)
		g.sink = g.sinkOf != noSinks
	}},
	{"lists", func(g *geometry, d *draw) {
		g.lists = one(d, noLists, logicalLists, physicalLists, noLists)
		g.shared = d.below(3) == 1
		g.stride = one(d, 7, 1, 2, 17, 33, 70, 0, 520)
		g.lengths = one(d, mla.TopKAuto, mla.TopKPerSequence, mla.TopKPerToken)
		g.extra = d.below(3) == 1
		g.second, g.xstride = one(d, formats...).format, one(d, 5, 1, 66, 0)
	}},
	{"core", func(g *geometry, d *draw) {
		g.odd, g.headMajor = d.below(2), d.below(2) == 1
		g.padK, g.padV = one(d, 0, 1, 16), one(d, 0, 3, 16)
	}},
	{"block", func(g *geometry, d *draw) {
		g.hidden, g.lora, g.bias = one(d, 1, 16, 17, 33, 52), one(d, 0, 1, 9, 27), d.below(2) == 1
		g.qScale, g.beta, g.context = one[float32](d, 0, 1.3), one[float32](d, 0, 0.1), 1+d.below(20)
	}},
	{"values", func(g *geometry, d *draw) {
		// One half of all is plain.
		g.class = kerneltest.Classes[0]
		if i := d.below(2 * len(kerneltest.Classes)); i < len(kerneltest.Classes) {
			g.class = kerneltest.Classes[i]
		}
	}},
	{"seed", func(g *geometry, d *draw) { g.seed = uint64(d.below(256)) }},
}

// draw takes choices from bytes.
type draw struct{ left []byte }

// below is a number in [0, n), 0 where no byte is left.
func (d *draw) below(n int) int {
	if len(d.left) == 0 {
		return 0
	}
	b := d.left[0]
	d.left = d.left[1:]
	return int(b) % n
}

func one[T any](d *draw, of ...T) T { return of[d.below(len(of))] }

// geometryOf draws a geometry. Every one is a call that is computed: what does not fit together
// is settled, not refused.
func geometryOf(data []byte) *geometry {
	g, d := &geometry{}, &draw{data}
	for _, dim := range dimensions {
		dim.draw(g, d)
	}
	g.settle()
	return g
}

// ofAnyWidth reports whether rows of a format may have any number of values.
func ofAnyWidth(f kvpaged.Format) bool {
	return fits(f, 3) && fits(f, 4)
}

func fits(f kvpaged.Format, width int) bool {
	cfg := kvpaged.Config{Layers: 1, PageTokens: 1, Width: width, Format: f, Pages: 1}
	if f.Scales() == kvpaged.ScaleToken {
		cfg.Group = 1
	}
	_, err := kvpaged.ArenaBytes(cfg)
	return err == nil
}

// settle makes the choices fit together, and the call small.
func (g *geometry) settle() {
	c := &g.cfg
	if c.Mask.Kind < mla.MaskSlidingWindowCausal {
		c.Mask.Window = 0
	}
	if g.weight.elem > fp8.ElemE5M2FNUZ || g.call.core {
		c.ActQuant = mla.ActNone // wants weights with scales
	}
	if g.call.core {
		if ofAnyWidth(g.format) {
			c.Rope += g.odd
		} else {
			c.Latent, c.Rope = g.width()-g.odd, g.odd
		}
	}
	terms := c.Nope + c.Rope
	if g.call.core {
		terms = g.width()
	}
	c.Scale /= float32(math.Sqrt(float64(terms)))
	switch g.call.name {
	case "Core.SparseDecode":
		g.lists = physicalLists
		for b := range g.fresh { // as many for each sequence
			g.fresh[b] = min(g.fresh[0], 4)
		}
	case "Core.SparsePrefill":
		g.lists, g.shared, g.extra = physicalLists, false, false
		g.cached, g.fresh = g.cached[:1], g.fresh[:1]
		if g.lengths == mla.TopKPerSequence {
			g.lengths = mla.TopKPerToken
		}
	case "Core.Prefill":
		g.lists = noLists
	}
	if g.lists == noLists {
		g.extra = false
	} else if g.forms > 1 {
		g.forms = 1 // lists want the absorbed form
	}
	if g.lengths == mla.TopKPerToken && g.shared {
		g.lengths = mla.TopKPerSequence
	}
	if g.extra && !fits(g.second, g.width()) {
		g.second = kvpaged.F16
	}
	const most = 1 << 20 // fused multiply-adds, or about that
	if g.work() > most {
		for b := range g.cached {
			g.cached[b], g.fresh[b] = min(g.cached[b], 17), min(g.fresh[b], 3)
		}
		g.stride, g.xstride = min(g.stride, 33), min(g.xstride, 5)
	}
	// The queries stand at the last positions. Without a mask or lists positions play no part, and there
	// may be fewer keys than queries.
	if g.call.core && (g.cfg.Mask.Kind != mla.MaskNull || g.lists != noLists) {
		for b := range g.cached {
			g.cached[b] += g.fresh[b]
		}
	}
	g.unread = g.lists == noLists && !g.call.core
	g.page = g.pages[0]
}

// work estimates what the call costs.
func (g *geometry) work() int {
	c, n := g.cfg, 0
	for b := range g.cached {
		keys := g.cached[b] + g.fresh[b]
		if g.lists != noLists {
			keys = g.stride + g.xstride
		}
		n += g.fresh[b] * c.Heads * keys * (g.width() + c.Latent)
		n += (g.fresh[b] + keys) * c.Heads * (c.Nope + c.V) * c.Latent
	}
	return n
}
