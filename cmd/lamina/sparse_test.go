package main

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The embedded cases that the tests here change.
const (
	small    = "sparse_decode_small_f32q"           // 3 sequences, 24 of 9 pages of 7 bf16 rows of 48
	twoPools = "sparse_decode_extra_only"           // 3 sequences, rows of 96 in pages of 16 and 5
	planar   = "sparse_decode_v41_planar_fp4_extra" // 2 sequences of 2 tokens, pages of 8 and 5
	records  = "sparse_decode_ds_mla_sink"          // 2 sequences of 2 tokens, lists of 48
	loose    = "sparse_prefill_small_f32"           // 20 tokens, 50 rows of 40
	logical  = "graph_sparse_logical"               // 3 sequences, 4 tokens
	physical = "graph_sparse_physical_sink"         // 2 sequences, 4 tokens
	tokens   = "graph_cache_fp8_token"
	dynamic  = "graph_dyn_cap_decode"
)

// TestRefusedSparseCases is TestRefusedCases for index lists, a second cache, the formats with
// scales and quantised activations.
func TestRefusedSparseCases(t *testing.T) {
	tests := alterations{
		"no rows of width":      {small, func(d draft) { d.meta["d_v"] = "49" }, "metadata d_v is 49, wanted at most the d_qk of q F32 [3, 1, 5, 48]"},
		"many heads":            {small, func(d draft) { d.shape("q", 0, 1, 1<<30, 48) }, "tensor q F32 [0, 1, 1073741824, 48] has 1073741824 heads, wanted at most 1048576"},
		"wide heads":            {small, func(d draft) { d.shape("q", 0, 1, 5, 1<<20+1) }, "has 1048577 values of a head, wanted at most 1048576"},
		"many sequences":        {small, func(d draft) { d.shape("q", 1<<20+1, 0, 5, 48) }, "has 1048577 sequences, wanted at most 1048576"},
		"many tokens":           {small, func(d draft) { d.shape("q", 3, 1<<22, 0, 48) }, "has 12582912 query tokens, wanted at most 4194304"},
		"a mask":                {small, func(d draft) { d.meta["mask"] = "null" }, `metadata mask is "null", which has no meaning in this case of op sparse_decode`},
		"blocks of weights":     {small, func(d draft) { d.meta["n_block"] = "128" }, `metadata n_block is "128", which has no meaning`},
		"a cache of a prefill":  {loose, func(d draft) { d.meta["cache"] = "bf16" }, `metadata cache is "bf16", which has no meaning in this case of op sparse_prefill`},
		"logical prefill":       {loose, func(d draft) { d.meta["index_kind"] = "logical" }, `metadata index_kind is "logical", wanted physical`},
		"no heads":              {small, func(d draft) { d.shape("q", 3, 1, 0, 48) }, "tensor q F32 [3, 1, 0, 48]: wanted at least 1 head"},
		"rows of another width": {small, func(d draft) { d.shape("cache.blocks", 9, 7, 47) }, "tensor cache.blocks is [9, 7, 47], wanted [blocks, page 7, d_qk 48]"},
		"blocks with layers":    {small, func(d draft) { d.shape("cache.blocks", 9, 1, 7, 48) }, "tensor cache.blocks is [9, 1, 7, 48], wanted [blocks, page 7, d_qk 48]"},
		"no blocks":             {small, func(d draft) { d.shape("cache.blocks", 0, 7, 48) }, "has no blocks"},
		"lists of two tokens":   {small, func(d draft) { d.shape("indices", 3, 2, 24) }, "tensor indices is [3, 2, 24], wanted [b 3, s_q 1, topk]"},
		"lists of none":         {small, func(d draft) { delete(d.tensors, "indices") }, "tensor indices is missing"},
		"sinks":                 {small, func(d draft) { d.shape("attn_sink", 4) }, "tensor attn_sink is [4], wanted [h 5]"},
		"logical":               {small, func(d draft) { d.meta["index_kind"] = "logical" }, `metadata index_kind is "logical", wanted physical`},
		"fold":                  {small, func(d draft) { d.meta["fold_shared_index"] = "yes" }, `metadata fold_shared_index is "yes", wanted true or false`},
		"lse by token":          {small, func(d draft) { d.shape("expect.lse", 3, 1, 5) }, "tensor expect.lse is [3, 1, 5], wanted [b 3, h 5, s_q 1]"},
		"rows of a prefill":     {small, func(d draft) { d.add("kv", checkpoint.F32, 5, 1, 48) }, "tensor kv has no place in a case of op sparse_decode"},
		"rows of a layer":       {small, func(d draft) { d.add("expect.rows", checkpoint.F32, 3, 48) }, "tensor expect.rows has no place"},
		"a width of V4":         {small, func(d draft) { d.meta["cache"] = "v4_584" }, `metadata cache is "v4_584": kvpaged: bad config: Width is 48, want 512`},
		"another format":        {small, func(d draft) { d.meta["cache"] = "f16" }, "tensor cache.blocks is [9, 7, 48] BF16, wanted [blocks, page 7, d_qk 48] F16 or U8"},
		"scales of nothing":     {small, func(d draft) { d.add("cache.scales", checkpoint.F32, 9, 7, 2) }, "tensor cache.scales has no place"},

		"lengths for 3":           {records, func(d draft) { d.shape("topk_lengths", 3) }, "tensor topk_lengths is [3], wanted [sequences 2] or [tokens 4]"},
		"lengths per sequence":    {records, func(d draft) { d.meta["topk_per"] = "sequence"; d.shape("topk_lengths", 4) }, "tensor topk_lengths is [4], wanted [sequences 2]"},
		"lengths per token":       {records, func(d draft) { d.meta["topk_per"] = "token" }, "tensor topk_lengths is [2], wanted [tokens 4]"},
		"lengths per head":        {records, func(d draft) { d.meta["topk_per"] = "head" }, `metadata topk_per is "head", wanted sequence or token`},
		"lengths are I32":         {records, func(d draft) { d.dtype("topk_lengths", checkpoint.I64) }, "tensor topk_lengths is [2] I64, wanted [sequences 2] I32"},
		"lists differ":            {records, func(d draft) { d.meta["fold_shared_index"] = "true" }, "tensor indices [2, 2, 48]: mla"},
		"records of another size": {records, func(d draft) { d.shape("cache.blocks", 10, 16, 655) }, "tensor cache.blocks is [10, 16, 655], wanted [blocks, page 16, row bytes 656]"},
		"records of values":       {records, func(d draft) { d.dtype("cache.blocks", checkpoint.F8_E4M3) }, "F8_E4M3, wanted [blocks, page 16, row bytes 656] U8"},

		"pages of another size":  {planar, func(d draft) { d.meta["page"] = "7" }, "tensor cache.blocks is [8, 4608], wanted [blocks, page bytes 4096]"},
		"records for planes":     {planar, func(d draft) { d.meta["cache"] = "v41_528_interleaved" }, "tensor cache.blocks is [8, 4608], wanted [blocks, page 8, row bytes 528]"},
		"V4 for V4.1":            {planar, func(d draft) { d.meta["cache"] = "v4_584" }, "tensor cache.blocks is [8, 4608], wanted [blocks, page bytes 5184]"},
		"second pages":           {planar, func(d draft) { d.meta["extra.page"] = "6" }, "tensor extra.blocks is [16, 1536], wanted [blocks, page bytes 2048]"},
		"second lengths":         {planar, func(d draft) { d.shape("extra.topk_lengths", 5) }, "tensor extra.topk_lengths is [5], wanted [sequences 2] or [tokens 4]"},
		"second lengths per":     {planar, func(d draft) { d.meta["extra.topk_per"] = "token" }, "tensor extra.topk_lengths is [2], wanted [tokens 4]"},
		"second page missing":    {twoPools, func(d draft) { delete(d.meta, "extra.page") }, "metadata extra.page is missing"},
		"second format missing":  {twoPools, func(d draft) { delete(d.meta, "extra.cache") }, "metadata extra.cache is missing"},
		"second format":          {twoPools, func(d draft) { d.meta["extra.cache"] = "V4" }, `metadata extra.cache is "V4": kvpaged: unknown format`},
		"second width":           {twoPools, func(d draft) { d.shape("extra.blocks", 8, 5, 95) }, "tensor extra.blocks is [8, 5, 95], wanted [blocks, page 5, d_qk 96]"},
		"no second blocks":       {twoPools, func(d draft) { d.shape("extra.blocks", 0, 5, 96) }, "tensor extra.blocks BF16 [0, 5, 96] has no blocks"},
		"second blocks missing":  {twoPools, func(d draft) { delete(d.tensors, "extra.blocks") }, "tensor extra.blocks is missing"},
		"second lists missing":   {twoPools, func(d draft) { delete(d.tensors, "extra.indices") }, "tensor extra.indices is missing"},
		"second lists of 2":      {twoPools, func(d draft) { d.shape("extra.indices", 2, 1, 10) }, "tensor extra.indices is [2, 1, 10], wanted [b 3, s_q 1, topk]"},
		"second group missing":   {twoPools, func(d draft) { d.meta["extra.cache"] = "fp8_token" }, "metadata extra.cache_group is missing"},
		"second scale missing":   {twoPools, func(d draft) { d.meta["extra.cache"] = "fp8_tensor" }, "tensor extra.scale is missing"},
		"third":                  {twoPools, func(d draft) { d.add("extra.third", checkpoint.F32, 1) }, "tensor extra.third has no place"},
		"prefill of sequences":   {loose, func(d draft) { d.meta["topk_per"] = "sequence" }, `metadata topk_per is "sequence", wanted token`},
		"prefill lengths":        {loose, func(d draft) { d.add("topk_lengths", checkpoint.I32, 1) }, "tensor topk_lengths is [1], wanted [tokens 20]"},
		"prefill width":          {loose, func(d draft) { d.shape("kv", 50, 1, 41) }, "tensor kv is [50, 1, 41], wanted [s_kv, 1, d_qk 40]"},
		"prefill kv heads":       {loose, func(d draft) { d.shape("kv", 25, 2, 40) }, "tensor kv is [25, 2, 40], wanted [s_kv, 1, d_qk 40]"},
		"prefill lists":          {loose, func(d draft) { d.shape("indices", 20, 16) }, "tensor indices is [20, 16], wanted [s_q 20, 1, topk]"},
		"prefill max_logits":     {loose, func(d draft) { d.shape("expect.max_logits", 3, 20) }, "tensor expect.max_logits is [3, 20], wanted [s_q 20, h 3]"},
		"prefill second cache":   {loose, func(d draft) { d.add("extra.blocks", checkpoint.F32, 2, 5, 40) }, "tensor extra.blocks has no place"},
		"prefill with a cache":   {loose, func(d draft) { d.add("cache.blocks", checkpoint.F32, 2, 5, 40) }, "tensor cache.blocks has no place"},
		"kind missing":           {logical, func(d draft) { delete(d.meta, "index_kind") }, "metadata index_kind is missing"},
		"kind":                   {logical, func(d draft) { d.meta["index_kind"] = "both" }, `metadata index_kind is "both", wanted logical or physical`},
		"only lengths":           {logical, func(d draft) { delete(d.tensors, "indices") }, "tensor indices is missing"},
		"lists of 3 tokens":      {logical, func(d draft) { d.shape("indices", 3, 12) }, "tensor indices is [3, 12], wanted [tokens 4, topk]"},
		"lists expanded":         {logical, func(d draft) { d.meta["form"] = "prefill" }, "metadata form is prefill, wanted auto or decode"},
		"lists of tokens differ": {logical, func(d draft) { d.meta["fold_shared_index"] = "true" }, "tensor indices [4, 12]: mla"},
		"layer lengths":          {logical, func(d draft) { d.shape("topk_lengths", 5) }, "tensor topk_lengths is [5], wanted [sequences 3] or [tokens 4]"},
		"second without lists":   {logical, func(d draft) { d.add("extra.indices", checkpoint.I32, 4, 2) }, "metadata extra.page is missing"},
		"second without first": {tokens, func(d draft) {
			d.meta["extra.page"], d.meta["extra.cache"] = "4", "f32"
			d.add("extra.blocks", checkpoint.F32, 2, 4, 160)
			d.add("extra.indices", checkpoint.I32, 12, 2)
		}, "tensor indices is missing"},
		"second with layers": {physical, func(d draft) {
			d.meta["extra.page"], d.meta["extra.cache"] = "4", "f32"
			d.add("extra.blocks", checkpoint.F32, 2, 1, 4, 160)
			d.add("extra.indices", checkpoint.I32, 4, 2)
		}, "tensor extra.blocks is [2, 1, 4, 160], wanted [blocks, page 4, latent+rope 160]"},

		"token scales missing":   {tokens, func(d draft) { delete(d.tensors, "cache.scales") }, "tensor cache.scales is missing"},
		"token scales few":       {tokens, func(d draft) { d.shape("cache.scales", 7, 1, 16, 5) }, "tensor cache.scales is [7, 1, 16, 5], wanted [blocks 8, layers 1, page 16, row/cache_group 5]"},
		"token scales unlayered": {tokens, func(d draft) { d.shape("cache.scales", 8, 16, 5) }, "tensor cache.scales is [8, 16, 5], wanted [blocks 8, layers 1,"},
		"token groups":           {tokens, func(d draft) { d.meta["cache_group"] = "16" }, "tensor cache.scales is [8, 1, 16, 5], wanted [blocks 8, layers 1, page 16, row/cache_group 10]"},
		"token group 0":          {tokens, func(d draft) { d.meta["cache_group"] = "0" }, `metadata cache_group is "0", wanted a whole number from 1`},
		"token group missing":    {tokens, func(d draft) { delete(d.meta, "cache_group") }, "metadata cache_group is missing"},
		"token scale":            {tokens, func(d draft) { d.add("cache.scale", checkpoint.F32, 1) }, "tensor cache.scale has no place"},

		"dynamic without scales": {dynamic, func(d draft) {
			d.dtype("kv_b_proj.weight", checkpoint.BF16)
			delete(d.tensors, "kv_b_proj.weight_scale_inv")
		},
			"tensor kv_b_proj.weight BF16 [384, 128]: metadata act_quant is dynamic, wanted codes with scales"},
		"dynamic small blocks": {dynamic, func(d draft) {
			d.meta["n_block"] = "16"
			delete(d.meta, "act_block_q")
			d.shape("kv_b_proj.weight_scale_inv", 24, 2)
		}, "metadata act_block_q is missing: n_block is 16, below 32"},
		"dynamic block 0":      {dynamic, func(d draft) { d.meta["act_block_q"] = "0" }, `metadata act_block_q is "0", wanted a whole number from 1`},
		"dynamic latent block": {dynamic, func(d draft) { d.meta["act_block_latent"] = "x" }, `metadata act_block_latent is "x", wanted a whole number from 1`},
		"quantised how":        {dynamic, func(d draft) { d.meta["act_quant"] = "static" }, `metadata act_quant is "static", wanted none or dynamic`},
	}
	for _, from := range []string{small, planar, loose, logical, tokens} {
		for name, x := range newDraft(t, from).tensors {
			tests["type of "+name+" of "+from] = alteration{from, func(d draft) { d.dtype(name, checkpoint.F64) }, fmt.Sprintf("tensor %s is %v F64, wanted [", name, x.Shape)}
			longer := append(slices.Clone(x.Shape), 1)
			tests["rank of "+name+" of "+from] = alteration{from, func(d draft) { d.shape(name, longer...) }, fmt.Sprintf("tensor %s is %v, wanted [", name, longer)}
		}
	}
	for _, key := range []string{"d_v", "page", "cache", "scale", "name", "abs", "lse_abs"} {
		tests["no "+key] = alteration{small, func(d draft) { delete(d.meta, key) }, "metadata " + key + " is missing"}
	}
	tests.refused(t)
}

