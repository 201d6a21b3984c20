package ref_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

// buffers are the arrays of one call.
type buffers [][]float32

// compare runs a kernel on fenced copies of its arrays, which are just as long as it may read, at the fence behind and
// at the one before. Its outputs must have the bits that naive gives, between the rows too, and its inputs must stay.
func compare(t *testing.T, name string, in, out buffers, naive, kernel func(in, out buffers)) {
	t.Helper()
	want := fenced(t, out, kerneltest.Back)
	naive(fenced(t, in, kerneltest.Back), want)
	for _, at := range kerneltest.Edges {
		gotIn, gotOut := fenced(t, in, at), fenced(t, out, at)
		kernel(gotIn, gotOut)
		for i := range want {
			kerneltest.Equal(t, want[i], gotOut[i], "%s, %v: output %d", name, at, i)
		}
		for i := range in {
			kerneltest.Equal(t, in[i], gotIn[i], "%s, %v: input %d was written", name, at, i)
		}
	}
}

func fenced(t *testing.T, arrays buffers, at kerneltest.Edge) (copies buffers) {
	for _, x := range arrays {
		copies = append(copies, kerneltest.FencedCopy(t, x, at))
	}
	return copies
}

// trials runs f on every class of data, as a subtest each.
func trials(t *testing.T, f func(t *testing.T, r *rand.Rand, class kerneltest.Class)) {
	for i, class := range kerneltest.Classes {
		t.Run(class.Name, func(t *testing.T) { f(t, kerneltest.Rand(uint64(i)), class) })
	}
}

// pick is one of the numbers.
func pick(r *rand.Rand, numbers ...int) int { return numbers[r.IntN(len(numbers))] }

// extent is the length of an array of rows of n values with a stride.
func extent(rows, stride, n int) int {
	if rows == 0 || n == 0 {
		return 0
	}
	return (rows-1)*stride + n
}

func panels(n int) int { return (n + ref.Lanes - 1) / ref.Lanes }

func TestPart(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for i := range max(3, samples(20)) {
			m, n, k := pick(r, 1, 2, 3, 5), pick(r, 1, 4, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33), pick(r, 1, 2, 7, 16, 20)
			switch i {
			case 0:
				m, n, k = 1, 17, 40
				if !testing.Short() {
					k = 256
				}
			case 1:
				m, n, k = pick(r, 0, 1), pick(r, 0, 1), pick(r, 0, 1)
			}
			comparePart(t, r, class, m, n, k)
		}
	})
}

// comparePart tries all five on one shape.
func comparePart(t *testing.T, r *rand.Rand, class kerneltest.Class, m, n, k int) {
	ldx, ldy, ldb, lds := k+r.IntN(3), n+r.IntN(3), k*ref.Lanes+r.IntN(5), k*ref.Lanes+r.IntN(5)
	name := fmt.Sprintf("m=%d n=%d k=%d", m, n, k)
	in := buffers{
		class.Make(r, extent(m, ldx, k)),
		class.Make(r, extent(panels(n), ldb, k*ref.Lanes)),
		class.Make(r, extent(panels(n), lds, k*ref.Lanes)),
		class.Make(r, n),
	}
	out := buffers{class.Make(r, extent(m, ldy, n))}
	part := func(in buffers, i, j int) float32 { return naivePart(in[0], ldx, in[1], ldb, i, j, k) }
	fold := func(in buffers, i, j int) float32 { return naiveFoldPart(in[0], ldx, in[1], ldb, in[2], lds, i, j, k) }
	naive := func(f func(in buffers, y float32, i, j int) float32) func(in, out buffers) {
		return func(in, out buffers) {
			each(out[0], ldy, m, n, func(y float32, i, j int) float32 { return f(in, y, i, j) })
		}
	}
	compare(t, "PartSet "+name, in, out,
		naive(func(in buffers, y float32, i, j int) float32 { return part(in, i, j) }),
		func(in, out buffers) { ref.PartSet(out[0], ldy, in[0], ldx, in[1], ldb, m, n, k) })
	compare(t, "PartAdd "+name, in, out,
		naive(func(in buffers, y float32, i, j int) float32 { return y + part(in, i, j) }),
		func(in, out buffers) { ref.PartAdd(out[0], ldy, in[0], ldx, in[1], ldb, m, n, k) })
	compare(t, "PartScale "+name, in, out,
		naive(func(in buffers, y float32, i, j int) float32 { return fma(part(in, i, j), in[3][j], y) }),
		func(in, out buffers) { ref.PartScale(out[0], ldy, in[0], ldx, in[1], ldb, in[3], m, n, k) })
	compare(t, "PartFoldSet "+name, in, out,
		naive(func(in buffers, y float32, i, j int) float32 { return fold(in, i, j) }),
		func(in, out buffers) { ref.PartFoldSet(out[0], ldy, in[0], ldx, in[1], ldb, in[2], lds, m, n, k) })
	compare(t, "PartFoldAdd "+name, in, out,
		naive(func(in buffers, y float32, i, j int) float32 { return y + fold(in, i, j) }),
		func(in, out buffers) { ref.PartFoldAdd(out[0], ldy, in[0], ldx, in[1], ldb, in[2], lds, m, n, k) })
}

