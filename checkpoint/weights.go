package checkpoint

import (
	"fmt"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/mla"
)

// finder finds the tensors of an attention block and holds them against the configuration;
// then it reads them. After the first fault its methods do nothing, and err is that fault.
type finder struct {
	m      *Model
	module string
	err    error
}

// matrix is a projection's tensors.
type matrix struct {
	weight Tensor
	scale  Tensor // of codes
	rows   int    // of a scale block, 0 without scales
	cols   int
}

// coreTensors are those of an attention core.
type coreTensors struct {
	kvb   matrix
	gamma Tensor
}

// blockTensors are those of an attention block; what a block has not is the zero value.
type blockTensors struct {
	core                   coreTensors
	qa, qb, kva, o         matrix
	qGamma                 Tensor
	qaBias, kvaBias, oBias Tensor
}

// all are the tensors that there are, in a fixed order.
func (b *blockTensors) all() []Tensor {
	var all []Tensor
	for _, m := range []matrix{b.qa, b.qb, b.kva, b.core.kvb, b.o} {
		all = append(all, m.weight, m.scale)
	}
	all = append(all, b.qGamma, b.core.gamma, b.qaBias, b.kvaBias, b.oBias)
	there := all[:0]
	for _, t := range all {
		if t.DType != 0 {
			there = append(there, t)
		}
	}
	return there
}

func (f *finder) core() coreTensors {
	c := &f.m.Config
	k := c.Block.Core
	return coreTensors{
		kvb: f.matrix("kv_b_proj", k.Heads*(k.Nope+k.V), k.Latent,
			"num_attention_heads", "qk_nope_head_dim", "v_head_dim", "kv_lora_rank"),
		gamma: f.vector("kv_a_layernorm.weight", k.Latent, "kv_lora_rank"),
	}
}

func (f *finder) block() (b blockTensors) {
	c := &f.m.Config
	k, hidden := c.Block.Core, c.Block.Hidden
	query := k.Heads * (k.Nope + k.Rope)
	if a := c.Block.QLora; a > 0 {
		b.qa = f.matrix("q_a_proj", a, hidden, "q_lora_rank", "hidden_size")
		b.qGamma = f.vector("q_a_layernorm.weight", a, "q_lora_rank")
		b.qb = f.matrix("q_b_proj", query, a, "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "q_lora_rank")
		f.absent("q_proj.weight", "q_lora_rank is not null")
	} else {
		b.qb = f.matrix("q_proj", query, hidden, "num_attention_heads", "qk_nope_head_dim", "qk_rope_head_dim", "hidden_size")
		f.absent("q_a_proj.weight", "q_lora_rank is null")
	}
	b.kva = f.matrix("kv_a_proj_with_mqa", k.Latent+k.Rope, hidden, "kv_lora_rank", "qk_rope_head_dim", "hidden_size")
	b.core = f.core()
	b.o = f.matrix("o_proj", hidden, k.Heads*k.V, "hidden_size", "num_attention_heads", "v_head_dim")
	f.biases(&b)
	return b
}

// biases finds what attention_bias promises, and nothing else.
func (f *finder) biases(b *blockTensors) {
	c := &f.m.Config
	k := c.Block.Core
	for _, x := range []struct {
		to     *Tensor
		name   string
		n      int
		wanted bool
		key    string
	}{
		{&b.qaBias, "q_a_proj.bias", c.Block.QLora, c.Bias && c.Block.QLora > 0, "q_lora_rank"},
		{&b.kvaBias, "kv_a_proj_with_mqa.bias", k.Latent + k.Rope, c.Bias, "kv_lora_rank"},
		{&b.oBias, "o_proj.bias", c.Block.Hidden, c.Bias, "hidden_size"},
	} {
		if x.wanted {
			*x.to = f.vector(x.name, x.n, x.key)
		} else {
			f.absent(x.name, fmt.Sprintf("attention_bias is %v", c.Bias))
		}
	}
	for _, name := range []string{"q_proj.bias", "q_b_proj.bias", "kv_b_proj.bias"} {
		f.absent(name, "this projection has none")
	}
}

func (f *finder) failf(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf(format, args...)
	}
}

// tensor is a tensor that must be there.
func (f *finder) tensor(name string) Tensor {
	name = f.module + "." + name
	t, ok := f.m.Dir.Tensor(name)
	if !ok {
		f.failf("%s: %w: tensor %s is missing", f.m.Dir.path, ErrWeights, shown(name))
	}
	return t
}

// absent faults a tensor that must not be there.
func (f *finder) absent(name, why string) {
	if t, ok := f.m.Dir.Tensor(f.module + "." + name); ok {
		f.failf("%s: %w: tensor %v is there, and by config.json %s", t.file.path, ErrWeights, t, why)
	}
}

