package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/kvpaged"
)

func TestBenchFlags(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"-model gpt", `unknown model "gpt", want one of v3, v2-lite, kimi-k2, glm-4.7-flash, glm-5, minicpm3`},
		{"-kv fp7", `"fp7", want one of bf16, `},
		{"-kv v4_584 -op layer", "layer v3 ctx=1024 batch=1 tokens=1 kv=v4_584 threads=1: a cache row of this operation has 576 values"},
		{"-sparse 0", `"0" is not a positive number`},
		{"-sparse 9999999", "TopK has 9999999, want 1 to"},
		{"-ctx 12,x", `"x" is not a positive number`},
		{"-batch 0", `"0" is not a positive number`},
		{"-batch 99999", "Batch has 99999, want 1 to"},
		{"-threads -1", `"-1" is not a positive number`},
		{"-threads 1,1025", fmt.Sprintf("-threads has 1025, want at most %d, the cores that Go may use (GOMAXPROCS is %d)", bench.Cores(), runtime.GOMAXPROCS(0))},
		{"-time never", `invalid value "never"`},
		{"-time -1s", "RowTime is -1s"},
		{"-op fly", `unknown operation "fly"`},
		{"-layer 3", "-layer is given without -weights"},
		{"-weights x -model v3", "-model and -weights are given, wanted one of them"},
		{"-weights no/such/checkpoint", "no/such/checkpoint"},
		{"-rows nothing", `no row matches "nothing"`},
		{"-rows (", "missing closing )"},
		{"-bars file -quick", "-bars times nothing and takes no other flags"},
		{"-bars no/such/file", "no such file"},
		{"-speed", "flag provided but not defined: -speed"},
		{"fast", `"fast" is not a flag`},
	} {
		var out, errs bytes.Buffer
		status := runBench(t.Context(), strings.Fields(c.args), &out, &errs)
		assert.Equal(t, statusUnusable, status, c.args)
		assert.Empty(t, out.String(), c.args)
		assert.Contains(t, errs.String(), c.want)
		assert.Equal(t, 1, strings.Count(errs.String(), "\n"), "one line: %s", errs.String())
	}
}

func TestBenchOptions(t *testing.T) {
	options := func(args string) (bench.Options, bool, error) {
		return benchOptions(newFlags("bench", benchUsage, nil), strings.Fields(args))
	}
	o, asJSON, err := options("-model glm-5 -kv f16,fp8_unit -ctx 3,5 -batch 2 -threads 1 -time 7ms -json --quick -seed 9")
	require.NoError(t, err)
	assert.True(t, asJSON)
	assert.Equal(t, "glm-5", o.Model.Name)
	assert.Equal(t, []kvpaged.Format{kvpaged.F16, kvpaged.FP8Unit}, o.KV)
	assert.Equal(t, []int{3, 5}, o.Ctx)
	assert.Equal(t, []int{2}, o.Batch)
	assert.Equal(t, []int{1}, o.Threads)
	assert.Equal(t, 7*time.Millisecond, o.RowTime)
	assert.EqualValues(t, 9, o.Seed)
	assert.Equal(t, bench.Quick().Budget, o.Budget, "-quick decides what was not given")

	o, _, err = options("-op gemm -sparse 64,2048 -kv all")
	require.NoError(t, err)
	assert.Equal(t, []bench.Op{bench.Gemm, bench.SparseDecode}, o.Ops)
	assert.Equal(t, []int{64, 2048}, o.TopK)
	assert.Equal(t, bench.Formats(), o.KV)

	o, _, err = options("")
	require.NoError(t, err)
	assert.Equal(t, bench.Defaults(), o)
	assert.NotEmpty(t, o.Rows)

	o, _, err = options("-op gemm -rows m=16 -threads 1")
	require.NoError(t, err)
	for _, s := range o.Specs() {
		assert.Regexp(t, "^gemm .* m=16 .*threads=1$", s.String())
	}
	for _, grid := range []string{"-model v2-lite", "-kv f32", "-ctx 5", "-batch 1", "-sparse 3", "-prefill 7", "-m 2", "-quick"} {
		o, _, err = options(grid)
		require.NoError(t, err)
		assert.Empty(t, o.Rows, grid)
	}
}

func TestBenchStatus(t *testing.T) {
	assert.Equal(t, statusOK, benchStatus(nil))
	assert.Equal(t, statusWrong, benchStatus(errors.Join(fmt.Errorf("%w: row", bench.ErrWrong))))
	assert.Equal(t, statusInterrupted, benchStatus(context.Canceled))
	assert.Equal(t, statusUnusable, benchStatus(errors.New("no memory")))
	assert.Equal(t, statusUnusable, benchStatus(fmt.Errorf("%w: too little time", bench.ErrBudget)))
}

