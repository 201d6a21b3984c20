package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/mla"
)

// Weights are those of an attention block that exists, such as a checkpoint's, for
// layers and blocks in place of made ones.
type Weights struct {
	Name   string // of rows, in place of a model's
	Config mla.BlockConfig
	Block  mla.BlockWeights // in use until the Run ends
	// Freqs is the rope table for positions 0 to positions-1, [positions][P].
	Freqs func(positions int) ([]float32, error)
}

// Model is the geometry of the weights.
func (w *Weights) Model() Model {
	c := w.Config.Core
	return Model{
		Name: w.Name, Heads: c.Heads, Nope: c.Nope, Rope: c.Rope, V: c.V, Latent: c.Latent, RopeStyle: c.RopeStyle,
		Hidden: w.Config.Hidden, QLora: w.Config.QLora,
	}
}

// inner is the layer inside for the oracle.
func (w *Weights) inner() inner {
	return inner{model: w.Model(), kvb: stored{w.Block.Core.KVB}, gamma: widened(w.Block.Core.Gamma), freqs: w.Freqs}
}

// projections are those that there are.
func (w *Weights) projections() []fp8.Matrix {
	all := []fp8.Matrix{w.Block.QA, w.Block.QB, w.Block.KVA, w.Block.O}
	return slices.DeleteFunc(all, func(m fp8.Matrix) bool { return m.Rows() == 0 })
}

// weightNames names the types of the weights that a layer or a block reads:
// "fp8_e4m3", or "bf16+fp8_e4m3" where there are several.
func (s Spec) weightNames() string {
	if s.Weights == nil {
		return "fp8_e4m3"
	}
	all := []fp8.Matrix{s.Weights.Block.Core.KVB}
	if s.Op == Block {
		all = append(all, s.Weights.projections()...)
	}
	var names []string
	for _, m := range all {
		name := m.Elem().String()
		if m.Elem().Size() == 1 {
			name = "fp8_" + name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(slices.Compact(names), "+")
}

// unfit says why a row cannot be run on its weights; "" if it can.
func (s Spec) unfit() string {
	if s.Op == Block && s.Model.Hidden < 1 {
		return fmt.Sprintf("the model has hidden states of %d values", s.Model.Hidden)
	}
	if w := s.Weights; w != nil {
		if k := w.Config.Core.IndexTopK; k > 0 && s.Ctx > k && s.pages() {
			return fmt.Sprintf("the model attends to more than %d keys by an indexer's lists only", k)
		}
	}
	return ""
}

// source is what a layer or a block of a row is made of.
type source struct {
	model      Model
	of         *Weights
	arithmetic mla.Compute
}

func (s Spec) source() source { return source{s.Model, s.Weights, s.Arithmetic} }

// stored is weights as a checkpoint holds them. A code times its scale is exact in
// float64.
type stored struct{ fp8.Matrix }

func (m stored) row(i int) []float64 {
	x := make([]float64, m.Cols())
	for j := range x {
		x[j] = float64(m.Code(i, j)) * float64(m.Scale(i, j))
	}
	return x
}

// widened is the values of r.
func widened(r mla.Rows) []float32 {
	x := make([]float32, r.Len())
	r.Widen(x, 0, len(x))
	return x
}
