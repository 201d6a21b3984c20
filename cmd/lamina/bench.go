package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/term"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

const benchUsage = `usage: lamina bench [flags]
       lamina bench -weights DIR [-layer N] [flags]
       lamina bench -bars FILE

Times an attention layer on weights made here, checks sampled rows of every
answer against a float64 oracle, and prints each row's share of what the machine
could do in the same run, measured before the rows and after them; a share above
105% of that, which cannot be, has the mark ?, and what shows that others used the
machine comes last. Exit status: 0 all right, 1 a wrong answer, 2 bad flags,
no such instruction set or no row that fits the budget, 130 interrupted.

The rows are those of docs/performance.md; -op and -rows take some of them. With
one of -model, -kv, -ctx, -batch, -sparse, -prefill, -m, -quick and -weights they are all
combinations of what these flags list, separated by commas.

-weights times the layer and the whole attention block number N of a checkpoint, such as a
model hub's, on hidden states made here.

-bars times nothing: it reads the lines that runs with -json wrote, one after the
other in one file, takes the best of each row and prints, in Markdown, which rows
are as fast as they should be.
`

// runBench is "lamina bench".
func runBench(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := newFlags("bench", benchUsage, stdout)
	bars := f.String("bars", "", "judge the lines of this `file`")
	o, asJSON, err := benchOptions(f, args)
	if err == nil && *bars != "" && f.NFlag() > 1 {
		err = errors.New("-bars times nothing and takes no other flags")
	}
	if status, done := f.failed(err, stderr); done {
		return status
	}
	if *bars != "" {
		return runBars(*bars, stdout, stderr)
	}
	p := &progress{w: stderr, on: isTerminal(stderr)}
	if o.Weights != nil {
		o.Weights.Block.Progress = newBar(stderr, "packing "+o.Weights.Name).progress
	}
	var to interface {
		bench.Reporter
		end()
	} = &benchTable{out: stdout, progress: p, model: modelWidth(o.Specs()), shape: shapeWidth(o.Specs())}
	if asJSON {
		to = &benchLines{enc: json.NewEncoder(stdout), progress: p}
	}
	err = bench.Run(ctx, o, to)
	p.clear()
	to.end()
	status := benchStatus(err)
	if err != nil && status != statusInterrupted {
		fmt.Fprintf(stderr, "lamina bench: %v\n", err)
	}
	return status
}

func benchStatus(err error) int {
	switch {
	case err == nil:
		return statusOK
	case errors.Is(err, context.Canceled):
		return statusInterrupted // run says so, and why
	case errors.Is(err, bench.ErrWrong):
		return statusWrong
	}
	return statusUnusable
}

