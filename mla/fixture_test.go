package mla_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/bf16"
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestLevel(t *testing.T) { kerneltest.Level(t) }

// weightKind says how a fixture's kv_b_proj is stored.
type weightKind struct {
	elem   fp8.Elem
	bn, bk int // 0: per tensor
}

// world is everything a call needs, made from a seed: a layer, a cache whose
// every byte is NaN until something is written, sequences with cached rows, and
// the new tokens. The oracle sees the same numbers in float64.
type world struct {
	cfg    mla.Config
	weight weightKind
	gamma  string // "bf16" or "f32"
	kv     string // type of q, kv, out: "bf16", "f16" or "f32"
	format kvpaged.Format
	page   int
	order  kvpaged.Order
	layers int
	layer  int
	scale  float32 // of the cache, fp8_tensor
	group  int     // of the cache, fp8_token
	cached []int
	fresh  []int
	seed   uint64
	sink   bool
	// unread, if set, keeps the rows that no query sees as NaN in the cache.
	unread bool
}

// small is a layer of odd sizes; v differs from n, and no size is a multiple of
// a vector.
func small() world {
	return world{
		cfg:    mla.Config{Heads: 3, Nope: 24, Rope: 10, V: 40, Latent: 72, Scale: 0.17},
		weight: weightKind{fp8.ElemE4M3, 24, 40},
		gamma:  "f32", kv: "f32", format: kvpaged.F32, page: 5, layers: 2, layer: 1, scale: 0.037,
		cached: []int{0, 70, 3, 9}, fresh: []int{9, 5, 0, 1}, seed: 1,
	}
}

// made is a world come to life.
type made struct {
	world
	layer_   *mla.Layer
	cache    *kvpaged.Cache
	arena    []byte
	seqs     []*kvpaged.Seq
	kvb      fp8.Matrix
	gammas   []float32
	q, kvs   []float32 // values as the call sees them, rounded to their type
	freqs    []float32
	sinks    []float32
	offsets  []uint32
	tokens   int
	firstRow [][]float32 // per sequence, its cached rows before storing
	foreign  *kvpaged.Seq
}

func (w world) width() int { return w.cfg.Latent + w.cfg.Rope }

func (w world) longest() int {
	n := 1
	for i := range w.cached {
		n = max(n, w.cached[i]+w.fresh[i])
	}
	return n
}

func floats(r *rand.Rand, n int, scale float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * scale)
	}
	return x
}

// rounded rounds x to the type named.
func rounded(kind string, x []float32) []float32 {
	for i := range x {
		switch kind {
		case "bf16":
			x[i] = bf16.FromFloat32(x[i]).Float32()
		case "f16":
			x[i] = simd.F16ToF32(simd.F32ToF16(x[i]))
		}
	}
	return x
}

// rowsOf wraps values that are exact in the type named.
func rowsOf(kind string, x []float32) mla.Rows {
	if kind == "f32" {
		return mla.RowsF32(x)
	}
	u := make([]uint16, len(x))
	r := mla.RowsBF16(u)
	if kind == "f16" {
		r = mla.RowsF16(u)
	}
	r.Narrow(0, x)
	return r
}

func values(r mla.Rows) []float32 {
	x := make([]float32, r.Len())
	r.Widen(x, 0, len(x))
	return x
}

// matrix quantises or wraps x as w says.
func (w weightKind) matrix(t testing.TB, rows, cols int, x []float32) fp8.Matrix {
	t.Helper()
	var m fp8.Matrix
	var err error
	u := make([]uint16, len(x))
	switch w.elem {
	case fp8.ElemF32:
		m, err = fp8.PlainF32(rows, cols, x)
	case fp8.ElemBF16:
		mla.RowsBF16(u).Narrow(0, x)
		m, err = fp8.PlainBF16(rows, cols, u)
	case fp8.ElemF16:
		mla.RowsF16(u).Narrow(0, x)
		m, err = fp8.PlainF16(rows, cols, u)
	default:
		bn, bk := w.bn, w.bk
		if bn == 0 {
			bn, bk = rows, cols
		}
		m, err = fp8.Quantize(w.elem, rows, cols, x, bn, bk)
	}
	require.NoError(t, err)
	return m
}

