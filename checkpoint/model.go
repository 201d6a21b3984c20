package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/lamina-ml/lamina/mla"
)

// Model is a model's directory: its configuration and its open tensors. Its methods may be
// used by many goroutines while nobody changes Config.
type Model struct {
	// Config is what config.json says. Its Block and Rope may be changed before layers are
	// loaded: another mask, say, or the epsilon of vLLM.
	Config Config
	// Dir has the tensors.
	Dir *Dir

	prefix string // of the names of layers, up to "layers."
}

// OpenModel opens a model's directory with the default limits: see [Limits.OpenModel].
func OpenModel(dir string) (*Model, error) { return Limits{}.OpenModel(dir) }

// OpenModel opens a directory that has config.json and the tensors that [Limits.OpenDir]
// takes. No tensor is read. The layers are those of a language model, where there are others too.
// Errors are those of [Limits.ParseConfig] and [Limits.OpenDir], and
// ErrWeights if the layers of more than one model are in the directory; all name the file.
func (l Limits) OpenModel(dir string) (*Model, error) {
	m := &Model{Dir: &Dir{path: dir}}
	if err := m.Dir.isDir(); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, configName)
	f, err := openMapped(path)
	if err != nil {
		if there, _ := m.Dir.holds(configName); !there && !holdsCheckpoint(dir) {
			if _, below := m.Dir.instead(); below != "" {
				return nil, m.Dir.nothing()
			}
		}
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	defer f.Close()
	b := l.budget()
	if m.Config, err = l.readConfig(f, f.Size(), b); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err = l.openDir(m.Dir, b); err == nil {
		m.prefix, err = m.Dir.layersPrefix()
	}
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// Close closes the files. Layers and blocks that were made stay.
func (m *Model) Close() error { return m.Dir.Close() }

// preferred are prefixes of layers of language models, before any other.
var preferred = [...]string{"model.", "language_model.model.", "model.language_model.", "language_model.", ""}

// maxPrefix bounds prefixes: each block has one in its module, in many a message too.
const maxPrefix = 128

// layersPrefix finds out what stands before "layers." in the names of a model's attention
// tensors.
func (d *Dir) layersPrefix() (string, error) {
	const module, tensor = ".self_attn.", "kv_a_proj_with_mqa.weight"
	there := [len(preferred)]bool{}
	var others []string // two at most, however many there are
	for _, r := range d.byName {
		name := d.name(r)
		if !bytes.HasSuffix(name, []byte(tensor)) {
			continue
		}
		at := bytes.LastIndex(name, []byte(module))
		if at < 0 {
			continue
		}
		if at = bytes.LastIndex(name[:at], []byte("layers.")); at < 0 || at > maxPrefix {
			continue
		}
		p := aliased(name[:at])
		if k := slices.Index(preferred[:], p); k >= 0 {
			there[k] = true
		} else if len(others) < 2 && !slices.Contains(others, p) {
			others = append(others, strings.Clone(p))
		}
	}
	var known []string
	for k, p := range preferred {
		if there[k] {
			known = append(known, p)
		}
	}
	if len(known) > 0 {
		others = known
	}
	switch len(others) {
	case 0:
		return preferred[0], nil // whose absence is then found
	case 1:
		return others[0], nil
	}
	return "", fmt.Errorf("%s: %w: layers begin with %s and with %s, wanted one model", d.path, ErrWeights, clip(strconv.Quote(others[0])), clip(strconv.Quote(others[1])))
}

// Module is the prefix of the tensors of attention block i: model.layers.3.self_attn, or in
// LongCat, which has two blocks a layer, model.layers.1.self_attn.1.
func (m *Model) Module(i int) string {
	if m.Config.twice {
		return fmt.Sprintf("%slayers.%d.self_attn.%d", m.prefix, i/2, i%2)
	}
	return fmt.Sprintf("%slayers.%d.self_attn", m.prefix, i)
}

// layer is the decoder layer of attention block i.
func (c *Config) layer(i int) int {
	if c.twice {
		return i / 2
	}
	return i
}

// Check returns nil if attention block i can be loaded, as far as headers tell: the tensors
// are there, and their types, shapes and scales fit config.json. Else it is the error of
// [Model.LoadBlock].
func (m *Model) Check(i int) error {
	_, err := m.block(i)
	return err
}

// Block loads attention block i and packs it, for the arithmetic of Config.Block.Core; with
// [Model.LoadBlock] and [mla.NewBlock] there is more to choose. Nothing of the files is needed afterwards.
func (m *Model) Block(i int) (*mla.Block, error) {
	cfg, w, err := m.LoadBlock(i)
	if err != nil {
		return nil, err
	}
	b, err := mla.NewBlock(cfg, w)
	return b, m.of(i, err)
}

// Layer loads the attention core of block i and packs it; with [Model.LoadLayer] and
// [mla.New] there is more to choose. Nothing of the files is needed afterwards.
func (m *Model) Layer(i int) (*mla.Layer, error) {
	cfg, w, err := m.LoadLayer(i)
	if err != nil {
		return nil, err
	}
	l, err := mla.New(cfg, w)
	return l, m.of(i, err)
}

// of says which block an error is of.
func (m *Model) of(i int, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %s: %w", m.Dir.path, shown(m.Module(i)), err)
}

// LoadLayer is what [mla.New] makes the attention core of block i of: kv_b_proj and
// kv_a_layernorm, copied from the files. Errors are as for [Model.LoadBlock].
func (m *Model) LoadLayer(i int) (mla.Config, mla.Weights, error) {
	var w mla.Weights
	f, err := m.finder(i)
	if err != nil {
		return mla.Config{}, w, err
	}
	core := f.core()
	if f.err == nil {
		w = core.load(f)
	}
	if f.err != nil {
		return mla.Config{}, mla.Weights{}, f.err
	}
	return m.Config.Block.Core, w, nil
}

// LoadBlock is what [mla.NewBlock] makes attention block i of, copied from the files. Blocks
// are numbered as layers are, and in LongCat 2i and 2i+1 are those of layer i; behind the last
// come those of layers that predict further tokens.
//
// Errors name the file, the tensor and what was wanted: ErrWeights for a tensor that is
// missing, has another shape than config.json says or a type that no projection has, for
// scales that are missing, or there without codes, or not of the blocks of
// quantization_config, and for biases against attention_bias; ErrUnsupported for a layer whose
// entry of layer_types is no latent attention, and for a projection that is quantised in a way
// that is not read, whatever the rest of the model is; ErrRead and ErrLimit.
func (m *Model) LoadBlock(i int) (mla.BlockConfig, mla.BlockWeights, error) {
	b, err := m.block(i)
	if err != nil {
		return mla.BlockConfig{}, mla.BlockWeights{}, err
	}
	f := &finder{m: m}
	w := b.load(f)
	if f.err != nil {
		return mla.BlockConfig{}, mla.BlockWeights{}, f.err
	}
	return m.Config.Block, w, nil
}

// LoadLayer opens a model's directory and loads the attention core of block i: see
// [Model.LoadLayer].
func LoadLayer(dir string, i int) (mla.Config, mla.Weights, error) {
	m, err := OpenModel(dir)
	if err != nil {
		return mla.Config{}, mla.Weights{}, err
	}
	cfg, w, err := m.LoadLayer(i)
	return cfg, w, errors.Join(err, m.Close())
}

// LoadBlock opens a model's directory and loads attention block i: see [Model.LoadBlock].
func LoadBlock(dir string, i int) (mla.BlockConfig, mla.BlockWeights, error) {
	m, err := OpenModel(dir)
	if err != nil {
		return mla.BlockConfig{}, mla.BlockWeights{}, err
	}
	cfg, w, err := m.LoadBlock(i)
	return cfg, w, errors.Join(err, m.Close())
}

// finder is ready to find the tensors of attention block i, if config.json says that there is
// one.
func (m *Model) finder(i int) (*finder, error) {
	c := &m.Config
	if i < 0 || i >= c.Blocks+c.Predict {
		return nil, fmt.Errorf("%s: %w: attention block %d, and the model has %d", m.Dir.path, ErrWeights, i, c.Blocks+c.Predict)
	}
	if k := c.layer(i); k < len(c.layerTypes) {
		switch kind := c.layerTypes[k]; kind {
		// The last two are one, of hubs and as transformers saves it.
		case "full_attention", "deepseek_sparse_attention", "indexed_attention":
		default:
			return nil, fmt.Errorf("%s: %w: layer_types[%d] is %q, wanted full_attention, deepseek_sparse_attention or indexed_attention",
				filepath.Join(m.Dir.path, configName), ErrUnsupported, k, clip(kind))
		}
	}
	return &finder{m: m, module: m.Module(i)}, nil
}

// block finds the tensors of attention block i.
func (m *Model) block(i int) (blockTensors, error) {
	f, err := m.finder(i)
	if err != nil {
		return blockTensors{}, err
	}
	b := f.block()
	return b, f.err
}

// sizesOf names the keys of config.json that a size hangs on, for messages.
func sizesOf(c *Config, keys ...string) string {
	b := &c.Block
	parts := make([]string, len(keys))
	for i, key := range keys {
		n := map[string]int{
			"hidden_size": b.Hidden, "num_attention_heads": b.Core.Heads, "qk_nope_head_dim": b.Core.Nope, "qk_rope_head_dim": b.Core.Rope,
			"v_head_dim": b.Core.V, "kv_lora_rank": b.Core.Latent, "q_lora_rank": b.QLora,
		}[key]
		parts[i] = fmt.Sprintf("%s %d", key, n)
	}
	return strings.Join(parts, ", ")
}
