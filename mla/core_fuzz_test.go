package mla_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/oracle"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// coreWorld is a core of fuzzed geometry, and what makes the arguments of its calls.
type coreWorld struct {
	t                   *testing.T
	in                  *hostileBytes
	r                   *rand.Rand
	heads, width, value int
	scale               float32
	mask                mla.Mask
	compute             mla.Compute
	lim                 mla.Limits
	core                *boundCore
	spoiled             bool // an argument is not what it should be
}

// newCoreWorld makes a core, on one worker or on several, whose workspace is NaN.
func newCoreWorld(t *testing.T, data []byte) *coreWorld {
	in := &hostileBytes{data}
	w := &coreWorld{t: t, in: in, r: rand.New(rand.NewPCG(uint64(in.next()), 1))}
	w.heads, w.value = 1+w.size(5), 1+w.size(37)
	w.width = w.value + w.size(9)
	w.scale = [...]float32{0.2, -0.15, 0.01, 0.7}[w.size(4)]
	w.mask = [...]mla.Mask{
		{}, {Kind: mla.MaskNull}, {Kind: mla.MaskSlidingWindowCausal, Window: 1 + w.size(20)},
		{Kind: mla.MaskSlidingWindowNonCausal, Window: 1 + w.size(20)}, {Kind: mla.MaskChunked, Window: 1 + w.size(20)},
		{Kind: mla.MaskChunkedCausal, Window: math.MaxInt - w.size(2)},
	}[w.size(6)]
	w.compute = computes[w.size(2)]
	w.lim = mla.Limits{Tokens: 40, Seqs: 4, Context: 200}
	pool := mla.NewPool(1 + w.size(3))
	var err error
	w.core, err = newCore(mla.CoreConfig{Heads: w.heads, Width: w.width, V: w.value, Scale: w.scale, Mask: w.mask, Compute: w.compute}, w.lim, pool)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, w.core.Close())
		require.NoError(t, pool.Close())
	})
	w.core.Poison()
	return w
}

// size is a fuzzed number below n.
func (w *coreWorld) size(n int) int { return int(w.in.next()) % n }

// spoils reports, one time in many, that an argument is to be spoiled.
func (w *coreWorld) spoils() bool {
	if w.in.next() < 232 {
		return false
	}
	w.spoiled = true
	return true
}

// rows are n values of some type, among which may be hostile ones; or fewer or more.
func (w *coreWorld) rows(n int) (mla.Rows, []float32) {
	kind := [...]string{"f32", "bf16", "f16"}[w.size(3)]
	x := w.floats(n)
	rounded(kind, x)
	return rowsOf(kind, x), x
}

func (w *coreWorld) floats(n int) []float32 {
	if w.spoils() {
		n = max(n+w.size(5)-2, 0)
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(w.r.IntN(257)-128) / 64
	}
	for k := w.size(6); k > 3 && n > 0; k-- {
		x[w.r.IntN(n)] = w.in.float()
	}
	return x
}

// out is room for n values, of some type, or for fewer or more.
func (w *coreWorld) out(n int) mla.Rows {
	if w.spoils() {
		n = max(n+w.size(5)-2, 0)
	}
	return rowsOf([...]string{"f32", "bf16", "f16"}[w.size(3)], make([]float32, n))
}

// logits is room for n, or nothing, or for fewer or more.
func (w *coreWorld) logits(n int) []float32 {
	if w.size(4) == 0 {
		return nil
	}
	if w.spoils() {
		n = max(n+w.size(5)-2, 0)
	}
	return make([]float32, n)
}

func (w *coreWorld) sink() []float32 {
	if w.size(2) == 0 {
		return nil
	}
	return w.floats(w.heads)
}

// cuts are borders of at most n sequences of at most most each.
func (w *coreWorld) cuts(n, most int) []uint32 {
	at := []uint32{0}
	for range n {
		at = append(at, at[len(at)-1]+uint32(w.size(most+1)))
	}
	return at
}