// make brings the world to life.
func (w world) make(t testing.TB) *made {
	t.Helper()
	r := rand.New(rand.NewPCG(w.seed, 7))
	c := w.cfg
	m := &made{world: w}

	rows := c.Heads * (c.Nope + c.V)
	m.kvb = w.weight.matrix(t, rows, c.Latent, floats(r, rows*c.Latent, 1/math.Sqrt(float64(c.Latent))))
	m.gammas = rounded(w.gamma, floats(r, c.Latent, 0.3))
	for i := range m.gammas {
		m.gammas[i] = rounded(w.gamma, []float32{1 + m.gammas[i]})[0]
	}
	var err error
	m.layer_, err = mla.New(c, mla.Weights{KVB: m.kvb, Gamma: rowsOf(w.gamma, m.gammas)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.layer_.Close()) })

	m.offsets = []uint32{0}
	for _, n := range w.fresh {
		m.tokens += n
		m.offsets = append(m.offsets, uint32(m.tokens))
	}
	m.q = rounded(w.kv, floats(r, m.tokens*c.Heads*(c.Nope+c.Rope), 1))
	m.kvs = rounded(w.kv, floats(r, m.tokens*w.width(), 1))
	m.freqs = make([]float32, w.longest()*c.Rope)
	for i := range m.freqs {
		pos, pair := i/max(c.Rope, 1), i%max(c.Rope, 1)/2
		angle := float64(pos) * math.Pow(10000, -2*float64(pair)/float64(c.Rope))
		m.freqs[i] = float32(math.Cos(angle))
		if i%2 == 1 {
			m.freqs[i] = float32(math.Sin(angle))
		}
	}
	if w.sink {
		m.sinks = floats(r, c.Heads, 2)
	}
	m.firstRow = make([][]float32, len(w.cached))
	for b, n := range w.cached {
		m.firstRow[b] = floats(r, n*w.width(), 1)
	}
	m.openCache(t, r)
	return m
}

// openCache lays the cached rows into pages in a random order; all the rest of
// the arena is 0xFF, which is NaN in every format.
func (m *made) openCache(t testing.TB, r *rand.Rand) {
	t.Helper()
	pages := 3
	for b := range m.cached {
		pages += (m.cached[b] + m.fresh[b] + m.page - 1) / m.page
	}
	cfg := kvpaged.Config{Layers: m.layers, PageTokens: m.page, Width: m.width(), Format: m.format,
		Pages: pages, Order: m.order, Adopted: true}
	switch m.format {
	case kvpaged.FP8Tensor:
		cfg.Scale = m.scale
	case kvpaged.FP8Token:
		cfg.Group = m.group
	}
	n, err := kvpaged.ArenaBytes(cfg)
	require.NoError(t, err)
	m.arena = bytes.Repeat([]byte{0xFF}, int(n))
	cfg.Arena = m.arena
	m.cache, err = kvpaged.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.cache.Close()) })

	order := r.Perm(pages)
	for b, cached := range m.cached {
		need := (cached + m.fresh[b] + m.page - 1) / m.page
		table := make([]int32, need)
		for i := range table {
			table[i] = int32(order[i])
		}
		order = order[need:]
		s, err := m.cache.Adopt(table, 0, cached+m.fresh[b])
		require.NoError(t, err)
		rows := m.firstRow[b]
		if m.unread && m.fresh[b] > 0 {
			for i := range m.unseen(b) * m.width() {
				rows[i] = float32(math.NaN())
			}
		}
		if cached > 0 {
			require.NoError(t, s.WriteRows(m.layer, 0, rows))
			require.NoError(t, s.Commit(cached))
		}
		m.seqs = append(m.seqs, s)
	}
}

// unseen is how many leading cached rows no new token of sequence b sees.
func (m *made) unseen(b int) int {
	mask := oracle.Mask{Kind: maskKind(m.cfg.Mask), Window: m.cfg.Mask.Window}
	n := 0
	for n < m.cached[b] && !mask.Keep(m.cached[b], n) {
		n++
	}
	return n
}

