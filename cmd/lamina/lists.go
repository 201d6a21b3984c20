package main

import (
	"strings"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// indexList is a list of rows for each of T query tokens in B sequences.
type indexList struct {
	indices []int32 // [T, stride]
	stride  int
	lengths []int32 // [B] or [T], or nil
	per     mla.TopKPer
}

// extraCache is a second cache, and the lists of its rows.
type extraCache struct {
	cache kvpaged.Config // its memory still the file's
	indexList
}

func (x *extraCache) open() (*mla.Extra, error) {
	cache, err := openCopy(secondCache, x.cache)
	if err != nil {
		return nil, err
	}
	return &mla.Extra{Cache: cache, Indices: x.indices, Stride: x.stride, Lengths: x.lengths, LengthsPer: x.per}, nil
}

// named names the lists of a second cache, if there is one, beside those of the first.
func (x *extraCache) named() string {
	if x == nil {
		return ""
	}
	return " or extra.indices"
}

// queries are the query tokens that lists belong to.
type queries struct {
	seqs, tokens int
	dims         []dim // of indices, all but the last
	loose        bool  // of no sequence: only tokens have lengths
}

// list reads indices and topk_lengths, or those of the second cache.
func (r *reader) list(cache string, q queries) indexList {
	name := cacheKey(cache, "indices")
	t := r.tensor(name, types(checkpoint.I32), append(q.dims[:len(q.dims):len(q.dims)], free("topk"))...)
	l := indexList{indices: r.intsOf(t)}
	if r.err == nil {
		l.stride = t.Shape[len(t.Shape)-1]
		r.lengths(&l, cache, q)
	}
	return l
}

// lengths reads how many entries of the lists count, and resolves what is indexed by what: a
// sequence or a token has a length. If the number of lengths does not tell, it is a sequence.
func (r *reader) lengths(l *indexList, cache string, q queries) {
	name := cacheKey(cache, "topk_lengths")
	per := r.topkPer(cache, q)
	t, ok := r.file.Tensor(name)
	if !ok || r.err != nil {
		return
	}
	seqs, tokens := []dim{{"sequences", q.seqs}}, []dim{{"tokens", q.tokens}}
	switch {
	case per != "token" && fits(t.Shape, seqs):
		l.per, tokens = mla.TopKPerSequence, seqs
	case per != "sequence" && fits(t.Shape, tokens):
		l.per = mla.TopKPerToken
	case per != "sequence" && fits(t.Shape, q.dims):
		l.per, tokens = mla.TopKPerToken, q.dims
	default:
		shapes := map[string][]string{"": {wanted(seqs), wanted(tokens)}, "sequence": {wanted(seqs)}, "token": {wanted(tokens)}}
		r.failf("tensor %s is %v, wanted %s", name, t.Shape, strings.Join(shapes[per], " or "))
		return
	}
	l.lengths = r.ints(name, tokens...)
}

// topkPer is sequence, token, or empty if the file does not say. What it says of the first
// cache's lengths goes for the second one's too where their number does not tell.
func (r *reader) topkPer(cache string, q queries) string {
	const key = "topk_per"
	own := cacheKey(cache, key)
	switch {
	case q.loose && r.has(key):
		return r.choice(key, "token")
	case q.loose:
		return "token"
	case r.has(own):
		return r.choice(own, "sequence", "token")
	case r.has(key) && q.seqs == q.tokens:
		return r.choice(key, "sequence", "token")
	}
	return ""
}

// extra reads the second cache and its lists, nil if the case has none. It has one layer, and
// rows as wide as the first.
func (r *reader) extra(q queries, width dim) *extraCache {
	there := false
	for _, name := range r.file.Names() {
		there = there || strings.HasPrefix(name, secondCache+".")
	}
	if !there || r.err != nil {
		return nil
	}
	return &extraCache{cache: r.store(secondCache, nil, width), indexList: r.list(secondCache, q)}
}
