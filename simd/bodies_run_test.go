package simd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

// kernel is a row of the workshop's list: its definition, the door's function, and what it does with its slices.
type kernel struct {
	name      string
	ref, door any
	uses      []use
}

type use struct {
	name          string
	reads, writes bool
}

// body is an implementation of a kernel for an instruction set, and the feature that it needs beyond it.
type body struct {
	kernel, level, needs string
	fn                   any
}

// trial makes the arguments of one call, of random shape and of data of a class. Slices are just as long as the call may
// reach; those that are given twice are the same memory to the kernel as well.
type trial func(r *rand.Rand, class kerneltest.Class) []any

// families are the trials of the kernels, by name.
var families = []map[string]trial{convertTrials, packTrials, partTrials, gemmTrials, softmaxTrials, valueTrials, foldTrials, rowsTrials, limitsTrials, pairTrials}

func trialOf(name string) trial {
	for _, f := range families {
		if t := f[name]; t != nil {
			return t
		}
	}
	return nil
}

// exact names the kernels that promise the bits of a NaN.
var exact = []string{"WidenBF16", "WidenF16", "WidenE4M3", "WidenE5M2", "WidenE4M3FNUZ", "WidenE5M2FNUZ"}

// TestBodies holds every body that this machine runs, and the door's choice among them, to the definition of its kernel,
// bit for bit, on random shapes and all classes of data, in buffers that touch a page that may not be touched, at their
// end and at their beginning. Inputs must stay as they are.
func TestBodies(t *testing.T) {
	samples := 12
	if testing.Short() {
		samples = 3
	}
	ran := 0
	for _, k := range kernels {
		try := trialOf(k.name)
		if !assert.NotNil(t, try, "kernel %s has no trial", k.name) {
			continue
		}
		for _, b := range append([]body{{k.name, simd.Level(), "door", k.door}}, bodies...) {
			if b.kernel != k.name || !runs(b) {
				continue
			}
			if b.needs != "door" {
				ran++
			}
			t.Run(fmt.Sprintf("%s/%s%s", k.name, b.level, b.needs), func(t *testing.T) {
				for i, class := range kerneltest.Classes {
					r := kerneltest.Rand(uint64(i))
					for range samples {
						compareBody(t, k, b, class.Name, try(r, class))
					}
				}
			})
		}
	}
	if simd.Levels()[0] != simd.Generic && ran == 0 {
		t.Error("no body ran")
	}
}

// runs tells whether this machine can run a body.
func runs(b body) bool {
	if !slices.Contains(simd.Levels(), b.level) {
		return false
	}
	return b.needs == "" || b.needs == "door" || slices.Contains(simd.Features(), "AVX512"+b.needs)
}

func compareBody(t *testing.T, k kernel, b body, class string, args []any) {
	t.Helper()
	want := copies(t, args, kerneltest.Back)
	wantResults := reflect.ValueOf(k.ref).Call(want)
	for _, at := range kerneltest.Edges {
		got := copies(t, args, at)
		gotResults := reflect.ValueOf(b.fn).Call(got)
		where := fmt.Sprintf("%s, %v%s", class, at, shape(args))
		for i := range want {
			if want[i].Kind() == reflect.Slice {
				sameSlices(t, k, want[i], got[i], fmt.Sprintf("%s: argument %d", where, i))
			}
		}
		for i := range wantResults {
			a, b := wantResults[i], gotResults[i]
			if a.Kind() == reflect.Float32 {
				require.True(t, kerneltest.SameBits(float32(a.Float()), float32(b.Float())), "%s: result %v, want %v", where, b, a)
				continue
			}
			require.Equal(t, a.Interface(), b.Interface(), "%s: result", where)
		}
	}
	uses := k.uses
	for i, a := range want {
		if a.Kind() != reflect.Slice {
			continue
		}
		if u := uses[0]; !u.writes && !aliased(args, i) {
			require.Equal(t, bitsOf(reflect.ValueOf(args[i])), bitsOf(a), "the definition wrote to %s", u.name)
		}
		uses = uses[1:]
	}
}

