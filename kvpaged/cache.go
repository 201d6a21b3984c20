package kvpaged

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// Cache is a pool of pages. Its methods may be called from several goroutines.
//
// A Cache that is dropped without Close gives its memory back when the garbage
// collector finds it. One that New did not make is as one that is closed.
type Cache struct {
	cfg   Config
	geo   geometry
	arena []byte     // where geo.rows is; nil once the cache is closed
	outer []byte     // where geo.scales is: the arena, or the caller's Scales
	block *mem.Block // of the arena, nil if that is the caller's

	mu   sync.Mutex
	pool pool
	uses int // leases, and calls that touch the arena
}

// New makes a cache. A Config that makes none gives ErrConfig or ErrFormat; too
// little memory and a forced instruction set that is missing give their own.
func New(cfg Config) (*Cache, error) {
	if err := simd.Err(); err != nil {
		return nil, err
	}
	g, err := cfg.geometry()
	if err != nil {
		return nil, err
	}
	if err := cfg.checkMemory(&g); err != nil {
		return nil, err
	}
	c := &Cache{cfg: cfg, geo: g}
	if cfg.Arena != nil {
		c.arena = cfg.Arena[:g.arena:g.arena]
	} else {
		c.block, err = mem.Alloc(g.arena)
		if err != nil {
			return nil, fmt.Errorf("kvpaged: arena of %d pages: %w", cfg.Pages, err)
		}
		c.block.Huge()
		c.arena = c.block.Bytes()
	}
	c.outer = c.arena
	if cfg.Scales != nil {
		c.outer = bytesOf(cfg.Scales)[:g.outer:g.outer]
	}
	c.pool = newPool(cfg.Pages, cfg.Adopted, cfg.Arena != nil || cfg.Scales != nil)
	return c, nil
}

// Config returns what the cache was made from.
func (c *Cache) Config() Config {
	if c == nil {
		return Config{}
	}
	return c.cfg
}

// RowBytes returns the size of one token in one layer: its row and, in formats
// with a second plane, its scales. A record of Export has this size.
func (c *Cache) RowBytes() int {
	if c == nil {
		return 0
	}
	return c.geo.rows.token + c.geo.scales.token
}

// PageBytes returns the size of a page in all layers in the arena.
func (c *Cache) PageBytes() int {
	if c == nil {
		return 0
	}
	return c.geo.page
}

// FreePages returns how many pages Reserve can take.
func (c *Cache) FreePages() int {
	if c.lock() != nil {
		return 0
	}
	defer c.mu.Unlock()
	return len(c.pool.free)
}

// NewSeq returns an empty sequence.
func (c *Cache) NewSeq() (*Seq, error) {
	if err := c.lock(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	return &Seq{c: c}, nil
}

// Close gives the memory back; a caller's arena is the caller's again. It
// returns ErrBusy and does nothing while a lease is out. Afterwards the methods
// of the cache and its sequences return ErrClosed, Close and Seq.Free nil.
func (c *Cache) Close() error {
	if c.lock() != nil {
		return nil
	}
	defer c.mu.Unlock()
	if c.uses > 0 {
		return fmt.Errorf("%w: %d leases of the cache are out", ErrBusy, c.uses)
	}
	c.arena, c.outer, c.pool = nil, nil, pool{}
	if c.block == nil {
		return nil
	}
	return c.block.Free()
}

// lock locks a cache that is open.
func (c *Cache) lock() error {
	if c != nil {
		c.mu.Lock()
		if c.arena != nil {
			return nil
		}
		c.mu.Unlock()
	}
	return fmt.Errorf("%w: the cache is closed, or New did not make it", ErrClosed)
}

func (c *Cache) checkLayer(layer int) error {
	if layer < 0 || layer >= c.cfg.Layers {
		return fmt.Errorf("%w: layer %d of %d", ErrRange, layer, c.cfg.Layers)
	}
	return nil
}

// grow appends pages to a table, all or none: those of shared, which get one more
// holder, and then n new ones, which hold zeros and, in the first, a part of another
// page if one is given. The caller keeps what is shared or given from being freed.
func (c *Cache) grow(table, shared []int32, n int, given *part) ([]int32, error) {
	old := len(table) + len(shared)
	table, err := c.take(table, shared, n)
	if err != nil {
		return nil, err
	}
	fresh := table[old:]
	for _, id := range fresh { // without the lock: this is the slow part
		c.zero(id)
	}
	if given != nil {
		c.copyPart(fresh[0], given)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pool.setWriting(fresh, false)
	c.uses--
	return table, nil
}

// take is the part of grow under the lock. It leaves the cache in use, so that
// nobody closes it while its pages are filled.
func (c *Cache) take(table, shared []int32, n int) ([]int32, error) {
	if err := c.lock(); err != nil {
		return nil, err
	}
	defer c.mu.Unlock()
	table, err := c.pool.take(append(table, shared...), n)
	if err != nil {
		return nil, err
	}
	c.pool.hold(shared)
	c.uses++
	return table, nil
}

// drop gives up pages. Once the cache is closed there are none.
func (c *Cache) drop(pages []int32) {
	if c.lock() == nil {
		defer c.mu.Unlock()
		c.pool.drop(pages)
	}
}

// shared tells whether a page has several holders.
func (c *Cache) shared(page int32) bool {
	if c.lock() != nil {
		return false
	}
	defer c.mu.Unlock()
	return c.pool.pages[page].refs > 1
}

// zero clears a page that only the caller holds. A page of fresh memory is zero
// and is not touched: its first writer is the first to need it.
func (c *Cache) zero(id int32) {
	if pg := &c.pool.pages[id]; !pg.dirty {
		pg.dirty = true
		return
	}
	for l := range c.cfg.Layers {
		at := c.geo.rows.at(id, l, 0)
		clear(c.arena[at : at+c.geo.block])
		clear(c.scalesAt(id, l, 0, c.cfg.PageTokens))
	}
}

// rowsAt returns the rows of n tokens of a page, from a slot on.
func (c *Cache) rowsAt(page int32, layer, slot, n int) []byte {
	at := c.geo.rows.at(page, layer, slot)
	end := at + n*c.geo.rows.token
	return c.arena[at:end:end]
}

// scalesAt returns their scales in the second plane.
func (c *Cache) scalesAt(page int32, layer, slot, n int) []byte {
	at := c.geo.scales.at(page, layer, slot)
	end := at + n*c.geo.scales.token
	return c.outer[at:end:end]
}

// locate puts a token into place i of a tile.
func (c *Cache) locate(t *tile, i int, page int32, layer, slot int) {
	t.rows[i] = c.geo.rows.at(page, layer, slot)
	t.scales[i] = c.geo.scales.at(page, layer, slot)
}

// widen reads a tile.
func (c *Cache) widen(t *tile) { c.cfg.Format.widen(t, c.arena, c.outer, &c.cfg) }

// bytesOf returns the memory of x.
func bytesOf(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// pagesFor is how many pages tokens take, for any tokens >= 0.
func (c *Cache) pagesFor(tokens int) int {
	n := tokens / c.cfg.PageTokens
	if tokens%c.cfg.PageTokens != 0 {
		n++
	}
	return n
}
