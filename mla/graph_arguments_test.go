package mla_test

import (
	"context"
	"fmt"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// operator lists the parameters and arguments of mla_prefill_decode_graph_fp8 in
// its order, but for ctx.
const operator = `dtype fp8_dtype fp8_scale_dtype collection_t m_scale_granularity n_scale_granularity k_scale_granularity
	mask_str kv_input_fn target sparse_mla sparse_indices_stride fold_shared_index
	output q input_row_offsets freqs_cis kv_norm_gamma kv_collection layer_idx scale epsilon
	buffer_row_offsets cache_offsets buffer_length max_seq_len w_k w_k_scale w_uk w_uk_scale w_uv w_uv_scale scalar_args_buf
	d_indices indices_stride topk_lengths attn_sink_ptr extra_k extra_d_indices extra_indices_stride extra_topk_lengths
	extra_scales_ptr num_partitions_in`

// goCase is the field of an argument: mask_str is MaskStr, attn_sink_ptr AttnSink.
func goCase(name string) string {
	field := ""
	for word := range strings.SplitSeq(strings.TrimSuffix(name, "_ptr"), "_") {
		field += strings.ToUpper(word[:1]) + word[1:]
	}
	return field
}

// TestGraphTable holds GraphArgs, the tests and the tables of the documentation
// to the operator's list: every argument has its field, in its place, a subtest of
// TestGraphArgument, and a row in each table.
func TestGraphTable(t *testing.T) {
	names := strings.Fields(operator)
	var fields, rows []string
	args := reflect.TypeFor[mla.GraphArgs]()
	for i := range args.NumField() {
		if f := args.Field(i); f.IsExported() && f.Type != reflect.TypeFor[mla.GraphHost]() {
			fields = append(fields, f.Name)
		}
	}
	for _, name := range names {
		rows = append(rows, name+" "+goCase(name)+" TestGraphArgument/"+name)
	}
	require.Len(t, fields, len(names))
	for i, name := range names {
		require.Equal(t, goCase(name), fields[i], "field of %s", name)
		require.Equal(t, name, graphArguments[i].name, "test of %s", name)
	}
	require.Len(t, graphArguments, len(names))

	row := regexp.MustCompile("(?m)^(?://\t|\\| `)(\\w+)[` |]+(\\w+)[` |]+(TestGraphArgument/\\w+)")
	for _, file := range []string{"../docs/from-max.md", "../README.md", "doc.go"} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var found []string
		for _, m := range row.FindAllStringSubmatch(string(text), -1) {
			found = append(found, strings.Join(m[1:], " "))
		}
		require.Equal(t, rows, found, "table of %s", file)
	}
}

// TestGraphHost tests what the operator does not have; TestGraphIsForward shows
// that it has its effect.
func TestGraphHost(t *testing.T) {
	x := argument{t, smallGraph()}
	x.keeps(func(a *mla.GraphArgs) { a.LSE, a.MaxLogit = a.LSE[:12:12], a.MaxLogit[:12:12] })
	for _, c := range []struct {
		change change
		err    error
		text   string
	}{
		{func(a *mla.GraphArgs) { a.Heads = 0 }, mla.ErrConfig, "Heads is 0"},
		{func(a *mla.GraphArgs) { a.Heads = math.MaxInt }, mla.ErrConfig, "Heads is"},
		{func(a *mla.GraphArgs) { a.Heads = 3 }, mla.ErrShape, "WK has 256 codes, want H*N*R, a multiple of 3*16"},
		{func(a *mla.GraphArgs) { a.FormRule = 9 }, mla.ErrConfig, "FormRule 9"},
		{func(a *mla.GraphArgs) { a.MAXThreshold = -1 }, mla.ErrConfig, "MAXThreshold is -1"},
		{func(a *mla.GraphArgs) { a.Forms = make([]mla.Form, 3) }, mla.ErrShape, "Forms has 3 values, want B = 4"},
		{func(a *mla.GraphArgs) { a.Forms = []mla.Form{0, 0, 0, 9} }, mla.ErrShape, "which is no form"},
		{func(a *mla.GraphArgs) { a.Compute = 9 }, mla.ErrConfig, "Compute 9"},
		{func(a *mla.GraphArgs) { a.RopeStyle = 9 }, mla.ErrConfig, "RopeStyle 9"},
		{func(a *mla.GraphArgs) { a.NormRounding = 9 }, mla.ErrConfig, "NormRounding 9"},
		{func(a *mla.GraphArgs) { a.ActQuant = 9 }, mla.ErrConfig, "ActQuant 9"},
		{func(a *mla.GraphArgs) { a.ActQuant = mla.ActDynamic }, mla.ErrConfig, "ActBlockQ must be set"},
		{func(a *mla.GraphArgs) { a.ActBlockLatent = -1 }, mla.ErrConfig, "ActBlockLatent -1"},
		{func(a *mla.GraphArgs) { a.TopkPer = 9 }, mla.ErrConfig, "TopkPer 9"},
		{func(a *mla.GraphArgs) { a.LSE = a.LSE[1:] }, mla.ErrShape, "LSE has 11 values, want T*H = 12"},
		{func(a *mla.GraphArgs) { a.MaxLogit = a.MaxLogit[1:] }, mla.ErrShape, "MaxLogit has 11 values"},
	} {
		x.refuses(c.change, c.err, c.text)
	}
	x.sparseRefuses(func(a *mla.GraphArgs) { a.Forms = []mla.Form{0, 0, 0, mla.FormExpanded} }, mla.ErrShape, "is expanded")
}

// TestGraphArgument runs the test of every argument: what it is given must reach
// the result, or give its error.
func TestGraphArgument(t *testing.T) {
	for _, x := range graphArguments {
		t.Run(x.name, func(t *testing.T) { x.test(argument{t, smallGraph()}) })
	}
}

// argument is the test of one argument, on a call of a world.
type argument struct {
	*testing.T
	w graphWorld
}

type change func(*mla.GraphArgs)

func (t argument) call(sparse bool, changes ...change) *mla.GraphArgs {
	t.Helper()
	a := t.w.args(t)
	if sparse {
		t.w.sparse(t, a)
	}
	for _, c := range changes {
		c(a)
	}
	return a
}

// changes fails unless a change changes the result of the dense call.
func (t argument) changes(c ...change) {
	t.Helper()
	require.False(t, runGraph(t, t.call(false)).equal(runGraph(t, t.call(false, c...))), "the result is the same")
}

