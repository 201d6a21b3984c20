package bench

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/klauspost/cpuid/v2"

	"github.com/lamina-ml/lamina/internal/mem"
	"github.com/lamina-ml/lamina/simd"
)

// Machine is what the machine is and what it could do before the rows of this run: the first
// line of a report, of which Limits is the last. Rates are the best of a few short windows, those
// of multiply-adds the best of short slices of windows; _1 is one thread, _n the most
// threads asked for, all at once, on as many cores as Go may use. A cache is never slower than the
// memory behind it, nor several threads than one: where they were measured so, the better rate counts.
type Machine struct {
	Op     string   `json:"op"` // "machine"
	CPU    string   `json:"cpu"`
	Cores  int      `json:"cores"` // logical CPUs
	SIMD   string   `json:"simd"`
	Levels []string `json:"levels"`

	// Peak1 and PeakN are GFLOP/s of fused multiply-adds on values that stay in
	// registers, in the instruction set of this run.
	Peak1 float64 `json:"peak_gflops_1"`
	PeakN float64 `json:"peak_gflops_n"`
	// Pairs1 and PairsN are the same of pair steps of the second arithmetic. Rows in
	// it have their share of Peak1 and PeakN all the same: how far above 100% it is
	// says what the second arithmetic is worth.
	Pairs1 float64 `json:"pairs_gflops_1"`
	PairsN float64 `json:"pairs_gflops_n"`
	// Reads in GB/s, by the widest loads of the instruction set, each thread from a
	// part of its own. A cache whose size is unknown has no rate.
	DRAM1 float64 `json:"dram_gbps_1"`
	DRAMN float64 `json:"dram_gbps_n"`
	L1    float64 `json:"l1_gbps_1,omitempty"`
	L2    float64 `json:"l2_gbps_1,omitempty"`
	L2N   float64 `json:"l2_gbps_n,omitempty"`
	L3    float64 `json:"l3_gbps_1,omitempty"`
	L3N   float64 `json:"l3_gbps_n,omitempty"`

	// Sizes of the caches, as far as they are known.
	L1Bytes int `json:"l1d_bytes,omitempty"`
	L2Bytes int `json:"l2_bytes,omitempty"`
	L3Bytes int `json:"l3_bytes,omitempty"`

	Threads int `json:"threads"` // what _n means
	// Load is the load average of the last minute before the run, nil where the system tells none.
	Load   *float64 `json:"load_average,omitempty"`
	Go     string   `json:"go"`
	Commit string   `json:"commit,omitempty"`
}

// Measure measures the limits of the machine on one thread and on n, as Run does
// before its rows. Errors: simd.Err, the context's, and the system's for want of
// memory.
func Measure(ctx context.Context, n int) (Machine, error) {
	if err := simd.Err(); err != nil {
		return Machine{}, err
	}
	o := Defaults()
	m, err := newMeter(ctx, o.window, o.tries, bufferBytes(n))
	if err != nil {
		return Machine{}, err
	}
	machine := m.machine(n)
	return machine, errors.Join(ctx.Err(), m.close())
}

