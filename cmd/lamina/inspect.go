package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

const inspectUsage = `usage: lamina inspect [flags] PATH

Says what a safetensors file or the directory of a checkpoint holds: tensors, their types,
shapes and bytes; of a directory also its attention blocks, which of them this program can
run and if not why, and what a token of context costs in each cache format. Headers are
read, no weights. Exit status: 0 all of it can be used, 2 something cannot, and why.
`

// inspection is what "lamina inspect" found. Sizes are bytes.
type inspection struct {
	Path    string        `json:"path"`
	Kind    string        `json:"kind"`  // file or directory
	Bytes   int64         `json:"bytes"` // of all tensors
	Files   []foundFile   `json:"files"`
	Unread  []string      `json:"unread,omitempty"` // safetensors files beside them that are none of the model's
	Types   []foundType   `json:"types"`
	Model   *foundModel   `json:"model,omitempty"`
	Blocks  []foundBlock  `json:"blocks,omitempty"`
	Context []contextCost `json:"context,omitempty"`
	Faults  []string      `json:"faults,omitempty"` // what cannot be used, and why

	// A header may list a million tensors, or have one name of 30 MB: these are printed from
	// where the open files keep them, and never gathered.
	metadata map[string]string // of a file
	tensors  iter.Seq[checkpoint.Tensor]
	count    int
	close    func() error
}

type foundFile struct {
	Name    string `json:"name"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`              // of its tensors
	LeftOut int    `json:"left_out,omitempty"` // tensors that it has beside them, which the index leaves out
}

