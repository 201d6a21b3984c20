package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// expected is a case's entry in hashes.json, which an independent program wrote: the hash of
// its own form, the form that ran, and the hashes of the forced forms.
type expected struct{ Hash, Form, Decode, Prefill string }

func readHashes(t *testing.T, path string) map[string]expected {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var all map[string]expected
	require.NoError(t, json.Unmarshal(b, &all))
	return all
}

// replay runs the program with -json -hash and returns its lines.
func replay(t *testing.T, args ...string) (lines []line, status int, stderr string) {
	status, out, stderr := command(append([]string{"replay", "-json", "-hash"}, args...)...)
	for _, s := range strings.Split(strings.TrimSpace(out), "\n") {
		if s == "" {
			continue
		}
		var l line
		d := json.NewDecoder(strings.NewReader(s))
		d.DisallowUnknownFields()
		require.NoError(t, d.Decode(&l))
		lines = append(lines, l)
	}
	return lines, status, stderr
}

// TestEmbeddedHashes demands the bits of every embedded case, on one and on two threads and on
// other page sizes.
func TestEmbeddedHashes(t *testing.T) {
	want := readHashes(t, "testdata/hashes.json")
	files, err := filepath.Glob("testdata/*.safetensors")
	require.NoError(t, err)
	all := [][]string{{"-threads", "2", "-page", "23"}, {"-threads", "1"}, {"-threads", "2"}, {"-threads", "1", "-page", "1"}}
	if testing.Short() {
		all = all[:1]
	}
	for _, flags := range all {
		lines, status, stderr := replay(t, flags...)
		assert.Equal(t, statusOK, status)
		assert.Empty(t, stderr)
		assert.Len(t, lines, len(files))
		for _, l := range lines {
			assert.True(t, l.Pass, l.Name)
			assert.Equal(t, want[l.Name].Hash, l.Hash, "%s %v", l.Name, flags)
			assert.Equal(t, want[l.Name].Form, l.Form, l.Name)
			assert.Equal(t, flags[1], fmt.Sprint(l.Threads))
		}
	}
}

// in is the hash of a case when a form is forced: its own where there is no choice.
func (e expected) in(form string) string {
	switch {
	case form == "decode" && e.Decode != "":
		return e.Decode
	case form == "prefill" && e.Prefill != "":
		return e.Prefill
	}
	return e.Hash
}

// TestForcedForms demands the bits of the embedded layer calls in each form.
func TestForcedForms(t *testing.T) {
	want := readHashes(t, "testdata/hashes.json")
	forms, files := []string{"decode", "prefill", "auto"}, []string{"testdata"}
	if testing.Short() {
		forms, files = forms[:1], []string{"testdata/graph_mask_null.safetensors", "testdata/merge_plain.safetensors", "testdata/graph_dyn_cap_decode.safetensors"}
	}
	for _, form := range forms {
		lines, status, _ := replay(t, append(files, "-threads", "2", "-form", form)...)
		assert.Equal(t, statusOK, status)
		for _, l := range lines {
			hash := want[l.Name].in(form)
			if form == "auto" && l.Name == "graph_prefill_single_token" {
				assert.Equal(t, "mixed", l.Form) // the one that does not ask for auto itself
				continue
			}
			assert.Equal(t, hash, l.Hash, "%s in form %s", l.Name, form)
		}
	}
}

// goldenEnv names a folder with all reference cases, of which those in testdata are a choice.
const goldenEnv = "LAMINA_GOLDEN"

// TestGolden runs the cases of the folder that is named; if none is, the embedded ones.
func TestGolden(t *testing.T) {
	folder := os.Getenv(goldenEnv)
	if folder == "" {
		fmt.Printf("golden: %s names no folder, no more than the embedded cases\n", goldenEnv)
		testFolder(t, "testdata", []string{"-page", "5"})
		return
	}
	paths, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	require.NoError(t, err)
	require.NotEmpty(t, paths, "%s=%s has no cases", goldenEnv, folder)
	require.Len(t, readHashes(t, filepath.Join(folder, "hashes.json")), len(paths))
	all := [][]string{{"-threads", "1"}, {"-threads", "2"}, {"-form", "decode"}, {"-form", "prefill"}, {"-page", "5"}}
	if testing.Short() {
		all = all[1:2]
	}
	for _, flags := range all {
		testFolder(t, folder, flags)
	}
	testBroken(t, filepath.Join(folder, "broken"))
	fmt.Printf("golden: all %d cases of %s\n", len(paths), folder)
}

