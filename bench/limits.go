package bench

import (
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/gonum/stat"

	"github.com/lamina-ml/lamina/mla"
)

// Limits is what became of the limits by the end of a run: the last line of its report. Limits are
// measured before the rows and again after them. What is faster than its limit shows that the limit
// was measured while others used the machine, so of each limit the best counts, and what
// differs makes a warning. Maps have the names of Machine's fields in JSON.
type Limits struct {
	Op      string             `json:"op"` // "limits"
	Threads int                `json:"threads"`
	Best    map[string]float64 `json:"best"` // of the first, the last, and what was measured between them
	First   map[string]float64 `json:"first"`
	Last    map[string]float64 `json:"last"`
	// Loads are the load averages of the last minute, before and after the run; nil where the
	// system tells none. The one after has the run's own threads in it.
	LoadBefore *float64 `json:"load_average_before,omitempty"`
	LoadAfter  *float64 `json:"load_average_after,omitempty"`
	// Spread is how far the median of a row's repetitions is above the best, as a part of the best:
	// the median over the rows, and the most.
	Spread     float64 `json:"spread"`
	SpreadMost float64 `json:"spread_most"`
	// Doubtful is how many rows came out above 105% of their limit.
	Doubtful int `json:"doubtful,omitempty"`
	// Warnings say what speaks against the shares of this run; none on a quiet machine.
	Warnings []string `json:"warnings,omitempty"`

	machine Machine // with the best limits
}

// String is the best limits on 1 | n threads, for reading.
func (l Limits) String() string { return l.machine.Limits() }

const (
	mostShare = 1.05 // of a limit: what is above it speaks against the limit
	unsteady  = 0.10 // the part of a limit by which two measurements of a quiet machine do not differ
)

// rate is a limit of a machine by its name in JSON.
type rate struct {
	name  string
	value *float64 // GFLOP/s or GB/s, 0 if it was not measured
	limit string
	n     bool // on Threads threads, not on one
}

// rates are all limits of m, of each memory behind the next slower one.
func (m *Machine) rates() []rate {
	return []rate{
		{"peak_gflops_1", &m.Peak1, limitFMA, false}, {"peak_gflops_n", &m.PeakN, limitFMA, true},
		{"pairs_gflops_1", &m.Pairs1, limitPair, false}, {"pairs_gflops_n", &m.PairsN, limitPair, true},
		{"dram_gbps_1", &m.DRAM1, limitDRAM, false}, {"dram_gbps_n", &m.DRAMN, limitDRAM, true},
		{"l3_gbps_1", &m.L3, limitL3, false}, {"l3_gbps_n", &m.L3N, limitL3, true},
		{"l2_gbps_1", &m.L2, limitL2, false}, {"l2_gbps_n", &m.L2N, limitL2, true},
		{"l1_gbps_1", &m.L1, limitL1, false},
	}
}

// slower is the memory behind a cache, which nothing in the cache is slower than; "" for others.
func slower(name string) string {
	switch name {
	case limitL1:
		return limitL2
	case limitL2:
		return limitL3
	case limitL3:
		return limitDRAM
	}
	return ""
}

// fill takes the limits as the meter has them now, on one thread and on m.Threads.
func (m *Machine) fill(from *meter) {
	for _, r := range m.rates() {
		*r.value = digits(from.rate(r.limit, m.threads(r)) / 1e9)
	}
}

func (m *Machine) threads(r rate) int {
	if r.n {
		return m.Threads
	}
	return 1
}

// again measures a limit once more and keeps the better value. It returns the new one.
func (m *meter) again(name string, threads int) float64 {
	key := m.key(name, threads)
	last := m.probe(name, key.threads)
	m.known[key] = max(m.known[key], last)
	return last
}

// doubted measures the limits of a row again which cannot be right, a few times in a run at most.
func (m *meter) doubted(s Spec, name string) {
	const most = 3
	names := []string{name}
	if pairwise(s.Arithmetic.String(), name) {
		names = append(names, limitPair)
	}
	for _, name := range names {
		if key := m.key(name, s.Threads); m.doubts[key] < most {
			m.doubts[key]++
			m.again(name, s.Threads)
		}
	}
}

// pairwise reports whether a row has its share of the peak of multiply-adds and is bounded by that of pairs.
func pairwise(arithmetic, limit string) bool {
	return arithmetic == mla.ComputeBF16.String() && limit == limitFMA
}

// beyond reports whether a row does more than its limit by more than measuring explains: rows of
// the second arithmetic, whose share is of the peak of float32, more than pairs can do.
func beyond(arithmetic, limit string, share, fma, pairs float64) bool {
	if pairwise(arithmetic, limit) && fma > 0 {
		if pairs == 0 { // a report without it: a pair is two multiply-adds
			pairs = 2 * fma
		}
		share *= fma / max(fma, pairs)
	}
	return share > mostShare
}

