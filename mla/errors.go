package mla

import (
	"errors"

	"github.com/lamina-ml/lamina/internal/workpool"
)

// Errors that callers test with errors.Is. Each is wrapped with the names,
// shapes and values at fault.
var (
	// ErrConfig marks a Config or Limits that describes no layer or workspace.
	ErrConfig = errors.New("mla: bad configuration")
	// ErrWeights marks weights that do not fit the Config.
	ErrWeights = errors.New("mla: bad weights")
	// ErrPacked marks what LoadPacked found to be no saved layer, or a damaged one.
	ErrPacked = errors.New("mla: bad packed file")
	// ErrStale marks a saved layer that was packed from other weights, for another
	// geometry, or by another version of the format.
	ErrStale = errors.New("mla: stale packed file")
	// ErrShape marks an argument of the wrong length or type.
	ErrShape = errors.New("mla: wrong shape")
	// ErrLimit marks a batch larger than the Limits of its Workspace, or a Workspace
	// that is too small for its layer.
	ErrLimit = errors.New("mla: beyond the limits of the workspace")
	// ErrUnmapped marks a visible position whose page is not mapped.
	ErrUnmapped = errors.New("mla: page is not mapped")
	// ErrIndexer marks a query that sees more keys than Config.IndexTopK in a call
	// that brings no index lists.
	ErrIndexer = errors.New("mla: index lists are missing")
	// ErrBusy is returned when a Workspace or GraphArgs is entered twice
	// at once, or closed, as a Layer or Block, while a call runs on it.
	ErrBusy = errors.New("mla: busy")
	// ErrPanic wraps a panic of a worker: a broken promise inside the library.
	ErrPanic = workpool.ErrPanic
	// ErrPoolBusy is returned by Pool.Close while a call uses the pool.
	ErrPoolBusy = workpool.ErrBusy
	// ErrClosed is returned by a Layer, Block, Core or Workspace that is closed,
	// or nil or a zero value, which no constructor made; and on a closed Pool.
	ErrClosed = errors.New("mla: closed")
)
