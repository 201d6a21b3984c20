// Package checkpoint reads safetensors files, strictly.
//
// A file is a length, a header and one run of data that the tensors share out among
// themselves without a gap:
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
// without overflow, and the offsets must tile the data from its first byte to its last.
// A file that passes has tensors whose Data can be sliced without another check.
//
// [Open] reads the header and maps the data, so that opening a large file costs what its
// header costs; [Parse] does the same with bytes in memory; [Write] makes a file.
//
// The header aligns nothing: a tensor's data may begin at any byte. The typed accessors of
// [Tensor] give a view of the data where it is aligned and the machine is little-endian, and
// a converted copy elsewhere, so a caller sees no difference but must not write to either.
package checkpoint