// TestRefusedPage has page sizes that a case cannot be laid out in.
func TestRefusedPage(t *testing.T) {
	for _, name := range []string{records, "graph_cache_f16"} {
		lines, status, stderr := replay(t, "-page", "1048576", filepath.Join("testdata", name+".safetensors"))
		assert.Equal(t, statusUnusable, status, name)
		assert.Empty(t, lines, name)
		assert.Contains(t, stderr, "-page 1048576: the cache would take")
	}
}

// TestWrongSparseAnswers spoils what the answer hangs on: status 1.
func TestWrongSparseAnswers(t *testing.T) {
	zeroes := func(name string) func(draft) { return func(d draft) { d.shape(name, d.tensors[name].Shape...) } }
	tests := alterations{
		"output":         {small, func(d draft) { d.float32("expect.output", 33, 9) }, "output in F32[0, 0, 1, 1] is "},
		"lse":            {records, func(d draft) { d.float32("expect.lse", 3, 9) }, "lse[0, 1, 1] is "},
		"max_logits":     {loose, func(d draft) { d.float32("expect.max_logits", 4, 9) }, "max_logits[1, 1] is "},
		"decode's":       {small, func(d draft) { d.add("expect.max_logits", checkpoint.F32, 3, 5, 1) }, "max_logits["},
		"scale":          {small, func(d draft) { d.meta["scale"] = "0.2" }, "lse["},
		"negative scale": {small, func(d draft) { d.meta["scale"] = "-0.14433756470680237" }, "lse["},
		"layer's scale":  {logical, func(d draft) { d.meta["scale"] = "-0.1" }, "lse["},
		"sink":           {loose, func(d draft) { delete(d.tensors, "attn_sink") }, "output in F32"},
		"lengths":        {records, func(d draft) { delete(d.tensors, "topk_lengths") }, "output in F32"},
		"no lengths":     {logical, zeroes("topk_lengths"), "output in F32"},
		"second cache":   {planar, zeroes("extra.blocks"), "output in F32"},
		"second lengths": {planar, zeroes("extra.topk_lengths"), "output in F32"},
		"other indices":  {physical, zeroes("indices"), "output in F32"},
		"kind":           {logical, func(d draft) { d.meta["index_kind"] = "physical" }, "output in F32"},
		"scales":         {tokens, zeroes("cache.scales"), "output in F32"},
		"not quantised": {dynamic, func(d draft) {
			d.meta["act_quant"] = "none"
			delete(d.meta, "act_block_q")
			delete(d.meta, "act_block_latent")
		}, "output in F32"},
		"latent groups": {dynamic, func(d draft) { d.meta["act_block_latent"] = "32" }, "output in F32"},
		"other form":    {"graph_dyn_prefill", func(d draft) { d.meta["form"] = "decode" }, "output in F32"},
	}
	tests.wrong(t)
}