// copies are the arguments of a call of their own: slices in fenced memory, the same one for the same slice.
func copies(t *testing.T, args []any, at kerneltest.Edge) (values []reflect.Value) {
	for i, a := range args {
		if j := first(args, i); j < i {
			values = append(values, values[j])
			continue
		}
		switch a := a.(type) {
		case []float32:
			values = append(values, fencedOr(t, a, at))
		case []uint16:
			values = append(values, fencedOr(t, a, at))
		case []byte:
			values = append(values, fencedOr(t, a, at))
		case []int32:
			values = append(values, fencedOr(t, a, at))
		case []uint64:
			values = append(values, fencedOr(t, a, at))
		default:
			values = append(values, reflect.ValueOf(a))
		}
	}
	return values
}

func fencedOr[T any](t *testing.T, x []T, at kerneltest.Edge) reflect.Value {
	if x == nil {
		return reflect.ValueOf(x)
	}
	return reflect.ValueOf(kerneltest.FencedCopy(t, x, at))
}

// first is the first argument that is the same memory as argument i.
func first(args []any, i int) int {
	p := pointer(args[i])
	for j := range i {
		if p != nil && pointer(args[j]) == p {
			return j
		}
	}
	return i
}

func aliased(args []any, i int) bool {
	p := pointer(args[i])
	for j := range args {
		if j != i && p != nil && pointer(args[j]) == p {
			return true
		}
	}
	return false
}

func pointer(a any) unsafe.Pointer {
	if v := reflect.ValueOf(a); v.Kind() == reflect.Slice && v.Len() > 0 {
		return v.UnsafePointer()
	}
	return nil
}

func sameSlices(t *testing.T, k kernel, want, got reflect.Value, where string) {
	t.Helper()
	if k.name == "SoftmaxTilePairs" {
		quietBF16(want)
		quietBF16(got)
	}
	w, ok := want.Interface().([]float32)
	if !ok || slices.Contains(exact, k.name) {
		if !reflect.DeepEqual(bitsOf(want), bitsOf(got)) {
			require.Equal(t, bitsOf(want), bitsOf(got), where)
		}
		return
	}
	kerneltest.Equal(t, w, got.Interface().([]float32), "%s", where)
}

// quietBF16 makes every NaN among probabilities in bf16 the same one: they come from sums, where a NaN is a class.
func quietBF16(v reflect.Value) {
	p, _ := v.Interface().([]uint16)
	for i, u := range p {
		if u&0x7FFF > 0x7F80 {
			p[i] = 0x7FC0
		}
	}
}

// bitsOf is a slice whose elements compare by their bits.
func bitsOf(v reflect.Value) any {
	x, ok := v.Interface().([]float32)
	if !ok {
		return v.Interface()
	}
	u := make([]uint32, len(x))
	for i, f := range x {
		u[i] = math.Float32bits(f)
	}
	return u
}

// shape tells the numbers of a call, and the lengths of its slices.
func shape(args []any) string {
	s := " ("
	for i, a := range args {
		if i > 0 {
			s += ", "
		}
		if v := reflect.ValueOf(a); v.Kind() == reflect.Slice {
			s += fmt.Sprintf("[%d]", v.Len())
		} else {
			s += fmt.Sprint(a)
		}
	}
	return s + ")"
}

// lengths are what vectors and their tails may get wrong.
var lengths = []int{0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 23, 24, 31, 32, 33, 40, 47, 63, 64, 65, 100, 127, 128, 129, 200, 257}

// oneOf is one of the numbers.
func oneOf(r *rand.Rand, of ...int) int { return of[r.IntN(len(of))] }

// extent is the length of an array of rows of n values with a stride.
func extent(rows, stride, n int) int {
	if rows <= 0 || n <= 0 {
		return 0
	}
	return (rows-1)*stride + n
}

// panelCount is the number of panels of n lanes.
func panelCount(n int) int { return (n + simd.Lanes - 1) / simd.Lanes }
