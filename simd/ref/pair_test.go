package ref_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

// The kernels of pairs once more, from the text of the arithmetic.

// act is an activation and stored a stored value in bf16, as float32.
func act(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-60 {
		return 0
	}
	return ref.BF16ToF32(ref.F32ToBF16(x))
}

func storedValue(x float32) float32 {
	x = ref.BF16ToF32(ref.F32ToBF16(x))
	if math.Abs(float64(x)) < 0x1p-52 {
		return 0
	}
	return x
}

// step is a pair step, where the second of b may be missing.
func step(a0, a1, b0, b1, c float32) float32 { return fma(a0, b0, fma(a1, b1, c)) }

// hardware is a step of a processor that knows no subnormal values, in and out.
func hardware(a0, a1, b0, b1, c float32) float32 {
	return flushed(fma(flushed(a0), flushed(b0), flushed(fma(flushed(a1), flushed(b1), flushed(c)))))
}

func flushed(x float32) float32 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return float32(math.Copysign(0, float64(x)))
	}
	return x
}

// edges are data of a class, mixed with values about the bounds.
func edges(r *rand.Rand, class kerneltest.Class, n int) []float32 {
	x := class.Make(r, n)
	for i := range x {
		if r.IntN(3) == 0 {
			x[i] = float32(math.Ldexp(0.99+r.Float64()/50, pick(r, -60, -52, -95, -61, -59)) * float64(1-2*r.IntN(2)))
		}
	}
	return x
}

// narrowed is x by one of the narrowings, and what that is as float32.
func narrowed(x []float32, by func(dst []uint16, src []float32)) ([]uint16, []float32) {
	u, w := make([]uint16, len(x)), make([]float32, len(x))
	by(u, x)
	ref.WidenBF16(w, u)
	return u, w
}

func TestNarrowPairs(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		x := edges(r, class, 2000)
		_, acts := narrowed(x, ref.NarrowActBF16)
		values, valuesF32 := narrowed(x, ref.NarrowValueBF16)
		same := make([]uint16, len(x))
		ref.NarrowBF16(same, x)
		found := false
		for i, v := range x {
			sameNumber(t, act(v), acts[i], "activation %g", v)
			sameNumber(t, storedValue(v), valuesF32[i], "value %g", v)
			found = found || valuesF32[i] == 0 && same[i]&0x7FFF != 0
			require.Equal(t, valuesF32[i] == 0 && same[i]&0x7FFF != 0, ref.TinyBF16(same[i:], 1, 1, 1), "%g", v)
		}
		require.Equal(t, found, ref.TinyBF16(same, 100, len(x)/100, 100))
		ref.FlushBF16(same, same)
		require.Equal(t, values, same)
	})
}

// sameNumber compares bits, and takes every NaN for the same.
func sameNumber(t *testing.T, want, got float32, format string, args ...any) {
	t.Helper()
	require.True(t, kerneltest.SameBits(want, got), "%s: %g, want %g", fmt.Sprintf(format, args...), got, want)
}

func TestPairLayouts(t *testing.T) {
	r := kerneltest.Rand(1)
	for _, n := range []int{0, 1, 15, 16, 17, 33} {
		for _, k := range []int{0, 1, 2, 7, 8, 21} {
			src := edges(r, kerneltest.Classes[0], n*k)
			ld := (k + 1) / 2 * 32
			dst, tiles := make([]uint16, panels(n)*ld), make([]uint16, (n+1)/2*2*k)
			ref.PackPairs(dst, ld, src, k, n, k)
			rows, _ := narrowed(src, ref.NarrowBF16)
			tiny := ref.InterleaveBF16(tiles, 2*k, rows, k, n, k)
			assert.Equal(t, ref.TinyBF16(rows, k, n, k), tiny)
			for j := range panels(n) * 16 {
				for kk := range (k + 1) / 2 * 2 {
					want := float32(0)
					if j < n && kk < k {
						want = act(src[j*k+kk])
					}
					require.Equal(t, want, ref.BF16ToF32(dst[j/16*ld+kk/2*32+j%16*2+kk%2]), "row %d, k %d", j, kk)
				}
			}
			for key := range (n + 1) / 2 * 2 {
				for c := range k {
					want := float32(0)
					if key < n {
						want = storedValue(src[key*k+c])
					}
					require.Equal(t, want, ref.BF16ToF32(tiles[key/2*2*k+2*c+key%2]), "key %d, column %d", key, c)
				}
			}
		}
	}
	for _, k := range []int{0, 1, 2, 5, 16} {
		src := edges(r, kerneltest.Classes[0], k*16)
		dst := make([]uint16, (k+1)/2*32)
		ref.PairPanel(dst, src, k)
		halves, same := make([]uint16, len(src)), make([]uint16, len(dst))
		ref.NarrowBF16(halves, src)
		ref.PairPanelBF16(same, halves, k)
		require.Equal(t, dst, same, "weights in bf16")
		for kk := range (k + 1) / 2 * 2 {
			for lane := range 16 {
				want := float32(0)
				if kk < k {
					want = storedValue(src[kk*16+lane])
				}
				require.Equal(t, want, ref.BF16ToF32(dst[kk/2*32+lane*2+kk%2]))
			}
		}
	}
	codes, dst := make([]byte, 256), make([]uint16, 256)
	for i := range codes {
		codes[i] = byte(i)
	}
	ref.WidenE4M3Pairs(dst, codes)
	for kk := range 16 {
		for lane := range 16 {
			require.Equal(t, ref.F32ToBF16(ref.E4M3ToF32(codes[kk/4*64+lane*4+kk%4])), dst[kk/2*32+lane*2+kk%2])
		}
	}
}

