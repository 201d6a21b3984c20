// Package attend is the attention engine: softmax(q.K^T).V for rows of packed queries over keys,
// without weights, batches or files.
//
//	           partition 0  partition 1  ...            the tree of docs/arithmetic.md
//	         +------------+------------+----
//	block 0  |   unit     |   unit     |   ----> merge --> merge ... --> end: divide, lse, store
//	block 1  |   unit     |   unit     |   ---->
//	         +------------+------------+----
//
// Segments are query rows that share keys: the new tokens of a sequence with all their heads, a
// token with index lists of its own, or one head of a sequence whose keys are dense. They are cut
// into blocks of rows, whose places are cut into partitions; one block and one partition are a
// Unit of internal/compute. A Tree merges the sums of the partitions in the order that is fixed,
// whoever computed them and when; the ending divides.
//
// Wave runs the units of many short segments in parallel (the absorbed form: few rows, many keys).
// Heads runs whole blocks in parallel (dense keys: many rows), a range of places at a time. Both
// call the same partition and the same ending.
package attend
