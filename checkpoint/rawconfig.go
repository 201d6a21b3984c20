package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// rawConfig are the values of a config.json that attention hangs on, as they stand there; a
// key that is missing and one that is null are not set. Keys that are none of these are
// passed over.
type rawConfig struct {
	modelType, architecture str
	text                    *rawConfig // text_config

	layers, longcatLayers, predict    value
	hidden, heads, nope, rope, v      value
	latent, qLora                     value
	positions, original, indexTopK    value
	theta, normEpsilon                number
	bias, interleave, scaleQ, scaleKV flag
	scaling, parameters               *rawRope
	quant                             *rawQuant
	layerTypes                        []string
	seen                              seen
}

// rawRope is a rope_scaling or rope_parameters.
type rawRope struct {
	ropeType, oldType                 str
	theta, factor, betaFast, betaSlow number
	mscale, mscaleAllDim              number
	attentionFactor, beta             number
	original                          value
	truncate                          flag
	short, long                       []float64
	nested                            string // a key that holds an object
	seen                              seen
}

// rawQuant is a quantization_config.
type rawQuant struct {
	method, format, scaleFormat str
	block                       []uint64
	ignored                     []string
	differ                      bool // groups of compressed-tensors have different blocks
	seen                        seen
}

type (
	str struct {
		v   string
		set bool
	}
	number struct {
		v   float64
		set bool
	}
	flag struct{ v, set bool }
	// value is a whole number, saturated at what an int holds.
	value struct {
		n   int
		set bool
	}
)

// What lists in a configuration may hold.
const (
	maxListed  = 1 << 16 // names
	maxFactors = maxRope / 2
)

// seen are the keys of an object that were read.
type seen map[string]bool

// once notes a key; the second time it is an error.
func (s *seen) once(key string) error {
	if *s == nil {
		*s = seen{}
	}
	if (*s)[key] {
		return fmt.Errorf("key %q comes twice", key)
	}
	(*s)[key] = true
	return nil
}

