package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

// format8 is an 8-bit format as its definition reads: a sign, an exponent, a
// mantissa, and a table of what is special.
type format8 struct {
	name     string
	mant     int
	bias     int
	nan      func(c uint8) bool
	inf      uint8 // 0: none
	max      uint8
	overflow float64 // |x| from here on overflows; the float32 below does not
	fnuz     bool
	decode   func(uint8) float32
	encode   func(float32, ref.Overflow) uint8
}

func onlyNegativeZero(c uint8) bool { return c == 0x80 }

var formats8 = []format8{
	{"E4M3", 3, 7, func(c uint8) bool { return c&0x7F == 0x7F }, 0, 0x7E,
		float64(math.Nextafter32(464, 1000)), false, ref.E4M3ToF32, ref.F32ToE4M3},
	{"E5M2", 2, 15, func(c uint8) bool { return c&0x7F > 0x7C }, 0x7C, 0x7B,
		61440, false, ref.E5M2ToF32, ref.F32ToE5M2},
	{"E4M3FNUZ", 3, 8, onlyNegativeZero, 0, 0x7F,
		248, true, ref.E4M3FNUZToF32, ref.F32ToE4M3FNUZ},
	{"E5M2FNUZ", 2, 16, onlyNegativeZero, 0, 0x7F,
		61440, true, ref.E5M2FNUZToF32, ref.F32ToE5M2FNUZ},
}

// value is the value of a code in float64.
func (f format8) value(c uint8) float64 {
	switch {
	case f.nan(c):
		return math.NaN()
	case f.inf != 0 && c&0x7F == f.inf:
		return math.Inf(1 - 2*int(c>>7))
	}
	exp, frac := int(c&0x7F)>>f.mant, float64(int(c)&(1<<f.mant-1))/float64(int(1)<<f.mant)
	v := math.Ldexp(frac, 1-f.bias)
	if exp > 0 {
		v = math.Ldexp(1+frac, exp-f.bias)
	}
	if c>>7 != 0 {
		v = -v
	}
	return v
}

// code is the encoding by search: the finite code nearest to x, of two the even
// one, and the rules for everything that is none.
func (f format8) code(x float64, o ref.Overflow) uint8 {
	sign := uint8(0)
	if math.Signbit(x) {
		sign = 0x80
	}
	nan := sign | 0x7F
	if f.fnuz {
		nan = 0x80
	}
	switch {
	case math.IsNaN(x):
		return nan
	case math.IsInf(x, 0) && f.fnuz && o == ref.SaturateKeepInf:
		return nan
	case math.Abs(x) >= f.overflow && o != ref.NoSaturate:
		return sign | f.max
	case math.Abs(x) >= f.overflow && f.inf != 0:
		return sign | f.inf
	case math.Abs(x) >= f.overflow:
		return nan
	}
	best, least := uint8(0), math.Abs(x)
	for c := uint8(1); c <= f.max; c++ {
		here := math.Abs(f.value(c) - math.Abs(x))
		if here < least || here == least && c%2 == 0 {
			best, least = c, here
		}
	}
	if best == 0 && f.fnuz {
		return 0
	}
	return sign | best
}

func TestDecode8(t *testing.T) {
	for _, f := range formats8 {
		for c := range 256 {
			got, want := f.decode(uint8(c)), f.value(uint8(c))
			if math.IsNaN(want) {
				assert.Equal(t, uint32(0x7FC00000), math.Float32bits(got), "%s %02X", f.name, c)
				continue
			}
			assert.Equal(t, math.Float64bits(want), math.Float64bits(float64(got)), "%s %02X", f.name, c)
		}
	}
}

// Every code, every midpoint between two, their float32 neighbours, and values
// of every size.
func TestEncode8(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, f := range formats8 {
		xs := []float32{0, math.MaxFloat32, math.SmallestNonzeroFloat32, float32(math.Inf(1)), math.Float32frombits(0x7F800001), math.Float32frombits(0x7FFFFFFF)}
		for c := range uint8(0x80) {
			v := f.value(c)
			if next := f.value(c + 1); c < f.max && next > v {
				xs = around(xs, float32((v+next)/2))
			}
			if v-v == 0 {
				xs = around(xs, float32(v))
			}
		}
		xs = around(xs, float32(f.overflow))
		for range 256 {
			xs = append(xs, math.Float32frombits(r.Uint32()))
		}
		for i, x := range xs {
			if testing.Short() && i%4 != 1 {
				continue
			}
			for _, x := range []float32{x, -x} {
				for _, o := range []ref.Overflow{ref.Saturate, ref.SaturateKeepInf, ref.NoSaturate} {
					if got, want := f.encode(x, o), f.code(float64(x), o); got != want {
						t.Errorf("%s of %v (%08X), rule %d: %02X, want %02X", f.name, x, math.Float32bits(x), o, got, want)
					}
				}
			}
		}
	}
}