// TestPartChangesLoops puts a product of many bits, whose sum two roundings get wrong, at each step of a run of plain
// data and of products of few bits, which take a loop of their own until then.
func TestPartChangesLoops(t *testing.T) {
	const k = 48
	r := kerneltest.Rand(3)
	step := 1
	if testing.Short() {
		step = 9
	}
	for at := 2; at < k; at += step {
		for _, class := range kerneltest.Classes[:2] {
			x, b := class.Make(r, k), class.Make(r, k*ref.Lanes)
			x[at-2], x[at-1], x[at] = 1, 1, 0x1p-24*(1+0x1p-23)
			for lane := range ref.Lanes {
				b[(at-2)*ref.Lanes+lane] = -naivePart(x, k, b, 0, 0, lane, at-2) // back to zero
				b[(at-1)*ref.Lanes+lane] = 1 + 0x1p-23
				b[at*ref.Lanes+lane] = 1 - 0x1p-23 // 2^-70 less than half a unit
				assert.Equal(t, float32(1+0x1p-23), naivePart(x, k, b, 0, 0, lane, at+1))
			}
			compare(t, fmt.Sprint(class.Name, ", step ", at), buffers{x, b}, buffers{make([]float32, ref.Lanes)},
				func(in, out buffers) {
					for lane := range ref.Lanes {
						out[0][lane] = naivePart(in[0], k, in[1], 0, 0, lane, k)
					}
				},
				func(in, out buffers) { ref.PartSet(out[0], ref.Lanes, in[0], k, in[1], 0, 1, ref.Lanes, k) })
		}
	}
}

// TestPartHardSums runs sums on or next to half-way points through both loops: operands as they are, and cut to 12 bits,
// so that their product has no more bits than an f32.
func TestPartHardSums(t *testing.T) {
	cut := func(x float32) float32 { return math.Float32frombits(math.Float32bits(x) &^ 0xFFF) }
	r := kerneltest.Rand(5)
	for name, operands := range hardSums {
		for range samples(5000) {
			a, b, c := operands(r)
			for range 2 {
				x, panel, y := []float32{1, a}, make([]float32, 2*ref.Lanes), make([]float32, ref.Lanes)
				for lane := range y {
					panel[lane], panel[ref.Lanes+lane] = c, b
				}
				ref.PartSet(y, ref.Lanes, x, 2, panel, 0, 1, ref.Lanes, 2)
				want := fma(a, b, c+0)
				kerneltest.Equal(t, slices.Repeat([]float32{want}, ref.Lanes), y, "%s: fma(%x, %x, %x)", name, a, b, c)
				a, b = cut(a), cut(b)
			}
		}
	}
}