// Limits is the limits on 1 | n threads, for reading.
func (m Machine) Limits() string {
	var b strings.Builder
	fmt.Fprintf(&b, "fma %.4g | %.4g GFLOP/s", m.Peak1, m.PeakN)
	if m.Pairs1 > 0 {
		fmt.Fprintf(&b, ", bf16 pairs %.4g | %.4g GFLOP/s", m.Pairs1, m.PairsN)
	}
	unit := " GB/s"
	for _, read := range []struct {
		name   string
		one, n float64
	}{{limitDRAM, m.DRAM1, m.DRAMN}, {limitL3, m.L3, m.L3N}, {limitL2, m.L2, m.L2N}, {limitL1, m.L1, 0}} {
		if read.one == 0 {
			continue
		}
		fmt.Fprintf(&b, ", %s %.3g", read.name, read.one)
		if read.n > 0 {
			fmt.Fprintf(&b, " | %.3g", read.n)
		}
		b.WriteString(unit)
		unit = ""
	}
	return b.String()
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

// Names of limits, as rows have them.
const (
	limitFMA  = "fma"
	limitPair = "pairs"
	limitL1   = "l1"
	limitL2   = "l2"
	limitL3   = "l3"
	limitDRAM = "dram"
)

// meter measures limits, and remembers them.
type meter struct {
	ctx    context.Context
	window time.Duration // of one measurement
	tries  int           // the best of which counts
	words  []uint64      // what reads read
	block  *mem.Block
	cores  int                                    // no more threads than these do anything at once; 0: any number
	known  map[knownLimit]float64                 // the best
	first  map[knownLimit]float64                 // as measured first
	doubts map[knownLimit]int                     // how often a row was above it
	probe  func(name string, threads int) float64 // measures one
}

type knownLimit struct {
	name    string
	threads int
}

// bufferBytes is the size of a buffer that no cache holds, neither the whole nor
// what is in the caches of the cores that read a thread's part.
func bufferBytes(threads int) int {
	return min(max(128<<20, 4*cpuid.CPU.Cache.L3, threads*16<<20), 1<<30)
}

// newMeter takes a buffer of that many bytes.
func newMeter(ctx context.Context, window time.Duration, tries, bytes int) (*meter, error) {
	block, err := mem.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	block.Huge() // what is measured is memory, not the search for its pages
	m := &meter{
		ctx: ctx, window: window, tries: tries, block: block, words: mem.Cast[uint64](block.Bytes()),
		cores: Cores(), known: map[knownLimit]float64{}, first: map[knownLimit]float64{}, doubts: map[knownLimit]int{},
	}
	m.probe = m.measure
	for i := range m.words {
		m.words[i] = uint64(i) // a page nobody wrote to is not read from memory
	}
	return m, nil
}

func (m *meter) close() error { return m.block.Free() }

// machine measures the limits on one thread and on n.
func (m *meter) machine(n int) Machine {
	size := func(bytes int) int { return max(bytes, 0) } // cpuid says -1 where it cannot tell
	cache := cpuid.CPU.Cache
	all := Machine{
		Op: "machine", CPU: CPUName(), Cores: runtime.NumCPU(), SIMD: simd.Level(), Levels: simd.Levels(),
		L1Bytes: size(cache.L1D), L2Bytes: size(cache.L2), L3Bytes: size(cache.L3),
		Threads: n, Load: loadAverage(), Go: runtime.Version(), Commit: Commit(),
	}
	all.fill(m)
	return all
}

// Cores is how many threads can do something at once: the cores of the machine, or fewer where
// GOMAXPROCS says so.
func Cores() int { return min(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

// key is a limit on some threads: more than there are cores have that of the cores.
func (m *meter) key(name string, threads int) knownLimit {
	if m.cores > 0 {
		threads = min(threads, m.cores)
	}
	return knownLimit{name, threads}
}

// rate is a limit on some threads in FLOP/s or bytes/s: the best that was measured of it, or of
// what cannot be faster, the memory behind a cache or the same on one thread. 0 for a cache of
// unknown size.
func (m *meter) rate(name string, threads int) float64 {
	key := m.key(name, threads)
	best, ok := m.known[key]
	if !ok {
		best = m.probe(name, key.threads)
		m.known[key], m.first[key] = best, best
	}
	if best == 0 {
		return 0
	}
	if behind := slower(name); behind != "" {
		best = max(best, m.rate(behind, threads))
	}
	if key.threads > 1 {
		best = max(best, m.rate(name, 1))
	}
	return best
}

// measure measures a limit. From a cache each thread reads half of its own; the
// last one is shared, but a thread's part is never so small that the cache before
// it could hold it.
func (m *meter) measure(name string, threads int) float64 {
	cache := cpuid.CPU.Cache
	switch {
	case name == limitFMA:
		return m.fma(threads)
	case name == limitPair:
		const half, quarter = 0x3F003F00, 0x3E803E80 // twice, in bf16
		return m.loop(threads, 4, func(x []float32, times int) {
			simd.PairLoop(x, half, quarter, times) // up to where a quarter is lost in rounding
		})
	case name == limitDRAM:
		return m.reads(len(m.words)*8/threads, threads)
	case name == limitL1:
		return m.reads(cache.L1D/2, threads)
	case name == limitL2:
		return m.reads(cache.L2/2, threads)
	case cache.L3 > 0:
		return m.reads(max(cache.L3/2/threads, 2*cache.L2), threads)
	}
	return 0
}

// units runs step over and over on some threads for the window and returns the
// units per second they did together.
func (m *meter) units(threads int, step func(worker int) float64) float64 {
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

// slice is the time over which a peak is taken: about that of the shortest works.
const slice = 500 * time.Microsecond

// peak is units for work that stays in a core and so depends on nothing but it: the best slice of each thread counts, as
// the best repetition of a work does, so that an interruption lowers neither.
func (m *meter) peak(threads int, step func(worker int) float64) float64 {
	best := make([]float64, threads)
	m.units(threads, func(worker int) float64 {
		start, done := time.Now(), 0.0
		for time.Since(start) < slice {
			done += step(worker)
		}
		best[worker] = max(best[worker], done/time.Since(start).Seconds())
		return done
	})
	var sum float64
	for _, r := range best {
		sum += r
	}
	return sum
}

// fma is the FLOP/s of fused multiply-adds: of a loop of nothing else, or of the
// kernel under every product if that is faster, as it is in pure Go, which sums in
// wider numbers.
func (m *meter) fma(threads int) float64 {
	fmaLoop := m.loop(threads, 2, func(x []float32, times int) {
		simd.FmaLoop(x, 0.7, 0.3, times) // towards 1, and never far from it
	})
	return max(fmaLoop, m.partSet(threads, false), m.partSet(threads, true))
}

// loop is the FLOP/s of FmaLoop or PairLoop: 192 chains of multiply-adds, or of pairs
// of them, in registers, more than any processor has in flight.
func (m *meter) loop(threads, perTurn int, run func(x []float32, times int)) float64 {
	const (
		lanes = 192
		times = 1024 // of a call, which takes a few microseconds
		calls = 4    // between two looks at the clock
	)
	type chains struct {
		x [lanes]float32
		_ [64]byte // no two workers write to one cache line
	}
	workers := make([]chains, threads)
	return m.peak(threads, func(worker int) float64 {
		for range calls {
			run(workers[worker].x[:], times)
		}
		return float64(perTurn * lanes * times * calls)
	})
}

// partSet is the FLOP/s of PartSet in L1: 8 rows of x, 16 outputs, 256 terms,
// 25 KB. On operands of few bits pure Go is faster.
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
	return m.peak(threads, func(worker int) float64 {
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

// reads is the bytes per second of reading part bytes round and round, on every
// thread its own. A buffer that has less for each gives what it has; of nothing
// the rate is 0.
func (m *meter) reads(part, threads int) float64 {
	const (
		call = 64 << 10 / 8 // words of one call, which takes some microseconds
		step = 4 * call     // words between two looks at the clock
	)
	words := min(part, len(m.words)*8/threads) / 64 * 8 // whole cache lines
	if words <= 0 {
		return 0
	}
	type place struct {
		at int
		_  [64]byte // no two workers write to one cache line
	}
	places := make([]place, threads)
	return m.units(threads, func(worker int) float64 {
		own, at := m.words[worker*words:][:words], places[worker].at
		done := 0
		for done < step {
			piece := own[at:min(at+call, words)]
			simd.XorWords(piece)
			done += len(piece)
			if at += len(piece); at == words {
				at = 0
			}
		}
		places[worker].at = at
		return 8 * float64(done)
	})
}

// share is the part of its limit that a row reached which took some seconds, and that limit. What is
// above the limit has it measured again; doubtful says that it stays far above.
func (m *meter) share(s Spec, bytes float64, memory int64, seconds float64) (share float64, name string, doubtful bool) {
	far := func() bool {
		var least float64
		least, name = m.limit(s, bytes, memory)
		share = least / seconds
		return beyond(s.Arithmetic.String(), name, share, m.rate(limitFMA, s.Threads), m.rate(limitPair, s.Threads))
	}
	if far() {
		m.doubted(s, name)
	}
	return share, name, far()
}

// limit is the least time that a row's work could take, by what the machine did
// in this run, and what sets it: "fma", "dram", or "l3" or "l2" for data that stays in
// the third-level cache or in that of one core.
func (m *meter) limit(s Spec, bytes float64, memory int64) (seconds float64, name string) {
	from := limitDRAM
	switch cache := cpuid.CPU.Cache; {
	case memory < int64(cache.L2):
		from = limitL2
	case memory < int64(cache.L3):
		from = limitL3
	}
	read, compute := bytes/m.rate(from, s.Threads), s.Flops()/m.rate(limitFMA, s.Threads)
	if s.reading() || read > compute {
		return read, from
	}
	return compute, limitFMA
}
