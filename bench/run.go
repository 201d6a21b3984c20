package bench

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
)

// Options say what to run, how long, and on what. Start from Defaults or Quick.
type Options struct {
	// Rows are the works to do, on each of Threads. If there are none, the works are
	// all combinations that the lists below make.
	Rows []Spec
	Ops  []Op // of Rows and of combinations: no others are run
	// Arithmetic is that of Rows and of combinations: no others are run.
	Arithmetic []mla.Compute
	// Match, if not nil, leaves out all rows whose Spec.String it does not match.
	Match *regexp.Regexp

	Model Model
	// Weights, if not nil, are those of a checkpoint; Model is then Weights.Model(), and
	// only layers and blocks are run.
	Weights *Weights
	KV      []kvpaged.Format // of all but prefill, which has no cache
	Ctx     []int            // decode, sparse_decode, and the decode steps of layer: keys
	Batch   []int            // and sequences, one new token each
	// TopK is sparse_decode's: entries of an index list. Of fewer keys it takes
	// all, but such a row is made only where no Ctx is large enough.
	TopK    []int
	Prefill []int // prefill, and the prompts of layer: tokens
	M       []int // gemm: rows of x; N = H*V and K = R are the value up-projection's
	Threads []int

	// RowTime is how long a row is repeated. Budget is for everything: rows that
	// do not fit, by the speed measured in this run, are left out and reported.
	RowTime, Budget time.Duration
	Seed            uint64

	window time.Duration // of the machine's measurements
	tries  int           // of each of them, the best of which counts
	buffer int           // bytes of the DRAM measurement; 0: by the sizes of the caches
	tamper func([]float32)
	probe  func(name string, threads int) float64 // test hook: measures a limit of the machine
}

// Defaults is Table on one thread and on all, in less than four minutes. Its lists,
// for who takes Rows away, are about a DeepSeek-V3 layer.
func Defaults() Options {
	return Options{
		Rows: Table(), Ops: Ops(), Arithmetic: []mla.Compute{mla.ComputeF32},
		Model: models[0], KV: []kvpaged.Format{kvpaged.BF16},
		Ctx: []int{1024, 4096, 16384}, Batch: []int{1, 8}, TopK: []int{2048}, Prefill: []int{128, 512, 2048}, M: []int{1, 4, 16, 64, 512},
		Threads: defaultThreads(),
		RowTime: time.Second, Budget: 240 * time.Second, Seed: 1,
		window: 40 * time.Millisecond, tries: 5,
	}
}

// Quick is a few combinations of small works in less than half a minute, even in
// pure Go.
func Quick() Options {
	o := Defaults()
	o.Rows = nil
	o.Ctx, o.Batch, o.TopK, o.Prefill, o.M = []int{1024}, []int{1}, []int{512}, []int{32}, []int{1, 16}
	o.RowTime, o.Budget = 100*time.Millisecond, 20*time.Second
	o.window = 15 * time.Millisecond
	return o
}

func defaultThreads() []int {
	if n := Cores(); n > 1 {
		return []int{1, n}
	}
	return []int{1}
}

// ErrOptions marks options that name nothing that could be run.
var ErrOptions = errors.New("bench: bad options")

// ErrBudget marks a run that measured no row, since none fitted into its budget.
var ErrBudget = errors.New("bench: nothing was measured")

