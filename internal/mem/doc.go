// Package mem hands out big memory that the garbage collector neither scans
// nor moves: anonymous mappings for caches and workspaces, private file
// mappings for checkpoints.
//
//	Block
//	+-----------------------------------------------+
//	| Bytes(): n bytes, first byte 64-byte aligned   |   Free: back to the system
//	+-----------------------------------------------+
//	   ^                              ^
//	   mem.Cast[float32](b[:m])       mem.Cast[uint16](b[m:])
//
// On linux, darwin and freebsd a block is an mmap, on windows a VirtualAlloc or
// a mapped view, elsewhere (js/wasm) an aligned slice of the heap. A block that
// is dropped without Free is returned by a cleanup of the garbage collector, so
// whoever holds a slice of Bytes must also hold the Block: the slice alone does
// not keep the memory.
package mem