// spoilCuts changes a border, or how many there are.
func (w *coreWorld) spoilCuts(at *[]uint32) {
	if !w.spoils() {
		return
	}
	*at = slices.Clone(*at)
	switch n := len(*at); w.size(4) {
	case 0:
		(*at)[w.size(n)] = uint32(w.in.number())
	case 1:
		*at = (*at)[:n-1]
	case 2:
		*at = append(*at, (*at)[n-1]+uint32(w.size(3)))
	case 3:
		(*at)[w.size(n)]++
	}
}

// ended looks at the error of a call: any of the package's for arguments that are spoiled, none else.
func (w *coreWorld) ended(err error) (answered bool) {
	if err == nil {
		return true
	}
	known := slices.ContainsFunc([]error{
		mla.ErrShape, mla.ErrLimit, mla.ErrUnmapped, kvpaged.ErrBusy, kvpaged.ErrClosed, kvpaged.ErrRange,
	}, func(sentinel error) bool { return errors.Is(err, sentinel) })
	if !w.spoiled || !known {
		w.t.Fatalf("spoiled %v: %v", w.spoiled, err)
	}
	return false
}

// tame reports values of ordinary size, of which no bound is passed by rounding alone.
func tame(x []float32) bool {
	return !slices.ContainsFunc(x, func(v float32) bool { return !(v >= -4 && v <= 4) })
}

// rowAnswer is one row's part of an answer; lse and top may be nil.
type rowAnswer struct {
	out      []float32
	step     float64 // what the type of out rounds by
	lse, top *float32
}

// check holds a row to float64, if nothing that it sees is hostile: then nothing that it must not see may be in it.
func (w *coreWorld) check(what string, q []float32, key, value func(int) []float32, visible []int, sink []float32, head int, got rowAnswer) {
	w.t.Helper()
	logit := oracle.NoSink
	if sink != nil {
		logit = float64(sink[head])
	}
	if !tame(q) || math.IsNaN(logit) {
		return
	}
	sum, first := 0.0, []float32(nil) // the largest sum of the sizes of a score's terms
	for _, j := range visible {
		k := key(j)
		if first = value(j); !tame(k) || !tame(first) {
			return
		}
		s := 0.0
		for c, x := range k {
			s += math.Abs(float64(x) * float64(q[c]) * float64(w.scale))
		}
		sum = max(sum, s)
	}
	if len(visible) == 0 {
		for _, x := range got.out {
			require.Zero(w.t, x, "%s saw nothing", what)
		}
		require.True(w.t, got.lse == nil || math.IsInf(float64(*got.lse), 1), "%s saw nothing", what)
		require.True(w.t, got.top == nil || math.IsInf(float64(*got.top), -1), "%s saw nothing", what)
		return
	}
	bound, least := 2*(2e-6+1.2e-7*sum)+1e-6, 0x1p-149 // what an output is rounded to
	if w.compute == mla.ComputeBF16 {
		bound, least = 0x1p-7*sum+0x1p-6, 0x1p-51 // values below 2^-52 are read as 0
	}
	abs := func(j int) []float64 {
		v := float64s(value(j))
		for i := range v {
			v[i] = math.Abs(v[i])
		}
		return v
	}
	key64 := func(j int) []float64 { return float64s(key(j)) }
	want := oracle.AttendApart(float64s(q), key64, func(j int) []float64 { return float64s(value(j)) }, visible, float64(w.scale), logit, len(first))
	positive := oracle.AttendApart(float64s(q), key64, abs, visible, float64(w.scale), logit, len(first))
	for i, x := range want.Out {
		require.InDelta(w.t, x, got.out[i], bound*positive.Largest()+least+got.step*math.Abs(x)+got.step*0x1p-14, "%s: out[%d]", what, i)
	}
	if got.lse != nil {
		require.InDelta(w.t, want.LSE, *got.lse, bound*(1+math.Abs(want.LSE)), "%s: lse", what)
	}
	if got.top != nil {
		require.InDelta(w.t, want.MaxLogit, *got.top, bound*(1+math.Abs(want.MaxLogit)), "%s: max logit", what)
	}
}

