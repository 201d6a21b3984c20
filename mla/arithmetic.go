package mla

import (
	"fmt"
	"strings"

	"github.com/lamina-ml/lamina/fp8"
)

// Arithmetic names the order and the precision of the roundings
// (docs/arithmetic.md). Both give the same bits on every machine.
type Arithmetic uint8

const (
	// F32 multiplies float32 values by fma.
	F32 Arithmetic = iota
	// BF16 rounds queries, probabilities, weights and the activations of the
	// products to bf16, takes keys and values as bf16, and sums in float32. It
	// is up to twice as fast where processors multiply pairs of bf16 values
	// (docs/performance.md), slower than F32 on others, and errs by about as
	// much as an output in bf16 is rounded by.
	BF16
)

var arithmeticNames = [...]string{"f32", "bf16"}

// product is how a product is computed whose activations have groups of so many columns, if they are
// quantised; with a group of 0 they are not.
func (c *Config) product(group int) fp8.Product {
	how := fp8.Product{Compute: fp8.Compute(c.Arithmetic)}
	if c.ActQuant == ActDynamic {
		how.Group = group
	}
	return how
}

// queryActivations are the activations that w_uk multiplies.
func (c *Config) queryActivations() fp8.ActivationSpec {
	return fp8.ActivationSpec{Product: c.product(c.ActBlockQ), Rows: gatherTokens, K: c.Nope}
}

// latentActivations are the activations that w_k and w_uv multiply.
func (c *Config) latentActivations() fp8.ActivationSpec {
	return fp8.ActivationSpec{Product: c.product(c.ActBlockLatent), Rows: max(tileKeys, gatherTokens), K: c.Latent}
}

// ParseArithmetic reads "f32" or "bf16".
func ParseArithmetic(s string) (Arithmetic, error) {
	for a, known := range arithmeticNames {
		if s == known {
			return Arithmetic(a), nil
		}
	}
	return F32, fmt.Errorf("%w: arithmetic %q is none of %s", ErrConfig, s, strings.Join(arithmeticNames[:], ", "))
}

// String is the inverse of ParseArithmetic.
func (a Arithmetic) String() string {
	if int(a) >= len(arithmeticNames) {
		return fmt.Sprintf("Arithmetic(%d)", uint8(a))
	}
	return arithmeticNames[a]
}