// testFolder demands the bits of all cases in a folder.
func testFolder(t *testing.T, folder string, flags []string) {
	want := readHashes(t, filepath.Join(folder, "hashes.json"))
	paths, err := filepath.Glob(filepath.Join(folder, "*.safetensors"))
	require.NoError(t, err)
	if testing.Short() && folder == "testdata" {
		paths = paths[:1] // TestEmbeddedHashes has the others
	}
	lines, status, stderr := replay(t, append(slices.Clone(flags), paths...)...)
	assert.Equal(t, statusOK, status)
	assert.Empty(t, stderr)
	assert.Len(t, lines, len(paths))
	for _, l := range lines {
		w, hash := want[l.Name], want[l.Name].Hash
		if flags[0] == "-form" {
			hash = w.in(flags[1])
		} else {
			assert.Equal(t, w.Form, l.Form, l.Name)
		}
		assert.True(t, l.Pass, l.Name)
		assert.Equal(t, hash, l.Hash, "%s %v", l.Name, flags)
	}
}

// testBroken refuses the files of a folder that cannot be used.
func testBroken(t *testing.T, folder string) {
	for name, fault := range map[string]string{
		"missing_tensor": "tensor kv_norm_gamma is missing",
		"wrong_shape":    "q is [13, 96, 1], wanted [tokens, heads 2, nope+rope 48]",
		"truncated":      "the file ends in the middle of tensor",
		"unknown_op":     `op = "graph2" is no op`,
	} {
		path := filepath.Join(folder, name+".safetensors")
		require.FileExists(t, path)
		_, status, stderr := replay(t, path)
		assert.Equal(t, statusUnusable, status)
		assert.Contains(t, stderr, path)
		assert.Contains(t, stderr, fault)
	}
}

// draft is a case file taken apart, to be changed and written again.
type draft struct {
	meta    map[string]string
	tensors map[string]checkpoint.Tensor
}

func newDraft(t testing.TB, name string) draft {
	b, err := os.ReadFile(filepath.Join("testdata", name+".safetensors"))
	require.NoError(t, err)
	f, err := checkpoint.Parse(b)
	require.NoError(t, err)
	d := draft{f.Metadata(), map[string]checkpoint.Tensor{}}
	for x := range f.Tensors() {
		x.Data = bytes.Clone(x.Data)
		x.Shape = slices.Clone(x.Shape)
		d.tensors[x.Name] = x
	}
	return d
}

// write makes a file of the draft.
func (d draft) write(t testing.TB) string {
	path := filepath.Join(t.TempDir(), "case.safetensors")
	d.writeTo(t, path)
	return path
}

func (d draft) writeTo(t testing.TB, path string) {
	var b bytes.Buffer
	var all []checkpoint.Tensor
	for _, name := range slices.Sorted(maps.Keys(d.tensors)) {
		all = append(all, d.tensors[name])
	}
	require.NoError(t, checkpoint.Write(&b, all, d.meta))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
}

// shape gives a tensor another shape, and zeros for data.
func (d draft) shape(name string, shape ...int) {
	x := d.tensors[name]
	n, _ := checkpoint.Shape(shape).Elements()
	x.Name, x.Shape, x.Data = name, shape, make([]byte, n*x.DType.Bits()/8)
	d.tensors[name] = x
}

// dtype gives a tensor another type, and zeros for data.
func (d draft) dtype(name string, to checkpoint.DType) {
	x := d.tensors[name]
	x.DType = to
	d.tensors[name] = x
	d.shape(name, x.Shape...)
}

