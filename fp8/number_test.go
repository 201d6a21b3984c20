package fp8_test

import (
	"encoding/csv"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
)

// records are the rows of a file in testdata, without its header.
func records(t *testing.T, name string, rows, columns int) [][]string {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	require.NoError(t, err)
	defer f.Close()
	all, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	require.Len(t, all, rows+1)
	require.Len(t, all[0], columns)
	return all[1:]
}

func hex(t *testing.T, s string) uint32 {
	u, err := strconv.ParseUint(s, 16, 32)
	require.NoError(t, err)
	return uint32(u)
}

// number is what the four formats have in common, for tables.
type number interface {
	Float32() float32
	Bits() uint8
	IsNaN() bool
	IsInf(sign int) bool
	IsFinite() bool
	IsNormal() bool
	Signbit() bool
	fmt.Stringer
}

var formats = []struct {
	name     string
	of       func(code uint8) number
	from     func(x float32, o fp8.Overflow) uint8
	smallest float64 // the smallest normal value
}{
	{"E4M3", func(c uint8) number { return fp8.E4M3(c) },
		func(x float32, o fp8.Overflow) uint8 { return fp8.E4M3FromFloat32(x, o).Bits() }, 0x1p-6},
	{"E5M2", func(c uint8) number { return fp8.E5M2(c) },
		func(x float32, o fp8.Overflow) uint8 { return fp8.E5M2FromFloat32(x, o).Bits() }, 0x1p-14},
	{"E4M3FNUZ", func(c uint8) number { return fp8.E4M3FNUZ(c) },
		func(x float32, o fp8.Overflow) uint8 { return fp8.E4M3FNUZFromFloat32(x, o).Bits() }, 0x1p-7},
	{"E5M2FNUZ", func(c uint8) number { return fp8.E5M2FNUZ(c) },
		func(x float32, o fp8.Overflow) uint8 { return fp8.E5M2FNUZFromFloat32(x, o).Bits() }, 0x1p-15},
}

func TestDecodeFile(t *testing.T) {
	for i, row := range records(t, "fp8_decode.csv", 256, 9) {
		code := uint8(hex(t, row[0]))
		require.Equal(t, uint8(i), code)
		for f, format := range formats {
			got, want := format.of(code).Float32(), hex(t, row[2+2*f])
			assert.Equal(t, want, math.Float32bits(got), "%s %02X", format.name, code)
			v, err := strconv.ParseFloat(row[1+2*f], 64)
			require.NoError(t, err)
			assert.True(t, v == float64(got) || math.IsNaN(v) && got != got, "%s %02X is %v, want %v", format.name, code, got, v)
		}
	}
}

func TestEncodeFile(t *testing.T) {
	rules := []fp8.Overflow{fp8.Saturate, fp8.SaturateKeepInf, fp8.NoSaturate}
	for _, row := range records(t, "fp8_encode.csv", 2406, 13) {
		x := math.Float32frombits(hex(t, row[0]))
		for column, cell := range row[1:] {
			format, rule := formats[column/3], rules[column%3]
			if got, want := format.from(x, rule), uint8(hex(t, cell)); got != want {
				t.Errorf("%s of %s (%v), rule %d: %02X, want %02X", format.name, row[0], x, rule, got, want)
			}
		}
	}
}

func TestE8M0File(t *testing.T) {
	for i, row := range records(t, "e8m0_decode.csv", 256, 3) {
		c := fp8.E8M0(i)
		assert.Equal(t, uint8(hex(t, row[0])), c.Bits())
		assert.Equal(t, hex(t, row[2]), math.Float32bits(c.Float32()), "%02X", i)
		assert.Equal(t, i == 255, c.IsNaN())
		assert.Equal(t, i != 255, c.IsFinite())
		assert.Equal(t, i != 255, c.IsNormal())
		assert.False(t, c.IsInf(0) || c.Signbit())
		if i != 255 {
			exponent, err := strconv.Atoi(row[1])
			require.NoError(t, err)
			assert.Equal(t, math.Ldexp(1, exponent), float64(c.Float32()))
			assert.Equal(t, c, fp8.E8M0FromFloat32(c.Float32()))
		}
	}
	assert.Equal(t, "0.5", fp8.E8M0(126).String())
	assert.Equal(t, "NaN", fp8.E8M0(255).String())
	assert.Equal(t, fp8.E8M0(128), fp8.E8M0FromFloat32(1.5))
}

