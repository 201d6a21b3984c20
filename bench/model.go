package bench

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/lamina-ml/lamina/mla"
)

// Model is the geometry of a model's attention layers.
type Model struct {
	Name  string
	Heads int // H
	Nope  int // N
	Rope  int // P
	V     int // V
	// Latent is R.
	Latent    int
	RopeStyle mla.RopeStyle
}

var models = []Model{
	{Name: "v3", Heads: 128, Nope: 128, Rope: 64, V: 128, Latent: 512},
	{Name: "v2-lite", Heads: 16, Nope: 128, Rope: 64, V: 128, Latent: 512},
	{Name: "kimi-k2", Heads: 64, Nope: 128, Rope: 64, V: 128, Latent: 512},
	{Name: "glm-4.7-flash", Heads: 20, Nope: 192, Rope: 64, V: 256, Latent: 512},
	{Name: "glm-5", Heads: 64, Nope: 192, Rope: 64, V: 256, Latent: 512},
	{Name: "minicpm3", Heads: 40, Nope: 64, Rope: 32, V: 64, Latent: 256, RopeStyle: mla.Half},
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

// config is the layer of this geometry with the plain softmax scale.
func (m Model) config() mla.Config {
	return mla.Config{
		Heads: m.Heads, Nope: m.Nope, Rope: m.Rope, V: m.V, Latent: m.Latent,
		Scale: float32(1 / math.Sqrt(float64(m.Nope+m.Rope))), RopeStyle: m.RopeStyle,
	}
}
