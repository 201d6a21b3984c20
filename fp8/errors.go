package fp8

import "errors"

// Errors that callers test with errors.Is. Each is wrapped with the names,
// shapes and values at fault.
var (
	// ErrShape marks a size, length, stride or row range that does not fit.
	ErrShape = errors.New("fp8: wrong shape")
	// ErrElem marks an element type that the operation does not take.
	ErrElem = errors.New("fp8: wrong element type")
	// ErrScale marks a scale that is NaN, Inf or negative (0 is allowed), and
	// scales that are missing.
	ErrScale = errors.New("fp8: bad scale")
	// ErrStep marks a step along k inside which the scales change.
	ErrStep = errors.New("fp8: bad step")
	// ErrCompute marks a Compute that there is not.
	ErrCompute = errors.New("fp8: unknown compute")
	// ErrPacked marks what ReadPacked read as no packed weights of this version of
	// the layout, or as damaged.
	ErrPacked = errors.New("fp8: bad packed file")
	// ErrBusy is returned by Close while a product uses the packed weights.
	ErrBusy = errors.New("fp8: busy")
	// ErrClosed is returned by packed weights after Close, and by those that nobody
	// packed.
	ErrClosed = errors.New("fp8: closed")
)
