// Package oracle computes the attention layer in float64, in the plainest
// way, so that tests and the checks of the bench have something to compare with.
//
// It is written from the contract alone and imports nothing of this module: a
// mistake in the library cannot also be a mistake here by inheritance. Nothing
// is blocked, split or run in parallel; whatever can be computed one row at a
// time is, so that a caller pays only for the rows it looks at:
//
//	       q [N+P]                    cached rows [keys][R+P], dequantised
//	          |                                  |
//	nope . UK[h] -> R   rope -> P                |
//	          \          /                       |
//	           q' [R+P]  ------ scores ----------+
//	                               |             |
//	                            softmax --- first R of each row
//	                               |
//	                           latent [R] . UV[h]^T -> out [V]
//
// The cached rows are an input. Rounding to the cache's element type belongs to
// the store, so a test hands over the rows that lie in the cache after a call,
// widened, and compares attention arithmetic alone; [Call.CacheRow] says what
// those rows should have been before they were rounded.
//
// [Block] is what lies around that in an attention block: the projections before
// and behind it, their norm, biases and factors.
//
// Everything is float64 and every slice is row-major. float64 carries 29 bits
// more than float32, so here the order of a sum does not matter.
package oracle
