package mla

import (
	"unsafe"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
)

// GraphArgs are the parameters and arguments of MAX's operator
// mla_prefill_decode_graph_fp8, in its order and under its names, and what a CPU
// host says beside (GraphHost). ctx is the first parameter of
// [PrefillDecodeGraphFP8]. Shapes are MAX's, in elements:
//
//	T new tokens in B sequences    R = KvNormGamma.Len()       P = Q.Len()/(T*H) - N
//	H = Heads query heads          N = len(WK)/(H*R)           V = len(WUv)/(H*R)
//	C = R+P values of a cache row  n, k = NScaleGranularity, KScaleGranularity
//
// Slices are the caller's and read during the call; only Output, LSE, MaxLogit,
// Ignored and the new rows in KvCollection.Blocks are written.
//
// GraphArgs also hold what the calls prepare: the packed weights (packed again
// when a slice of them, its length, or the configuration is another one), the
// caches over the caller's blocks, the sequences and the workspace. So keep one
// GraphArgs a layer, change the fields that a step changes, and call again: while
// the lengths and tables are the same, too, a call allocates nothing. Weights
// that change in place are not seen; Close drops everything prepared. One call
// at a time: ErrBusy. Several GraphArgs may share blocks, tables and a Pool, and
// run at the same time if their layers differ.
type GraphArgs struct {
	// Dtype is the element type of Q and Output. MAX: bf16. Also f16 and f32.
	Dtype fp8.Elem
	// Fp8Dtype is the type of the weight codes. MAX: E4M3 (FN), the zero value.
	// Also E5M2, E4M3FNUZ, E5M2FNUZ.
	Fp8Dtype fp8.Elem
	// Fp8ScaleDtype is the type of the weight scales. MAX: f32, the zero value.
	// Also bf16 and E8M0. It must be that of WKScale, WUkScale and WUvScale.
	Fp8ScaleDtype ScaleDtype
	// CollectionT is the format of the rows in KvCollection. MAX: bf16, or FP8
	// with or without scales. Also every other format of kvpaged.
	CollectionT kvpaged.Format

	// MScaleGranularity is the rows of an activation that share a scale: 1.
	MScaleGranularity int
	// NScaleGranularity is the n of the weights' scale blocks: along H*N in WK, N
	// in WUk, V in WUv. MAX: 64 or 128. Also any positive number; H*N or more is
	// one scale for each tensor (in WUk and WUv for each head), 1 one for each row.
	NScaleGranularity int
	// KScaleGranularity is the k of the blocks, along R. MAX: 64 or 128. Also any
	// positive number; R or more is one block. Under ActDynamic the latent
	// activations are quantised in groups of it.
	KScaleGranularity int
	// MaskStr names the mask. MAX: "causal" or "null". Also any other of
	// ParseMask, with its window: "sliding_window_causal:128". Calls with index
	// lists have no mask.
	MaskStr string
	// KvInputFn gives the new rows [T, C], latent then rope, before norm and
	// rotation. MAX: a callback of bf16. Also a slice, and f16 and f32.
	KvInputFn KvInput
	// Target is "cpu", which is MAX's default and so the meaning of "".
	Target string
	// SparseMla says that index lists select the keys: DIndices, and ExtraDIndices
	// if there is a second cache. The absorbed form is then the only one.
	SparseMla bool
	// SparseIndicesStride is IndicesStride as MAX's sparse prefill is compiled with
	// it. 0 or the same; if IndicesStride is 0 it stands for it.
	SparseIndicesStride int
	// FoldSharedIndex promises that all new tokens of a sequence have the same
	// index lists, so that rows are gathered once. ErrShape if they differ.
	FoldSharedIndex bool

	// Output [T, H, V] in Dtype is written in full and never read.
	Output Rows
	// Q [T, H, N+P] in Dtype: nope first, then rope, un-roped. It is not modified
	// (MAX's prefill ropes it in place).
	Q Rows
	// InputRowOffsets u32 [B+1]: tokens InputRowOffsets[b] .. InputRowOffsets[b+1]
	// of Q are the new ones of sequence b; 0 first, T last, no decrease. A
	// sequence may be empty.
	InputRowOffsets []uint32
	// FreqsCis [positions, P], f32 or bf16: column 2i is the cosine, 2i+1 the sine
	// of pair i. At least as many rows as the longest sequence has keys. Also f16.
	FreqsCis Rows
	// KvNormGamma [R], bf16 or f32, is the weight of the RMSNorm. Also f16.
	KvNormGamma Rows
	// KvCollection is the paged cache. The new rows are stored in it; cached rows,
	// lengths and tables are not changed, and nothing is committed.
	KvCollection KvCollection
	// LayerIdx is the layer of the cache, 0 to Layers-1.
	LayerIdx int
	// Scale multiplies the scores: (N+P)^-0.5, times mscale^2 for YaRN models,
	// never C^-0.5. Finite and not 0.
	Scale float32
	// Epsilon of the RMSNorm, taken as it is: 0 is 0. Models of this family have 1e-6.
	Epsilon float32

	// BufferRowOffsets u32 [B+1], CacheOffsets u32 [B] and BufferLength are the
	// chunk that MAX plans for its prefill buffer, see PlanChunks: rows
	// BufferRowOffsets[b] .. BufferRowOffsets[b+1] of it take the keys of sequence
	// b from CacheOffsets[b] on. They are checked: 0 first, no decrease, at most
	// BufferLength last, and no row beyond the last page of a sequence. Not one
	// bit of a result hangs on them. Also nil, both, for no plan.
	BufferRowOffsets []uint32
	// CacheOffsets may also have B+1 values; the last is ignored.
	CacheOffsets []uint32
	// BufferLength is the rows of that buffer: the most keys that are expanded at
	// a time, but for those of a page if that is more. MAX: every key of the batch
	// must fit. Also any length from 1 on; 0 and -1 (an unused chunk) mean 2048.
	BufferLength int
	// MaxSeqLen is the longest new part of a sequence, or more. With FormRuleMAX
	// it decides the form of all: absorbed up to MAXThreshold.
	MaxSeqLen int

	// WK [H*N, R] codes: the key up-projection, expanded form.
	WK []byte
	// WKScale [ceil(H*N/n), ceil(R/k)] are multipliers: w = code * scale, as all
	// of the three. NaN, Inf and negative ones are errors, 0 is none.
	WKScale Scales
	// WUk [H, R, N] codes: WK transposed for each head, absorbed form.
	WUk []byte
	// WUkScale [H, ceil(R/k), ceil(N/n)].
	WUkScale Scales
	// WUv [H, V, R] codes: the value up-projection, both forms.
	WUv []byte
	// WUvScale [H, ceil(V/n), ceil(R/k)].
	WUvScale Scales
	// ScalarArgsBuf i64 [3] is B, MaxSeqLen, and a number of partitions, which is
	// ignored.
	ScalarArgsBuf []int64

	// DIndices i32 [T, IndicesStride] are the keys that each new token attends to,
	// as physical rows block*PageTokens + offset within LayerIdx. -1 is none, and
	// any other that is no row is taken as none and counted in Ignored.
	DIndices []int32
	// IndicesStride is the length of a row of DIndices.
	IndicesStride int
	// TopkLengths i32 [B] or [T] (see TopkPer): how many entries of a row of
	// DIndices count, 0 if negative, all if beyond the stride. MAX: [B] when
	// decoding, [T] in prefill. Also nil: all.
	TopkLengths []int32
	// AttnSink f32 [H]: a natural logarithm for each head that adds to the
	// denominator of the softmax only. Not multiplied by Scale; -Inf is none.
	// Also in dense calls. nil: none.
	AttnSink []float32
	// ExtraK is a second cache whose selected rows join the same softmax. MAX: of
	// the same type as the first, when decoding. Also of any format, and in
	// prefill. nil: none.
	ExtraK *ExtraCache
	// ExtraDIndices i32 [T, ExtraIndicesStride] are physical rows of ExtraK.
	ExtraDIndices []int32
	// ExtraIndicesStride is the length of a row of ExtraDIndices.
	ExtraIndicesStride int
	// ExtraTopkLengths i32 [B] or [T], as TopkLengths.
	ExtraTopkLengths []int32
	// ExtraScales f32 are the scales of ExtraK, as KvCollection.Scales.
	ExtraScales []float32
	// NumPartitionsIn is into how many pieces the keys are to be cut. At least 0,
	// and ignored: the arithmetic has its own, so that results never differ.
	NumPartitionsIn int

	GraphHost

	state graphState
}

