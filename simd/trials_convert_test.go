package simd_test

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

var convertTrials = map[string]trial{
	"WidenBF16":        widenTrial[uint16],
	"WidenF16":         widenTrial[uint16],
	"WidenE4M3":        widenTrial[byte],
	"WidenE5M2":        widenTrial[byte],
	"WidenE4M3FNUZ":    widenTrial[byte],
	"WidenE5M2FNUZ":    widenTrial[byte],
	"WidenE4M3Scaled":  widenScaledTrial,
	"WidenE4M3Groups":  widenGroupsTrial(1),
	"WidenE2M1Groups":  widenGroupsTrial(2),
	"NarrowBF16":       narrowTrial(ref.BF16ToF32),
	"NarrowF16":        narrowTrial(ref.F16ToF32),
	"NarrowE4M3":       narrowTrial(ref.E4M3ToF32),
	"NarrowE5M2":       narrowTrial(ref.E5M2ToF32),
	"NarrowE4M3FNUZ":   narrowTrial(ref.E4M3FNUZToF32),
	"NarrowE5M2FNUZ":   narrowTrial(ref.E5M2FNUZToF32),
	"NarrowE4M3Scaled": narrowScaledTrial,
}

// convertLengths are lengths, those of rows of a cache among them.
var convertLengths = append([]int{511, 512, 576, 601}, lengths...)

// widenTrial draws any codes, and more of the smallest and the largest, where the special ones are.
func widenTrial[T byte | uint16](r *rand.Rand, _ kerneltest.Class) []any {
	src := make([]T, oneOf(r, convertLengths...))
	sign := ^(^T(0) >> 1)
	for i := range src {
		near := T(r.Uint32()) & (^T(0) >> 5) // of any sign, a 32nd of the codes
		switch r.IntN(4) {
		case 0:
			src[i] = near | T(r.IntN(2))*sign
		case 1:
			src[i] = ^near ^ T(r.IntN(2))*sign
		default:
			src[i] = T(r.Uint32())
		}
	}
	return []any{make([]float32, len(src)), src}
}

func widenScaledTrial(r *rand.Rand, class kerneltest.Class) []any {
	return append(widenTrial[byte](r, class), scaleOf(r, class))
}

// widenGroupsTrial draws groups as caches have them, others that vectors fit into or not, and some that are longer than
// all values. A byte holds some values.
func widenGroupsTrial(values int) trial {
	return func(r *rand.Rand, class kerneltest.Class) []any {
		src := widenTrial[byte](r, class)[1].([]byte)
		n := values * len(src)
		group := oneOf(r, 16, 32, 64, 128, 1+r.IntN(9), 8*(1+r.IntN(20)), 1+r.IntN(100), n+1+r.IntN(50), math.MaxInt-n)
		scales := make([]float32, min(n, (n-1)/group+1))
		for i := range scales {
			scales[i] = scaleOf(r, class)
		}
		return []any{make([]float32, n), src, scales, group}
	}
}

// scaleOf is a scale of the class, a common one, or one with which powers of two overflow.
func scaleOf(r *rand.Rand, class kerneltest.Class) float32 {
	switch r.IntN(4) {
	case 0:
		return blockScale
	case 1:
		return math.Float32frombits(uint32(0xF0+r.IntN(16))<<23 | r.Uint32()&0x807FFFFF)
	}
	return class.Value(r)
}

// narrowTrial mixes data of the class with values at the borders of a format, whose codes have the values that widen
// gives.
func narrowTrial[T byte | uint16](widen func(T) float32) trial {
	return func(r *rand.Rand, class kerneltest.Class) []any {
		src := class.Make(r, oneOf(r, convertLengths...))
		for i := range src {
			if r.IntN(2) == 0 {
				src[i] = border(r, widen)
			}
		}
		return []any{make([]T, len(src)), src}
	}
}

func narrowScaledTrial(r *rand.Rand, class kerneltest.Class) []any {
	args := narrowTrial(ref.E4M3ToF32)(r, class)
	scale := scaleOf(r, class)
	src := args[1].([]float32)
	if r.IntN(4) == 0 { // of which quotients are NaN
		scale = specialScales[r.IntN(len(specialScales))]
	}
	for i := range src {
		switch r.IntN(4) {
		case 0, 1:
			src[i] = float32(src[i] * scale)
		case 2:
			if r.IntN(8) == 0 {
				src[i] = specialScales[r.IntN(len(specialScales))]
			}
		}
	}
	return append(args, scale)
}