// naivePairPart is a part of rows x by the panels of rows w, [n][k], where nothing is below the bounds.
func naivePairPart(x, w []float32, k int, step func(a0, a1, b0, b1, c float32) float32) (part float32) {
	for kk := 0; kk < k; kk += 2 {
		if kk+1 < k {
			part = step(x[kk], x[kk+1], w[kk], w[kk+1], part)
		} else {
			part = step(x[kk], 0, w[kk], 0, part)
		}
	}
	return part
}

func TestPair(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(4, samples(20)) {
			m, n, k := pick(r, 0, 1, 2, 5), pick(r, 0, 1, 15, 16, 17, 33), pick(r, 0, 1, 2, 7, 16, 21)
			ld := (k + 1) / 2 * 32
			x := edges(r, class, m*k)
			w := edges(r, class, n*k)
			for i := range w { // as weights are: what is below 2^-52 is zero
				w[i] = storedValue(w[i])
			}
			y0, scale, rows := class.Make(r, m*n), class.Make(r, n), class.Make(r, m)
			each16 := class.Make(r, panels(n)*16*k)
			panel := make([]uint16, panels(n)*ld)
			ref.PackPairs(panel, ld, w, k, n, k)
			xs, xf := narrowed(x, ref.NarrowActBF16)
			kernels := map[string]struct {
				run  func(y []float32)
				want func(part, y float32, i, j int) float32
			}{
				"PairSet": {func(y []float32) { ref.PairSet(y, n, xs, k, panel, ld, m, n, k) },
					func(part, y float32, i, j int) float32 { return part }},
				"PairAdd": {func(y []float32) { ref.PairAdd(y, n, xs, k, panel, ld, m, n, k) },
					func(part, y float32, i, j int) float32 { return y + part }},
				"PairScale": {func(y []float32) { ref.PairScale(y, n, xs, k, panel, ld, scale, m, n, k) },
					func(part, y float32, i, j int) float32 { return fma(part, scale[j], y) }},
				"PairScaleRows": {func(y []float32) { ref.PairScaleRows(y, n, xs, k, panel, ld, rows, 1, scale, m, n, k) },
					func(part, y float32, i, j int) float32 { return fma(part, float32(rows[i]*scale[j]), y) }},
			}
			for name, kernel := range kernels {
				y := append([]float32(nil), y0...)
				kernel.run(y)
				for i := range m {
					for j := range n {
						part := naivePairPart(xf[i*k:][:k], w[j*k:][:k], k, step)
						sameNumber(t, kernel.want(part, y0[i*n+j], i, j), y[i*n+j], "%s m=%d n=%d k=%d", name, m, n, k)
						sameNumber(t, part, naivePairPart(xf[i*k:][:k], w[j*k:][:k], k, hardware), "without subnormal values, k=%d", k)
					}
				}
			}
			for name, add := range map[string]bool{"PairFoldSet": false, "PairFoldAdd": true} {
				y := append([]float32(nil), y0...)
				if add {
					ref.PairFoldAdd(y, n, x, k, panel, ld, each16, 16*k, m, n, k)
				} else {
					ref.PairFoldSet(y, n, x, k, panel, ld, each16, 16*k, m, n, k)
				}
				for i := range m {
					for j := range n {
						row := make([]float32, k)
						for kk := range row {
							row[kk] = act(float32(x[i*k+kk] * each16[j/16*16*k+kk*16+j%16]))
						}
						want := naivePairPart(row, w[j*k:][:k], k, step)
						if add {
							want += y0[i*n+j]
						}
						sameNumber(t, want, y[i*n+j], "%s m=%d n=%d k=%d", name, m, n, k)
					}
				}
			}
		}
	})
}