// TestHarmlessSparseChanges says the same in other words: the same bits.
func TestHarmlessSparseChanges(t *testing.T) {
	want := readHashes(t, "testdata/hashes.json")
	eachToken := func(d draft, name string, each int) {
		old, _ := d.tensors[name].I32s()
		d.shape(name, len(old)*each)
		for i, n := range old {
			for j := range each {
				d.int32(name, i*each+j, n)
			}
		}
	}
	tests := map[string]struct {
		from   string
		change func(d draft)
	}{
		"physical":         {small, func(d draft) { d.meta["index_kind"] = "physical" }},
		"not folded":       {logical, func(d draft) { d.meta["fold_shared_index"] = "false" }},
		"per sequence":     {records, func(d draft) { d.meta["topk_per"] = "sequence" }},
		"per token":        {records, func(d draft) { eachToken(d, "topk_lengths", 2) }},
		"per token, said":  {records, func(d draft) { eachToken(d, "topk_lengths", 2); d.meta["topk_per"] = "token" }},
		"per token, 2":     {planar, func(d draft) { eachToken(d, "extra.topk_lengths", 2) }},
		"per token, 3":     {planar, func(d draft) { eachToken(d, "extra.topk_lengths", 2); d.meta["topk_per"] = "sequence" }},
		"as [b, s_q]":      {records, func(d draft) { eachToken(d, "topk_lengths", 2); d.reshape("topk_lengths", 2, 2) }},
		"fp8 blocks as U8": {tokens, func(d draft) { d.retype("cache.blocks", checkpoint.U8) }},
		"the form it is":   {logical, func(d draft) { d.meta["form"] = "decode" }},
		"dynamic so too":   {dynamic, func(d draft) { d.meta["form"] = "decode" }},
		"MAX's rule":       {"graph_dyn_prefill", func(d draft) { d.meta["max_seq_len"] = "15" }},
		"group by rule":    {dynamic, func(d draft) { delete(d.meta, "act_block_q"); delete(d.meta, "act_block_latent") }},
	}
	for _, name := range some(tests, 4) {
		tt := tests[name]
		d := newDraft(t, tt.from)
		tt.change(d)
		lines, status, stderr := replay(t, d.write(t))
		assert.Equal(t, statusOK, status, name)
		assert.Empty(t, stderr, name)
		require.Len(t, lines, 1, name)
		assert.Equal(t, want[tt.from].Hash, lines[0].Hash, name)
	}
}