// of is row number row of an answer, at lse of its logits.
func (w *coreWorld) of(out mla.Rows, outValues []float32, lse, top []float32, row, at int) rowAnswer {
	a := rowAnswer{out: outValues[row*w.value:][:w.value], step: map[string]float64{"f32": 0, "bf16": 0x1p-8, "f16": 0x1p-11}[out.Kind().String()]}
	if lse != nil {
		a.lse = &lse[at]
	}
	if top != nil {
		a.top = &top[at]
	}
	return a
}

// cache is one of n rows, by physical index, in pages of fuzzed size, and the rows as they are in it.
func (w *coreWorld) cache(n int) (*kvpaged.Cache, []float32, *kvpaged.Seq) {
	page := 1 + w.size(9)
	cfg := kvpaged.Config{
		Layers: 1, PageTokens: page, Width: w.width, Pages: max(1, (n+page-1)/page), Adopted: true,
		Format: [...]kvpaged.Format{kvpaged.F32, kvpaged.BF16, kvpaged.F16}[w.size(3)],
	}
	c, err := kvpaged.New(cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, c.Close()) })
	table := make([]int32, (n+page-1)/page)
	for i := range table {
		table[i] = int32(i)
	}
	s, err := c.Adopt(table, 0, n)
	require.NoError(w.t, err)
	rows := make([]float32, n*w.width)
	for i := range rows {
		rows[i] = float32(w.r.IntN(257)-128) / 64
	}
	for k := w.size(6); k > 3 && n > 0; k-- {
		rows[w.r.IntN(len(rows))] = w.in.float()
	}
	if n > 0 {
		require.NoError(w.t, s.WriteRows(0, 0, rows))
		require.NoError(w.t, s.Commit(n))
		require.NoError(w.t, s.ReadRows(rows, 0, 0, n))
	}
	return c, rows, s
}

// fuzzSeeds are inputs of some length for the targets of a core: plain ones and spoiled ones.
func fuzzSeeds(f *testing.F) {
	for i := range 40 {
		r := rand.New(rand.NewPCG(uint64(i), 77))
		data := make([]byte, 60)
		for k := range data {
			data[k] = byte(r.IntN(256))
			if i%2 == 0 {
				data[k] %= 230 // nothing is spoiled
			}
		}
		f.Add(data)
	}
}

