package main

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
	"github.com/lamina-ml/lamina/simd"
)

// embedded are the cases that replay runs when it is given no files.
//
//go:embed testdata/*.safetensors
var embedded embed.FS

const replayUsage = `usage: lamina replay [flags] [FILE|DIR ...]

Runs case files through the library and compares with the answers in them. A directory stands
for the .safetensors files directly in it. Without files the cases embedded in the program run.
Standard output gets a line of JSON for each case, standard error a table. Exit status: 0 all
passed, 1 a wrong answer, 2 a file or a flag that cannot be used, 130 interrupted.
`

// options are the flags of replay.
type options struct {
	json, hash    bool
	threads, page int
	form          string // empty: the file's own
	arithmetic    mla.Compute
}

// maxThreads and maxPage bound what a flag can make the program allocate.
const (
	maxThreads = 1024
	maxPage    = 1 << 20
)

// runReplay is the command replay.
func runReplay(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := newFlags("replay", replayUsage, stdout)
	o, paths, err := parseReplay(f, args)
	if err == nil {
		err = simd.Err()
	}
	if status, done := f.failed(err, stderr); done {
		return status
	}
	pool := mla.NewPool(o.threads)
	defer pool.Close()
	p := &player{options: o, pool: pool, stdout: json.NewEncoder(stdout), stderr: stderr}
	p.stdout.SetEscapeHTML(false)
	if len(paths) == 0 {
		p.playEmbedded(ctx)
	}
	for _, path := range paths {
		p.playPath(ctx, path)
	}
	p.summary()
	if ctx.Err() != nil {
		return statusInterrupted // run says so, and why
	}
	return p.status
}

// parseReplay reads flags and paths, in any order.
func parseReplay(fs *flags, args []string) (o options, paths []string, err error) {
	fs.BoolVar(&o.json, "json", false, "no table, JSON only")
	fs.BoolVar(&o.hash, "hash", false, "add the SHA-256 of each output's bits")
	fs.IntVar(&o.threads, "threads", 0, "number of `workers`; 0: one per CPU")
	fs.IntVar(&o.page, "page", 0, "`tokens` of a page of the first cache, which is laid out anew; a second one (extra.blocks) stays\nas it is; 0: as the file has them")
	fs.StringVar(&o.form, "form", "", "force a `form` on dense layer calls: auto, decode or prefill (default: as the file says);\nnot on index lists and act_quant = dynamic, whose answers are of one form")
	fs.Func("arithmetic", "`f32` or bf16, of attention and products (default f32); for bf16 the tolerances of the file give way to\nthose that FlashMLA publishes, by the size of the output and wider where more is rounded than there (docs/arithmetic.md)", func(s string) (err error) {
		o.arithmetic, err = mla.ParseCompute(s)
		return err
	})
	for {
		if err := fs.Parse(args); err != nil {
			return o, nil, err
		}
		rest := fs.Args()
		if n := len(args) - len(rest); n > 0 && args[n-1] == "--" {
			paths = append(paths, rest...)
			break
		}
		if len(rest) == 0 {
			break
		}
		paths, args = append(paths, rest[0]), rest[1:]
	}
	switch _, known := parseForm(o.form); {
	case o.threads < 0 || o.threads > maxThreads:
		err = fmt.Errorf("-threads is %d, wanted 0 to %d", o.threads, maxThreads)
	case o.page < 0 || o.page > maxPage:
		err = fmt.Errorf("-page is %d, wanted 0 to %d", o.page, maxPage)
	case o.form != "" && !known:
		err = fmt.Errorf("-form is %q, wanted auto, decode or prefill", o.form)
	}
	return o, paths, err
}

// player runs cases one after the other and keeps the worst status.
type player struct {
	options
	pool   *mla.Pool
	stdout *json.Encoder
	stderr io.Writer

	status                   int
	passed, failed, unusable int
	headed                   bool
}

func (p *player) worsen(status int) { p.status = max(p.status, status) }

// refuse reports something that cannot be used.
func (p *player) refuse(err error) {
	p.unusable++
	p.worsen(statusUnusable)
	fmt.Fprintln(p.stderr, "lamina replay:", err)
}

func (p *player) playEmbedded(ctx context.Context) {
	const dir = "testdata"
	entries, err := embedded.ReadDir(dir)
	if err != nil {
		p.refuse(err)
		return
	}
	for _, e := range entries {
		b, err := embedded.ReadFile(dir + "/" + e.Name())
		if err != nil {
			p.refuse(err)
			continue
		}
		f, err := checkpoint.Parse(b)
		p.play(ctx, "embedded "+e.Name(), f, err)
	}
}

func (p *player) playPath(ctx context.Context, path string) {
	files := []string{path}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		if files, err = caseFiles(path); err != nil {
			p.refuse(err)
			return
		}
	}
	for _, file := range files {
		f, err := checkpoint.Open(file)
		p.play(ctx, file, f, err)
	}
}

// caseFiles are the .safetensors files directly in a directory, sorted.
func caseFiles(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []string
	for _, e := range entries {
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".safetensors") {
			files = append(files, filepath.Join(dir, e.Name()))
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("%s: the directory has no .safetensors files", dir)
	}
	slices.Sort(files)
	return files, nil
}

