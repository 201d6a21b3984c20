package fp8_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// inOrder is one output of a product, in the order of roundings of the package
// comment: x . w[j], step 0 for no scales.
func inOrder(fma func(a, b, c float32) float32, x []float32, w fp8.Matrix, j, step int) float32 {
	fold := step > 0 && step < 16
	var total, part float32
	for k := range x {
		if k%256 == 0 || step > 0 && !fold && k%step == 0 {
			part = 0
		}
		a := x[k]
		if fold {
			a = float32(a * w.Scale(j, k))
		}
		part = fma(a, w.Code(j, k), part)
		next := k + 1
		if next < len(x) && next%256 != 0 && (step == 0 || fold || next%step != 0) {
			continue
		}
		switch {
		case step > 0 && !fold:
			total = fma(part, w.Scale(j, k), total)
		case k < 256:
			total = part
		default:
			total += part
		}
	}
	return total
}

// exact is the same output in float64, and the sum of the magnitudes of its terms.
func exact(x []float32, w fp8.Matrix, j int) (sum, size float64) {
	for k := range x {
		term := float64(x[k]) * float64(w.Code(j, k)) * float64(w.Scale(j, k))
		sum += term
		size += math.Abs(term)
	}
	return sum, size
}

// product is a test product: matrices, their step, and rows for each.
type product struct {
	ms   []fp8.Matrix
	step int // of Pack
	m    int
	x    []float32 // [batch][m][k]
}

// want are the outputs [batch][m][n] by inOrder.
func (p product) want(fma func(a, b, c float32) float32) []float32 {
	step := 0
	if p.ms[0].Scaled() {
		if step = p.step; step == 0 {
			step = p.ms[0].BlockCols()
		}
	}
	var y []float32
	for b, w := range p.ms {
		for i := range p.m {
			for j := range w.Rows() {
				y = append(y, inOrder(fma, p.row(b, i), w, j, step))
			}
		}
	}
	return y
}

func (p product) row(b, i int) []float32 {
	k := p.ms[0].Cols()
	return p.x[(b*p.m+i)*k:][:k]
}

func (p product) pack(t testing.TB) *fp8.Packed {
	t.Helper()
	w, err := fp8.Pack(p.ms, fp8.PackOptions{Step: p.step})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func (p product) shape() fp8.Shape {
	return fp8.Shape{M: p.m, StrideX: p.m * p.ms[0].Cols()}
}

// got are the outputs [batch][m][n] by Mul.
func (p product) got(t testing.TB, pool *fp8.Pool) []float32 {
	t.Helper()
	w := p.pack(t)
	y := make([]float32, w.Batch()*p.m*w.N())
	fill(y, float32(math.NaN()))
	require.NoError(t, w.Mul(context.Background(), pool, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}))
	return y
}

// activated are the rows of matrix b, ready for products with w.
func (p product) activated(t testing.TB, w *fp8.Packed, how fp8.Product, b int) *fp8.Activation {
	t.Helper()
	spec := fp8.ActivationSpec{Product: how, Rows: p.m, K: w.K()}
	a := new(fp8.Activation)
	require.NoError(t, a.Init(spec, make([]float32, spec.Floats())))
	w.Activate(a, p.x[b*p.m*w.K():], w.K(), p.m)
	return a
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}

