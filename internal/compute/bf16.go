package compute

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// bf16Compute multiplies pairs of bf16 values: queries and probabilities are rounded to bf16, keys
// and values are taken as bf16. A place of a pair that holds no key holds zeros, or what the cache
// has there: no row sees it.
type bf16Compute struct{}

func (bf16Compute) Shape() Shape {
	return Shape{
		Partition: partitionPlaces, Group: groupPartitions, Tile: tilePlaces, MaskUnit: 2, Beta0: true,
		DenseRows: 256,
	}
}

func (bf16Compute) PanelFloats(k int) int { return panel16(k) / 2 }

// panel16 is the values of a panel of k terms in interleaved pairs, for simd.Lanes rows: term k of
// row j at k/2*2*Lanes + j%Lanes*2 + k%2.
func panel16(k int) int { return (k + 1) / 2 * 2 * simd.Lanes }

func (bf16Compute) HeadFloats(places, k, cols int) int {
	return places*stride16(k)/2 + (places+1)/2*Stride(cols)
}

func (bf16Compute) Head(buf []float32, places, k, cols int) Dense {
	ldk, ldv := stride16(k), 2*Stride(cols)
	all := words(buf)
	return Dense{
		K: fp8.RowsBF16(all[:places*ldk]), LdK: ldk, interleaved: all[places*ldk:][:(places+1)/2*ldv], LdV: ldv,
		expanded: true, k: k, cols: cols,
	}
}

func (bf16Compute) NewWorker() Worker {
	w := &bf16Worker{}
	w.tiled = newTiled(w, bf16Compute{}.Shape(), simd.Blocks().CallPairs)
	return w
}

// bf16Worker is the scratch of bf16.
type bf16Worker struct {
	tiled
	keys, values []uint16  // [tilePlaces][stride16(K or Width)], [tilePlaces][stride16(Cols)] copies
	pairs        []uint16  // [tilePlaces/2][2*Stride(Cols)] values in pairs of places
	probs        []uint16  // [tilePlaces/2][2*lds] probabilities in pairs of places
	wide         []float32 // [wideRows][Width] cache rows on their way to bf16
	latent       []float32 // [tilePlaces][Stride(Width)] cache rows as activations
	packed       []float32 // [PackRows][Stride(K)] queries before packing
	one          []float32 // [max(K, Width, Cols)] a row on its way to bf16
	products     []float32 // [tilePlaces][Stride(max(K, Cols))] products of an expansion

	// the tile: [places][K], ldx apart, and values as rows, [places][Cols], ldv apart, or once they
	// are interleaved pairs, [places/2][Cols][2], ldp apart
	x, v          []uint16
	ldx, ldv, ldp int
	p             []uint16 // nil while they are rows
	strip         []uint16 // the same of some columns
}

const wideRows = 8

func (w *bf16Worker) Carve(c *mem.Carver, g Geometry) {
	w.tiled.carve(c, g.Rows)
	k := max(g.K, g.Width)
	w.keys = mem.Carve[uint16](c, tilePlaces*stride16(k))
	w.values = mem.Carve[uint16](c, tilePlaces*stride16(g.Cols))
	w.pairs = mem.Carve[uint16](c, tilePlaces*max(Stride(g.Cols), Stride(stepCols)))
	w.probs = mem.Carve[uint16](c, tilePlaces*w.lds)
	w.wide = mem.Carve[float32](c, wideRows*g.Width)
	w.latent = mem.Carve[float32](c, tilePlaces*Stride(g.Width))
	w.packed = mem.Carve[float32](c, g.PackRows*Stride(g.K))
	w.one = mem.Carve[float32](c, max(k, g.Cols))
	w.products = mem.Carve[float32](c, tilePlaces*Stride(max(g.K, g.Cols)))
}

func (w *bf16Worker) Pack(dst []float32, x fp8.Rows, at, ld, n, k int) {
	if h := x.BF16(); h != nil && packPairs(dst, h[at:][:(n-1)*ld+k], ld, n, k) {
		return
	}
	rows, ldr := x.F32(), ld
	if rows != nil {
		rows = rows[at:]
	} else {
		rows, ldr = w.packed, Stride(k)
		for i := range n {
			x.Widen(rows[i*ldr:], at+i*ld, k)
		}
	}
	simd.PackPairs(words(dst), panel16(k), rows, ldr, n, k)
}

// packPairs packs n rows in bf16 by whole pairs, which are words. It does not if some would change
// on the way, but for the sign of a zero, which sums from +0 do not show, or lie where no words
// may.
func packPairs(dst []float32, x []uint16, ld, n, k int) bool {
	if k%2 != 0 || ld%2 != 0 || !mem.Aligned[float32](mem.Bytes(x)) {
		return false
	}
	// Panel by panel: rows of a head are often a multiple of 16 KB apart, and few of them stay in a
	// cache together.
	pairs, to := mem.Cast[float32](mem.Bytes(x)), panel16(k)/2
	for j := 0; j < n; j += simd.Lanes {
		rows := min(simd.Lanes, n-j)
		if simd.TinyBF16(x[j*ld:], ld, rows, k) {
			return false
		}
		simd.PackRows(dst[j/simd.Lanes*to:], to, pairs[j*ld/2:], ld/2, rows, k/2)
	}
	return true
}