// specialScales are those whose quotients with each other are NaN, of both signs.
var specialScales = func() (x []float32) {
	for _, u := range []uint32{0, 0x7F800000, 0x7FC00000, 0x7FA00000} {
		x = append(x, math.Float32frombits(u), math.Float32frombits(u|1<<31))
	}
	return x
}()

// border is a value on which formats differ, or one that lies within an ulp of a code or half-way between two.
func border[T byte | uint16](r *rand.Rand, widen func(T) float32) float32 {
	if r.IntN(8) == 0 {
		u := formatBorders[r.IntN(len(formatBorders))]
		return math.Float32frombits(u | r.Uint32()&0x80000000)
	}
	c := T(r.Uint32())
	x := widen(c)
	if r.IntN(2) == 0 {
		x = float32(0.5*x) + float32(0.5*widen(c+1))
	}
	return math.Float32frombits(math.Float32bits(x) + uint32(r.IntN(3)) - 1)
}

// formatBorders are the bits of values where a format ends, and of every kind of NaN.
var formatBorders = func() (bits []uint32) {
	for _, x := range []float32{
		0, math.SmallestNonzeroFloat32, math.MaxFloat32, float32(math.Inf(1)),
		240, 248, 256, 448, 464, 480, 57344, 61440, 65504, 65520, 65536,
		0x1p-6, 0x1p-7, 0x1p-9, 0x1p-10, 0x1p-11, 0x1p-14, 0x1p-15, 0x1p-16, 0x1p-17, 0x1p-18, 0x1p-24, 0x1p-25,
	} {
		u := math.Float32bits(x)
		bits = append(bits, u, u+1, max(u, 1)-1)
	}
	return append(bits, 0x7F801FFF, 0x7F802000, 0x7F80FFFF, 0x7F810000, 0x7FBFFFFF, 0x7FC00000, 0x7FC00001, 0x7FFFFFFF)
}()

// TestWidenEverything holds all bodies of the widenings to their definitions on every value there is.
func TestWidenEverything(t *testing.T) {
	all16, all8 := everything[uint16](), everything[byte]()
	for _, k := range kernels {
		switch k.ref.(type) {
		case func([]float32, []uint16):
			sameOnAll[float32](t, k, all16)
		case func([]float32, []byte):
			sameOnAll[float32](t, k, all8)
		}
	}
}

func everything[T byte | uint16]() (all []T) {
	for v := range int(^T(0)) + 1 {
		all = append(all, T(v))
	}
	return all
}

// TestNarrowEverything holds all bodies of the narrowings to their definitions on all values of which the lower 9 bits
// are zero, and on as many others; the short test on those that bfloat16 has, and as many others.
func TestNarrowEverything(t *testing.T) {
	low := 9
	if testing.Short() {
		low = 16
	}
	const chunk = 1 << 16
	r, src := kerneltest.Rand(1), make([]float32, 2*chunk)
	for first := 0; first < 1<<(32-low); first += chunk {
		for i := range chunk {
			u := uint32(first+i) << low
			src[2*i] = math.Float32frombits(u)
			src[2*i+1] = math.Float32frombits(u | lowBits(r, low))
		}
		for _, k := range kernels {
			switch k.ref.(type) {
			case func([]uint16, []float32):
				sameOnAll[uint16](t, k, src)
			case func([]byte, []float32):
				sameOnAll[byte](t, k, src)
			}
		}
	}
}

// lowBits are n bits that are often next to zero.
func lowBits(r *rand.Rand, n int) uint32 {
	u := r.Uint32()
	switch u >> 30 {
	case 0:
		return 1
	case 1:
		return 1<<n - 1
	}
	return u & (1<<n - 1)
}

// sameOnAll compares the bodies of a conversion with its definition.
func sameOnAll[To, From byte | uint16 | float32](t *testing.T, k kernel, src []From) {
	t.Helper()
	want, got := make([]To, len(src)), make([]To, len(src))
	k.ref.(func([]To, []From))(want, src)
	for _, b := range bodies {
		if b.kernel != k.name || !runs(b) {
			continue
		}
		clear(got)
		b.fn.(func([]To, []From))(got, src)
		if bytes.Equal(bytesOf(want), bytesOf(got)) {
			continue
		}
		for i := range want {
			require.Equal(t, bytesOf(want[i:i+1]), bytesOf(got[i:i+1]), "%s/%s%s of %x", k.name, b.level, b.needs, bytesOf(src[i:i+1]))
		}
	}
}

// bytesOf is the memory of x, which has values.
func bytesOf[T byte | uint16 | float32](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), len(x)*int(unsafe.Sizeof(x[0])))
}
