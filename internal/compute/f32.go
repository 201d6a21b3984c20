package compute

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// f32Compute multiplies float32 values by fma.
type f32Compute struct{}

func (f32Compute) Shape() Shape {
	return Shape{
		Partition: partitionPlaces, Group: groupPartitions, Tile: tilePlaces, MaskUnit: 1, DenseRows: 64,
	}
}

func (f32Compute) PanelFloats(k int) int { return k * simd.Lanes }

func (f32Compute) HeadFloats(places, k, cols int) int { return places * (Stride(k) + Stride(cols)) }

func (f32Compute) Head(buf []float32, places, k, cols int) Dense {
	ldk, ldv := Stride(k), Stride(cols)
	return Dense{
		K: fp8.RowsF32(buf[:places*ldk]), LdK: ldk, V: fp8.RowsF32(buf[places*ldk:][:places*ldv]), LdV: ldv,
		expanded: true, k: k, cols: cols,
	}
}

func (f32Compute) NewWorker() Worker {
	w := &f32Worker{}
	w.tiled = newTiled(w, f32Compute{}.Shape(), simd.Blocks().CallFMA)
	return w
}

// f32Worker is the scratch of f32.
type f32Worker struct {
	tiled
	keys, values []float32 // [tilePlaces][Stride(K or Width)], [tilePlaces][Stride(Cols)] copies
	packed       []float32 // [PackRows][Stride(K)] queries before packing

	// the tile: [places][K], ldx apart, and [places][Cols], ldv apart
	x, v     []float32
	ldx, ldv int
}

func (w *f32Worker) Carve(c *mem.Carver, g Geometry) {
	w.tiled.carve(c, g.Rows)
	w.keys = mem.Carve[float32](c, tilePlaces*Stride(max(g.K, g.Width)))
	if g.Dense {
		w.values = mem.Carve[float32](c, tilePlaces*Stride(g.Cols))
	}
	w.packed = mem.Carve[float32](c, g.PackRows*Stride(g.K))
}

func (w *f32Worker) Pack(dst []float32, x fp8.Rows, at, ld, n, k int) {
	rows, ldr := w.rows32(x, at, ld, n, k, w.packed)
	simd.PackRows(dst, k*simd.Lanes, rows, ldr, n, k)
}

// rows32 is n rows of k values from element at on, ld apart, as float32: where they lie, or widened
// into buf.
func (*f32Worker) rows32(x fp8.Rows, at, ld, n, k int, buf []float32) ([]float32, int) {
	if f := x.F32(); f != nil {
		return f[at:], ld
	}
	to := Stride(k)
	for i := range n {
		x.Widen(buf[i*to:], at+i*ld, k)
	}
	return buf, to
}

func (w *f32Worker) load(k0, k1 int) {
	u := w.u
	w.places = k1 - k0
	switch keys := u.Keys; {
	case keys.Dense != nil:
		d := keys.Dense
		at := k0 - d.Base
		w.x, w.ldx = w.rows32(d.K, d.KeyAt+at*d.LdK, d.LdK, w.places, u.K, w.keys)
		w.v, w.ldv = w.rows32(d.V, d.ValueAt+at*d.LdV, d.LdV, w.places, u.Cols, w.values)
	case keys.View != nil:
		w.x, w.ldx = w.Latent(keys.View, u.K, k0, w.places)
		w.v, w.ldv = w.x, w.ldx
	default:
		w.gather(keys.List, k0, k1)
	}
}

// gather makes the places [from, to) of a list the tile. Those without a row are dropped.
func (w *f32Worker) gather(l *List, from, to int) {
	ld := Stride(w.u.K)
	p := l.pick(from, to, w.maskUnit, w.entries, w.maskedPlaces)
	w.places = p.n
	w.u.Invalid += p.invalid
	switch {
	case p.n == 0:
	case l.View != nil:
		l.View.Gather(w.keys, ld, p.entries)
		w.positions = causal(w.u, p.entries)
	case l.Pool != nil:
		l.Pool.Gather(w.keys, ld, p.entries)
	default:
		for i, row := range p.entries {
			l.Plain.Widen(w.keys[i*ld:], int(row)*l.Width, l.Width)
		}
	}
	w.x, w.ldx, w.v, w.ldv = w.keys, ld, w.keys, ld
}

func (w *f32Worker) forget()         { w.x, w.v = nil, nil }
func (w *f32Worker) interleave()     {}
func (w *f32Worker) stripwise() bool { return false }
func (w *f32Worker) takes() bool     { return false }

func (w *f32Worker) scoreCall(s []float32, j, rows, first, n int) {
	k := w.u.K
	ldq := k * simd.Lanes
	q, x := w.u.Queries[(w.row+j)/simd.Lanes*ldq:], w.x[first*w.ldx:]
	simd.PartSet(s, w.lds, x, w.ldx, q, ldq, n, rows, min(k, pieceK))
	for k0 := pieceK; k0 < k; k0 += pieceK {
		simd.PartAdd(s, w.lds, x[k0:], w.ldx, q[k0*simd.Lanes:], ldq, n, rows, min(k-k0, pieceK))
	}
}

func (w *f32Worker) softmax(j, n, places int) bool {
	at := w.row + j
	return simd.SoftmaxTile(w.scores[j:], w.lds, places, n, w.lo[j:j+n], w.hi[j:j+n], w.u.Scale,
		w.u.Sums.M[at:], w.u.Sums.L[at:], w.alpha[j:j+n])
}

func (w *f32Worker) valueStrip(int, int, int) {}

func (w *f32Worker) valueCall(kind places, o []float32, c, j, rows, first, n, cols, seen int, alpha []float32) {
	ldo, p, v := w.u.Sums.LD, w.scores[first*w.lds+j:], w.v[first*w.ldv+c:]
	switch kind {
	case visible:
		simd.ValueTile(o, ldo, p, w.lds, v, w.ldv, alpha, n, rows, cols)
	case masked:
		simd.ValueTileMasked(o, ldo, p, w.lds, v, w.ldv, alpha, n, rows, cols)
	case diagonal:
		simd.ValueTileCausal(o, ldo, p, w.lds, v, w.ldv, alpha, n, rows, cols, seen)
	}
}

func (w *f32Worker) Latent(v View, width, pos, n int) ([]float32, int) {
	ld := Stride(width)
	v.Widen(w.keys, ld, pos, n)
	return w.keys, ld
}

func (w *f32Worker) ExpandKeys(d *Dense, at, _ int) ([]float32, int) {
	return d.K.F32()[at*d.LdK:], d.LdK
}

func (w *f32Worker) ExpandValues(d *Dense, at, _ int) ([]float32, int) {
	return d.V.F32()[at*d.LdV:], d.LdV
}

func (w *f32Worker) ExpandedKeys(d *Dense, at, n, nope int, x []float32, ldx, rope int) {
	keys := d.K.F32()[at*d.LdK:]
	for i := range n {
		copy(keys[i*d.LdK+nope:][:rope], x[i*ldx:])
	}
}

func (w *f32Worker) ExpandedValues(*Dense, int, int) {}