func TestPackRows(t *testing.T) {
	r := kerneltest.Rand(4)
	for _, n := range []int{0, 1, 15, 16, 17, 40} {
		for _, k := range []int{0, 1, 3, 20} {
			lds, ldd := k+2, k*ref.Lanes+3
			compare(t, fmt.Sprintf("n=%d k=%d", n, k),
				buffers{kerneltest.Classes[0].Make(r, extent(n, lds, k))},
				buffers{kerneltest.Classes[0].Make(r, extent(panels(n), ldd, k*ref.Lanes))},
				func(in, out buffers) {
					for j := range panels(n) * ref.Lanes {
						for kk := range k {
							v := float32(0)
							if j < n {
								v = in[0][j*lds+kk]
							}
							out[0][(j/16)*ldd+kk*16+j%16] = v
						}
					}
				},
				func(in, out buffers) { ref.PackRows(out[0], ldd, in[0], lds, n, k) })
		}
	}
}

// bounds are ranges of visible keys of all kinds: whole, empty, reversed, past both ends.
func bounds(r *rand.Rand, n, keys int) (lo, hi []int32) {
	for range n {
		a, b := r.IntN(keys+20)-10, r.IntN(keys+20)-10
		switch r.IntN(3) {
		case 0:
			a, b = -5, keys+700
		case 1:
			a, b = min(a, b), max(a, b)
		}
		lo, hi = append(lo, int32(a)), append(hi, int32(b))
	}
	return lo, hi
}

// running is a maximum or a sum as they are between two tiles, mostly.
func running(r *rand.Rand, n int, class kerneltest.Class) (m, l []float32) {
	for range n {
		a, b := class.Value(r), 1+511*r.Float32()
		if r.IntN(3) == 0 {
			a, b = -inf, 0
		}
		m, l = append(m, a), append(l, b)
	}
	return m, l
}

func TestSoftmaxTile(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(4, samples(100)) {
			n, keys := pick(r, 0, 1, 3, 16, 17), pick(r, 0, 1, 7, 63, 64)
			lds := n + r.IntN(3)
			s := class.Make(r, extent(keys, lds, n))
			for i := range s {
				if r.IntN(9) == 0 {
					s[i] = -inf
				}
			}
			lo, hi := bounds(r, n, keys)
			m, l := running(r, n, class)
			scale := []float32{1, 0.125, -0.7, 3}[r.IntN(4)]
			compare(t, fmt.Sprintf("n=%d keys=%d", n, keys), nil, buffers{s, m, l, make([]float32, n)},
				func(_, out buffers) { naiveSoftmax(out[0], lds, keys, n, lo, hi, scale, out[1], out[2], out[3]) },
				func(_, out buffers) { ref.SoftmaxTile(out[0], lds, keys, n, lo, hi, scale, out[1], out[2], out[3]) })
		}
	})
}