func around(xs []float32, x float32) []float32 {
	return append(xs, math.Nextafter32(x, float32(math.Inf(-1))), x, math.Nextafter32(x, float32(math.Inf(1))))
}

func TestE8M0(t *testing.T) {
	for c := range 255 {
		x := ref.E8M0ToF32(uint8(c))
		require.Equal(t, math.Ldexp(1, c-127), float64(x))
		require.Equal(t, uint8(c), ref.F32ToE8M0(x))
		if c < 254 {
			require.Equal(t, uint8(c+1), ref.F32ToE8M0(math.Nextafter32(x, math.MaxFloat32)), "just above %v", x)
		}
	}
	assert.Equal(t, uint32(0x7FC00000), math.Float32bits(ref.E8M0ToF32(0xFF)))
	for _, c := range []struct {
		x    float32
		want uint8
	}{
		{0, 0}, {math.Float32frombits(1 << 31), 0}, {math.SmallestNonzeroFloat32, 0}, {math.MaxFloat32, 0xFE},
		{float32(math.Inf(1)), 0xFF}, {-1, 0xFF}, {float32(math.NaN()), 0xFF}, {float32(math.Inf(-1)), 0xFF}, {3, 129},
	} {
		assert.Equal(t, c.want, ref.F32ToE8M0(c.x), "%v", c.x)
	}
}

func TestE2M1(t *testing.T) {
	values := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	for c, v := range values {
		assert.Equal(t, math.Float32bits(v), math.Float32bits(ref.E2M1ToF32(uint8(c))))
		assert.Equal(t, math.Float32bits(v)|1<<31, math.Float32bits(ref.E2M1ToF32(uint8(c|0xF8))))
		assert.Equal(t, uint8(c), ref.F32ToE2M1(v))
		assert.Equal(t, uint8(c|8), ref.F32ToE2M1(math.Float32frombits(math.Float32bits(v)|1<<31)))
		if c < 7 {
			mid := (v + values[c+1]) / 2
			even := uint8(c + c%2)
			assert.Equal(t, even, ref.F32ToE2M1(mid), "%v", mid)
			assert.Equal(t, uint8(c), ref.F32ToE2M1(math.Nextafter32(mid, 0)), "below %v", mid)
			assert.Equal(t, uint8(c+1), ref.F32ToE2M1(math.Nextafter32(mid, 9)), "above %v", mid)
		}
	}
	assert.Equal(t, uint8(7), ref.F32ToE2M1(float32(math.Inf(1))))
	assert.Equal(t, uint8(7), ref.F32ToE2M1(float32(math.NaN())))
	assert.Equal(t, uint8(15), ref.F32ToE2M1(-math.MaxFloat32))
	assert.Equal(t, uint8(0), ref.F32ToE2M1(math.SmallestNonzeroFloat32))
}

// f16 is the value of a binary16 in float64.
func f16(u uint16) float64 {
	exp, frac := int(u>>10&0x1F), float64(u&0x3FF)/1024
	v := math.Ldexp(frac, -14)
	switch {
	case exp == 0x1F && frac == 0:
		v = math.Inf(1)
	case exp == 0x1F:
		v = math.NaN()
	case exp > 0:
		v = math.Ldexp(1+frac, exp-15)
	}
	if u>>15 != 0 {
		v = -v
	}
	return v
}

// nearestF16 walks to the nearest binary16: the neighbour above 65504 counts as
// 2^16, which stands for Inf.
func nearestF16(x float64) uint16 {
	sign := uint16(0)
	if math.Signbit(x) {
		sign = 0x8000
	}
	x = math.Abs(x)
	lo, hi := uint16(0), uint16(0x7C00) // f16(lo) <= x <= f16(hi)
	for hi-lo > 1 {
		if mid := (lo + hi) / 2; f16(mid) <= x {
			lo = mid
		} else {
			hi = mid
		}
	}
	top := f16(hi)
	if hi == 0x7C00 {
		top = 0x1p16
	}
	if d, u := x-f16(lo), top-x; u < d || u == d && hi%2 == 0 {
		return sign | hi
	}
	return sign | lo
}