func (w *bf16Worker) load(k0, k1 int) {
	w.places, w.p = k1-k0, nil
	switch keys := w.u.Keys; {
	case keys.Dense != nil:
		w.loadDense(keys.Dense, k0)
	case keys.View != nil:
		w.loadView(keys.View, k0)
	default:
		w.gather(keys.List, k0, k1)
	}
}

func (w *bf16Worker) loadDense(d *Dense, k0 int) {
	u, at := w.u, k0-d.Base
	h := d.K.BF16()
	keyAt := d.KeyAt + at*d.LdK
	switch {
	case d.expanded:
		w.x, w.ldx = h[keyAt:], d.LdK
		w.p, w.ldp = d.interleaved[at/2*d.LdV:], d.LdV
		return
	case h != nil:
		w.x, w.ldx = h[keyAt:], d.LdK
		w.flushKeys()
	default:
		w.x, w.ldx = w.keys, stride16(u.K)
		for i := range w.places {
			w.narrow(w.keys[i*w.ldx:], d.K, keyAt+i*d.LdK, u.K)
		}
	}
	valueAt := d.ValueAt + at*d.LdV
	if h := d.V.BF16(); h != nil {
		w.v, w.ldv = h[valueAt:], d.LdV
		return
	}
	w.v, w.ldv = w.values, stride16(u.Cols)
	for i := range w.places {
		w.narrow(w.values[i*w.ldv:], d.V, valueAt+i*d.LdV, u.Cols)
	}
}

// loadView makes the keys of the tile those of v from k0, an even position, on.
func (w *bf16Worker) loadView(v View, k0 int) {
	k, ld, missing := w.u.K, stride16(w.u.K), 0
	w.v, w.ldv = w.keys, ld
	if !v.Mapped(k0) { // a window begins at the position after it
		missing = 1
		clear(w.keys[:k])
	} else if w.x, w.ldx = v.RunBF16(k0, w.places), k; w.x != nil {
		w.flushKeys()
		w.v, w.ldv = w.x, w.ldx
		return
	}
	v.ReadBF16(w.keys[missing*ld:], ld, w.wide, k0+missing, w.places-missing)
	w.x, w.ldx = w.keys, ld
}

// flushKeys makes the keys of the tile a copy in which small values are zeros, if there are any.
func (w *bf16Worker) flushKeys() {
	k := w.u.K
	rows, cols := w.places, k
	if w.ldx == k { // in one go
		rows, cols = 1, rows*cols
	}
	if !simd.TinyBF16(w.x, w.ldx, rows, cols) {
		return
	}
	ld := stride16(k)
	for i := range w.places {
		simd.FlushBF16(w.keys[i*ld:][:k], w.x[i*w.ldx:][:k])
	}
	w.x, w.ldx = w.keys, ld
}

// narrow reads n values of x from element at on as keys and values are read.
func (w *bf16Worker) narrow(dst []uint16, x fp8.Rows, at, n int) {
	if h := x.BF16(); h != nil {
		simd.FlushBF16(dst[:n], h[at:][:n])
		return
	}
	if f := x.F32(); f != nil {
		simd.NarrowValueBF16(dst[:n], f[at:][:n])
		return
	}
	x.Widen(w.one, at, n)
	simd.NarrowValueBF16(dst[:n], w.one[:n])
}

// gather makes the places [from, to) of a list the tile. Pairs without a row are dropped; a place
// without one next to one that has is masked.
func (w *bf16Worker) gather(l *List, from, to int) {
	ld := stride16(w.u.K)
	p := l.pick(from, to, w.maskUnit, w.entries, w.maskedPlaces)
	w.places, w.masked = p.n, p.masked
	w.u.Invalid += p.invalid
	w.x, w.ldx, w.v, w.ldv = w.keys, ld, w.keys, ld
	next := 0
	for _, place := range p.masked {
		w.gatherRun(l, p.entries, next, int(place))
		clear(w.keys[int(place)*ld:][:w.u.K])
		next = int(place) + 1
	}
	w.gatherRun(l, p.entries, next, p.n)
	if l.View != nil {
		w.positions = causal(w.u, p.entries)
	}
}

// gatherRun reads the rows of the places [from, to).
func (w *bf16Worker) gatherRun(l *List, entries []int32, from, to int) {
	ld := stride16(w.u.K)
	picked, dst := entries[from:to], w.keys[from*ld:]
	switch {
	case from == to:
	case l.View != nil:
		l.View.GatherBF16(dst, ld, w.wide, picked)
	case l.Pool != nil:
		l.Pool.GatherBF16(dst, ld, w.wide, picked)
	default:
		for i, row := range picked {
			w.narrow(dst[i*ld:], l.Plain, int(row)*l.Width, l.Width)
		}
	}
}

