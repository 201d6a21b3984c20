package bench

import (
	"context"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"github.com/klauspost/cpuid/v2"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// Machine is what the machine is and what it could do in this run: the first
// line of a report. Rates are the best of a few short windows.
type Machine struct {
	Op     string   `json:"op"` // "machine"
	CPU    string   `json:"cpu"`
	Cores  int      `json:"cores"` // logical CPUs
	SIMD   string   `json:"simd"`
	Levels []string `json:"levels"`

	// Peak1 and PeakN are GFLOP/s of the level's own PartSet, the kernel under
	// every product and every score, on operands that stay in L1, on one thread
	// and on the most threads asked for.
	Peak1 float64 `json:"peak_gflops_1"`
	PeakN float64 `json:"peak_gflops_n"`
	// Reads, by a Go loop that sums 64-bit words. A cache whose size is unknown
	// has no rate.
	DRAM1 float64 `json:"dram_gbps_1"`
	DRAMN float64 `json:"dram_gbps_n"`
	L2    float64 `json:"l2_gbps_1,omitempty"`
	L3    float64 `json:"l3_gbps_1,omitempty"`

	Threads int    `json:"threads"` // what _n means
	Go      string `json:"go"`
	Commit  string `json:"commit,omitempty"`
}

// Commit is the revision this program was built from, "" if the build did not
// record it; "+dirty" marks uncommitted changes.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	var rev, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			rev = s.Value[:min(12, len(s.Value))]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	return rev + dirty
}

// CPUName is the processor's name for itself, or its architecture.
func CPUName() string {
	if cpuid.CPU.BrandName != "" {
		return cpuid.CPU.BrandName
	}
	return runtime.GOARCH
}

// meter measures limits, and remembers them by number of threads.
type meter struct {
	ctx    context.Context
	window time.Duration // of one measurement
	tries  int           // the best of which counts
	words  []uint64      // what the read loops read
	block  *mem.Block

	peaks, drams, l3s map[int]float64
}

// newMeter takes a buffer of that many bytes, which should be several times the
// last cache.
func newMeter(ctx context.Context, window time.Duration, tries, bytes int) (*meter, error) {
	block, err := mem.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	m := &meter{
		ctx: ctx, window: window, tries: tries, block: block, words: mem.Cast[uint64](block.Bytes()),
		peaks: map[int]float64{}, drams: map[int]float64{}, l3s: map[int]float64{},
	}
	for i := range m.words {
		m.words[i] = uint64(i) // a page nobody wrote to is not read from memory
	}
	return m, nil
}

func (m *meter) close() error { return m.block.Free() }

// machine measures the limits on one thread and on n.
func (m *meter) machine(n int) Machine {
	return Machine{
		Op: "machine", CPU: CPUName(), Cores: runtime.NumCPU(), SIMD: simd.Level(), Levels: simd.Levels(),
		Peak1: digits(m.peak(1) / 1e9), PeakN: digits(m.peak(n) / 1e9),
		DRAM1: digits(m.dram(1) / 1e9), DRAMN: digits(m.dram(n) / 1e9),
		L2: digits(m.cache(cpuid.CPU.Cache.L2, 1) / 1e9), L3: digits(m.l3(1) / 1e9),
		Threads: n, Go: runtime.Version(), Commit: Commit(),
	}
}

// rate runs step over and over on some threads for the window and returns the
// units per second they did together.
func (m *meter) rate(threads int, step func(worker int) float64) float64 {
	var best float64
	for range m.tries {
		rates := make([]float64, threads)
		var wg sync.WaitGroup
		for w := range threads {
			wg.Go(func() {
				start := time.Now()
				var done float64
				for time.Since(start) < m.window && m.ctx.Err() == nil {
					done += step(w)
				}
				rates[w] = done / max(time.Since(start).Seconds(), 1e-9)
			})
		}
		wg.Wait()
		var sum float64
		for _, r := range rates {
			sum += r
		}
		best = max(best, sum)
	}
	return best
}

