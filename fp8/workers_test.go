package fp8_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/internal/workpool"
	"github.com/lamina-ml/lamina/simd"
)

// TestWorkersWithOddSizes cuts every product among workers where the results of items lie side by
// side in a row, no size being a multiple of a pair, a word or a vector. Items that are even, then
// those that are odd, begin late, so that either would have the last word about a place of both.
func TestWorkersWithOddSizes(t *testing.T) {
	const batch, m, group = 3, 5, 7
	r := newRand(90)
	for _, c := range []struct {
		name         string
		elem         fp8.Elem
		n, k, bn, bk int
	}{
		{"folded", fp8.ElemE4M3, 35, 37, 4, 3},
		{"scaled", fp8.ElemE4M3, 35, 37, 16, 17},
		{"decoded in registers", fp8.ElemE4M3, 35, 44, 16, 20},
		{"bf16", fp8.ElemBF16, 17, 259, 0, 0},
		{"f32", fp8.ElemF32, 1, 37, 0, 0},
	} {
		var ms []fp8.Matrix
		for range batch {
			ms = append(ms, someMatrix(t, r, c.elem, "f32", c.n, c.k, c.bn, c.bk))
		}
		p := product{ms: ms, m: m, x: normal(r, batch*m*c.k, 1)}
		w := p.pack(t)
		s := fp8.Shape{M: m, StrideX: m * c.k, LdY: batch*c.n + 1, StrideY: c.n}
		halves := fp8.RowsBF16(make([]uint16, len(p.x)))
		halves.Narrow(0, p.x)
		halves.Widen(p.x, 0, len(p.x))
		for _, x := range []fp8.Rows{fp8.RowsF32(p.x), halves} {
			muls := map[fp8.Product][]float32{
				{Compute: fp8.ComputeF32}:  p.want(simd.Fma),
				{Compute: fp8.ComputeBF16}: p.wantPairs(simd.Fma),
			}
			if w.Scaled() {
				muls[fp8.Product{Compute: fp8.ComputeF32, Group: group}] = p.wantQuant(simd.Fma, group)
				muls[fp8.Product{Compute: fp8.ComputeBF16, Group: group}] = p.wantQuantPairs(simd.Fma, group)
			}
			for how, want := range muls {
				for _, workers := range []int{2, 7} {
					pool := workpool.New(workers)
					for parity := range 2 {
						pool.SetHook(func(_, item int) {
							if item < 4 && item%2 == parity {
								time.Sleep(100 * time.Microsecond)
							}
						})
						y := make([]float32, m*s.LdY)
						fill(y, -77)
						require.NoError(t, w.Mul(nil, pool, y, x, s, how))
						for i := range m {
							for b := range batch {
								kerneltest.Equal(t, want[(b*m+i)*c.n:][:c.n], y[i*s.LdY+b*c.n:][:c.n],
									"%s, %+v, %v rows, %d workers, items %d late, matrix %d, row %d", c.name, how, x.Kind(), workers, parity, b, i)
							}
							require.Equal(t, float32(-77), y[i*s.LdY+batch*c.n], "behind row %d", i)
						}
					}
					require.NoError(t, pool.Close())
				}
			}
		}
	}
}
