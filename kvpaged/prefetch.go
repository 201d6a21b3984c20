package kvpaged

import (
	"runtime"

	"github.com/lamina-ml/lamina/simd"
)

// Prefetch asks the processor for n rows from pos, which will be read soon.
// Positions that are not mapped are passed over.
func (v *View) Prefetch(pos, n int) {
	if v == nil || v.seq == nil || n <= 0 {
		return
	}
	if pos < 0 {
		pos, n = 0, n+pos
	}
	end := v.end
	if n < end-pos { // pos+n could overflow
		end = pos + n
	}
	for pos < end {
		if !v.Mapped(pos) {
			pos += v.seq.c.cfg.PageTokens - pos%v.seq.c.cfg.PageTokens
			continue
		}
		page, slot, rows := v.run(pos)
		rows = min(rows, end-pos)
		v.seq.c.prefetch(page, v.layer, slot, rows)
		pos += rows
	}
	runtime.KeepAlive(v.seq)
}

// PrefetchAt is Prefetch for the rows of positions.
func (v *View) PrefetchAt(positions []int32) {
	for _, pos := range positions {
		v.Prefetch(int(pos), 1)
	}
}

// Prefetch asks the processor for physical rows, which will be read soon. Rows out
// of range are passed over.
func (v *PoolView) Prefetch(rows []int32) {
	if v == nil || v.cache == nil {
		return
	}
	page := v.cache.cfg.PageTokens
	for _, row := range rows {
		if row >= 0 && int(row) < v.rows {
			v.cache.prefetch(int32(int(row)/page), v.layer, int(row)%page, 1)
		}
	}
	runtime.KeepAlive(v.cache)
}

// prefetch asks for n rows of a page.
func (c *Cache) prefetch(page int32, layer, slot, n int) {
	ask(c.rowsAt(page, layer, slot, n))
	if c.geo.scales.token > 0 {
		ask(c.scalesAt(page, layer, slot, n))
	}
}

func ask(x []byte) { simd.Prefetch(x, 0, len(x), 1) }
