// Package checkpoint reads the directories of models as hubs have them: safetensors files,
// strictly, with their index, and config.json. Two lines give a running attention block,
//
//	m, err := checkpoint.OpenModel("DeepSeek-V3")
//	b, err := m.Block(3) // an mla.Block, packed
//
// and m.Config.Rope.Table the table of rotations that it wants. It writes such files, too.
//
//	config.json                       Config: sizes, softmax scale, factors, Rope, Quant
//	model.safetensors, or             Dir: all tensors, each in the file where the index
//	model.safetensors.index.json           says that it is
//	model-00001-of-00002.safetensors    File: the tensors of one file
//	model-00002-of-00002.safetensors      Tensor: name, type, shape, and access to its bytes
//
//	OpenModel(dir) -> Model -+- Check(i)                     by headers alone
//	                         +- Block(i), Layer(i)           packed: whole, or its core
//	                         +- LoadBlock(i), LoadLayer(i)   what to pack, with more to choose
//	                         +- SavePacked, LoadPacked       in a file of its own, with a fingerprint
//
// A safetensors file is a length, a header and one run of data that the tensors share out
// among themselves without a gap:
//
//	byte 0        8                     8+n                               end of file
//	  ┌───────────┬─────────────────────┬─────────────┬────────┬───────────┐
//	  │ n: uint64 │ header: JSON, n B   │ tensor      │ tensor │ tensor    │
//	  └───────────┴─────────────────────┴─────────────┴────────┴───────────┘
//	                                    0          offsets count from here
//
//	header  {"__metadata__": {"op": "graph", ...},
//	         "q": {"dtype": "BF16", "shape": [2, 16, 192], "data_offsets": [0, 12288]}, ...}
//
// Everything is little-endian and row-major. Nothing in a file is believed: the header must
// fit the file and a cap (see [Limits]), its JSON must be that shape and no other, without
// duplicate keys, every shape times its type must be the bytes its offsets enclose, counted
// without overflow, and the offsets must tile the data from its first byte to its last. An
// index may name files of its own directory only, and must put each tensor in one that has it.
//
// [Open] and [OpenDir] read headers and map the data, so that opening 600 GB costs what its
// headers cost; [Parse] does the same with bytes in memory; [WriteFile] and [WriteDir] make
// files. Headers are read as a stream: what they cost is the names and shapes that are kept,
// which are no more than the headers, however hostile.
//
// # Files that shrink
//
// A mapped page that its file no longer has raises a signal where it is touched, which ends
// a Go program. So no mapped memory leaves this package: the accessors of a [Tensor] of a file
// copy, in Go code that makes an error, ErrRead, of the fault. Tensors in memory are not
// copied: their accessors give views where the data is aligned, which a header does not see
// to, and the machine little-endian, and a converted copy elsewhere.
//
// # Models
//
// config.json must be of an architecture that [ParseConfig] knows; what it says of the tensors
// is held against their shapes. How a weight is stored, its own type says: FP8 codes with
// scales, under either name and of any type that scales have, or plain values, whatever
// quantization_config leaves out or says is left out. Whatever is missing, contradictory or
// not understood is an error that names the file, the tensor or the key, and what was wanted.
//
// Methods of quantisation that are not read (modelopt, awq, gptq and others, and the integers of
// compressed-tensors) are none of attention's business where its tensors are plain, as they are
// in models whose experts alone are quantised. A tensor of attention that is quantised so is an
// error of the block that it is in, and named.
//
// # Keys that are known and change nothing
//
// Every key of rope_scaling, rope_parameters, quantization_config and compression_config is used,
// or has a value with which it changes nothing, or is an error. A null counts as missing. The
// tables, with those beside the dictionaries, are in keys.go; in short:
//
//	rope_*              max_position_embeddings; attn_factor 1, extrapolation_factor 1;
//	                    partial_rotary_factor 1, or in mistral4 P/(N+P); llama_4_scaling_beta 0
//	                    outside mistral4; of a type that does not use them, or without a type:
//	                    factor 1, attention_factor 1, mscale 0, mscale_all_dim 0, truncate true
//	quantization_config activation_scheme dynamic or static; transform_config {}; anything in
//	                    dequantize, modules_to_convert, expert_dtype, kv_cache_*, format, version,
//	                    quantization_status, sparsity_config and, of config_groups, all but
//	                    weights.block_structure
//	beside them         rope_interleave as the family has it; head_dim and qk_head_dim that are
//	                    sizes of a head; sliding_window, attn_logit_softcapping, use_qk_norm and
//	                    some like them that say that there is none
//
// Both dictionaries of rotations may be there if they differ only in how they spell the type, and
// what stands in one and beside it may not differ. apply_yarn_scaling false, of vLLM and SGLang,
// leaves mscale_all_dim out of the softmax scale and changes no table.
package checkpoint
