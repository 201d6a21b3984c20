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
	// ErrRead is returned for a file that cannot be read to the end, because it was shortened
	// or its storage failed, and for one that is closed.
	ErrRead = errors.New("checkpoint: cannot be read")
	// ErrConfig is returned for a config.json that lacks or contradicts something.
	ErrConfig = errors.New("checkpoint: bad configuration")
	// ErrUnsupported is returned for a config.json of an architecture, a quantisation method
	// or another choice that this package does not know.
	ErrUnsupported = errors.New("checkpoint: not supported")
	// ErrWeights is returned for tensors that are missing, or do not fit config.json.
	ErrWeights = errors.New("checkpoint: bad weights")
	// ErrDType is returned by a typed accessor for a tensor of another type, and for the name
	// of a type that does not exist.
	ErrDType = errors.New("checkpoint: wrong type")
	// ErrWrite is returned by [Write] for tensors that no file can hold.
	ErrWrite = errors.New("checkpoint: cannot be written")
)