// vector is a norm's weight or a bias.
func (f *finder) vector(name string, n int, key string) Tensor {
	t := f.tensor(name)
	if f.err != nil {
		return Tensor{}
	}
	if !plainType(t.DType) {
		f.failf("%s: %w: tensor %v, wanted F32, BF16 or F16", t.file.path, ErrWeights, t)
	}
	f.shape(t, []int{n}, key)
	return t
}

// shape holds a tensor against the sizes of the configuration.
func (f *finder) shape(t Tensor, want Shape, keys ...string) {
	if f.err == nil && !equal(t.Shape, want) {
		f.failf("%s: %w: tensor %v, wanted %v by config.json: %s", t.file.path, ErrWeights, t, want, sizesOf(&f.m.Config, keys...))
	}
}

func equal(a, b Shape) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// scaleNames are what the scales of X.weight may be called. They are multipliers, whatever
// the name says.
var scaleNames = [...]string{".weight_scale_inv", ".weight_scale"}

// strange are tensors beside or in place of X.weight whose values change those of the weight or
// of what comes in, in ways that are not read: 4-bit codes and their scales of NVFP4, GPTQ, AWQ,
// MLX and bitsandbytes, zero points, factors of the inputs. X.input_scale and its like only say
// how inputs may be rounded.
var strange = [...]string{
	".weight_packed", ".weight_scale_2", ".weight_global_scale", ".weight_zero_point", ".weight_g_idx", ".weight_shape",
	".weight_bitmask", ".qweight", ".qzeros", ".scales", ".biases", ".g_idx", ".weight.absmax", ".weight.quant_map", ".SCB", ".pre_quant_scale",
	".lora_A.weight", ".lora_B.weight",
}

// plain refuses a projection that is quantised in a way that is not read.
func (f *finder) plain(name string) {
	for _, suffix := range strange {
		if t, ok := f.m.Dir.Tensor(f.module + "." + name + suffix); ok {
			f.failf("%s: %w: tensor %v is there%s, and is not read: wanted %s.weight, plain or in FP8 with scales",
				t.file.path, ErrUnsupported, t, f.method(), shown(f.module+"."+name))
			return
		}
	}
}

// method adds to a message how config.json says that weights are quantised.
func (f *finder) method() string {
	q := f.m.Config.Quant
	if q.Method == "" {
		return ""
	}
	return fmt.Sprintf(", by quant_method %q", clip(q.Method))
}

// matrix is a projection: its weight, and the scales if that holds codes.
func (f *finder) matrix(name string, rows, cols int, keys ...string) (m matrix) {
	f.plain(name)
	m.weight = f.tensor(name + ".weight")
	if f.err != nil {
		return matrix{}
	}
	t := m.weight
	_, codes := codeElem(t.DType)
	if read := f.m.Config.Quant.read(); !read && (codes || !plainType(t.DType)) {
		f.failf("%s: %w: tensor %v%s, which is read only where attention is left out: wanted F32, BF16 or F16, or the method fp8 or %s",
			t.file.path, ErrUnsupported, t, f.method(), compressed)
		return matrix{}
	}
	f.shape(t, []int{rows, cols}, keys...)
	for _, suffix := range scaleNames {
		scale, ok := f.m.Dir.Tensor(f.module + "." + name + suffix)
		if !ok {
			continue
		}
		if m.scale.DType != 0 {
			f.failf("%s: %w: tensors %v and %v are both there, wanted one", scale.file.path, ErrWeights, m.scale, scale)
		}
		m.scale = scale
	}
	scaled := m.scale.DType != 0
	switch {
	case f.err != nil:
	case codes && !scaled:
		f.failf("%s: %w: tensor %v has no scales: %s%s is missing%s", t.file.path, ErrWeights, t, shown(f.module+"."+name), scaleNames[0], f.ignored(name))
	case codes:
		f.scales(&m)
	case !plainType(t.DType):
		f.failf("%s: %w: tensor %v, wanted F8_E4M3, F8_E5M2, F8_E4M3FNUZ, F8_E5M2FNUZ, BF16, F16 or F32", t.file.path, ErrWeights, t)
	case scaled:
		f.failf("%s: %w: tensor %v is there, but %v holds no codes", m.scale.file.path, ErrWeights, m.scale, t)
	}
	return m
}

// plainType reports whether a type holds values and no codes.
func plainType(d DType) bool { return d == BF16 || d == F16 || d == F32 }

// ignored adds to a message that config.json wants no codes there at all.
func (f *finder) ignored(name string) string {
	for _, x := range f.m.Config.Quant.Ignored {
		if x == name || x == f.module+"."+name {
			return ", and config.json says that it is not quantised"
		}
	}
	return ""
}