// keeps fails unless it keeps every bit.
func (t argument) keeps(c ...change) {
	t.Helper()
	sameBits(t, runGraph(t, t.call(false)), runGraph(t, t.call(false, c...)), "changed")
}

// isForward tests that the call gives the bits of Layer.Forward on matrices of
// the same blocks.
func (t argument) isForward() {
	t.Helper()
	a := t.call(false)
	want, _ := t.w.viaForward(t, a)
	sameBits(t, want, runGraph(t, a), fmt.Sprintf("blocks of %d x %d", t.w.n, t.w.k))
}

// sparseChanges and sparseKeeps are the same for the sparse call.
func (t argument) sparseChanges(c ...change) {
	t.Helper()
	require.False(t, runGraph(t, t.call(true)).equal(runGraph(t, t.call(true, c...))), "the result is the same")
}

func (t argument) sparseKeeps(c ...change) {
	t.Helper()
	sameBits(t, runGraph(t, t.call(true)), runGraph(t, t.call(true, c...)), "changed")
}

// refuses fails unless the dense call gives an error, with these words in it, and
// touches neither output nor cache.
func (t argument) refuses(c change, err error, text string) {
	t.Helper()
	t.refused(t.call(false, c), err, text)
}

func (t argument) sparseRefuses(c change, err error, text string) {
	t.Helper()
	t.refused(t.call(true, c), err, text)
}

func (t argument) refused(a *mla.GraphArgs, err error, text string) {
	t.Helper()
	blocks := slices.Clone(a.KvCollection.Blocks.Data)
	got := mla.PrefillDecodeGraphFP8(context.Background(), a)
	require.ErrorIs(t, got, err)
	require.ErrorContains(t, got, text)
	require.Equal(t, blocks, a.KvCollection.Blocks.Data)
	for _, x := range values(a.Output) {
		require.True(t, x != x, "the output was written")
	}
}

// flip changes the sign of one code.
func flip(codes *[]byte, at int) { *codes = slices.Clone(*codes); (*codes)[at] ^= 0x80 }

// with is a copy of x with one value changed.
func with[T any](x []T, at int, v T) []T {
	x = slices.Clone(x)
	x[at] = v
	return x
}

func rowsWith(r mla.Rows, at int, v float32) mla.Rows { return typed(r.Kind(), with(values(r), at, v)) }

func scaleValues(s mla.Scales) []float32 {
	x := make([]float32, s.Len())
	for i := range x {
		x[i] = s.Float32(i)
	}
	return x
}

// asBF16 and asE8M0 are powers of two in the other types of scales.
func asBF16(s mla.Scales) mla.Scales {
	u := make([]uint16, s.Len())
	mla.RowsBF16(u).Narrow(0, scaleValues(s))
	return mla.ScalesBF16(u)
}

func asE8M0(s mla.Scales) mla.Scales {
	var u []fp8.E8M0
	for _, x := range scaleValues(s) {
		u = append(u, fp8.E8M0FromFloat32(x))
	}
	return mla.ScalesE8M0(u)
}

func scalesAs(as func(mla.Scales) mla.Scales, d mla.ScaleDtype) change {
	return func(a *mla.GraphArgs) {
		a.WKScale, a.WUkScale, a.WUvScale, a.Fp8ScaleDtype = as(a.WKScale), as(a.WUkScale), as(a.WUvScale), d
	}
}

// weight tests a weight and its scales. where says which outputs it reaches:
// [token range) of the four sequences' six tokens.
func (t argument) weight(codes func(*mla.GraphArgs) *[]byte, from, to int) {
	t.Helper()
	t.changes(func(a *mla.GraphArgs) { flip(codes(a), 3) })
	t.refuses(func(a *mla.GraphArgs) { *codes(a) = (*codes(a))[1:] }, mla.ErrShape, "codes, want H*")
	t.refuses(func(a *mla.GraphArgs) { *codes(a) = nil }, mla.ErrShape, "has 0 codes")
	a := runGraph(t, t.call(false, func(a *mla.GraphArgs) { *codes(a) = with(*codes(a), 3, 0x7F) }))
	row := len(a.out) / 6 // a NaN code reaches head 0 of every token that the weight is for
	for i := range 6 {
		nan := slices.ContainsFunc(a.out[i*row:(i+1)*row], func(x float32) bool { return x != x })
		require.Equal(t, from <= i && i < to, nan, "NaN in token %d", i)
	}
}

func (t argument) weightScale(name string, scales func(*mla.GraphArgs) *mla.Scales) {
	t.Helper()
	set := func(at int, v float32) change {
		return func(a *mla.GraphArgs) { *scales(a) = mla.ScalesF32(with(scaleValues(*scales(a)), at, v)) }
	}
	t.changes(set(1, 2))
	t.changes(set(1, 0))
	for _, bad := range []float32{-1, float32(math.NaN()), float32(math.Inf(1))} {
		t.refuses(set(2, bad), mla.ErrWeights, "a finite number >= 0")
		t.refuses(set(2, bad), fp8.ErrScale, "a finite number >= 0")
	}
	t.refuses(func(a *mla.GraphArgs) { *scales(a) = mla.ScalesF32(scaleValues(*scales(a))[1:]) }, mla.ErrShape, name+" has")
	t.refuses(func(a *mla.GraphArgs) { *scales(a) = mla.Scales{} }, mla.ErrShape, name+" has 0 values")
	t.refuses(func(a *mla.GraphArgs) { *scales(a) = asBF16(*scales(a)) }, mla.ErrShape, name+" is bf16, Fp8ScaleDtype f32")
}

// lengths tests a list of top-k lengths of four sequences or six tokens.
func (t argument) lengths(name string, lengths func(*mla.GraphArgs) *[]int32, stride int32) {
	t.Helper()
	set := func(x ...int32) change { return func(a *mla.GraphArgs) { *lengths(a) = x } }
	same := func(x, y []int32) {
		t.Helper()
		sameBits(t, runGraph(t, t.call(true, set(x...))), runGraph(t, t.call(true, set(y...))), "lengths")
	}
	t.sparseChanges(set(1, 1, 2, 1))
	same([]int32{1, 2, 0, 3}, []int32{1, 1, 1, 2, 2, 3}) // of four sequences, or six tokens
	same([]int32{0, 2, 0, stride}, []int32{math.MinInt32, 2, -7, math.MaxInt32})
	same(nil, []int32{stride, stride, stride, stride})
	t.sparseRefuses(set(1, 2, 3), mla.ErrShape, name+" has 3 values, want B = 4 or T = 6")
	t.sparseRefuses(set([]int32{}...), mla.ErrShape, name+" has 0 values")
	for per, n := range map[mla.TopKPer]int{mla.TopKPerToken: 4, mla.TopKPerSequence: 6} {
		t.sparseRefuses(func(a *mla.GraphArgs) {
			a.TopkLengths, a.ExtraTopkLengths = nil, nil
			*lengths(a), a.TopkPer = make([]int32, n), per
		}, mla.ErrShape, name+" has")
	}
}