// add makes a new tensor of zeros.
func (d draft) add(name string, to checkpoint.DType, shape ...int) {
	d.tensors[name] = checkpoint.Tensor{DType: to}
	d.shape(name, shape...)
}

// int32 sets an element of an I32 tensor, float32 one of an F32 tensor.
func (d draft) int32(name string, i int, to int32) {
	x, _ := d.tensors[name].I32s()
	x[i] = to
}

func (d draft) float32(name string, i int, to float32) {
	x, _ := d.tensors[name].F32s()
	x[i] = to
}

// TestRefusedCases has a case that cannot be used for every demand of the format.
func TestRefusedCases(t *testing.T) {
	const dense, quantised, merge, tensorScale = "graph_ragged_prefill_page1", "graph_w_per_row", "merge_plain", "graph_cache_fp8_tensor"
	tests := alterations{
		"no sequence offsets":  {dense, func(d draft) { d.shape("input_row_offsets", 0) }, "tensor input_row_offsets is [0], wanted at least [1]"},
		"offsets begin at 1":   {dense, func(d draft) { d.int32("input_row_offsets", 0, 1) }, "value 0 is 1"},
		"offsets decrease":     {dense, func(d draft) { d.int32("input_row_offsets", 2, -5) }, "value 2 is -5"},
		"offsets end early":    {dense, func(d draft) { d.int32("input_row_offsets", 3, 12) }, "ends with 12, wanted the 13 tokens of q"},
		"lengths negative":     {dense, func(d draft) { d.int32("cache.lengths", 1, -1) }, "tensor cache.lengths [3]: value 1 is -1"},
		"lengths huge":         {dense, func(d draft) { d.int32("cache.lengths", 0, math.MaxInt32) }, "tensor cache.lengths [3]: value 0 is 2147483647, wanted at most 1073741824 with the 9 new tokens"},
		"lengths past entries": {dense, func(d draft) { d.int32("cache.lengths", 0, 1<<29) }, "tensor cache.lookup I32 [3, 13]: sequence 0 has 536870912+"},
		"lookup below -1":      {dense, func(d draft) { d.int32("cache.lookup", 0, -2) }, "entry 0 of sequence 0 is -2, wanted -1 to 20"},
		"lookup above blocks":  {dense, func(d draft) { d.int32("cache.lookup", 0, 21) }, "entry 0 of sequence 0 is 21, wanted -1 to 20"},
		"new token nowhere":    {dense, func(d draft) { d.int32("cache.lookup", 5, 20) }, "entry 5 of sequence 0 is 20, not mapped, but new tokens go there"},
		"new token shared":     {dense, func(d draft) { d.int32("cache.lookup", 5, d.pageOf(13)) }, "tensor cache.lookup [3, 13]: kvpaged"},
		"visible hole":         {"graph_mask_window_poisoned", func(d draft) { d.int32("cache.lookup", 3, -1) }, "tensor cache.lookup [2, 6]: mla: page is not mapped"},
		"blocks of no pages":   {dense, func(d draft) { d.shape("cache.blocks", 0, 1, 1, 80) }, "has no blocks"},
		"blocks another page":  {dense, func(d draft) { d.shape("cache.blocks", 20, 1, 2, 80) }, "tensor cache.blocks is [20, 1, 2, 80], wanted [blocks, layers 1, page 1, latent+rope 80]"},
		"blocks another type":  {dense, func(d draft) { d.dtype("cache.blocks", checkpoint.F32) }, "tensor cache.blocks is [20, 1, 1, 80] F32, wanted [blocks, layers 1, page 1, latent+rope 80] BF16 or U8"},
		"blocks as few bytes":  {dense, func(d draft) { d.dtype("cache.blocks", checkpoint.U8) }, "wanted [blocks, layers 1, page 1, row bytes 160]"},
		"few frequencies":      {dense, func(d draft) { d.shape("freqs_cis", 3, 16) }, "tensor freqs_cis is [3, 16], wanted at least [12, 16] for the 12 tokens of sequence 0"},
		"frequencies narrow":   {dense, func(d draft) { d.shape("freqs_cis", 13, 8) }, "tensor freqs_cis is [13, 8], wanted [positions, rope 16]"},
		"scale NaN":            {quantised, func(d draft) { d.float32("kv_b_proj.weight_scale_inv", 7, float32(math.NaN())) }, "tensor kv_b_proj.weight_scale_inv F32 [336, 1]: fp8"},
		"scale negative":       {quantised, func(d draft) { d.float32("kv_b_proj.weight_scale_inv", 0, -1) }, "kv_b_proj.weight_scale_inv"},
		"scales missing":       {quantised, func(d draft) { delete(d.tensors, "kv_b_proj.weight_scale_inv") }, "tensor kv_b_proj.weight_scale_inv is missing: kv_b_proj.weight is F8_E4M3"},
		"scales without codes": {quantised, func(d draft) { d.dtype("kv_b_proj.weight", checkpoint.BF16) }, "kv_b_proj.weight is BF16 and has no scales"},
		"scales of blocks":     {quantised, func(d draft) { d.meta["n_block"] = "2" }, "tensor kv_b_proj.weight_scale_inv is [336, 1], wanted [rows/n_block 168, latent/k_block 1]"},
		"cache scale missing":  {tensorScale, func(d draft) { delete(d.tensors, "cache.scale") }, "tensor cache.scale is missing"},
		"cache scale vector":   {tensorScale, func(d draft) { d.shape("cache.scale", 2) }, "tensor cache.scale is [2], wanted [1]"},
		"cache scale for bf16": {dense, func(d draft) { d.add("cache.scale", checkpoint.F32, 1) }, "tensor cache.scale has no place"},
		"unknown tensor":       {dense, func(d draft) { d.add("surprise", checkpoint.F32, 1) }, "tensor surprise has no place in a case of op graph"},
		"unknown op":           {dense, func(d draft) { d.meta["op"] = "graph2" }, `op = "graph2" is no op`},
		"another version":      {dense, func(d draft) { d.meta["lamina.case"] = "2" }, `metadata lamina.case is "2", wanted 1`},
		"layer outside":        {dense, func(d draft) { d.meta["layer"] = "1" }, "metadata layer is 1, wanted 0 to 0"},
		"odd rope":             {dense, func(d draft) { d.meta["rope"], d.meta["nope"] = "17", "31" }, "metadata rope is 17, wanted an even number"},
		"too few max_seq_len":  {dense, func(d draft) { d.meta["max_seq_len"] = "8" }, "metadata max_seq_len is 8, a sequence has 9 new tokens"},
		"no merge parts":       {merge, func(d draft) { d.shape("parts.output", 0, 6, 3, 32); d.shape("parts.lse", 0, 6, 3) }, "wanted at least 1 part"},
		"merge answer":         {merge, func(d draft) { d.shape("expect.output", 6, 3, 31) }, "tensor expect.output is [6, 3, 31], wanted [rows 6, heads 3, values 32]"},
		"merge lse":            {merge, func(d draft) { d.shape("parts.lse", 4, 6) }, "tensor parts.lse is [4, 6], wanted [parts 4, rows 6, heads 3]"},
		"huge everything": {dense, func(d draft) { d.meta["heads"], d.meta["nope"], d.meta["v"] = "1048576", "1048576", "1048576" },
			"wanted [tokens, heads 1048576, nope+rope 1048592]"},
		"blocks of plain weights": {dense, func(d draft) {
			d.dtype("kv_b_proj.weight", checkpoint.F32)
			delete(d.tensors, "kv_b_proj.weight_scale_inv")
			d.meta["n_block"] = "-3"
		}, `metadata n_block is "-3", wanted a whole number from 1`},
		"fold without lists":   {dense, func(d draft) { d.meta["fold_shared_index"] = "true" }, "metadata fold_shared_index is true, but the case has no tensor indices"},
		"kind without lists":   {dense, func(d draft) { d.meta["index_kind"] = "logical" }, `metadata index_kind is "logical", which has no meaning in this case of op graph`},
		"groups without scale": {dense, func(d draft) { d.meta["cache_group"] = "8" }, `metadata cache_group is "8", which has no meaning`},
		"groups of no codes":   {dense, func(d draft) { d.meta["act_block_q"] = "8" }, `metadata act_block_q is "8", which has no meaning`},
		"page of nothing":      {dense, func(d draft) { d.meta["extra.page"] = "8" }, `metadata extra.page is "8", which has no meaning`},
		"mask of a merge":      {merge, func(d draft) { d.meta["mask"] = "causal" }, `metadata mask is "causal", which has no meaning in this case of op merge`},

		"block without a module": {dense, func(d draft) { d.meta["op"] = "block" }, "metadata module is missing"},
		"no such format":         {dense, func(d draft) { d.meta["cache"] = "bf17" }, `metadata cache is "bf17": kvpaged: unknown format`},
	}
	for _, key := range []string{"lamina.case", "name", "op", "act_quant", "heads", "nope", "rope", "v", "latent", "page", "layers", "layer",
		"epsilon", "scale", "mask", "rope_style", "max_seq_len", "form", "cache", "n_block", "k_block", "abs", "rel", "cos",
		"abs_f32", "rel_f32", "cos_f32", "lse_abs", "lse_rel", "rows_abs", "rows_rel"} {
		tests["no "+key] = alteration{dense, func(d draft) { delete(d.meta, key) }, "metadata " + key + " is missing"}
		if key != "name" {
			tests["nonsense "+key] = alteration{dense, func(d draft) { d.meta[key] = "-x" }, `"-x"`}
		}
	}
	for _, key := range []string{"heads", "nope", "v", "latent"} {
		tests["huge "+key] = alteration{dense, func(d draft) { d.meta[key] = "1048577" }, fmt.Sprintf("metadata %s is %q, wanted a whole number from 1 to 1048576", key, "1048577")}
	}
	for _, key := range []string{"heads", "nope", "v", "latent", "page", "layers", "n_block", "k_block"} {
		for _, value := range []string{"0", "-1", "1.5", "1e3", "", " 2", "0x2", "99999999999999999999", "9223372036854775807"} {
			tests[key+" "+value] = alteration{dense, func(d draft) { d.meta[key] = value }, fmt.Sprintf("metadata %s is %q, wanted a whole number from 1 to", key, value)}
		}
	}
	for _, key := range []string{"epsilon", "abs", "rel", "cos", "abs_f32", "lse_abs", "rows_rel"} {
		for _, value := range []string{"NaN", "inf", "-Inf", "-1e-9", "1e999", ""} {
			tests[key+" "+value] = alteration{dense, func(d draft) { d.meta[key] = value }, fmt.Sprintf("metadata %s is %q, wanted a finite number", key, value)}
		}
	}
	for value, fault := range map[string]string{"NaN": "wanted a finite number", "-Inf": "wanted a finite number", "1e999": "wanted a finite number",
		"0": "wanted a finite number other than 0", "1e-60": "wanted a finite number other than 0", "1e300": "which float32 does not hold"} {
		tests["scale "+value] = alteration{dense, func(d draft) { d.meta["scale"] = value }, fmt.Sprintf("metadata scale is %q, %s", value, fault)}
	}
	for _, mask := range []string{"", "sliding_window_causal", "sliding_window_causal:0", "causal:3", "chunked:x", "Causal"} {
		tests["mask "+mask] = alteration{dense, func(d draft) { d.meta["mask"] = mask }, fmt.Sprintf("metadata mask is %q: mla", mask)}
	}
	for name, x := range newDraft(t, dense).tensors {
		if name != "expect.lse" && name != "expect.rows" && name != "kv_b_proj.weight_scale_inv" {
			tests["without "+name] = alteration{dense, func(d draft) { delete(d.tensors, name) }, "tensor " + name + " is missing"}
		}
		tests["type of "+name] = alteration{dense, func(d draft) { d.dtype(name, checkpoint.F64) }, fmt.Sprintf("tensor %s is %v F64, wanted [", name, x.Shape)}
		flat := slices.Clone(x.Shape)
		flat = append(flat, 1)
		tests["rank of "+name] = alteration{dense, func(d draft) { d.shape(name, flat...) }, fmt.Sprintf("tensor %s is %v, wanted [", name, flat)}
	}
	tests.refused(t)
}