// TestMAXRule takes the form from max_seq_len where activations are quantised, and the groups
// from where the file says.
func TestMAXRule(t *testing.T) {
	for most, form := range map[string]string{"8": "decode", "9": "prefill"} {
		d := newDraft(t, dynamic)
		d.meta["max_seq_len"] = most
		lines, _, _ := replay(t, d.write(t))
		require.Len(t, lines, 1)
		assert.Equal(t, form, lines[0].Form, most)
	}
	d := newDraft(t, dynamic)
	d.meta["act_block_q"] = "16"
	lines, _, _ := replay(t, d.write(t))
	require.Len(t, lines, 1)
	assert.NotEqual(t, readHashes(t, "testdata/hashes.json")[dynamic].Hash, lines[0].Hash, "other groups, other bits")
}

// reshape gives a tensor another shape of the same size, retype another type.
func (d draft) reshape(name string, shape ...int) {
	x := d.tensors[name]
	x.Shape = shape
	d.tensors[name] = x
}

func (d draft) retype(name string, to checkpoint.DType) {
	x := d.tensors[name]
	x.DType = to
	d.tensors[name] = x
}

// everything makes a dense causal case one with lists of all that each token sees.
func (d draft) everything(t *testing.T, kind string) {
	read := func(name string) []int32 {
		x, err := d.tensors[name].I32s()
		require.NoError(t, err)
		return x
	}
	offsets, lengths, lookup := read("input_row_offsets"), read("cache.lengths"), read("cache.lookup")
	width, page := d.tensors["cache.lookup"].Shape[1], d.tensors["cache.blocks"].Shape[2]
	stride := 0
	for b, n := range lengths {
		stride = max(stride, int(n+offsets[b+1]-offsets[b]))
	}
	d.meta["index_kind"], d.meta["form"] = kind, "auto"
	d.add("indices", checkpoint.I32, int(offsets[len(lengths)]), stride)
	for b, cached := range lengths {
		for token := offsets[b]; token < offsets[b+1]; token++ {
			for pos := range stride {
				row := pos
				switch {
				case pos > int(cached+token-offsets[b]):
					row = -1
				case kind == "physical":
					row = int(lookup[b*width+pos/page])*page + pos%page
				}
				d.int32("indices", int(token)*stride+pos, int32(row))
			}
		}
	}
}

