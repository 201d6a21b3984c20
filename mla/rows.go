package mla

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/workpool"
)

// Rows is a slice of float32, bf16 or f16 elements, so that no method needs a
// type parameter and no call boxes its arguments.
type Rows = fp8.Rows

// RowsF32 wraps float32 elements; the slice is not copied.
func RowsF32(x []float32) Rows { return fp8.RowsF32(x) }

// RowsBF16 wraps the bits of bf16 elements; the slice is not copied.
func RowsBF16[T ~uint16](x []T) Rows { return fp8.RowsBF16(x) }

// RowsF16 wraps the bits of binary16 elements; the slice is not copied.
func RowsF16[T ~uint16](x []T) Rows { return fp8.RowsF16(x) }

// Pool is a set of worker goroutines. Any number of workspaces may share one. A nil or
// zero Pool works in the goroutine of the call. A pool allocates nothing as it runs,
// but a goroutine that waits, for work, for others or for a lock, has a record in
// the Go runtime, which takes it from the heap where its own stock is empty: with
// three workers or more that happens now and then.
type Pool = workpool.Pool

// NewPool starts a pool of n workers, the caller of a Run being one of them;
// n <= 0 means one per CPU that Go may use. Close it when done.
func NewPool(n int) *Pool { return workpool.New(n) }
