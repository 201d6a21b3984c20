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

// The tolerances of the second arithmetic go by the size of the output, and let no larger error
// pass, nor another place of an infinity.
func TestToleranceBF16(t *testing.T) {
	a := answer{
		output: []float32{2, -0.5, 0, 1}, lse: []float32{3, float32(math.Inf(1))},
		shape: checkpoint.Shape{4}, perHead: checkpoint.Shape{2},
		tol: tolerances{out: tolerance{1e-9, 1e-9, 1e-9}, f32: &tolerance{1e-9, 1e-9, 1e-9}}, lseTol: tolerance{abs: 1e-9},
	}
	a.in(mla.BF16, flashDense, roundingsMore)
	judged := func(out, lse []float32) outcome {
		o, err := a.judge(checkpoint.F32, func(to mla.Rows, l, _ []float32) error {
			to.Narrow(0, out)
			copy(l, lse)
			return nil
		})
		require.NoError(t, err)
		assert.Equal(t, mla.BF16, o.arithmetic)
		return o
	}
	assert.Empty(t, judged([]float32{2.003, -0.501, 0.003, 1.002}, []float32{3.5, float32(math.Inf(1))}).faults)
	assert.Empty(t, judged([]float32{2, -0.5, 0.009, 1}, a.lse).faults, "0 by the size of the others")
	wrong := func(what string, out, lse []float32) {
		t.Helper()
		assert.Contains(t, strings.Join(judged(out, lse).faults, "; "), what)
	}
	wrong("output in F32[2]", []float32{2, -0.5, 0.04, 1}, a.lse)
	wrong("output in F32[0]", []float32{2.1, -0.5, 0, 1}, a.lse)
	wrong("cosine", []float32{2.02, -0.52, 0.02, 0.98}, a.lse)
	wrong("lse[1]", a.output, []float32{3, 3})
	wrong("lse[0]", a.output, []float32{float32(math.NaN()), float32(math.Inf(1))})
}