// TestListsOfEverything compares dense causal cases with lists of all positions, logical and
// physical, in pages of all sizes: all are the answer, and all but the dense one have the same
// bits. One case has sequences that share pages.
func TestListsOfEverything(t *testing.T) {
	names := []string{"graph_shared_prefix", "graph_cache_fp8_token", "graph_ragged_prefill_page1", "graph_cache_f16"}
	if testing.Short() {
		names = names[:1]
	}
	for _, name := range names {
		hashes := map[string]int{}
		for _, kind := range []string{"logical", "physical"} {
			d := newDraft(t, name)
			d.everything(t, kind)
			path := d.write(t)
			for _, page := range []string{"0", "1", "3", "29"} {
				lines, status, stderr := replay(t, "-page", page, path)
				assert.Equal(t, statusOK, status, "%s %s -page %s", name, kind, page)
				assert.Empty(t, stderr)
				require.Len(t, lines, 1)
				hashes[lines[0].Hash]++
			}
		}
		assert.Len(t, hashes, 1, name)
	}
}

// A synthetic case has a cache with random rows in it, in some format: what hangs on the
// format are the bytes alone, so its bits are those of the case with the same rows in float32.
type synthetic struct {
	rng   *rand.Rand
	draft draft
}

func newSynthetic(op string) synthetic {
	s := synthetic{rand.New(rand.NewPCG(7, 9)), draft{map[string]string{}, map[string]checkpoint.Tensor{}}}
	for _, key := range []string{"abs", "rel", "cos", "lse_abs", "lse_rel"} {
		s.draft.meta[key] = "1"
	}
	s.draft.meta["lamina.case"], s.draft.meta["name"], s.draft.meta["op"], s.draft.meta["scale"] = "1", op, op, "0.05"
	return s
}

// numbers adds a tensor of random float32.
func (s synthetic) numbers(name string, shape ...int) {
	s.draft.add(name, checkpoint.F32, shape...)
	x, _ := s.draft.tensors[name].F32s()
	for i := range x {
		x[i] = float32(s.rng.NormFloat64())
	}
}

// indices adds a tensor of random indices, none and nonsense among them.
func (s synthetic) indices(name string, rows int, shape ...int) {
	s.draft.add(name, checkpoint.I32, shape...)
	x, _ := s.draft.tensors[name].I32s()
	for i := range x {
		x[i] = []int32{-1, -2, int32(rows), math.MinInt32, math.MaxInt32}[s.rng.IntN(5)]
		if s.rng.IntN(4) > 0 {
			x[i] = int32(s.rng.IntN(rows))
		}
	}
}