func TestSoftmaxTileSpecial(t *testing.T) {
	for _, c := range []struct {
		name            string
		s               []float32
		lo, hi          int32
		m, l            float32
		top, sum, alpha float32
		masked          []bool
	}{
		{"nothing in range", []float32{1, 2, nan}, 2, 2, 3, 4, 3, 4, 1, []bool{true, true, true}},
		{"all -Inf", []float32{-inf, -inf}, 0, 2, 3, 4, 3, 4, 1, []bool{true, true}},
		{"still nothing seen", []float32{-inf, 5}, 0, 1, -inf, 0, -inf, 0, 1, []bool{true, true}},
		{"first tile", []float32{7, 7}, 0, 2, -inf, 0, 7, 2, 0, []bool{false, false}},
		{"NaN hidden", []float32{nan, 7, inf}, 1, 2, -inf, 0, 7, 1, 0, []bool{true, false, true}},
		{"NaN seen", []float32{nan, 7}, 0, 2, 1, 2, nan, nan, nan, []bool{false, false}},
		{"NaN last and alone", []float32{-inf, nan}, 0, 2, -inf, 0, nan, nan, nan, []bool{true, false}},
		{"+Inf seen", []float32{inf, 7}, 0, 2, 1, 2, inf, nan, 0, []bool{false, false}},
		{"after +Inf", []float32{7}, 0, 1, inf, nan, inf, nan, nan, []bool{false}},
		{"after NaN", []float32{7}, 0, 1, nan, nan, nan, nan, nan, []bool{false}},
		{"a key at exp 0", []float32{-1000, 0}, 0, 2, -inf, 0, 0, 1, 0, []bool{false, false}},
	} {
		m, l, alpha := []float32{c.m}, []float32{c.l}, []float32{-7}
		s := slices.Clone(c.s)
		ref.SoftmaxTile(s, 1, len(s), 1, []int32{c.lo}, []int32{c.hi}, 1, m, l, alpha)
		kerneltest.Equal(t, []float32{c.top, c.sum, c.alpha}, []float32{m[0], l[0], alpha[0]}, "%s", c.name)
		for key, p := range s {
			assert.Equal(t, c.masked[key], math.Float32bits(p) == 1<<31, "%s: key %d is %g", c.name, key, p)
		}
	}
}

func TestValueTile(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(3, samples(40)) {
			n, keys, cols := pick(r, 0, 1, 2, 5), pick(r, 0, 1, 9, 64), pick(r, 0, 1, 5, 8, 13, 16)
			ldo, ldp, ldv := cols+r.IntN(3), n+r.IntN(3), cols+r.IntN(9)
			p, alpha := make([]float32, extent(keys, ldp, n)), class.Make(r, n)
			v := class.Make(r, extent(keys, ldv, cols))
			for i := range p {
				if p[i] = r.Float32(); r.IntN(20) == 0 {
					p[i] = []float32{negZero, 0, 1, 1e-40}[r.IntN(4)]
				}
			}
			for j := range alpha {
				alpha[j] = []float32{0, 1, 1, nan, r.Float32()}[r.IntN(5)]
			}
			for key := range keys { // a key that no row sees holds NaN
				if r.IntN(5) == 0 {
					for j := range n {
						p[key*ldp+j] = negZero
					}
					for c := range cols {
						v[key*ldv+c] = nan
					}
				}
			}
			compare(t, fmt.Sprintf("n=%d keys=%d cols=%d", n, keys, cols),
				buffers{p, v, alpha}, buffers{class.Make(r, extent(n, ldo, cols))},
				func(in, out buffers) { naiveValues(out[0], ldo, in[0], ldp, in[1], ldv, in[2], keys, n, cols) },
				func(in, out buffers) { ref.ValueTileMasked(out[0], ldo, in[0], ldp, in[1], ldv, in[2], keys, n, cols) })
		}
	})
}

// The naive sum takes keys by their p, the kernel by their number.
func TestValueTileCausal(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(3, samples(40)) {
			n, keys, cols := pick(r, 0, 1, 2, 5), pick(r, 0, 1, 9, 64), pick(r, 0, 1, 5, 8, 13)
			seen := r.IntN(keys + 3)
			ldo, ldp, ldv := cols+r.IntN(3), n+r.IntN(3), cols+r.IntN(9)
			p, alpha := make([]float32, extent(keys, ldp, n)), class.Make(r, n)
			v := class.Make(r, extent(keys, ldv, cols))
			for key := range keys {
				for j := range n {
					if p[key*ldp+j] = r.Float32(); key >= seen+j {
						p[key*ldp+j] = negZero
					}
				}
			}
			compare(t, fmt.Sprintf("n=%d keys=%d cols=%d seen=%d", n, keys, cols, seen),
				buffers{p, v, alpha}, buffers{class.Make(r, extent(n, ldo, cols))},
				func(in, out buffers) { naiveValues(out[0], ldo, in[0], ldp, in[1], ldv, in[2], keys, n, cols) },
				func(in, out buffers) {
					ref.ValueTileCausal(out[0], ldo, in[0], ldp, in[1], ldv, in[2], keys, n, cols, seen)
				})
		}
	})
}