// Check says what is wrong with the options, an ErrOptions.
func (o Options) Check() error {
	for _, l := range []struct {
		name   string
		values []int
		most   int
	}{
		{"Ctx", o.Ctx, 1 << 20}, {"Batch", o.Batch, 1 << 12}, {"TopK", o.TopK, 1 << 20},
		{"Prefill", o.Prefill, 1 << 17}, {"M", o.M, 1 << 17}, {"Threads", o.Threads, 1 << 10},
	} {
		if len(l.values) == 0 {
			return fmt.Errorf("%w: %s is empty", ErrOptions, l.name)
		}
		for _, v := range l.values {
			if v < 1 || v > l.most {
				return fmt.Errorf("%w: %s has %d, want 1 to %d", ErrOptions, l.name, v, l.most)
			}
		}
	}
	for _, op := range o.Ops {
		if o.Weights != nil && op != Layer && op != Block {
			return fmt.Errorf("%w: operation %q with weights of a checkpoint, want some of %v", ErrOptions, op, []Op{Layer, Block})
		}
		if !slices.Contains(Ops(), op) {
			return fmt.Errorf("%w: unknown operation %q, want some of %v", ErrOptions, op, Ops())
		}
	}
	if len(o.Specs()) == 0 && o.Match != nil {
		return fmt.Errorf("%w: no row matches %q", ErrOptions, o.Match)
	}
	if len(o.Ops) == 0 || len(o.KV) == 0 || len(o.Arithmetic) == 0 || o.Model.Heads == 0 {
		return fmt.Errorf("%w: Ops, KV, Arithmetic or Model is empty", ErrOptions)
	}
	if o.RowTime <= 0 || o.Budget <= 0 {
		return fmt.Errorf("%w: RowTime is %v and Budget is %v, want both above 0", ErrOptions, o.RowTime, o.Budget)
	}
	if runnable, unfit := o.fitting(); len(runnable) == 0 {
		return fmt.Errorf("%w: no row can be run: %s: %s", ErrOptions, unfit[0].What, unfit[0].Reason)
	}
	return nil
}

// fitting splits the rows into those that can be run and those whose cache
// format has no room for their rows.
func (o Options) fitting() (runnable []Spec, unfit []LeftOut) {
	for _, s := range o.Specs() {
		if _, _, err := s.dims(); err != nil && s.pages() {
			unfit = append(unfit, leftOut(s, err.Error()))
			continue
		}
		if why := s.unfit(); why != "" {
			unfit = append(unfit, leftOut(s, why))
			continue
		}
		runnable = append(runnable, s)
	}
	return runnable, unfit
}

// Specs lists the rows that the options ask for, in the order of the report.
func (o Options) Specs() []Spec {
	works := o.Rows
	if len(works) == 0 {
		works = o.combinations()
	}
	var all []Spec
	for _, s := range works {
		for _, s.Threads = range o.Threads {
			if slices.Contains(o.Ops, s.Op) && slices.Contains(o.Arithmetic, s.Arithmetic) && (o.Match == nil || o.Match.MatchString(s.String())) {
				all = append(all, s)
			}
		}
	}
	return all
}

// combinations lists the works that the lists make, for any number of threads.
func (o Options) combinations() []Spec {
	var all []Spec
	for _, a := range o.Arithmetic {
		for _, s := range o.combinationsOf() {
			if s.Arithmetic = a; a == mla.ComputeF32 || s.Rival == "" {
				all = append(all, s)
			}
		}
	}
	return all
}

// combinationsOf lists those of one arithmetic.
func (o Options) combinationsOf() []Spec {
	var all []Spec
	for _, op := range o.Ops {
		switch op {
		case Gemm:
			all = append(all, o.gemms()...)
		case Prefill:
			all = append(all, o.prompts(op, kvpaged.F32)...)
		default:
			for _, kv := range o.KV {
				all = append(all, o.steps(op, kv)...)
				if op == Layer || op == Block {
					all = append(all, o.prompts(op, kv)...)
				}
			}
		}
	}
	for i := range all {
		all[i].Model, all[i].Weights = o.Model, o.Weights
	}
	return all
}

func (o Options) gemms() (all []Spec) {
	for _, m := range o.M {
		s := Spec{Op: Gemm, M: m, N: o.Model.Heads * o.Model.V, K: o.Model.Latent}
		all = append(all, s)
		s.Rival = Gonum
		all = append(all, s)
	}
	return all
}

func (o Options) prompts(op Op, kv kvpaged.Format) (all []Spec) {
	for _, n := range o.Prefill {
		all = append(all, Spec{Op: op, KV: kv, Ctx: n, Batch: 1, Tokens: n})
	}
	return all
}