// cache adds a cache of random rows in a format, and returns what is the same in float32.
func (s synthetic) cache(t *testing.T, cache string, c kvpaged.Config, layered bool) (widened []float32) {
	switch c.Format.Scales() {
	case kvpaged.ScaleTensor:
		s.draft.add(cache+".scale", checkpoint.F32, 1)
		s.draft.float32(cache+".scale", 0, c.Scale)
	case kvpaged.ScaleToken:
		groups := ceilDiv(c.Width, c.Group)
		shape := []int{c.Pages, c.PageTokens, groups}
		if layered {
			shape = []int{c.Pages, c.Layers, c.PageTokens, groups}
		}
		s.draft.meta[cacheKey(cache, "cache_group")] = "17"
		s.draft.add(cache+".scales", checkpoint.F32, shape...)
		c.Scales, _ = s.draft.tensors[cache+".scales"].F32s()
	}
	size, err := kvpaged.ArenaBytes(c)
	require.NoError(t, err)
	c.Arena = aligned(int(size))
	pool, err := kvpaged.New(c)
	require.NoError(t, err)
	defer pool.Close()
	n := c.Pages * c.PageTokens
	seq, err := pool.Adopt(everyPage(c), 0, n)
	require.NoError(t, err)
	rows := make([]float32, n*c.Width)
	for layer := range c.Layers {
		for i := range rows {
			rows[i] = float32(s.rng.NormFloat64())
		}
		require.NoError(t, seq.WriteRows(layer, 0, rows))
	}
	require.NoError(t, seq.Commit(n))
	widened = make([]float32, c.Layers*n*c.Width)
	for layer := range c.Layers {
		require.NoError(t, seq.ReadRows(rows, layer, 0, n))
		for i := range n {
			at := (i/c.PageTokens*c.Layers+layer)*c.PageTokens + i%c.PageTokens
			copy(widened[at*c.Width:], rows[i*c.Width:(i+1)*c.Width])
		}
	}
	shape := []int{c.Pages}
	if layered {
		shape = append(shape, c.Layers)
	}
	dtype, values := elements[c.Format]
	switch {
	case values:
		shape = append(shape, c.PageTokens, c.Width)
	case c.Format.Planar():
		shape, dtype = append(shape, len(c.Arena)/c.Pages/c.Layers), checkpoint.U8
	default:
		shape, dtype = append(shape, c.PageTokens, len(c.Arena)/n/c.Layers), checkpoint.U8
	}
	name := cache + ".blocks"
	s.draft.tensors[name] = checkpoint.Tensor{Name: name, DType: dtype, Shape: shape, Data: c.Arena}
	s.draft.meta[cacheKey(cache, "cache")] = c.Format.String()
	s.draft.meta[cacheKey(cache, "page")] = fmt.Sprint(c.PageTokens)
	return widened
}

// plain gives a cache of these pages in float32 in place of the one that is there.
func (s synthetic) plain(cache string, c kvpaged.Config, layered bool, rows []float32) {
	delete(s.draft.tensors, cache+".scale")
	delete(s.draft.tensors, cache+".scales")
	delete(s.draft.meta, cacheKey(cache, "cache_group"))
	s.draft.meta[cacheKey(cache, "cache")] = "f32"
	shape := []int{c.Pages, c.PageTokens, c.Width}
	if layered {
		shape = []int{c.Pages, c.Layers, c.PageTokens, c.Width}
	}
	s.draft.add(cache+".blocks", checkpoint.F32, shape...)
	x, _ := s.draft.tensors[cache+".blocks"].F32s()
	copy(x, rows)
}

// aligned is memory that holds values of every format.
func aligned(n int) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(make([]uint64, n/8+1)))), n)
}

// hash is that of a case whatever its answer is.
func (s synthetic) hash(t *testing.T, flags ...string) string {
	lines, status, stderr := replay(t, append(flags, s.draft.write(t))...)
	require.NotEqual(t, statusUnusable, status, stderr)
	require.Len(t, lines, 1)
	return lines[0].Hash
}

// allFormats are all formats of cases, with a width that each takes; in a short run those few.
func allFormats(t *testing.T, few []kvpaged.Format, run func(t *testing.T, f kvpaged.Format, width int)) {
	for _, f := range bench.Formats() {
		if testing.Short() && !slices.Contains(few, f) {
			continue
		}
		t.Run(f.String(), func(t *testing.T) { run(t, f, widthOf(t, f)) })
	}
}

// widthOf is a width that a format takes.
func widthOf(t *testing.T, f kvpaged.Format) int {
	for _, width := range []int{66, 512, 576} {
		if _, err := kvpaged.ArenaBytes(config(f, 1, 1, 1, width)); err == nil {
			return width
		}
	}
	require.Fail(t, "no width", "%v takes none of the widths tried", f)
	return 0
}

// config describes a cache, with what its format needs to be told.
func config(f kvpaged.Format, layers, pages, page, width int) kvpaged.Config {
	c := kvpaged.Config{Format: f, Layers: layers, Pages: pages, PageTokens: page, Width: width, Order: kvpaged.PageMajor, Adopted: true}
	switch f.Scales() {
	case kvpaged.ScaleTensor:
		c.Scale = 0.37
	case kvpaged.ScaleToken:
		c.Group = 17
	}
	return c
}