// readMember reads a member that is one of these fields, and passes over another.
func (s *scanner) readMember(seen *seen, fields func(key string) func() error) error {
	b, err := s.key()
	if err != nil {
		return err
	}
	key := string(b)
	read := fields(key)
	if read == nil {
		return s.skip()
	}
	if err := seen.once(key); err != nil {
		return err
	}
	if null, err := s.null(); null || err != nil {
		return err
	}
	if err := read(); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// member reads one member of a config.json, or of its text_config.
func (r *rawConfig) member(s *scanner, b *budget) error {
	return s.readMember(&r.seen, func(key string) func() error {
		switch key {
		case "model_type":
			return r.modelType.from(s)
		case "architectures":
			return func() error {
				return s.array(func() error {
					var name str
					err := name.from(s)()
					if !r.architecture.set {
						r.architecture = name
					}
					return err
				})
			}
		case "text_config":
			return func() error {
				if s.depth > 0 {
					return errors.New("it is inside another")
				}
				s.depth++
				defer func() { s.depth-- }()
				r.text = &rawConfig{}
				return s.object(func() error { return r.text.member(s, b) })
			}
		case "num_hidden_layers":
			return r.layers.from(s)
		case "num_layers":
			return r.longcatLayers.from(s)
		case "num_nextn_predict_layers":
			return r.predict.from(s)
		case "hidden_size":
			return r.hidden.from(s)
		case "num_attention_heads":
			return r.heads.from(s)
		case "qk_nope_head_dim":
			return r.nope.from(s)
		case "qk_rope_head_dim":
			return r.rope.from(s)
		case "v_head_dim":
			return r.v.from(s)
		case "kv_lora_rank":
			return r.latent.from(s)
		case "q_lora_rank":
			return r.qLora.from(s)
		case "max_position_embeddings":
			return r.positions.from(s)
		case "original_max_position_embeddings":
			return r.original.from(s)
		case "index_topk":
			return r.indexTopK.from(s)
		case "rope_theta":
			return r.theta.from(s)
		case "rms_norm_eps":
			return r.normEpsilon.from(s)
		case "attention_bias":
			return r.bias.from(s)
		case "rope_interleave":
			return r.interleave.from(s)
		case "mla_scale_q_lora":
			return r.scaleQ.from(s)
		case "mla_scale_kv_lora":
			return r.scaleKV.from(s)
		case "layer_types":
			return func() error { return s.strings(&r.layerTypes, b) }
		case "rope_scaling":
			return func() error {
				r.scaling = &rawRope{}
				return s.object(func() error { return r.scaling.member(s) })
			}
		case "rope_parameters":
			return func() error {
				r.parameters = &rawRope{}
				return s.object(func() error { return r.parameters.member(s) })
			}
		case "quantization_config":
			return func() error {
				r.quant = &rawQuant{}
				return s.object(func() error { return r.quant.member(s, b) })
			}
		}
		return nil
	})
}

func (r *rawRope) member(s *scanner) error {
	return s.readMember(&r.seen, func(key string) func() error {
		switch key {
		case "rope_type":
			return r.ropeType.from(s)
		case "type":
			return r.oldType.from(s)
		case "rope_theta":
			return r.theta.from(s)
		case "factor":
			return r.factor.from(s)
		case "beta_fast":
			return r.betaFast.from(s)
		case "beta_slow":
			return r.betaSlow.from(s)
		case "mscale":
			return r.mscale.from(s)
		case "mscale_all_dim":
			return r.mscaleAllDim.from(s)
		case "attention_factor":
			return r.attentionFactor.from(s)
		case "llama_4_scaling_beta":
			return r.beta.from(s)
		case "original_max_position_embeddings":
			return r.original.from(s)
		case "truncate":
			return r.truncate.from(s)
		case "short_factor":
			return func() error { return s.floats(&r.short) }
		case "long_factor":
			return func() error { return s.floats(&r.long) }
		}
		if s.peek() == '{' {
			r.nested = key
		}
		return nil
	})
}

func (r *rawQuant) member(s *scanner, b *budget) error {
	return s.readMember(&r.seen, func(key string) func() error {
		switch key {
		case "quant_method":
			return r.method.from(s)
		case "fmt":
			return r.format.from(s)
		case "scale_fmt":
			return r.scaleFormat.from(s)
		case "weight_block_size":
			return func() error {
				two, err := s.numbers(maxRank)
				r.block = append(make([]uint64, 0, len(two)), two...)
				return err
			}
		case "modules_to_not_convert", "ignored_layers", "ignore":
			return func() error { return s.strings(&r.ignored, b) }
		case "config_groups":
			return func() error { return s.object(func() error { return r.group(s) }) }
		}
		return nil
	})
}

// group reads the weights of one of the config_groups of compressed-tensors, of which the
// blocks of scales are all that its tensors do not say themselves.
func (r *rawQuant) group(s *scanner) error {
	if _, err := s.key(); err != nil {
		return err
	}
	var group, weights seen
	return s.object(func() error {
		return s.readMember(&group, func(key string) func() error {
			if key != "weights" {
				return nil
			}
			return func() error {
				return s.object(func() error {
					return s.readMember(&weights, func(key string) func() error {
						if key != "block_structure" {
							return nil
						}
						return func() error {
							two, err := s.numbers(maxRank)
							r.differ = r.differ || r.block != nil && !slices.Equal(r.block, two)
							r.block = append(make([]uint64, 0, len(two)), two...)
							return err
						}
					})
				})
			}
		})
	})
}

func (x *str) from(s *scanner) func() error {
	return func() error {
		t, err := s.pass()
		if err != nil {
			return err
		}
		if t.n >= shortest {
			return fmt.Errorf("the string at byte %d of the %s has %d bytes, wanted less than %d", t.at, s.what, t.n, shortest)
		}
		b, err := s.begin(t)
		*x = str{string(b), true}
		return err
	}
}

func (x *number) from(s *scanner) func() error {
	return func() (err error) {
		x.v, err = s.float()
		x.set = true
		return err
	}
}

func (x *flag) from(s *scanner) func() error {
	return func() (err error) {
		x.v, err = s.boolean()
		x.set = true
		return err
	}
}

func (x *value) from(s *scanner) func() error {
	return func() error {
		f, err := s.float()
		if err != nil {
			return err
		}
		if f != math.Trunc(f) {
			return fmt.Errorf("it is %v, want a whole number", f)
		}
		x.n, x.set = int(min(max(f, math.MinInt32), math.MaxInt32)), true
		return nil
	}
}

// floats reads a list of numbers.
func (s *scanner) floats(to *[]float64) error {
	return s.array(func() error {
		x, err := s.float()
		if err == nil && len(*to) == maxFactors {
			err = fmt.Errorf("it has more than %d numbers", maxFactors)
		}
		*to = append(*to, x)
		return err
	})
}

// strings reads a list of strings, within what may be kept.
func (s *scanner) strings(to *[]string, b *budget) error {
	return s.array(func() error {
		t, err := s.pass()
		if err != nil {
			return err
		}
		if len(*to) == maxListed {
			return fmt.Errorf("%w: it has more than %d names", ErrLimit, maxListed)
		}
		if err := b.spend(t.n + perMetadata); err != nil {
			return err
		}
		p := make([]byte, t.n)
		end := s.pos()
		err = s.read(t, p)
		s.seek(end)
		*to = append(*to, aliased(p))
		return err
	})
}
