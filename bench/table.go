package bench

import (
	"slices"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// Table lists the works by which the speed of this library is judged, for any
// number of threads; Bars says what each of them should reach. Works that are
// measured by each other stand side by side, since a machine that others use as
// well is not the same a minute later.
func Table() []Spec {
	return slices.Concat(tableDecode(), tableSparse(), tableRows(), tablePrefill(), tableGemm(), tableLayer(), tableBlock(), tableRivals(), tableBF16())
}

// tableBF16 is what the second arithmetic is for, and what else shows that all of it
// is fast.
func tableBF16() []Spec {
	var all []Spec
	for _, ctx := range []int{1024, 4096, 16384} {
		all = append(all, decodeOf("v3", ctx, kvpaged.BF16))
	}
	all = append(all, decodeOf("v3", 4096, kvpaged.FP8Unit), decodeOf("v3", 4096, kvpaged.DSMLA656))
	all = append(all, tableSparse()[1:3]...)
	all = slices.Concat(all, tableRows(), tablePrefill(), tableGemm(), tableLayer(), tableBlock())
	for i := range all {
		all[i].Arithmetic = mla.ComputeBF16
	}
	return all
}

// The cache formats of the table: fp8Rows are all that hold 8-bit values, of which
// records are those that models with index lists keep.
var (
	fp8Rows = []kvpaged.Format{
		kvpaged.FP8Unit, kvpaged.FP8Tensor, kvpaged.FP8Token,
		kvpaged.DSMLA656, kvpaged.V4_584, kvpaged.V41_528Interleaved, kvpaged.V41_528Planar,
	}
	records = fp8Rows[3:]
)

// named is a model that is known to exist.
func named(name string) Model {
	m, err := ParseModel(name)
	if err != nil {
		panic(err)
	}
	return m
}

func decodeOf(model string, ctx int, kv kvpaged.Format) Spec {
	return Spec{Op: Decode, Model: named(model), Ctx: ctx, Batch: 1, Tokens: 1, KV: kv}
}

// tableDecode is one token of DeepSeek-V3 on short and long contexts, in every
// format next to bf16.
func tableDecode() []Spec {
	var all []Spec
	for _, ctx := range []int{1024, 4096, 16384} {
		for _, kv := range slices.Concat([]kvpaged.Format{kvpaged.BF16, kvpaged.F32}, fp8Rows) {
			all = append(all, decodeOf("v3", ctx, kv))
		}
	}
	return all
}

// tableSparse is index lists of 2,048 keys, next to as many keys without a list.
func tableSparse() []Spec {
	all := []Spec{decodeOf("v3", 2048, kvpaged.BF16)}
	for _, kv := range slices.Concat([]kvpaged.Format{kvpaged.BF16}, records) {
		s := decodeOf("v3", 32768, kv)
		s.Op, s.TopK = SparseDecode, 2048
		all = append(all, s)
	}
	return all
}

// tableRows is decoding with few heads, and with a batch of very different lengths.
func tableRows() []Spec {
	batch := decodeOf("v3", 8192, kvpaged.BF16)
	batch.Batch, batch.Shortest = 8, 100
	return []Spec{decodeOf("v2-lite", 4096, kvpaged.BF16), decodeOf("glm-4.7-flash", 4096, kvpaged.BF16), batch}
}

func promptOf(op Op, model string, tokens int, kv kvpaged.Format) Spec {
	return Spec{Op: op, Model: named(model), Ctx: tokens, Batch: 1, Tokens: tokens, KV: kv}
}

func tablePrefill() []Spec {
	return []Spec{promptOf(Prefill, "v2-lite", 2048, kvpaged.F32), promptOf(Prefill, "v3", 512, kvpaged.F32)}
}

func gemmOf(m, n, k int) Spec { return Spec{Op: Gemm, Model: named("v3"), M: m, N: n, K: k} }

// tableGemm is the value up-projection of all heads of DeepSeek-V3 at once, and for
// one row as much as no cache holds.
func tableGemm() []Spec {
	var all []Spec
	for _, m := range []int{512, 64, 16, 4, 1} {
		all = append(all, gemmOf(m, 16384, 512))
	}
	return append(all, gemmOf(1, 131072, 512))
}

// tableLayer is a whole layer of DeepSeek-V3 next to what it consists of for one
// token, attention and the two products of each head; and a prompt.
func tableLayer() []Spec {
	query, value := gemmOf(1, 512, 128), gemmOf(1, 128, 512)
	query.Batch, value.Batch = query.Model.Heads, value.Model.Heads
	token := decodeOf("v3", 4096, kvpaged.BF16)
	token.Op = Layer
	return []Spec{query, value, token, promptOf(Layer, "v3", 512, kvpaged.BF16)}
}

// tableBlock is what is around that layer, too.
func tableBlock() []Spec {
	token := decodeOf("v3", 4096, kvpaged.BF16)
	token.Op = Block
	return []Spec{token, promptOf(Block, "v3", 64, kvpaged.BF16)}
}

// tableRivals is what else Go has for products.
func tableRivals() []Spec {
	var all []Spec
	for _, m := range []int{512, 16, 1} {
		s := gemmOf(m, 16384, 512)
		s.Rival = Gonum
		all = append(all, s)
	}
	return all
}
