package bench

import (
	"context"
	"errors"
	"math"
	"slices"
	"strconv"
	"time"

	"gonum.org/v1/gonum/stat"

	"github.com/lamina-ml/lamina/simd"
)

// Row is one measured row, named as in JSON. Fields that do not apply are 0.
type Row struct {
	Op         Op      `json:"op"`
	Model      string  `json:"model,omitempty"`
	Heads      int     `json:"heads,omitempty"`
	DQK        int     `json:"d_qk,omitempty"`    // attention alone: values of a key
	DV         int     `json:"d_v,omitempty"`     // and of these, of the value
	Ctx        int     `json:"ctx,omitempty"`     // keys that the last new token sees
	CtxMin     int     `json:"ctx_min,omitempty"` // of a ragged batch: those of its shortest sequence
	TopK       int     `json:"topk,omitempty"`    // of these, how many an index list has room for
	Batch      int     `json:"batch,omitempty"`   // sequences; products, if more than one
	Tokens     int     `json:"tokens,omitempty"`  // new tokens, of all sequences
	M          int     `json:"m,omitempty"`
	N          int     `json:"n,omitempty"`
	K          int     `json:"k,omitempty"`
	KV         string  `json:"kv,omitempty"`
	Weights    string  `json:"weights,omitempty"`
	Rival      string  `json:"rival,omitempty"`
	Threads    int     `json:"threads"`
	SIMD       string  `json:"simd,omitempty"`
	Arithmetic string  `json:"arithmetic"`
	MS         float64 `json:"ms"` // best
	MSMedian   float64 `json:"ms_median"`
	Runs       int     `json:"runs"`
	GFlops     float64 `json:"gflops"`
	GBps       float64 `json:"gbps,omitempty"`
	TokPerS    float64 `json:"tok_per_s,omitempty"`
	Share      float64 `json:"share,omitempty"` // of the limit measured in this run
	Limit      string  `json:"limit,omitempty"`
	Doubtful   bool    `json:"doubtful,omitempty"` // more than 105% of the limit, or of pairs where it is bf16: the limit is wrong
	Memory     int64   `json:"memory_bytes"`       // weights, cache and workspace
	Checked    int     `json:"checked"`
	MaxErr     float64 `json:"max_err"`
	Wrong      bool    `json:"wrong,omitempty"` // the check failed

	wrong error // how
}

// LeftOut is a row that was not run, and why.
type LeftOut struct {
	Op     string `json:"op"` // "left_out"
	What   string `json:"what"`
	Reason string `json:"reason"`
}

func leftOut(s Spec, reason string) LeftOut {
	return LeftOut{Op: "left_out", What: s.String(), Reason: reason}
}

// row is the row's names, without its results.
func (s Spec) row() Row {
	r := Row{Op: s.Op, Model: s.Model.Name, Threads: s.Threads, SIMD: simd.Level(), Arithmetic: s.Arithmetic.String(), Rival: s.Rival}
	switch s.Op {
	case Gemm:
		r.M, r.N, r.K, r.Weights = s.M, s.N, s.K, "fp8_e4m3"
		if s.Batch > 1 {
			r.Batch = s.Batch
		}
		if s.Rival != "" {
			r.Weights, r.SIMD = "f32", ""
		}
	case Layer, Block:
		r.Weights = s.weightNames()
		fallthrough
	default:
		switch {
		case s.Op.isCore():
			r.DQK, r.DV, _ = s.dims() // of a workload that is open
		case s.Op == Prefill:
			r.DQK, r.DV = s.Model.Nope+s.Model.Rope, s.Model.V
		}
		if r.TopK = s.TopK; s.ragged() {
			r.CtxMin = s.Shortest
		}
		r.Heads, r.Ctx, r.Batch, r.Tokens, r.KV = s.Model.Heads, s.Ctx, s.Batch, s.tokens(), s.KV.String()
	}
	return r
}

const maxRuns = 1000 // of one row

// measure runs a workload for about d and fills in the row. The first run is
// checked; it is timed as well, but counts only if it alone took all the time.
func measure(ctx context.Context, w Workload, s Spec, d time.Duration, m *meter) (Row, error) {
	row := s.row()
	row.Memory = w.Memory()
	first, err := timed(ctx, w)
	if err != nil {
		return row, err
	}
	times := []float64{first}
	checked, err := w.Check()
	row.Checked, row.MaxErr = checked.Rows, digits(checked.MaxErr)
	if errors.Is(err, ErrWrong) {
		row.Wrong, row.wrong = true, err
	} else if err != nil {
		return row, err
	}
	for sum := 0.0; first+sum < d.Seconds() && len(times) <= maxRuns && !row.Wrong; {
		t, err := timed(ctx, w)
		if err != nil {
			return row, err
		}
		times = append(times, t)
		sum += t
	}
	if len(times) > 1 {
		times = times[1:]
	}
	slices.Sort(times)
	row.fill(w, s, times, m)
	return row, nil
}

func timed(ctx context.Context, w Workload) (seconds float64, err error) {
	start := time.Now()
	err = w.Run(ctx)
	return time.Since(start).Seconds(), err
}

// fill computes the rates of a row from its sorted times in seconds.
func (r *Row) fill(w Workload, s Spec, times []float64, m *meter) {
	best := times[0]
	flops, bytes := s.Flops(), s.Bytes(w.RowBytes())
	r.Runs = len(times)
	r.MS = digits(best * 1e3)
	r.MSMedian = digits(stat.Quantile(0.5, stat.Empirical, times, nil) * 1e3)
	r.GFlops = digits(flops / best / 1e9)
	r.GBps = digits(bytes / best / 1e9)
	r.TokPerS = digits(float64(s.tokens()) / best)
	if s.Rival != "" {
		return // the limits are those of this library's level
	}
	share, name, doubtful := m.share(s, bytes, r.Memory, best)
	r.Share, r.Limit, r.Doubtful = digits(share), name, doubtful
}

// digits rounds to four digits, so that a report shows no noise.
func digits(x float64) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'g', 4, 64), 64)
	if err != nil || math.IsNaN(y) || math.IsInf(y, 0) {
		return 0
	}
	return y
}