// GraphHost is what MAX's operator takes from tensor types, its device or its
// build, and what only this library has.
type GraphHost struct {
	// Heads is H, which slices do not tell.
	Heads int
	// Pool runs the call; nil: the caller's goroutine alone.
	Pool *Pool

	// FormRule says which form a sequence takes. MAX does FormRuleMAX.
	FormRule FormRule
	// MAXThreshold is the MaxSeqLen up to which FormRuleMAX takes the absorbed
	// form; 0 means 8, as MAX has it.
	MAXThreshold int
	// Forms [B] overrides the rule; nil: auto for all.
	Forms []Form

	// Compute is ComputeF32 unless set; MAX's GPUs are closer to ComputeBF16.
	Compute      Compute
	RopeStyle    RopeStyle
	NormRounding NormRounding

	// ActQuant quantises activations, as MAX's GPUs always do (ActDynamic); see
	// Config for the groups.
	ActQuant       ActQuant
	ActBlockQ      int
	ActBlockLatent int

	// TopkPer says what TopkLengths and ExtraTopkLengths are indexed by; by
	// default their number tells, and where B = T it is by sequence.
	TopkPer TopKPer

	// LSE [T, H] and MaxLogit [T, H] are as in Batch; nil: not wanted.
	LSE, MaxLogit []float32
	// Ignored is set by the call: entries of DIndices and ExtraDIndices, within
	// their lengths, that were neither -1 nor a row.
	Ignored int64
}

