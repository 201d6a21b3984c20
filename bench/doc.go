// Package bench times the work of an attention layer next to what the machine
// could do in the same minute, and looks at every answer before it believes the
// time.
//
//	Options ── Specs ──> Spec, one row of the table
//	                       │ Lab.Open: weights, cache, plan (seeded, made here)
//	                       v
//	   Machine          Workload ── Run, timed ── Check against internal/oracle
//	FMA, L2, L3, DRAM      │
//	       └───────────────┴──> Row: ms, GFLOP/s, GB/s, tok/s, share of the limit
//
// The operations:
//
//	layer          a whole Plan.Forward: norm, rope, store, products, attention
//	decode         Core.Decode, attention in the absorbed form: scores, softmax, values, merge
//	sparse_decode  Core.SparseDecode, the same over rows that index lists choose
//	prefill        attention in the expanded form, causal, on a prompt
//	gemm           one product with block-scaled FP8 weights; next to it gonum's sgemm
//	               on the same weights in float32, as a rival
//
// The library has no door to the expanded form's attention on ready keys and
// values, and the bench opens none: prefill times a whole Forward of a layer
// with the model's full N+P and V whose latent rows are 4 wide, so that keys and
// values cost next to nothing to make. What is left of the rest is in the time
// and not in the FLOPs.
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
