// Package kvpaged stores the latent rows of attention in pages.
//
// A [Cache] is an arena cut into pages of PageTokens tokens. A token has one row
// of Width values (latent, then rope) in every layer, stored as the [Format] says.
// Page p of layer l lies at
//
//	LayerMajor   arena [Layers][Pages][page]     the default
//	PageMajor    arena [Pages][Layers][page]     MAX: [num_blocks, 1, layers, page, 1, C]
//
// and within it come the rows and then, in formats with a second plane, their
// scales:
//
//	            row                scales       page in one layer
//	bf16 f16    2*Width bytes      -            rows
//	f32         4*Width            -            rows
//	fp8_unit    Width              -            rows
//	fp8_tensor  Width              -            rows; one scale for the cache
//	fp8_token   Width              4*groups     [rows][scales], or the scales in Config.Scales
//	ds_mla_656  656                -            rows: [512 codes][4 x f32][64 x bf16]
//	v4_584      576                8            [rows][scales][zeros to a multiple of 576]
//	v41_528     512                16           [rows][scales][zeros to a multiple of 512]
//	            or 528             -            rows: [512 codes][16 scales]
//	v41_fp4_288 256                32           [rows][scales][zeros to a multiple of 512]
//	            or 288             -            rows: [256 bytes of codes][32 scales]
//
//	planar page of three tokens    [ row 0 | row 1 | row 2 | s0 s1 s2 | 0 0 0 ]
//	interleaved                    [ row 0 s0 | row 1 s1 | row 2 s2 ]
//
// Readers honour any scale: a value is float32(code*scale). Writers choose powers
// of two for codes of eight bits, and E4M3 numbers for those of four.
//
// A [Seq] is a sequence of tokens: a table of pages and two lengths.
//
//	           page table [ 7 | 2 | -1 | 5 ]       -1: not mapped, for tokens out of every window
//	                        |   |        |
//	      +-----------------+   |        +-------------------+
//	      v                     v                            v
//	page 7 [ 0 1 2 3 ]   page 2 [ 4 5 6 7 ]  ...     page 5 [ 12 13 14 . ]
//	         committed                                     ^     ^
//	                                        Len = 13 ------+     +------ Len+Reserved = 15
//
// Tokens are appended in two phases: Reserve takes the pages, all or none; then
// the rows of every layer are written into the reserved slots; Commit makes them
// visible. Whatever fails in between leaves committed rows, lengths and tables
// as they were, and reserved slots may hold anything until they are committed.
//
// Kernels work on a [View], a lease of one layer of one sequence. A sequence has
// any number of readers and one writer at a time; readers see the rows that were
// committed when they leased. What is leased can be neither freed nor truncated,
// and a cache with leases cannot be closed: these calls return [ErrBusy] and
// change nothing.
//
// A [PoolView] leases one layer of all pages, for index lists that name physical
// rows, page*PageTokens + slot. Export and Import move tokens as bytes, in records
// that hold a row and its scales side by side; nothing that is not committed
// leaves the pool.
//
// Pages are counted, and sequences share pages of cached tokens: [Seq.Fork] makes a
// sequence of the first tokens of another. Pages that those fill are held by both;
// the one that they fill in part is copied, so that each appends where the other
// never looks:
//
//	s             [ 7 | 2 | 5 ]      page 5 [ 8 9 10 . ]     f, err := s.Fork(9)
//	                |   |
//	      holders   2   2            pages of four tokens
//	                |   |
//	f             [ 7 | 2 | 3 ]      page 3 [ 8 . . . ]      page 3 is new
//
// A page that nobody holds any more is free, and is zero when Reserve hands it out
// again.
//
// A cache of Config.Adopted works on the pages of another allocator. Sequences of it
// come of page tables, by [Cache.Adopt] and the Import functions, and their pages are
// taken as they are; tables may share pages of cached tokens, and the slot of a new
// token must lie in a page of its sequence alone, else [ErrShared]. A cache that owns
// its pages takes no page numbers ([ErrOwned]), since a number does not tell whose
// rows are in the page by now.
//
// Rows are little-endian, as are all platforms that this package runs on.
package kvpaged