var graphArguments = []struct {
	name string
	test func(argument)
}{
	{"dtype", func(t argument) {
		for _, e := range []fp8.Elem{fp8.ElemBF16, fp8.ElemF16} {
			t.w.dtype = e
			t.keeps()
			t.refuses(func(a *mla.GraphArgs) { a.Dtype = fp8.ElemF32 }, mla.ErrShape, "Dtype is f32")
		}
		t.refuses(func(a *mla.GraphArgs) { a.Dtype = fp8.ElemE4M3 }, mla.ErrConfig, "Dtype is e4m3, want bf16, f16 or f32")
		t.refuses(func(a *mla.GraphArgs) { a.Dtype = 99 }, mla.ErrConfig, "Dtype is Elem(99)")
	}},
	{"fp8_dtype", func(t argument) {
		for _, e := range []fp8.Elem{fp8.ElemE5M2, fp8.ElemE4M3FNUZ, fp8.ElemE5M2FNUZ} {
			t.changes(func(a *mla.GraphArgs) { a.Fp8Dtype = e })
		}
		t.refuses(func(a *mla.GraphArgs) { a.Fp8Dtype = fp8.ElemBF16 }, mla.ErrConfig, "Fp8Dtype is bf16")
	}},
	{"fp8_scale_dtype", func(t argument) {
		t.keeps(scalesAs(asBF16, mla.ScaleBF16))
		t.keeps(scalesAs(asE8M0, mla.ScaleE8M0))
		t.refuses(scalesAs(asE8M0, mla.ScaleBF16), mla.ErrShape, "WKScale is e8m0, Fp8ScaleDtype bf16")
		t.refuses(func(a *mla.GraphArgs) { a.Fp8ScaleDtype = 7 }, mla.ErrConfig, "Fp8ScaleDtype is 7")
	}},
	{"collection_t", func(t argument) {
		t.w.format = kvpaged.BF16
		t.changes(func(a *mla.GraphArgs) { a.CollectionT = kvpaged.F16 })
		t.refuses(func(a *mla.GraphArgs) { a.CollectionT = kvpaged.F32 }, mla.ErrShape, "KvCollection.Blocks.Data has")
		t.refuses(func(a *mla.GraphArgs) { a.CollectionT = 99 }, kvpaged.ErrFormat, "KvCollection")
		t.refuses(func(a *mla.GraphArgs) { a.CollectionT = kvpaged.DSMLA656 }, kvpaged.ErrConfig, "KvCollection")
	}},
	{"m_scale_granularity", func(t argument) {
		for _, m := range []int{0, 2, -1} {
			t.refuses(func(a *mla.GraphArgs) { a.MScaleGranularity = m }, mla.ErrConfig, "MScaleGranularity is")
		}
	}},
	{"n_scale_granularity", func(t argument) {
		t.refuses(func(a *mla.GraphArgs) { a.NScaleGranularity = 0 }, mla.ErrConfig, "NScaleGranularity is 0")
		t.refuses(func(a *mla.GraphArgs) { a.NScaleGranularity = 8 }, mla.ErrShape, "WKScale has 8 values")
		t.refuses(func(a *mla.GraphArgs) { a.NScaleGranularity = math.MaxInt }, mla.ErrShape, "WKScale has 8 values")
		for _, n := range []int{1, 2, 8, 1 << 40} {
			t.w.n = n
			t.isForward()
		}
	}},
	{"k_scale_granularity", func(t argument) {
		t.refuses(func(a *mla.GraphArgs) { a.KScaleGranularity = -1 }, mla.ErrConfig, "KScaleGranularity -1")
		t.refuses(func(a *mla.GraphArgs) { a.KScaleGranularity = 3 }, mla.ErrShape, "WKScale has 8 values")
		for _, k := range []int{1, 3, 16, 1 << 40} {
			t.w.k = k
			t.isForward()
		}
		dynamic := func(a *mla.GraphArgs) { a.ActQuant, a.ActBlockQ = mla.ActDynamic, 4 }
		t.changes(dynamic)
		t.w.k = 16
		t.keeps()
	}},
	{"mask_str", func(t argument) {
		for _, mask := range []string{"null", "sliding_window_causal:2", "sliding_window_noncausal:3", "chunked:4", "chunked_causal:2"} {
			t.changes(func(a *mla.GraphArgs) { a.MaskStr = mask })
		}
		t.keeps(func(a *mla.GraphArgs) { a.MaskStr = "sliding_window_causal:100" })
		t.sparseKeeps(func(a *mla.GraphArgs) { a.MaskStr = "chunked_causal:1" })
		for _, mask := range []string{"", "Causal", "causal:3", "chunked", "chunked:0", "chunked:x"} {
			t.refuses(func(a *mla.GraphArgs) { a.MaskStr = mask }, mla.ErrConfig, "mask")
		}
	}},
	{"kv_input_fn", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { a.KvInputFn.Rows = rowsWith(a.KvInputFn.Rows, 5, 4) })
		callback := func(a *mla.GraphArgs) {
			rows := values(a.KvInputFn.Rows)
			a.KvInputFn = mla.KvInput{Fill: func(t int, row []float32) { copy(row, rows[t*len(row):][:len(row)]) }}
		}
		for _, e := range []fp8.Elem{fp8.ElemF32, fp8.ElemBF16, fp8.ElemF16} {
			t.w.dtype, t.w.gamma = e, fp8.ElemBF16
			t.keeps(callback)
		}
		t.changes(func(a *mla.GraphArgs) { a.KvInputFn.Rows = typed(fp8.ElemF32, values(a.KvInputFn.Rows)) }) // NormRounding
		t.refuses(func(a *mla.GraphArgs) { a.KvInputFn = mla.KvInput{} }, mla.ErrShape, "KvInputFn.Rows has 0 values")
		t.refuses(func(a *mla.GraphArgs) { a.KvInputFn.Fill = func(int, []float32) {} }, mla.ErrShape, "Fill as well")
	}},
	{"target", func(t argument) {
		t.keeps(func(a *mla.GraphArgs) { a.Target = "" })
		for _, target := range []string{"gpu", "CPU", "cuda:0"} {
			t.refuses(func(a *mla.GraphArgs) { a.Target = target }, mla.ErrConfig, "want cpu")
		}
	}},
	{"sparse_mla", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { t.w.sparse(t, a) })
		t.sparseRefuses(func(a *mla.GraphArgs) { a.SparseMla = false }, mla.ErrConfig, "DIndices is given, and SparseMla is false")
		none := runGraph(t, t.call(false, func(a *mla.GraphArgs) { a.SparseMla = true })) // empty lists
		require.Equal(t, make([]float32, len(none.out)), none.out)
		require.Equal(t, constant(len(none.lse), float32(math.Inf(1))), none.lse)
		require.Equal(t, constant(len(none.top), float32(math.Inf(-1))), none.top)
	}},
	{"sparse_indices_stride", func(t argument) {
		t.sparseKeeps(func(a *mla.GraphArgs) { a.SparseIndicesStride = 5 })
		t.sparseKeeps(func(a *mla.GraphArgs) { a.SparseIndicesStride, a.IndicesStride = 5, 0 })
		t.sparseRefuses(func(a *mla.GraphArgs) { a.SparseIndicesStride = 4 }, mla.ErrShape, "IndicesStride is 5, SparseIndicesStride 4")
		t.sparseRefuses(func(a *mla.GraphArgs) { a.SparseIndicesStride, a.IndicesStride = -5, 0 }, mla.ErrShape, "stride of DIndices is -5")
		t.refuses(func(a *mla.GraphArgs) { a.SparseIndicesStride = 4 }, mla.ErrConfig, "SparseIndicesStride is given")
	}},
	{"fold_shared_index", func(t argument) {
		shared := func(a *mla.GraphArgs) { // every token has the lists of its sequence's first
			for b := range t.w.fresh {
				t0 := int(a.InputRowOffsets[b])
				for t := t0; t < int(a.InputRowOffsets[b+1]); t++ {
					copy(a.DIndices[5*t:5*t+5], a.DIndices[5*t0:5*t0+5])
					copy(a.ExtraDIndices[3*t:3*t+3], a.ExtraDIndices[3*t0:3*t0+3])
				}
			}
			a.ExtraTopkLengths = []int32{2, 3, 1, 1}
		}
		fold := func(a *mla.GraphArgs) { a.FoldSharedIndex = true }
		sameBits(t, runGraph(t, t.call(true, shared)), runGraph(t, t.call(true, shared, fold)), "folded")
		past := func(a *mla.GraphArgs) { a.TopkLengths, a.DIndices[9] = []int32{4, 4, 4, 4}, -12345 } // not looked at
		runGraph(t, t.call(true, shared, past, fold))
		t.sparseRefuses(fold, mla.ErrShape, "FoldShared")
		t.refuses(fold, mla.ErrConfig, "FoldSharedIndex is given")
	}},
	{"output", func(t argument) {
		a := t.call(false)
		for _, x := range runGraph(t, a).out { // it was NaN
			require.False(t, x != x)
		}
		t.refuses(func(a *mla.GraphArgs) { a.Output = typed(t.w.dtype, constant(7, float32(math.NaN()))) }, mla.ErrShape, "Output has 7 values, want T*H*V = 72")
		t.refuses(func(a *mla.GraphArgs) { a.Output = typed(fp8.ElemBF16, values(a.Output)) }, mla.ErrShape, "Output bf16, Dtype is f32")
		a = t.call(false)
		a.Output = mla.RowsF32(a.Q.F32()[:72])
		require.ErrorIs(t, mla.PrefillDecodeGraphFP8(context.Background(), a), mla.ErrShape)
	}},
	{"q", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { a.Q = rowsWith(a.Q, 5, 4) })
		a := t.call(false)
		before := values(a.Q)
		runGraph(t, a)
		require.Equal(t, before, values(a.Q), "q is not modified")
		t.refuses(func(a *mla.GraphArgs) { a.Q = mla.RowsF32(a.Q.F32()[1:]) }, mla.ErrShape, "Q has 143 values, want T*H*(N+P)")
		t.refuses(func(a *mla.GraphArgs) { a.Q = mla.RowsF32(a.Q.F32()[:60]) }, mla.ErrShape, "Q has 60 values")
		t.refuses(func(a *mla.GraphArgs) { a.Q = mla.Rows{} }, mla.ErrShape, "Q has 0 values")
	}},
	{"input_row_offsets", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { a.InputRowOffsets = []uint32{0, 2, 5, 5, 6} })
		for _, c := range []struct {
			offsets []uint32
			text    string
		}{
			{nil, "InputRowOffsets is empty"}, {[]uint32{1, 3, 5, 5, 6}, "InputRowOffsets[0] is 1"},
			{[]uint32{0, 3, 2, 5, 6}, "decreases from 3 to 2 at sequence 1"}, {[]uint32{0, math.MaxUint32, 5, 5, 6}, "decreases"},
			{[]uint32{0, 3, 5, 6}, "CacheLengths has 4 values, want B = 3"}, {[]uint32{0, 1, 2, 3, math.MaxUint32}, "ends with 4294967295 tokens"},
			{[]uint32{0, 3, 5, 5, 7}, "Q has 144 values, want T*H*(N+P) = 7*"},
		} {
			t.refuses(func(a *mla.GraphArgs) { a.InputRowOffsets = c.offsets; a.BufferRowOffsets, a.CacheOffsets = nil, nil }, mla.ErrShape, c.text)
		}
	}},
	{"freqs_cis", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { a.FreqsCis = rowsWith(a.FreqsCis, 5*4, 3) }) // position 5
		t.keeps(func(a *mla.GraphArgs) { a.FreqsCis = rowsWith(a.FreqsCis, 9*4, 3) })   // of no new token
		t.keeps(func(a *mla.GraphArgs) { a.FreqsCis = mla.RowsF32(a.FreqsCis.F32()[:8*4]) })
		t.changes(func(a *mla.GraphArgs) { a.FreqsCis = typed(fp8.ElemBF16, values(a.FreqsCis)) })
		t.refuses(func(a *mla.GraphArgs) { a.FreqsCis = mla.RowsF32(a.FreqsCis.F32()[:7*4]) }, mla.ErrShape, "FreqsCis has 28 values, want rows of P = 4, and 8 of them")
		t.refuses(func(a *mla.GraphArgs) { a.FreqsCis = mla.RowsF32(a.FreqsCis.F32()[1:]) }, mla.ErrShape, "FreqsCis has 63 values")
		t.w.rope = 0
		t.refuses(func(a *mla.GraphArgs) { a.FreqsCis = mla.RowsF32(make([]float32, 8)) }, mla.ErrShape, "rows of P = 0")
	}},
	{"kv_norm_gamma", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { a.KvNormGamma = rowsWith(a.KvNormGamma, 15, 4) })
		t.changes(func(a *mla.GraphArgs) { a.KvNormGamma = typed(fp8.ElemBF16, values(a.KvNormGamma)) })
		t.refuses(func(a *mla.GraphArgs) { a.KvNormGamma = mla.Rows{} }, mla.ErrShape, "KvNormGamma has 0 values")
		t.refuses(func(a *mla.GraphArgs) { a.KvNormGamma = mla.RowsF32(make([]float32, 15)) }, mla.ErrShape, "WK has 256 codes, want H*N*R, a multiple of 2*15")
	}},
	{"kv_collection", testKvCollection},
	{"layer_idx", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { a.LayerIdx = 0 })
		for _, l := range []int{-1, 2} {
			t.refuses(func(a *mla.GraphArgs) { a.LayerIdx = l }, mla.ErrShape, "LayerIdx is")
		}
	}},
	{"scale", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { a.Scale = 0.5 })
		for _, x := range []float32{0, float32(math.NaN()), float32(math.Inf(-1))} {
			t.refuses(func(a *mla.GraphArgs) { a.Scale = x }, mla.ErrConfig, "Scale is")
		}
	}},
	{"epsilon", func(t argument) {
		t.changes(func(a *mla.GraphArgs) { a.Epsilon = 0.5 })
		// A row of zeros tells 0 from 1e-6.
		zeros := func(a *mla.GraphArgs) { a.KvInputFn.Rows = mla.RowsF32(make([]float32, 120)) }
		require.False(t, math.IsNaN(float64(runGraph(t, t.call(false, zeros)).out[0])))
		require.True(t, math.IsNaN(float64(runGraph(t, t.call(false, zeros, func(a *mla.GraphArgs) { a.Epsilon = 0 })).out[0])))
		for _, x := range []float32{-1, -1e-9, float32(math.NaN()), float32(math.Inf(1))} {
			t.refuses(func(a *mla.GraphArgs) { a.Epsilon = x }, mla.ErrConfig, "Epsilon is")
		}
	}},
	{"buffer_row_offsets", func(t argument) {
		t.keeps(func(a *mla.GraphArgs) { a.BufferRowOffsets, a.CacheOffsets = nil, nil })
		t.keeps(func(a *mla.GraphArgs) { a.BufferRowOffsets = make([]uint32, 5) }) // a chunk that takes nothing
		for text, rows := range map[string][]uint32{
			"BufferRowOffsets has 4 values, want B+1 = 5":                                  {0, 8, 12, 24},
			"BufferRowOffsets has 0 values":                                                nil,
			"BufferRowOffsets[0] is 1":                                                     {1, 8, 12, 24, 28},
			"BufferRowOffsets decreases from 8 to 4":                                       {0, 8, 4, 24, 28},
			"BufferRowOffsets ends with 28, BufferLength is 24":                            {0, 8, 12, 24, 28},
			"takes keys 0 to 12 of sequence 0 (CacheOffsets, BufferRowOffsets), which has": {0, 12, 12, 24, 24},
		} {
			t.refuses(func(a *mla.GraphArgs) {
				a.BufferRowOffsets = rows
				if a.BufferLength = 28; strings.Contains(text, "24") {
					a.BufferLength = 24
				}
			}, mla.ErrShape, text)
		}
	}},
	{"cache_offsets", func(t argument) {
		t.keeps(func(a *mla.GraphArgs) { a.CacheOffsets = append(slices.Clone(a.CacheOffsets), math.MaxUint32) })
		t.keeps(func(a *mla.GraphArgs) { a.CacheOffsets, a.BufferRowOffsets = []uint32{8, 4, 12, 4}, make([]uint32, 5) })
		for text, from := range map[string][]uint32{
			"CacheOffsets has 3 values, want B = 4":             {0, 0, 0},
			"CacheOffsets has 0 values":                         nil,
			"takes keys 4 to 16 of sequence 2":                  {0, 0, 4, 0},
			"takes keys 4294967295 to 4294967303 of sequence 0": {math.MaxUint32, 0, 0, 0},
		} {
			t.refuses(func(a *mla.GraphArgs) { a.CacheOffsets = from }, mla.ErrShape, text)
		}
	}},
	{"buffer_length", func(t argument) {
		all := []int{8, 2, 9, 3}
		for buf := 1; buf < 40; buf += 5 { // every chunk of a buffer of any size
			plan, err := mla.PlanChunks(all, 4, buf)
			require.NoError(t, err)
			for _, c := range plan {
				t.keeps(func(a *mla.GraphArgs) {
					a.BufferRowOffsets, a.CacheOffsets, a.BufferLength = c.RowOffsets, c.CacheOffsets, c.Length
				})
			}
		}
		for _, n := range []int{-1, 0, 1, 1 << 30} {
			t.keeps(func(a *mla.GraphArgs) { a.BufferRowOffsets, a.CacheOffsets, a.BufferLength = nil, nil, n })
		}
		for _, n := range []int{-2, math.MinInt, math.MaxInt} {
			t.refuses(func(a *mla.GraphArgs) { a.BufferLength = n }, mla.ErrShape, "BufferLength is")
		}
		t.refuses(func(a *mla.GraphArgs) { a.BufferLength = 27 }, mla.ErrShape, "ends with 28, BufferLength is 27")
		t.refuses(func(a *mla.GraphArgs) { a.BufferLength = -1 }, mla.ErrShape, "ends with 28, BufferLength is -1")
	}},
	{"max_seq_len", func(t argument) {
		longer := func(a *mla.GraphArgs) { a.MaxSeqLen, a.ScalarArgsBuf = 9, []int64{4, 9, 0} }
		rule := func(a *mla.GraphArgs) { a.FormRule = mla.FormRuleMAX }
		t.keeps(longer) // FormRule PerSequence
		require.False(t, runGraph(t, t.call(false, rule)).equal(runGraph(t, t.call(false, rule, longer))), "8 is absorbed, 9 expanded")
		t.refuses(func(a *mla.GraphArgs) { a.MaxSeqLen, a.ScalarArgsBuf = 2, []int64{4, 2, 0} }, mla.ErrShape, "MaxSeqLen is 2, a sequence has 3 new tokens")
		t.refuses(func(a *mla.GraphArgs) { a.MaxSeqLen = math.MinInt }, mla.ErrShape, "MaxSeqLen is -")
	}},
	// Tokens 3 and 4 are expanded, the others absorbed.
	{"w_k", func(t argument) { t.weight(func(a *mla.GraphArgs) *[]byte { return &a.WK }, 3, 5) }},
	{"w_k_scale", func(t argument) {
		t.weightScale("WKScale", func(a *mla.GraphArgs) *mla.Scales { return &a.WKScale })
	}},
	{"w_uk", func(t argument) {
		t.w.cached, t.w.fresh = []int{5, 3, 9, 2}, []int{3, 1, 0, 2} // all absorbed
		t.weight(func(a *mla.GraphArgs) *[]byte { return &a.WUk }, 0, 6)
	}},
	{"w_uk_scale", func(t argument) {
		t.weightScale("WUkScale", func(a *mla.GraphArgs) *mla.Scales { return &a.WUkScale })
	}},
	{"w_uv", func(t argument) { t.weight(func(a *mla.GraphArgs) *[]byte { return &a.WUv }, 0, 6) }},
	{"w_uv_scale", func(t argument) {
		t.weightScale("WUvScale", func(a *mla.GraphArgs) *mla.Scales { return &a.WUvScale })
	}},
	{"scalar_args_buf", func(t argument) {
		t.keeps(func(a *mla.GraphArgs) { a.ScalarArgsBuf = []int64{4, 3, math.MinInt64} })
		for _, buf := range [][]int64{{3, 3, 1}, {4, 2, 1}, {-4, 3, 1}, {4, math.MaxInt64, 1}} {
			t.refuses(func(a *mla.GraphArgs) { a.ScalarArgsBuf = buf }, mla.ErrShape, "want B = 4, MaxSeqLen = 3, any")
		}
		for _, buf := range [][]int64{nil, {4, 3}, {4, 3, 1, 1}} {
			t.refuses(func(a *mla.GraphArgs) { a.ScalarArgsBuf = buf }, mla.ErrShape, "ScalarArgsBuf has")
		}
	}},
	{"d_indices", func(t argument) {
		set := func(x int32) change { return func(a *mla.GraphArgs) { a.DIndices = with(a.DIndices, 0, x) } }
		other := t.call(true).DIndices[6]
		t.sparseChanges(set(other))
		none := runGraph(t, t.call(true, set(-1)))
		for _, garbage := range []int32{-2, math.MinInt32, math.MaxInt32, 12 * 4} {
			a := t.call(true, set(garbage))
			sameBits(t, none, runGraph(t, a), "garbage is none")
			require.EqualValues(t, 1, a.Ignored)
		}
		twice := func(a *mla.GraphArgs) { a.DIndices = with(a.DIndices, 2, a.DIndices[0]) }
		t.sparseChanges(twice) // -1 before: duplicates count
		t.sparseRefuses(func(a *mla.GraphArgs) { a.DIndices = a.DIndices[1:] }, mla.ErrShape, "DIndices has 29 values, want T*stride = 6*5")
		t.sparseRefuses(func(a *mla.GraphArgs) { a.DIndices = nil }, mla.ErrShape, "DIndices has 0 values")
		t.refuses(func(a *mla.GraphArgs) { a.DIndices = []int32{} }, mla.ErrConfig, "DIndices is given")
	}},
	{"indices_stride", func(t argument) {
		t.sparseChanges(func(a *mla.GraphArgs) { a.IndicesStride, a.DIndices = 4, a.DIndices[:24] })
		for _, n := range []int{-1, 4, math.MaxInt, math.MinInt} {
			t.sparseRefuses(func(a *mla.GraphArgs) { a.IndicesStride = n }, mla.ErrShape, "DIndices")
		}
		t.refuses(func(a *mla.GraphArgs) { a.IndicesStride = 5 }, mla.ErrConfig, "IndicesStride is given")
		all := func(a *mla.GraphArgs) { a.TopkLengths = nil }
		long := func(a *mla.GraphArgs) { // longer than any sequence, by entries that are -1
			const stride = 9000
			wide := make([]int32, 6*stride)
			for i := range wide {
				wide[i] = -1
			}
			for token := range 6 {
				copy(wide[token*stride:], a.DIndices[5*token:][:5])
			}
			a.IndicesStride, a.DIndices = stride, wide
		}
		sameBits(t, runGraph(t, t.call(true, all)), runGraph(t, t.call(true, all, long)), "lists of 9,000 entries")
	}},
	{"topk_lengths", func(t argument) {
		t.lengths("TopkLengths", func(a *mla.GraphArgs) *[]int32 { return &a.TopkLengths }, 5)
		t.w.fresh = []int{3, 0, 0, 1} // as many tokens as sequences: by sequence, unless told otherwise
		set := func(a *mla.GraphArgs) { a.TopkLengths, a.ExtraTopkLengths = []int32{1, 2, 3, 4}, []int32{0, 1, 2, 3} }
		byToken := func(a *mla.GraphArgs) { a.TopkPer = mla.TopKPerToken }
		bySeq := func(a *mla.GraphArgs) { a.TopkPer = mla.TopKPerSequence }
		auto, token, seq := runGraph(t, t.call(true, set)), runGraph(t, t.call(true, set, byToken)), runGraph(t, t.call(true, set, bySeq))
		sameBits(t, seq, auto, "by sequence")
		require.False(t, token.equal(auto))
		t.refuses(func(a *mla.GraphArgs) { a.TopkLengths = []int32{1, 1, 1, 1} }, mla.ErrConfig, "TopkLengths is given")
	}},
	{"attn_sink_ptr", func(t argument) {
		sink := func(x ...float32) change { return func(a *mla.GraphArgs) { a.AttnSink = x } }
		inf := float32(math.Inf(1))
		plain, sunk := runGraph(t, t.call(false)), runGraph(t, t.call(false, sink(0.5, -1)))
		require.False(t, plain.equal(sunk))
		require.Equal(t, plain.lse, sunk.lse, "the lse has no sink")
		t.keeps(sink(-inf, -inf))
		t.keeps(sink(-1e38, -1e38))
		t.sparseChanges(sink(3, 3))
		for i, x := range runGraph(t, t.call(false, sink(inf, -inf))).out { // head 0 of two
			if i%12 < 6 {
				require.Zero(t, x)
			} else {
				require.Equal(t, plain.out[i], x)
			}
		}
		t.refuses(sink(1), mla.ErrShape, "AttnSink has 1 values, want H = 2")
	}},
	{"extra_k", testExtraK},
	{"extra_d_indices", func(t argument) {
		set := func(x int32) change { return func(a *mla.GraphArgs) { a.ExtraDIndices = with(a.ExtraDIndices, 0, x) } }
		t.sparseChanges(set((t.call(true).ExtraDIndices[0] + 1) % 9))
		none := runGraph(t, t.call(true, set(-1)))
		for _, garbage := range []int32{-2, math.MinInt32, math.MaxInt32, 9} {
			a := t.call(true, set(garbage))
			sameBits(t, none, runGraph(t, a), "garbage is none")
			require.EqualValues(t, 1, a.Ignored)
		}
		t.sparseRefuses(func(a *mla.GraphArgs) { a.ExtraDIndices = a.ExtraDIndices[1:] }, mla.ErrShape, "ExtraDIndices has 17 values")
		t.refuses(func(a *mla.GraphArgs) { a.ExtraDIndices = []int32{} }, mla.ErrConfig, "ExtraDIndices is given")
	}},
	{"extra_indices_stride", func(t argument) {
		t.sparseChanges(func(a *mla.GraphArgs) { a.ExtraIndicesStride, a.ExtraDIndices = 1, a.ExtraDIndices[:6] })
		for _, n := range []int{-1, 4, math.MaxInt} {
			t.sparseRefuses(func(a *mla.GraphArgs) { a.ExtraIndicesStride = n }, mla.ErrShape, "ExtraDIndices")
		}
		t.refuses(func(a *mla.GraphArgs) { a.ExtraIndicesStride = 3 }, mla.ErrConfig, "ExtraIndicesStride is given")
	}},
	{"extra_topk_lengths", func(t argument) {
		t.lengths("ExtraTopkLengths", func(a *mla.GraphArgs) *[]int32 { return &a.ExtraTopkLengths }, 3)
		t.refuses(func(a *mla.GraphArgs) { a.ExtraTopkLengths = []int32{1, 1, 1, 1} }, mla.ErrConfig, "ExtraTopkLengths is given")
	}},
	{"extra_scales_ptr", func(t argument) {
		t.sparseChanges(func(a *mla.GraphArgs) { a.ExtraScales = []float32{0.25} })
		nan := runGraph(t, t.call(true, func(a *mla.GraphArgs) { a.ExtraScales = []float32{float32(math.NaN())} }))
		require.True(t, nan.out[0] != nan.out[0], "scales of a cache are taken as they are")
		t.sparseRefuses(func(a *mla.GraphArgs) { a.ExtraScales = nil }, mla.ErrShape, "the scales of ExtraK have 0 values, want 1")
		t.sparseRefuses(func(a *mla.GraphArgs) { a.ExtraScales = []float32{1, 2} }, mla.ErrShape, "the scales of ExtraK have 2 values")
		t.sparseRefuses(func(a *mla.GraphArgs) { a.ExtraK.Format = kvpaged.FP8Unit }, kvpaged.ErrConfig, "ExtraK")
		t.refuses(func(a *mla.GraphArgs) { a.ExtraScales = []float32{1} }, mla.ErrConfig, "ExtraScales is given")

		// By token and group: the same rows with the scale of the tensor everywhere.
		token := func(a *mla.GraphArgs) {
			a.ExtraK.Format, a.ExtraK.Blocks.Group, a.ExtraScales = kvpaged.FP8Token, 20, constant(3*2*3, 0.5)
		}
		t.sparseKeeps(token)
		t.sparseChanges(token, func(a *mla.GraphArgs) { a.ExtraScales = constant(3*2*3, 0.7) })
		t.sparseRefuses(func(a *mla.GraphArgs) { token(a); a.ExtraScales = a.ExtraScales[1:] }, kvpaged.ErrConfig, "ExtraK")
	}},
	{"num_partitions_in", func(t argument) {
		for _, n := range []int{1, 2, 1000, math.MaxInt} {
			t.keeps(func(a *mla.GraphArgs) { a.NumPartitionsIn = n })
			t.sparseKeeps(func(a *mla.GraphArgs) { a.NumPartitionsIn = n })
		}
		t.refuses(func(a *mla.GraphArgs) { a.NumPartitionsIn = -1 }, mla.ErrConfig, "NumPartitionsIn is -1")
	}},
}

