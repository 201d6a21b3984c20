package bench

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/lamina-ml/lamina/mla"
)

// Report is what one run or several measured: the best of each row, and the best
// of each limit. Both are what the machine does when nobody disturbs it.
type Report struct {
	Machine Machine
	Runs    int

	best map[work]Row
	busy bool // a run has warnings
}

// ErrReport marks lines that no run of the bench wrote, or runs that have nothing
// to do with each other.
var ErrReport = errors.New("bench: not a report")

// work is the names of a row, by which rows of different runs are the same.
type work struct {
	op                         Op
	model, kv, rival           string
	arithmetic                 string
	ctx, ctxMin, batch, tokens int
	topK, m, n, k, threads     int
}

func (r Row) work() work {
	if r.Arithmetic == "" { // a line without the field is about float32
		r.Arithmetic = mla.ComputeF32.String()
	}
	return work{
		op: r.Op, model: r.Model, kv: r.KV, rival: r.Rival, arithmetic: r.Arithmetic,
		ctx: r.Ctx, ctxMin: r.CtxMin, batch: r.Batch, tokens: r.Tokens,
		topK: r.TopK, m: r.M, n: r.N, k: r.K, threads: r.Threads,
	}
}

// ReadReport reads the JSON lines of runs, one after the other. Errors: ErrReport,
// and those of reading.
func ReadReport(from io.Reader) (*Report, error) {
	r := &Report{best: map[work]Row{}}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if err := r.line(lines.Bytes()); err != nil {
			return nil, fmt.Errorf("%w: line %d: %w", ErrReport, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if r.Runs == 0 {
		return nil, fmt.Errorf("%w: no line is about a machine", ErrReport)
	}
	return r, nil
}

func (r *Report) line(text []byte) error {
	var line struct{ Op Op }
	if err := json.Unmarshal(text, &line); err != nil {
		return err
	}
	switch line.Op {
	case "machine":
		var m Machine
		if err := json.Unmarshal(text, &m); err != nil {
			return err
		}
		return r.addMachine(m)
	case "limits":
		var l Limits
		if err := json.Unmarshal(text, &l); err != nil {
			return err
		}
		return r.addLimits(l)
	case "left_out":
		return nil
	}
	var row Row
	if err := json.Unmarshal(text, &row); err != nil {
		return err
	}
	r.addRow(row)
	return nil
}

// addMachine takes the better of all limits.
func (r *Report) addMachine(m Machine) error {
	r.Runs++
	if r.Runs == 1 {
		r.Machine = m
		return nil
	}
	to := &r.Machine
	if to.CPU != m.CPU || to.SIMD != m.SIMD || to.Threads != m.Threads {
		return fmt.Errorf("a run with %s and up to %d threads on %s after one with %s and %d on %s",
			m.SIMD, m.Threads, m.CPU, to.SIMD, to.Threads, to.CPU)
	}
	from := m.rates()
	for i, r := range to.rates() {
		*r.value = max(*r.value, *from[i].value)
	}
	return nil
}

// addLimits takes the better of all limits, after the machine that they are of.
func (r *Report) addLimits(l Limits) error {
	if r.Runs == 0 || r.Machine.Threads != l.Threads {
		return fmt.Errorf("limits on %d threads of no machine before them", l.Threads)
	}
	for _, to := range r.Machine.rates() {
		*to.value = max(*to.value, l.Best[to.name])
	}
	r.busy = r.busy || len(l.Warnings) > 0
	return nil
}

// addRow takes the faster of two rows, but no error that one of them had is
// forgotten.
func (r *Report) addRow(row Row) {
	key := row.work()
	if old, ok := r.best[key]; ok {
		worst, wrong := max(old.MaxErr, row.MaxErr), old.Wrong || row.Wrong
		if old.MS < row.MS {
			row = old
		}
		row.MaxErr, row.Wrong = worst, wrong
	}
	r.best[key] = row
}

// row is the best row of a work on some threads.
func (r *Report) row(s Spec, threads int) (Row, bool) {
	s.Threads = threads
	row, ok := r.best[s.row().work()]
	return row, ok
}

// limit is a rate of the machine in GFLOP/s or GB/s; 0 if it was not measured for
// so many threads.
func (m Machine) limit(name string, threads int) float64 {
	one, n := 0.0, 0.0
	switch name {
	case limitFMA:
		one, n = m.Peak1, m.PeakN
	case limitPair:
		one, n = m.Pairs1, m.PairsN
	case limitL2:
		one, n = m.L2, m.L2N
	case limitDRAM:
		one, n = m.DRAM1, m.DRAMN
	case limitL3:
		one, n = m.L3, m.L3N
	}
	switch threads {
	case 1:
		return one
	case m.Threads:
		return n
	}
	return 0
}

// share is how much of its limit a row reached; 0 if there is no limit to measure it by.
func (m Machine) share(row Row) float64 {
	limit := m.limit(row.Limit, row.Threads)
	if limit == 0 {
		return 0
	}
	if row.Limit == limitFMA {
		return row.GFlops / limit
	}
	return row.GBps / limit
}
