package bench

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/lamina-ml/lamina/mla"
)

// Model is the geometry of a model's attention blocks.
type Model struct {
	Name  string
	Heads int // H
	Nope  int // N
	Rope  int // P
	V     int // V
	// Latent is R.
	Latent    int
	RopeStyle mla.RopeStyle
	// Hidden is E and QLora A, of the block around the layer; a QLora of 0 is a
	// query without a low rank.
	Hidden, QLora int
}

var models = []Model{
	{Name: "v3", Heads: 128, Nope: 128, Rope: 64, V: 128, Latent: 512, Hidden: 7168, QLora: 1536},
	{Name: "v2-lite", Heads: 16, Nope: 128, Rope: 64, V: 128, Latent: 512, Hidden: 2048},
	{Name: "kimi-k2", Heads: 64, Nope: 128, Rope: 64, V: 128, Latent: 512, Hidden: 7168, QLora: 1536},
	{Name: "glm-4.7-flash", Heads: 20, Nope: 192, Rope: 64, V: 256, Latent: 512, Hidden: 2048, QLora: 768},
	{Name: "glm-5", Heads: 64, Nope: 192, Rope: 64, V: 256, Latent: 512, Hidden: 6144, QLora: 2048},
	{Name: "minicpm3", Heads: 40, Nope: 64, Rope: 32, V: 64, Latent: 256, RopeStyle: mla.Half, Hidden: 2560, QLora: 768},
}

// ErrModel marks a model that the bench does not know.
var ErrModel = errors.New("bench: unknown model")

// Models lists the models the bench knows, DeepSeek-V3 first.
func Models() []Model { return append([]Model(nil), models...) }

// ParseModel finds a model by name; the error, an ErrModel, lists the known ones.
func ParseModel(name string) (Model, error) {
	var known []string
	for _, m := range models {
		if m.Name == name {
			return m, nil
		}
		known = append(known, m.Name)
	}
	return Model{}, fmt.Errorf("%w %q, want one of %s", ErrModel, name, strings.Join(known, ", "))
}

// Width is C = R+P, the values of a cache row.
func (m Model) Width() int { return m.Latent + m.Rope }

// projections are the sizes [rows, columns] of what a block has around its layer:
// q_a_proj (none without a low rank), q_b_proj or q_proj, kv_a_proj_with_mqa, o_proj.
func (m Model) projections() [4][2]int {
	heads, in := m.Heads*(m.Nope+m.Rope), m.QLora
	if in == 0 {
		in = m.Hidden
	}
	return [...][2]int{{m.QLora, m.Hidden}, {heads, in}, {m.Width(), m.Hidden}, {m.Hidden, m.Heads * m.V}}
}

// projected is how many weights these have.
func (m Model) projected() int {
	n := 0
	for _, p := range m.projections() {
		n += p[0] * p[1]
	}
	return n
}

// config is the layer of this geometry with the plain softmax scale.
func (m Model) config() mla.Config {
	return mla.Config{
		Heads: m.Heads, Nope: m.Nope, Rope: m.Rope, V: m.V, Latent: m.Latent,
		Scale: float32(1 / math.Sqrt(float64(m.Nope+m.Rope))), RopeStyle: m.RopeStyle,
	}
}
