package fp8_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
)

func TestMatrixErrors(t *testing.T) {
	codes := make([]byte, 6)
	ones := fp8.ScalesF32([]float32{1, 1})
	f32 := func(s ...float32) fp8.Scales { return fp8.ScalesF32(s) }
	make23 := func(s fp8.Scales, blockRows, blockCols int) func() (fp8.Matrix, error) {
		return func() (fp8.Matrix, error) { return fp8.New(fp8.ElemE4M3, 2, 3, codes, s, blockRows, blockCols) }
	}
	whole, err := fp8.New(fp8.ElemE4M3, 2, 3, codes, fp8.Scales{}, 0, 0)
	require.NoError(t, err)
	slice := func(r0, r1 int) func() (fp8.Matrix, error) {
		return func() (fp8.Matrix, error) { return whole.Slice(r0, r1) }
	}
	for _, c := range []struct {
		name string
		make func() (fp8.Matrix, error)
		want error
		says string
	}{
		{"bf16 codes", func() (fp8.Matrix, error) { return fp8.New(fp8.ElemBF16, 2, 3, codes, ones, 1, 3) }, fp8.ErrElem, "bf16"},
		{"no rows", func() (fp8.Matrix, error) { return fp8.New(fp8.ElemE4M3, 0, 3, nil, ones, 1, 3) }, fp8.ErrShape, "0x3"},
		{"negative cols", func() (fp8.Matrix, error) { return fp8.New(fp8.ElemE4M3, 2, -3, codes, ones, 1, 3) }, fp8.ErrShape, "2x-3"},
		{"huge", func() (fp8.Matrix, error) { return fp8.New(fp8.ElemE4M3, math.MaxInt, 3, codes, ones, 1, 3) }, fp8.ErrShape, "int"},
		{"too few codes", func() (fp8.Matrix, error) { return fp8.New(fp8.ElemE4M3, 2, 3, codes[:5], ones, 1, 3) }, fp8.ErrShape, "codes has 5 values, want 2x3 = 6"},
		{"too many codes", func() (fp8.Matrix, error) { return fp8.New(fp8.ElemE4M3, 1, 3, codes, f32(1), 1, 3) }, fp8.ErrShape, "codes has 6 values, want 1x3 = 3"},
		{"too few scales", make23(f32(1), 1, 3), fp8.ErrShape, "scales has 1 values, want 2x1 = 2"},
		{"too many scales", make23(ones, 2, 3), fp8.ErrShape, "scales has 2 values, want 1x1 = 1"},
		{"empty scales", make23(fp8.ScalesF32(nil), 2, 3), fp8.ErrShape, "scales has 0 values"},
		{"block of no rows", make23(ones, 0, 3), fp8.ErrShape, "0x3"},
		{"block of no columns", make23(ones, 1, -1), fp8.ErrShape, "1x-1"},
		{"NaN", make23(f32(1, float32(math.NaN())), 1, 3), fp8.ErrScale, "scale 1 is NaN"},
		{"Inf", make23(f32(float32(math.Inf(1)), 1), 1, 3), fp8.ErrScale, "scale 0 is +Inf"},
		{"negative", make23(f32(1, -1e-30), 1, 3), fp8.ErrScale, "scale 1 is -1e-30"},
		{"bf16 NaN", make23(fp8.ScalesBF16([]uint16{0x3F80, 0x7FC0}), 1, 3), fp8.ErrScale, "scale 1 is NaN"},
		{"bf16 Inf", make23(fp8.ScalesBF16([]uint16{0x7F80, 0}), 1, 3), fp8.ErrScale, "scale 0 is +Inf"},
		{"bf16 negative", make23(fp8.ScalesBF16([]uint16{0xBF80, 0}), 1, 3), fp8.ErrScale, "scale 0 is -1"},
		{"e8m0 NaN", make23(fp8.ScalesE8M0([]byte{0, 255}), 1, 3), fp8.ErrScale, "scale 1 is NaN"},
		{"PlainBF16", func() (fp8.Matrix, error) { return fp8.PlainBF16(2, 2, make([]uint16, 3)) }, fp8.ErrShape, "x has 3 values, want 2x2 = 4"},
		{"PlainF16", func() (fp8.Matrix, error) { return fp8.PlainF16(2, 2, make([]uint16, 3)) }, fp8.ErrShape, "x has 3 values, want 2x2 = 4"},
		{"PlainF32", func() (fp8.Matrix, error) { return fp8.PlainF32(2, 0, []float32{}) }, fp8.ErrShape, "2x0"},
		{"empty slice", slice(1, 1), fp8.ErrShape, "rows 1 to 1 of a matrix of 2x3"},
		{"slice before", slice(-1, 1), fp8.ErrShape, "-1"},
		{"slice beyond", slice(0, 3), fp8.ErrShape, "0 to 3"},
		{"slice of nothing", func() (fp8.Matrix, error) { return fp8.Matrix{}.Slice(0, 1) }, fp8.ErrShape, "0x0"},
		{"Quantize to f32", func() (fp8.Matrix, error) { return fp8.Quantize(fp8.ElemF32, 1, 1, []float32{1}, 1, 1) }, fp8.ErrElem, "f32"},
		{"Quantize too few", func() (fp8.Matrix, error) { return fp8.Quantize(fp8.ElemE4M3, 1, 2, []float32{1}, 1, 1) }, fp8.ErrShape, "x has 1 values, want 1x2 = 2"},
		{"Quantize without block", func() (fp8.Matrix, error) { return fp8.Quantize(fp8.ElemE4M3, 1, 1, []float32{1}, 0, 1) }, fp8.ErrShape, "0x1"},
	} {
		_, err := c.make()
		assert.ErrorIs(t, err, c.want, c.name)
		assert.ErrorContains(t, err, c.says, c.name)
	}
	assert.ErrorIs(t, whole.Dequantize(make([]float32, 5)), fp8.ErrShape)
	assert.ErrorContains(t, whole.Dequantize(make([]float32, 7)), "dst has 7 values, want 2x3 = 6")
	for _, at := range [][2]int{{-1, 0}, {2, 0}, {0, -1}, {0, 3}} {
		assert.PanicsWithValue(t, fmt.Sprintf("fp8: index [%d, %d] out of range of 2x3", at[0], at[1]), func() { whole.At(at[0], at[1]) })
	}
}