// Every element type, kind of scales and step, at odd sizes: bit for bit in order,
// and near the exact sum.
func TestMulInOrder(t *testing.T) {
	r := newRand(11)
	elems := []fp8.Elem{fp8.ElemE4M3, fp8.ElemE5M2, fp8.ElemE4M3FNUZ, fp8.ElemE5M2FNUZ, fp8.ElemBF16, fp8.ElemF16, fp8.ElemF32}
	sizes := [][3]int{{1, 1, 1}, {2, 17, 270}, {3, 16, 257}, {1, 5, 600}, {5, 33, 24}, {2, 31, 513}}
	kinds := []string{"none", "f32", "bf16", "e8m0"}
	if testing.Short() {
		sizes, kinds = sizes[:2], kinds[:2]
	}
	turn := 0
	for _, size := range sizes {
		m, n, k := size[0], size[1], size[2]
		for _, blockCols := range []int{1, 8, 16, 24, 64, 128, 300, k} {
			for _, kind := range kinds {
				for _, blockRows := range []int{1, 7, n} {
					turn++
					elem := elems[turn%len(elems)]
					if kind != "none" {
						elem = elems[turn%len(codeElems)]
					}
					p := product{m: m, x: normal(r, m*k, 1)}
					p.ms = []fp8.Matrix{someMatrix(t, r, elem, kind, n, k, blockRows, blockCols)}
					got := p.got(t, nil)
					name := fmt.Sprintf("%v, %s scales in blocks of %dx%d, [%d, %d, %d]", elem, kind, blockRows, blockCols, m, n, k)
					kerneltest.Equal(t, p.want(simd.Fma), got, "%s", name)
					for i := range m {
						for j := range n {
							sum, size := exact(p.row(0, i), p.ms[0], j)
							if math.Abs(float64(got[i*n+j])-sum) > size*2e-6 {
								t.Fatalf("%s: y[%d][%d] is %v, want %v", name, i, j, got[i*n+j], sum)
							}
						}
					}
				}
			}
		}
	}
}

// The same against a fused multiply-add in big.Float, with very small and very
// large activations.
func TestMulBig(t *testing.T) {
	r := newRand(12)
	for _, size := range []float64{1, 1e-38, 1e-30, 1e30} {
		for _, c := range []struct {
			kind string
			cols int
		}{{"none", 0}, {"f32", 64}, {"e8m0", 8}} {
			p := product{m: 2, x: normal(r, 2*270, size)}
			p.ms = []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, c.kind, 3, 270, 2, c.cols)}
			kerneltest.Equal(t, p.want(kerneltest.BigFma), p.got(t, nil), "%s scales, activations of %v", c.kind, size)
		}
	}
}

// A step may be finer than the blocks, and the blocks may begin anywhere.
func TestMulStep(t *testing.T) {
	r := newRand(13)
	const heads, nope, v, latent = 3, 48, 64, 20
	kvb := someMatrix(t, r, fp8.ElemE4M3, "f32", heads*(nope+v), latent, 32, 8)
	var uk, uv []fp8.Matrix
	for h := range heads {
		k := must(t)(kvb.Slice(h*(nope+v), h*(nope+v)+nope))
		uk = append(uk, k.Transpose())
		uv = append(uv, must(t)(kvb.Slice(h*(nope+v)+nope, (h+1)*(nope+v))))
	}
	for _, p := range []product{
		{ms: uk, step: 16, m: 2, x: normal(r, heads*2*nope, 1)},
		{ms: uk, step: 8, m: 2, x: normal(r, heads*2*nope, 1)},
		{ms: uk, step: 1, m: 2, x: normal(r, heads*2*nope, 1)},
		{ms: uv, m: 2, x: normal(r, heads*2*latent, 1)},
	} {
		kerneltest.Equal(t, p.want(simd.Fma), p.got(t, nil), "step %d", p.step)
	}
	// Finer steps and equal scales: the cuts stay where they were asked for.
	one := must(t)(fp8.New(fp8.ElemE4M3, 3, 512, someCodes(r, fp8.ElemE4M3, 3*512), fp8.ScalesF32([]float32{0.7}), 3, 512))
	fine := product{ms: []fp8.Matrix{one}, step: 32, m: 1, x: normal(r, 512, 1)}
	coarse := product{ms: []fp8.Matrix{one}, m: 1, x: fine.x}
	kerneltest.Equal(t, fine.want(simd.Fma), fine.got(t, nil), "step 32")
	kerneltest.Equal(t, coarse.want(simd.Fma), coarse.got(t, nil), "step 512")
	assert.NotEqual(t, fine.got(t, nil), coarse.got(t, nil))
}

