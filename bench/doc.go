// Package bench times the work of an attention layer next to what the machine
// could do in the same minute, and looks at every answer before it believes the
// time. It is outside the promise of compatibility: rows and fields follow what is measured.
//
//	Options ── Specs ──> Spec, one row of the table
//	                       │ Lab.Open: weights, cache, workspace (seeded, made here)
//	                       v
//	   Machine          Workload ── Run, timed ── Check against internal/oracle
//	FMA, caches, DRAM      │
//	       └───────────────┴──> Row: ms, GFLOP/s, GB/s, tok/s, share of the limit
//	                             │ JSON lines of one run or several
//	                             v
//	                           Report ── Bars: what each work should reach, and did
//
// The works are those of Table, or combinations of what the lists of Options hold.
//
// Limits are measured before the rows and after them, and the best of each counts, for a busy
// machine is never faster than a quiet one. What differs by more than a tenth, and rows above 105% of
// their limit, which are marked, make warnings in the last line of a run (Limits), with the load
// average and the spread of the repetitions.
//
// The limits of the machine are those of its instruction set in use, measured with
// kernels of this library that do nothing else: fused multiply-adds on 192 values
// in registers, and reading with the widest loads there are. A row's limit is what
// would take longer, its operations at the first rate or its bytes at the rate of
// the memory that holds them; a product with one row of x, which is about reading,
// is measured by its bytes in any case.
//
// The operations:
//
//	layer          a whole Layer.Forward: norm, rope, store, products, attention
//	block          a whole Block.Forward: projections of hidden states, the layer, o_proj
//	decode         Core.Decode, attention in the absorbed form: scores, softmax, values, merge
//	sparse_decode  Core.SparseDecode, the same over rows that index lists choose
//	prefill        Core.Prefill, attention in the expanded form: causal, on a prompt whose keys
//	               and values lie ready in float32, as the products of a layer leave them, or
//	               in bf16 for the second arithmetic, whose queries and outputs are bf16 too
//	gemm           a product with block-scaled FP8 weights, or one for each head; for
//	               comparison gonum's sgemm on the same weights in float32
//
// What a work reads and writes lies in huge pages, where the system has them to give.
//
// Weights are made, in FP8, or are those of a checkpoint (Weights), for layers and
// blocks.
//
// A cache format of rows of a fixed width runs where that is the model's R+P, and
// for decode and sparse_decode also where it is R: these take the whole row as the
// value then, as DeepSeek-V4 does. Elsewhere its rows are left out, and the report
// says so.
//
// FLOPs are those of the formulas (a causal pair counts, a masked one does not),
// bytes are those the work has to read at least once: a weight code is one byte
// however it is packed. A token per second is a token through this one layer.
package bench