// Every code says of itself what its value says, and comes back from it.
func TestEveryCode(t *testing.T) {
	for _, format := range formats {
		for c := range 256 {
			n := format.of(uint8(c))
			v := float64(n.Float32())
			name := fmt.Sprintf("%s %02X", format.name, c)
			abs := math.Abs(v)
			finite := !math.IsNaN(v) && !math.IsInf(v, 0)
			assert.Equal(t, uint8(c), n.Bits(), name)
			assert.Equal(t, math.IsNaN(v), n.IsNaN(), name)
			assert.Equal(t, math.IsInf(v, 0), n.IsInf(0), name)
			assert.Equal(t, math.IsInf(v, 1), n.IsInf(1), name)
			assert.Equal(t, math.IsInf(v, -1), n.IsInf(-1), name)
			assert.Equal(t, finite, n.IsFinite(), name)
			assert.Equal(t, finite && abs >= format.smallest, n.IsNormal(), name)
			assert.Equal(t, c >= 128, n.Signbit(), name)
			assert.Equal(t, strconv.FormatFloat(v, 'g', -1, 32), n.String(), name)
			if !n.IsNaN() {
				assert.Equal(t, uint8(c), format.from(n.Float32(), fp8.NoSaturate), name)
			}
		}
	}
}

func TestPairs(t *testing.T) {
	values := []float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}
	value := func(nibble int) float32 {
		return float32(math.Copysign(float64(values[nibble&7]), float64(7-nibble)))
	}
	wide := make([]float32, 512)
	codes := make([]fp8.E2M1x2, 256)
	for c := range 256 {
		p := fp8.E2M1x2(c)
		codes[c] = p
		first, second := p.Float32()
		require.Equal(t, math.Float32bits(value(c&15)), math.Float32bits(first), "%02X", c)
		require.Equal(t, math.Float32bits(value(c>>4)), math.Float32bits(second), "%02X", c)
		require.Equal(t, p, fp8.E2M1x2FromFloat32(first, second))
		s1, s2 := p.Signbit()
		require.Equal(t, []bool{c&8 != 0, c&128 != 0}, []bool{s1, s2})
		require.False(t, p.IsNaN() || p.IsInf(0))
		require.Equal(t, uint8(c), p.Bits())
	}
	assert.Equal(t, "[1.5 -6]", fp8.E2M1x2FromFloat32(1.5, -100).String())

	require.Equal(t, 512, fp8.E2M1ToFloat32s(wide, codes))
	back := make([]fp8.E2M1x2, 256)
	require.Equal(t, 512, fp8.E2M1FromFloat32s(back, wide))
	assert.Equal(t, codes, back)
	assert.Equal(t, 4, fp8.E2M1ToFloat32s(wide[:5], codes))
	assert.Equal(t, 4, fp8.E2M1FromFloat32s(back, wide[:5]))
}

func TestSlices(t *testing.T) {
	checkSlices[fp8.E4M3](t, 0)
	checkSlices[fp8.E5M2](t, 1)
	checkSlices[fp8.E4M3FNUZ](t, 2)
	checkSlices[fp8.E5M2FNUZ](t, 3)
}

func checkSlices[T fp8.Float](t *testing.T, format int) {
	f := formats[format]
	x := []float32{0, 1, -2.3, 1e-6, 300, -1e9, float32(math.Inf(1)), float32(math.NaN())}
	for _, o := range []fp8.Overflow{fp8.Saturate, fp8.SaturateKeepInf, fp8.NoSaturate} {
		c := make([]T, len(x))
		require.Equal(t, len(x), fp8.FromFloat32s(c, x, o))
		wide := make([]float32, len(x))
		require.Equal(t, len(x), fp8.ToFloat32s(wide, c))
		for i := range x {
			assert.Equal(t, f.from(x[i], o), uint8(c[i]), "%s of %v, rule %d", f.name, x[i], o)
			assert.True(t, kerneltest.SameBits(f.of(uint8(c[i])).Float32(), wide[i]))
		}
	}
	assert.Equal(t, 2, fp8.FromFloat32s(make([]T, 2), x, fp8.Saturate))
	assert.Equal(t, 3, fp8.ToFloat32s(make([]float32, 3), make([]T, 5)))
	assert.Zero(t, fp8.ToFloat32s[T](nil, nil))
}

func TestCast(t *testing.T) {
	type code uint8
	raw := []code{0x38, 0xC0}
	c := fp8.Cast[fp8.E4M3](raw)
	require.Len(t, c, 2)
	assert.Equal(t, float32(1), c[0].Float32())
	c[1] = 0x7E
	assert.Equal(t, code(0x7E), raw[1], "the memory is shared")
	assert.Equal(t, []byte{0x38, 0x7E}, fp8.Cast[byte](c))
	assert.Empty(t, fp8.Cast[fp8.E8M0]([]byte(nil)))
}

func TestElem(t *testing.T) {
	names := []string{"e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "bf16", "f16", "f32"}
	sizes := []int{1, 1, 1, 1, 2, 2, 4}
	for i, name := range names {
		assert.Equal(t, name, fp8.Elem(i).String())
		assert.Equal(t, sizes[i], fp8.Elem(i).Size())
	}
	assert.Equal(t, "Elem(99)", fp8.Elem(99).String())
}
