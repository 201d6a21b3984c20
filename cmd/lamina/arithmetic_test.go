package main

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
)

// TestReplayBF16 runs the embedded cases in the second arithmetic: within its tolerances, with the
// same bits on every instruction set, page size and number of threads, which are not those of the
// first.
func TestReplayBF16(t *testing.T) {
	f32 := readHashes(t, "testdata/hashes.json")
	b, err := os.ReadFile("testdata/hashes_bf16.json")
	require.NoError(t, err)
	var want map[string]string
	require.NoError(t, json.Unmarshal(b, &want))
	for _, flags := range [][]string{{"-threads", "1"}, {"-threads", "2", "-page", "23"}} {
		lines, status, stderr := replay(t, append(flags, "-arithmetic", "bf16")...)
		assert.Equal(t, statusOK, status, stderr)
		cases, others := 0, 0
		for _, l := range lines {
			assert.True(t, l.Pass, l.Name)
			if l.Op == "merge" {
				assert.Equal(t, "f32", l.Arithmetic, "%s: merging has one", l.Name)
				continue
			}
			assert.Equal(t, "bf16", l.Arithmetic, l.Name)
			assert.Equal(t, want[l.Name], l.Hash, "%s %v", l.Name, flags)
			if cases++; l.Hash != f32[l.Name].Hash {
				others++
			}
		}
		assert.Len(t, want, cases)
		assert.Equal(t, cases-2, others, "the two without a visible key have the bits of the first")
	}
	_, status, stderr := replay(t, "-arithmetic", "f16")
	assert.Equal(t, statusUnusable, status)
	assert.Contains(t, stderr, `"f16"`)
}

// The tolerances of the second arithmetic go by the size of the output and by what is rounded, and
// let no larger error pass, nor another place of an infinity.
func TestToleranceBF16(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	output, lse := []float32{2, -0.5, 0, 1}, []float32{3, inf}
	faults := func(more allowance, out, ends []float32) string {
		a := answer{
			output: output, lse: lse, maxLogits: []float32{2.5, -inf},
			shape: checkpoint.Shape{4}, perHead: checkpoint.Shape{2},
			tol:    tolerances{out: tolerance{1e-9, 1e-9, 1e-9}, f32: &tolerance{1e-9, 1e-9, 1e-9}},
			lseTol: tolerance{abs: 1e-9}, maxLogitTol: tolerance{abs: 1e-9},
		}
		a.in(mla.ComputeBF16, flashDense, more)
		o, err := a.judge(checkpoint.F32, func(to mla.Rows, l, m []float32) error {
			to.Narrow(0, out)
			copy(l, ends)
			m[0], m[1] = ends[0]-0.5, -inf
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, mla.ComputeBF16, o.arithmetic)
		return strings.Join(o.faults, "; ")
	}
	for _, more := range []allowance{asPublished, roundedInputs, withProducts} {
		assert.Empty(t, faults(more, []float32{2.003, -0.501, 0.003, 1.002}, lse))
	}
	assert.Empty(t, faults(roundedInputs, []float32{2, -0.5, 0.009, 1}, lse), "0 by the size of the others")
	assert.Empty(t, faults(roundedInputs, output, []float32{3.015, inf}))
	for _, wrong := range []struct {
		more      allowance
		out, ends []float32
		fault     string
	}{
		{asPublished, []float32{2, -0.5, 0.009, 1}, lse, "output in F32[2]"},
		{roundedInputs, []float32{2, -0.5, 0.011, 1}, lse, "output in F32[2]"},
		{withProducts, []float32{2, -0.5, 0.022, 1}, lse, "output in F32[2]"},
		{withProducts, []float32{2.04, -0.5, 0, 1}, lse, "output in F32[0]"},
		{asPublished, []float32{2.01, -0.5, 0, 1}, lse, "cosine"},
		{withProducts, []float32{2.02, -0.505, 0.008, 1.008}, lse, "cosine"},
		{asPublished, output, []float32{3.0005, inf}, "max_logits[0]"},
		{asPublished, output, []float32{3.0025, inf}, "lse[0]"},
		{roundedInputs, output, []float32{3.02, inf}, "lse[0]"},
		{withProducts, output, []float32{2.97, inf}, "lse[0]"},
		{withCodes, output, []float32{3, 3}, "lse[1]"},
		{withCodes, output, []float32{nan, inf}, "lse[0]"},
		{withCodes, []float32{2, -0.5, nan, 1}, lse, "output in F32[2]"},
	} {
		assert.Contains(t, faults(wrong.more, wrong.out, wrong.ends), wrong.fault, "%v %v %v", wrong.more, wrong.out, wrong.ends)
	}
}
