package bench

import (
	"fmt"
	"io"

	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

// barKind says how a bar measures a row.
type barKind int

const (
	noBar   barKind = iota
	atLeast         // a share of the limit
	speedup         // over one thread, at least
	atMost          // times the time of other works
)

// bar is what a work should reach.
type bar struct {
	kind  barKind
	want  float64
	limit string // atLeast: of which limit
	than  []Spec // atMost: works whose times are added up
	name  string // and what they are called
}

// class is the processors that a bar is meant for.
type class int

const (
	unjudged class = iota // another instruction set
	wide                  // AVX-512
	paired                // AVX-512 that multiplies pairs of bf16: wide, but for the second arithmetic
	narrow                // AVX2
	small                 // AVX2 with an L2 that holds neither queries nor sums of 128 heads
)

func (m Machine) class() class {
	switch {
	case m.SIMD == "avx512bf16":
		return paired
	case m.SIMD == "avx512":
		return wide
	case m.SIMD == "avx2" && m.L2Bytes > 0 && m.L2Bytes <= 512<<10:
		return small
	case m.SIMD == "avx2":
		return narrow
	}
	return unjudged
}

// of picks the figure of a class.
func (c class) of(wideWant, narrowWant, smallWant float64) float64 {
	switch c {
	case wide, paired:
		return wideWant
	case small:
		return smallWant
	}
	return narrowWant
}

func sharing(limit string, want float64) bar { return bar{kind: atLeast, want: want, limit: limit} }
func scaling(want float64) bar               { return bar{kind: speedup, want: want} }
func within(want float64, name string, than ...Spec) bar {
	return bar{kind: atMost, want: want, name: name, than: than}
}

// bars are what a work should reach on one thread and on two.
func (s Spec) bars(c class) (one, two bar) {
	if s.Arithmetic == mla.ComputeBF16 {
		return s.pairBars(c)
	}
	switch s.Op {
	case Decode:
		return s.decodeBars(c)
	case SparseDecode:
		dense := s
		dense.Op, dense.Ctx, dense.TopK, dense.KV = Decode, s.TopK, 0, kvpaged.BF16
		return within(1.08, "dense bf16", dense), bar{}
	case Prefill:
		if s.Model.Heads >= 128 {
			return sharing(limitFMA, c.of(0.82, 0.78, 0.76)), scaling(1.8)
		}
		return sharing(limitFMA, c.of(0.86, 0.82, 0.80)), scaling(1.9)
	case Gemm:
		return s.gemmBars(c)
	case Layer:
		if s.Tokens == 1 {
			core := s
			core.Op = Decode
			products := tableLayer()[:2]
			return within(1.05, "its parts", append(products, core)...), scaling(1.85)
		}
	}
	return bar{}, bar{}
}

func (s Spec) decodeBars(c class) (one, two bar) {
	switch {
	case s.Batch > 1:
		return sharing(limitFMA, 0.85), scaling(1.85)
	case s.Model.Heads == 16:
		return sharing(limitFMA, 0.75), scaling(1.85)
	case s.Model.Heads == 20:
		return sharing(limitFMA, 0.68), scaling(1.85)
	case s.Ctx == 2048 || s.KV == kvpaged.F32:
		return bar{}, bar{} // the measure of others
	case s.KV == kvpaged.BF16:
		return sharing(limitFMA, c.of(0.90, 0.88, 0.87)), scaling(c.of(1.93, 1.93, 1.9))
	}
	plain := s
	plain.KV = kvpaged.BF16
	return within(1.05, "bf16", plain), bar{}
}

func (s Spec) gemmBars(c class) (one, two bar) {
	switch {
	case s.Rival != "" || s.Batch > 1:
		return bar{}, bar{}
	case s.M == 1 && s.N > 16384:
		return sharing(limitDRAM, c.of(0.85, 0.80, 0.80)), sharing(limitDRAM, 0.85)
	case s.M == 1:
		return sharing(limitL3, c.of(0.27, 0.23, 0.23)), bar{}
	case s.M <= 4:
		return sharing(limitFMA, c.of(0.95, 0.87, 0.87)), scaling(1.9)
	case s.M <= 16:
		return sharing(limitFMA, c.of(0.95, 0.85, 0.85)), scaling(1.9)
	}
	return sharing(limitFMA, c.of(0.94, 0.90, 0.88)), scaling(1.9)
}

// pairBars are those of the second arithmetic, where processors have it: shares of the
// peak of f32, and of what f32 takes.
func (s Spec) pairBars(c class) (one, two bar) {
	first := s
	first.Arithmetic = mla.ComputeF32
	switch {
	case c != paired:
		return bar{}, bar{}
	case s.Op == Decode && s.Model.Heads >= 128 && s.Batch == 1 && s.KV == kvpaged.BF16:
		return sharing(limitFMA, 1.7), scaling(1.9)
	case s.Op == Prefill && s.Model.Heads >= 128:
		return sharing(limitFMA, 1.45), bar{}
	case s.Op == Prefill:
		return sharing(limitFMA, 1.5), bar{}
	case s.Op != Gemm || s.Batch > 1:
		return within(1, "f32", first), bar{}
	case s.M == 1:
		return within(1, "f32", first), within(1, "f32", first)
	case s.M <= 4:
		return sharing(limitFMA, 1.2), bar{}
	case s.M <= 16:
		return sharing(limitFMA, 1.25), bar{}
	case s.M <= 64:
		return sharing(limitFMA, 1.5), bar{}
	}
	return sharing(limitFMA, 1.7), bar{}
}

// String is the bar as the table has it.
func (b bar) String() string {
	switch b.kind {
	case atLeast:
		return fmt.Sprintf("≥ %.0f%% of %s", 100*b.want, b.limit)
	case speedup:
		return fmt.Sprintf("≥ %.4g times", b.want)
	case atMost:
		return fmt.Sprintf("≤ %.0f%% of %s", 100*b.want, b.name)
	}
	return ""
}

// reached is what a row reached by the measure of a bar, and whether that is
// enough, "yes" or "no". Either is "" where what was measured does not tell.
func (r *Report) reached(s Spec, row Row, b bar) (what, met string) {
	switch b.kind {
	case speedup:
		one, ok := r.row(s, 1)
		if !ok {
			return "", ""
		}
		times := one.MS / row.MS
		return fmt.Sprintf("%.2f times", times), yes(times >= b.want)
	case atMost:
		var sum float64
		for _, t := range b.than {
			other, ok := r.row(t, row.Threads)
			if !ok {
				return "", ""
			}
			sum += other.MS
		}
		return fmt.Sprintf("%.1f%% of %s", 100*row.MS/sum, b.name), yes(row.MS <= b.want*sum)
	}
	m := r.Machine
	share := m.share(row)
	if share == 0 {
		return "", ""
	}
	if beyond(row.Arithmetic, row.Limit, share, m.limit(limitFMA, row.Threads), m.limit(limitPair, row.Threads)) {
		return fmt.Sprintf("%.1f%%? of %s", 100*share, row.Limit), "" // the limit is wrong
	}
	what = fmt.Sprintf("%.1f%% of %s", 100*share, row.Limit)
	if b.limit != row.Limit { // a cache so large that it holds what memory should
		return what, ""
	}
	return what, yes(share >= b.want)
}

func yes(ok bool) string {
	if ok {
		return "yes"
	}
	return "no"
}

// side is the half of a line of the table that is about one number of threads.
type side struct {
	ms, reached, bar, met string
}

// side fills one in. Where a work has no bar, what it reached is given by the
// measure of another.
func (r *Report) side(s Spec, threads int, b, other bar) side {
	row, ok := r.row(s, threads)
	if !ok {
		return side{ms: "not measured", bar: b.String()}
	}
	half := side{ms: milliseconds(row.MS), bar: b.String()}
	if row.Wrong {
		half.reached, half.met = "wrong answer", "no"
		return half
	}
	if b.kind == noBar {
		half.reached, _ = r.reached(s, row, other)
	} else {
		half.reached, half.met = r.reached(s, row, b)
	}
	return half
}

// milliseconds prints about four digits.
func milliseconds(ms float64) string {
	if ms < 1 {
		return fmt.Sprintf("%.3f", ms)
	}
	return fmt.Sprintf("%.4g", ms)
}

// sides are both halves of the line of a work. The bars of several threads are
// those of two.
func (r *Report) sides(s Spec) (one, many side) {
	m := r.Machine
	var oneBar, twoBar bar
	if c := m.class(); c != unjudged {
		oneBar, twoBar = s.bars(c)
	}
	if m.Threads != 2 {
		twoBar = bar{}
	}
	one = r.side(s, 1, oneBar, bar{})
	if m.Threads > 1 {
		many = r.side(s, m.Threads, twoBar, scaling(0))
	}
	return one, many
}

// Bars prints in Markdown how fast the works of Table are and which of them are as
// fast as they should be. It returns how many bars were reached, of how many that
// apply to what was measured.
func (r *Report) Bars(w io.Writer) (reached, all int) {
	m := r.Machine
	fmt.Fprintf(w, "%s, %d cores, `%s`, %s", m.CPU, m.Cores, m.SIMD, m.Go)
	if m.Commit != "" {
		fmt.Fprintf(w, ", commit %s", m.Commit)
	}
	fmt.Fprintf(w, "; %s. Limits on 1 | %d threads: %s.\n\n", runs(r.Runs), m.Threads, m.Limits())
	fmt.Fprintf(w, "| work | 1 thread, ms | reached | bar | %d threads, ms | reached | bar | met |\n", m.Threads)
	fmt.Fprint(w, "|---|---|---|---|---|---|---|---|\n")
	for _, s := range r.works() {
		one, many := r.sides(s)
		for _, half := range []side{one, many} {
			switch half.met {
			case "yes":
				reached++
				all++
			case "no":
				all++
			}
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s |\n",
			s.Title(), one.ms, one.reached, one.bar, many.ms, many.reached, many.bar, verdict(one, many))
	}
	if m.class() != paired {
		fmt.Fprintf(w, "\nThe second arithmetic has no bars here: `%s` does not multiply pairs of bf16, `avx512bf16` does.\n", m.SIMD)
	}
	if r.busy {
		fmt.Fprint(w, "\nThe machine was busy in a run: its limits differed from its beginning to its end, or its rows passed them.\n")
	}
	fmt.Fprintf(w, "\n%d of %d bars reached. The largest error of a checked row is %.1e of its largest value.\n", reached, all, r.worst())
	return reached, all
}

// works are those of Table, without those of the second arithmetic that were not
// measured where they have no bars.
func (r *Report) works() (all []Spec) {
	for _, s := range Table() {
		_, one := r.row(s, 1)
		_, many := r.row(s, r.Machine.Threads)
		if s.Arithmetic == mla.ComputeF32 || r.Machine.class() == paired || one || many {
			all = append(all, s)
		}
	}
	return all
}

// verdict is one word for both halves of a line.
func verdict(one, many side) string {
	switch {
	case one.met == "no" || many.met == "no":
		return "**no**"
	case one.met == "yes" || many.met == "yes":
		return "yes"
	}
	return ""
}

func runs(n int) string {
	if n == 1 {
		return "one run"
	}
	return fmt.Sprintf("best of %d runs", n)
}

// worst is the largest error of all rows.
func (r *Report) worst() float64 {
	worst := 0.0
	for _, row := range r.best {
		worst = max(worst, row.MaxErr)
	}
	return worst
}

// Wrong reports whether an answer of some row was wrong.
func (r *Report) Wrong() bool {
	for _, row := range r.best {
		if row.Wrong {
			return true
		}
	}
	return false
}
