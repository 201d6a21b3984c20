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
package checkpoint
