package mla

import (
	"fmt"

	"github.com/lamina-ml/lamina/fp8"
)

// Compute names how a layer computes: the precision and the order of the roundings
// (docs/arithmetic.md). All give the same bits on every machine.
type Compute = fp8.Compute

const (
	// ComputeF32 multiplies float32 values by fma.
	ComputeF32 = fp8.ComputeF32
	// ComputeBF16 rounds queries, probabilities, weights and the activations of the
	// products to bf16, takes keys and values as bf16, and sums in float32. It
	// is up to twice as fast where processors multiply pairs of bf16 values
	// (docs/performance.md), slower than ComputeF32 on others, and errs by about as
	// much as an output in bf16 is rounded by.
	ComputeBF16 = fp8.ComputeBF16
)

// ParseCompute reads "f32" or "bf16". Errors: ErrConfig.
func ParseCompute(s string) (Compute, error) {
	c, err := fp8.ParseCompute(s)
	if err != nil {
		return c, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return c, nil
}

// product is how a product is computed whose activations have groups of so many columns, if they are
// quantised; with a group of 0 they are not.
func (c *Config) product(group int) fp8.Product {
	how := fp8.Product{Compute: c.Compute}
	if c.ActQuant == ActDynamic {
		how.Group = group
	}
	return how
}