// pageOf is entry i of the lookup table.
func (d draft) pageOf(i int) int32 {
	x, _ := d.tensors["cache.lookup"].I32s()
	return x[i]
}

// TestWrongAnswers spoils one answer at a time: status 1, a line that says so.
func TestWrongAnswers(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	tests := alterations{
		"output":     {"graph_ragged_prefill_page1", func(d draft) { d.float32("expect.output", 70, 9) }, "output in F32[1, 0, 6] is "},
		"output NaN": {"graph_ragged_prefill_page1", func(d draft) { d.float32("expect.output", 70, nan) }, "output in F32[1, 0, 6]"},
		"output inf": {"graph_ragged_prefill_page1", func(d draft) { d.float32("expect.output", 70, inf) }, "output in F32[1, 0, 6]"},
		"lse":        {"graph_ragged_prefill_page1", func(d draft) { d.float32("expect.lse", 3, -40) }, "lse[1, 1]"},
		"lse inf":    {"graph_ragged_prefill_page1", func(d draft) { d.float32("expect.lse", 3, inf) }, "lse[1, 1]"},
		"rows":       {"graph_ragged_prefill_page1", func(d draft) { d.float32("expect.rows", 81, 0.5) }, "rows[1, 1]"},
		"scale":      {"graph_ragged_prefill_page1", func(d draft) { d.meta["scale"] = "0.15" }, "output in F32"},
		"epsilon":    {"graph_ragged_prefill_page1", func(d draft) { d.meta["epsilon"] = "0.1" }, "rows"},
		"epsilon 0":  {"graph_x_tiny", func(d draft) { d.meta["epsilon"] = "0" }, "rows"},
		"rotation":   {"graph_rope_half_decode_bf16", func(d draft) { d.meta["rope_style"] = "interleaved" }, "output in BF16"},
		"only f32": {"graph_rope_half_decode_bf16", func(d draft) {
			d.meta["abs_f32"], d.meta["rel_f32"] = "1e-9", "1e-9"
		}, "output in F32"},
		"cosine":       {"graph_ragged_prefill_page1", func(d draft) { d.meta["cos"] = "0" }, "the cosine difference is"},
		"merge":        {"merge_plain", func(d draft) { d.float32("expect.output", 0, 7) }, "output in F32[0, 0, 0]"},
		"merge lse":    {"merge_plain", func(d draft) { d.float32("expect.lse", 17, 7) }, "lse[5, 2]"},
		"max_logits":   {"graph_x_nan_token", func(d draft) { d.add("expect.max_logits", checkpoint.F32, 24, 3) }, "max_logits["},
		"another sink": {"graph_ragged_prefill_page1", func(d draft) { d.add("attn_sink", checkpoint.F32, 2) }, "output in F32"},
	}
	tests.wrong(t)
}

