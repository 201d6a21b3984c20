package mla

import (
	"fmt"
	"math"
)

// Chunk is one filling of a prefill buffer, as MAX plans it: sequence i has the
// buffer's rows RowOffsets[i] .. RowOffsets[i+1], which take its tokens from
// CacheOffsets[i] on.
//
//	sequences      |--- 0 ---|- 1 -|------- 2 -------|     each rounded up to whole pages
//	chunks of buf  |------ 0 ------|------ 1 ------|2|
//
// GraphArgs takes one as BufferRowOffsets, CacheOffsets and BufferLength.
type Chunk struct {
	RowOffsets   []uint32 // [B+1] buffer_row_offsets; a sequence that starts in a later chunk has buf
	CacheOffsets []uint32 // [B] cache_offsets: tokens that earlier chunks took, page tails included
	Length       int      // buffer_length: rows in use, at most buf; -1 in a chunk that nothing is in
}

// maxChunkOffsets bounds the offsets of a plan, all chunks together.
const maxChunkOffsets = 1 << 28

// PlanChunks cuts the keys of a batch into chunks for a buffer of buf rows:
// sequence i has lengths[i] keys, its new tokens included, and takes whole pages
// of page tokens. It returns as many chunks as are needed, and for a batch
// without keys one of length -1.
//
// Nothing here needs more than one: where a chunk ends is in no bit of a result.
//
// Errors: ErrShape for a page or buf below 1, a length below 0, or numbers that
// the offsets cannot hold.
func PlanChunks(lengths []int, page, buf int) ([]Chunk, error) {
	if page < 1 || page > maxContext || buf < 1 || buf > math.MaxUint32 {
		return nil, fmt.Errorf("%w: pages of %d tokens and a buffer of %d rows, want 1 to %d and 1 to %d", ErrShape, page, buf, maxContext, math.MaxUint32)
	}
	total := 0
	for i, n := range lengths {
		if n < 0 || n > maxContext {
			return nil, fmt.Errorf("%w: sequence %d has %d keys, want 0 to %d", ErrShape, i, n, maxContext)
		}
		total += roundUp(n, page)
	}
	chunks, each := max((total+buf-1)/buf, 1), 2*len(lengths)+1
	if chunks > maxChunkOffsets/each {
		return nil, fmt.Errorf("%w: %d chunks of %d sequences, for %d rows in a buffer of %d", ErrShape, chunks, len(lengths), total, buf)
	}
	plan := make([]Chunk, chunks)
	for c := range plan {
		chunk := Chunk{make([]uint32, len(lengths)+1), make([]uint32, len(lengths)), rowsIn(c, total, buf)}
		start := 0
		for i, n := range lengths {
			n = roundUp(n, page)
			chunk.RowOffsets[i] = uint32(rowsIn(c, start, buf))
			chunk.CacheOffsets[i] = uint32(min(max(c*buf-start, 0), n))
			start += n
		}
		chunk.RowOffsets[len(lengths)] = uint32(chunk.Length)
		plan[c] = chunk
	}
	if total == 0 {
		plan[0].Length = -1
	}
	return plan, nil
}

// rowsIn is how many of the first n rows of all chunks are in chunk c.
func rowsIn(c, n, buf int) int { return min(max(n-c*buf, 0), buf) }

// roundUp is the smallest multiple of to that is not below n.
func roundUp(n, to int) int { return (n + to - 1) / to * to }
