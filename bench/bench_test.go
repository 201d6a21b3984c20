package bench_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
)

// lab keeps the weights that benchmarks of one geometry share, to the end of
// the process.
var lab = bench.NewLab(1)

// peak is the FMA peak of this machine, in GFLOP/s on one thread and on all.
var peak = sync.OnceValues(func() (bench.Machine, error) {
	return bench.Measure(context.Background(), slices.Max(threads()))
})

// threads are one and all that the process may use.
func threads() []int { return bench.Defaults().Threads }

// small says that there is no time for the works of the table as they are.
func small() bool { return testing.Short() || simd.Level() == simd.Generic }

// works are those of the table that are of one operation.
func works(op bench.Op) []bench.Spec {
	var all []bench.Spec
	for _, s := range bench.Table() {
		if s.Op != op {
			continue
		}
		if small() {
			s = shrunk(s)
		}
		all = append(all, s)
	}
	return all
}

// shrunk is a work of the same kind and a sixteenth of the size or less.
func shrunk(s bench.Spec) bench.Spec {
	s.Ctx, s.TopK, s.Shortest = s.Ctx/16, s.TopK/16, s.Shortest/16
	if s.Tokens > 1 {
		s.Tokens /= 16
	}
	if s.N > 1024 {
		s.N /= 64
	}
	return s
}

// benchName is keys and values, those of JSON, so that benchstat can put any of
// them in rows or columns. Of a batch, tokens and products it says how many there
// are, if not one.
func benchName(s bench.Spec) string {
	var name string
	key := func(key string, value any) { name += fmt.Sprintf("%s=%v/", key, value) }
	if s.Op == bench.Gemm {
		key("m", s.M)
		key("n", s.N)
		key("k", s.K)
	} else {
		key("heads", s.Model.Heads)
		key("ctx", s.Ctx)
	}
	if s.TopK > 0 {
		key("topk", s.TopK)
	}
	if s.Batch > 1 {
		key("batch", s.Batch)
	}
	if s.Shortest > 0 {
		key("ctx_min", s.Shortest)
	}
	if s.Tokens > 1 {
		key("tokens", s.Batch*s.Tokens)
	}
	switch {
	case s.Op != bench.Gemm:
		key("kv", s.KV)
	case s.Rival == "":
		key("weights", "fp8_e4m3")
	default:
		key("weights", "f32")
		key("rival", s.Rival)
	}
	if s.Arithmetic != mla.ComputeF32 {
		key("arithmetic", s.Arithmetic)
	}
	key("threads", s.Threads)
	return name + "simd=" + simd.Level()
}

func TestBenchName(t *testing.T) {
	m, err := bench.ParseModel("v3")
	require.NoError(t, err)
	for want, s := range map[string]bench.Spec{
		"heads=128/ctx=4096/kv=bf16/threads=1":                   {Op: bench.Decode, Model: m, Ctx: 4096, Batch: 1, Tokens: 1, Threads: 1},
		"heads=128/ctx=9/batch=3/tokens=6/kv=f16/threads=2":      {Op: bench.Decode, Model: m, Ctx: 9, Batch: 3, Tokens: 2, KV: kvpaged.F16, Threads: 2},
		"heads=128/ctx=9/batch=3/ctx_min=4/kv=f32/threads=2":     {Op: bench.Decode, Model: m, Ctx: 9, Batch: 3, Tokens: 1, Shortest: 4, KV: kvpaged.F32, Threads: 2},
		"heads=128/ctx=9/topk=5/batch=3/kv=ds_mla_656/threads=1": {Op: bench.SparseDecode, Model: m, Ctx: 9, Batch: 3, Tokens: 1, TopK: 5, KV: kvpaged.DSMLA656, Threads: 1},
		"heads=128/ctx=7/tokens=7/kv=bf16/threads=1":             {Op: bench.Layer, Model: m, Ctx: 7, Batch: 1, Tokens: 7, Threads: 1},
		"m=2/n=3/k=5/weights=fp8_e4m3/threads=1":                 {Op: bench.Gemm, M: 2, N: 3, K: 5, Threads: 1},
		"m=2/n=3/k=5/batch=7/weights=fp8_e4m3/threads=1":         {Op: bench.Gemm, M: 2, N: 3, K: 5, Batch: 7, Threads: 1},
		"m=2/n=3/k=5/weights=fp8_e4m3/arithmetic=bf16/threads=1": {Op: bench.Gemm, M: 2, N: 3, K: 5, Arithmetic: mla.ComputeBF16, Threads: 1},
		"m=2/n=3/k=5/weights=f32/rival=gonum/threads=1":          {Op: bench.Gemm, M: 2, N: 3, K: 5, Rival: bench.Gonum, Threads: 1},
	} {
		require.Equal(t, want+"/simd="+simd.Level(), benchName(s))
	}
}

// Names are unique among the works as they are, and among the small ones.
func TestBenchNames(t *testing.T) {
	names := map[string]bool{}
	for kind, change := range map[string]func(bench.Spec) bench.Spec{"table": func(s bench.Spec) bench.Spec { return s }, "shrunk": shrunk} {
		for _, s := range bench.Table() {
			s = change(s)
			name := fmt.Sprint(kind, " ", s.Op, " ", benchName(s))
			require.False(t, names[name], name)
			names[name] = true
		}
	}
}

// run times the works of an operation on one thread and on all, and checks the
// answer of the last run, outside the timer.
func run(b *testing.B, op bench.Op) {
	machine, err := peak()
	require.NoError(b, err)
	for _, s := range works(op) {
		for _, s.Threads = range threads() {
			most := machine.Peak1
			if s.Threads > 1 {
				most = machine.PeakN
			}
			b.Run(benchName(s), func(b *testing.B) { runOne(b, s, most) })
		}
	}
}

func runOne(b *testing.B, s bench.Spec, peak float64) {
	w, err := lab.Open(s)
	require.NoError(b, err)
	defer func() { require.NoError(b, w.Close()) }()
	b.ReportAllocs()
	for b.Loop() {
		if err := w.Run(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	seconds := b.Elapsed().Seconds() / float64(b.N)
	gflops := s.Flops() / seconds / 1e9
	b.ReportMetric(gflops, "GFLOP/s")
	unit := "%peak"
	if gflops > 1.05*peak && s.Arithmetic == mla.ComputeF32 {
		unit = "?%peak" // which cannot be: the machine was busy when its peak was measured
	}
	b.ReportMetric(100*gflops/peak, unit)
	if bytes := s.Bytes(w.RowBytes()); bytes > 0 {
		b.ReportMetric(bytes/seconds/1e9, "GB/s")
	}
	if tokens := s.Batch * s.Tokens; tokens > 0 {
		b.ReportMetric(float64(tokens)/seconds, "tok/s")
	}
	_, err = w.Check()
	require.NoError(b, err)
}

func BenchmarkDecode(b *testing.B)       { run(b, bench.Decode) }
func BenchmarkSparseDecode(b *testing.B) { run(b, bench.SparseDecode) }
func BenchmarkPrefill(b *testing.B)      { run(b, bench.Prefill) }
func BenchmarkLayer(b *testing.B)        { run(b, bench.Layer) }
func BenchmarkBlock(b *testing.B)        { run(b, bench.Block) }
func BenchmarkGemm(b *testing.B)         { run(b, bench.Gemm) }