// TestHarmlessChanges passes what the format leaves open.
func TestHarmlessChanges(t *testing.T) {
	for name, tt := range map[string]struct {
		from   string
		change func(d draft)
	}{
		"other metadata":       {"graph_ragged_prefill_page1", func(d draft) { d.meta["weather"] = "fine" }},
		"nothing folded":       {"graph_ragged_prefill_page1", func(d draft) { d.meta["fold_shared_index"] = "false" }},
		"entries past the end": {"graph_ragged_prefill_page1", func(d draft) { d.int32("cache.lookup", 12, -77) }},
		"no lse":               {"graph_ragged_prefill_page1", func(d draft) { delete(d.tensors, "expect.lse"); delete(d.meta, "lse_abs") }},
		"no rows":              {"graph_ragged_prefill_page1", func(d draft) { delete(d.tensors, "expect.rows"); delete(d.meta, "rows_rel") }},
		"no f32 tolerances": {"graph_rope_half_decode_bf16", func(d draft) {
			delete(d.meta, "abs_f32")
			delete(d.meta, "rel_f32")
			delete(d.meta, "cos_f32")
		}},
		"blocks as bytes": {"graph_ragged_prefill_page1", func(d draft) {
			x := d.tensors["cache.blocks"]
			x.DType, x.Shape = checkpoint.U8, []int{20, 1, 1, 160}
			d.tensors["cache.blocks"] = x
		}},
		"a sink of nothing": {"graph_ragged_prefill_page1", func(d draft) {
			d.add("attn_sink", checkpoint.F32, 2)
			d.float32("attn_sink", 0, float32(math.Inf(-1)))
			d.float32("attn_sink", 1, float32(math.Inf(-1)))
		}},
	} {
		d := newDraft(t, tt.from)
		tt.change(d)
		lines, status, stderr := replay(t, d.write(t))
		assert.Equal(t, statusOK, status, name)
		assert.Empty(t, stderr, name)
		require.Len(t, lines, 1, name)
		assert.True(t, lines[0].Pass, name)
		assert.Equal(t, name != "no lse", lines[0].LSEMaxAbs != nil, name)
	}
}

