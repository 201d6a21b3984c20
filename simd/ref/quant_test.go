package ref_test

import (
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

// quotient is a/b with one rounding, by exact arithmetic: b is not 0, neither is Inf or NaN.
func quotient(a, b float32) float32 {
	exact := new(big.Rat).Quo(new(big.Rat).SetFloat64(float64(a)), new(big.Rat).SetFloat64(float64(b)))
	q, _ := exact.Float32()
	return q
}

// nearestE4M3 is the code nearest to x, the even one of two, by looking at all: |x| <= 448.
func nearestE4M3(x float64) byte {
	best := math.Inf(1)
	var code byte
	for c := range 0x7F {
		d := math.Abs(math.Abs(x) - float64(ref.E4M3ToF32(byte(c))))
		if d < best || d == best && c%2 == 0 {
			best, code = d, byte(c)
		}
	}
	if math.Signbit(x) {
		code |= 0x80
	}
	return code
}

// naiveQuant is QuantDynamic of one group as docs/arithmetic.md has it, under "Quantised activations".
func naiveQuant(x []float32) (codes []byte, scale float32) {
	amax := 0.0
	for _, v := range x {
		amax = math.Max(amax, math.Abs(float64(v))) // NaN wins unless there is an Inf
		if v != v {
			return slices.Repeat([]byte{0x7F}, len(x)), nan
		}
	}
	scale = quotient(float32(math.Min(amax, 1200)), 448)
	recip := float32(0)
	if scale != 0 {
		recip = quotient(1, scale)
	}
	if math.IsInf(float64(recip), 0) {
		recip = 0
	}
	for _, v := range x {
		q := float64(float32(float64(v) * float64(recip))) // exact in float64, then rounded
		codes = append(codes, nearestE4M3(math.Max(-448, math.Min(q, 448))))
	}
	return codes, scale
}

// compareQuant holds QuantDynamic to naiveQuant in fenced arrays.
func compareQuant(t *testing.T, name string, x []float32, group int) {
	t.Helper()
	var want []byte
	var wantScales []float32
	for part := range slices.Chunk(x, group) {
		codes, scale := naiveQuant(part)
		want, wantScales = append(want, codes...), append(wantScales, scale)
	}
	for _, at := range kerneltest.Edges {
		in := kerneltest.FencedCopy(t, x, at)
		codes, scales := kerneltest.Fenced[byte](t, len(x), at), kerneltest.Fenced[float32](t, len(wantScales), at)
		ref.QuantDynamic(codes, scales, in, group)
		kerneltest.Equal(t, wantScales, scales, "%s, %v: scales", name, at)
		for i := range codes {
			require.Equal(t, want[i], codes[i], "%s, %v: code %d of %g", name, at, i, x[i])
		}
		kerneltest.Equal(t, x, in, "%s, %v: x was written", name, at)
	}
}

func TestQuantDynamic(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(2, samples(12)) {
			n, group := pick(r, 0, 1, 5, 64, 130), pick(r, 1, 3, 16, 64, 128, math.MaxInt)
			compareQuant(t, fmt.Sprintf("n=%d group=%d", n, group), class.Make(r, n), group)
		}
	})
}

