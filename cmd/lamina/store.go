package main

import (
	"fmt"
	"slices"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
)

// A case has a cache, whose tensors are cache.blocks and so on, and may have a second one.
const (
	firstCache  = "cache"
	secondCache = "extra"
)

// cacheKey is the metadata key of a property of a cache: page and extra.page.
func cacheKey(cache, property string) string {
	if cache == firstCache {
		return property
	}
	return cache + "." + property
}

// elements are the types of blocks that are values and nothing else. Of every other format the
// blocks are bytes, which do for these too.
var elements = map[kvpaged.Format]checkpoint.DType{
	kvpaged.BF16:      checkpoint.BF16,
	kvpaged.F16:       checkpoint.F16,
	kvpaged.F32:       checkpoint.F32,
	kvpaged.FP8Unit:   checkpoint.F8_E4M3,
	kvpaged.FP8Tensor: checkpoint.F8_E4M3,
	kvpaged.FP8Token:  checkpoint.F8_E4M3,
}

// store reads what is in a cache before the call. Rows have width values; the tensors have the
// dimension layers after the blocks, or none if layers is nil. Arena and Scales of what comes
// back are still the file's.
func (r *reader) store(cache string, layers []dim, width dim) kvpaged.Config {
	c := kvpaged.Config{Layers: 1, Width: width.n, Order: kvpaged.PageMajor, Adopted: true}
	if layers != nil {
		c.Layers = layers[0].n
	}
	c.PageTokens = r.whole(cacheKey(cache, "page"), 1)
	key := cacheKey(cache, "cache")
	name := r.text(key)
	if r.err != nil {
		return c
	}
	var err error
	if c.Format, err = kvpaged.ParseFormat(name); err != nil {
		r.failf("metadata %s is %q: %w", key, name, err)
		return c
	}
	switch c.Format.Scales() {
	case kvpaged.ScaleTensor:
		if scale := r.floats(cache+".scale", dim{"", 1}); len(scale) == 1 {
			c.Scale = scale[0]
		}
	case kvpaged.ScaleToken:
		c.Group = r.whole(cacheKey(cache, "cache_group"), 1)
		c.Scales = []float32{} // not in the arena
	}
	if r.err != nil {
		return c
	}
	if c.Format.Planar() && c.Scales == nil {
		r.planarBlocks(cache, layers, &c)
	} else {
		r.tokenBlocks(cache, layers, width, &c)
	}
	if c.Scales != nil {
		r.tokenScales(cache, layers, &c)
	}
	return c
}

// bytesOf is the size of a page of some tokens in one layer.
func (r *reader) bytesOf(cache string, c kvpaged.Config, tokens int) int {
	c.Layers, c.Pages, c.PageTokens = 1, 1, tokens
	n, err := kvpaged.ArenaBytes(c)
	if err != nil {
		r.failf("metadata %s is %q: %w", cacheKey(cache, "cache"), c.Format, err)
	}
	return int(n)
}

// tokenBlocks reads blocks that are cut into tokens: of values, or of bytes.
func (r *reader) tokenBlocks(cache string, layers []dim, width dim, c *kvpaged.Config) {
	name, of, row := cache+".blocks", types(checkpoint.U8), width
	element, values := elements[c.Format]
	if values {
		of = types(element, checkpoint.U8)
	}
	size := r.bytesOf(cache, *c, 1)
	if t, ok := r.file.Tensor(name); !values || ok && t.DType == checkpoint.U8 {
		row = dim{"row bytes", size}
	}
	r.take(c, r.tensor(name, of, blocksOf(layers, dim{"page", c.PageTokens}, row)...))
}

// planarBlocks reads blocks that are pages of bytes. With one layer its dimension may be left
// out.
func (r *reader) planarBlocks(cache string, layers []dim, c *kvpaged.Config) {
	name, page := cache+".blocks", dim{"page bytes", r.bytesOf(cache, *c, c.PageTokens)}
	dims := blocksOf(layers, page)
	if t, ok := r.file.Tensor(name); ok && c.Layers == 1 && len(t.Shape) == 2 {
		dims = blocksOf(nil, page)
	}
	r.take(c, r.tensor(name, types(checkpoint.U8), dims...))
}

// take makes the blocks the cache's arena.
func (r *reader) take(c *kvpaged.Config, t checkpoint.Tensor) {
	if r.err != nil {
		return
	}
	if c.Pages = t.Shape[0]; c.Pages == 0 {
		r.failf("tensor %v has no blocks, wanted at least 1", t)
	}
	var err error
	if c.Arena, err = t.Bytes(); err != nil {
		r.failf("%w", err)
	}
}

// tokenScales reads scales that are a tensor of their own. A cache without layers may have a dimension of
// one.
func (r *reader) tokenScales(cache string, layers []dim, c *kvpaged.Config) {
	if r.err != nil {
		return
	}
	name := cache + ".scales"
	if t, ok := r.file.Tensor(name); ok && len(t.Shape) == 4 && layers == nil {
		layers = []dim{{"layers", 1}}
	}
	dims := blocksOf(layers, dim{"page", c.PageTokens}, dim{"row/cache_group", ceilDiv(c.Width, c.Group)})
	dims[0].n = c.Pages
	c.Scales = r.floats(name, dims...)
}

// blocksOf is a shape that begins with blocks and, if there are any, layers.
func blocksOf(layers []dim, rest ...dim) []dim {
	return slices.Concat([]dim{free("blocks")}, layers, rest)
}

// openCopy makes a cache on a copy of the file's memory.
func openCopy(cache string, c kvpaged.Config) (*kvpaged.Cache, error) {
	return openStore(cache, copied(c))
}

// openStore is kvpaged.New, whose faults lie in the blocks.
func openStore(cache string, c kvpaged.Config) (*kvpaged.Cache, error) {
	store, err := kvpaged.New(c)
	if err != nil {
		return nil, fmt.Errorf("tensor %s.blocks, %d pages of %d tokens: %w", cache, c.Pages, c.PageTokens, err)
	}
	return store, nil
}

// copied is c on copies of its memory.
func copied(c kvpaged.Config) kvpaged.Config {
	c.Arena, c.Scales = slices.Clone(c.Arena), slices.Clone(c.Scales)
	return c
}