func TestBenchTable(t *testing.T) {
	var out bytes.Buffer
	table := &benchTable{out: &out, progress: &progress{w: &out}, model: modelWidth(nil), shape: shapeWidth(nil)}
	table.Progress(0, 9, "the machine")
	table.Machine(bench.Machine{CPU: "Abacus", Cores: 2, SIMD: "generic", Go: "go1", Commit: "c0ffee", Threads: 2, Peak1: 1.25, PeakN: 2.5, DRAM1: 10, DRAMN: 20, L2: 40, L3: 30, L3N: 50})
	table.Row(bench.Row{Op: bench.Decode, Model: "v3", Ctx: 4096, Batch: 1, Tokens: 1, KV: "bf16", Threads: 2, MS: 1234.5, MSMedian: 1300, GFlops: 0.9, TokPerS: 0.81, Memory: 5e6, Share: 0.5, Limit: "fma", MaxErr: 1.2e-7})
	table.Row(bench.Row{Op: bench.SparseDecode, Model: "v3", Ctx: 4096, TopK: 2048, Batch: 8, Tokens: 8, KV: "bf16", Threads: 2})
	table.Row(bench.Row{Op: bench.Gemm, Model: "v3", M: 4, N: 5, K: 6, Weights: "f32", Rival: "gonum", Threads: 1, Wrong: true})
	table.Row(bench.Row{Op: bench.Layer, Model: "v3", Ctx: 64, Batch: 1, Tokens: 64, KV: "f16", Threads: 1})
	table.Row(bench.Row{Op: bench.Decode, Model: "v3", CtxMin: 10, Ctx: 4096, Batch: 2, Tokens: 2, KV: "f16", Threads: 1})
	table.Row(bench.Row{Op: bench.Gemm, Model: "v3", Batch: 8, M: 4, N: 5, K: 6, Weights: "fp8_e4m3", Threads: 1})
	table.Row(bench.Row{Op: bench.Decode, Model: "v3", Ctx: 9, Batch: 1, Tokens: 1, KV: "f16", Threads: 1, Share: 2.72, Limit: "l3", Doubtful: true})
	table.Row(bench.Row{Op: bench.Decode, Model: "v3", Ctx: 9, Batch: 1, Tokens: 1, KV: "f16", Threads: 1, Share: 1.79, Limit: "fma", Arithmetic: "bf16"})
	table.Limits(bench.Limits{Threads: 2, Warnings: []string{"dram on 1 thread: 10 GB/s first, 20 last", "load average 1.50"}})
	table.LeftOut(bench.LeftOut{What: "prefill v3", Reason: "takes about 9s"})
	table.end()
	text := out.String()
	assert.NotContains(t, text, "\r", "no progress where there is no terminal")
	for _, want := range []string{
		"Abacus, 2 cores, simd generic, go1, commit c0ffee\n",
		"limits on 1 | 2 threads: fma 1.25 | 2.5 GFLOP/s, dram 10 | 20 GB/s, l3 30 | 50, l2 40\n",
		"decode        v3            ctx 4096, batch 1, kv bf16             2       1234       1300     0.900             0.810      5.0  50.0%  fma   1.2e-07\n",
		"4x5x6 f32 gonum", " WRONG\n", "8 of 4x5x6 fp8_e4m3",
		"sparse_decode v3            2048 of 4096, batch 8, kv bf16         2 ",
		"layer         v3            64 tokens, kv f16 ", "ctx 10 to 4096, batch 2, kv f16 ",
		" 272.0%?  l3 ", " 179.0%+  fma ", "\n? more than the limit: ", "\n+ of the peak of multiply-adds in float32",
		"\nthe machine was not quiet:\n  dram on 1 thread: 10 GB/s first, 20 last\n  load average 1.50\nbest limits on 1 | 2 threads: ",
		"\n1 row left out:\n  prefill v3: takes about 9s\n",
	} {
		assert.Contains(t, text, want)
	}
}

// What runs wrote is judged from the file.
func TestBenchBars(t *testing.T) {
	file := filepath.Join(t.TempDir(), "runs.jsonl")
	run := `{"op":"machine","cpu":"Abacus","simd":"avx2","threads":2,"peak_gflops_1":100}
{"op":"decode","model":"v3","ctx":4096,"batch":1,"tokens":1,"kv":"bf16","threads":1,"ms":12,"gflops":89,"limit":"fma"}
`
	require.NoError(t, os.WriteFile(file, []byte(run+run), 0o600))
	status, out, stderr := command("bench", "-bars", file)
	assert.Equal(t, statusOK, status, stderr)
	assert.Contains(t, out, "best of 2 runs")
	assert.Contains(t, out, "| decode, 128 heads, 4,096 keys, bf16 | 12 | 89.0% of fma | ≥ 88% of fma | not measured |")

	require.NoError(t, os.WriteFile(file, []byte(strings.Replace(run, `"ms"`, `"wrong":true,"ms"`, 1)), 0o600))
	status, _, stderr = command("bench", "-bars", file)
	assert.Equal(t, statusWrong, status)
	assert.Contains(t, stderr, "wrong answer")

	require.NoError(t, os.WriteFile(file, []byte("ok"), 0o600))
	status, _, stderr = command("bench", "-bars", file)
	assert.Equal(t, statusUnusable, status)
	assert.Contains(t, stderr, "not a report: line 1")
}

