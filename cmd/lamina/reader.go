package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
)

// reader takes a case file apart. Its methods check what they return; after the first fault
// they return zero values, and err is that fault.
type reader struct {
	file *checkpoint.File
	meta map[string]string
	seen map[string]bool // tensors asked for
	said map[string]bool // metadata keys asked for
	err  error
}

func newReader(f *checkpoint.File) *reader {
	return &reader{file: f, meta: f.Metadata(), seen: map[string]bool{}, said: map[string]bool{}}
}

// failf keeps the first fault.
func (r *reader) failf(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf(format, args...)
	}
}

// text is a metadata value; its absence is a fault.
func (r *reader) text(key string) string {
	r.said[key] = true
	s, ok := r.meta[key]
	if !ok {
		r.failf("metadata %s is missing", key)
	}
	return s
}

// choice is a metadata value out of a few.
func (r *reader) choice(key string, of ...string) string {
	s := r.text(key)
	if r.err == nil && !slices.Contains(of, s) {
		r.failf("metadata %s is %q, wanted %s", key, s, strings.Join(of, " or "))
	}
	return s
}

// Bounds of what a case says: sums and products of two then fit an int, and the library takes
// what tensors bear out.
const (
	maxSize   = 1 << 30 // of sizes in the metadata, and keys of a sequence
	maxDim    = 1 << 20 // heads, and values of a head, a latent or a row
	maxSeqs   = 1 << 20 // sequences
	maxTokens = 1 << 22 // new tokens of all
)

// whole is a metadata value that is a whole number of at least low.
func (r *reader) whole(key string, low int) int { return r.within(key, low, maxSize) }