// FuzzCoreDecode gives Core.Decode batches of any lengths and masks, some of them spoiled.
func FuzzCoreDecode(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newCoreWorld(t, data)
		n := w.size(5)
		offsets := w.cuts(n, 7)
		cache, rows, whole := w.cache(w.size(150))
		page := cache.Config().PageTokens
		b := mla.Batch{Cache: cache, Sink: w.sink()}
		firstRow := make([]int, n)
		for i := range n { // sequences that share the rows, from some page on
			from := w.size(len(whole.Pages()) + 1)
			length := whole.Len() - from*page
			if length <= 0 {
				from, length = 0, 0
			}
			s, err := cache.Adopt(whole.Pages()[from:], length, 0)
			require.NoError(t, err)
			b.Seqs, firstRow[i] = append(b.Seqs, s), from*page
			if queries := int(offsets[i+1] - offsets[i]); queries > length && w.mask.Kind != mla.MaskNull {
				w.spoiled = true
			}
		}
		if int(offsets[n]) > w.lim.Tokens {
			w.spoiled = true
		}
		tokens := int(offsets[n])
		q, qs := w.rows(tokens * w.heads * w.width)
		out := w.out(tokens * w.heads * w.value)
		b.LSE, b.MaxLogit, b.Offsets = w.logits(tokens*w.heads), w.logits(tokens*w.heads), offsets
		w.spoilCuts(&b.Offsets)
		if w.spoils() {
			switch k := w.size(6); {
			case k == 0:
				b.Layer = int(w.in.number())
				w.spoiled = true
			case k == 1:
				b.Cache = nil
			case k == 2 && n > 0:
				b.Seqs[w.size(n)] = nil
			case k == 3 && n > 0:
				require.NoError(t, b.Seqs[w.size(n)].Free())
			case k == 4:
				out = q
			case k == 5:
				b.LSE = b.MaxLogit
			}
		}
		if !w.ended(w.core.Decode(nil, out, q, b)) {
			return
		}
		got, mask := values(out), oracle.Mask{Kind: maskKind(w.mask), Window: w.mask.Window}
		for i := range b.Seqs {
			first, end, keys := int(b.Offsets[i]), int(b.Offsets[i+1]), b.Seqs[i].Len()
			key := func(j int) []float32 { return rows[(firstRow[i]+j)*w.width:][:w.width] }
			for tok := first; tok < end; tok++ {
				for h := range w.heads {
					row := tok*w.heads + h
					w.check(fmt.Sprintf("sequence %d, query %d, head %d", i, tok, h), qs[row*w.width:][:w.width], key,
						func(j int) []float32 { return key(j)[:w.value] }, mask.Visible(keys-end+tok, keys), b.Sink, h, w.of(out, got, b.LSE, b.MaxLogit, row, row))
				}
			}
		}
	})
}

// FuzzCorePrefill gives Core.Prefill batches and layouts, some of them spoiled.
func FuzzCorePrefill(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newCoreWorld(t, data)
		n := 1 + w.size(4)
		offsets, ends := w.cuts(n, 9), w.cuts(n, 90)
		if n == 4 && w.size(2) == 0 { // rows enough for several tiles of scores
			n, offsets, ends = 1, []uint32{0, 40}, []uint32{0, uint32(40 + w.size(100))}
		}
		a := &mla.PrefillArgs{Offsets: offsets, Keys: ends, Sink: w.sink()}
		tokens, keys := int(offsets[n]), int(ends[n])
		nk, nv := keys*w.heads*w.width, keys*w.heads*w.value
		switch gap := w.size(3); w.size(3) {
		case 1: // heads outside
			a.LdK, a.StrideK, a.LdV, a.StrideV = w.width, keys*w.width, w.value, keys*w.value
		case 2: // room between rows
			a.LdK, a.StrideK, nk = w.heads*w.width+gap, w.width, keys*(w.heads*w.width+gap)
			a.LdV, a.StrideV, nv = w.heads*w.value+gap, w.value, keys*(w.heads*w.value+gap)
		}
		one := n == 1 && w.size(2) == 0
		if one {
			a.Offsets, a.Keys = nil, nil
		}
		for i := range n {
			if offsets[i+1]-offsets[i] > ends[i+1]-ends[i] && w.mask.Kind != mla.MaskNull {
				w.spoiled = true
			}
		}
		q, qs := w.rows(tokens * w.heads * w.width)
		k, ks := w.rows(nk)
		v, vs := w.rows(nv)
		out := w.out(tokens * w.heads * w.value)
		a.LSE, a.MaxLogit = w.logits(tokens*w.heads), w.logits(tokens*w.heads)
		if !one {
			w.spoilCuts(&a.Offsets)
			w.spoilCuts(&a.Keys)
		}
		strange := false
		if w.spoils() {
			switch w.size(4) {
			case 0:
				*[...]*int{&a.LdK, &a.StrideK, &a.LdV, &a.StrideV}[w.size(4)] = int(w.in.number())
				strange = true
			case 1:
				out = q
			case 2:
				a.LSE = a.MaxLogit
			case 3:
				a.Offsets = nil
			}
		}
		if !w.ended(w.core.Prefill(nil, out, q, k, v, a)) || one && (strange || w.spoiled) {
			return
		}
		or := func(x, y int) int {
			if x == 0 {
				return y
			}
			return x
		}
		ldk, sk := or(a.LdK, w.heads*w.width), or(a.StrideK, w.width)
		ldv, sv := or(a.LdV, w.heads*w.value), or(a.StrideV, w.value)
		if one {
			a.Offsets, a.Keys = offsets, ends
		}
		got, mask := values(out), oracle.Mask{Kind: maskKind(w.mask), Window: w.mask.Window}
		for i := range len(a.Offsets) - 1 {
			first, end, from, keys := int(a.Offsets[i]), int(a.Offsets[i+1]), int(a.Keys[i]), int(a.Keys[i+1]-a.Keys[i])
			for tok := first; tok < end; tok++ {
				for h := range w.heads {
					row := tok*w.heads + h
					w.check(fmt.Sprintf("sequence %d, query %d, head %d", i, tok, h), qs[row*w.width:][:w.width],
						func(j int) []float32 { return ks[(from+j)*ldk+h*sk:][:w.width] }, func(j int) []float32 { return vs[(from+j)*ldv+h*sv:][:w.value] },
						mask.Visible(keys-end+tok, keys), a.Sink, h, w.of(out, got, a.LSE, a.MaxLogit, row, row))
				}
			}
		}
	})
}

