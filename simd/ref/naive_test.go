package ref_test

import (
	"math"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

// The kernels once more, one output at a time and with an fma of big numbers, as the arithmetic says them.

var fma = kerneltest.BigFma

func naivePart(x []float32, ldx int, b []float32, ldb int, i, j, k int) (part float32) {
	for kk := range k {
		part = fma(x[i*ldx+kk], b[(j/16)*ldb+kk*16+j%16], part)
	}
	return part
}

func naiveFoldPart(x []float32, ldx int, b []float32, ldb int, scale []float32, lds int, i, j, k int) (part float32) {
	for kk := range k {
		scaled := float32(x[i*ldx+kk] * scale[(j/16)*lds+kk*16+j%16])
		part = fma(scaled, b[(j/16)*ldb+kk*16+j%16], part)
	}
	return part
}

// each calls f for every output of an m x n matrix with the row stride ldy.
func each(y []float32, ldy, m, n int, f func(y float32, i, j int) float32) {
	for i := range m {
		for j := range n {
			y[i*ldy+j] = f(y[i*ldy+j], i, j)
		}
	}
}

// nanMax is the maximum in which a NaN wins.
func nanMax(a, b float32) float32 {
	switch {
	case a != a || b != b:
		return nan
	case b > a:
		return b
	}
	return a
}

func naiveSoftmax(s []float32, lds, keys, n int, lo, hi []int32, scale float32, m, l, alpha []float32) {
	for j := range n {
		visible := func(key int) (float32, bool) {
			if key < int(lo[j]) || key >= int(hi[j]) {
				return 0, false
			}
			t := float32(s[key*lds+j] * scale)
			return t, t != -inf
		}
		top := m[j]
		for key := range keys {
			if t, ok := visible(key); ok {
				top = nanMax(top, t)
			}
		}
		var sum float32
		alone := true
		p := make([]float32, keys)
		for key := range keys {
			p[key] = negZero
			if t, ok := visible(key); ok {
				p[key] = ref.Exp(t - top)
				sum += p[key]
				alone = false
			}
		}
		for key := range keys {
			s[key*lds+j] = p[key]
		}
		if alpha[j] = 1; !alone {
			alpha[j] = ref.Exp(m[j] - top)
			m[j], l[j] = top, fma(l[j], alpha[j], sum)
		}
	}
}

func naiveValues(o []float32, ldo int, p []float32, ldp int, v []float32, ldv int, alpha []float32, keys, n, cols int) {
	each(o, ldo, n, cols, func(x float32, j, c int) float32 {
		if alpha[j] != 1 {
			x = float32(x * alpha[j])
		}
		for key := range keys {
			if w := p[key*ldp+j]; math.Float32bits(w) != 1<<31 {
				x = fma(w, v[key*ldv+c], x)
			}
		}
		return x
	})
}

func naiveFold(O []float32, ldO int, M, L, o []float32, ldo int, m, l []float32, n, cols int) {
	for j := range n {
		if m[j] == -inf {
			continue
		}
		a, b, top := float32(0), float32(1), m[j]
		first := M[j] == -inf
		if !first {
			top = nanMax(M[j], m[j])
			a, b = ref.Exp(M[j]-top), ref.Exp(m[j]-top)
		}
		fold := func(total, part float32) float32 {
			if first {
				return part
			}
			return fma(part, b, float32(total*a))
		}
		for c := range cols {
			O[j*ldO+c] = fold(O[j*ldO+c], o[j*ldo+c])
		}
		M[j], L[j] = top, fold(L[j], l[j])
	}
}

func naiveMerge(out, lse, parts, partsLSE []float32, p, n, d int) {
	for j := range n {
		var live []int
		top := -inf
		for i := range p {
			if x := partsLSE[i*n+j]; x != inf && x != -inf {
				live = append(live, i)
				top = nanMax(top, x)
			}
		}
		row := out[j*d:][:d]
		switch len(live) {
		case 0:
			clear(row)
			lse[j] = inf
			continue
		case 1:
			copy(row, parts[(live[0]*n+j)*d:])
			if lse[j] = partsLSE[live[0]*n+j]; lse[j] != lse[j] {
				for c := range row {
					row[c] = nan
				}
			}
			continue
		}
		var total float32
		sums := make([]float32, d)
		for _, i := range live {
			w := ref.Exp(partsLSE[i*n+j] - top)
			if w == 0 {
				continue
			}
			total += w
			for c := range sums {
				sums[c] = fma(parts[(i*n+j)*d+c], w, sums[c])
			}
		}
		for c := range sums {
			row[c] = sums[c] / total
		}
		lse[j] = top + ref.Log(total)
	}
}

func naiveSumSquares(x []float32) float32 {
	var lanes []float32
	whole := len(x) - len(x)%32
	for lane := range 32 {
		var sum float32
		for i := lane; i < whole; i += 32 {
			sum = fma(x[i], x[i], sum)
		}
		lanes = append(lanes, sum)
	}
	for len(lanes) > 1 {
		half := len(lanes) / 2
		for i := range half {
			lanes[i] += lanes[i+half]
		}
		lanes = lanes[:half]
	}
	sum := lanes[0]
	for _, v := range x[whole:] {
		sum = fma(v, v, sum)
	}
	return sum
}
