package bench_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/simd"
)

// lab keeps the weights that benchmarks of one geometry share, to the end of
// the process.
var lab = bench.NewLab(1)

func model(b *testing.B, name string) bench.Model {
	m, err := bench.ParseModel(name)
	require.NoError(b, err)
	return m
}

// benchName has the same keys for all operations, those of JSON, so that
// benchstat can put any of them in rows or columns.
func benchName(s bench.Spec) string {
	var name string
	if s.Op == bench.Gemm {
		name = fmt.Sprintf("m=%d/n=%d/k=%d", s.M, s.N, s.K)
		if s.Rival == "" {
			name += "/weights=fp8_e4m3"
		} else {
			name += "/weights=f32/rival=" + s.Rival
		}
	} else {
		name = fmt.Sprintf("heads=%d/ctx=%d/batch=%d/tokens=%d/", s.Model.Heads, s.Ctx, s.Batch, s.Batch*s.Tokens)
		if s.Op == bench.SparseDecode {
			name += fmt.Sprintf("topk=%d/", s.TopK)
		}
		name += "kv=" + s.KV.String()
	}
	return name + "/simd=" + simd.Level()
}

func TestBenchName(t *testing.T) {
	m, err := bench.ParseModel("v3")
	require.NoError(t, err)
	for want, s := range map[string]bench.Spec{
		"heads=128/ctx=9/batch=3/tokens=6/kv=f16":               {Op: bench.Decode, Model: m, Ctx: 9, Batch: 3, Tokens: 2, KV: kvpaged.F16},
		"heads=128/ctx=9/batch=3/tokens=3/topk=5/kv=ds_mla_656": {Op: bench.SparseDecode, Model: m, Ctx: 9, Batch: 3, Tokens: 1, TopK: 5, KV: kvpaged.DSMLA656},
		"heads=128/ctx=7/batch=1/tokens=7/kv=bf16":              {Op: bench.Layer, Model: m, Ctx: 7, Batch: 1, Tokens: 7},
		"m=2/n=3/k=5/weights=fp8_e4m3":                          {Op: bench.Gemm, M: 2, N: 3, K: 5},
		"m=2/n=3/k=5/weights=f32/rival=gonum":                   {Op: bench.Gemm, M: 2, N: 3, K: 5, Rival: bench.Gonum},
	} {
		require.Equal(t, want+"/simd="+simd.Level(), benchName(s))
	}
}

// run times a workload on as many threads as -cpu says and checks the answer of
// the last run, outside the timer.
func run(b *testing.B, s bench.Spec) {
	b.Run(benchName(s), func(b *testing.B) {
		s.Threads = bench.Defaults().Threads[len(bench.Defaults().Threads)-1]
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
		b.ReportMetric(s.Flops()/seconds/1e9, "GFLOP/s")
		if bytes := s.Bytes(w.RowBytes()); bytes > 0 {
			b.ReportMetric(bytes/seconds/1e9, "GB/s")
		}
		if tokens := s.Batch * s.Tokens; tokens > 0 {
			b.ReportMetric(float64(tokens)/seconds, "tok/s")
		}
		_, err = w.Check()
		require.NoError(b, err)
	})
}

func BenchmarkDecode(b *testing.B) {
	v3 := model(b, "v3")
	decode := func(ctx int, kv kvpaged.Format) {
		run(b, bench.Spec{Op: bench.Decode, Model: v3, Ctx: ctx, Batch: 1, Tokens: 1, KV: kv})
	}
	for _, kv := range bench.Formats() {
		decode(1024, kv)
	}
	decode(4096, kvpaged.BF16)
}

func BenchmarkSparseDecode(b *testing.B) {
	v3 := model(b, "v3")
	sparse := func(ctx, topk int, kv kvpaged.Format) {
		run(b, bench.Spec{Op: bench.SparseDecode, Model: v3, Ctx: ctx, TopK: topk, Batch: 1, Tokens: 1, KV: kv})
	}
	for _, kv := range bench.Formats() {
		sparse(4096, 512, kv)
	}
	sparse(4096, 2048, kvpaged.DSMLA656)
}

func BenchmarkPrefill(b *testing.B) {
	for _, c := range []struct {
		model  string
		tokens int
	}{{"v3", 128}, {"v2-lite", 512}} {
		m := model(b, c.model)
		run(b, bench.Spec{Op: bench.Prefill, Model: m, Ctx: c.tokens, Batch: 1, Tokens: c.tokens, KV: kvpaged.BF16})
	}
}

func BenchmarkLayer(b *testing.B) {
	for _, c := range []struct {
		model              string
		ctx, batch, tokens int
	}{
		{"v3", 1024, 1, 1}, {"v3", 1024, 4, 1}, {"v3", 64, 1, 64},
		{"v2-lite", 1024, 1, 1}, {"v2-lite", 256, 1, 256},
	} {
		m := model(b, c.model)
		run(b, bench.Spec{Op: bench.Layer, Model: m, Ctx: c.ctx, Batch: c.batch, Tokens: c.tokens, KV: kvpaged.BF16})
	}
}

func BenchmarkGemm(b *testing.B) {
	v3 := model(b, "v3")
	for _, m := range []int{1, 16, 32} {
		s := bench.Spec{Op: bench.Gemm, Model: v3, M: m, N: v3.Heads * v3.V, K: v3.Latent}
		run(b, s)
		s.Rival = bench.Gonum
		run(b, s)
	}
}
