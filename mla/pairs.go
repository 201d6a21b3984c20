package mla

import (
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// The tiles of the second arithmetic: keys as rows of bf16, where they lie if they may be read as they are, and their
// values once more in pairs of keys. A place of a pair that holds no key holds zeros, or what the cache has there: no row
// sees it.

// readPairs makes the keys of t those of v from k0, an even position, on.
func (s *scratch) readPairs(t *tile, v *kvpaged.View, k0 int) {
	ld, missing := stride16(t.k), 0
	if !v.Mapped(k0) { // a window begins at the key after it
		missing = 1
		clear(s.pairX[:t.k])
	} else if t.px, t.ldx = v.RunBF16(k0, t.keys), t.k; t.px != nil {
		s.pairsInPlace(t)
		t.unlaced, t.ldu = t.px, t.ldx
		return
	}
	v.ReadBF16(s.pairX[missing*ld:], ld, s.pairWide, k0+missing, t.keys-missing)
	t.px, t.ldx, t.unlaced, t.ldu = s.pairX, ld, s.pairX, ld
}

// pairsInPlace makes the rows of t, px, a copy in which small values are zeros, if there are any.
func (s *scratch) pairsInPlace(t *tile) {
	rows, cols := t.keys, t.k
	if t.ldx == t.k { // in one go
		rows, cols = 1, rows*cols
	}
	if simd.TinyBF16(t.px, t.ldx, rows, cols) {
		ld := stride16(t.k)
		for i := range t.keys {
			simd.FlushBF16(s.pairX[i*ld:][:t.k], t.px[i*t.ldx:][:t.k])
		}
		t.px, t.ldx = s.pairX, ld
	}
}

// narrow reads n values of x from element at on as keys and values are read. n is at most C.
func (s *scratch) narrow(dst []uint16, x Rows, at, n int) {
	if h := x.BF16(); h != nil {
		simd.FlushBF16(dst[:n], h[at:][:n])
		return
	}
	if f := x.F32(); f != nil {
		simd.NarrowValueBF16(dst[:n], f[at:][:n])
		return
	}
	x.Widen(s.row, at, n)
	simd.NarrowValueBF16(dst[:n], s.row[:n])
}

// gatherPairs is gather for the second arithmetic: entries stay in the pairs in which they stand in the list, and what is
// none next to one that is not is a hole. Pairs of two that are none are dropped.
func (p *Plan) gatherPairs(s *scratch, t *tile, seg *segment, l *list, entries []int32) (ignored int64) {
	holes := s.holes[:0]
	for len(entries) > 0 {
		pair := entries[:min(2, len(entries))]
		entries = entries[len(pair):]
		found, before := false, len(holes)
		for place, x := range pair {
			some, fault := p.selects(seg, l, x)
			if fault {
				ignored++
			}
			if !some {
				holes = append(holes, int32(t.keys+place))
			}
			found = found || some
			s.picked[t.keys+place] = x
		}
		if !found {
			holes = holes[:before]
			continue
		}
		t.keys += len(pair)
	}
	ld, from := stride16(t.k), 0
	for _, hole := range holes {
		p.gatherRun(s, seg, l, from, int(hole))
		clear(s.pairX[int(hole)*ld:][:t.k])
		from = int(hole) + 1
	}
	p.gatherRun(s, seg, l, from, t.keys)
	t.holes, t.px, t.ldx, t.unlaced, t.ldu = holes, s.pairX, ld, s.pairX, ld
	return ignored
}

// gatherRun reads the rows that places [from, to) of a tile were picked for.
func (p *Plan) gatherRun(s *scratch, seg *segment, l *list, from, to int) {
	width, ld := p.cfg.Width(), stride16(p.cfg.Width())
	picked, dst := s.picked[from:to], s.pairX[from*ld:]
	switch {
	case from == to:
	case l.logical:
		p.views[seg.seq].GatherBF16(dst, ld, s.pairWide, picked)
	case l.source.plain:
		for i, row := range picked {
			s.narrow(dst[i*ld:], l.source.dense, int(row)*width, width)
		}
	default:
		l.source.pool.GatherBF16(dst, ld, s.pairWide, picked)
	}
}