func TestFoldRows(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(4, samples(100)) {
			n, cols := pick(r, 0, 1, 4), pick(r, 0, 1, 8, 13)
			ldo, ldO := cols+r.IntN(3), cols+r.IntN(3)
			m, l := running(r, n, class)
			M, L := running(r, n, class)
			compare(t, fmt.Sprintf("n=%d cols=%d", n, cols),
				buffers{class.Make(r, extent(n, ldo, cols)), m, l}, buffers{class.Make(r, extent(n, ldO, cols)), M, L},
				func(in, out buffers) { naiveFold(out[0], ldO, out[1], out[2], in[0], ldo, in[1], in[2], n, cols) },
				func(in, out buffers) { ref.FoldRows(out[0], ldO, out[1], out[2], in[0], ldo, in[1], in[2], n, cols) })
		}
	})
}

func TestFinishRows(t *testing.T) {
	O := []float32{3, -6, 0}
	for _, c := range []struct {
		name     string
		M, L     float32
		sink     []float32
		out      []float32
		lse, top float32
	}{
		{"plain", 2, 1.5, nil, []float32{2, -4, 0}, 2 + ref.Log(1.5), 2},
		{"sink", 0, 1, []float32{0}, []float32{1.5, -3, 0}, 0, 0},
		{"no sink", 2, 1.5, []float32{-inf}, []float32{2, -4, 0}, 2 + ref.Log(1.5), 2},
		{"a sink that models pass", 2, 1.5, []float32{-1e38}, []float32{2, -4, 0}, 2 + ref.Log(1.5), 2},
		{"infinite sink", 2, 1.5, []float32{inf}, []float32{0, negZero, 0}, 2 + ref.Log(1.5), 2},
		{"NaN sink", 2, 1, []float32{nan}, []float32{nan, nan, nan}, 2, 2},
		{"saw nothing", -inf, 0, nil, []float32{0, 0, 0}, inf, -inf},
		{"saw nothing, sink", -inf, 0, []float32{5}, []float32{0, 0, 0}, inf, -inf},
		{"saw nothing, infinite sink", -inf, 0, []float32{inf}, []float32{0, 0, 0}, inf, -inf},
		{"NaN", nan, nan, nil, []float32{nan, nan, nan}, nan, nan},
		{"saw +Inf", inf, nan, []float32{inf}, []float32{nan, nan, nan}, nan, nan},
		{"maximum -0", negZero, 1, nil, []float32{3, -6, 0}, 0, 0},
	} {
		out, lse, top := []float32{7, 7, 7}, []float32{7}, []float32{7}
		ref.FinishRows(out, 3, O, 3, []float32{c.M}, []float32{c.L}, c.sink, lse, top, 1, 3, 0)
		kerneltest.Equal(t, c.out, out, "%s: output", c.name)
		kerneltest.Equal(t, []float32{c.lse, c.top}, []float32{lse[0], top[0]}, "%s: lse, max logit", c.name)
		again := []float32{7, 7, 7}
		ref.FinishRows(again, 3, O, 3, []float32{c.M}, []float32{c.L}, c.sink, nil, nil, 1, 3, 0)
		kerneltest.Equal(t, out, again, "%s: output alone", c.name)
		halves, want := make([]uint16, 3), make([]uint16, 3)
		lse[0], top[0] = 7, 7
		ref.FinishRowsBF16(halves, 3, O, 3, []float32{c.M}, []float32{c.L}, c.sink, lse, top, 1, 3, 0)
		ref.NarrowBF16(want, out)
		assert.Equal(t, want, halves, "%s: output in bf16", c.name)
		kerneltest.Equal(t, []float32{c.lse, c.top}, []float32{lse[0], top[0]}, "%s: lse, max logit beside bf16", c.name)
	}
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		const n, cols = 5, 7
		M, L := running(r, n, class)
		compare(t, "rows", buffers{class.Make(r, extent(n, cols+1, cols)), M, L, class.Make(r, n)},
			buffers{class.Make(r, extent(n, cols+2, cols)), make([]float32, n)},
			func(in, out buffers) {
				each(out[0], cols+2, n, cols, func(_ float32, j, c int) float32 {
					if in[1][j] == -inf {
						return 0
					}
					return in[0][j*(cols+1)+c] / (in[2][j] + ref.Exp(in[3][j]-in[1][j]))
				})
				for j := range n {
					if out[1][j] = in[1][j] + ref.Log(in[2][j]); in[1][j] == -inf {
						out[1][j] = inf
					}
				}
			},
			func(in, out buffers) {
				ref.FinishRows(out[0], cols+2, in[0], cols+1, in[1], in[2], in[3], out[1], nil, n, cols, 0)
			})
	})
}

