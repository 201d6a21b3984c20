package main

import (
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/kvpaged"
)

// moves lays a cache out anew in pages of another size: it says where each physical row, of
// every layer, goes. Page 0 is one that nobody owns.
type moves struct {
	page  int   // tokens of a new page
	pages int   // new pages so far
	home  []int // new place of each old row, the first of several; -1: none
	all   []move
}

type move struct{ from, to int }

func newMoves(old kvpaged.Config, page int) *moves {
	m := &moves{page: page, pages: 1, home: make([]int, old.Pages*old.PageTokens)}
	for i := range m.home {
		m.home[i] = -1
	}
	return m
}

// take makes another page.
func (m *moves) take() int {
	m.pages++
	return m.pages - 1
}

// put moves a row, or another copy of it: sequences that shared it no longer do.
func (m *moves) put(from, to int) {
	m.all = append(m.all, move{from, to})
	if m.home[from] < 0 {
		m.home[from] = to
	}
}

// putRest moves all rows that have no place yet, and turns their order round.
func (m *moves) putRest() {
	slot, base := m.page, 0
	for from := len(m.home) - 1; from >= 0; from-- {
		if m.home[from] >= 0 {
			continue
		}
		if slot == m.page {
			slot, base = 0, m.take()*m.page
		}
		m.put(from, base+slot)
		slot++
	}
}

// indices are physical indices after the moves, of all rows.
func (m *moves) indices(old []int32) []int32 {
	moved := make([]int32, len(old))
	for i, x := range old {
		switch {
		case x < 0:
			moved[i] = x
		case int(x) < len(m.home):
			moved[i] = int32(m.home[x])
		default:
			moved[i] = invalid(x)
		}
	}
	return moved
}

// invalid is an index that is none, as x is, but whatever the size of the cache.
func invalid(x int32) int32 { return min(^x, -2) }

// maxRepaged bounds the cache that -page makes.
const maxRepaged = 1 << 30

// repageable tests the size of the cache that old would become, and that indices reach it.
func repageable(old kvpaged.Config, page, pages int) error {
	c := old
	c.PageTokens, c.Pages, c.Scales = page, pages, nil
	size, err := kvpaged.ArenaBytes(c) // with scales
	switch {
	case err != nil:
	case size > maxRepaged:
		err = fmt.Errorf("the cache would take %d bytes, at most %d are allowed", size, maxRepaged)
	case pages > math.MaxInt32/page:
		err = fmt.Errorf("%d pages have more rows than an index reaches", pages)
	}
	if err != nil {
		return fmt.Errorf("-page %d: %w", page, err)
	}
	return nil
}

// repage makes the new cache's memory. Rows that none was moved to are bytes that are a NaN in
// every format.
func (m *moves) repage(old kvpaged.Config) (kvpaged.Config, error) {
	c := old
	c.PageTokens, c.Pages = m.page, m.pages
	if err := repageable(old, m.page, m.pages); err != nil {
		return c, err
	}
	size, err := kvpaged.ArenaBytes(c)
	if err != nil {
		return c, err
	}
	c.Arena = make([]byte, size)
	for i := range c.Arena {
		c.Arena[i] = 0xFF
	}
	if old.Scales != nil {
		c.Scales = make([]float32, m.pages*m.page*c.Layers*ceilDiv(c.Width, c.Group))
		for i := range c.Scales {
			c.Scales[i] = float32(math.NaN())
		}
	}
	return c, m.carry(c, copied(old))
}

// carry moves the rows from the memory of one cache to that of another.
func (m *moves) carry(to, from kvpaged.Config) error {
	source, err := kvpaged.New(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := kvpaged.New(to)
	if err != nil {
		return err
	}
	defer target.Close()
	rows, err := source.Adopt(everyPage(from), from.Pages*from.PageTokens, 0)
	if err != nil {
		return err
	}
	slots, err := target.Adopt(everyPage(to), 0, to.Pages*to.PageTokens)
	if err != nil {
		return err
	}
	for layer := range to.Layers {
		if err := m.carryLayer(slots, rows, layer); err != nil {
			return err
		}
	}
	return nil
}

// everyPage is the page table of a sequence whose positions are the physical rows.
func everyPage(c kvpaged.Config) []int32 {
	pages := make([]int32, c.Pages)
	for i := range pages {
		pages[i] = int32(i)
	}
	return pages
}

func (m *moves) carryLayer(to, from *kvpaged.Seq, layer int) error {
	source, err := from.Lease(layer, 0)
	if err != nil {
		return err
	}
	defer source.Release()
	target, err := to.Lease(layer, to.Reserved())
	if err != nil {
		return err
	}
	defer target.Release()
	for _, x := range m.all {
		row, scales := token(&source, x.from)
		newRow, newScales := token(&target, x.to)
		copy(newRow, row)
		copy(newScales, scales)
	}
	return nil
}

// token is the bytes of a token in both planes of its page.
func token(v *kvpaged.View, pos int) (row, scales []byte) {
	rows, n := v.Run(pos)
	planes := v.Scales(pos)
	return rows[:len(rows)/n], planes[:len(planes)/n]
}