// KvInput gives the new rows of a call: a slice or a callback, not both.
type KvInput struct {
	// Rows [T, C], bf16, f16 or f32.
	Rows Rows
	// Fill fills row [C] of a token, all of it. Its values are rounded to Dtype
	// once, so that Rows of the same values in Dtype give the same bits. It is
	// called for the tokens in turn, on the goroutine of the call.
	Fill func(token int, row []float32)
}

// KvCollection is MAX's paged cache.
type KvCollection struct {
	Blocks KvBlocks
	// Scales f32 of the formats that have them outside their rows: [1] for
	// fp8_tensor; [NumBlocks, Layers, PageTokens, ceil(C/Group)] for fp8_token, or
	// nil if they follow the codes in each page. Taken as they are.
	Scales []float32
	// CacheLengths u32 [B] are the cached tokens, without the new ones.
	CacheLengths []uint32
	// LookupTable u32 [B, max_pages] are the blocks of each sequence in turn, room
	// for the new tokens included; NumBlocks where there is none. What lies past
	// the last token is ignored. Blocks of cached tokens may be shared, those of
	// new tokens must not (kvpaged.ErrShared).
	LookupTable []uint32
}

// KvBlocks are the pages of a cache in the caller's memory.
type KvBlocks struct {
	// Data is [NumBlocks, 1, Layers, PageTokens, 1, C] in the element type of the
	// format, aligned to it, or for formats of records [NumBlocks, Layers] pages of
	// them, as kvpaged describes them. BlockBytes views a typed slice.
	Data       []byte
	NumBlocks  int
	Layers     int
	PageTokens int
	// Group is how many values of a row share a scale in fp8_token, else 0.
	Group int
}

// ExtraCache is a second cache, for sparse calls.
type ExtraCache struct {
	Blocks KvBlocks
	Format kvpaged.Format
	Layer  int
}

// BlockBytes views a slice of elements as the bytes of KvBlocks.Data, without
// copying it.
func BlockBytes[T ~uint8 | ~uint16 | ~float32](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}

// ScaleDtype is a type of weight scales.
type ScaleDtype uint8

const (
	ScaleF32  ScaleDtype = iota // float32
	ScaleBF16                   // bf16
	ScaleE8M0                   // a power of two, 2^(code-127)
)

var scaleNames = [...]string{"f32", "bf16", "e8m0"}

// String is f32, bf16 or e8m0.
func (d ScaleDtype) String() string {
	if int(d) >= len(scaleNames) {
		return "unknown"
	}
	return scaleNames[d]
}

// Scales are weight scales of one of the types. The zero Scales are none, of f32.
type Scales struct {
	dtype  ScaleDtype
	floats []float32
	halves []uint16
	codes  []byte
}

// ScalesF32 wraps float32 scales; the slice is not copied.
func ScalesF32(s []float32) Scales { return Scales{floats: s} }

// ScalesBF16 wraps the bits of bf16 scales; the slice is not copied.
func ScalesBF16[T ~uint16](s []T) Scales {
	return Scales{dtype: ScaleBF16, halves: unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(s))), len(s))}
}

// ScalesE8M0 wraps E8M0 scales; the slice is not copied.
func ScalesE8M0[T ~uint8](s []T) Scales {
	return Scales{dtype: ScaleE8M0, codes: fp8.Cast[byte](s)}
}

// Len is the number of scales.
func (s Scales) Len() int { return len(s.floats) + len(s.halves) + len(s.codes) }

// Float32 is scale i; i must be in range, as for a slice.
func (s Scales) Float32(i int) float32 { return s.part(i, i+1).Float32(0) }

// part is the scales lo .. hi, as matrices take them.
func (s Scales) part(lo, hi int) fp8.Scales {
	switch s.dtype {
	case ScaleBF16:
		return fp8.ScalesBF16(s.halves[lo:hi])
	case ScaleE8M0:
		return fp8.ScalesE8M0(s.codes[lo:hi])
	}
	return fp8.ScalesF32(s.floats[lo:hi])
}

// span is where the scales lie.
func (s Scales) span() span {
	switch s.dtype {
	case ScaleBF16:
		return spanOf(s.halves)
	case ScaleE8M0:
		return spanOf(s.codes)
	}
	return spanOf(s.floats)
}

// span is a place in memory, to tell whether a slice is still the same one.
type span struct {
	first unsafe.Pointer
	n     int
}

func spanOf[T any](x []T) span { return span{unsafe.Pointer(unsafe.SliceData(x)), len(x)} }
