package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// rawConfig are the values of a config.json that attention hangs on, as they stand there; a
// key that is missing and one that is null are not set. Keys that are none of these and not in
// the table of settings are passed over.
type rawConfig struct {
	modelType, architecture str
	text                    *rawConfig // text_config

	layers, longcatLayers, predict    value
	hidden, heads, nope, rope, v      value
	latent, qLora                     value
	positions, original, indexTopK    value
	theta, normEpsilon, partial       number
	bias, interleave, scaleQ, scaleKV flag
	scaling, parameters               *rawRope
	quant, compression                *rawQuant
	layerTypes                        []string
	settings                          map[string]literal // those of the table that are there
	seen                              seen
}

// rawRope is a rope_scaling or rope_parameters.
type rawRope struct {
	ropeType, oldType                 str
	theta, factor, betaFast, betaSlow number
	mscale, mscaleAllDim              number
	attentionFactor, beta, partial    number
	attnFactor, extrapolation         number
	original, positions               value
	truncate, apply, applyScale       flag
	short, long                       []float64
	other                             unread
	seen                              seen
}

// rawQuant is a quantization_config.
type rawQuant struct {
	method, format, scaleFormat str
	activation                  literal
	transforms                  literal
	block                       []uint64
	ignored                     []string
	differ                      bool // groups of compressed-tensors have different blocks
	other                       unread
	seen                        seen
}

// unread is the first key of a dictionary that is not known, with its value.
type unread struct {
	key   string
	value literal
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
	// literal is a value of any kind, which is compared with a few others: a word or a number
	// as it stands in the text, a string in quotes, "[]" and "{}" for what is empty, and the
	// beginning of all else.
	literal string
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
		case "partial_rotary_factor":
			return r.partial.from(s)
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
		case "compression_config":
			return func() error {
				r.compression = &rawQuant{}
				return s.object(func() error { return r.compression.member(s, b) })
			}
		}
		if _, ok := settings[key]; !ok {
			return nil
		}
		return func() error {
			x, err := s.literalValue()
			if r.settings == nil {
				r.settings = map[string]literal{}
			}
			r.settings[key] = x
			return err
		}
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
		case "partial_rotary_factor":
			return r.partial.from(s)
		case "max_position_embeddings":
			return r.positions.from(s)
		case "apply_yarn_scaling":
			return r.apply.from(s)
		case "apply_scale":
			return r.applyScale.from(s)
		case "attn_factor":
			return r.attnFactor.from(s)
		case "extrapolation_factor":
			return r.extrapolation.from(s)
		}
		return r.other.from(s, key)
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
		case "activation_scheme":
			return r.activation.from(s)
		case "transform_config":
			return r.transforms.from(s)
		}
		if slices.Contains(quantHarmless[:], key) {
			return nil
		}
		return r.other.from(s, key)
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
			switch {
			case slices.Contains(groupHarmless[:], key):
				return nil
			case key != "weights":
				return r.other.from(s, key)
			}
			return func() error {
				return s.object(func() error {
					return s.readMember(&weights, func(key string) func() error {
						switch {
						case slices.Contains(groupWeightsHarmless[:], key):
							return nil
						case key != "block_structure":
							return r.other.from(s, key)
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

// from keeps the first key that is not known. Those that follow are passed over, since one is
// enough for an error and a dictionary may have any number of them.
func (x *unread) from(s *scanner, key string) func() error {
	if x.key != "" {
		return nil
	}
	return func() error {
		v, err := s.literalValue()
		x.key, x.value = key, v
		return err
	}
}

func (x *literal) from(s *scanner) func() error {
	return func() (err error) {
		*x, err = s.literalValue()
		return err
	}
}

// literalValue reads any value but a null.
func (s *scanner) literalValue() (literal, error) {
	var open, shut byte
	switch open = s.peek(); open {
	case '"':
		b, err := s.word()
		return literal(strconv.Quote(clip(string(b)))), err
	case '[':
		shut = ']'
	case '{':
		shut = '}'
	default:
		start := s.pos()
		if err := s.skip(); err != nil {
			return "", err
		}
		end := s.pos()
		b := make([]byte, min(end-start, maxNumber))
		err := readFull(s.r, b, s.start+start)
		return literal(b), err
	}
	start := s.pos()
	s.i++
	empty := s.peek() == shut
	s.seek(start)
	if err := s.skip(); err != nil {
		return "", err
	}
	if empty {
		return literal([]byte{open, shut}), nil
	}
	return literal([]byte{open}) + "..." + literal([]byte{shut}), nil
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