func testKvCollection(t argument) {
	kv := func(c func(*mla.KvCollection)) change {
		return func(a *mla.GraphArgs) { c(&a.KvCollection) }
	}
	// What is cached, where, and how much of it.
	t.changes(kv(func(c *mla.KvCollection) {
		at := (int(c.LookupTable[0])*2 + 1) * 4 * 20 * 4 // page 0 of sequence 0 in layer 1
		c.Blocks.Data[at+2] ^= 1
	}))
	t.changes(kv(func(c *mla.KvCollection) { c.CacheLengths = with(c.CacheLengths, 0, 4) }))
	swap := kv(func(c *mla.KvCollection) {
		c.LookupTable = slices.Clone(c.LookupTable)
		c.LookupTable[8], c.LookupTable[9] = c.LookupTable[9], c.LookupTable[8]
	})
	t.keeps(swap) // the third sequence has no new tokens
	past := kv(func(c *mla.KvCollection) { c.LookupTable[3], c.LookupTable[7] = 0, 0xDEADBEEF })
	t.keeps(past)

	a := t.call(false)
	lengths, table := slices.Clone(a.KvCollection.CacheLengths), slices.Clone(a.KvCollection.LookupTable)
	runGraph(t, a)
	require.Equal(t, lengths, a.KvCollection.CacheLengths, "nothing is committed")
	require.Equal(t, table, a.KvCollection.LookupTable)

	for _, c := range []struct {
		change func(*mla.KvCollection)
		err    error
		text   string
	}{
		{func(c *mla.KvCollection) { c.Blocks.Data = c.Blocks.Data[4:] }, mla.ErrShape, "Blocks.Data has"},
		{func(c *mla.KvCollection) { c.Blocks.Data = nil }, mla.ErrShape, "Blocks.Data has 0 bytes, want [12, 1, 2, 4, 1, 20] of f32 = 7680"},
		{func(c *mla.KvCollection) { c.Blocks.NumBlocks = 11 }, mla.ErrShape, "Blocks.Data has 7680 bytes"},
		{func(c *mla.KvCollection) { c.Blocks.NumBlocks = -1 }, kvpaged.ErrConfig, "KvCollection"},
		{func(c *mla.KvCollection) { c.Blocks.Layers = math.MaxInt }, kvpaged.ErrConfig, "KvCollection"},
		{func(c *mla.KvCollection) { c.Blocks.Layers = 0 }, kvpaged.ErrConfig, "KvCollection"},
		{func(c *mla.KvCollection) { c.Blocks.PageTokens = 0 }, mla.ErrShape, "PageTokens is 0"},
		{func(c *mla.KvCollection) { c.Blocks.PageTokens = math.MaxInt }, mla.ErrShape, "PageTokens is"},
		{func(c *mla.KvCollection) { c.Blocks.Group = 3 }, kvpaged.ErrConfig, "Group is 3"},
		{func(c *mla.KvCollection) { c.Scales = []float32{1} }, kvpaged.ErrConfig, "Scales"},
		{func(c *mla.KvCollection) { c.CacheLengths = c.CacheLengths[1:] }, mla.ErrShape, "CacheLengths has 3 values, want B = 4"},
		{func(c *mla.KvCollection) { c.CacheLengths[0] = math.MaxUint32 }, mla.ErrShape, "FreqsCis"},
		{func(c *mla.KvCollection) { c.CacheLengths[2] = math.MaxUint32 }, kvpaged.ErrPage, "sequence 2"},
		{func(c *mla.KvCollection) { c.LookupTable = c.LookupTable[1:] }, kvpaged.ErrShape, "15 entries for 4 sequences"},
		{func(c *mla.KvCollection) { c.LookupTable = nil }, kvpaged.ErrPage, "sequence 0"},
		{func(c *mla.KvCollection) { c.LookupTable[1] = 13 }, kvpaged.ErrPage, "entry 1 is 13"},
		{func(c *mla.KvCollection) { c.LookupTable[1] = math.MaxUint32 }, kvpaged.ErrPage, "entry 1 is 4294967295"},
		{func(c *mla.KvCollection) { c.LookupTable[1] = 12 }, kvpaged.ErrPage, "entry 1 is not mapped, but new tokens go there"},
		{func(c *mla.KvCollection) { c.LookupTable[0] = 12 }, mla.ErrUnmapped, "position 0, which its new tokens see (sequence 0"},
		{func(c *mla.KvCollection) { c.LookupTable[1] = c.LookupTable[4] }, kvpaged.ErrShared, "held 2 times"},
	} {
		t.refuses(func(a *mla.GraphArgs) { a.BufferRowOffsets, a.CacheOffsets = nil, nil; c.change(&a.KvCollection) }, c.err, c.text)
	}
	// A hole that no query sees, and a page of cached tokens that two share.
	t.w.cached[0] = 9
	window := func(a *mla.GraphArgs) { a.MaskStr = "sliding_window_causal:2" }
	hole := kv(func(c *mla.KvCollection) { c.LookupTable[0] = 12 })
	sameBits(t, runGraph(t, t.call(false, window)), runGraph(t, t.call(false, window, hole)), "a hole out of every window")
	runGraph(t, t.call(false, kv(func(c *mla.KvCollection) { c.LookupTable[0] = c.LookupTable[8] })))

	// Scales outside the rows.
	t.w.format = kvpaged.FP8Tensor
	t.changes(kv(func(c *mla.KvCollection) { c.Scales = []float32{3} }))
	t.refuses(kv(func(c *mla.KvCollection) { c.Scales = nil }), mla.ErrShape, "the scales of KvCollection have 0 values")
	for _, scale := range []float32{0, -1, float32(math.Inf(1)), float32(math.NaN())} {
		runGraph(t, t.call(false, kv(func(c *mla.KvCollection) { c.Scales = []float32{scale} }))) // as they are
	}
	t.w.format, t.w.group = kvpaged.FP8Token, 7
	t.changes(kv(func(c *mla.KvCollection) { c.Scales = constant(len(c.Scales), 0.125) }))
	t.refuses(kv(func(c *mla.KvCollection) { c.Scales = c.Scales[1:] }), kvpaged.ErrConfig, "Scales has")
}