// ended measures all limits again, and says how they, and the rows, came out.
func (m *meter) ended(first Machine, rows []Row) Limits {
	l := Limits{
		Op: "limits", Threads: first.Threads, LoadBefore: first.Load, LoadAfter: loadAverage(),
		Best: map[string]float64{}, First: map[string]float64{}, Last: map[string]float64{}, machine: first,
	}
	last := map[knownLimit]float64{}
	for _, r := range first.rates() {
		key := m.key(r.limit, first.threads(r))
		if *r.value == 0 { // no cache of this machine
			continue
		}
		if _, ok := last[key]; !ok {
			last[key] = m.again(key.name, key.threads)
		}
		l.First[r.name], l.Last[r.name] = digits(m.first[key]/1e9), digits(last[key]/1e9)
	}
	l.machine.fill(m)
	for _, r := range l.machine.rates() {
		if *r.value > 0 {
			l.Best[r.name] = *r.value
		}
	}
	l.spread(rows)
	l.warn(m, rows)
	return l
}

// spread fills in how much the repetitions of rows differ.
func (l *Limits) spread(rows []Row) {
	var all []float64
	for _, r := range rows {
		if r.Doubtful {
			l.Doubtful++
		}
		if r.MS > 0 {
			all = append(all, r.MSMedian/r.MS-1)
		}
	}
	if len(all) > 0 {
		slices.Sort(all)
		l.Spread, l.SpreadMost = digits(stat.Quantile(0.5, stat.Empirical, all, nil)), digits(all[len(all)-1])
	}
}

// warn says what shows that others used the machine.
func (l *Limits) warn(m *meter, rows []Row) {
	say := func(format string, args ...any) {
		if w := fmt.Sprintf(format, args...); !slices.Contains(l.Warnings, w) { // one thread may be all there are
			l.Warnings = append(l.Warnings, w)
		}
	}
	for _, r := range l.machine.rates() {
		first, last := l.First[r.name], l.Last[r.name]
		if best := max(first, last); best > 0 && min(first, last) < (1-unsteady)*best {
			say("%s on %s: %.4g %s first, %.4g last", r.limit, threadsOf(m.key(r.limit, l.machine.threads(r)).threads), first, unitOf(r.limit), last)
		}
	}
	for _, r := range l.machine.rates() {
		threads := l.machine.threads(r)
		own := m.known[m.key(r.limit, threads)] / 1e9
		if *r.value > 0 && own < *r.value/mostShare {
			say("%s on %s measured %.4g %s, less than %s: %.4g is taken", r.limit, threadsOf(threads), digits(own), unitOf(r.limit), m.above(r.limit, threads), *r.value)
		}
	}
	worst, by := "", 0.0
	for _, row := range rows {
		now := l.machine.share(row)
		if over := row.Share/now - 1; now > 0 && over > by {
			worst, by = fmt.Sprintf("%.1f%% of %s of %s on %s is %.1f%%", 100*row.Share, row.Limit, row.Op, threadsOf(row.Threads), 100*now), over
		}
	}
	if by > unsteady {
		say("shares above are too high by up to %.0f%%: by the best limits %s", 100*by, worst)
	}
	if l.Doubtful > 0 {
		say("%s above 105%% of the limit: marked with ?", count(l.Doubtful, "row"))
	}
	if len(l.Warnings) == 0 {
		return
	}
	load := ""
	if l.LoadBefore != nil && l.LoadAfter != nil {
		load = fmt.Sprintf("load average %.2f before and %.2f after, on %s; ", *l.LoadBefore, *l.LoadAfter, count(l.machine.Cores, "core"))
	}
	say("%sthe median of a row's repetitions is %.0f%% above the best, at most %.0f%%", load, 100*l.Spread, 100*l.SpreadMost)
}

// above is what a limit is at least, by name: the memory behind it, or itself on one thread.
func (m *meter) above(name string, threads int) string {
	if threads > 1 && m.rate(name, threads) == m.rate(name, 1) {
		return "on 1 thread"
	}
	return slower(name) + "'s"
}

func unitOf(limit string) string {
	if limit == limitFMA || limit == limitPair {
		return "GFLOP/s"
	}
	return "GB/s"
}

func threadsOf(n int) string { return count(n, "thread") }

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// loadAverage is that of the last minute, nil where the system has none to read.
func loadAverage() *float64 {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil
	}
	return parseLoad(string(text))
}

func parseLoad(text string) *float64 {
	first, _, _ := strings.Cut(text, " ")
	load, err := strconv.ParseFloat(first, 64)
	if err != nil || math.IsNaN(load) || load < 0 {
		return nil
	}
	return &load
}
