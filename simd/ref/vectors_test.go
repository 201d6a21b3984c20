package ref_test

import (
	"bytes"
	"encoding/binary"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd/ref"
)

// tensor is one tensor of the vectors: f32 values or i32 numbers.
type tensor struct {
	shape   []int
	values  []float32
	numbers []int32
}

// vectors reads testdata/arithmetic.safetensors: bits from a model of the arithmetic in another language.
func vectors(t testing.TB) map[string]tensor {
	t.Helper()
	file, err := os.ReadFile("testdata/arithmetic.safetensors")
	require.NoError(t, err)
	size := binary.LittleEndian.Uint64(file)
	var header map[string]struct {
		Dtype   string
		Shape   []int
		Offsets [2]int `json:"data_offsets"`
	}
	require.NoError(t, json.Unmarshal(file[8:8+size], &header))
	delete(header, "__metadata__")
	tensors := make(map[string]tensor)
	for name, h := range header {
		data := bytes.NewReader(file[8+size:][h.Offsets[0]:h.Offsets[1]])
		x := tensor{shape: h.Shape}
		switch n := data.Len() / 4; h.Dtype {
		case "F32":
			x.values = make([]float32, n)
			require.NoError(t, binary.Read(data, binary.LittleEndian, x.values))
		case "I32":
			x.numbers = make([]int32, n)
			require.NoError(t, binary.Read(data, binary.LittleEndian, x.numbers))
		default:
			t.Fatalf("%s: dtype %s", name, h.Dtype)
		}
		tensors[name] = x
	}
	return tensors
}

func TestExpVectors(t *testing.T) {
	file, err := os.Open("testdata/exp_f32.csv")
	require.NoError(t, err)
	defer file.Close()
	rows, err := csv.NewReader(file).ReadAll()
	require.NoError(t, err)
	rows = rows[1:]
	require.Len(t, rows, 2016)
	bits := func(hex string) uint32 {
		u, err := strconv.ParseUint(hex, 16, 32)
		require.NoError(t, err)
		return uint32(u)
	}
	for _, row := range rows {
		got := math.Float32bits(ref.Exp(math.Float32frombits(bits(row[0]))))
		require.Equal(t, bits(row[1]), got, "exp of %s is %08x, want %s", row[0], got, row[1])
	}
}

// piece is the longest piece of a sum over k.
const piece = 256

// product is y[m][n] = x[m][k] * w[n][k]^T as the arithmetic has it: pieces of 256, and of the scale groups if there
// is a row of scales for groups of step terms. Below 16 the scale is folded into x.
func product(y, x, w []float32, m, n, k int, scale []float32, step int) {
	panels := make([]float32, (n+ref.Lanes-1)/ref.Lanes*ref.Lanes*k)
	ref.PackRows(panels, ref.Lanes*k, w, k, n, k)
	clear(y)
	folded := make([]float32, len(panels))
	for kk := range k {
		for lane := range ref.Lanes {
			for p := 0; p < len(panels); p += ref.Lanes * k {
				folded[p+kk*ref.Lanes+lane] = 1
				if scale != nil {
					folded[p+kk*ref.Lanes+lane] = scale[kk/step]
				}
			}
		}
	}
	for k0 := 0; k0 < k; {
		end := min(k, k0-k0%piece+piece)
		if scale != nil && step >= 16 {
			end = min(end, k0-k0%step+step)
		}
		xs, panel, size := x[k0:], panels[k0*ref.Lanes:], end-k0
		switch {
		case scale == nil && k0 == 0:
			ref.PartSet(y, n, xs, k, panel, ref.Lanes*k, m, n, size)
		case scale == nil:
			ref.PartAdd(y, n, xs, k, panel, ref.Lanes*k, m, n, size)
		case step >= 16:
			lanes := make([]float32, n)
			for j := range lanes {
				lanes[j] = scale[k0/step]
			}
			ref.PartScale(y, n, xs, k, panel, ref.Lanes*k, lanes, m, n, size)
		case k0 == 0:
			ref.PartFoldSet(y, n, xs, k, panel, ref.Lanes*k, folded, ref.Lanes*k, m, n, size)
		default:
			ref.PartFoldAdd(y, n, xs, k, panel, ref.Lanes*k, folded[k0*ref.Lanes:], ref.Lanes*k, m, n, size)
		}
		k0 = end
	}
}

func TestProductVectors(t *testing.T) {
	all := vectors(t)
	for _, c := range []struct {
		name string
		step int
	}{{"gemm", 128}, {"gemm_long", 600}, {"gemm_fold", 8}} {
		x, w, want := all[c.name+".x"], all[c.name+".weight_values"], all[c.name+".y"]
		y := make([]float32, len(want.values))
		product(y, x.values, w.values, x.shape[0], w.shape[0], x.shape[1], all[c.name+".scale"].values, c.step)
		kerneltest.Equal(t, want.values, y, "%s", c.name)
	}
}

// attention holds the running sums of rows query rows over one or more caches.
type attention struct {
	rows, cols int
	M, L, O    []float32
}

func newAttention(rows, cols int) *attention {
	a := &attention{rows: rows, cols: cols, M: make([]float32, rows), L: make([]float32, rows), O: make([]float32, rows*cols)}
	for j := range a.M {
		a.M[j] = float32(math.Inf(-1))
	}
	return a
}