func TestGemmE4M3Pairs(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(2, samples(6)) {
			m, n, k, by := pick(r, 0, 1, 3), pick(r, 0, 1, 16, 17), 4*pick(r, 1, 5, 9, 70), 4*pick(r, 1, 2, 5, 32, 90)
			groups := (k + by - 1) / by
			codes := make([]byte, panels(n)*16*k)
			for i := range codes {
				codes[i] = byte(r.IntN(0x7F) | r.IntN(2)<<7)
			}
			x, xf := narrowed(edges(r, class, m*k), ref.NarrowActBF16)
			scale, y := class.Make(r, panels(n)*16*groups), make([]float32, m*n)
			ref.GemmE4M3Pairs(y, n, x, k, codes, 16*k, scale, 16*groups, m, n, 0, k, by)
			for i := range m {
				for j := range n {
					var total, part float32
					for kk := 0; kk < k; kk += 2 {
						w := func(kk int) float32 { return ref.E4M3ToF32(codes[j/16*16*k+kk/4*64+j%16*4+kk%4]) }
						part = step(xf[i*k+kk], xf[i*k+kk+1], w(kk), w(kk+1), part)
						if end := kk + 2; end == k || end%256 == 0 || end%by == 0 {
							total = fma(part, scale[j/16*16*groups+kk/by*16+j%16], total)
							part = 0
						}
					}
					sameNumber(t, total, y[i*n+j], "m=%d n=%d k=%d step=%d", m, n, k, by)
				}
			}
		}
	})
}

// TestAttendPairs takes a tile through the softmax and the values, against the text for each row and column.
func TestAttendPairs(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(4, samples(20)) {
			keys, n, cols := pick(r, 0, 1, 2, 3, 8, 17, 64), pick(r, 0, 1, 3), pick(r, 0, 1, 7, 8, 9)
			scale := float32([...]float64{1, 0.07, -0.5}[r.IntN(3)])
			s, m, l := edges(r, class, keys*n), class.Make(r, n), class.Make(r, n)
			for i := range s {
				if r.IntN(9) == 0 {
					s[i] = -inf
				}
			}
			lo, hi := make([]int32, n), make([]int32, n)
			for j := range n {
				lo[j], hi[j] = int32(pick(r, 0, 0, -3, 2)), int32(pick(r, keys, keys, keys+9, keys/2, 0))
				if r.IntN(3) == 0 {
					m[j] = -inf
				}
			}
			values, vf := narrowed(edges(r, class, keys*cols), ref.NarrowValueBF16)
			pairs := (keys + 1) / 2
			v, p := make([]uint16, pairs*2*cols), make([]uint16, pairs*2*n)
			ref.InterleaveBF16(v, 2*cols, values, cols, keys, cols)
			o := edges(r, class, n*cols)
			dots, m0, l0, o0 := append([]float32(nil), s...), append([]float32(nil), m...), append([]float32(nil), l...), append([]float32(nil), o...)
			alpha := make([]float32, n)
			holes := ref.SoftmaxTilePairs(p, 2*n, s, n, keys, n, lo, hi, scale, m, l, alpha)
			ref.ValueTilePairsMasked(o, cols, p, 2*n, v, 2*cols, alpha, pairs, n, cols)
			found := false
			for j := range n {
				prob, seen := make([]float32, 2*pairs), make([]bool, 2*pairs)
				top, any := m0[j], false
				scores := make([]float32, keys)
				for key := range keys {
					scores[key] = float32(dots[key*n+j] * scale)
					in := int32(key) >= lo[j] && int32(key) < hi[j]
					seen[key] = in && scores[key] != -inf
					found = found || in && !seen[key]
					if !seen[key] {
						scores[key] = -inf
						continue
					}
					top, any = nanMax(top, scores[key]), true
				}
				var sum float32
				for key := range keys {
					if seen[key] {
						prob[key] = act(ref.Exp(scores[key] - top))
						sum += prob[key]
					}
					sameNumber(t, scores[key], s[key*n+j], "score")
				}
				factor := ref.Exp(m0[j] - top)
				anew := factor == 0 && m0[j] == -inf // o may be what another row left
				if any {
					sameNumber(t, top, m[j], "m")
					sameNumber(t, fma(l0[j], factor, sum), l[j], "l")
					if anew {
						sameNumber(t, negZero, alpha[j], "alpha of a row that begins")
					} else {
						sameNumber(t, factor, alpha[j], "alpha")
					}
				} else {
					sameNumber(t, m0[j], m[j], "m of a row that sees nothing")
					sameNumber(t, l0[j], l[j], "l of a row that sees nothing")
				}
				for c := range cols {
					want := o0[j*cols+c]
					if any {
						if want = float32(want * factor); anew || math.Abs(float64(want)) < 0x1p-95 {
							want = 0
						}
					}
					for i := 0; i < keys; i += 2 {
						var b [2]float32
						for place := range 2 {
							if seen[i+place] {
								b[place] = vf[(i+place)*cols+c]
							}
						}
						if seen[i] || seen[i+1] {
							before := want
							want = step(prob[i], prob[i+1], b[0], b[1], want)
							sameNumber(t, want, hardware(prob[i], prob[i+1], b[0], b[1], before), "without subnormal values")
						}
					}
					sameNumber(t, want, o[j*cols+c], "output, keys=%d n=%d cols=%d", keys, n, cols)
				}
			}
			require.Equal(t, found, holes)
		}
	})
}

