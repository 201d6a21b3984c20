package checkpoint

import "errors"

// Every error of this package wraps one of these; its text names the file where there is
// one, the tensor, and the fault with its figures.
var (
	// ErrFormat is returned for a file that is not a safetensors file in every detail.
	ErrFormat = errors.New("checkpoint: malformed safetensors")
	// ErrLimit is returned for a file that may be well formed but is larger, in a way that
	// costs memory, than the caller's [Limits] allow.
	ErrLimit = errors.New("checkpoint: over the limit")
	// ErrDType is returned by a typed accessor for a tensor of another type, and for the name
	// of a type that does not exist.
	ErrDType = errors.New("checkpoint: wrong type")
	// ErrWrite is returned by [Write] for tensors that no file can hold.
	ErrWrite = errors.New("checkpoint: cannot be written")
)
