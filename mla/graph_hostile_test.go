package mla_test

import (
	"context"
	"encoding/binary"
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// fenced moves everything that a call reads or writes between pages that may not
// be touched.
func fenced(t testing.TB, a *mla.GraphArgs, at kerneltest.Edge) {
	t.Helper()
	for _, r := range []*mla.Rows{&a.Output, &a.Q, &a.KvInputFn.Rows, &a.FreqsCis, &a.KvNormGamma} {
		x := values(*r)
		switch r.Kind() {
		case fp8.ElemF32:
			*r = mla.RowsF32(kerneltest.FencedCopy(t, x, at))
		case fp8.ElemBF16:
			*r = mla.RowsBF16(kerneltest.Fenced[uint16](t, len(x), at))
			r.Narrow(0, x)
		}
	}
	for _, s := range []*mla.Scales{&a.WKScale, &a.WUkScale, &a.WUvScale} {
		*s = mla.ScalesF32(kerneltest.FencedCopy(t, scaleValues(*s), at))
	}
	for _, b := range []*[]byte{&a.WK, &a.WUk, &a.WUv, &a.KvCollection.Blocks.Data} {
		*b = kerneltest.FencedCopy(t, *b, at)
	}
	for _, u := range []*[]uint32{&a.InputRowOffsets, &a.BufferRowOffsets, &a.CacheOffsets, &a.KvCollection.CacheLengths, &a.KvCollection.LookupTable} {
		*u = kerneltest.FencedCopy(t, *u, at)
	}
	for _, f := range []*[]float32{&a.LSE, &a.MaxLogit} {
		*f = kerneltest.FencedCopy(t, *f, at)
	}
	if !a.SparseMla {
		return
	}
	for _, i := range []*[]int32{&a.DIndices, &a.TopkLengths, &a.ExtraDIndices, &a.ExtraTopkLengths} {
		*i = kerneltest.FencedCopy(t, *i, at)
	}
	for _, f := range []*[]float32{&a.AttnSink, &a.ExtraScales} {
		*f = kerneltest.FencedCopy(t, *f, at)
	}
	a.ExtraK.Blocks.Data = kerneltest.FencedCopy(t, a.ExtraK.Blocks.Data, at)
}

// TestGraphHostile gives the operator what no caller should, in memory that
// faults when anything beside it is touched: the answer or error of the contract
// comes, and no panic.
func TestGraphHostile(t *testing.T) {
	fill := func(x []int32, v ...int32) {
		for i := range x {
			x[i] = v[i%len(v)]
		}
	}
	garbage := []int32{math.MinInt32, math.MaxInt32, -2, 48, 47, 1 << 30, -1}
	for _, c := range []struct {
		name   string
		sparse bool
		change change
		err    error // nil: an answer
	}{
		{"nothing wrong", false, func(a *mla.GraphArgs) {}, nil},
		{"nothing wrong, sparse", true, func(a *mla.GraphArgs) {}, nil},
		{"indices all garbage", true, func(a *mla.GraphArgs) {
			fill(a.DIndices, garbage...)
			fill(a.ExtraDIndices, garbage...)
		}, nil},
		{"lengths past the stride", true, func(a *mla.GraphArgs) { fill(a.TopkLengths, math.MaxInt32, 6) }, nil},
		{"negative lengths", true, func(a *mla.GraphArgs) {
			fill(a.TopkLengths, math.MinInt32, -1)
			fill(a.ExtraTopkLengths, -1)
		}, nil},
		{"offsets decrease", false, func(a *mla.GraphArgs) { a.InputRowOffsets[1] = math.MaxUint32 }, mla.ErrShape},
		{"offsets overlap", false, func(a *mla.GraphArgs) { a.InputRowOffsets[2] = 1 }, mla.ErrShape},
		{"offsets beyond q", false, func(a *mla.GraphArgs) { a.InputRowOffsets[4] = 7 }, mla.ErrShape},
		{"offsets end at the most", false, func(a *mla.GraphArgs) { a.InputRowOffsets[4] = math.MaxUint32 }, mla.ErrShape},
		{"cached beyond the table", false, func(a *mla.GraphArgs) {
			a.KvCollection.CacheLengths[0] = 14
			a.BufferRowOffsets, a.CacheOffsets = nil, nil
		}, mla.ErrShape},
		{"cached beyond all", false, func(a *mla.GraphArgs) { a.KvCollection.CacheLengths[2] = math.MaxUint32 }, kvpaged.ErrPage},
		{"page that is missing", false, func(a *mla.GraphArgs) { a.KvCollection.LookupTable[0] = 13 }, kvpaged.ErrPage},
		{"page at the most", true, func(a *mla.GraphArgs) { a.KvCollection.LookupTable[5] = math.MaxUint32 }, nil}, // of no token
		{"page of minus one", true, func(a *mla.GraphArgs) { a.KvCollection.LookupTable[4] = math.MaxUint32 }, kvpaged.ErrPage},
		{"hole in sight", false, func(a *mla.GraphArgs) { a.KvCollection.LookupTable[0] = 12 }, mla.ErrUnmapped},
		{"slots shared", false, func(a *mla.GraphArgs) { a.KvCollection.LookupTable[4] = a.KvCollection.LookupTable[12] }, kvpaged.ErrShared},
		{"buffer rows decrease", false, func(a *mla.GraphArgs) { a.BufferRowOffsets[1] = math.MaxUint32 }, mla.ErrShape},
		{"cache offset at the most", false, func(a *mla.GraphArgs) { a.CacheOffsets[3] = math.MaxUint32 }, mla.ErrShape},
		{"weight scale NaN", false, func(a *mla.GraphArgs) { a.WKScale = nth(a.WKScale, float32(math.NaN())) }, mla.ErrWeights},
		{"weight scale negative", false, func(a *mla.GraphArgs) { a.WUkScale = nth(a.WUkScale, -1) }, mla.ErrWeights},
		{"weight scale infinite", false, func(a *mla.GraphArgs) { a.WUvScale = nth(a.WUvScale, float32(math.Inf(1))) }, mla.ErrWeights},
		{"weight scale 0", false, func(a *mla.GraphArgs) { a.WUvScale = nth(a.WUvScale, 0) }, nil},
		{"NaN codes", false, func(a *mla.GraphArgs) { a.WK[0], a.WUk[5], a.WUv[9] = 0x7F, 0xFF, 0x7F }, nil},
		{"extra scale infinite", true, func(a *mla.GraphArgs) { a.ExtraScales[0] = float32(math.Inf(-1)) }, nil},
		{"sinks infinite", true, func(a *mla.GraphArgs) { a.AttnSink[0], a.AttnSink[1] = float32(math.Inf(1)), float32(math.NaN()) }, nil},
		{"cache is NaN", false, func(a *mla.GraphArgs) {
			for i := range a.KvCollection.Blocks.Data {
				a.KvCollection.Blocks.Data[i] = 0xFF
			}
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, at := range kerneltest.Edges {
				for _, dtype := range []fp8.Elem{fp8.ElemF32, fp8.ElemBF16} {
					w := smallGraph()
					w.dtype = dtype
					a := w.args(t)
					if c.sparse {
						w.sparse(t, a)
					}
					fenced(t, a, at)
					c.change(a)
					err := mla.PrefillDecodeGraphFP8(context.Background(), a)
					if c.err == nil {
						require.NoError(t, err)
					} else {
						require.ErrorIs(t, err, c.err)
					}
				}
			}
		})
	}
}

// nth is scales with the third one changed.
func nth(s mla.Scales, v float32) mla.Scales { return mla.ScalesF32(with(scaleValues(s), 2, v)) }

// TestGraphUnselectedNaN: rows that no list selects may be NaN.
func TestGraphUnselectedNaN(t *testing.T) {
	w := smallGraph()
	a := w.sparse(t, w.args(t))
	a.ExtraK.Blocks.Data = slices.Clone(a.ExtraK.Blocks.Data)
	row := w.latent + w.rope
	for i := range 9 {
		if !slices.Contains(a.ExtraDIndices, int32(i)) {
			at := (i/3*2+1)*3*row + i%3*row // layer 1
			copy(a.ExtraK.Blocks.Data[at:at+row], slices.Repeat([]byte{0x7F}, row))
		}
	}
	for _, x := range runGraph(t, a).out {
		require.False(t, x != x) // the cache holds NaN wherever no row was written
	}
}

// FuzzGraphArgs mutates fields of a call, dense or sparse, in either compute, its activations
// quantised or not, and calls again on what the calls before prepared. Any error will do, a panic
// will not, and an answer is that of a call on which nothing was prepared.
func FuzzGraphArgs(f *testing.F) {
	f.Add([]byte("dense"))
	f.Add([]byte{1})
	for i := range 60 {
		f.Add([]byte{byte(i % 8), byte(i), 1, byte(7 * i), 3, byte(i + 60), 2, byte(i), 5, byte(i * 3), 0, 9, byte(i), 4})
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		in := &hostileBytes{data}
		w := smallGraph()
		a := w.args(t)
		mode := in.next()
		if mode&1 != 0 {
			w.sparse(t, a)
		}
		if mode&2 != 0 {
			a.Compute = mla.ComputeBF16
		}
		if mode&4 != 0 {
			a.ActQuant, a.ActBlockQ, a.ActBlockLatent = mla.ActDynamic, 8, 5
		}
		fields := leaves(reflect.ValueOf(a).Elem())
		for call := 0; call < 4 && (call == 0 || len(in.left) > 0); call++ {
			for n := in.next() % 4; n > 0; n-- {
				in.mutate(fields[int(in.next())%len(fields)])
			}
			fresh := unprepared(a)
			err := mla.PrefillDecodeGraphFP8(context.Background(), a)
			if err != nil && err.Error() == "" {
				t.Error("an error without words")
			}
			got := answer{values(a.Output), slices.Clone(a.LSE), slices.Clone(a.MaxLogit)}
			again := mla.PrefillDecodeGraphFP8(context.Background(), fresh)
			if (err == nil) != (again == nil) {
				t.Errorf("%v on what was prepared, %v on nothing", err, again)
			}
			if err == nil {
				sameBits(t, got, answer{values(fresh.Output), fresh.LSE, fresh.MaxLogit}, "on nothing prepared")
			}
			if err := fresh.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
}

// unprepared is the fields of a in GraphArgs that nobody has called.
func unprepared(a *mla.GraphArgs) *mla.GraphArgs {
	fresh := new(mla.GraphArgs)
	from, to := reflect.ValueOf(a).Elem(), reflect.ValueOf(fresh).Elem()
	for i := range from.NumField() {
		if from.Type().Field(i).IsExported() {
			to.Field(i).Set(from.Field(i))
		}
	}
	return fresh
}

// leaves are the fields of a struct that may be set, those of its structs too.
func leaves(v reflect.Value) []reflect.Value {
	switch v.Interface().(type) {
	case mla.Rows, mla.Scales, *mla.ExtraCache:
		return []reflect.Value{v}
	case *mla.Pool:
		return nil
	}
	if v.Kind() != reflect.Struct {
		return []reflect.Value{v}
	}
	var all []reflect.Value
	for i := range v.NumField() {
		if v.Type().Field(i).IsExported() {
			all = append(all, leaves(v.Field(i))...)
		}
	}
	return all
}

// hostileBytes makes values of fuzzed bytes.
type hostileBytes struct{ left []byte }

func (b *hostileBytes) next() byte {
	if len(b.left) == 0 {
		return 0
	}
	x := b.left[0]
	b.left = b.left[1:]
	return x
}

// number is a small number, an extreme one, or any.
func (b *hostileBytes) number() int64 {
	extremes := [...]int64{0, 1, -1, 2, math.MinInt32, math.MaxInt32, math.MaxUint32, math.MinInt64, math.MaxInt64, 1 << 30, 1 << 24}
	x := b.next()
	switch {
	case x < 128:
		return int64(x % 32)
	case x < 200:
		return extremes[int(x)%len(extremes)]
	}
	return int64(binary.LittleEndian.Uint64([]byte{b.next(), b.next(), b.next(), b.next(), b.next(), b.next(), b.next(), b.next()}))
}

func (b *hostileBytes) float() float32 {
	extremes := [...]float32{0, float32(math.Copysign(0, -1)), 1, -1, 1e-45, 1e38, -1e38, float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), 1e-6}
	if x := b.next(); x < 200 {
		return extremes[int(x)%len(extremes)]
	}
	return math.Float32frombits(uint32(b.number()))
}

// mutate gives a field another value.
func (b *hostileBytes) mutate(v reflect.Value) {
	switch p := v.Addr().Interface().(type) {
	case *mla.Rows:
		x := b.floats(values(*p))
		*p = typed([...]fp8.Elem{fp8.ElemF32, fp8.ElemBF16, fp8.ElemF16, p.Kind(), p.Kind()}[b.next()%5], x)
		return
	case *mla.Scales:
		*p = mla.ScalesF32(b.floats(scaleValues(*p)))
		as := [...]func(mla.Scales) mla.Scales{asBF16, asE8M0}
		if k := int(b.next() % 4); k < len(as) {
			*p = as[k](*p)
		}
		return
	case **mla.ExtraCache:
		x := mla.ExtraCache{Format: kvpaged.Format(b.next() % 16), Layer: int(b.number())}
		if *p != nil {
			x = **p
		}
		fields := leaves(reflect.ValueOf(&x).Elem())
		b.mutate(fields[int(b.next())%len(fields)])
		if *p = &x; b.next()%4 == 0 {
			*p = nil
		}
		return
	case *func(int, []float32):
		value := b.float()
		if *p = func(_ int, row []float32) { row[0] = value }; b.next()%2 == 0 {
			*p = nil
		}
		return
	}
	switch {
	case v.CanInt():
		v.SetInt(b.number())
	case v.CanUint():
		v.SetUint(uint64(b.number()))
	case v.CanFloat():
		v.SetFloat(float64(b.float()))
	case v.Kind() == reflect.Bool:
		v.SetBool(!v.Bool())
	case v.Kind() == reflect.String:
		names := [...]string{"", "cpu", "gpu", "null", "causal", "chunked:3", "chunked_causal:1", "sliding_window_causal:2",
			"sliding_window_noncausal:9223372036854775807", "chunked:-1", "chunked:"}
		v.SetString(names[int(b.next())%len(names)])
	case v.Kind() == reflect.Slice:
		b.mutateSlice(v)
	}
}

// mutateSlice changes an element of a copy, or makes the slice shorter, longer,
// empty or nil.
func (b *hostileBytes) mutateSlice(v reflect.Value) {
	if f, ok := v.Interface().([]float32); ok {
		v.Set(reflect.ValueOf(b.floats(f)))
		return
	}
	n := v.Len()
	c := reflect.AppendSlice(reflect.MakeSlice(v.Type(), 0, n), v)
	switch op := b.next() % 8; {
	case op == 0:
		c = reflect.Zero(v.Type())
	case op == 1:
		c = c.Slice(0, int(b.next())%(n+1))
	case op == 2:
		c = reflect.AppendSlice(c, v)
	case n > 0:
		b.mutate(c.Index(int(b.next()) % n))
	}
	v.Set(c)
}

func (b *hostileBytes) floats(x []float32) []float32 {
	x = slices.Clone(x)
	switch op := b.next() % 8; {
	case op == 0:
		return nil
	case op == 1:
		return x[:int(b.next())%(len(x)+1)]
	case op == 2:
		return append(x, x...)
	case len(x) > 0:
		x[int(b.next())%len(x)] = b.float()
	}
	return x
}