func TestF16(t *testing.T) {
	check := func(x float32) {
		if got, want := ref.F32ToF16(x), nearestF16(float64(x)); got != want {
			t.Fatalf("F32ToF16(%v = %08X) = %04X, want %04X", x, math.Float32bits(x), got, want)
		}
	}
	for u := range 1 << 16 {
		c := uint16(u)
		x, want := ref.F16ToF32(c), f16(c)
		if math.IsNaN(want) {
			// Sign and payload stay, the quiet bit is set; and so on the way back.
			quiet := uint32(c&0x8000)<<16 | 0x7FC00000 | uint32(c&0x3FF)<<13
			if math.Float32bits(x) != quiet || ref.F32ToF16(x) != c|0x0200 {
				t.Fatalf("NaN %04X becomes %08X and %04X", c, math.Float32bits(x), ref.F32ToF16(x))
			}
			continue
		}
		if math.Float64bits(want) != math.Float64bits(float64(x)) || ref.F32ToF16(x) != c {
			t.Fatalf("%04X is %v, want %v, and goes back to %04X", c, x, want, ref.F32ToF16(x))
		}
		if testing.Short() && u%64 > 1 {
			continue
		}
		if up := f16(c + 1); up-up == 0 && up != want && c != 0x7FFF {
			for _, near := range around(nil, float32((want+up)/2)) {
				check(near)
			}
		}
	}
	for _, x := range around(around(nil, 65520), 0x1p-25) {
		check(x)
		check(-x)
	}
	r := rand.New(rand.NewPCG(3, 3))
	for range 1 << 12 {
		if x := math.Float32frombits(r.Uint32()); x == x {
			check(x)
		}
	}
	for _, u := range []uint32{0x7F800001, 0x7FFFFFFF, 0xFF801FFF, 0xFFC02000, 0x7FA00000} {
		assert.Equal(t, uint16(u>>16&0x8000|0x7E00|u>>13&0x3FF), ref.F32ToF16(math.Float32frombits(u)), "%08X", u)
	}
}

// bf16 is tested over all inputs in the package bf16; here only that NaN, ties
// and the end of the range are what they should be.
func TestBF16(t *testing.T) {
	for _, c := range []struct {
		u    uint32
		want uint16
	}{
		{0x3F808000, 0x3F80}, {0x3F818000, 0x3F82}, {0x3F808001, 0x3F81}, {0x7F7F7FFF, 0x7F7F}, {0x7F7F8000, 0x7F80},
		{0xFF7F8000, 0xFF80}, {0x7F800000, 0x7F80}, {0x7F800001, 0x7FC0}, {0xFFFFFFFF, 0xFFFF}, {0xFFA10000, 0xFFE1},
		{0x00008000, 0x0000}, {0x00018000, 0x0002}, {0x80000001, 0x8000},
	} {
		assert.Equal(t, c.want, ref.F32ToBF16(math.Float32frombits(c.u)), "%08X", c.u)
	}
	for u := range 1 << 16 {
		if got := math.Float32bits(ref.BF16ToF32(uint16(u))); got != uint32(u)<<16 {
			t.Fatalf("%04X becomes %08X", u, got)
		}
	}
}