// TestValueTilePairs shows that nothing but masks sets the two kernels apart.
func TestValueTilePairs(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		const pairs, n, cols = 5, 3, 17
		p, _ := narrowed(edges(r, class, pairs*2*n), ref.NarrowActBF16)
		for i := range p {
			p[i] &= 0x7FFF
		}
		v, _ := narrowed(edges(r, class, pairs*2*cols), ref.NarrowValueBF16)
		a, alpha := class.Make(r, n*cols), class.Make(r, n)
		b := append([]float32(nil), a...)
		ref.ValueTilePairs(a, cols, p, 2*n, v, 2*cols, alpha, pairs, n, cols, nil)
		ref.ValueTilePairsMasked(b, cols, p, 2*n, v, 2*cols, alpha, pairs, n, cols)
		kerneltest.Equal(t, a, b, "outputs")
	})
}

// TestValueTilePairsCausal gives each row by itself the pairs that it sees, the last one perhaps cut to its first key.
func TestValueTilePairsCausal(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		const pairs, n, cols = 5, 4, 11
		seen := r.IntN(2*pairs + 2)
		p, _ := narrowed(edges(r, class, pairs*2*n), ref.NarrowActBF16)
		v, _ := narrowed(edges(r, class, pairs*2*cols), ref.NarrowValueBF16)
		a, alpha := class.Make(r, n*cols), class.Make(r, n)
		b := append([]float32(nil), a...)
		for j := range n {
			keys := min(seen+j, 2*pairs)
			w := append([]uint16(nil), v...)
			q := append([]uint16(nil), p...)
			for key := range 2 * pairs {
				if key >= seen+j {
					p[key/2*2*n+2*j+key%2], q[key/2*2*n+2*j+key%2] = 0x8000, 0
				}
				for c := 0; key >= keys && c < cols; c++ {
					w[key/2*2*cols+2*c+key%2] = 0
				}
			}
			ref.ValueTilePairs(a[j*cols:], cols, q[2*j:], 2*n, w, 2*cols, alpha[j:], (keys+1)/2, 1, cols, nil)
		}
		ref.ValueTilePairsCausal(b, cols, p, 2*n, v, 2*cols, alpha, pairs, n, cols, seen)
		kerneltest.Equal(t, a, b, "outputs")
	})
}

func TestPairLoop(t *testing.T) {
	r := kerneltest.Rand(1)
	x := kerneltest.Classes[0].Make(r, 192)
	want := append([]float32(nil), x...)
	ref.PairLoop(x, 0x3F80_4000, 0x4040_3F00, 3) // 2 and 1 by 0.5 and 3
	for i := range want {
		for range 3 {
			want[i] = fma(2, 0.5, fma(1, 3, want[i]))
		}
	}
	assert.Equal(t, want, x)
}
