package bench

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// lines are what a run writes: a machine with round limits, and rows.
func lines(t *testing.T, m Machine, rows ...Row) string {
	t.Helper()
	var b strings.Builder
	enc := json.NewEncoder(&b)
	m.Op = "machine"
	require.NoError(t, enc.Encode(m))
	for _, r := range rows {
		require.NoError(t, enc.Encode(r))
	}
	require.NoError(t, enc.Encode(LeftOut{Op: "left_out"}))
	return b.String()
}

// limitsLine is what a run writes last.
func limitsLine(t *testing.T, l Limits) string {
	t.Helper()
	l.Op = "limits"
	text, err := json.Marshal(l)
	require.NoError(t, err)
	return string(text) + "\n"
}

// round has limits that shares are easily told of.
var round = Machine{
	CPU: "Abacus", SIMD: "avx2", Threads: 2, Go: "go1", L2Bytes: 1 << 20,
	Peak1: 100, PeakN: 200, DRAM1: 20, DRAMN: 40, L3: 50, L3N: 80,
}

// result is a row of a work that takes so many ms, by a limit.
func result(s Spec, threads int, ms float64, limit string) Row {
	s.Threads = threads
	r := s.row()
	r.MS, r.Limit, r.GFlops, r.GBps, r.MaxErr = ms, limit, s.Flops()/ms/1e6, s.Bytes(0)/ms/1e6, 1e-7
	return r
}

// table is the lines of the table of bars that are about a work.
func table(t *testing.T, text string, s Spec) (line string, reached, all int) {
	t.Helper()
	r, err := ReadReport(strings.NewReader(text))
	require.NoError(t, err)
	var out strings.Builder
	reached, all = r.Bars(&out)
	for l := range strings.Lines(out.String()) {
		if strings.HasPrefix(l, "| "+s.Title()+" |") {
			line += strings.TrimSpace(l)
		}
	}
	return line, reached, all
}

