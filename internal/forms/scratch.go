package forms

import (
	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/compute"
	"github.com/lamina-ml/lamina/simd"
)

// Sizes of work, in no bit of any result.
const (
	productTokens = 64       // tokens of one product with per-head weights
	storeTokens   = 8        // tokens normed, roped and stored by one item
	maxWave       = 1 << 14  // tokens of a wave
	waveFloats    = 16 << 20 // packed queries and latent outputs of a wave
	expandFloats  = 8 << 20  // expanded keys and values, and the state of their rows
	itemsAWorker  = 4        // items that a stage cuts for each worker
)

// scratch is what one worker needs beside that of attention.
type scratch struct {
	row     []float32 // [R+P] a cache row
	freqs   []float32 // [P]
	xs      []float32 // [productTokens][max(N, 1)] activations
	ys      []float32 // [productTokens][V] outputs
	rows    []float32 // [HeadRows][max(N+P, R+P)] queries before packing
	queries []float32 // panels of HeadRows queries of N+P values

	// Activations of the products, used in turn, in one memory: [productTokens][N] for w_uk, and
	// for w_k and w_uv [productTokens][R].
	queryAct, latentAct fp8.Activation
}

// cuts is into how many pieces, at most limit, each of n equal works is cut so that every worker
// gets some.
func (w *Workspace) cuts(n, limit int) int {
	want := itemsAWorker * len(w.scratch)
	if len(w.scratch) == 1 {
		want = 1
	}
	return min(max((want+n-1)/n, 1), limit)
}

// piece is part i of n parts of the panels of so many outputs: [from, to).
func piece(i, n, outputs int) (from, to int) {
	panels := compute.Panels(outputs)
	return i * panels / n * simd.Lanes, min((i+1)*panels/n*simd.Lanes, outputs)
}

// rotate ropes x, the rope part of a query or key at position pos, in place.
func (w *Workspace) rotate(s *scratch, x []float32, pos int) {
	c := w.call
	if len(x) == 0 {
		return
	}
	at, freqs := pos*c.Rope, s.freqs
	if table := c.Freqs.F32(); table != nil {
		freqs = table[at : at+c.Rope]
	} else {
		c.Freqs.Widen(freqs, at, c.Rope)
	}
	if c.Half {
		simd.RopeHalf(x, x, freqs)
	} else {
		simd.RopeInterleaved(x, x, freqs)
	}
}
