package oracle

import "math"

// Product is y[M][N] = x[M][K] . w[N][K]^T.
func Product(x, w []float64, m, n, k int) []float64 {
	y := make([]float64, m*n)
	for i := range m {
		for j := range n {
			y[i*n+j] = dot(x[i*k:(i+1)*k], w[j*k:(j+1)*k])
		}
	}
	return y
}

// Sum is y = x[K] . w[K], with its size: its magnitude or, if that is more, the root of the sum
// of the squares of its terms.
func Sum(x, w []float64) (y, size float64) {
	s := product(sized{x, x}, w, 1)
	return s.x[0], s.size[0]
}

// sized is values with their sizes: the magnitude of each or, if that is more, the root of the
// sum of the squares of its terms, where it is a sum.
type sized struct{ x, size []float64 }

// product is Product of one row; the terms of an output have the sizes that x has.
func product(x sized, w []float64, n int) sized {
	k := len(x.x)
	y := sized{Product(x.x, w, 1, n, k), make([]float64, n)}
	for j := range n {
		y.size[j] = math.Max(math.Abs(y.x[j]), root(x.size, w[j*k:(j+1)*k]))
	}
	return y
}

// root is the root of the sum of the squares of x[i]*y[i].
func root(x, y []float64) float64 {
	y = y[:len(x)]
	var even, odd float64
	for len(x) >= 2 {
		even += x[0] * y[0] * (x[0] * y[0])
		odd += x[1] * y[1] * (x[1] * y[1])
		x, y = x[2:], y[2:]
	}
	for i, v := range x {
		even += v * y[i] * (v * y[i])
	}
	return math.Sqrt(even + odd)
}

func dot(x, y []float64) float64 {
	y = y[:len(x)]
	var s0, s1, s2, s3 float64
	for len(x) >= 4 {
		s0 += x[0] * y[0]
		s1 += x[1] * y[1]
		s2 += x[2] * y[2]
		s3 += x[3] * y[3]
		x, y = x[4:], y[4:]
	}
	for i, v := range x {
		s0 += v * y[i]
	}
	return s0 + s1 + (s2 + s3)
}

// Widen copies values of any float type.
func Widen[T ~float32 | ~float64](x []T) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}
