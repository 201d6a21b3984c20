package bench_test

import (
	"fmt"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/kvpaged"
)

// What one decode step costs in the attention of one DeepSeek-V3 layer.
func Example() {
	v3, err := bench.ParseModel("v3")
	if err != nil {
		fmt.Println(err)
		return
	}
	s := bench.Spec{Op: bench.Decode, Model: v3, Ctx: 4096, Batch: 1, Tokens: 1, KV: kvpaged.BF16, Threads: 2}
	flops, bytes := s.Flops(), s.Bytes(2*v3.Width())
	fmt.Println(s)
	fmt.Printf("%.2f GFLOP, %.2f MB: %.0f FLOP a byte\n", flops/1e9, bytes/1e6, flops/bytes)
	// Output:
	// decode v3 ctx=4096 batch=1 tokens=1 kv=bf16 threads=2
	// 1.14 GFLOP, 4.72 MB: 242 FLOP a byte
}
