// Package compute is attention over one partition of keys by one block of query rows: what
// differs between computes, a file each.
//
//	        K values              places [from, to) of one partition
//	      +-----------+          +---------------------------------+
//	rows  |  queries  |   keys   |  tile   |  tile   |  ...        |
//	      +-----------+          +---------------------------------+
//	                                 |
//	      scores = queries . keys^T  |  scale, mask, maximum m, p = exp(score - m), sum l
//	      o      = o*alpha + p . values
//
// A Unit is that work. Its result are Sums (m, l, o), which internal/attend merges in the order
// of docs/arithmetic.md. A Compute has what is in the bits (Shape) and makes a Worker, the
// scratch memory and the kernels of one goroutine at a time.
//
// Keys are the rows of a sequence, of an index list, or dense rows of one head. They give tiles in
// place where the compute can read them as they lie, and copies where it cannot.
//
// A compute that multiplies in tiles of places (f32, bf16) fills in the steps of tile.go: scores,
// softmax, values. One that does the whole partition at once implements Worker itself.
package compute