// TestSeveralFiles goes on after a fault and ends with the worst status.
func TestSeveralFiles(t *testing.T) {
	wrong := newDraft(t, "merge_plain")
	wrong.float32("expect.output", 0, 7)
	lost := newDraft(t, "merge_plain")
	delete(lost.meta, "op")
	good, bad, unusable := filepath.Join("testdata", "merge_plain.safetensors"), wrong.write(t), lost.write(t)

	lines, status, _ := replay(t, bad, good)
	assert.Len(t, lines, 2)
	assert.Equal(t, statusWrong, status)
	lines, status, stderr := replay(t, unusable, bad, "absent.safetensors", good)
	assert.Len(t, lines, 2)
	assert.Equal(t, statusUnusable, status)
	assert.Contains(t, stderr, unusable+": metadata op is missing")
	assert.Contains(t, stderr, "absent.safetensors")
	assert.Contains(t, stderr, bad)
}

func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	newDraft(t, "merge_posinf_garbage").writeTo(t, filepath.Join(dir, "b.safetensors"))
	newDraft(t, "graph_all_empty").writeTo(t, filepath.Join(dir, "c.safetensors"))
	newDraft(t, "merge_plain").writeTo(t, filepath.Join(dir, "a.safetensors"))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a.json"), nil, 0o600))
	lines, status, _ := replay(t, dir)
	assert.Equal(t, statusOK, status)
	require.Len(t, lines, 3)
	assert.Equal(t, "merge_plain merge_posinf_garbage graph_all_empty", lines[0].Name+" "+lines[1].Name+" "+lines[2].Name)

	_, status, stderr := replay(t, t.TempDir(), "testdata/merge_plain.safetensors")
	assert.Equal(t, statusUnusable, status)
	assert.Contains(t, stderr, "the directory has no .safetensors files")
}