// TestFormatsOfDecode has every format in the first cache and in the second one.
func TestFormatsOfDecode(t *testing.T) {
	allFormats(t, []kvpaged.Format{kvpaged.FP8Token, kvpaged.V41FP4_288Planar}, func(t *testing.T, f kvpaged.Format, width int) {
		s := newSynthetic("sparse_decode")
		s.draft.meta["d_v"] = fmt.Sprint(width - 3)
		first := config(f, 1, 3, 5, width)
		second := config(f, 1, 2, 3, width)
		s.numbers("q", 2, 2, 3, width)
		s.indices("indices", 15, 2, 2, 11)
		s.indices("extra.indices", 6, 2, 2, 4)
		s.draft.add("expect.output", checkpoint.F32, 2, 2, 3, width-3)
		s.draft.add("expect.lse", checkpoint.F32, 2, 3, 2)
		rows, others := s.cache(t, firstCache, first, false), s.cache(t, secondCache, second, false)
		hash := s.hash(t)
		assert.Equal(t, hash, s.hash(t, "-page", "4"))
		if f.Scales() == kvpaged.ScaleToken {
			s.draft.reshape("cache.scales", 3, 1, 5, ceilDiv(width, 17))
			assert.Equal(t, hash, s.hash(t, "-page", "1"))
		}
		s.plain(firstCache, first, false, rows)
		assert.Equal(t, hash, s.hash(t, "-page", "2"))
		s.plain(secondCache, second, false, others)
		assert.Equal(t, hash, s.hash(t))
	})
}

// TestFormatsOfLayer has every format in the caches of a layer whose new tokens, which the
// formats round each in its way, are on no list.
func TestFormatsOfLayer(t *testing.T) {
	allFormats(t, []kvpaged.Format{kvpaged.FP8Token}, func(t *testing.T, f kvpaged.Format, width int) {
		for _, layers := range []int{1, 2} {
			s := newSynthetic("graph")
			for key, value := range map[string]string{"heads": "2", "nope": "8", "rope": "6", "v": "5", "latent": fmt.Sprint(width - 6), "layers": fmt.Sprint(layers),
				"layer": fmt.Sprint(layers - 1), "epsilon": "1e-6", "mask": "causal", "act_quant": "none", "rope_style": "half", "max_seq_len": "2",
				"form": "auto", "index_kind": "physical"} {
				s.draft.meta[key] = value
			}
			s.numbers("q", 3, 2, 14)
			s.numbers("kv", 3, width)
			s.numbers("freqs_cis", 20, 6)
			s.numbers("kv_norm_gamma", width-6)
			s.numbers("kv_b_proj.weight", 2*13, width-6)
			s.int32s("input_row_offsets", []int{3}, 0, 2, 3)
			s.int32s("cache.lengths", []int{2}, 7, 4)
			s.int32s("cache.lookup", []int{2, 3}, 5, 1, 3, 0, 4, 6)
			s.int32s("indices", []int{3, 6}, 20, 4, 22, 8, -1, 40, 6, 6, 5, 11, 10, 9, 0, 3, 24, 25, 27, -7) // pages 2 and 6 are nobody's
			s.indices("extra.indices", 6, 3, 4)
			s.draft.add("expect.output", checkpoint.F32, 3, 2, 5)
			s.draft.add("expect.lse", checkpoint.F32, 3, 2)
			first := config(f, layers, 7, 4, width)
			second := config(f, 1, 2, 3, width)
			rows, others := s.cache(t, firstCache, first, true), s.cache(t, secondCache, second, false)
			hash := s.hash(t)
			assert.Equal(t, hash, s.hash(t, "-page", "3"))
			if x := s.draft.tensors["cache.blocks"]; len(x.Shape) == 3 && layers == 1 {
				s.draft.reshape("cache.blocks", x.Shape[0], x.Shape[2])
				assert.Equal(t, hash, s.hash(t, "-page", "1"))
			}
			s.plain(firstCache, first, true, rows)
			assert.Equal(t, hash, s.hash(t, "-page", "7"))
			s.plain(secondCache, second, false, others)
			assert.Equal(t, hash, s.hash(t))
		}
	})
}

func (s synthetic) int32s(name string, shape []int, values ...int32) {
	s.draft.add(name, checkpoint.I32, shape...)
	for i, x := range values {
		s.draft.int32(name, i, x)
	}
}

// TestPoison leaves rows that nobody owns as NaN when a cache is laid out anew, in every format.
func TestPoison(t *testing.T) {
	allFormats(t, []kvpaged.Format{kvpaged.F32, kvpaged.V41FP4_288Planar}, func(t *testing.T, f kvpaged.Format, width int) {
		for _, apart := range []bool{false, true} {
			old := config(f, 2, 3, 4, width)
			if apart {
				if f.Scales() != kvpaged.ScaleToken {
					continue
				}
				old.Scales = make([]float32, 2*3*4*ceilDiv(width, old.Group))
			}
			size, err := kvpaged.ArenaBytes(old)
			require.NoError(t, err)
			old.Arena = aligned(int(size))[:size] // all zeros
			m := newMoves(old, 5)
			base := m.take() * 5
			m.put(7, base+1)
			m.put(7, base+4)
			cfg, err := m.repage(old)
			require.NoError(t, err)
			if apart {
				assert.True(t, math.IsNaN(float64(cfg.Scales[0])), "a scale of page 0")
			}
			cache, err := kvpaged.New(cfg)
			require.NoError(t, err)
			defer cache.Close()
			seq, err := cache.Adopt(everyPage(cfg), 10, 0)
			require.NoError(t, err)
			row := make([]float32, width)
			for layer := range 2 {
				for pos := range 10 {
					require.NoError(t, seq.ReadRows(row, layer, pos, 1))
					for i, x := range row {
						moved := pos == base+1 || pos == base+4
						require.Equal(t, !moved, x != x, "layer %d, row %d, value %d is %v", layer, pos, i, x)
					}
				}
			}
		}
	})
}