// steps lists the works of one new token for each sequence.
func (o Options) steps(op Op, kv kvpaged.Format) (all []Spec) {
	for _, batch := range o.Batch {
		for _, ctx := range o.Ctx {
			s := Spec{Op: op, KV: kv, Ctx: ctx, Batch: batch, Tokens: 1}
			if op != SparseDecode {
				all = append(all, s)
				continue
			}
			for _, s.TopK = range o.TopK {
				if ctx >= s.TopK || slices.Max(o.Ctx) < s.TopK {
					all = append(all, s)
				}
			}
		}
	}
	return all
}

// Reporter takes the results as they come.
type Reporter interface {
	Machine(Machine)
	Row(Row)
	// Limits comes last, after all rows, if there was one and no error but ErrWrong.
	Limits(Limits)
	LeftOut(LeftOut)
	// Progress says what begins now: row done+1 of total.
	Progress(done, total int, what string)
}

// Run measures the machine and the rows that fit into the budget, one at a time.
// It returns an ErrWrong when an answer was wrong, after all rows; the context's
// error at once when that ends; ErrBudget when no row fitted; simd.Err, ErrOptions,
// or what a package under it returned.
func Run(ctx context.Context, o Options, to Reporter) (err error) {
	if err := simd.Err(); err != nil {
		return err
	}
	if err := o.Check(); err != nil {
		return err
	}
	start := time.Now()
	specs, unfit := o.fitting()
	to.Progress(0, len(specs), "the machine")
	most := slices.Max(o.Threads)
	if o.buffer == 0 {
		o.buffer = bufferBytes(most)
	}
	meter, err := newMeter(ctx, o.window, o.tries, o.buffer)
	if err != nil {
		return err
	}
	defer meter.close()
	if o.probe != nil {
		meter.probe = o.probe
	}
	machine := meter.machine(most)
	measured := time.Since(start)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	to.Machine(machine)
	for _, l := range unfit {
		to.LeftOut(l)
	}

	lab := NewLab(o.Seed)
	lab.tamper = o.tamper
	defer func() { err = errors.Join(err, lab.Close()) }()
	r := runner{Options: o, ctx: ctx, to: to, meter: meter, lab: lab, pace: newPace(meter), start: start, reserve: measured}
	if err := r.run(specs); err != nil && !errors.Is(err, ErrWrong) {
		return err
	}
	to.Progress(len(specs), len(specs), "the machine again")
	limits := meter.ended(machine, r.rows)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	to.Limits(limits)
	return errors.Join(r.wrong...)
}

// runner is one Run under way.
type runner struct {
	Options
	ctx   context.Context
	to    Reporter
	meter *meter
	lab   *Lab
	pace  *pace
	start time.Time
	// reserve is the part of the budget that measuring the machine at the end takes.
	reserve time.Duration
	rows    []Row // that were run
	wrong   []error
}

func (r *runner) left() time.Duration { return r.Budget - r.reserve - time.Since(r.start) }

// run takes the rows in order, and before each one looks again at which of the
// rest fit: the speeds it goes by get better as it goes.
func (r *runner) run(specs []Spec) error {
	for i, s := range specs {
		rest := specs[i:]
		if !r.fits(rest) {
			r.to.LeftOut(leftOut(s, fmt.Sprintf("takes about %v; of the budget of %v, %v were left for %s",
				tenths(r.pace.cost(s, r.RowTime)), r.Budget, tenths(max(0, r.left())), thisAnd(len(rest)-1))))
			continue
		}
		r.to.Progress(i, len(specs), s.String())
		if err := r.one(s); err != nil {
			return err
		}
	}
	if len(r.rows) == 0 {
		return fmt.Errorf("%w: no row fits the budget of %v", ErrBudget, r.Budget)
	}
	return errors.Join(r.wrong...)
}

