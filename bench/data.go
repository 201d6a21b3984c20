package bench

import (
	"math"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/simd"
)

// rng is splitmix64: seeded, the same on every machine, and quick enough to
// fill a cache of a long context.
type rng uint64

func (r *rng) next() uint64 {
	*r += 0x9e3779b97f4a7c15
	z := uint64(*r)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// intn is a number in [0, n).
func (r *rng) intn(n int) int { return int(r.next()>>1) % n }

// normal is nearly Gaussian, of mean 0 and variance 1: the sum of four uniforms.
func (r *rng) normal() float32 {
	u := r.next()
	sum := int(u&0xffff) + int(u>>16&0xffff) + int(u>>32&0xffff) + int(u>>48)
	return float32(sum-2*0xffff) * (math.Sqrt2 * 1.2247449 / 0x10000) // sqrt(3)
}

// fill makes x normal with standard deviation sigma.
func (r *rng) fill(x []float32, sigma float32) {
	for i := range x {
		x[i] = sigma * r.normal()
	}
}

func (r *rng) normals(n int, sigma float32) []float32 {
	x := make([]float32, n)
	r.fill(x, sigma)
	return x
}

// blockSize is the side of a scale block, as DeepSeek's checkpoints have it.
const blockSize = 128

// matrix is weights the bench made, E4M3 codes with block scales, kept so that a
// check can decode them by itself.
type matrix struct {
	rows, cols int
	codes      []byte    // [rows][cols]
	scales     []float32 // [ceil(rows/128)][ceil(cols/128)]
}

// codedMatrix is weights of standard deviation about 1/sqrt(cols) in E4M3.
func (r *rng) codedMatrix(rows, cols int) matrix {
	const spread = 64 // of the codes: E4M3 reaches 448
	var normals [4096]float32
	var table [4096]byte
	r.fill(normals[:], spread)
	simd.NarrowE4M3(table[:], normals[:])

	m := matrix{rows: rows, cols: cols, codes: make([]byte, rows*cols)}
	var bits uint64
	for i := range m.codes {
		if i%5 == 0 {
			bits = r.next()
		}
		m.codes[i] = table[bits%4096]
		bits >>= 12
	}
	m.scales = make([]float32, ceil(rows, blockSize)*ceil(cols, blockSize))
	for i := range m.scales {
		u := float64(r.intn(1<<20)) / (1 << 20)
		m.scales[i] = float32((0.75 + 0.5*u) / (spread * math.Sqrt(float64(cols))))
	}
	return m
}

// fp8 is the matrix as the library takes it.
func (m matrix) fp8() (fp8.Matrix, error) {
	return fp8.New(fp8.ElemE4M3, m.rows, m.cols, m.codes, fp8.ScalesF32(m.scales), blockSize, blockSize)
}

// row decodes row i, exactly, without the library.
func (m matrix) row(i int) []float64 {
	x := make([]float64, m.cols)
	scales := m.scales[i/blockSize*ceil(m.cols, blockSize):]
	for j := range x {
		x[j] = e4m3[m.codes[i*m.cols+j]] * float64(scales[j/blockSize])
	}
	return x
}

// decoder is weights that a check can read, exactly.
type decoder interface {
	row(i int) []float64
}

// block decodes the rows [r0, r1).
func block(w decoder, r0, r1 int) []float64 {
	var x []float64
	for i := r0; i < r1; i++ {
		x = append(x, w.row(i)...)
	}
	return x
}

// e4m3 is the value of every E4M3 code.
var e4m3 = func() (t [256]float64) {
	for c := range t {
		exp, mant := c>>3&15, float64(c&7)
		switch {
		case exp == 0:
			t[c] = math.Ldexp(mant, -9)
		case c&0x7f == 0x7f:
			t[c] = math.NaN()
		default:
			t[c] = math.Ldexp(8+mant, exp-10)
		}
		if c&0x80 != 0 {
			t[c] = -t[c]
		}
	}
	return t
}()

// freqs is the rope table of n positions, [n][p]: cos and sin in turn, base 10,000.
func freqs(n, p int) []float32 {
	t := make([]float32, 0, n*p)
	for pos := range n {
		for i := range p / 2 {
			sin, cos := math.Sincos(float64(pos) * math.Pow(10000, -2*float64(i)/float64(p)))
			t = append(t, float32(cos), float32(sin))
		}
	}
	return t
}

func ceil(a, b int) int { return (a + b - 1) / b }