// TestQuantDynamicEdges has groups at every turn of the recipe.
func TestQuantDynamicEdges(t *testing.T) {
	const tiny, subnormal = 0x1p-149, 0x1p-127
	for _, c := range []struct {
		name  string
		x     []float32
		scale float32
		codes []byte // nil: the oracle alone
	}{
		{"zeros keep their signs", []float32{0, negZero}, 0, []byte{0x00, 0x80}},
		{"smallest values", []float32{tiny, -tiny}, 0, []byte{0x00, 0x80}},
		{"a scale that is too small", []float32{448 * 0x1p-128, -tiny}, 0x1p-128, []byte{0x00, 0x80}},
		{"the first scale that is not", []float32{448 * (0x1p-128 + tiny), -tiny}, 0x1p-128 + tiny, []byte{0x7E, 0x80}},
		{"a coarse scale", []float32{1e-36, 0.6e-36, subnormal}, quotient(1e-36, 448), nil},
		{"1e-38", []float32{1e-38, 1e-39}, quotient(1e-38, 448), nil},
		{"1e-30", []float32{1e-30, -1e-31}, quotient(1e-30, 448), nil},
		{"scale 1", []float32{448, -448, 1}, 1, []byte{0x7E, 0xFE, 0x38}},
		{"below the cap", []float32{math.Nextafter32(1200, 0), 100}, quotient(math.Nextafter32(1200, 0), 448), nil},
		{"at the cap", []float32{1200, -1200}, quotient(1200, 448), []byte{0x7E, 0xFE}},
		{"beyond the cap", []float32{1201, 1e30, -1200, 600}, quotient(1200, 448), []byte{0x7E, 0x7E, 0xFE, 0x76}},
		{"Inf counts as 1200", []float32{inf, -inf, 600, 0, negZero}, quotient(1200, 448), []byte{0x7E, 0xFE, 0x76, 0x00, 0x80}},
		{"largest values", []float32{math.MaxFloat32, -math.MaxFloat32}, quotient(1200, 448), []byte{0x7E, 0xFE}},
		{"NaN", []float32{1, nan, 0}, nan, []byte{0x7F, 0x7F, 0x7F}},
		{"NaN first, Inf later", []float32{nan, inf}, nan, []byte{0x7F, 0x7F}},
		{"Inf first, -NaN later", []float32{inf, math.Float32frombits(0xFFC00001)}, nan, []byte{0x7F, 0x7F}},
	} {
		compareQuant(t, c.name, c.x, len(c.x))
		codes, scale := make([]byte, len(c.x)), make([]float32, 1)
		ref.QuantDynamic(codes, scale, c.x, 99)
		assert.True(t, kerneltest.SameBits(c.scale, scale[0]), "%s: scale %g, want %g", c.name, scale[0], c.scale)
		if c.codes != nil {
			assert.Equal(t, c.codes, codes, c.name)
		}
	}
	codes, scales := []byte{9, 9, 9, 9, 9}, []float32{9, 9, 9}
	ref.QuantDynamic(codes, scales, []float32{nan, 1, 448, -1, 0}, 2)
	kerneltest.Equal(t, []float32{nan, 1, 0}, scales, "a NaN stays in its group")
	assert.Equal(t, []byte{0x7F, 0x7F, 0x7E, 0xB8, 0x00}, codes)
}

// TestQuantDynamicTies has every value half-way between two codes, and its neighbours, under scales that are powers of
// two, so that nothing but the last step rounds.
func TestQuantDynamicTies(t *testing.T) {
	for _, scale := range []float32{1, 2, 0x1p-100} {
		x := []float32{448 * scale}
		for c := range byte(0x7E) {
			half := float32(ref.E4M3ToF32(c)+ref.E4M3ToF32(c+1)) / 2
			for _, v := range []float32{half, math.Nextafter32(half, 0), math.Nextafter32(half, 1e9)} {
				x = append(x, float32(v*scale), -float32(v*scale))
			}
		}
		compareQuant(t, fmt.Sprint("scale ", scale), x, len(x))
	}
}

// TestQuantProductVectors is a product of two quantised operands: pieces of the groups of both, and one scale of both.
func TestQuantProductVectors(t *testing.T) {
	all := vectors(t)
	x, w, sx, sw := all["gemm_sxsw.x"], all["gemm_sxsw.weight_values"], all["gemm_sxsw.x_scale"], all["gemm_sxsw.weight_scale"]
	m, n, k := x.shape[0], w.shape[0], x.shape[1]
	group, step := k/sx.shape[1], k/sw.shape[1]
	panel := make([]float32, ref.Lanes*k)
	ref.PackRows(panel, len(panel), w.values, k, n, k)
	y := make([]float32, m*n)
	for i := range m {
		for k0 := 0; k0 < k; k0 += group { // 64 divides 128 and 256
			scale := make([]float32, n)
			for j := range scale {
				scale[j] = float32(sx.values[i*sx.shape[1]+k0/group] * sw.values[k0/step])
			}
			ref.PartScale(y[i*n:], n, x.values[i*k+k0:], k, panel[k0*ref.Lanes:], len(panel), scale, 1, n, group)
		}
	}
	kerneltest.Equal(t, all["gemm_sxsw.y"].values, y, "gemm_sxsw")
}