// indices are n entries below limit or none, some of them hostile, and what counts of them.
func (w *coreWorld) indices(n, limit int) []int32 {
	x := make([]int32, n)
	for i := range x {
		switch k := w.r.IntN(16); {
		case k == 0 || limit == 0:
			x[i] = -1
		case k == 1 && w.in.next()%4 == 0:
			x[i] = int32(w.in.number())
		default:
			x[i] = int32(w.r.IntN(limit))
		}
	}
	if w.spoils() {
		x = x[:w.r.IntN(n+1)]
	}
	return x
}

// lengths are those of lists, at random, and what they are indexed by.
func (w *coreWorld) lengths(seqs, tokens, stride int) ([]int32, mla.TopKPer) {
	per := mla.TopKPer(w.size(3))
	if w.size(3) == 0 {
		return nil, per
	}
	n := seqs
	if per == mla.TopKPerToken || per == mla.TopKAuto && w.size(2) == 0 {
		n = tokens
	}
	x := make([]int32, n)
	for i := range x {
		if x[i] = int32(w.r.IntN(stride + 1)); w.in.next()%16 == 0 {
			x[i] = int32(w.in.number())
		}
	}
	if w.spoils() {
		per, x = mla.TopKPer(w.in.number()), append(x, x...)
	}
	return x, per
}

// entries are those of token t's list that select a row below limit, in order, and how many are faults.
func entries(list []int32, stride int, lengths []int32, per mla.TopKPer, seqs, t, seq, limit int) (rows []int, faults int64) {
	n := stride
	if lengths != nil {
		at := seq
		if per == mla.TopKPerToken || per == mla.TopKAuto && len(lengths) != seqs {
			at = t
		}
		n = min(max(int(lengths[at]), 0), stride)
	}
	for _, x := range list[t*stride:][:n] {
		switch {
		case x >= 0 && int(x) < limit:
			rows = append(rows, int(x))
		case x != -1:
			faults++
		}
	}
	return rows, faults
}