func testExtraK(t argument) {
	extra := func(c func(*mla.ExtraCache)) change {
		return func(a *mla.GraphArgs) { x := *a.ExtraK; a.ExtraK = &x; c(&x) }
	}
	t.sparseChanges(func(a *mla.GraphArgs) {
		a.ExtraK, a.ExtraDIndices, a.ExtraIndicesStride, a.ExtraTopkLengths, a.ExtraScales = nil, nil, 0, nil, nil
	})
	t.sparseChanges(extra(func(x *mla.ExtraCache) { x.Layer = 0 }))
	t.sparseChanges(extra(func(x *mla.ExtraCache) { x.Blocks.NumBlocks, x.Blocks.Layers = 2, 3 }))
	t.sparseKeeps(extra(func(x *mla.ExtraCache) { x.Blocks.Data = slices.Clone(x.Blocks.Data) }))
	for _, c := range []struct {
		change func(*mla.ExtraCache)
		err    error
		text   string
	}{
		{func(x *mla.ExtraCache) { x.Layer = 2 }, mla.ErrShape, "ExtraK.Layer is 2, the cache has layers 0 to 1"},
		{func(x *mla.ExtraCache) { x.Layer = -1 }, mla.ErrShape, "ExtraK.Layer is -1"},
		{func(x *mla.ExtraCache) { x.Format = 99 }, kvpaged.ErrFormat, "ExtraK"},
		{func(x *mla.ExtraCache) { x.Format = kvpaged.DSMLA656 }, kvpaged.ErrConfig, "Width is 20, want 576"},
		{func(x *mla.ExtraCache) { x.Blocks = mla.KvBlocks{} }, kvpaged.ErrConfig, "ExtraK"},
		{func(x *mla.ExtraCache) { x.Blocks.Data = x.Blocks.Data[:9] }, mla.ErrShape, "ExtraK.Blocks.Data has 9 bytes"},
	} {
		t.sparseRefuses(extra(c.change), c.err, c.text)
	}
	t.sparseRefuses(func(a *mla.GraphArgs) { a.ExtraK = nil }, mla.ErrShape, "ExtraK is not")
	t.refuses(func(a *mla.GraphArgs) { a.ExtraK = &mla.ExtraCache{} }, mla.ErrConfig, "ExtraK is given, and SparseMla is false")
}