// A NaN code, a NaN activation and an infinity reach the outputs that use them,
// and no others; the lanes that pad a panel reach none.
func TestMulNaN(t *testing.T) {
	r := newRand(14)
	for _, kind := range []string{"none", "f32", "e8m0"} {
		for _, step := range []int{8, 128} {
			codes := someCodes(r, fp8.ElemE4M3, 5*40)
			codes[3*40+17] = 0xFF
			scales := someScales(r, kind, 5*blocks(40, step))
			m := must(t)(fp8.New(fp8.ElemE4M3, 5, 40, codes, scales, 1, step))
			p := product{ms: []fp8.Matrix{m}, m: 3, x: normal(r, 3*40, 1)}
			p.x[40+5] = float32(math.Inf(1))
			p.x[80+39] = float32(math.NaN())
			got := p.got(t, nil)
			kerneltest.Equal(t, p.want(simd.Fma), got, "%s", kind)
			for i, y := range got {
				row, j := i/5, i%5
				assert.Equal(t, row == 2 || j == 3, y != y, "%s scales, y[%d][%d] = %v", kind, row, j, y)
			}
		}
	}
}

// tensors reads a safetensors file of float32.
func tensors(t *testing.T, name string) func(tensor string) (data []float32, shape []int) {
	t.Helper()
	raw, err := os.ReadFile(name)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(raw)
	header := map[string]json.RawMessage{}
	require.NoError(t, json.Unmarshal(raw[8:8+n], &header))
	return func(tensor string) ([]float32, []int) {
		var at struct {
			Shape   []int  `json:"shape"`
			Offsets [2]int `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(header[tensor], &at), tensor)
		bytes := raw[8+int(n):][at.Offsets[0]:at.Offsets[1]]
		data := make([]float32, len(bytes)/4)
		for i := range data {
			data[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
		}
		return data, at.Shape
	}
}

// Bits of a model of the arithmetic in another language.
func TestMulVectors(t *testing.T) {
	tensor := tensors(t, "testdata/gemm.safetensors")
	for _, c := range []struct {
		group string
		step  int
	}{{"gemm", 128}, {"gemm_long", 600}, {"gemm_fold", 8}} {
		x, shape := tensor(c.group + ".x")
		values, wShape := tensor(c.group + ".weight_values")
		scales, _ := tensor(c.group + ".scale")
		want, _ := tensor(c.group + ".y")
		m, n, k := shape[0], wShape[0], wShape[1]

		w := must(t)(fp8.PlainF32(n, k, values))
		w = must(t)(fp8.Scaled(w, fp8.ScalesF32(scales), n, c.step))
		for _, workers := range []int{0, 1, 2, 3} {
			var pool *fp8.Pool
			if workers > 0 {
				pool = workpool.New(workers)
			}
			p := product{ms: []fp8.Matrix{w}, m: m, x: x}
			kerneltest.Equal(t, want, p.got(t, pool), "%s, %d workers", c.group, workers)
			require.NoError(t, pool.Close())
		}
	}
}

// Batches with every kind of strides; what lies between the rows is left alone.
func TestMulStrides(t *testing.T) {
	r := newRand(15)
	const batch, m, n, k = 3, 5, 19, 37
	var ms []fp8.Matrix
	for range batch {
		ms = append(ms, someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 4, 16))
	}
	p := product{ms: ms, m: m, x: normal(r, batch*m*k, 1)}
	want, w := p.want(simd.Fma), p.pack(t)
	assert.Equal(t, []int{batch, n, k}, []int{w.Batch(), w.N(), w.K()})
	codes, scales := batch*32*k, batch*32*blocks(k, 16)
	assert.Equal(t, int64(blocks(codes, 64)*64+4*scales), w.Bytes())

	for _, s := range []fp8.Shape{
		{M: m, StrideX: m * k},
		{M: m, LdX: k + 3, LdY: n + 5, StrideX: m*(k+3) + 1, StrideY: m*(n+5) + 2},
		{M: m, LdX: batch * k, LdY: batch * n, StrideX: k, StrideY: n},
		{M: m, LdX: batch*k + 1, LdY: batch*(n+2) + 9, StrideX: k, StrideY: n + 2},
		{M: m, LdX: k, LdY: n, StrideX: m * k, StrideY: (m-1)*n + n},
	} {
		ldx, ldy, strideY := max(s.LdX, k), max(s.LdY, n), s.StrideY
		if strideY == 0 {
			strideY = m * ldy
		}
		x := make([]float32, (batch-1)*s.StrideX+(m-1)*ldx+k)
		y := make([]float32, (batch-1)*strideY+(m-1)*ldy+n)
		fill(x, float32(math.NaN()))
		fill(y, -77)
		sure := make([]bool, len(y))
		for b := range batch {
			for i := range m {
				copy(x[b*s.StrideX+i*ldx:][:k], p.row(b, i))
			}
		}
		require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(x), s, fp8.Product{}), "%+v", s)
		for b := range batch {
			for i := range m {
				kerneltest.Equal(t, want[(b*m+i)*n:][:n], y[b*strideY+i*ldy:][:n], "%+v, matrix %d, row %d", s, b, i)
				for j := range n {
					sure[b*strideY+i*ldy+j] = true
				}
			}
		}
		for i := range y {
			require.True(t, sure[i] || y[i] == -77, "%+v wrote place %d", s, i)
		}
	}

	// StrideX 0: all matrices read the same rows.
	shared := product{ms: ms, m: m, x: append(append(append([]float32(nil), p.x[:m*k]...), p.x[:m*k]...), p.x[:m*k]...)}
	y := make([]float32, batch*m*n)
	require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x[:m*k]), fp8.Shape{M: m}, fp8.Product{}))
	kerneltest.Equal(t, shared.want(simd.Fma), y, "shared rows")
}

// bf16 and f16 activations are widened, and that is all.
func TestMulNarrowRows(t *testing.T) {
	r := newRand(16)
	const m, n, k = 35, 20, 260
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "bf16", n, k, 8, 24)}, m: m, x: normal(r, m*k, 1)}
	w := p.pack(t)
	halves := make([]uint16, len(p.x)+1)
	for _, x := range []fp8.Rows{fp8.RowsBF16(halves), fp8.RowsF16(halves)} {
		x.Narrow(0, p.x)
		x.Widen(p.x, 0, len(p.x))
		y := make([]float32, m*n)
		require.NoError(t, w.Mul(nil, nil, y, x, p.shape(), fp8.Product{}))
		kerneltest.Equal(t, p.want(simd.Fma), y, "%v", x.Kind())
	}
}

// The bits do not depend on the number of workers, nor on who did what.
func TestMulWorkers(t *testing.T) {
	r := newRand(17)
	const batch, m, n, k = 2, 67, 40, 70
	var ms []fp8.Matrix
	for range batch {
		ms = append(ms, someMatrix(t, r, fp8.ElemE4M3, "f32", n, k, 32, 64))
	}
	p := product{ms: ms, m: m, x: normal(r, batch*m*k, 1)}
	want := p.got(t, nil)
	kerneltest.Equal(t, p.want(simd.Fma), want, "no pool")
	for _, workers := range []int{1, 2, 3, 7} {
		pool := workpool.New(workers)
		var meet workpool.Meet
		pool.SetHook(meet.Wait)
		kerneltest.Equal(t, want, p.got(t, pool), "%d workers", workers)
		if workers > 1 {
			assert.GreaterOrEqual(t, meet.Workers(), 2, "workers that did work, of %d", workers)
		}
		require.NoError(t, pool.Close())
	}
}

// Products at the same time on one Packed and one pool.
// concurrently runs one product from four goroutines, each into outputs of its own.
func concurrently(t *testing.T, want []float32, mul func(y []float32) error) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 15 {
				y := make([]float32, len(want))
				if err := mul(y); err != nil {
					t.Error(err)
				}
				for i := range y {
					if !kerneltest.SameBits(want[i], y[i]) {
						t.Errorf("place %d is %v, want %v", i, y[i], want[i])
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestMulConcurrent(t *testing.T) {
	r := newRand(18)
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE5M2, "e8m0", 40, 64, 8, 32)}, m: 3, x: normal(r, 3*64, 1)}
	want, w := p.want(simd.Fma), p.pack(t)
	pool := workpool.New(3)
	defer pool.Close()
	concurrently(t, want, func(y []float32) error {
		return w.Mul(context.Background(), pool, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{})
	})
}

// TestMulManyRows: more rows than a call takes on a small core, by all kernels that take
// a piece of k, give the bits of one row at a time.
func TestMulManyRows(t *testing.T) {
	r := newRand(81)
	const m, n, k, group = 53, 35, 300, 290
	for _, step := range []int{0, 8, 290} { // no scales, scales folded into A, and a step that is not decoded in registers
		kind := "f32"
		if step == 0 {
			kind = "none"
		}
		p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, kind, n, k, 7, step)}, m: m, x: normal(r, m*k, 1)}
		w := p.pack(t)
		require.False(t, fp8.Decodes(w))
		for _, how := range []fp8.Product{{}, {Compute: fp8.ComputeBF16}, {Group: group}, {Compute: fp8.ComputeBF16, Group: group}} {
			if how.Group > 0 && !w.Scaled() {
				continue
			}
			y, one := make([]float32, m*n), make([]float32, n)
			fill(y, float32(math.NaN()))
			require.NoError(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x), fp8.Shape{M: m}, how))
			for i := range m {
				require.NoError(t, w.Mul(nil, nil, one, fp8.RowsF32(p.x[i*k:][:k]), fp8.Shape{M: 1}, how))
				kerneltest.Equal(t, one, y[i*n:][:n], "%+v, step %d, row %d", how, step, i)
			}
		}
	}
}

func TestMulPanels(t *testing.T) {
	r := newRand(19)
	const m, n, k = 3, 70, 280
	for _, kind := range []string{"none", "f32"} {
		p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, kind, n, k, 32, 64), someMatrix(t, r, fp8.ElemE4M3, kind, n, k, 32, 64)}, m: m, x: normal(r, 2*m*k, 1)}
		want, w := p.want(simd.Fma), p.pack(t)
		require.NoError(t, w.Acquire())
		a := p.activated(t, w, fp8.Product{}, 1)
		for _, cols := range [][2]int{{0, 70}, {16, 32}, {32, 41}, {64, 70}, {48, 48}} {
			n0, n1 := cols[0], cols[1]
			width := n1 - n0
			y := make([]float32, m*(width+2))
			fill(y, -77)
			w.MulPanels(1, y, width+2, a, m, n0, n1)
			for i := range m {
				kerneltest.Equal(t, want[(m+i)*n+n0:][:width], y[i*(width+2):][:width], "columns %v, row %d", cols, i)
				kerneltest.Equal(t, []float32{-77, -77}, y[i*(width+2)+width:][:2], "beyond columns %v", cols)
			}
		}
		w.MulPanels(0, nil, 0, a, 0, 0, n)
		w.Release()
	}
}

func TestMulAllocs(t *testing.T) {
	r := newRand(20)
	pool := workpool.New(3)
	defer pool.Close()
	for _, kind := range []string{"none", "f32", "e8m0"} {
		for _, elem := range []fp8.Elem{fp8.ElemE4M3, fp8.ElemBF16, fp8.ElemF32} {
			p := product{ms: []fp8.Matrix{someMatrix(t, r, elem, kind, 50, 40, 8, 8)}, m: 2, x: normal(r, 2*40, 1)}
			w := p.pack(t)
			y := make([]float32, 100)
			halves := make([]uint16, len(p.x))
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			for _, x := range []fp8.Rows{fp8.RowsF32(p.x), fp8.RowsBF16(halves)} {
				for name, pool := range map[string]*fp8.Pool{"no pool": nil, "3 workers": pool} {
					assert.Zero(t, testing.AllocsPerRun(50, func() {
						if err := w.Mul(ctx, pool, y, x, p.shape(), fp8.Product{}); err != nil {
							t.Error(err)
						}
					}), "Mul of %v by %v, %s", x.Kind(), elem, name)
				}
			}
			require.NoError(t, w.Acquire())
			a := p.activated(t, w, fp8.Product{}, 0)
			assert.Zero(t, testing.AllocsPerRun(50, func() {
				w.Activate(a, p.x, 40, 2)
				w.MulPanels(0, y, 50, a, 2, 0, 50)
			}), "MulPanels")
			w.Release()
			assert.Zero(t, testing.AllocsPerRun(50, func() {
				if w.Acquire() == nil {
					w.Release()
				}
			}), "Acquire")
		}
	}
}

func TestPackErrors(t *testing.T) {
	r := newRand(21)
	matrix := func(rows, cols, blockCols int) fp8.Matrix {
		return someMatrix(t, r, fp8.ElemE4M3, "f32", rows, cols, rows, blockCols)
	}
	plain := someMatrix(t, r, fp8.ElemE4M3, "none", 4, 64, 0, 0)
	e5m2 := someMatrix(t, r, fp8.ElemE5M2, "f32", 4, 64, 4, 32)
	tall := someMatrix(t, r, fp8.ElemE4M3, "f32", 64, 4, 24, 4)
	phased := must(t)(tall.Slice(8, 64)).Transpose() // borders at columns 16, 40
	for _, c := range []struct {
		name string
		ms   []fp8.Matrix
		step int
		want error
		says string
	}{
		{"none", nil, 0, fp8.ErrShape, "no matrices"},
		{"zero matrix", []fp8.Matrix{{}}, 0, fp8.ErrShape, "0x0"},
		{"shapes", []fp8.Matrix{matrix(4, 64, 32), matrix(4, 65, 32)}, 0, fp8.ErrShape, "matrix 1 is 4x65, want 4x64"},
		{"elements", []fp8.Matrix{matrix(4, 64, 32), e5m2}, 0, fp8.ErrElem, "matrix 1 holds e5m2, want e4m3"},
		{"scales and none", []fp8.Matrix{matrix(4, 64, 32), plain}, 0, fp8.ErrScale, "matrix 1 has scales: false"},
		{"negative step", []fp8.Matrix{matrix(4, 64, 32)}, -1, fp8.ErrStep, "-1"},
		{"coarse step", []fp8.Matrix{matrix(4, 64, 16)}, 32, fp8.ErrStep, "32, but the scales of matrix 0 change at column 16"},
		{"crooked step", []fp8.Matrix{matrix(4, 64, 32)}, 24, fp8.ErrStep, "change at column 32"},
		{"other blocks", []fp8.Matrix{matrix(4, 64, 32), matrix(4, 64, 16)}, 0, fp8.ErrStep, "matrix 1 change at column 16"},
		{"blocks begin elsewhere", []fp8.Matrix{phased}, 0, fp8.ErrStep, "change at column 16 and every 24"},
		{"first border fits, second not", []fp8.Matrix{phased}, 16, fp8.ErrStep, "column 16 and every 24"},
	} {
		w, err := fp8.Pack(c.ms, fp8.PackOptions{Step: c.step})
		assert.Nil(t, w, c.name)
		assert.ErrorIs(t, err, c.want, c.name)
		assert.ErrorContains(t, err, c.says, c.name)
	}
	// A border in the last, short group is no border, and no scales need no step.
	for _, ms := range [][]fp8.Matrix{{matrix(4, 64, 1000)}, {phased}, {plain}} {
		w, err := fp8.Pack(ms, fp8.PackOptions{Step: 8})
		require.NoError(t, err)
		require.NoError(t, w.Close())
	}
}

func TestMulErrors(t *testing.T) {
	r := newRand(22)
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 6, 8, 6, 8), someMatrix(t, r, fp8.ElemE4M3, "f32", 6, 8, 6, 8)}}
	w := p.pack(t)
	y := make([]float32, 2*3*6)
	fill(y, -77)
	x := fp8.RowsF32(make([]float32, 2*3*8))
	const big = math.MaxInt
	for _, c := range []struct {
		name string
		y    []float32
		x    fp8.Rows
		s    fp8.Shape
		says string
	}{
		{"negative M", y, x, fp8.Shape{M: -1}, "M:-1"},
		{"LdX", y, x, fp8.Shape{M: 3, LdX: 7}, "LdX >= 8"},
		{"LdY", y, x, fp8.Shape{M: 3, LdY: 5}, "LdY >= 6"},
		{"negative StrideX", y, x, fp8.Shape{M: 3, StrideX: -8}, "StrideX:-8"},
		{"negative StrideY", y, x, fp8.Shape{M: 3, StrideY: -8}, "StrideY:-8"},
		{"short x", y, fp8.RowsBF16(make([]uint16, 47)), fp8.Shape{M: 3, StrideX: 24}, "x has 47 values, want (2-1)*24 + (3-1)*8 + 8"},
		{"no x", y, fp8.Rows{}, fp8.Shape{M: 1}, "x has 0 values"},
		{"short y", y[:35], x, fp8.Shape{M: 3, StrideX: 24}, "y has 35 values, want (2-1)*18 + (3-1)*6 + 6"},
		{"overlap", y, x, fp8.Shape{M: 3, StrideX: 24, StrideY: 17}, "results overlap"},
		{"overlap side by side", make([]float32, 99), x, fp8.Shape{M: 3, StrideX: 24, LdY: 11, StrideY: 6}, "results overlap"},
		{"huge M", y, x, fp8.Shape{M: big, LdY: big}, "int"},
		{"huge LdX", y, x, fp8.Shape{M: 3, LdX: big}, "x has 48 values"},
		{"huge StrideX", y, x, fp8.Shape{M: 3, StrideX: big}, "x has 48 values"},
		{"huge StrideY", y, x, fp8.Shape{M: 3, StrideY: big}, "y has 36 values"},
	} {
		err := w.Mul(nil, nil, c.y, c.x, c.s, fp8.Product{})
		assert.ErrorIs(t, err, fp8.ErrShape, c.name)
		assert.ErrorContains(t, err, c.says, c.name)
	}
	for i := range y {
		require.Equal(t, float32(-77), y[i], "an error in the shape writes nothing")
	}
	assert.NoError(t, w.Mul(nil, nil, nil, fp8.Rows{}, fp8.Shape{}, fp8.Product{}), "no rows, nothing to do")
}

// A Context that is done stops a product between its pieces of work.
func TestMulCancel(t *testing.T) {
	r := newRand(23)
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 64, 16, 8, 16)}, m: 200, x: normal(r, 200*16, 1)}
	w := p.pack(t)
	y := make([]float32, 200*64)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	pool := workpool.New(2)
	for _, pool := range []*fp8.Pool{nil, pool} {
		assert.ErrorIs(t, w.Mul(ctx, pool, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}), context.Canceled)
		require.NoError(t, w.Mul(context.Background(), pool, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}), "the next product is unharmed")
		kerneltest.Equal(t, p.want(simd.Fma), y, "after a cancelled product")
	}
	require.NoError(t, pool.Close())
	assert.ErrorIs(t, w.Mul(nil, pool, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}), workpool.ErrClosed)
}

// during calls f from inside a product, which asks its context between items.
type during struct {
	context.Context
	f func()
}

func (d during) Err() error {
	d.f()
	return nil
}

func TestClose(t *testing.T) {
	r := newRand(24)
	p := product{ms: []fp8.Matrix{someMatrix(t, r, fp8.ElemE4M3, "f32", 5, 8, 5, 8)}, m: 1, x: normal(r, 8, 1)}
	w, err := fp8.Pack(p.ms, fp8.PackOptions{})
	require.NoError(t, err)
	y := make([]float32, 5)
	asked := 0
	ctx := during{context.Background(), func() {
		asked++
		assert.ErrorIs(t, w.Close(), fp8.ErrBusy)
	}}
	require.NoError(t, w.Mul(ctx, nil, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}))
	assert.Positive(t, asked)

	require.NoError(t, w.Acquire())
	require.NoError(t, w.Acquire())
	w.Release()
	assert.ErrorIs(t, w.Close(), fp8.ErrBusy)
	assert.ErrorContains(t, w.Close(), "[1, 5, 8] are held 1 times")
	w.Release()
	require.NoError(t, w.Close())
	require.NoError(t, w.Close(), "a second Close does nothing")
	assert.ErrorIs(t, w.Acquire(), fp8.ErrClosed)
	assert.ErrorIs(t, w.Mul(nil, nil, y, fp8.RowsF32(p.x), p.shape(), fp8.Product{}), fp8.ErrClosed)
	assert.Equal(t, []int{1, 5, 8}, []int{w.Batch(), w.N(), w.K()}, "the shape stays")
	assert.Panics(t, w.Release)
}