// FuzzSparseDecode gives Core.SparseDecode lists over one cache or two, some of them spoiled.
func FuzzSparseDecode(f *testing.F) {
	fuzzSeeds(f)
	// bf16, and a value of 2^-149, which is read as 0.
	f.Add([]byte("\x00\x00\x00\x80\x8c\a\xab\xab\xab\xaboF\x8c\xbd6\x9b\xb4c\x9f^^3\xa57"))
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newCoreWorld(t, data)
		cache, rows, _ := w.cache(1 + w.size(70))
		limit := cache.Config().Pages * cache.Config().PageTokens
		rows = append(rows, make([]float32, limit*w.width-len(rows))...) // places of the last page that hold no row: 0
		a := &mla.SparseDecodeArgs{Seqs: w.size(4), Tokens: w.size(5), Cache: cache, Stride: w.size(140), Sink: w.sink()}
		tokens := a.Seqs * a.Tokens
		a.Indices = w.indices(tokens*a.Stride, limit)
		a.Lengths, a.LengthsPer = w.lengths(a.Seqs, tokens, a.Stride)
		var second []float32
		limit2 := 0
		if w.size(3) == 0 {
			c2, rows2, _ := w.cache(1 + w.size(30))
			limit2 = c2.Config().Pages * c2.Config().PageTokens
			second = append(rows2, make([]float32, limit2*w.width-len(rows2))...)
			a.Extra = &mla.Extra{Cache: c2, Stride: w.size(70)}
			a.Extra.Indices = w.indices(tokens*a.Extra.Stride, limit2)
			a.Extra.Lengths, a.Extra.LengthsPer = w.lengths(a.Seqs, tokens, a.Extra.Stride)
		}
		q, qs := w.rows(tokens * w.heads * w.width)
		out := w.out(tokens * w.heads * w.value)
		a.LSE, a.MaxLogit = w.logits(tokens*w.heads), w.logits(tokens*w.heads)
		if w.spoils() {
			switch w.size(8) {
			case 0:
				a.Seqs = int(w.in.number())
			case 1:
				a.Tokens = int(w.in.number())
			case 2:
				a.Stride = int(w.in.number())
			case 3:
				a.Layer = int(w.in.number())
			case 4:
				a.FoldShared = true
			case 5:
				out = q
			case 6:
				a.LSE = a.MaxLogit
			case 7:
				a.Extra = &mla.Extra{Cache: cache, Stride: int(w.in.number()), Layer: w.size(2), Indices: a.Indices, Lengths: a.Lengths}
				second, limit2 = rows, limit
			}
		}
		if !w.ended(w.core.SparseDecode(nil, out, q, a)) {
			return
		}
		got, ignored := values(out), int64(0)
		for tok := range a.Seqs * a.Tokens {
			seq := tok / a.Tokens
			picked, faults := entries(a.Indices, a.Stride, a.Lengths, a.LengthsPer, a.Seqs, tok, seq, limit)
			ignored += faults
			if x := a.Extra; x != nil {
				more, faults := entries(x.Indices, x.Stride, x.Lengths, x.LengthsPer, a.Seqs, tok, seq, limit2)
				ignored += faults
				for _, j := range more {
					picked = append(picked, limit+j)
				}
			}
			key := func(j int) []float32 {
				if j >= limit {
					return second[(j-limit)*w.width:][:w.width]
				}
				return rows[j*w.width:][:w.width]
			}
			for h := range w.heads {
				row := tok*w.heads + h
				w.check(fmt.Sprintf("query %d, head %d", tok, h), qs[row*w.width:][:w.width], key, func(j int) []float32 { return key(j)[:w.value] },
					picked, a.Sink, h, w.of(out, got, a.LSE, a.MaxLogit, row, (seq*w.heads+h)*a.Tokens+tok%a.Tokens))
			}
		}
		require.Equal(t, ignored, a.Ignored)
	})
}