func TestMergeRows(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for range max(4, samples(100)) {
			p, n, d := pick(r, 0, 1, 2, 5), pick(r, 1, 3), pick(r, 1, 6)
			partsLSE := class.Make(r, p*n)
			for i := range partsLSE {
				if r.IntN(2) == 0 {
					partsLSE[i] = []float32{-inf, inf, -300, 5, nan}[min(r.IntN(20), 4)]
				}
			}
			compare(t, fmt.Sprintf("p=%d n=%d d=%d", p, n, d), buffers{class.Make(r, p*n*d), partsLSE},
				buffers{class.Make(r, n*d), class.Make(r, n)},
				func(in, out buffers) { naiveMerge(out[0], out[1], in[0], in[1], p, n, d) },
				func(in, out buffers) { ref.MergeRows(out[0], out[1], in[0], in[1], p, n, d) })
		}
	})
}

func TestMergeRowsSpecial(t *testing.T) {
	for _, c := range []struct {
		name       string
		lse, parts []float32
		want       []float32 // output, lse
	}{
		{"none", []float32{-inf, inf}, []float32{nan, 5}, []float32{0, inf}},
		{"one live, unchanged", []float32{-inf, -700, inf}, []float32{nan, negZero, nan}, []float32{negZero, -700}},
		{"a weight of zero", []float32{-700, 3}, []float32{nan, 5}, []float32{5, 3}},
		{"NaN lse", []float32{1, nan}, []float32{1, 5}, []float32{nan, nan}},
		{"NaN lse alone", []float32{-inf, nan}, []float32{1, 5}, []float32{nan, nan}},
		{"NaN part", []float32{0, 0}, []float32{1, nan}, []float32{nan, ref.Log(2)}},
		{"halves", []float32{1, 1}, []float32{2, 4}, []float32{3, 1 + ref.Log(2)}},
	} {
		out, lse := []float32{7}, []float32{7}
		ref.MergeRows(out, lse, c.parts, c.lse, len(c.lse), 1, 1)
		kerneltest.Equal(t, c.want, []float32{out[0], lse[0]}, "%s", c.name)
	}
}