func TestReplayFlags(t *testing.T) {
	const file = "testdata/merge_plain.safetensors"
	for _, args := range [][]string{
		{"-threads", "x"}, {"-threads", "-1"}, {"-threads", "1000000"}, {"-page", "-1"}, {"-page", "9999999999"}, {"-page", "2000000"},
		{"-form", "absorbed"}, {"-nonsense"}, {file, "-form", "x"}, {"-threads"},
	} {
		status, out, stderr := command(append([]string{"replay"}, args...)...)
		assert.Equal(t, statusUnusable, status, args)
		assert.Empty(t, out, args)
		assert.Contains(t, stderr, "lamina replay:", args)
		assert.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
	}

	for _, args := range [][]string{
		{file, "-json", "-threads", "2", file, "-hash"}, {"-json", "-threads=2", "-hash", "--", file, file},
	} {
		status, out, stderr := command(append([]string{"replay"}, args...)...)
		assert.Equal(t, statusOK, status)
		assert.Empty(t, stderr)
		assert.Equal(t, 2, strings.Count(out, `"hash":`), args)
	}
	_, status, stderr := replay(t, "--", "-json")
	assert.Equal(t, statusUnusable, status)
	assert.Contains(t, stderr, "-json: ")
}

// TestTable reads what people see, and what a line holds without -hash.
func TestTable(t *testing.T) {
	status, out, stderr := command("replay", "testdata/merge_plain.safetensors", "testdata/graph_all_empty.safetensors")
	assert.Equal(t, statusOK, status)
	assert.Contains(t, stderr, "merge_plain                        ok")
	assert.Contains(t, stderr, "2 passed, 0 wrong, 0 could not be used (simd ")
	assert.NotContains(t, out, "hash")
	assert.Equal(t, 1, strings.Count(out, `"worst":[]`), "the empty case")
	assert.NotContains(t, out, `"form"`)
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, stderr bytes.Buffer
	assert.Equal(t, statusInterrupted, run(ctx, []string{"replay"}, &out, &stderr))
	assert.Empty(t, out.String())
	assert.Contains(t, stderr.String(), "interrupted")
}

