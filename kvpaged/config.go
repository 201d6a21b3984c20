package kvpaged

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
)

// Order is how layers and pages lie in the arena.
type Order uint8

const (
	LayerMajor Order = iota // [Layers][Pages][page]: one layer is one piece
	PageMajor               // [Pages][Layers][page]: one page is one piece, as MAX has it
)

// Config describes a cache.
type Config struct {
	Layers     int    // attention layers, at least 1
	PageTokens int    // tokens of a page, at least 1
	Width      int    // values of a row, at least 1: latent and rope, C = R+P; 576 in DSMLA656, 512 in V4_584 and V41*
	Format     Format // of the stored values; the zero value is BF16
	Pages      int    // of the pool, 1 to 2^26

	// Scale is the scale of an FP8Tensor cache, honoured exactly whatever it
	// is. Other formats have none and want it 0; Format.Scales tells.
	Scale float32

	// Group is how many values of a row share a scale in an FP8Token cache,
	// at least 1. The groups run over latent and rope together, the last may
	// be short. Other formats want it 0.
	Group int

	// Arena is the caller's memory, at least ArenaBytes long and aligned to
	// the values of the format. The cache uses it until Close and leaves what
	// is in it. nil: the cache maps memory of its own, zeroed.
	Arena []byte
	Order Order

	// Scales is the caller's memory for the scales of an FP8Token cache,
	// [Layers, Pages, PageTokens, ceil(Width/Group)] in LayerMajor or [Pages,
	// Layers, PageTokens, ceil(Width/Group)] in PageMajor, or more; the arena
	// then holds the codes alone. It is used like Arena. nil: the scales lie
	// in the arena, as a second plane in each page. Other formats want nil.
	Scales []float32

	// Adopted says that somebody else's allocator owns the pages: none is free
	// for Reserve, nor for the copy that Fork may make, they come through Adopt
	// and Import, and a page that no sequence holds any more is again that
	// allocator's. Who may read which page is its business too. A cache that is
	// not Adopted owns its pages, and takes no page numbers (ErrOwned).
	Adopted bool
}

// ArenaBytes returns the size of the arena that a cache of this Config needs;
// Arena itself is not looked at.
func ArenaBytes(cfg Config) (int64, error) {
	g, err := cfg.geometry()
	return int64(g.arena), err
}

// geometry is where things lie, in bytes.
type geometry struct {
	rows   plane // in the arena
	scales plane // in the arena too, or in Config.Scales
	block  int   // one page in one layer
	page   int   // one page in all layers
	arena  int
	outer  int // of Config.Scales, if the scales lie there
}

// plane is where the bytes of the tokens lie that belong together: their rows or
// their scales.
type plane struct {
	token int // bytes of one token; those of the page follow each other
	first int // where page 0 of layer 0 begins
	nextL int // from a layer to the next
	nextP int // from a page to the next
}

// at is where the bytes of a token begin.
func (p *plane) at(page int32, layer, slot int) int {
	return p.first + int(page)*p.nextP + layer*p.nextL + slot*p.token
}

// geometry checks a Config, all but its memory.
func (cfg *Config) geometry() (geometry, error) {
	if err := cfg.check(); err != nil {
		return geometry{}, err
	}
	f := &formats[cfg.Format]
	var n sizes
	var g geometry
	g.rows.token = n.add(n.times(f.elem, cfg.Width), f.row)
	g.scales.token = f.scales
	if f.outer == ScaleToken {
		g.scales.token = n.times(tokenScale, (cfg.Width-1)/cfg.Group+1)
	}
	plane1, plane2 := n.times(g.rows.token, cfg.PageTokens), n.times(g.scales.token, cfg.PageTokens)
	g.block = plane1
	if cfg.Scales == nil {
		g.block = n.roundUp(n.add(plane1, plane2), f.round)
	} else {
		g.outer = n.times(n.times(plane2, cfg.Layers), cfg.Pages)
	}
	g.page = n.times(g.block, cfg.Layers)
	g.arena = n.times(g.page, cfg.Pages)
	if n.tooLarge {
		return geometry{}, fmt.Errorf("%w: %s are more than 2^63-1 bytes", ErrConfig, cfg.numbers())
	}
	cfg.spread(&g.rows, g.block)
	if cfg.Scales == nil {
		g.scales.first = plane1
		cfg.spread(&g.scales, g.block)
	} else {
		cfg.spread(&g.scales, plane2)
	}
	return g, nil
}