// FuzzSparsePrefill gives Core.SparsePrefill lists over rows, some of them spoiled.
func FuzzSparsePrefill(f *testing.F) {
	fuzzSeeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newCoreWorld(t, data)
		tokens, keys := w.size(12), w.size(90)
		kv, rows := w.rows(keys * w.width)
		a := &mla.SparsePrefillArgs{Stride: w.size(140), Sink: w.sink()}
		a.Indices = w.indices(tokens*a.Stride, keys)
		if w.size(2) == 0 {
			a.Lengths, _ = w.lengths(tokens, tokens, a.Stride)
		}
		q, qs := w.rows(tokens * w.heads * w.width)
		out := w.out(tokens * w.heads * w.value)
		a.LSE, a.MaxLogit = w.logits(tokens*w.heads), w.logits(tokens*w.heads)
		if w.spoils() {
			switch w.size(4) {
			case 0:
				a.Stride = int(w.in.number())
			case 1:
				out = kv
			case 2:
				a.LSE = a.MaxLogit
			case 3:
				q = kv
				qs = rows
			}
		}
		if !w.ended(w.core.SparsePrefill(nil, out, q, kv, a)) {
			return
		}
		limit := len(rows) / w.width
		got, ignored := values(out), int64(0)
		for tok := range q.Len() / (w.heads * w.width) {
			picked, faults := entries(a.Indices, a.Stride, a.Lengths, mla.TopKPerToken, 1, tok, 0, limit)
			ignored += faults
			key := func(j int) []float32 { return rows[j*w.width:][:w.width] }
			for h := range w.heads {
				row := tok*w.heads + h
				w.check(fmt.Sprintf("query %d, head %d", tok, h), qs[row*w.width:][:w.width], key, func(j int) []float32 { return key(j)[:w.value] },
					picked, a.Sink, h, w.of(out, got, a.LSE, a.MaxLogit, row, row))
			}
		}
		require.Equal(t, ignored, a.Ignored)
	})
}

// FuzzMerge gives Merge parts of any values and lengths: an error, or what float64 says.
func FuzzMerge(f *testing.F) {
	f.Add([]byte("plain"))
	for i := range 40 {
		f.Add([]byte{byte(i), byte(3 * i), byte(5 * i), byte(100 + i), byte(7 * i), byte(11 * i), byte(13 * i), 200, byte(i), 0xFF})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &hostileBytes{data}
		p, n, d := int(in.next()%6), int(in.next()%5), int(in.next()%40)
		r := rand.New(rand.NewPCG(uint64(in.next()), 3))
		spoiled := false
		room := func(n int) []float32 {
			if in.next() > 245 {
				spoiled = true
				n = max(n+int(in.next()%3)-1, 0)
			}
			return floats(r, n, 1)
		}
		out, lse, parts, partsLSE := room(n*d), room(n), room(p*n*d), room(p*n)
		for k := in.next() % 6; k > 0 && len(parts) > 0 && len(partsLSE) > 0; k-- {
			parts[r.IntN(len(parts))] = in.float()
			partsLSE[r.IntN(len(partsLSE))] = in.float()
		}
		switch in.next() % 32 {
		case 0:
			spoiled, out = true, parts[:min(n*d, len(parts))]
		case 1:
			spoiled, lse = true, partsLSE[:min(n, len(partsLSE))]
		case 2:
			spoiled, p = true, int(in.number())
		case 3:
			spoiled, n = true, int(in.number())
		case 4:
			spoiled, d = true, int(in.number())
		}
		err := mla.Merge(out, lse, parts, partsLSE, p, n, d)
		if err != nil {
			require.ErrorIs(t, err, mla.ErrShape)
			require.True(t, spoiled, "%v", err)
			return
		}
		for i := range n {
			checkMerged(t, i, out[i*d:][:d], lse[i], parts, partsLSE, p, n, d)
		}
	})
}

