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
// Nothing here, that is: a goroutine that waits for a mutex, a condition or a
// channel has a record in the Go runtime (sudog). Each processor keeps a stock of
// them, and a record goes to the stock of the processor on which its goroutine
// wakes, so that with three workers or more one is allocated now and then, above
// all after a collection. Whatever can end a wait of one goroutine by another has
// such a record; only turning in a loop has none, and takes a processor.
//
// The goroutines hold the state of the pool but not the Pool, so a Pool that is
// dropped without Close is collected and its goroutines end.
package workpool