// interleave lays the values of the tile in pairs of places, all columns at once, unless they are.
func (w *bf16Worker) interleave() {
	if w.p != nil {
		return
	}
	w.p, w.ldp = w.pairs, 2*Stride(w.u.Cols)
	simd.InterleaveBF16(w.p, w.ldp, w.v, w.ldv, w.places, w.u.Cols)
}

func (w *bf16Worker) forget()         { w.x, w.v, w.p, w.strip = nil, nil, nil, nil }
func (w *bf16Worker) stripwise() bool { return w.p == nil }
func (w *bf16Worker) takes() bool     { return true }

func (w *bf16Worker) scoreCall(s []float32, j, rows, first, n int) {
	k := w.u.K
	ldq := panel16(k)
	q, x := words(w.u.Queries)[(w.row+j)/simd.Lanes*ldq:], w.x[first*w.ldx:]
	simd.PairSet(s, w.lds, x, w.ldx, q, ldq, n, rows, min(k, pieceK))
	for k0 := pieceK; k0 < k; k0 += pieceK {
		simd.PairAdd(s, w.lds, x[k0:], w.ldx, q[k0*simd.Lanes:], ldq, n, rows, min(k-k0, pieceK))
	}
}

func (w *bf16Worker) softmax(j, n, places int) bool {
	at := w.row + j
	return simd.SoftmaxTilePairs(w.probs[2*j:], 2*w.lds, w.scores[j:], w.lds, places, n, w.lo[j:j+n], w.hi[j:j+n],
		w.u.Scale, w.u.Sums.M[at:], w.u.Sums.L[at:], w.alpha[j:j+n])
}

// valueStrip interleaves the values of a strip of columns next to their products, unless all are.
func (w *bf16Worker) valueStrip(c, first, cols int) {
	if w.p != nil {
		w.strip = w.p[first/2*w.ldp+2*c:]
		return
	}
	simd.InterleaveBF16(w.pairs, stripLD, w.v[first*w.ldv+c:], w.ldv, w.places-first, cols)
	w.strip = w.pairs
}

// stripLD is the distance of pairs of a strip: an odd number of lines.
const stripLD = 2*stepCols + 2*simd.Lanes

func (w *bf16Worker) valueCall(kind places, o []float32, c, j, rows, first, n, cols, seen int, alpha []float32) {
	ldo, p, pairs, ldv := w.u.Sums.LD, w.probs[first*w.lds+2*j:], (n+1)/2, w.ldp
	if w.p == nil {
		ldv = stripLD
	}
	switch kind {
	case visible:
		simd.ValueTilePairs(o, ldo, p, 2*w.lds, w.strip, ldv, alpha, pairs, rows, cols, w.prefetch.take())
	case masked:
		simd.ValueTilePairsMasked(o, ldo, p, 2*w.lds, w.strip, ldv, alpha, pairs, rows, cols)
	case diagonal:
		simd.ValueTilePairsCausal(o, ldo, p, 2*w.lds, w.strip, ldv, alpha, pairs, rows, cols, seen)
	}
}

func (w *bf16Worker) Latent(v View, width, pos, n int) ([]float32, int) {
	ld16, ld := stride16(width), Stride(width)
	v.ReadBF16(w.keys, ld16, w.wide, pos, n)
	for i := range n {
		simd.WidenBF16(w.latent[i*ld:][:width], w.keys[i*ld16:][:width])
	}
	return w.latent, ld
}

func (w *bf16Worker) ExpandKeys(d *Dense, _, _ int) ([]float32, int) {
	return w.products, Stride(d.k)
}

func (w *bf16Worker) ExpandValues(d *Dense, _, _ int) ([]float32, int) {
	return w.products, d.LdV / 2
}

func (w *bf16Worker) ExpandedKeys(d *Dense, at, n, nope int, x []float32, ldx, rope int) {
	keys, ld := d.K.BF16()[at*d.LdK:], Stride(d.k)
	for i := range n {
		simd.NarrowValueBF16(keys[i*d.LdK:], w.products[i*ld:][:nope])
		simd.NarrowValueBF16(keys[i*d.LdK+nope:], x[i*ldx:][:rope])
	}
}

// ExpandedValues completes a pair that rows from an odd place on begin in the middle of.
func (w *bf16Worker) ExpandedValues(d *Dense, at, n int) {
	from, cols := d.LdV/2, d.cols
	ld := stride16(cols)
	for i := range n {
		simd.NarrowValueBF16(w.values[i*ld:], w.products[i*from:][:cols])
	}
	odd := at % 2
	if odd == 1 {
		pair := d.interleaved[at/2*d.LdV:]
		for c, u := range w.values[:cols] {
			pair[2*c+1] = u
		}
	}
	if n > odd {
		simd.InterleaveBF16(d.interleaved[(at+odd)/2*d.LdV:], d.LdV, w.values[odd*ld:], ld, n-odd, cols)
	}
}