func maskKind(m mla.Mask) string {
	m.Window = 1
	kind := m.String()
	for i, c := range kind {
		if c == ':' {
			return kind[:i]
		}
	}
	return kind
}

func (m *made) batch() mla.Batch {
	return mla.Batch{Cache: m.cache, Layer: m.layer, Seqs: m.seqs, Offsets: m.offsets,
		Freqs: mla.RowsF32(m.freqs), Sink: m.sinks}
}

// answer is what a Forward gives, in float32.
type answer struct{ out, lse, top []float32 }

// limits that just fit the world.
func (m *made) limits() mla.Limits {
	return mla.Limits{Tokens: max(m.tokens, 1), Seqs: max(len(m.seqs), 1), Context: m.longest()}
}

func (m *made) plan(t testing.TB, lim mla.Limits, pool *mla.Pool) *bound {
	t.Helper()
	p, err := bind(m.layer_, lim, pool)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// forward runs the world's batch in one form for all its sequences.
func (m *made) forward(t testing.TB, p *bound, form mla.Form) answer {
	t.Helper()
	b := m.batch()
	b.Forms = make([]mla.Form, len(m.seqs))
	for i := range b.Forms {
		b.Forms[i] = form
	}
	rows := m.tokens * m.cfg.Heads
	a := answer{lse: make([]float32, rows), top: make([]float32, rows)}
	b.LSE, b.MaxLogit = a.lse, a.top
	out := rowsOf(m.kv, make([]float32, rows*m.cfg.V))
	require.NoError(t, p.Forward(context.Background(), out, rowsOf(m.kv, m.q), rowsOf(m.kv, m.kvs), b))
	a.out = values(out)
	return a
}

// stored is the rows of sequence b as the cache now holds them, new ones
// included.
func (m *made) stored(t testing.TB, b int) []float32 {
	t.Helper()
	n := m.cached[b] + m.fresh[b]
	rows := make([]float32, n*m.width())
	if m.fresh[b] == 0 {
		return rows
	}
	v, err := m.seqs[b].Lease(m.layer, m.fresh[b])
	require.NoError(t, err)
	defer v.Release()
	v.Widen(rows, m.width(), 0, n)
	return rows
}

func float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// oracle describes the same call in float64, with the rows that are now in the
// cache.
func (m *made) oracle(t testing.TB) *oracle.Call {
	t.Helper()
	c := m.cfg
	w := make([]float32, m.kvb.Rows()*m.kvb.Cols())
	for i := range m.kvb.Rows() {
		for j := range m.kvb.Cols() {
			w[i*m.kvb.Cols()+j] = m.kvb.Code(i, j)
		}
	}
	w64 := float64s(w)
	if m.kvb.Scaled() { // code times scale is exact in float64
		for i := range m.kvb.Rows() {
			for j := range m.kvb.Cols() {
				w64[i*m.kvb.Cols()+j] *= float64(m.kvb.Scale(i, j))
			}
		}
	}
	eps := float64(c.Epsilon)
	if eps == 0 {
		eps = float64(mla.DefaultEpsilon)
	}
	call := &oracle.Call{
		Config: oracle.Config{
			Heads: c.Heads, Nope: c.Nope, Rope: c.Rope, V: c.V, Latent: c.Latent,
			Scale: float64(c.Scale), Epsilon: eps,
			Mask:     oracle.Mask{Kind: maskKind(c.Mask), Window: c.Mask.Window},
			HalfRope: c.RopeStyle == mla.Half, Gamma: float64s(m.gammas),
			Head: oracle.SplitKVB(w64, c.Nope, c.V, c.Latent),
		},
		Q: float64s(m.q), Freqs: float64s(m.freqs), Cached: m.cached,
	}
	if m.sinks != nil {
		call.Sink = float64s(m.sinks)
	}
	if m.gamma == "bf16" && m.kv != "f32" {
		call.NormRound = func(x float64) float64 { return float64(bf16.FromFloat32(float32(x)).Float32()) }
	}
	for b := range m.seqs {
		call.Rows = append(call.Rows, float64s(m.stored(t, b)))
	}
	for _, o := range m.offsets {
		call.Offsets = append(call.Offsets, int(o))
	}
	return call
}

// check compares an answer with the oracle, row by row, within the bound of
// arithmetic.md for a whole layer and the rounding of the output's type.
func (m *made) check(t testing.TB, a answer) {
	t.Helper()
	m.checkWith(t, m.oracle(t), a)
}

// checkWith is check against an oracle that a test has prepared.
func (m *made) checkWith(t testing.TB, call *oracle.Call, a answer) {
	t.Helper()
	step := map[string]float64{"f32": 0, "bf16": 1.0 / 256, "f16": 1.0 / 2048}[m.kv]
	v := m.cfg.V
	all := call.All()
	for row, want := range all {
		at := fmt.Sprintf("token %d head %d", row/m.cfg.Heads, row%m.cfg.Heads)
		bound := m.layerBound(want) + 1e-38
		for i, x := range want.Out {
			got := float64(a.out[row*v+i])
			if math.IsNaN(x) {
				require.True(t, math.IsNaN(got), "%s: out[%d] is %v, want NaN", at, i, got)
				continue
			}
			require.LessOrEqual(t, math.Abs(got-x), bound+math.Abs(x)*step+step*0x1p-24, "%s: out[%d] is %v, want %v", at, i, got, x)
		}
		m.sameLogit(t, want.LSE, a.lse[row], want.MaxAbs, at+": lse")
		m.sameLogit(t, want.MaxLogit, a.top[row], want.MaxAbs, at+": max logit")
	}
}

// computes are both. In the second one the layers of these tests may err by pairLayer of a row's largest size: their
// rows are short, and their roundings have few others to cancel with.
var computes = []mla.Compute{mla.ComputeF32, mla.ComputeBF16}

const pairLayer = 0x1p-6

func (m *made) layerBound(want oracle.Row) float64 {
	if m.cfg.Compute == mla.ComputeBF16 {
		return pairLayer * want.Size()
	}
	return want.LayerBound()
}

func (m *made) sameLogit(t testing.TB, want float64, got float32, largest float64, what string) {
	t.Helper()
	if m.cfg.Compute != mla.ComputeBF16 || math.IsNaN(want) || math.IsInf(want, 0) {
		sameLogit(t, want, got, largest, what)
		return
	}
	require.InDelta(t, want, float64(got), pairLayer*(largest+1), what)
}

func sameLogit(t testing.TB, want float64, got float32, largest float64, what string) {
	t.Helper()
	if math.IsNaN(want) || math.IsInf(want, 0) {
		require.True(t, kerneltest.SameBits(float32(want), got), "%s is %v, want %v", what, got, want)
		return
	}
	require.InDelta(t, want, float64(got), 2*(2e-6+1.2e-7*largest)+1e-6*math.Abs(want), what)
}

// allocsPerRun is testing.AllocsPerRun at its least of a few times: in one of them the
// collector may free what other tests dropped, and that allocates, too.
func allocsPerRun(runs int, f func()) float64 {
	least := math.Inf(1)
	for range 4 {
		if least = min(least, testing.AllocsPerRun(runs, f)); least == 0 {
			break
		}
	}
	return least
}

// sameBits fails unless two answers are equal bit for bit, NaN as a class.
func sameBits(t testing.TB, want, got answer, what string) {
	t.Helper()
	for _, s := range []struct {
		name string
		a, b []float32
	}{{"out", want.out, got.out}, {"lse", want.lse, got.lse}, {"max logit", want.top, got.top}} {
		require.Equal(t, len(s.a), len(s.b), what)
		for i := range s.a {
			if !kerneltest.SameBits(s.a[i], s.b[i]) {
				require.Failf(t, "bits differ", "%s: %s[%d] is %v (%08x), want %v (%08x)", what, s.name, i,
					s.b[i], math.Float32bits(s.b[i]), s.a[i], math.Float32bits(s.a[i]))
			}
		}
	}
}