type foundType struct {
	DType   string `json:"dtype"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

// foundTensor is what is printed of a tensor behind its name.
type foundTensor struct {
	DType string           `json:"dtype"`
	Shape checkpoint.Shape `json:"shape"`
	Bytes int64            `json:"bytes"`
	File  string           `json:"file"`
}

// foundModel is what config.json says of the model's attention.
type foundModel struct {
	Type         string  `json:"model_type"`
	Layers       int     `json:"layers"`
	Blocks       int     `json:"blocks"`            // of attention; each keeps a cache
	Predict      int     `json:"predict,omitempty"` // blocks behind them that predict further tokens
	Quantisation string  `json:"quantization,omitempty"`
	Hidden       int     `json:"hidden"`
	Heads        int     `json:"heads"`
	Nope         int     `json:"nope"`
	Rope         int     `json:"rope"`
	V            int     `json:"v"`
	Latent       int     `json:"latent"`
	QLora        int     `json:"q_lora"` // 0: q_proj
	RopeStyle    string  `json:"rope_style"`
	Scale        float32 `json:"scale"` // of the softmax
	IndexTopK    int     `json:"index_topk,omitempty"`
	Positions    int     `json:"max_position_embeddings,omitempty"`
}

// foundBlock is an attention block.
type foundBlock struct {
	Block   int    `json:"block"`
	Module  string `json:"module"`
	Weights string `json:"weights"` // their types, those of scales and norms left out
	Bytes   int64  `json:"bytes"`   // of all its tensors
	Runs    bool   `json:"runs"`
	Why     string `json:"why,omitempty"` // it does not
}

// contextCost is what a token of context costs in a cache format.
type contextCost struct {
	Format string `json:"format"`
	Group  int    `json:"group,omitempty"` // values that share a scale, where the user may choose
	Layer  int    `json:"bytes_per_token_and_layer"`
	All    int    `json:"bytes_per_token"` // of all blocks
}

// runInspect is "lamina inspect".
func runInspect(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	f := newFlags("inspect", inspectUsage, stdout)
	asJSON := f.Bool("json", false, "print one JSON object, with every tensor")
	every := f.Bool("tensors", false, "a line for every tensor, however many there are")
	path, err := f.parseOne(args)
	if status, done := f.failed(err, stderr); done {
		return status
	}
	// What is kept of headers is most of the heap: no other half of it is to be garbage.
	defer debug.SetGCPercent(debug.SetGCPercent(20))
	i, err := inspect(path)
	if ctx.Err() != nil {
		return statusInterrupted
	}
	if err != nil {
		fmt.Fprintf(stderr, "lamina inspect: %v\n", err)
		return statusUnusable
	}
	defer i.close()
	w := bufio.NewWriter(stdout)
	if *asJSON {
		i.printJSON(w)
	} else {
		i.print(w, *every)
	}
	w.Flush()
	if len(i.Faults) == 0 {
		return statusOK
	}
	for _, fault := range i.Faults[:min(len(i.Faults), manyFaults)] {
		fmt.Fprintf(stderr, "lamina inspect: %s\n", fault)
	}
	if more := len(i.Faults) - manyFaults; more > 0 {
		fmt.Fprintf(stderr, "lamina inspect: and %s more\n", counted(more, "fault"))
	}
	return statusUnusable
}

// manyFaults is how many are printed one by one; -json has all.
const manyFaults = 8

// parseOne reads flags and one path, in any order.
func (f *flags) parseOne(args []string) (string, error) {
	var paths []string
	for len(args) > 0 {
		if err := f.Parse(args); err != nil {
			return "", err
		}
		rest := f.Args()
		if n := len(args) - len(rest); len(rest) == 0 || n > 0 && args[n-1] == "--" {
			paths = append(paths, rest...)
			break
		}
		paths, args = append(paths, rest[0]), rest[1:]
	}
	if len(paths) != 1 {
		return "", fmt.Errorf("%d paths are given, wanted one file or directory", len(paths))
	}
	return paths[0], nil
}

// inspect looks at a file or a directory, which stays open. An error means that it is no set of
// tensors; what else is wrong with it is among the faults.
func inspect(path string) (*inspection, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		if name := filepath.Base(path); name == "config.json" || strings.HasSuffix(name, ".safetensors.index.json") {
			return nil, fmt.Errorf("%s: it is a part of a checkpoint: give its directory, %s", path, filepath.Dir(path))
		}
		f, err := checkpoint.Open(path)
		if err != nil {
			return nil, err
		}
		i := &inspection{Path: path, Kind: "file", metadata: f.Metadata(), close: f.Close}
		i.take([]*checkpoint.File{f}, f.Tensors())
		return i, nil
	}
	i := &inspection{Path: path, Kind: "directory"}
	m, err := checkpoint.OpenModel(path)
	if err == nil {
		i.close = m.Close
		i.take(m.Dir.Files(), m.Dir.Tensors())
		i.unread()
		i.model(m)
		return i, nil
	}
	// No model that is known; its tensors may be in order all the same.
	d, dirErr := checkpoint.OpenDir(path)
	if dirErr != nil {
		return nil, dirErr
	}
	i.close = d.Close
	i.take(d.Files(), d.Tensors())
	i.unread()
	i.Faults = append(i.Faults, err.Error())
	return i, nil
}

// model looks at the attention blocks of a directory.
func (i *inspection) model(m *checkpoint.Model) {
	c, core := m.Config, m.Config.Block.Core
	i.Model = &foundModel{
		Type: c.ModelType, Layers: c.Layers, Blocks: c.Blocks, Predict: c.Predict, Quantisation: quantisation(c.Quant), Hidden: c.Block.Hidden,
		Heads: core.Heads, Nope: core.Nope, Rope: core.Rope, V: core.V, Latent: core.Latent, QLora: c.Block.QLora, RopeStyle: "interleaved",
		Scale: core.Scale, IndexTopK: core.IndexTopK, Positions: c.Context,
	}
	if core.RopeStyle == mla.Half {
		i.Model.RopeStyle = "half"
	}
	all := make([]held, c.Blocks+c.Predict)
	for t := range i.tensors {
		if b := blockOf(m, t.Name); b >= 0 {
			all[b].take(t)
		}
	}
	for b, h := range all {
		if b >= c.Blocks && h.tensors == 0 {
			i.Model.Predict-- // it is said to be there, and is left out more often than not
			continue
		}
		found := foundBlock{Block: b, Module: m.Module(b), Weights: h.weights(), Bytes: h.bytes, Runs: true}
		if err := m.Check(b); err != nil {
			found.Runs, found.Why = false, err.Error()
			i.Faults = append(i.Faults, found.Why)
		}
		i.Blocks = append(i.Blocks, found)
	}
	i.Context = contextCosts(core.Width(), c.Blocks)
}

// blockOf is the attention block that a tensor is of, -1 if it is of none.
func blockOf(m *checkpoint.Model, name string) int {
	const module = ".self_attn."
	at := strings.LastIndex(name, module)
	if at < 0 {
		return -1
	}
	k, err := strconv.Atoi(name[strings.LastIndexByte(name[:at], '.')+1 : at])
	if err != nil || k < 0 {
		return -1
	}
	// In LongCat layer k has the blocks 2k and 2k+1, elsewhere block k.
	for _, b := range []int{k, 2 * k, 2*k + 1} {
		if b < m.Config.Blocks+m.Config.Predict {
			if rest, ok := strings.CutPrefix(name, m.Module(b)); ok && rest[0] == '.' {
				return b
			}
		}
	}
	return -1
}

// held is what the tensors of an attention block come to.
type held struct {
	tensors int
	bytes   int64
	kinds   uint32 // the types of its projections, a bit each
}

func (h *held) take(t checkpoint.Tensor) {
	size, _ := t.Size() // opening has excluded errors
	h.tensors, h.bytes = h.tensors+1, h.bytes+size
	if strings.HasSuffix(t.Name, "_proj.weight") || strings.HasSuffix(t.Name, "_proj_with_mqa.weight") {
		h.kinds |= 1 << t.DType
	}
}

// weights are the types by name.
func (h *held) weights() string {
	var names []string
	for d := range checkpoint.DType(32) {
		if h.kinds>>d&1 != 0 {
			names = append(names, d.String())
		}
	}
	slices.Sort(names)
	return strings.Join(names, "+")
}

// quantisation is how a model's weights are quantised, in words; "" if they are not.
func quantisation(q checkpoint.Quant) string {
	words := []string{q.Method}
	for _, w := range []string{q.Format, q.ScaleFormat} {
		if w != "" {
			words = append(words, w)
		}
	}
	if q.BlockRows != 0 {
		words = append(words, fmt.Sprintf("blocks of %d x %d", q.BlockRows, q.BlockCols))
	}
	return strings.Join(words, ", ")
}

// take counts tensors, by type and by file.
func (i *inspection) take(files []*checkpoint.File, tensors iter.Seq[checkpoint.Tensor]) {
	at, kinds := map[string]int{}, map[string]foundType{}
	for n, f := range files {
		at[f.Path()] = n
		i.Files = append(i.Files, foundFile{Name: filepath.Base(f.Path())})
	}
	i.tensors = tensors
	for t := range tensors {
		size, _ := t.Size() // opening has excluded errors
		f := &i.Files[at[t.File().Path()]]
		f.Tensors, f.Bytes, i.Bytes, i.count = f.Tensors+1, f.Bytes+size, i.Bytes+size, i.count+1
		kind := kinds[t.DType.String()]
		kinds[t.DType.String()] = foundType{t.DType.String(), kind.Tensors + 1, kind.Bytes + size}
	}
	for n, f := range files {
		i.Files[n].LeftOut = f.Len() - i.Files[n].Tensors
	}
	i.Types = []foundType{}
	for _, name := range slices.Sorted(maps.Keys(kinds)) {
		i.Types = append(i.Types, kinds[name])
	}
}

// unread finds the safetensors files of a directory that were not opened: which of them are the
// model's, the index says.
func (i *inspection) unread() {
	entries, err := os.ReadDir(i.Path)
	if err != nil {
		return // it was opened before, and tells no more of itself now
	}
	opened := map[string]bool{}
	for _, f := range i.Files {
		opened[f.Name] = true
	}
	for _, e := range entries {
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".safetensors") && !opened[e.Name()] {
			i.Unread = append(i.Unread, e.Name())
		}
	}
}

// contextCosts are those of a cache row of width values in every format that has room for it.
func contextCosts(width, blocks int) []contextCost {
	const page, group = 64, 128
	var all []contextCost
	for _, format := range bench.Formats() {
		cfg := kvpaged.Config{Layers: 1, PageTokens: page, Width: width, Format: format, Pages: 1}
		c := contextCost{Format: format.String()}
		switch format.Scales() {
		case kvpaged.ScaleTensor:
			cfg.Scale = 1
		case kvpaged.ScaleToken:
			cfg.Group, c.Group = group, group
		}
		n, err := kvpaged.ArenaBytes(cfg)
		if err != nil {
			continue // the format's rows have another width
		}
		c.Layer = ceilDiv(int(n), page)
		c.All = c.Layer * blocks
		all = append(all, c)
	}
	return all
}

// print prints for people.
func (i *inspection) print(w io.Writer, every bool) {
	fmt.Fprintf(w, "%s: %s, %s, %s\n", i.Path, i.Kind, counted(i.count, "tensor"), amount(i.Bytes))
	for _, t := range i.Types {
		fmt.Fprintf(w, "  %-12s %8d  %10s\n", t.DType, t.Tensors, amount(t.Bytes))
	}
	if i.Kind == "directory" {
		fmt.Fprintf(w, "\n%s\n", counted(len(i.Files), "file"))
		for _, f := range i.Files {
			left := ""
			if f.LeftOut > 0 {
				left = fmt.Sprintf("  and %s that the index leaves out", thousands(f.LeftOut))
			}
			fmt.Fprintf(w, "  %-40s %6d tensors  %10s%s\n", shown(f.Name), f.Tensors, amount(f.Bytes), left)
		}
		for _, name := range i.Unread[:min(len(i.Unread), manyFaults)] {
			fmt.Fprintf(w, "  %-40s none of the model's: not read\n", shown(name))
		}
		if more := len(i.Unread) - manyFaults; more > 0 {
			fmt.Fprintf(w, "  and %s not read\n", counted(more, "file"))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(i.metadata)) {
		fmt.Fprintf(w, "  metadata %s = %q\n", shown(key), cut(i.metadata[key]))
	}
	i.printModel(w)
	i.printContext(w)
	i.printTensors(w, every)
}

func (i *inspection) printModel(w io.Writer) {
	m := i.Model
	if m == nil {
		return
	}
	fmt.Fprintf(w, "\nmodel %s, %s, %s", m.Type, counted(m.Layers, "layer"), counted(m.Blocks, "attention block"))
	if m.Predict > 0 {
		fmt.Fprintf(w, " and %d that predict further tokens", m.Predict)
	}
	fmt.Fprintln(w)
	fmt.Fprintf(w, "  hidden %d, q_lora %d, heads %d, nope %d, rope %d %s, v %d, latent %d\n",
		m.Hidden, m.QLora, m.Heads, m.Nope, m.Rope, m.RopeStyle, m.V, m.Latent)
	fmt.Fprintf(w, "  softmax scale %v", m.Scale)
	for _, s := range []struct {
		name string
		n    int
	}{{"index_topk", m.IndexTopK}, {"positions", m.Positions}} {
		if s.n != 0 {
			fmt.Fprintf(w, ", %s %d", s.name, s.n)
		}
	}
	if m.Quantisation != "" {
		fmt.Fprintf(w, ", weights %s", m.Quantisation)
	}
	fmt.Fprintf(w, "\n\nattention blocks\n")
	for first := 0; first < len(i.Blocks); {
		b, last := i.Blocks[first], first
		for last+1 < len(i.Blocks) && i.Blocks[last+1].like(b) {
			last++
		}
		number, module := strconv.Itoa(first), shown(b.Module)
		if last > first {
			number = fmt.Sprintf("%d-%d", first, last)
			module += " to " + shown(i.Blocks[last].Module)
		}
		fate := "runs"
		if !b.Runs {
			fate = "does not run: " + b.Why
		}
		fmt.Fprintf(w, "  %-7s %s  %s  %s%s  %s\n", number, module, b.Weights, amount(b.Bytes), each(last > first), fate)
		first = last + 1
	}
}

// like says that a block differs from another in its place alone.
func (b foundBlock) like(o foundBlock) bool {
	return b.Runs && o.Runs && b.Weights == o.Weights && b.Bytes == o.Bytes
}

func each(several bool) string {
	if several {
		return " each"
	}
	return ""
}

func (i *inspection) printContext(w io.Writer) {
	if len(i.Context) == 0 {
		return
	}
	what := "layer"
	if i.Model.Blocks != i.Model.Layers {
		what = "block" // several have a cache each in a layer
	}
	fmt.Fprintf(w, "\ncontext: bytes per token      one %s  all %s\n", what, counted(i.Model.Blocks, what))
	for _, c := range i.Context {
		name := c.Format
		if c.Group != 0 {
			name += fmt.Sprintf(", groups of %d", c.Group)
		}
		fmt.Fprintf(w, "  %-26s %10s %10s\n", name, thousands(c.Layer), thousands(c.All))
	}
}

const (
	manyTensors = 200  // are listed one by one
	manyKinds   = 4096 // of tensors have a line
)

// printTensors lists tensors; many of one kind, which differ in numbers in their names, in one
// line.
func (i *inspection) printTensors(w io.Writer, every bool) {
	if !every && i.count > manyTensors {
		i.printKinds(w)
		return
	}
	width := 0
	for t := range i.tensors {
		width = max(width, utf8.RuneCountInString(shown(t.Name)))
	}
	fmt.Fprintf(w, "\ntensors\n")
	for t := range i.tensors {
		size, _ := t.Size()
		tensorLine(w, width, shown(t.Name), t.DType, t.Shape.String(), size, filepath.Base(t.File().Path()))
	}
}

func tensorLine(w io.Writer, width int, name string, d checkpoint.DType, shape string, size int64, where string) {
	fmt.Fprintf(w, "  %-*s  %-8s %-20s %10s  %s\n", width, name, d, shape, amount(size), where)
}

func (i *inspection) printKinds(w io.Writer) {
	type kind struct {
		name  string
		dtype checkpoint.DType
		shape string
	}
	type group struct {
		kind
		n     int
		bytes int64
		files map[string]bool
	}
	var groups []*group
	known := map[kind]*group{}
	width, more := 0, 0
	for t := range i.tensors {
		k := kind{shown(pattern(cut(t.Name))), t.DType, t.Shape.String()}
		g := known[k]
		if g == nil && len(groups) == manyKinds {
			more++
			continue
		}
		if g == nil {
			g = &group{kind: k, files: map[string]bool{}}
			known[k], groups = g, append(groups, g)
			width = max(width, utf8.RuneCountInString(k.name))
		}
		size, _ := t.Size()
		g.n, g.bytes = g.n+1, g.bytes+size
		g.files[filepath.Base(t.File().Path())] = true
	}
	fmt.Fprintf(w, "\ntensors\n")
	for _, g := range groups {
		where := counted(len(g.files), "file")
		if len(g.files) == 1 {
			where = slices.Collect(maps.Keys(g.files))[0]
		}
		times := ""
		if g.n > 1 {
			times = fmt.Sprintf(" x %d", g.n)
		}
		tensorLine(w, width, g.name, g.dtype, g.shape+times, g.bytes, where)
	}
	if more > 0 {
		fmt.Fprintf(w, "  and %s more: -tensors lists all\n", counted(more, "tensor"))
	}
}

// longName is how many bytes of what a file says a line can bear.
const longName = 200

// cut cuts what a file says to that.
func cut(s string) string {
	if len(s) <= longName {
		return s
	}
	return strings.ToValidUTF8(s[:longName], "") + "..."
}

// shown is a name as people may read it: not all of a long one, and quoted if it holds what is
// not printed, such as the sequences that terminals obey.
func shown(name string) string {
	name = cut(name)
	for _, r := range name {
		if !strconv.IsPrint(r) {
			return strconv.Quote(name)
		}
	}
	return name
}

// printJSON prints one object on one line.
func (i *inspection) printJSON(w *bufio.Writer) {
	head := *i
	head.Blocks, head.Faults = nil, nil // of which a configuration may make many, too
	all := asJSON(head)
	w.Write(all[:len(all)-1])
	printList(w, "blocks", i.Blocks)
	printList(w, "faults", i.Faults)
	if len(i.metadata) > 0 {
		w.WriteString(`,"metadata":{`)
		for n, key := range slices.Sorted(maps.Keys(i.metadata)) {
			comma(w, n)
			printString(w, key)
			w.WriteByte(':')
			printString(w, i.metadata[key])
		}
		w.WriteByte('}')
	}
	w.WriteString(`,"tensors":[`)
	n := 0
	for t := range i.tensors {
		comma(w, n)
		w.WriteString(`{"name":`)
		printString(w, t.Name)
		size, _ := t.Size()
		rest := asJSON(foundTensor{DType: t.DType.String(), Shape: slices.Concat(checkpoint.Shape{}, t.Shape), Bytes: size, File: filepath.Base(t.File().Path())})
		w.WriteByte(',')
		w.Write(rest[1:])
		n++
	}
	w.WriteString("]}\n")
}

// printList prints a member of an object that is a list, if there is anything in it.
func printList[T any](w *bufio.Writer, key string, list []T) {
	if len(list) == 0 {
		return
	}
	fmt.Fprintf(w, ",%q:[", key)
	for n, x := range list {
		comma(w, n)
		w.Write(asJSON(x))
	}
	w.WriteByte(']')
}

func comma(w *bufio.Writer, n int) {
	if n > 0 {
		w.WriteByte(',')
	}
}

// asJSON is v as JSON, whose strings may go into no page of a browser.
func asJSON(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n"))
}

// printString prints a string as JSON, piece by piece. It is UTF-8: the reader has seen to that.
func printString(w *bufio.Writer, s string) {
	w.WriteByte('"')
	for len(s) > 0 {
		n := min(len(s), 4096)
		for n < len(s) && !utf8.RuneStart(s[n]) {
			n++
		}
		piece := asJSON(s[:n])
		w.Write(piece[1 : len(piece)-1])
		s = s[n:]
	}
	w.WriteByte('"')
}

// pattern is a name with its numbers between dots as *.
func pattern(name string) string {
	parts := strings.Split(name, ".")
	for i, p := range parts {
		if p != "" && strings.Trim(p, "0123456789") == "" {
			parts[i] = "*"
		}
	}
	return strings.Join(parts, ".")
}

func counted(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%s %s", thousands(n), what)
}

// thousands prints n in groups of three digits.
func thousands(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", thousands(n/1000), n%1000)
}

// amount is a number of bytes for people.
func amount(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.2f MB", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
	return fmt.Sprintf("%d B", n)
}