// play runs one file, which opening gave f or err, and closes it. After an interrupt it does
// nothing.
func (p *player) play(ctx context.Context, path string, f *checkpoint.File, err error) {
	if err == nil {
		defer f.Close()
	}
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		p.refuse(err)
		return
	}
	r := newReader(f)
	o, err := p.runCase(ctx, path, r)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		p.refuse(fmt.Errorf("%s: %w", path, err))
		return
	}
	p.report(path, r.meta, o)
}

// ops are all there are.
var ops = []string{"graph", "merge", "sparse_decode", "sparse_prefill", "block"}

func (p *player) runCase(ctx context.Context, path string, r *reader) (outcome, error) {
	r.choice("lamina.case", "1")
	r.text("name")
	op := r.text("op")
	if r.err != nil {
		return outcome{}, r.err
	}
	switch op {
	case "graph":
		g, err := readGraph(r)
		if err != nil {
			return outcome{}, err
		}
		g.cfg.Compute = p.arithmetic
		more := withProducts
		if g.dynamic() {
			more = withCodes
		}
		g.want.in(p.arithmetic, flashDense, more)
		return g.run(ctx, p.pool, p.options)
	case "merge":
		m, err := readMerge(r)
		if err != nil {
			return outcome{}, err
		}
		return m.run()
	case "sparse_decode", "sparse_prefill":
		c, err := readSparseCase(r, op)
		if err != nil {
			return outcome{}, err
		}
		c.core.Compute = p.arithmetic
		flash := flashSparseDecode
		if op == "sparse_prefill" {
			flash = flashSparsePrefill
		}
		c.want.in(p.arithmetic, flash, c.allowance())
		return c.run(ctx, p.pool, p.options)
	case "block":
		c, err := readBlock(r, path)
		if err != nil {
			return outcome{}, err
		}
		return c.run(ctx, p)
	}
	return outcome{}, fmt.Errorf("op = %q is no op, wanted %s", op, strings.Join(ops, ", "))
}

// line is one case on standard output.
type line struct {
	Name       string   `json:"name"`
	Op         string   `json:"op"`
	Pass       bool     `json:"pass"`
	MaxAbs     float64  `json:"max_abs"`
	MaxRel     float64  `json:"max_rel"`
	CosDiff    float64  `json:"cos_diff"`
	Worst      []int    `json:"worst"`
	LSEMaxAbs  *float64 `json:"lse_max_abs,omitempty"`
	Seconds    float64  `json:"seconds"`
	SIMD       string   `json:"simd"`
	Threads    int      `json:"threads"`
	Form       string   `json:"form,omitempty"`
	Arithmetic string   `json:"arithmetic"`
	Hash       string   `json:"hash,omitempty"`
}

// report prints a case that ran, and counts it if it could.
func (p *player) report(path string, meta map[string]string, o outcome) {
	l := line{
		Name: meta["name"], Op: meta["op"], Pass: len(o.faults) == 0,
		MaxAbs: o.verdict.maxAbs, MaxRel: o.verdict.maxRel, CosDiff: o.verdict.cosDiff, Worst: o.worst(),
		LSEMaxAbs: o.lseMaxAbs, Seconds: o.seconds,
		SIMD: simd.Level(), Threads: p.pool.Workers(), Form: o.form, Arithmetic: o.arithmetic.String(),
	}
	if p.hash {
		l.Hash = o.hash()
	}
	if p.stdout.Encode(l) != nil {
		return // and the player stops: output has ended its context
	}
	p.table(l)
	if l.Pass {
		p.passed++
	} else {
		p.failed++
		p.worsen(statusWrong)
		for _, fault := range o.faults {
			fmt.Fprintf(p.stderr, "lamina replay: %s: %s\n", path, fault)
		}
	}
}

// table prints a case for people.
func (p *player) table(l line) {
	if p.json {
		return
	}
	if !p.headed {
		p.headed = true
		fmt.Fprintf(p.stderr, "%-34s %-5s %-7s %9s %9s %9s %9s %9s\n",
			"case", "", "form", "max abs", "max rel", "cos diff", "lse abs", "ms")
	}
	result, lse := "ok", "-"
	if !l.Pass {
		result = "WRONG"
	}
	if l.LSEMaxAbs != nil {
		lse = fmt.Sprintf("%.2g", *l.LSEMaxAbs)
	}
	form := l.Form
	if form == "" {
		form = "-"
	}
	fmt.Fprintf(p.stderr, "%-34s %-5s %-7s %9.2g %9.2g %9.2g %9s %9.2f\n",
		l.Name, result, form, l.MaxAbs, l.MaxRel, l.CosDiff, lse, 1000*l.Seconds)
}

func (p *player) summary() {
	if !p.json {
		fmt.Fprintf(p.stderr, "%d passed, %d wrong, %d could not be used (simd %s, %d threads)\n",
			p.passed, p.failed, p.unusable, simd.Level(), p.pool.Workers())
	}
}
