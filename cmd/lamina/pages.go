package main

import (
	"fmt"
	"slices"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
)

// pageTable says where the rows of the sequences lie.
type pageTable struct {
	lookup  []int32 // [B, width] page of every PageTokens tokens; blocks and -1 are none
	width   int
	lengths []int // [B] cached tokens
	fresh   []int // [B] new tokens
}

func (p *pageTable) shape() checkpoint.Shape { return checkpoint.Shape{len(p.lengths), p.width} }

// keys is the cached and new tokens of sequence b.
func (p *pageTable) keys(b int) int { return p.lengths[b] + p.fresh[b] }

func (p *pageTable) row(b int) []int32 { return p.lookup[b*p.width : (b+1)*p.width] }

// holes reports whether some keys are in pages that are not mapped.
func (p *pageTable) holes(c kvpaged.Config) bool {
	for b := range p.lengths {
		for _, id := range p.row(b)[:ceilDiv(p.keys(b), c.PageTokens)] {
			if id < 0 || int(id) >= c.Pages {
				return true
			}
		}
	}
	return false
}

// longest is the most keys of a sequence.
func (p *pageTable) longest() int {
	n := 0
	for b := range p.lengths {
		n = max(n, p.keys(b))
	}
	return n
}

// readCache reads the cache and its page table.
func (g *graphCase) readCache(r *reader) {
	layers := r.whole("layers", 1)
	if g.layer = r.whole("layer", 0); g.layer >= layers {
		r.failf("metadata layer is %d, wanted 0 to %d", g.layer, layers-1)
	}
	g.cache = r.store(firstCache, []dim{{"layers", layers}}, dim{"latent+rope", g.cfg.Width()})
	g.readTable(r)
}

// readTable reads the page table and checks it: every page that a key of its sequence lies in
// has an entry that is a page or none, and every new token has a page.
func (g *graphCase) readTable(r *reader) {
	if r.err != nil {
		return
	}
	seqs := dim{"sequences", len(g.offsets) - 1}
	lengths := r.ints("cache.lengths", seqs)
	t := r.tensor("cache.lookup", types(checkpoint.I32), seqs, free("pages"))
	if r.err != nil {
		return
	}
	p := &g.pages
	lookup, err := t.I32s()
	if err != nil {
		r.failf("%w", err)
		return
	}
	p.lookup, p.width = lookup, t.Shape[1]
	for b, n := range lengths {
		if n < 0 {
			r.failf("tensor cache.lengths [%d]: value %d is %d, wanted at least 0", len(lengths), b, n)
			return
		}
		if fresh := g.newTokens(b); int(n)+fresh > maxSize {
			r.failf("tensor cache.lengths [%d]: value %d is %d, wanted at most %d with the %d new tokens", len(lengths), b, n, maxSize, fresh)
			return
		}
		p.lengths, p.fresh = append(p.lengths, int(n)), append(p.fresh, g.newTokens(b))
		g.readTableRow(r, b, t)
	}
}

func (g *graphCase) readTableRow(r *reader, b int, t checkpoint.Tensor) {
	p, page := &g.pages, g.cache.PageTokens
	need := ceilDiv(p.keys(b), page)
	if need > p.width {
		r.failf("tensor %v: sequence %d has %d+%d tokens in pages of %d, wanted at least %d entries",
			t, b, p.lengths[b], p.fresh[b], page, need)
		return
	}
	for i, id := range p.row(b)[:need] {
		if id < -1 || int(id) > g.cache.Pages {
			r.failf("tensor %v: entry %d of sequence %d is %d, wanted -1 to %d", t, i, b, id, g.cache.Pages)
			return
		}
		if !g.mapped(id) && p.fresh[b] > 0 && (i+1)*page > p.lengths[b] {
			r.failf("tensor %v: entry %d of sequence %d is %d, not mapped, but new tokens go there", t, i, b, id)
			return
		}
	}
	if rope := g.cfg.Rope; rope > 0 && p.fresh[b] > 0 && g.freqs.Len()/rope < p.keys(b) {
		r.failf("tensor freqs_cis is [%d, %d], wanted at least [%d, %d] for the %d tokens of sequence %d",
			g.freqs.Len()/rope, rope, p.keys(b), rope, p.keys(b), b)
	}
}

