package bench_test

import (
	"context"
	"math"
	"runtime"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/kvpaged"
)

// BenchmarkCollector forces one garbage collection after the other while all
// threads decode for two seconds. A collection waits for every goroutine that is
// inside assembly, which nothing can interrupt, so its waits show whether a call,
// or a loop around calls, keeps others waiting:
//
//	stop-ms  the longest wait until the world stood still
//	gc-ms    the longest collection, with all its waits, of goroutines whose stacks
//	         it scans as well, and with its own work, for which all processors are
//	         taken
//
// Both should be far below 100 ms.
func BenchmarkCollector(b *testing.B) {
	s := bench.Spec{Op: bench.Decode, Ctx: 4096, Batch: 1, Tokens: 1, KV: kvpaged.BF16}
	length := 2 * time.Second
	if small() {
		s, length = shrunk(s), 200*time.Millisecond
	}
	s.Model, s.Threads = bench.Models()[0], threads()[len(threads())-1]
	b.Run(benchName(s), func(b *testing.B) {
		w, err := lab.Open(s)
		require.NoError(b, err)
		defer func() { require.NoError(b, w.Close()) }()
		var worst, stop time.Duration
		collections := 0
		for b.Loop() {
			before := stops()
			n, longest := collect(b, w, length)
			collections, worst, stop = collections+n, max(worst, longest), max(stop, longestSince(before))
		}
		b.ReportMetric(float64(collections)/float64(b.N), "collections")
		b.ReportMetric(worst.Seconds()*1e3, "gc-ms")
		b.ReportMetric(stop.Seconds()*1e3, "stop-ms")
	})
}

// collect runs w over and over, and collections beside it, and returns how many
// there were and how long the longest took.
func collect(b *testing.B, w bench.Workload, length time.Duration) (n int, longest time.Duration) {
	ctx, cancel := context.WithTimeout(b.Context(), length)
	defer cancel()
	ended := make(chan error)
	go func() {
		for ctx.Err() == nil {
			if err := w.Run(b.Context()); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for ; ctx.Err() == nil; n++ {
		start := time.Now()
		runtime.GC()
		longest = max(longest, time.Since(start))
		time.Sleep(time.Millisecond) // somewhere else in the work
	}
	require.NoError(b, <-ended)
	return n, longest
}

// stops is how often the collector has waited how long for the world to stop.
func stops() *metrics.Float64Histogram {
	sample := []metrics.Sample{{Name: "/sched/pauses/stopping/gc:seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64Histogram()
}

// longestSince is the longest such wait that is not in before, rounded up to a
// border of the histogram.
func longestSince(before *metrics.Float64Histogram) time.Duration {
	now := stops()
	for i := len(now.Counts) - 1; i >= 0; i-- {
		if now.Counts[i] > before.Counts[i] {
			border := now.Buckets[i+1]
			if math.IsInf(border, 1) {
				border = now.Buckets[i]
			}
			return time.Duration(border * float64(time.Second))
		}
	}
	return 0
}