func remember(known map[int]float64, threads int, measure func() float64) float64 {
	if _, ok := known[threads]; !ok {
		known[threads] = measure()
	}
	return known[threads]
}

// peak is the FLOP/s of PartSet in L1: 8 rows of x, 16 outputs, 256 terms, 25 KB.
// Pure Go is faster on operands of few bits, so the better of both kinds counts.
func (m *meter) peak(threads int) float64 {
	return remember(m.peaks, threads, func() float64 {
		return max(m.partSet(threads, false), m.partSet(threads, true))
	})
}

func (m *meter) partSet(threads int, short bool) float64 {
	const rows, k = 8, 256
	type operands struct {
		x [rows * k]float32
		b [simd.Lanes * k]float32
		y [rows * simd.Lanes]float32
	}
	r := rng(1)
	workers := make([]*operands, threads)
	for w := range workers {
		workers[w] = new(operands)
		r.fill(workers[w].x[:], 1)
		r.fill(workers[w].b[:], 1)
		if short {
			asBF16(workers[w].x[:])
			asBF16(workers[w].b[:])
		}
	}
	return m.rate(threads, func(worker int) float64 {
		o := workers[worker]
		simd.PartSet(o.y[:], simd.Lanes, o.x[:], k, o.b[:], len(o.b), rows, simd.Lanes, k)
		return 2 * rows * simd.Lanes * k
	})
}

// asBF16 rounds x to the 8 bits of bf16.
func asBF16(x []float32) {
	u := make([]uint16, len(x))
	simd.NarrowBF16(u, x)
	simd.WidenBF16(x, u)
}

// dram is the bytes per second of reading the whole buffer round and round,
// each thread a part of its own.
func (m *meter) dram(threads int) float64 {
	return remember(m.drams, threads, func() float64 { return m.reads(m.words, threads) })
}

// l3 is the same on a buffer of half the third-level cache.
func (m *meter) l3(threads int) float64 {
	return remember(m.l3s, threads, func() float64 { return m.cache(cpuid.CPU.Cache.L3, threads) })
}

// cache reads half a cache of that many bytes; 0 if its size is not known.
func (m *meter) cache(bytes, threads int) float64 {
	if bytes <= 0 {
		return 0
	}
	return m.reads(m.words[:min(bytes/2/8, len(m.words))], threads)
}

func (m *meter) reads(words []uint64, threads int) float64 {
	const chunk = 16 << 10 // words a step
	part := len(words) / threads
	places := make([]int, threads*16) // apart, so that no two share a cache line
	sums := make([]uint64, threads*16)
	return m.rate(threads, func(w int) float64 {
		place := &places[w*16]
		piece := words[w*part+*place : w*part+min(*place+chunk, part)]
		if *place += chunk; *place >= part {
			*place = 0
		}
		sums[w*16] += sumWords(piece)
		return float64(8 * len(piece))
	})
}

// sumWords reads x as fast as plain Go does.
func sumWords(x []uint64) uint64 {
	var a, b, c, d uint64
	for len(x) >= 8 {
		a += x[0] + x[4]
		b += x[1] + x[5]
		c += x[2] + x[6]
		d += x[3] + x[7]
		x = x[8:]
	}
	for _, v := range x {
		a += v
	}
	return a + b + c + d
}

// limit is the least time that a row's work could take, by what the machine
// did in this run, and what sets it: "fma", "dram", or "l3" for data that stays
// in the third-level cache.
func (m *meter) limit(flops, bytes float64, memory int64, threads int) (seconds float64, name string) {
	seconds, name = flops/m.peak(threads), "fma"
	rate, from := m.dram(threads), "dram"
	if memory < int64(cpuid.CPU.Cache.L3) {
		rate, from = m.l3(threads), "l3"
	}
	if read := bytes / rate; read > seconds {
		return read, from
	}
	return seconds, name
}