// add folds in the keys of a cache, rows of width values whose first cols are the value; row j sees the keys before
// visible[j] for which hidden is false.
func (a *attention) add(q, cache []float32, width int, visible []int32, scale float32, hidden func(key int) bool) {
	const partition, tile = 512, 64
	keys := len(cache) / width
	for first := 0; first < keys; first += partition {
		m, l, o := make([]float32, a.rows), make([]float32, a.rows), make([]float32, a.rows*a.cols)
		for j := range m {
			m[j] = float32(math.Inf(-1))
		}
		for key := first; key < min(first+partition, keys); key += tile {
			n := min(tile, keys-key)
			rows := cache[key*width:][:n*width]
			s := make([]float32, n*a.rows)
			product(s, rows, q, n, a.rows, width, nil, 0)
			lo, hi, alpha := make([]int32, a.rows), make([]int32, a.rows), make([]float32, a.rows)
			for j := range hi {
				hi[j] = visible[j] - int32(key)
				for i := range n {
					if hidden(key + i) {
						s[i*a.rows+j] = float32(math.Inf(-1))
					}
				}
			}
			ref.SoftmaxTile(s, a.rows, n, a.rows, lo, hi, scale, m, l, alpha)
			ref.ValueTileMasked(o, a.cols, s, a.rows, rows, width, alpha, n, a.rows, a.cols)
		}
		ref.FoldRows(a.O, a.cols, a.M, a.L, o, a.cols, m, l, a.rows, a.cols)
	}
}

// finish is the output and the lse.
func (a *attention) finish(sink []float32) (out, lse []float32) {
	out, lse = make([]float32, a.rows*a.cols), make([]float32, a.rows)
	ref.FinishRows(out, a.cols, a.O, a.cols, a.M, a.L, sink, lse, nil, a.rows, a.cols, 0)
	return out, lse
}

func shown(int) bool { return false }

func TestAttentionVectors(t *testing.T) {
	all := vectors(t)
	for _, name := range []string{"long", "short", "nope"} {
		q, cache, want := all[name+".q"], all[name+".cache"], all[name+".output"]
		a := newAttention(q.shape[0], want.shape[1])
		a.add(q.values, cache.values, q.shape[1], all[name+".visible"].numbers, all[name+".scale"].values[0], shown)
		out, lse := a.finish(nil)
		kerneltest.Equal(t, want.values, out, "%s.output", name)
		kerneltest.Equal(t, all[name+".lse"].values, lse, "%s.lse", name)
	}
}

// gather is the rows of a cache in the order of an index list; hidden tells which places hold none.
func gather(cache tensor, indices []int32) (rows []float32, hidden func(int) bool) {
	n, width := cache.shape[0], cache.shape[1]
	rows = make([]float32, len(indices)*width)
	hidden = func(i int) bool { return indices[i] < 0 || int(indices[i]) >= n }
	for i, index := range indices {
		if hidden(i) {
			for c := range width {
				rows[i*width+c] = float32(math.NaN()) // must reach nothing
			}
			continue
		}
		copy(rows[i*width:][:width], cache.values[int(index)*width:])
	}
	return rows, hidden
}

func TestTwoCachesVectors(t *testing.T) {
	all := vectors(t)
	const name = "two_caches."
	q, want, scale := all[name+"q"], all[name+"output"], all[name+"scale"].values[0]
	a := newAttention(q.shape[0], want.shape[1])
	for _, c := range []string{"", "extra_"} {
		cache := all[name+map[string]string{"": "cache", "extra_": "extra"}[c]]
		indices := all[name+c+"indices"].numbers
		rows, hidden := gather(cache, indices)
		visible := make([]int32, a.rows)
		for j := range visible {
			visible[j] = int32(len(indices))
		}
		a.add(q.values, rows, q.shape[1], visible, scale, hidden)
	}
	out, lse := a.finish(all[name+"sink"].values)
	kerneltest.Equal(t, want.values, out, "output")
	kerneltest.Equal(t, all[name+"lse"].values, lse, "lse")
}

func TestMergeVectors(t *testing.T) {
	all := vectors(t)
	parts, want := all["merge.parts"], all["merge.output"]
	p, n, d := parts.shape[0], parts.shape[1], parts.shape[2]
	out, lse := make([]float32, n*d), make([]float32, n)
	ref.MergeRows(out, lse, parts.values, all["merge.parts_lse"].values, p, n, d)
	kerneltest.Equal(t, want.values, out, "output")
	kerneltest.Equal(t, all["merge.lse"].values, lse, "lse")
}

func TestNormVectors(t *testing.T) {
	all := vectors(t)
	assert.Equal(t, all["sumsq.y"].values[0], ref.SumSquares(all["sumsq.x"].values))
	assert.Equal(t, all["sumsq.y512"].values[0], ref.SumSquares(all["sumsq.x512"].values))
	const eps = 1e-6
	for _, n := range []int{72, 512} {
		x := all[fmt.Sprint("rmsnorm.x", n)].values
		y := make([]float32, n)
		ref.RMSNorm(y, x, all[fmt.Sprint("rmsnorm.gamma", n)].values, eps)
		kerneltest.Equal(t, all[fmt.Sprint("rmsnorm.y_f32gamma", n)].values, y, "f32 gamma, %d", n)
		ref.RMSNormBF16(y, x, all[fmt.Sprint("rmsnorm.gamma_bf16_", n)].values, eps)
		kerneltest.Equal(t, all[fmt.Sprint("rmsnorm.y_bf16gamma", n)].values, y, "bf16 gamma, %d", n)
	}
}

func TestRopeVectors(t *testing.T) {
	all := vectors(t)
	x, freqs := all["rope.x"], all["rope.freqs"]
	rows, width := x.shape[0], x.shape[1]
	for name, turn := range map[string]func(dst, x, freqs []float32){"rope.interleaved": ref.RopeInterleaved, "rope.half": ref.RopeHalf} {
		y := make([]float32, rows*width)
		for i := range rows {
			at := i * width
			turn(y[at:][:width], x.values[at:][:width], freqs.values[at:][:width])
		}
		kerneltest.Equal(t, all[name].values, y, "%s", name)
	}
}