func TestBenchProgress(t *testing.T) {
	var out bytes.Buffer
	p := &progress{w: &out, on: true}
	p.Progress(3, 9, "gemm")
	p.clear()
	p.clear()
	assert.Equal(t, "\r\x1b[K3/9 gemm\r\x1b[K", out.String())
	assert.False(t, isTerminal(&out))
}

// One real row, from flags to JSON.
func TestBenchRun(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the machine for a second; bench has its own short run")
	}
	var out, errs bytes.Buffer
	args := strings.Fields("-quick -json -model v2-lite -op gemm,decode -sparse 40 -ctx 65 -m 2 -threads 1 -time 1ms")
	require.Equal(t, statusOK, runBench(t.Context(), args, &out, &errs), errs.String())
	assert.Empty(t, errs.String())
	var ops []string
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		var row struct{ Op string }
		require.NoError(t, json.Unmarshal([]byte(line), &row), line)
		ops = append(ops, row.Op)
	}
	assert.Equal(t, []string{"machine", "gemm", "gemm", "decode", "sparse_decode", "limits"}, ops)
}

// A run that had no time for any row has not shown that anything is right.
func TestBenchNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("measures the machine for a second; TestBenchStatus has the status")
	}
	for _, args := range []string{"bench -quick -budget 1ms", "bench -quick -budget 1ms -json"} {
		status, out, stderr := command(strings.Fields(args)...)
		assert.Equal(t, statusUnusable, status, args)
		assert.NotEmpty(t, out, "the machine and what was left out")
		assert.Equal(t, "lamina bench: bench: nothing was measured: no row fits the budget of 1ms\n", stderr)
	}
}

func TestBenchInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	assert.Equal(t, statusInterrupted, run(ctx, []string{"bench", "-quick"}, &out, &errs))
	assert.Equal(t, "lamina bench: interrupted\n", errs.String())
}

// TestBenchWeights: a checkpoint's block takes the place of a model.
func TestBenchWeights(t *testing.T) {
	m := newTinyModel(t)
	options := func(args ...string) (bench.Options, error) {
		o, _, err := benchOptions(newFlags("bench", benchUsage, nil), append([]string{"-weights", m.dir}, args...))
		return o, err
	}
	o, err := options("-layer", "1", "-ctx", "5,9", "-batch", "1", "-prefill", "7", "-threads", "1")
	require.NoError(t, err)
	assert.Equal(t, []bench.Op{bench.Layer, bench.Block}, o.Ops)
	assert.Equal(t, bench.Model{Name: "tiny/1", Heads: 3, Nope: 8, Rope: 4, V: 6, Latent: 16, Hidden: 20, QLora: 12}, o.Model)
	var names []string
	for _, s := range o.Specs() {
		names = append(names, s.String())
	}
	assert.Equal(t, []string{
		"layer tiny/1 ctx=5 batch=1 tokens=1 kv=bf16 threads=1", "layer tiny/1 ctx=9 batch=1 tokens=1 kv=bf16 threads=1",
		"layer tiny/1 ctx=7 batch=1 tokens=7 kv=bf16 threads=1", "block tiny/1 ctx=5 batch=1 tokens=1 kv=bf16 threads=1",
		"block tiny/1 ctx=9 batch=1 tokens=1 kv=bf16 threads=1", "block tiny/1 ctx=7 batch=1 tokens=7 kv=bf16 threads=1",
	}, names)
	o, err = options("-op", "block")
	require.NoError(t, err)
	assert.Equal(t, []bench.Op{bench.Block}, o.Ops)
	for args, says := range map[string]string{
		"-layer 2":   "-layer is 2, and " + m.dir + " has attention blocks 0 to 1",
		"-layer -1":  "-layer is -1",
		"-op decode": `operation "decode" with weights of a checkpoint`,
		"-sparse 5":  "-sparse and -weights are given",
	} {
		_, err := options(strings.Fields(args)...)
		assert.ErrorContains(t, err, says)
	}
	if testing.Short() {
		t.Log("-short: the machine is not measured, and no row run")
		return
	}
	status, out, stderr := command("bench", "-json", "-quick", "-weights", m.dir, "-layer", "1", "-ctx", "5", "-prefill", "7", "-time", "1ms", "-threads", "1")
	require.Equal(t, statusOK, status, stderr)
	assert.Empty(t, stderr)
	rows := strings.Split(strings.TrimSpace(out), "\n")
	require.Len(t, rows, 1+4+1)
	for _, text := range rows[1:5] {
		var row bench.Row
		require.NoError(t, json.Unmarshal([]byte(text), &row))
		assert.Equal(t, []string{"tiny/1", "fp8_e4m3"}, []string{row.Model, row.Weights})
		assert.Positive(t, row.Checked)
	}
}