func (g *graphCase) mapped(id int32) bool { return id >= 0 && int(id) < g.cache.Pages }

// openCache makes the cache, on a copy of the file's blocks, and its sequences. A page size
// other than the file's (0: the file's) moves every row to where it then belongs, and physical
// indices with them.
func (g *graphCase) openCache(page int) (*kvpaged.Cache, []*kvpaged.Seq, error) {
	cache, seqs, err := adopt(copied(g.cache), g.pages)
	if err != nil || page == 0 || page == g.cache.PageTokens {
		return cache, seqs, err
	}
	// The file's own page size was good, now the other.
	cache.Close()
	cfg, pages, err := g.repage(page)
	if err != nil {
		return nil, nil, err
	}
	return adopt(cfg, pages)
}

func adopt(cfg kvpaged.Config, p pageTable) (*kvpaged.Cache, []*kvpaged.Seq, error) {
	cache, err := openStore(firstCache, cfg)
	if err != nil {
		return nil, nil, err
	}
	seqs, err := kvpaged.ImportLookup(cache, p.lookup, p.lengths, p.fresh)
	if err != nil {
		cache.Close()
		return nil, nil, fmt.Errorf("tensor cache.lookup %v: %w", p.shape(), err)
	}
	return cache, seqs, nil
}

// repage lays the sequences out in pages of another size, each in pages of its own. Rows of no
// sequence are lost, unless physical indices may name them.
func (g *graphCase) repage(page int) (kvpaged.Config, pageTable, error) {
	p, pages := pageTable{lengths: g.pages.lengths, fresh: g.pages.fresh}, 1
	for b := range p.lengths {
		n := ceilDiv(p.keys(b), page)
		p.width = max(p.width, n)
		pages += n
	}
	if err := repageable(g.cache, page, pages); err != nil {
		return g.cache, p, err
	}
	moves := newMoves(g.cache, page)
	p.lookup = make([]int32, len(p.lengths)*p.width)
	for b := range p.lengths {
		g.place(moves, b, p.row(b))
	}
	if s := g.sparse; s != nil && s.Logical {
		s.Indices = g.mappedOnly(s.Indices)
	} else if s != nil {
		moves.putRest()
		s.Indices = moves.indices(s.Indices)
	}
	cfg, err := moves.repage(g.cache)
	return cfg, p, err
}

// place puts the rows of sequence b into new pages, which it enters in table.
func (g *graphCase) place(m *moves, b int, table []int32) {
	for i := range table {
		table[i] = -1
	}
	for pos := range g.pages.keys(b) {
		from := g.physical(b, pos)
		if from < 0 {
			continue
		}
		entry := &table[pos/m.page]
		if *entry < 0 {
			*entry = int32(m.take())
		}
		m.put(from, int(*entry)*m.page+pos%m.page)
	}
}

// physical is the physical row of a position of sequence b, -1 if its page is not mapped.
func (g *graphCase) physical(b, pos int) int {
	size := g.cache.PageTokens
	id := g.pages.row(b)[pos/size]
	if !g.mapped(id) {
		return -1
	}
	return int(id)*size + pos%size
}

// mappedOnly are logical indices without those into pages that are not mapped: a new page may
// hold positions of which some were mapped.
func (g *graphCase) mappedOnly(indices []int32) []int32 {
	kept := slices.Clone(indices)
	stride := g.sparse.Stride
	for b := range g.pages.lengths {
		rows := kept[int(g.offsets[b])*stride : int(g.offsets[b+1])*stride]
		for i, pos := range rows {
			if pos >= 0 && int(pos) < g.pages.keys(b) && g.physical(b, int(pos)) < 0 {
				rows[i] = invalid(pos)
			}
		}
	}
	return kept
}