// checkMerged holds row i of a merge to float64.
func checkMerged(t *testing.T, i int, out []float32, lse float32, parts, partsLSE []float32, p, n, d int) {
	var of [][]float64
	var logits []float64
	live, largest, nan := 0, make([]float64, d), false
	for part := range p {
		x := float64(partsLSE[part*n+i])
		nan = nan || math.IsNaN(x)
		if !math.IsInf(x, 0) && !math.IsNaN(x) {
			live++
		}
		row := parts[(part*n+i)*d:][:d]
		of, logits = append(of, float64s(row)), append(logits, x)
	}
	switch {
	case nan:
		require.True(t, isNaN(lse), "row %d: lse", i)
		for _, x := range out {
			require.True(t, isNaN(x), "row %d", i)
		}
		return
	case live == 0:
		require.True(t, math.IsInf(float64(lse), 1), "row %d: lse %v", i, lse)
		for _, x := range out {
			require.Zero(t, x, "row %d", i)
		}
		return
	case p == 0 || d == 0:
		return
	}
	want, wantLSE := oracle.Merge(of, logits)
	require.InDelta(t, wantLSE, lse, 1e-6*(2+math.Abs(wantLSE)), "row %d: lse", i)
	top := math.Inf(-1)
	for _, x := range logits {
		if !math.IsInf(x, 0) {
			top = max(top, x)
		}
	}
	for part, x := range logits {
		w := math.Exp(x - top)
		if math.IsInf(x, 0) || w == 0 {
			continue
		}
		for c, o := range of[part] {
			// Of what is not finite, or sums to more than a float32 holds, there is no bound, and of weights that are
			// subnormal in float32 none either.
			if math.IsNaN(o) || math.IsInf(o, 0) || w < 1e-30 && math.Abs(o) > 1 {
				largest[c] = math.Inf(1)
			}
			largest[c] += w * math.Abs(o)
		}
	}
	for c, x := range out {
		if largest[c] < 1e38 {
			require.InDelta(t, want[c], x, 4e-6*largest[c]+1e-37, "row %d: value %d", i, c)
		}
	}
}

// FuzzPlanChunks gives PlanChunks any numbers: an error, or a plan in which every row of every page is in one place.
func FuzzPlanChunks(f *testing.F) {
	f.Add([]byte{3, 7, 0, 1, 16, 4, 5})
	f.Add([]byte{2, 200, 1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte{1, 137, 146, 151})
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &hostileBytes{data}
		lengths := make([]int, in.next()%6)
		bad := false
		for i := range lengths {
			lengths[i] = int(in.number())
			bad = bad || lengths[i] < 0 || lengths[i] > 1<<30
		}
		page, buf := int(in.number()), int(in.number())
		bad = bad || page < 1 || page > 1<<30 || buf < 1 || buf > math.MaxUint32
		rows := func(n int) int { return (n + page - 1) / page * page }
		chunks := 1
		if !bad {
			total := 0
			for _, n := range lengths {
				total += rows(n)
			}
			if chunks = max((total+buf-1)/buf, 1); chunks > 1<<14 && chunks*(2*len(lengths)+1) <= 1<<28 {
				return // a plan of many megabytes
			}
			bad = chunks*(2*len(lengths)+1) > 1<<28
		}
		plan, err := mla.PlanChunks(lengths, page, buf)
		if bad {
			require.ErrorIs(t, err, mla.ErrShape)
			return
		}
		require.NoError(t, err)
		require.Len(t, plan, chunks)
		next := make([]int, len(lengths))
		for c, chunk := range plan {
			require.Len(t, chunk.RowOffsets, len(lengths)+1)
			require.Zero(t, chunk.RowOffsets[0])
			require.EqualValues(t, max(chunk.Length, 0), chunk.RowOffsets[len(lengths)])
			if c < chunks-1 {
				require.Equal(t, buf, chunk.Length)
			}
			for i := range lengths {
				require.GreaterOrEqual(t, chunk.RowOffsets[i+1], chunk.RowOffsets[i])
				require.EqualValues(t, next[i], chunk.CacheOffsets[i])
				next[i] += int(chunk.RowOffsets[i+1] - chunk.RowOffsets[i])
			}
		}
		for i, n := range lengths {
			require.Equal(t, rows(n), next[i])
		}
	})
}
