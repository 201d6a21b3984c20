package kvpaged

import (
	"fmt"
	"runtime"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// Rows as the second arithmetic has them (docs/arithmetic.md): in bf16, values
// below 2^-52 as +0. Formats other than BF16 are widened first, as many rows at a
// time as scratch has room for.

// RunBF16 returns n rows from pos, n >= 1, without copying, Width values each, one
// after the other: if the format is BF16 and they lie so, which they do within a
// page; else nil. Values below 2^-52 are as they are stored. Every position must be
// mapped.
func (v *View) RunBF16(pos, n int) []uint16 {
	v.nothing(1)
	c := v.seq.c
	if c.cfg.Format != BF16 {
		return nil
	}
	page, slot, rows := v.run(pos)
	if rows < n {
		return nil
	}
	return mem.Cast[uint16](c.rowsAt(page, v.layer, slot, n))
}

// ReadBF16 reads n rows from pos as bf16, values below 2^-52 as +0: row i goes to
// dst[i*ld:] and is Width values long, ld >= Width. scratch holds at least Width
// values. Every position must be mapped.
func (v *View) ReadBF16(dst []uint16, ld int, scratch []float32, pos, n int) {
	if v.nothing(n) {
		return
	}
	c := v.seq.c
	t := c.narrowTile(scratch)
	for most := t.n; n > 0; n -= t.n {
		t.n = min(n, most)
		v.locate(&t, pos)
		c.narrow(dst, ld, &t)
		pos += t.n
		dst = dst[min(t.n*ld, len(dst)):]
	}
	runtime.KeepAlive(c)
}

// GatherBF16 is ReadBF16 of the rows of positions: that of positions[i] goes to
// dst[i*ld:].
func (v *View) GatherBF16(dst []uint16, ld int, scratch []float32, positions []int32) {
	if v.nothing(len(positions)) {
		return
	}
	c := v.seq.c
	t := c.narrowTile(scratch)
	for most := t.n; len(positions) > 0; positions = positions[t.n:] {
		t.n = min(len(positions), most)
		v.locateAt(&t, positions)
		c.narrow(dst, ld, &t)
		dst = dst[min(t.n*ld, len(dst)):]
	}
	runtime.KeepAlive(c)
}

// GatherBF16 reads rows as bf16, values below 2^-52 as +0: physical row rows[i] goes
// to dst[i*ld:] and is Width values long, ld >= Width. scratch holds at least Width
// values. Every index must be in [0, Rows()).
func (v *PoolView) GatherBF16(dst []uint16, ld int, scratch []float32, rows []int32) {
	if v.nothing(len(rows)) {
		return
	}
	c := v.cache
	t := c.narrowTile(scratch)
	for most := t.n; len(rows) > 0; rows = rows[t.n:] {
		t.n = min(len(rows), most)
		v.locate(&t, rows)
		c.narrow(dst, ld, &t)
		dst = dst[min(t.n*ld, len(dst)):]
	}
	runtime.KeepAlive(c)
}

// narrowTile is a tile that is widened into scratch, of as many rows as it may have.
func (c *Cache) narrowTile(scratch []float32) tile {
	if len(scratch) < c.cfg.Width {
		panic(fmt.Sprintf("kvpaged: scratch for %d values, want a row of %d", len(scratch), c.cfg.Width))
	}
	return tile{dst: scratch, ld: c.cfg.Width, width: c.cfg.Width, n: min(len(scratch)/c.cfg.Width, tileRows)}
}

// narrow reads a tile as bf16.
func (c *Cache) narrow(dst []uint16, ld int, t *tile) {
	if c.cfg.Format == BF16 {
		src := mem.Cast[uint16](c.arena)
		for i, at := range t.rows[:t.n] {
			simd.FlushBF16(dst[i*ld:][:t.width], src[at/2:][:t.width])
		}
		return
	}
	c.widen(t)
	for i := range t.n {
		simd.NarrowValueBF16(dst[i*ld:][:t.width], t.row(i))
	}
}