// thisAnd is this row and n more, in words.
func thisAnd(n int) string {
	switch n {
	case 0:
		return "this row"
	case 1:
		return "this and 1 more row"
	}
	return fmt.Sprintf("this and %d more rows", n)
}

func tenths(d time.Duration) time.Duration { return d.Round(100 * time.Millisecond) }

// fits reports whether the first of the rows is among those that can be run in
// the time left, the cheapest of them chosen first. None may take more than a
// fifth of the budget, or than its even share of what is left.
func (r *runner) fits(rows []Spec) bool {
	left := r.left()
	most := max(r.Budget/5, left/time.Duration(len(rows)))
	first := r.pace.cost(rows[0], r.RowTime)
	sum := first
	for _, s := range rows[1:] {
		if cost := r.pace.cost(s, r.RowTime); cost < first {
			sum += cost
		}
	}
	return first <= most && sum <= left
}

// one runs one row. A row that turns out slower than its estimate is stopped
// when it has outrun the budget by a tenth, and is left out after all.
func (r *runner) one(s Spec) error {
	ctx, cancel := context.WithTimeout(r.ctx, r.left()+r.Budget/10)
	defer cancel()
	row, err := r.measure(ctx, s)
	switch {
	case r.ctx.Err() != nil:
		return r.ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		r.to.LeftOut(leftOut(s, "stopped: slower than expected, the budget ran out"))
		return nil
	case err != nil:
		return err
	}
	r.rows = append(r.rows, row)
	r.pace.learn(s, row)
	r.to.Row(row)
	if row.wrong != nil {
		r.wrong = append(r.wrong, row.wrong)
	}
	return nil
}

func (r *runner) measure(ctx context.Context, s Spec) (row Row, err error) {
	start := time.Now()
	w, err := r.lab.Open(s)
	if err != nil {
		return Row{}, err
	}
	r.pace.opened(s, time.Since(start))
	defer func() { err = errors.Join(err, w.Close()) }()
	return measure(ctx, w, s, r.RowTime, r.meter)
}

// pace guesses what a row costs, from the peak at first and then from what rows
// of the same kind took.
type pace struct {
	meter *meter
	known map[string]float64 // FLOP/s
	value time.Duration      // making and checking a value of the cache, at worst so far
}

func newPace(m *meter) *pace {
	return &pace{meter: m, known: map[string]float64{}, value: 10 * time.Nanosecond}
}

func kind(s Spec) string { return fmt.Sprint(s.Op, s.Rival, s.Arithmetic, s.Threads) }

// cost is the time a row takes: making its data, then one run, or, if that is
// short, a first one and as many as fill rowTime.
func (p *pace) cost(s Spec, rowTime time.Duration) time.Duration {
	speed := p.known[kind(s)]
	switch {
	case speed != 0:
	case s.Rival != "":
		speed = 2e9 // scalar code on any machine
	default:
		speed = 0.6 * p.meter.rate(limitFMA, s.Threads)
	}
	run := time.Duration(s.Flops() / speed * float64(time.Second))
	if run < rowTime {
		run += rowTime
	}
	run += setup + p.value*time.Duration(s.cached())
	if s.Op == Block {
		m := s.Model
		run += weighing*time.Duration(m.projected()) + blockTokens*time.Duration(m.Heads*s.Ctx*(m.Width()+m.Latent))
	}
	return run
}

// weighing is a guess at what making, packing and checking a weight of a block takes.
const weighing = 15 * time.Nanosecond

// setup is a guess at what making a row's data and checking it takes, the cache
// left out.
const setup = 100 * time.Millisecond

// opened remembers how long a row's data took to make.
func (p *pace) opened(s Spec, took time.Duration) {
	if n := s.cached(); n > 1<<20 { // of fewer, something else took the time
		p.value = max(p.value, took/time.Duration(n))
	}
}

// learn remembers the speed of a row that was run.
func (p *pace) learn(s Spec, r Row) {
	if r.MSMedian > 0 {
		p.known[kind(s)] = s.Flops() / (r.MSMedian / 1e3)
	}
}
