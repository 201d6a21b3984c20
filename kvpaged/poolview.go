package kvpaged

import (
	"fmt"
	"runtime"
)

// PoolView is a lease of one layer of all pages of a cache, whoever holds them:
// for index lists that name physical rows, page*PageTokens + slot. It is a value
// without heap memory of its own; copies are the same lease, which is released
// once.
//
// Nothing is locked: what a sequence writes meanwhile, or has not committed, is
// read as it is. Lists must name committed rows, or new tokens whose writer has
// ended. Several goroutines may use one PoolView, and rows that are out of range
// panic; in an empty PoolView, one that is zero or released, every row is.
//
// An index is an int32. Of a cache with more than 2^31 rows in a layer, such as 2^26
// pages of 64 tokens, lists reach the first 2^31; mla refuses lists over it.
type PoolView struct {
	cache *Cache
	layer int
	rows  int
}

// Lease leases a layer of all pages for reading. ErrRange if there is no such
// layer. While it is out Close returns ErrBusy.
func (c *Cache) Lease(layer int) (PoolView, error) {
	if err := c.lock(); err != nil {
		return PoolView{}, err
	}
	defer c.mu.Unlock()
	if err := c.checkLayer(layer); err != nil {
		return PoolView{}, err
	}
	c.uses++
	return PoolView{c, layer, c.cfg.Pages * c.cfg.PageTokens}, nil
}

// Release ends the lease. The PoolView is empty then; releasing it again does
// nothing.
func (v *PoolView) Release() {
	if v == nil || v.cache == nil {
		return
	}
	c := v.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	c.uses--
	*v = PoolView{}
}

// Rows returns the number of physical rows of the layer, Pages*PageTokens.
func (v *PoolView) Rows() int {
	if v == nil {
		return 0
	}
	return v.rows
}

// nothing reports that n rows are none, and panics if they are some and the
// PoolView is empty.
func (v *PoolView) nothing(n int) bool {
	if n > 0 && (v == nil || v.cache == nil) {
		panicEmpty()
	}
	return n == 0
}

// Gather reads rows as float32: physical row rows[i] goes to dst[i*ld:] and is
// Width values long, ld >= Width. Every index must be in [0, Rows()).
func (v *PoolView) Gather(dst []float32, ld int, rows []int32) {
	if v.nothing(len(rows)) {
		return
	}
	c := v.cache
	t := tile{ld: ld, width: c.cfg.Width}
	for len(rows) > 0 {
		t.dst, t.n = dst, min(len(rows), tileRows)
		v.locate(&t, rows)
		c.widen(&t)
		rows = rows[t.n:]
		dst = dst[min(t.n*ld, len(dst)):]
	}
	runtime.KeepAlive(c)
}

// locate puts physical rows into a tile.
func (v *PoolView) locate(t *tile, rows []int32) {
	page := uint(v.cache.cfg.PageTokens)
	for i, r := range rows[:t.n] {
		if r < 0 || int(r) >= v.rows {
			panic(fmt.Sprintf("kvpaged: physical row %d of %d", r, v.rows))
		}
		v.cache.locate(t, i, int32(uint(r)/page), v.layer, int(uint(r)%page))
	}
}