// A zero scale is allowed, and blocks larger than the matrix are one block.
func TestMatrixEdges(t *testing.T) {
	m, err := fp8.New(fp8.ElemE4M3, 1, 2, []byte{0x38, 0x7F}, fp8.ScalesF32([]float32{0}), math.MaxInt, math.MaxInt)
	require.NoError(t, err)
	got := make([]float32, 2)
	require.NoError(t, m.Dequantize(got))
	assert.Zero(t, got[0])
	assert.True(t, got[1] != got[1], "NaN stays NaN, under a zero scale too")
	m, err = fp8.New(fp8.ElemE4M3, 1, 1, []byte{0x38}, fp8.ScalesE8M0([]byte{0}), 1, 1)
	require.NoError(t, err)
	assert.Equal(t, float32(0x1p-127), m.At(0, 0))
	assert.False(t, fp8.Matrix{}.Scaled())
}

// want is the definition of a matrix: codes and scales in row-major order.
type want struct {
	rows, cols, blockRows, blockCols int
	codes                            []byte
	scales                           fp8.Scales
}

func (w want) code(i, j int) float32 { return fp8.E4M3(w.codes[i*w.cols+j]).Float32() }

func (w want) scale(i, j int) float32 {
	if w.scales.Len() == 0 {
		return 1
	}
	return w.scales.Float32(i/w.blockRows*blocks(w.cols, w.blockCols) + j/w.blockCols)
}

// Values, codes and scales of matrices, of their slices, transposes, slices of
// transposes and slices of slices, where blocks straddle every border.
func TestMatrixViews(t *testing.T) {
	r := newRand(1)
	for _, c := range []struct {
		kind                             string
		rows, cols, blockRows, blockCols int
	}{
		{"f32", 1, 1, 1, 1}, {"f32", 13, 10, 4, 3}, {"bf16", 13, 10, 5, 10}, {"e8m0", 13, 10, 13, 10},
		{"f32", 13, 10, 1, 10}, {"bf16", 13, 10, 1, 1}, {"none", 13, 10, 0, 0}, {"e8m0", 9, 17, 64, 8},
	} {
		w := want{c.rows, c.cols, c.blockRows, c.blockCols, someCodes(r, fp8.ElemE4M3, c.rows*c.cols), fp8.Scales{}}
		if c.kind != "none" {
			w.scales = someScales(r, c.kind, blocks(c.rows, c.blockRows)*blocks(c.cols, c.blockCols))
		}
		m, err := fp8.New(fp8.ElemE4M3, w.rows, w.cols, w.codes, w.scales, w.blockRows, w.blockCols)
		require.NoError(t, err)
		assert.Equal(t, c.kind != "none", m.Scaled())
		assert.Equal(t, fp8.ElemE4M3, m.Elem())
		checkView(t, m, w, 0, 0, false)
		mt := m.Transpose()
		checkView(t, mt, w, 0, 0, true)
		for r0 := 0; r0 < w.rows; r0++ {
			s := must(t)(m.Slice(r0, w.rows))
			checkView(t, s, w, r0, 0, false)
			st := s.Transpose()
			checkView(t, st, w, r0, 0, true)
			c0 := st.Rows() / 2
			checkView(t, must(t)(st.Slice(c0, st.Rows())), w, r0, c0, true)
			half := s.Rows() / 2
			checkView(t, must(t)(s.Slice(half, s.Rows())), w, r0+half, 0, false)
		}
	}
}

