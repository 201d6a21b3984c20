package fp8_test

import (
	"testing"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
)

// TestZeroPacked: weights that nobody packed are an error of every method that has one, and never a panic. The inner
// parts of products, and Release, belong to an Acquire that has not failed.
func TestZeroPacked(t *testing.T) {
	inner := map[string]struct{}{"Release": {}, "Activate": {}, "MulPanels": {}}
	kerneltest.ZeroValues(t, kerneltest.Zero{Value: new(fp8.Packed), Sentinel: fp8.ErrClosed, Except: inner})
}
