package fp8_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestLevel(t *testing.T) { kerneltest.Level(t) }

var codeElems = []fp8.Elem{fp8.ElemE4M3, fp8.ElemE5M2, fp8.ElemE4M3FNUZ, fp8.ElemE5M2FNUZ}

func newRand(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 7)) }

func normal(r *rand.Rand, n int, size float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * size)
	}
	return x
}

// someCodes are n random finite codes of moderate size.
func someCodes(r *rand.Rand, elem fp8.Elem, n int) []byte {
	x := normal(r, n, 1)
	c := make([]byte, n)
	switch elem {
	case fp8.ElemE4M3:
		fp8.FromFloat32s(fp8.Cast[fp8.E4M3](c), x, fp8.Saturate)
	case fp8.ElemE5M2:
		fp8.FromFloat32s(fp8.Cast[fp8.E5M2](c), x, fp8.Saturate)
	case fp8.ElemE4M3FNUZ:
		fp8.FromFloat32s(fp8.Cast[fp8.E4M3FNUZ](c), x, fp8.Saturate)
	default:
		fp8.FromFloat32s(fp8.Cast[fp8.E5M2FNUZ](c), x, fp8.Saturate)
	}
	return c
}

// someScales are n scales of one of the kinds "f32", "bf16" and "e8m0"; "none" are
// the zero Scales.
func someScales(r *rand.Rand, kind string, n int) fp8.Scales {
	f, h, c := make([]float32, n), make([]uint16, n), make([]byte, n)
	for i := range n {
		f[i] = float32(math.Exp(r.NormFloat64()))
		h[i] = uint16(math.Float32bits(f[i]) >> 16)
		c[i] = byte(120 + r.IntN(14))
	}
	switch kind {
	case "f32":
		return fp8.ScalesF32(f)
	case "bf16":
		return fp8.ScalesBF16(h)
	case "e8m0":
		return fp8.ScalesE8M0(c)
	}
	return fp8.Scales{}
}

func blocks(n, block int) int {
	if block == 0 {
		return 1
	}
	return (n + block - 1) / block
}

// someMatrix is a matrix with random codes and scales.
func someMatrix(t testing.TB, r *rand.Rand, elem fp8.Elem, kind string, rows, cols, blockRows, blockCols int) fp8.Matrix {
	t.Helper()
	var m fp8.Matrix
	var err error
	switch elem {
	case fp8.ElemBF16, fp8.ElemF16:
		x := make([]uint16, rows*cols)
		for i := range x {
			x[i] = uint16(0x3800 + r.IntN(0x700) + r.IntN(2)<<15)
		}
		if m, err = fp8.PlainBF16(rows, cols, x); elem == fp8.ElemF16 {
			m, err = fp8.PlainF16(rows, cols, x)
		}
	case fp8.ElemF32:
		m, err = fp8.PlainF32(rows, cols, normal(r, rows*cols, 1))
	default:
		scales := someScales(r, kind, blocks(rows, blockRows)*blocks(cols, blockCols))
		m, err = fp8.New(elem, rows, cols, someCodes(r, elem, rows*cols), scales, blockRows, blockCols)
	}
	if err != nil {
		t.Fatal(err)
	}
	return m
}