// benchOptions reads the flags over the defaults of a default or a quick run.
func benchOptions(f *flags, args []string) (o bench.Options, asJSON bool, err error) {
	o = bench.Defaults()
	if quick(args) {
		o = bench.Quick()
	}
	f.Func("model", "one of "+strings.Join(modelNames(), ", ")+" (default v3)", func(s string) error {
		o.Model, err = bench.ParseModel(s)
		return err
	})
	f.Func("rows", "a regular expression: time only rows whose names match, such as\n\"decode v3 ctx=4096 batch=1 tokens=1 kv=bf16 threads=2\"", func(s string) error {
		o.Match, err = regexp.Compile(s)
		return err
	})
	f.Func("op", "what to time: "+opNames()+" (default all)", func(s string) error {
		o.Ops = nil
		for _, name := range strings.Split(s, ",") {
			o.Ops = append(o.Ops, bench.Op(name))
		}
		return nil
	})
	f.Func("arithmetic", "f32, bf16 or both: rows in the second have names that end in arithmetic=bf16 and the number of threads,\nand a share of the f32 limit that may be above 100% (default f32)", func(s string) error {
		o.Arithmetic = nil
		for _, name := range strings.Split(s, ",") {
			a, err := mla.ParseCompute(name)
			if err != nil {
				return err
			}
			o.Arithmetic = append(o.Arithmetic, a)
		}
		return nil
	})
	f.Func("kv", "cache formats: all, or some of "+formatNames()+" (default bf16)", func(s string) error {
		if s == "all" {
			o.KV = bench.Formats()
			return nil
		}
		o.KV = nil
		for _, name := range strings.Split(s, ",") {
			format, err := kvpaged.ParseFormat(name)
			if err != nil {
				return err
			}
			o.KV = append(o.KV, format)
		}
		return nil
	})
	intsVar(f, &o.Ctx, "ctx", "context lengths of decode, sparse_decode, layer and block")
	intsVar(f, &o.Batch, "batch", "numbers of sequences of decode, sparse_decode, layer and block")
	intsVar(f, &o.TopK, "sparse", "time sparse_decode with index lists of these lengths, on the contexts that have as many keys;\nif all are shorter, on all of them: the lists then name every key, and the rest of their places are empty")
	intsVar(f, &o.Prefill, "prefill", "prompt lengths of prefill, layer and block")
	intsVar(f, &o.M, "m", "rows of the gemm products")
	intsVar(f, &o.Threads, "threads", "numbers of threads, up to the cores that Go may use")
	f.DurationVar(&o.RowTime, "time", o.RowTime, "how long to repeat each row")
	f.DurationVar(&o.Budget, "budget", o.Budget, "for the whole run; rows that do not fit are left out and listed")
	f.Uint64Var(&o.Seed, "seed", o.Seed, "of weights and data")
	f.BoolVar(&asJSON, "json", false, "print one JSON object a line")
	f.Bool("quick", false, "combinations of small works, in less than 30 seconds")
	weights := f.String("weights", "", "time a layer and a block of the checkpoint in this `directory`")
	layer := f.Int("layer", 0, "of its attention blocks take the one with this `number`")
	err = f.parse(args)
	names := map[string]bool{}
	f.Visit(func(given *flag.Flag) {
		names[given.Name] = true
		switch given.Name {
		case "model", "kv", "ctx", "batch", "sparse", "prefill", "m":
			o.Rows = nil // in favour of combinations
		}
		if given.Name == "sparse" && !slices.Contains(o.Ops, bench.SparseDecode) {
			o.Ops = append(o.Ops, bench.SparseDecode)
		}
	})
	if err == nil {
		err = weigh(&o, *weights, *layer, names)
	}
	if err == nil {
		err = enoughCores(o.Threads)
	}
	if err == nil {
		err = o.Check()
	}
	return o, asJSON, err
}

// enoughCores refuses more threads than can do anything at once: what they reach would be a measure of the scheduler.
func enoughCores(threads []int) error {
	if most, cores := slices.Max(threads), bench.Cores(); most > cores {
		return fmt.Errorf("-threads has %d, want at most %d, the cores that Go may use (GOMAXPROCS is %d)", most, cores, runtime.GOMAXPROCS(0))
	}
	return nil
}

// weigh puts a block of a checkpoint in the place of made weights, if there is a directory.
func weigh(o *bench.Options, dir string, layer int, given map[string]bool) error {
	switch {
	case dir == "" && given["layer"]:
		return errors.New("-layer is given without -weights")
	case dir == "":
		return nil
	case given["model"]:
		return errors.New("-model and -weights are given, wanted one of them")
	case given["sparse"]:
		return errors.New("-sparse and -weights are given, and layers and blocks are timed without index lists")
	}
	m, err := checkpoint.OpenModel(dir)
	if err != nil {
		return err
	}
	defer m.Close()
	if n := m.Config.Blocks + m.Config.Predict; layer < 0 || layer >= n {
		return fmt.Errorf("-layer is %d, and %s has attention blocks 0 to %d", layer, dir, n-1)
	}
	cfg, weights, err := m.LoadBlock(layer)
	if err != nil {
		return err
	}
	o.Weights = &bench.Weights{
		Name: fmt.Sprintf("%s/%d", filepath.Base(filepath.Clean(dir)), layer), Config: cfg, Block: weights, Freqs: m.Config.Rope.Table,
	}
	o.Rows, o.Model = nil, o.Weights.Model()
	if !given["op"] {
		o.Ops = []bench.Op{bench.Layer, bench.Block}
	}
	return nil
}