func TestBars(t *testing.T) {
	plain, codes := decodeOf("v3", 4096, kvpaged.BF16), decodeOf("v3", 4096, kvpaged.FP8Unit)
	peak := plain.Flops() / 100e6 // ms at the peak of one thread
	inBF16 := func(s Spec) Spec { s.Arithmetic = mla.ComputeBF16; return s }
	pairs, token, both := inBF16(plain), gemmOf(1, 16384, 512), round
	both.SIMD = "avx512bf16"
	measured := both
	measured.Pairs1 = 190
	for name, c := range map[string]struct {
		s            Spec
		text         string
		line         string
		reached, all int
	}{
		"the best of each row": {
			plain, lines(t, round, result(plain, 1, peak/0.8, "fma"), result(plain, 2, peak/1.6, "fma")) +
				lines(t, round, result(plain, 1, peak/0.9, "fma"), result(plain, 2, peak/1.5, "fma")),
			"12.68 | 90.0% of fma | ≥ 88% of fma | 7.13 | 1.78 times | ≥ 1.93 times | **no** |", 1, 2,
		},
		"the best limit": {
			plain, lines(t, round, result(plain, 1, peak/0.9, "fma")) + lines(t, Machine{CPU: "Abacus", SIMD: "avx2", Threads: 2, Peak1: 110}),
			"12.68 | 81.8% of fma | ≥ 88% of fma | not measured |  | ≥ 1.93 times | **no** |", 0, 1,
		},
		"a small cache": {
			plain, lines(t, Machine{SIMD: "avx2", L2Bytes: 512 << 10, Peak1: 100, Threads: 1}, result(plain, 1, peak/0.875, "fma")),
			"13.04 | 87.5% of fma | ≥ 87% of fma |  |  |  | yes |", 1, 1,
		},
		"another class": {
			plain, lines(t, Machine{SIMD: "generic", Peak1: 1, PeakN: 2, Threads: 2}, result(plain, 1, 50*peak, "fma"), result(plain, 2, 25*peak, "fma")),
			"570.4 | 200.0%? of fma |  | 285.2 | 2.00 times |  |  |", 0, 0,
		},
		"more than two threads": {
			plain, lines(t, Machine{SIMD: "avx512", Peak1: 100, PeakN: 400, Threads: 4}, result(plain, 1, peak/0.9, "fma"), result(plain, 4, peak/2, "fma")),
			"12.68 | 90.0% of fma | ≥ 90% of fma | 5.704 | 2.22 times |  | yes |", 1, 1,
		},
		"next to another format": {
			codes, lines(t, round, result(plain, 1, 12.5, "fma"), result(codes, 1, 13, "fma")),
			"13 | 104.0% of bf16 | ≤ 105% of bf16 | not measured |  |  | yes |", 2, 2, // bf16 has one, too
		},
		"nothing to compare with": {
			codes, lines(t, round, result(codes, 1, 10.4, "fma")),
			"10.4 |  | ≤ 105% of bf16 | not measured |  |  |  |", 0, 0,
		},
		"next to its parts": {
			tableLayer()[2], lines(t, round, result(tableLayer()[0], 1, 0.2, "l3"), result(tableLayer()[1], 1, 0.3, "l3"),
				result(plain, 1, 12, "fma"), result(tableLayer()[2], 1, 13.75, "fma")),
			"13.75 | 110.0% of its parts | ≤ 105% of its parts | not measured |  | ≥ 1.85 times | **no** |", 1, 2,
		},
		"memory": {
			gemmOf(1, 131072, 512), lines(t, round, result(gemmOf(1, 131072, 512), 1, 4, "dram"), result(gemmOf(1, 131072, 512), 2, 2, "dram")),
			"4 | 84.5% of dram | ≥ 80% of dram | 2 | 84.5% of dram | ≥ 85% of dram | **no** |", 1, 2,
		},
		"a cache instead of memory": {
			gemmOf(1, 131072, 512), lines(t, round, result(gemmOf(1, 131072, 512), 1, 4, "l3")),
			"4 | 33.8% of l3 | ≥ 80% of dram | not measured |  | ≥ 85% of dram |  |", 0, 0,
		},
		"no bar": {
			decodeOf("v3", 4096, kvpaged.F32), lines(t, round, result(decodeOf("v3", 4096, kvpaged.F32), 1, 2*peak, "fma"), result(decodeOf("v3", 4096, kvpaged.F32), 2, peak, "fma")),
			"22.82 | 50.0% of fma |  | 11.41 | 2.00 times |  |  |", 0, 0,
		},
		"the second arithmetic": {
			pairs, lines(t, both, result(pairs, 1, peak/1.72, "fma"), result(pairs, 2, peak/3.2, "fma")),
			"6.633 | 172.0% of fma | ≥ 170% of fma | 3.565 | 1.86 times | ≥ 1.9 times | **no** |", 1, 2,
		},
		"the second arithmetic next to the first": {
			inBF16(token), lines(t, both, result(token, 1, 0.3, "l3"), result(inBF16(token), 1, 0.2, "l3"), result(token, 2, 0.15, "l3"), result(inBF16(token), 2, 0.2, "l3")),
			"0.200 | 66.7% of f32 | ≤ 100% of f32 | 0.200 | 133.3% of f32 | ≤ 100% of f32 | **no** |", 2, 3, // f32 has one, too
		},
		"the second arithmetic elsewhere": {
			pairs, lines(t, round, result(pairs, 1, 2*peak, "fma")),
			"22.82 | 50.0% of fma |  | not measured |  |  |  |", 0, 0,
		},
		"the second arithmetic elsewhere, not measured": {pairs, lines(t, round), "", 0, 0},
		"more than the limit": { // of a busy minute
			plain, lines(t, round, result(plain, 1, peak/1.06, "fma")),
			"10.76 | 106.0%? of fma | ≥ 88% of fma | not measured |  | ≥ 1.93 times |  |", 0, 0,
		},
		"more than the limit as it was first": {
			plain, lines(t, round, result(plain, 1, peak/1.06, "fma")) + limitsLine(t, Limits{Threads: 2, Best: map[string]float64{"peak_gflops_1": 117.8}}),
			"10.76 | 90.0% of fma | ≥ 88% of fma | not measured |  | ≥ 1.93 times | yes |", 1, 1,
		},
		"more than pairs can do": {
			pairs, lines(t, measured, result(pairs, 1, peak/2, "fma")),
			"5.704 | 200.0%? of fma | ≥ 170% of fma | not measured |  | ≥ 1.9 times |  |", 0, 0,
		},
		"a wrong answer": {
			plain, lines(t, round, Row{Op: Decode, Model: "v3", Ctx: 4096, Batch: 1, Tokens: 1, KV: "bf16", Threads: 1, MS: 1, Wrong: true}),
			"1 | wrong answer | ≥ 88% of fma | not measured |  | ≥ 1.93 times | **no** |", 0, 1,
		},
	} {
		line, reached, all := table(t, c.text, c.s)
		if c.line != "" {
			c.line = "| " + c.s.Title() + " | " + c.line
		}
		assert.Equal(t, c.line, line, name)
		assert.Equal(t, []int{c.reached, c.all}, []int{reached, all}, name)
	}
}