// TestHolesOfLists moves positions in pages that are not mapped into pages that partly are.
func TestHolesOfLists(t *testing.T) {
	d := newDraft(t, "graph_mask_window_poisoned")
	d.everything(t, "logical")
	d.int32("cache.lookup", 0, -1)
	path := d.write(t)
	hashes := map[string]int{}
	for _, page := range []string{"0", "1", "3", "24", "500"} {
		lines, status, stderr := replay(t, "-page", page, path)
		require.NotEqual(t, statusUnusable, status, stderr)
		require.Len(t, lines, 1)
		hashes[lines[0].Hash]++
	}
	assert.Len(t, hashes, 1)
}

// TestVisibleHole refuses a case on every page size if it cannot be used on its own.
func TestVisibleHole(t *testing.T) {
	d := newDraft(t, "graph_mask_window_poisoned")
	d.int32("cache.lookup", 3, -1)
	path := d.write(t)
	for _, page := range []string{"0", "1", "24", "500"} {
		_, status, stderr := replay(t, "-page", page, path)
		assert.Equal(t, statusUnusable, status, page)
		assert.Contains(t, stderr, "tensor cache.lookup [2, 6]: mla: page is not mapped", page)
	}
}

func TestInvalid(t *testing.T) {
	for _, x := range []int32{0, 1, 2, 77, math.MaxInt32} {
		assert.Less(t, invalid(x), int32(-1), x)
	}
}

// TestExtraOfLayer selects rows of the first cache by way of a second one that has the same.
func TestExtraOfLayer(t *testing.T) {
	d := newDraft(t, physical)
	blocks := d.tensors["cache.blocks"]
	d.meta["extra.page"], d.meta["extra.cache"] = d.meta["page"], d.meta["cache"]
	blocks.Name, blocks.Shape = "extra.blocks", []int{blocks.Shape[0], blocks.Shape[2], blocks.Shape[3]}
	d.tensors[blocks.Name] = blocks
	list := d.tensors["indices"]
	list.Name, list.Data = "extra.indices", slices.Clone(list.Data)
	d.tensors[list.Name] = list
	indices, err := d.tensors["indices"].I32s()
	require.NoError(t, err)
	fresh := d.freshRows(t)
	moved := 0
	for i, x := range indices {
		// New tokens are stored in the first cache alone; of the others every second goes.
		if i%2 == 0 || slices.Contains(fresh, x) {
			d.int32("extra.indices", i, -1)
			continue
		}
		d.int32("indices", i, -1)
		moved++
	}
	require.Greater(t, moved, 10)
	for _, page := range []string{"0", "5"} {
		lines, status, stderr := replay(t, "-page", page, d.write(t))
		assert.Equal(t, statusOK, status, stderr)
		require.Len(t, lines, 1)
		assert.True(t, lines[0].Pass)
	}
}

// freshRows are the physical rows of the new tokens.
func (d draft) freshRows(t *testing.T) []int32 {
	var rows []int32
	e := draft{d.meta, map[string]checkpoint.Tensor{}}
	for _, name := range []string{"input_row_offsets", "cache.lengths", "cache.lookup", "cache.blocks"} {
		e.tensors[name] = d.tensors[name]
	}
	e.meta = map[string]string{}
	e.everything(t, "physical")
	indices, _ := e.tensors["indices"].I32s()
	offsets, _ := e.tensors["input_row_offsets"].I32s()
	lengths, _ := e.tensors["cache.lengths"].I32s()
	stride := e.tensors["indices"].Shape[1]
	for b, n := range lengths {
		for token := offsets[b]; token < offsets[b+1]; token++ {
			rows = append(rows, indices[int(token)*stride+int(n+token-offsets[b])])
		}
	}
	return rows
}

// some are the names of all tests in order, or in a short run one in n.
func some[T any](tests map[string]T, n int) []string {
	names := slices.Sorted(maps.Keys(tests))
	if !testing.Short() {
		return names
	}
	var few []string
	for i := 0; i < len(names); i += n {
		few = append(few, names[i])
	}
	return few
}

// alteration is a case made of an embedded one, and what is said of it.
type alteration struct {
	from   string
	change func(d draft)
	wants  string
}

type alterations map[string]alteration

// wrong demands a status of 1, a line that says so, and a message.
func (tests alterations) wrong(t *testing.T) {
	for _, name := range some(tests, 4) {
		tt := tests[name]
		d := newDraft(t, tt.from)
		tt.change(d)
		lines, status, stderr := replay(t, d.write(t))
		assert.Equal(t, statusWrong, status, name)
		require.Len(t, lines, 1, name)
		assert.False(t, lines[0].Pass, name)
		assert.Contains(t, stderr, tt.wants, name)
	}
}

// refused demands a status of 2, no line on standard output, and a message that names the file and
// the fault.
func (tests alterations) refused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "case.safetensors")
	for _, name := range some(tests, 8) {
		tt := tests[name]
		t.Run(name, func(t *testing.T) {
			d := newDraft(t, tt.from)
			tt.change(d)
			d.writeTo(t, path)
			lines, status, stderr := replay(t, path)
			assert.Equal(t, statusUnusable, status)
			assert.Empty(t, lines)
			assert.Contains(t, stderr, path)
			assert.Contains(t, stderr, tt.wants)
			assert.Equal(t, 1, strings.Count(stderr, "\n"))
		})
	}
}
