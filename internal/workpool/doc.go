// Package workpool runs the items of a task on a fixed set of goroutines.
//
//	          pool.Run(ctx, items, task)            the caller is worker 0
//	                     |
//	active runs   [ run A | run B | ... ]           each: next item, error, helpers
//	                 ^   ^     ^
//	worker 1 --------+   |     |                    goroutines 1 .. n-1 live as long
//	worker 2 ------------+     |                    as the pool and join the run with
//	worker 3 ------------------+                    the fewest helpers
//
// Every participant of a run claims items from one counter until none is left,
// so items start in increasing order and a slow item delays nobody but itself.
// A goroutine enters and leaves a run under the pool's lock, and Run returns
// only when the last one has left: no goroutine ever holds a run that is over,
// which is what lets runs be recycled and a call allocate nothing.
//
// The goroutines hold the state of the pool but not the Pool, so a Pool that is
// dropped without Close is collected and its goroutines end.
package workpool