// within is a metadata value that is a whole number from low to high.
func (r *reader) within(key string, low, high int) int {
	s := r.text(key)
	if r.err != nil {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < low || n > high {
		r.failf("metadata %s is %q, wanted a whole number from %d to %d", key, s, low, high)
		return 0
	}
	return n
}

// atMost tests a size that a tensor's shape tells.
func (r *reader) atMost(t checkpoint.Tensor, what string, n, high int) {
	if n > high {
		r.failf("tensor %v has %d %s, wanted at most %d", t, n, what, high)
	}
}

// number is a metadata value that is a finite number.
func (r *reader) number(key string) float64 {
	s := r.text(key)
	if r.err != nil {
		return 0
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil || !finite(x) {
		r.failf("metadata %s is %q, wanted a finite number", key, s)
		return 0
	}
	return x
}

// float is a metadata value that is a finite number of at least 0.
func (r *reader) float(key string) float64 {
	x := r.number(key)
	if x < 0 {
		r.failf("metadata %s is %q, wanted a finite number of at least 0", key, r.meta[key])
		return 0
	}
	return x
}

// float32 is a number that is rounded to float32 once, from its decimal digits.
func (r *reader) float32(key string) float32 {
	if r.number(key); r.err != nil {
		return 0
	}
	x, err := strconv.ParseFloat(r.meta[key], 32)
	if err != nil {
		r.failf("metadata %s is %q, which float32 does not hold", key, r.meta[key])
	}
	return float32(x)
}

// scale is the softmax scale: any float32 but 0.
func (r *reader) scale() float32 {
	x := r.float32("scale")
	if x == 0 {
		r.failf("metadata scale is %q, wanted a finite number other than 0", r.meta["scale"])
	}
	return x
}

// flag is a metadata value that is true or false; its absence is false.
func (r *reader) flag(key string) bool {
	return r.has(key) && r.choice(key, "true", "false") == "true"
}

// has reports whether any of these metadata keys is there.
func (r *reader) has(keys ...string) bool {
	there := false
	for _, key := range keys {
		r.said[key] = true
		_, ok := r.meta[key]
		there = there || ok
	}
	return there
}

// dim is one dimension that a tensor should have; n < 0 takes any.
type dim struct {
	name string
	n    int
}

func free(name string) dim { return dim{name, -1} }

func wanted(dims []dim) string {
	parts := make([]string, len(dims))
	for i, d := range dims {
		if parts[i] = d.name; d.n >= 0 {
			parts[i] = strings.TrimSpace(d.name + " " + strconv.Itoa(d.n))
		}
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// types lists element types, for tensor.
func types(d ...checkpoint.DType) []checkpoint.DType { return d }

var floatTypes = types(checkpoint.F32, checkpoint.BF16, checkpoint.F16)

// tensor is a tensor of one of these types and of this shape; its absence is a fault.
func (r *reader) tensor(name string, of []checkpoint.DType, dims ...dim) checkpoint.Tensor {
	t, ok := r.optional(name, of, dims...)
	if !ok {
		r.failf("tensor %s is missing", name)
	}
	return t
}

// fits reports whether a shape is one that was wanted.
func fits(shape checkpoint.Shape, dims []dim) bool {
	return slices.EqualFunc(shape, dims, func(n int, d dim) bool { return d.n < 0 || d.n == n })
}

// optional is tensor for one that may be absent.
func (r *reader) optional(name string, of []checkpoint.DType, dims ...dim) (checkpoint.Tensor, bool) {
	r.seen[name] = true
	t, ok := r.file.Tensor(name)
	if !ok || r.err != nil {
		return checkpoint.Tensor{}, false
	}
	if !slices.Contains(of, t.DType) {
		names := make([]string, len(of))
		for i, d := range of {
			names[i] = d.String()
		}
		r.failf("tensor %s is %v %v, wanted %s %s", name, t.Shape, t.DType, wanted(dims), strings.Join(names, " or "))
		return checkpoint.Tensor{}, false
	}
	if !fits(t.Shape, dims) {
		r.failf("tensor %s is %v, wanted %s", name, t.Shape, wanted(dims))
		return checkpoint.Tensor{}, false
	}
	return t, true
}

// properties are the metadata keys that say what some case computes.
var properties = []string{
	"heads", "nope", "rope", "v", "latent", "page", "layers", "layer", "epsilon", "scale", "mask", "act_quant",
	"act_block_q", "act_block_latent", "k_block", "n_block", "rope_style", "max_seq_len", "form", "cache", "cache_group",
	"index_kind", "fold_shared_index", "topk_per", "d_v", "extra.page", "extra.cache", "extra.cache_group", "extra.topk_per",
	"checkpoint", "module", "steps",
}

// known faults a file with tensors that nobody asked for, and with properties that nobody
// did: what a case means by them it cannot be passing.
func (r *reader) known() {
	for _, key := range properties {
		if value, ok := r.meta[key]; ok && !r.said[key] {
			r.failf("metadata %s is %q, which has no meaning in this case of op %s", key, value, r.meta["op"])
		}
	}
	for _, name := range r.file.Names() {
		if !r.seen[name] {
			r.failf("tensor %s has no place in a case of op %s", name, r.meta["op"])
		}
	}
}

// floats is a tensor of F32.
func (r *reader) floats(name string, dims ...dim) []float32 {
	return r.valuesOf(r.tensor(name, types(checkpoint.F32), dims...))
}

// optionalFloats is floats, nil for a tensor that is not there. An empty tensor is not nil.
func (r *reader) optionalFloats(name string, dims ...dim) []float32 {
	t, ok := r.optional(name, types(checkpoint.F32), dims...)
	if !ok {
		return nil
	}
	if x := r.valuesOf(t); x != nil {
		return x
	}
	return []float32{}
}

func (r *reader) valuesOf(t checkpoint.Tensor) []float32 {
	if r.err != nil {
		return nil
	}
	x, err := t.F32s()
	if err != nil {
		r.failf("%w", err)
	}
	return x
}

// ints is a tensor of I32.
func (r *reader) ints(name string, dims ...dim) []int32 {
	return r.intsOf(r.tensor(name, types(checkpoint.I32), dims...))
}

func (r *reader) intsOf(t checkpoint.Tensor) []int32 {
	if r.err != nil {
		return nil
	}
	x, err := t.I32s()
	if err != nil {
		r.failf("%w", err)
	}
	return x
}

// rows is a tensor of F32, BF16 or F16 as the library takes it.
func (r *reader) rows(t checkpoint.Tensor) mla.Rows {
	if r.err != nil {
		return mla.Rows{}
	}
	if t.DType == checkpoint.F32 {
		return mla.RowsF32(r.valuesOf(t))
	}
	bits, err := t.U16s()
	if err != nil {
		r.failf("%w", err)
	}
	if t.DType == checkpoint.BF16 {
		return mla.RowsBF16(bits)
	}
	return mla.RowsF16(bits)
}

// tolerances are those of an output: rounded to the type of q, and before that.
type tolerances struct {
	out tolerance
	f32 *tolerance // nil if the file has none
}

func (r *reader) tolerances() tolerances {
	t := tolerances{out: tolerance{r.float("abs"), r.float("rel"), r.float("cos")}}
	if r.has("abs_f32", "rel_f32", "cos_f32") {
		t.f32 = &tolerance{r.float("abs_f32"), r.float("rel_f32"), r.float("cos_f32")}
	}
	return t
}

// named is a pair like lse_abs and lse_rel.
func (r *reader) named(name string) tolerance {
	return tolerance{abs: r.float(name + "_abs"), rel: r.float(name + "_rel"), cos: math.Inf(1)}
}