// quick looks for -quick ahead of the flags whose defaults it decides.
func quick(args []string) bool {
	for _, a := range args {
		switch strings.TrimLeft(a, "-") {
		case "quick", "quick=true", "quick=1":
			return true
		}
	}
	return false
}

func modelNames() []string {
	var names []string
	for _, m := range bench.Models() {
		names = append(names, m.Name)
	}
	return names
}

func opNames() string {
	var names []string
	for _, op := range bench.Ops() {
		names = append(names, string(op))
	}
	return strings.Join(names, ", ")
}

func formatNames() string {
	var names []string
	for _, f := range bench.Formats() {
		names = append(names, f.String())
	}
	return strings.Join(names, ", ")
}

// intsVar defines a flag that takes positive integers.
func intsVar(f *flags, to *[]int, name, usage string) {
	f.Func(name, fmt.Sprintf("%s (default %s)", usage, join(*to)), func(s string) error {
		var list []int
		for _, field := range strings.Split(s, ",") {
			n, err := strconv.Atoi(strings.TrimSpace(field))
			if err != nil || n < 1 {
				return fmt.Errorf("%q is not a positive number", field)
			}
			list = append(list, n)
		}
		*to = list
		return nil
	})
}

func join(list []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(list)), ","), "[]")
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// progress keeps one line on a terminal that says what is being timed.
type progress struct {
	w     io.Writer
	on    bool
	shown bool
}

func (p *progress) Progress(done, total int, what string) {
	p.show(fmt.Sprintf("%d/%d %s", done, total, what))
}

// show puts a line in the place of the one that is there.
func (p *progress) show(line string) {
	if p.on {
		fmt.Fprint(p.w, "\r\x1b[K", line)
		p.shown = true
	}
}

func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}

// benchLines reports in JSON. Encoding cannot fail on the values it has, and
// output takes care of its writes.
type benchLines struct {
	*progress
	enc *json.Encoder
}

func (l *benchLines) Machine(m bench.Machine) { l.line(m) }
func (l *benchLines) Row(r bench.Row)         { l.line(r) }
func (l *benchLines) Limits(m bench.Limits)   { l.line(m) }
func (l *benchLines) LeftOut(o bench.LeftOut) { l.line(o) }
func (l *benchLines) end()                    {}

func (l *benchLines) line(v any) {
	l.clear()
	l.enc.Encode(v)
}

// benchTable reports for reading, a row as soon as it is there.
type benchTable struct {
	*progress
	out   io.Writer
	model int // widths of columns
	shape int
	left  []bench.LeftOut

	limits   bench.Limits
	doubtful bool // a row has a share with a mark
	pairwise bool
}

// modelWidth is the width that the column of models needs.
func modelWidth(rows []bench.Spec) int {
	width := 14
	for _, s := range rows {
		width = max(width, len(s.Model.Name)+1)
	}
	return width
}

// shapeWidth is the width that the column of shapes needs.
func shapeWidth(rows []bench.Spec) int {
	width := 36
	for _, s := range rows {
		n := len("2048 of 16384, batch 8, kv  ") + len(s.KV.String())
		if s.Arithmetic != mla.ComputeF32 {
			n += len(", ") + len(s.Arithmetic.String())
		}
		width = max(width, n)
	}
	return width
}

func (t *benchTable) Machine(m bench.Machine) {
	t.clear()
	fmt.Fprintf(t.out, "%s, %d cores, simd %s, %s", m.CPU, m.Cores, m.SIMD, m.Go)
	if m.Commit != "" {
		fmt.Fprintf(t.out, ", commit %s", m.Commit)
	}
	fmt.Fprintf(t.out, "\nlimits on 1 | %d threads: %s", m.Threads, m.Limits())
	fmt.Fprintf(t.out, "\n\n%-14s%-*s%-*s%4s %10s %10s %9s %7s %9s %8s %6s  %-5s %s\n",
		"op", t.model, "model", t.shape, "shape", "thr", "ms", "median", "GFLOP/s", "GB/s", "tok/s", "MB", "share", "limit", "error")
}