func must(t *testing.T) func(m fp8.Matrix, err error) fp8.Matrix {
	return func(m fp8.Matrix, err error) fp8.Matrix {
		t.Helper()
		require.NoError(t, err)
		return m
	}
}

// checkView compares m with the part of w from (r0, c0) on, transposed or not.
func checkView(t *testing.T, m fp8.Matrix, w want, r0, c0 int, transposed bool) {
	t.Helper()
	rows, cols, blockRows, blockCols := w.rows-r0, w.cols-c0, w.blockRows, w.blockCols
	if transposed {
		rows, cols, blockRows, blockCols = cols, rows, blockCols, blockRows
	}
	require.Equal(t, []int{rows, cols}, []int{m.Rows(), m.Cols()})
	if m.Scaled() {
		require.Equal(t, []int{blockRows, blockCols}, []int{m.BlockRows(), m.BlockCols()})
	}
	dst := make([]float32, rows*cols)
	require.NoError(t, m.Dequantize(dst))
	for i := range rows {
		for j := range cols {
			wi, wj := r0+i, c0+j
			if transposed {
				wi, wj = r0+j, c0+i
			}
			code, scale := w.code(wi, wj), w.scale(wi, wj)
			value := float32(code * scale)
			if m.Code(i, j) != code || m.Scale(i, j) != scale || m.At(i, j) != value || dst[i*cols+j] != value {
				t.Fatalf("[%d, %d] of a view at (%d, %d), transposed %v, is %v * %v = %v and %v, want %v * %v = %v",
					i, j, r0, c0, transposed, m.Code(i, j), m.Scale(i, j), m.At(i, j), dst[i*cols+j], code, scale, value)
			}
		}
	}
}

func TestPlain(t *testing.T) {
	h := []uint16{0x3C00, 0xBC00, 0x4000, 0x7C00, 0, 0x3555}
	m := must(t)(fp8.PlainF16(2, 3, h))
	mt := m.Transpose()
	got, gotT := make([]float32, 6), make([]float32, 6)
	require.NoError(t, m.Dequantize(got))
	require.NoError(t, mt.Dequantize(gotT))
	inf := float32(math.Inf(1))
	assert.Equal(t, []float32{1, -1, 2, inf, 0, 0.33325195}, got)
	assert.Equal(t, []float32{1, inf, -1, 0, 2, 0.33325195}, gotT)
	assert.Equal(t, float32(1), m.Scale(0, 0))

	m = must(t)(fp8.PlainBF16(1, 2, []uint16{0x3F80, 0xC000}))
	assert.Equal(t, []float32{1, -2}, []float32{m.At(0, 0), m.At(0, 1)})
	m = must(t)(fp8.PlainF32(1, 2, []float32{0.1, 7}))
	assert.Equal(t, []float32{0.1, 7}, []float32{m.At(0, 0), m.At(0, 1)})
	assert.Equal(t, fp8.ElemF32, m.Elem())
}

