// Package mem hands out big memory that the garbage collector neither scans
// nor moves: anonymous mappings for caches and workspaces. And it reads files
// through mappings, for checkpoints, in a way that outlives their truncation.
//
//	Block
//	+-----------------------------------------------+
//	| Bytes(): n bytes, first byte 64-byte aligned   |   Free: back to the system
//	+-----------------------------------------------+
//	   ^                              ^
//	   mem.Cast[float32](b[:m])       mem.Cast[uint16](b[m:])
//
// On linux, darwin and freebsd a block is an mmap, on windows a VirtualAlloc,
// elsewhere (js/wasm) an aligned slice of the heap. A block that is dropped
// without Free is returned by a cleanup of the garbage collector, so whoever
// holds a slice of Bytes must also hold the Block: the slice alone does not keep
// the memory.
//
// The build tag lamina_heap makes blocks aligned slices of the heap on every
// system. The race detector watches the heap and nothing else: with a mapping it
// says nothing when two workers write into the same bytes of a workspace, so
//
//	go test -race -tags lamina_heap ./mla
//
// is how races are looked for. The tag is for tests: the collector counts the
// memory, a block is at most 2 GiB, and use after Free raises no fault. Files stay
// mapped.
//
// A File is a mapping of a file, or, where files are not mapped, the file itself.
// Its bytes are only ever copied out: a page of a mapping that the file no longer
// has raises a fault, of which a copy in Go makes an error, and a kernel in
// assembly the end of the process.
package mem