// Every bar of the table names rows of the table, and a work has one on two threads
// only if it has one on one.
func TestBarsAreOfTheTable(t *testing.T) {
	known := map[string]bool{}
	for _, s := range Table() {
		assert.False(t, known[s.Title()], "twice: %s", s.Title())
		known[s.Title()] = true
	}
	bars := 0
	for _, c := range []class{wide, narrow, small} {
		for _, s := range Table() {
			one, two := s.bars(c)
			if one.kind != noBar {
				bars++
			}
			assert.False(t, one.kind == noBar && two.kind != noBar, s.Title())
			for _, other := range one.than {
				assert.True(t, known[other.Title()], "%s is measured by %s", s.Title(), other.Title())
			}
		}
	}
	assert.Equal(t, 3*(3*8+5+3+2+6+1), bars)
}

func TestReadReport(t *testing.T) {
	for text, want := range map[string]string{
		"":        "no line is about a machine",
		"{}\n":    "no line is about a machine",
		"ok 1s\n": "line 1: invalid character",
		lines(t, round) + lines(t, Machine{CPU: "Abacus", SIMD: "avx512", Threads: 2}): "line 3: a run with avx512",
		lines(t, round) + limitsLine(t, Limits{Threads: 3}):                            "line 3: limits on 3 threads of no machine before them",
		limitsLine(t, Limits{}):            "line 1: limits on 0 threads of no machine before them",
		`{"op":"limits","threads":"two"}`:  "line 1: json: cannot unmarshal",
		`{"op":"machine","threads":"two"}`: "line 1: json: cannot unmarshal",
		`{"op":"decode","threads":"two"}`:  "line 1: json: cannot unmarshal",
	} {
		_, err := ReadReport(strings.NewReader(text))
		require.ErrorIs(t, err, ErrReport)
		assert.ErrorContains(t, err, want)
	}
	spoiled := result(decodeOf("v3", 4096, kvpaged.BF16), 1, 2, "fma")
	spoiled.Wrong, spoiled.MaxErr = true, 3
	good := result(decodeOf("v3", 4096, kvpaged.BF16), 1, 1, "fma")
	for _, rows := range [][]Row{{spoiled, good}, {good, spoiled}} {
		r, err := ReadReport(strings.NewReader(lines(t, round, rows...)))
		require.NoError(t, err)
		assert.True(t, r.Wrong())
		assert.Equal(t, 3.0, r.worst())
		row, _ := r.row(decodeOf("v3", 4096, kvpaged.BF16), 1)
		assert.Equal(t, 1.0, row.MS)
	}
}

func TestTitles(t *testing.T) {
	batch := decodeOf("v3", 1234567, kvpaged.F16)
	batch.Batch = 3
	assert.Equal(t, "decode, 128 heads, 3 sequences of 1,234,567 keys, f16", batch.Title())
	var titles []string
	for _, s := range Table() {
		titles = append(titles, s.Title())
	}
	for _, want := range []string{
		"decode, 128 heads, 1,024 keys, bf16",
		"decode, 128 heads, 8 sequences of 100 to 8,192 keys, bf16",
		"sparse_decode, 128 heads, 2,048 of 32,768 keys, ds_mla_656",
		"prefill, 16 heads, 2,048 tokens, causal",
		"gemm, FP8 weights, N 131,072, K 512, M 1",
		"gemm, FP8 weights, 128 of N 512, K 128, M 1",
		"gemm, gonum on f32 weights, N 16,384, K 512, M 16",
		"layer, 128 heads, 4,096 keys, bf16",
		"layer, 128 heads, 512 tokens, bf16",
		"block, 128 heads, 4,096 keys, bf16",
	} {
		assert.Contains(t, titles, want)
	}
}
