// Package mla computes DeepSeek-style multi-head latent attention on CPUs:
// prefill and decode of one layer over a paged cache of latent rows, and the
// attention block of a model around it.
//
// # Shapes
//
// One layer has H query heads. A head's query is N un-rotated values followed
// by P rotated ones, its value has V. The cache holds, for each token, one row
// that all heads share:
//
//	q      [T, H, N+P]   | nope N | rope P |      per token and head, un-roped
//	kv     [T, R+P]      | latent R    | rope P | per token, before norm and rotation
//	cache  [.., C=R+P]   | RMSNorm(latent) | roped |
//	out    [T, H, V]
//
// T counts the new tokens of a ragged batch: sequence b owns the tokens
// Offsets[b] .. Offsets[b+1] and may be empty.
//
// # The two forms
//
//	absorbed  q' = [ q_nope . w_uk | rope(q_rope) ]  (C values a head)
//	          attention over the cache rows as they lie: key = row, value = row[:R]
//	          out = w_uv . o
//	expanded  K[j,h] = [ latent_j . w_k[h] | rope part of row j ], V[j,h] = latent_j . w_uv[h]
//	          ordinary attention with q = [ nope | rope(q_rope) ]
//
// Both are the same function and differ in cost and last bits. [Layer.Form]
// chooses per sequence by an integer rule; [Batch.Forms] overrides it.
//
// # Flow
//
//	New(Config, Weights) -> Layer        immutable, shared by goroutines
//	Layer.Save, LoadPacked               its packed weights, in a file
//	NewWorkspace(Limits, Pool, layers...) the memory of one call at a time, for all layers in turn
//	Layer.Forward(ctx, ws, out, q, kv, Batch)
//	                                     no allocation, the same bits for any workers, batch mix
//	                                     and page size
//
// Forward writes the new rows into reserved slots of the cache and never
// commits them: the caller does, with [kvpaged.Seq.Commit], once every layer is
// through.
//
// A call allocates nothing of its own. With three workers or more the Go runtime
// does, now and then, for its record of a goroutine that waits (sudog); a profile
// shows those below workpool.
//
// # A whole block
//
//	NewBlock(BlockConfig, BlockWeights) -> Block   from hidden states to hidden states
//	Block.Save, LoadPackedBlock                    its packed weights, in a file
//	NewWorkspace(Limits, Pool, blocks...)
//	Block.Forward(ctx, ws, out, hidden, Batch)     q and kv projections, the layer, o_proj
//
// # Beyond one dense call
//
//	Batch.Sparse   keys by index lists, physical or logical, with a second cache
//	Core           attention alone, in FlashMLA's shapes: Decode, Prefill, SparseDecode, SparsePrefill
//	Merge          partial results of disjoint keys
//	ActDynamic     activations quantised to FP8, as GPUs do
//	ComputeBF16    bf16 operands and float32 sums, for processors that multiply pairs of bf16 values
//
// # Coming from MAX
//
// [PrefillDecodeGraphFP8] is MAX's operator mla_prefill_decode_graph_fp8, whose
// default target "cpu" has no implementation there, with a field of [GraphArgs]
// for every parameter and argument, in the operator's order. docs/from-max.md goes
// through a call line by line. TestGraphTable keeps this table complete:
//
//	dtype                 Dtype                 TestGraphArgument/dtype
//	fp8_dtype             Fp8Dtype              TestGraphArgument/fp8_dtype
//	fp8_scale_dtype       Fp8ScaleDtype         TestGraphArgument/fp8_scale_dtype
//	collection_t          CollectionT           TestGraphArgument/collection_t
//	m_scale_granularity   MScaleGranularity     TestGraphArgument/m_scale_granularity
//	n_scale_granularity   NScaleGranularity     TestGraphArgument/n_scale_granularity
//	k_scale_granularity   KScaleGranularity     TestGraphArgument/k_scale_granularity
//	mask_str              MaskStr               TestGraphArgument/mask_str
//	kv_input_fn           KvInputFn             TestGraphArgument/kv_input_fn
//	target                Target                TestGraphArgument/target
//	sparse_mla            SparseMla             TestGraphArgument/sparse_mla
//	sparse_indices_stride SparseIndicesStride   TestGraphArgument/sparse_indices_stride
//	fold_shared_index     FoldSharedIndex       TestGraphArgument/fold_shared_index
//	output                Output                TestGraphArgument/output
//	q                     Q                     TestGraphArgument/q
//	input_row_offsets     InputRowOffsets       TestGraphArgument/input_row_offsets
//	freqs_cis             FreqsCis              TestGraphArgument/freqs_cis
//	kv_norm_gamma         KvNormGamma           TestGraphArgument/kv_norm_gamma
//	kv_collection         KvCollection          TestGraphArgument/kv_collection
//	layer_idx             LayerIdx              TestGraphArgument/layer_idx
//	scale                 Scale                 TestGraphArgument/scale
//	epsilon               Epsilon               TestGraphArgument/epsilon
//	buffer_row_offsets    BufferRowOffsets      TestGraphArgument/buffer_row_offsets
//	cache_offsets         CacheOffsets          TestGraphArgument/cache_offsets
//	buffer_length         BufferLength          TestGraphArgument/buffer_length
//	max_seq_len           MaxSeqLen             TestGraphArgument/max_seq_len
//	w_k                   WK                    TestGraphArgument/w_k
//	w_k_scale             WKScale               TestGraphArgument/w_k_scale
//	w_uk                  WUk                   TestGraphArgument/w_uk
//	w_uk_scale            WUkScale              TestGraphArgument/w_uk_scale
//	w_uv                  WUv                   TestGraphArgument/w_uv
//	w_uv_scale            WUvScale              TestGraphArgument/w_uv_scale
//	scalar_args_buf       ScalarArgsBuf         TestGraphArgument/scalar_args_buf
//	d_indices             DIndices              TestGraphArgument/d_indices
//	indices_stride        IndicesStride         TestGraphArgument/indices_stride
//	topk_lengths          TopkLengths           TestGraphArgument/topk_lengths
//	attn_sink_ptr         AttnSink              TestGraphArgument/attn_sink_ptr
//	extra_k               ExtraK                TestGraphArgument/extra_k
//	extra_d_indices       ExtraDIndices         TestGraphArgument/extra_d_indices
//	extra_indices_stride  ExtraIndicesStride    TestGraphArgument/extra_indices_stride
//	extra_topk_lengths    ExtraTopkLengths      TestGraphArgument/extra_topk_lengths
//	extra_scales_ptr      ExtraScales           TestGraphArgument/extra_scales_ptr
//	num_partitions_in     NumPartitionsIn       TestGraphArgument/num_partitions_in
package mla