// FuzzReplay makes a few changes to a case, drawn from a seed; whatever the case then says, it
// runs or is refused.
func FuzzReplay(f *testing.F) {
	seeds := uint64(200)
	if testing.Short() {
		seeds = 20
	}
	for seed := range seeds {
		f.Add(seed)
	}
	names := []string{"merge_plain", "graph_all_empty", "graph_ragged_prefill_page1", "graph_mask_window_poisoned", "graph_shared_prefix", "graph_w_per_row",
		small, twoPools, planar, loose, logical, physical, tokens, dynamic}
	values := []string{"", "-1", "0", "1", "2", "3", "7", "16", "17", "64", "1073741824", "0.5", "1e-30", "1e30", "null", "causal", "null",
		"chunked:1", "sliding_window_noncausal:1000000000", "bf16", "f32", "f16", "fp8_unit", "half", "decode", "prefill", "fp8_token", "fp8_tensor", "v4_584",
		"v41_528_planar", "v41_528_interleaved", "physical", "logical", "true", "token", "sequence", "dynamic", "none"}
	dtypes := []checkpoint.DType{checkpoint.BF16, checkpoint.F16, checkpoint.F32, checkpoint.F8_E4M3, checkpoint.F8_E5M2, checkpoint.U8, checkpoint.I32}
	pool := mla.NewPool(1)
	f.Cleanup(func() { pool.Close() })
	f.Fuzz(func(t *testing.T, seed uint64) {
		rng := rand.New(rand.NewPCG(seed, 0))
		d := newDraft(t, names[rng.IntN(len(names))])
		keys, tensors := slices.Sorted(maps.Keys(d.meta)), slices.Sorted(maps.Keys(d.tensors))
		keys = append(keys, "topk_per", "extra.topk_per", "fold_shared_index", "index_kind", "cache_group", "extra.cache_group")
		for range 1 + rng.IntN(3) {
			key, name := keys[rng.IntN(len(keys))], tensors[rng.IntN(len(tensors))]
			x := d.tensors[name]
			switch rng.IntN(5) {
			case 0, 1:
				d.meta[key] = values[rng.IntN(len(values))]
			case 2:
				for n := len(x.Data); n > 0 && rng.IntN(4) > 0; {
					x.Data[rng.IntN(n)] = byte(rng.Uint32())
				}
			case 3:
				d.dtype(name, dtypes[rng.IntN(len(dtypes))])
			case 4:
				if shape := slices.Clone(x.Shape); len(shape) > 0 {
					shape[rng.IntN(len(shape))] = rng.IntN(20)
					d.shape(name, shape...)
				}
			}
		}
		var b, out, stderr bytes.Buffer
		require.NoError(t, checkpoint.Write(&b, slices.Collect(maps.Values(d.tensors)), d.meta))
		file, err := checkpoint.Parse(b.Bytes())
		require.NoError(t, err)
		p := &player{options: options{hash: true, page: rng.IntN(40)}, pool: pool, stdout: json.NewEncoder(&out), stderr: &stderr}
		p.play(context.Background(), "fuzz", file, nil)
		require.Equal(t, p.status == statusUnusable, out.Len() == 0, stderr.String())
	})
}