// The conversions of slices are the loops that they say they are, whatever the
// length, and leave the rest of dst alone.
func TestConvertSlices(t *testing.T) {
	bytes, halves := make([]byte, 256), make([]uint16, 256)
	floats := make([]float32, 256)
	for i := range bytes {
		bytes[i], halves[i] = byte(i), uint16(i*257)
		floats[i] = float32(math.Ldexp(float64(i)-100.3, i%32-16))
	}
	floats[17], floats[18] = float32(math.NaN()), float32(math.Inf(-1))

	for _, n := range []int{0, 1, 7, 16, 33, 255} {
		for _, c := range []struct {
			name  string
			slice func(dst []float32)
			one   func(i int) float32
		}{
			{"WidenBF16", func(d []float32) { ref.WidenBF16(d, halves[:n]) }, func(i int) float32 { return ref.BF16ToF32(halves[i]) }},
			{"WidenF16", func(d []float32) { ref.WidenF16(d, halves[:n]) }, func(i int) float32 { return ref.F16ToF32(halves[i]) }},
			{"WidenE4M3", func(d []float32) { ref.WidenE4M3(d, bytes[:n]) }, func(i int) float32 { return ref.E4M3ToF32(bytes[i]) }},
			{"WidenE5M2", func(d []float32) { ref.WidenE5M2(d, bytes[:n]) }, func(i int) float32 { return ref.E5M2ToF32(bytes[i]) }},
			{"WidenE4M3FNUZ", func(d []float32) { ref.WidenE4M3FNUZ(d, bytes[:n]) }, func(i int) float32 { return ref.E4M3FNUZToF32(bytes[i]) }},
			{"WidenE5M2FNUZ", func(d []float32) { ref.WidenE5M2FNUZ(d, bytes[:n]) }, func(i int) float32 { return ref.E5M2FNUZToF32(bytes[i]) }},
			{"WidenE4M3Scaled", func(d []float32) { ref.WidenE4M3Scaled(d, bytes[:n], 0.3) }, func(i int) float32 { return ref.E4M3ToF32(bytes[i]) * 0.3 }},
		} {
			dst := filled(256, float32(-77))
			c.slice(dst)
			for i, got := range dst {
				want := float32(-77)
				if i < n {
					want = c.one(i)
				}
				require.Equal(t, math.Float32bits(want), math.Float32bits(got), "%s, n %d, place %d", c.name, n, i)
			}
		}
		for _, c := range []struct {
			name  string
			slice func(dst []byte)
			one   func(x float32) uint8
		}{
			{"NarrowE4M3", func(d []byte) { ref.NarrowE4M3(d, floats[:n]) }, func(x float32) uint8 { return ref.F32ToE4M3(x, ref.Saturate) }},
			{"NarrowE5M2", func(d []byte) { ref.NarrowE5M2(d, floats[:n]) }, func(x float32) uint8 { return ref.F32ToE5M2(x, ref.Saturate) }},
			{"NarrowE4M3FNUZ", func(d []byte) { ref.NarrowE4M3FNUZ(d, floats[:n]) }, func(x float32) uint8 { return ref.F32ToE4M3FNUZ(x, ref.Saturate) }},
			{"NarrowE5M2FNUZ", func(d []byte) { ref.NarrowE5M2FNUZ(d, floats[:n]) }, func(x float32) uint8 { return ref.F32ToE5M2FNUZ(x, ref.Saturate) }},
			{"NarrowE4M3Scaled", func(d []byte) { ref.NarrowE4M3Scaled(d, floats[:n], 0.3) }, func(x float32) uint8 { return ref.F32ToE4M3(x/0.3, ref.Saturate) }},
		} {
			dst := filled(256, byte(0x55))
			c.slice(dst)
			for i, got := range dst {
				want := byte(0x55)
				if i < n {
					want = c.one(floats[i])
				}
				require.Equal(t, want, got, "%s, n %d, place %d", c.name, n, i)
			}
		}
		for _, c := range []struct {
			name  string
			slice func(dst []uint16)
			one   func(x float32) uint16
		}{
			{"NarrowBF16", func(d []uint16) { ref.NarrowBF16(d, floats[:n]) }, ref.F32ToBF16},
			{"NarrowF16", func(d []uint16) { ref.NarrowF16(d, floats[:n]) }, ref.F32ToF16},
		} {
			dst := filled(256, uint16(0x5555))
			c.slice(dst)
			for i, got := range dst {
				want := uint16(0x5555)
				if i < n {
					want = c.one(floats[i])
				}
				require.Equal(t, want, got, "%s, n %d, place %d", c.name, n, i)
			}
		}
	}
}

func filled[T any](n int, v T) []T {
	s := make([]T, n)
	for i := range s {
		s[i] = v
	}
	return s
}

// TestWidenGroups compares every value with its code times its scale, for groups of all lengths.
func TestWidenGroups(t *testing.T) {
	r := kerneltest.Rand(1)
	for _, group := range []int{1, 2, 3, 7, 16, 32, 99} {
		for n := range 40 {
			src := make([]byte, n)
			for i := range src {
				src[i] = byte(r.Uint32())
			}
			scales := kerneltest.Classes[0].Make(r, (2*n+group-1)/group)
			one, two := make([]float32, n), make([]float32, 2*n)
			ref.WidenE4M3Groups(one, src, scales, group)
			ref.WidenE2M1Groups(two, src, scales, group)
			for i, c := range src {
				want := []float32{
					ref.E4M3ToF32(c) * scales[i/group],
					ref.E2M1ToF32(c&15) * scales[2*i/group],
					ref.E2M1ToF32(c>>4) * scales[(2*i+1)/group],
				}
				kerneltest.Equal(t, want, []float32{one[i], two[2*i], two[2*i+1]}, "group %d, n %d, code %d", group, n, i)
			}
		}
	}
}

// TestNarrowScaledNaN has the quotients that are NaN, whose signs are those of what is divided.
func TestNarrowScaledNaN(t *testing.T) {
	special := []uint32{0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x3F800000, 0xBF800000}
	for _, u := range special {
		for _, scale := range special {
			x, s := math.Float32frombits(u), math.Float32frombits(scale)
			want := ref.F32ToE4M3(x/s, ref.Saturate)
			if x/s != x/s {
				want = uint8(u>>24)&0x80 | 0x7F
			}
			var got [1]byte
			ref.NarrowE4M3Scaled(got[:], []float32{x}, s)
			assert.Equal(t, want, got[0], "%08X / %08X", u, scale)
		}
	}
}