func (t *benchTable) Row(r bench.Row) {
	t.clear()
	shape := fmt.Sprintf("ctx %d, batch %d, kv %s", r.Ctx, r.Batch, r.KV)
	switch {
	case r.Op == bench.Gemm:
		shape = fmt.Sprintf("%dx%dx%d %s", r.M, r.N, r.K, r.Weights)
		if r.Batch > 1 {
			shape = fmt.Sprintf("%d of ", r.Batch) + shape
		}
		if r.Rival != "" {
			shape += " " + r.Rival
		}
	case r.Op == bench.SparseDecode:
		shape = fmt.Sprintf("%d of %d, batch %d, kv %s", r.TopK, r.Ctx, r.Batch, r.KV)
	case r.CtxMin > 0:
		shape = fmt.Sprintf("ctx %d to %d, batch %d, kv %s", r.CtxMin, r.Ctx, r.Batch, r.KV)
	case r.Tokens > r.Batch:
		shape = fmt.Sprintf("%d tokens, kv %s", r.Tokens, r.KV)
	}
	if r.Arithmetic == mla.ComputeBF16.String() {
		shape += ", " + r.Arithmetic
	}
	share := ""
	if r.Share > 0 {
		share = fmt.Sprintf("%.1f%%%s", 100*r.Share, t.mark(r))
	}
	fmt.Fprintf(t.out, "%-14s%-*s%-*s%4d %10s %10s %9s %7s %9s %8.1f %6s  %-5s %.1e",
		r.Op, t.model, r.Model, t.shape, shape, r.Threads, number(r.MS), number(r.MSMedian), number(r.GFlops), number(r.GBps),
		number(r.TokPerS), float64(r.Memory)/1e6, share, r.Limit, r.MaxErr)
	if r.Wrong {
		fmt.Fprint(t.out, " WRONG")
	}
	fmt.Fprintln(t.out)
}

// mark stands behind a share that may be above 100%: ? where it cannot be, + where the limit is that of
// another arithmetic.
func (t *benchTable) mark(r bench.Row) string {
	switch {
	case r.Doubtful:
		t.doubtful = true
		return "?"
	case r.Arithmetic == mla.ComputeBF16.String() && r.Share > 1:
		t.pairwise = true
		return "+"
	}
	return ""
}

func (t *benchTable) Limits(l bench.Limits)   { t.limits = l }
func (t *benchTable) LeftOut(o bench.LeftOut) { t.left = append(t.left, o) }

func (t *benchTable) end() {
	if t.doubtful {
		fmt.Fprint(t.out, "\n? more than the limit: it was measured while others used the machine\n")
	}
	if t.pairwise {
		fmt.Fprint(t.out, "\n+ of the peak of multiply-adds in float32, of which pairs of bf16 may do more\n")
	}
	if len(t.limits.Warnings) > 0 {
		fmt.Fprint(t.out, "\nthe machine was not quiet:\n")
		for _, w := range t.limits.Warnings {
			fmt.Fprintf(t.out, "  %s\n", w)
		}
		fmt.Fprintf(t.out, "best limits on 1 | %d threads: %s\n", t.limits.Threads, t.limits)
	}
	if len(t.left) == 0 {
		return
	}
	fmt.Fprintf(t.out, "\n%s left out:\n", rows(len(t.left)))
	for _, o := range t.left {
		fmt.Fprintf(t.out, "  %s: %s\n", o.What, o.Reason)
	}
}

func rows(n int) string {
	if n == 1 {
		return "1 row"
	}
	return fmt.Sprintf("%d rows", n)
}

// number prints about four digits without an exponent; nothing for 0.
func number(x float64) string {
	switch {
	case x == 0:
		return ""
	case x < 10:
		return strconv.FormatFloat(x, 'f', 3, 64)
	case x < 1000:
		return strconv.FormatFloat(x, 'f', 1, 64)
	}
	return strconv.FormatFloat(x, 'f', 0, 64)
}