func TestNorm(t *testing.T) {
	bf16 := func(x float32) float32 { return ref.BF16ToF32(ref.F32ToBF16(x)) }
	f16 := func(x float32) float32 { return ref.F16ToF32(ref.F32ToF16(x)) }
	plain := func(x float32) float32 { return x }
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for _, n := range []int{1, 31, 32, 33, 64, 77} {
			const eps = 1e-6
			in := buffers{class.Make(r, n), class.Make(r, n)}
			assert.True(t, kerneltest.SameBits(naiveSumSquares(in[0]), ref.SumSquares(in[0])), "n=%d", n)
			for _, k := range []struct {
				name  string
				round func(float32) float32
				norm  func(dst, x, gamma []float32, eps float32)
			}{{"RMSNorm", plain, ref.RMSNorm}, {"RMSNormBF16", bf16, ref.RMSNormBF16}, {"RMSNormF16", f16, ref.RMSNormF16}} {
				compare(t, fmt.Sprint(k.name, " ", n), in, buffers{make([]float32, n)},
					func(in, out buffers) {
						mean := naiveSumSquares(in[0]) / float32(n)
						r := 1 / float32(math.Sqrt(float64(mean+eps)))
						for i, x := range in[0] {
							out[0][i] = k.round(float32(k.round(float32(x*r)) * in[1][i]))
						}
					},
					func(in, out buffers) { k.norm(out[0], in[0], in[1], eps) })
				compare(t, fmt.Sprint(k.name, " in place ", n), in[1:], in[:1],
					func(in, out buffers) {
						x := slices.Clone(out[0])
						k.norm(out[0], x, in[0], eps)
					},
					func(in, out buffers) { k.norm(out[0], out[0], in[0], eps) })
			}
		}
	})
}

func TestRope(t *testing.T) {
	trials(t, func(t *testing.T, r *rand.Rand, class kerneltest.Class) {
		for _, p := range []int{0, 2, 6, 64} {
			for _, half := range []bool{false, true} {
				kernel := ref.RopeInterleaved
				if half {
					kernel = ref.RopeHalf
				}
				naive := func(x, freqs []float32) []float32 {
					y := make([]float32, p)
					for i := range p / 2 {
						a, b := 2*i, 2*i+1
						if half {
							a, b = i, i+p/2
						}
						cos, sin := freqs[2*i], freqs[2*i+1]
						ac, bs, as, bc := float32(x[a]*cos), float32(x[b]*sin), float32(x[a]*sin), float32(x[b]*cos)
						y[a], y[b] = ac-bs, as+bc
					}
					return y
				}
				x, freqs := class.Make(r, p), class.Make(r, p)
				compare(t, fmt.Sprint(p, half), buffers{x, freqs}, buffers{make([]float32, p)},
					func(in, out buffers) { copy(out[0], naive(in[0], in[1])) },
					func(in, out buffers) { kernel(out[0], in[0], in[1]) })
				compare(t, fmt.Sprint(p, half, " in place"), buffers{freqs}, buffers{x},
					func(in, out buffers) { copy(out[0], naive(out[0], in[0])) },
					func(in, out buffers) { kernel(out[0], out[0], in[0]) })
			}
		}
	})
}

// TestKernelsDoNotAllocate holds the kernels that are called for each tile to no allocation.
func TestKernelsDoNotAllocate(t *testing.T) {
	const n, k = 16, 32
	y, x, b := make([]float32, n*n), make([]float32, n*k), make([]float32, ref.Lanes*k)
	row, hi := make([]float32, n), make([]int32, n)
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		ref.PackRows(b, ref.Lanes*k, x, k, n, k)
		ref.PartSet(y, n, x, k, b, ref.Lanes*k, n, n, k)
		ref.PartFoldAdd(y, n, x, k, b, ref.Lanes*k, b, ref.Lanes*k, n, n, k)
		ref.PartScale(y, n, x, k, b, ref.Lanes*k, row, n, n, k)
		ref.SoftmaxTile(y, n, n, n, hi, hi, 1, row, row, row)
		ref.ValueTileMasked(x, k, y, n, x, k, row, n, n, k)
		ref.FoldRows(x, k, row, row, x, k, row, row, n, k)
		ref.FinishRows(x, k, x, k, row, row, nil, row, row, n, k, 0)
		ref.MergeRows(x, row, x, row, 1, n, k)
		ref.RMSNorm(row, row, row, 1)
	}))
}