// scales holds the scales of a matrix of codes against quantization_config, and finds out
// their blocks.
func (f *finder) scales(m *matrix) {
	q, s, rows, cols := f.m.Config.Quant, m.scale, m.weight.Shape[0], m.weight.Shape[1]
	if s.DType != F32 && s.DType != BF16 && s.DType != F8_E8M0 {
		f.failf("%s: %w: tensor %v, wanted F32, BF16 or F8_E8M0", s.file.path, ErrWeights, s)
		return
	}
	n, err := s.Shape.Elements()
	switch {
	case err != nil:
		f.failf("%s: tensor %v: %w", s.file.path, s, err)
	case q.Method == "":
		f.failf("%s: %w: tensor %v holds codes, and config.json has no quantization_config", m.weight.file.path, ErrWeights, m.weight)
	case q.BlockRows > 0:
		m.rows, m.cols = q.BlockRows, q.BlockCols
		if want := (Shape{ceilDiv(rows, m.rows), ceilDiv(cols, m.cols)}); !equal(s.Shape, want) {
			f.failf("%s: %w: tensor %v, wanted %v: one scale for each block of weight_block_size [%d, %d] in [%d, %d]",
				s.file.path, ErrWeights, s, want, m.rows, m.cols, rows, cols)
		}
	case n == 1 && len(s.Shape) <= 2:
		m.rows, m.cols = rows, cols
	case n == rows && s.Shape[0] == rows:
		m.rows, m.cols = 1, cols
	default:
		f.failf("%s: %w: tensor %v, wanted [1] or [%d, 1], since config.json has no weight_block_size", s.file.path, ErrWeights, s, rows)
	}
}

func ceilDiv(a, b int) int { return (a-1)/b + 1 }

// codeElem is the fp8 name of a type of codes.
func codeElem(d DType) (fp8.Elem, bool) {
	switch d {
	case F8_E4M3:
		return fp8.ElemE4M3, true
	case F8_E5M2:
		return fp8.ElemE5M2, true
	case F8_E4M3FNUZ:
		return fp8.ElemE4M3FNUZ, true
	case F8_E5M2FNUZ:
		return fp8.ElemE5M2FNUZ, true
	}
	return 0, false
}

func (c *coreTensors) load(f *finder) mla.Weights {
	return mla.Weights{KVB: c.kvb.load(f), Gamma: f.rows(c.gamma)}
}

func (b *blockTensors) load(f *finder) mla.BlockWeights {
	return mla.BlockWeights{
		QA: b.qa.load(f), QGamma: f.rows(b.qGamma), QB: b.qb.load(f), KVA: b.kva.load(f), Core: b.core.load(f), O: b.o.load(f),
		QABias: f.rows(b.qaBias), KVABias: f.rows(b.kvaBias), OBias: f.rows(b.oBias),
	}
}

// rows reads a vector; one that there is none of is empty.
func (f *finder) rows(t Tensor) mla.Rows {
	if f.err != nil || t.DType == 0 {
		return mla.Rows{}
	}
	if t.DType == F32 {
		x, err := t.F32s()
		f.err = err
		return mla.RowsF32(x)
	}
	x, err := t.U16s()
	f.err = err
	if t.DType == F16 {
		return mla.RowsF16(x)
	}
	return mla.RowsBF16(x)
}

// load reads a matrix; one that there is none of is empty.
func (m *matrix) load(f *finder) (out fp8.Matrix) {
	t := m.weight
	if f.err != nil || t.DType == 0 {
		return fp8.Matrix{}
	}
	rows, cols := t.Shape[0], t.Shape[1]
	var err error
	switch elem, codes := codeElem(t.DType); {
	case codes:
		var b []byte
		if b, err = t.U8s(); err != nil {
			break
		}
		scales := f.scalesOf(m.scale)
		if f.err != nil {
			return fp8.Matrix{}
		}
		if out, err = fp8.New(elem, rows, cols, b, scales, m.rows, m.cols); err != nil {
			err = fmt.Errorf("%s: %w: tensor %v: %w", m.scale.file.path, ErrWeights, m.scale, err)
		}
	case t.DType == F32:
		var x []float32
		if x, err = t.F32s(); err == nil {
			out, err = fp8.PlainF32(rows, cols, x)
		}
	default:
		var x []uint16
		if x, err = t.U16s(); err != nil {
			break
		}
		if t.DType == F16 {
			out, err = fp8.PlainF16(rows, cols, x)
		} else {
			out, err = fp8.PlainBF16(rows, cols, x)
		}
	}
	f.err = err
	return out
}

// scalesOf reads scales.
func (f *finder) scalesOf(t Tensor) fp8.Scales {
	switch t.DType {
	case F32:
		x, err := t.F32s()
		f.err = err
		return fp8.ScalesF32(x)
	case BF16:
		x, err := t.U16s()
		f.err = err
		return fp8.ScalesBF16(x)
	}
	x, err := t.U8s()
	f.err = err
	return fp8.ScalesE8M0(x)
}