func TestQuantize(t *testing.T) {
	r := newRand(5)
	relative := map[fp8.Elem]float64{fp8.ElemE4M3: 0x1p-4, fp8.ElemE4M3FNUZ: 0x1p-4, fp8.ElemE5M2: 0x1p-3, fp8.ElemE5M2FNUZ: 0x1p-3}
	// Half the distance of two subnormal codes, as a part of the largest code.
	absolute := map[fp8.Elem]float64{fp8.ElemE4M3: 0x1p-10 / 448, fp8.ElemE4M3FNUZ: 0x1p-11 / 240, fp8.ElemE5M2: 0x1p-17 / 57344, fp8.ElemE5M2FNUZ: 0x1p-18 / 57344}
	for _, elem := range codeElems {
		for _, size := range []float64{1, 1e-30, 1e30} {
			for _, block := range [][2]int{{1, 20}, {11, 20}, {4, 8}, {1, 1}, {99, 99}} {
				x := normal(r, 11*20, size)
				m := must(t)(fp8.Quantize(elem, 11, 20, x, block[0], block[1]))
				require.Equal(t, []int{block[0], block[1]}, []int{m.BlockRows(), m.BlockCols()})
				for i := range 11 {
					for j := range 20 {
						want, got := float64(x[i*20+j]), float64(m.At(i, j))
						amax := 0.0
						for i2 := i / block[0] * block[0]; i2 < min(11, (i/block[0]+1)*block[0]); i2++ {
							for j2 := j / block[1] * block[1]; j2 < min(20, (j/block[1]+1)*block[1]); j2++ {
								amax = max(amax, math.Abs(float64(x[i2*20+j2])))
							}
						}
						bound := max(math.Abs(want)*relative[elem], amax*absolute[elem]) * (1 + 1e-6)
						if math.Abs(got-want) > bound {
							t.Fatalf("%v in blocks of %v: %v became %v, the bound is %v", elem, block, want, got, bound)
						}
					}
				}
			}
		}
	}
}

func TestQuantizeSpecial(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, elem := range codeElems {
		m := must(t)(fp8.Quantize(elem, 1, 5, []float32{2, nan, -inf, 0, -1}, 1, 5))
		assert.Equal(t, float32(2), m.At(0, 0), "the largest finite value is exact")
		assert.True(t, m.At(0, 1) != m.At(0, 1))
		assert.Equal(t, float32(-2), m.At(0, 2), "Inf saturates")
		assert.Zero(t, m.At(0, 3))
		assert.Equal(t, float32(-1), m.At(0, 4))

		m = must(t)(fp8.Quantize(elem, 1, 2, []float32{0, 0}, 1, 2))
		assert.Equal(t, []float32{0, 0}, []float32{m.At(0, 0), m.At(0, 1)})
		assert.True(t, m.Scale(0, 0) > 0)
		// Subnormal values lose bits, never more than a subnormal code has.
		tiny := math.Float32frombits(3)
		m = must(t)(fp8.Quantize(elem, 1, 1, []float32{tiny}, 1, 1))
		assert.LessOrEqual(t, m.At(0, 0), float32(0x1p-126))
		// The largest finite value neither overflows nor shrinks by more than a rounding.
		m = must(t)(fp8.Quantize(elem, 1, 1, []float32{math.MaxFloat32}, 1, 1))
		assert.InEpsilon(t, math.MaxFloat32, float64(m.Code(0, 0))*float64(m.Scale(0, 0)), 1e-6)
	}
}

// The kv_b_proj of GLM: a head has 192 + 256 = 448 rows, blocks of 128 rows begin
// every third of them in another head.
func TestHeadsAcrossBlocks(t *testing.T) {
	const heads, nope, v, latent = 4, 192, 256, 18
	r := newRand(9)
	rows := heads * (nope + v)
	w := want{rows, latent, 128, 16, someCodes(r, fp8.ElemE4M3, rows*latent), someScales(r, "f32", blocks(rows, 128)*2)}
	m := must(t)(fp8.New(fp8.ElemE4M3, w.rows, w.cols, w.codes, w.scales, 128, 16))
	for h := range heads {
		head := must(t)(m.Slice(h*(nope+v), (h+1)*(nope+v)))
		k, val := must(t)(head.Slice(0, nope)), must(t)(head.Slice(nope, nope+v))
		uk := k.Transpose()
		for i := range nope {
			for j := range latent {
				at := h*(nope+v) + i
				for _, same := range [][2]float32{
					{w.scale(at, j), k.Scale(i, j)}, {w.scale(at, j), uk.Scale(j, i)}, {w.code(at, j), uk.Code(j, i)},
					{w.scale(at+nope, j), val.Scale(i, j)},
				} {
					if same[0] != same[1] {
						t.Fatalf("head %d, row %d, column %d: %v, want %v", h, i, j, same[1], same[0])
					}
				}
			}
		}
	}
}