// spread lays the blocks of a plane out in the order of the Config.
func (cfg *Config) spread(p *plane, block int) {
	if cfg.Order == LayerMajor {
		p.nextP, p.nextL = block, block*cfg.Pages
	} else {
		p.nextP, p.nextL = block*cfg.Layers, block
	}
}

// check tests each field by itself.
func (cfg *Config) check() error {
	if !cfg.Format.known() {
		return fmt.Errorf("%w: %v", ErrFormat, cfg.Format)
	}
	for _, f := range []struct {
		name      string
		value, hi int
	}{
		{"Layers", cfg.Layers, math.MaxInt},
		{"PageTokens", cfg.PageTokens, math.MaxInt},
		{"Width", cfg.Width, math.MaxInt},
		{"Pages", cfg.Pages, maxPages},
	} {
		if f.value < 1 || f.value > f.hi {
			return fmt.Errorf("%w: %s is %d, want 1 to %d", ErrConfig, f.name, f.value, f.hi)
		}
	}
	f := &formats[cfg.Format]
	switch {
	case f.width != 0 && cfg.Width != f.width:
		return fmt.Errorf("%w: Width is %d, want %d in %v", ErrConfig, cfg.Width, f.width, cfg.Format)
	case cfg.Order > PageMajor:
		return fmt.Errorf("%w: Order is %d, want LayerMajor or PageMajor", ErrConfig, cfg.Order)
	case cfg.Scale != 0 && f.outer != ScaleTensor:
		return fmt.Errorf("%w: Scale is %v, but %v has no such scale", ErrConfig, cfg.Scale, cfg.Format)
	case f.outer == ScaleToken && cfg.Group < 1:
		return fmt.Errorf("%w: Group is %d, want at least 1 in %v", ErrConfig, cfg.Group, cfg.Format)
	case f.outer != ScaleToken && cfg.Group != 0:
		return fmt.Errorf("%w: Group is %d, but %v has no such groups", ErrConfig, cfg.Group, cfg.Format)
	case f.outer != ScaleToken && cfg.Scales != nil:
		return fmt.Errorf("%w: Scales are given, but %v takes none", ErrConfig, cfg.Format)
	}
	return nil
}

// numbers is what the sizes of the memory come from.
func (cfg *Config) numbers() string {
	return fmt.Sprintf("%d layers x %d pages x %d tokens x %d values of %v",
		cfg.Layers, cfg.Pages, cfg.PageTokens, cfg.Width, cfg.Format)
}

// sizes computes with sizes, and remembers if one was too large for an int.
type sizes struct{ tooLarge bool }

func (s *sizes) times(x, y int) int {
	hi, lo := bits.Mul64(uint64(x), uint64(y))
	s.tooLarge = s.tooLarge || hi != 0 || lo > math.MaxInt
	return int(lo & math.MaxInt)
}

func (s *sizes) add(x, y int) int {
	s.tooLarge = s.tooLarge || x > math.MaxInt-y
	return (x + y) & math.MaxInt
}

func (s *sizes) roundUp(x, multiple int) int {
	return s.add(x, multiple-1) / multiple * multiple
}

// checkMemory tests the caller's memory.
func (cfg *Config) checkMemory(g *geometry) error {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		return fmt.Errorf("%w: rows are little-endian, this machine is not", ErrConfig)
	}
	if want := g.outer / 4; len(cfg.Scales) < want {
		return fmt.Errorf("%w: Scales has %d values, want %s in groups of %d = %d", ErrConfig,
			len(cfg.Scales), cfg.numbers(), cfg.Group, want)
	}
	if cfg.Arena == nil {
		return nil
	}
	if len(cfg.Arena) < g.arena {
		return fmt.Errorf("%w: Arena has %d bytes, want %s = %d", ErrConfig, len(cfg.Arena), cfg.numbers(), g.arena)
	}
	if !cfg.Format.aligned(cfg.Arena) {
		return fmt.Errorf("%w: Arena is at %p, want a multiple of %d for the values of %v",
			ErrConfig, &cfg.Arena[0], formats[cfg.Format].align, cfg.Format)
	}
	return nil
}
