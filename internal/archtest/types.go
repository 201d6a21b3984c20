package archtest

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// unit is a package as one target builds it, with the types of its expressions.
type unit struct {
	pkg   *Package
	files []*File
	types *types.Package
	info  *types.Info
}

// target is a platform with its build tags.
type target struct {
	goos, goarch string
	tags         []string
}

// targets are such that together they build every file of the module.
var targets = []target{
	{goos: "linux", goarch: "amd64"},
	{goos: "linux", goarch: "amd64", tags: []string{"purego"}},
	{goos: "linux", goarch: "amd64", tags: []string{"race"}},
	{goos: "linux", goarch: "arm64"},
	{goos: "linux", goarch: "riscv64"},
	{goos: "freebsd", goarch: "amd64"},
	{goos: "darwin", goarch: "arm64"},
	{goos: "windows", goarch: "amd64"},
	{goos: "js", goarch: "wasm"},
}

// checked is every package, typed once for the first target that builds it and
// once more for each further target that adds a file. Type errors are left to the
// compiler: an expression that has no type because of one is the business of the
// rule that needs the type.
func (t *Tree) checked() []*unit {
	if t.units != nil {
		return t.units
	}
	outside := &outside{token.NewFileSet(), map[string]*types.Package{}, required(t.mod)}
	covered := map[*File]bool{}
	for _, target := range targets {
		c := &checker{tree: t, ctxt: target.context(), outside: outside, seen: map[string]*unit{}}
		for _, p := range t.Packages {
			fresh := func(f *File) bool { return !covered[f] }
			if !slices.ContainsFunc(c.builds(p), fresh) {
				continue
			}
			u := c.check(p)
			for _, f := range u.files {
				covered[f] = true
			}
			t.units = append(t.units, u)
		}
	}
	return t.units
}

func (t target) context() *build.Context {
	c := build.Default
	c.GOOS, c.GOARCH, c.BuildTags, c.CgoEnabled = t.goos, t.goarch, t.tags, false
	return &c
}

// checker types the module's packages for one target.
type checker struct {
	tree    *Tree
	ctxt    *build.Context
	outside *outside
	seen    map[string]*unit // by folder
}

// builds is the part of p that the target compiles.
func (c *checker) builds(p *Package) []*File {
	ctxt := *c.ctxt
	ctxt.OpenFile = func(name string) (io.ReadCloser, error) { return c.tree.files.Open(filepath.ToSlash(name)) }
	return slices.DeleteFunc(p.source(), func(f *File) bool {
		dir, name := filepath.Split(f.Path)
		match, err := ctxt.MatchFile(dir, name)
		return err != nil || !match
	})
}

func (c *checker) check(p *Package) *unit {
	if u := c.seen[p.Dir]; u != nil {
		return u
	}
	u := &unit{pkg: p, files: c.builds(p), info: &types.Info{
		Types:      map[ast.Expr]types.TypeAndValue{},
		Defs:       map[*ast.Ident]types.Object{},
		Uses:       map[*ast.Ident]types.Object{},
		Selections: map[*ast.SelectorExpr]*types.Selection{},
	}}
	c.seen[p.Dir] = u
	cfg := types.Config{Importer: importer{c, p}, Error: func(error) {}}
	u.types, _ = cfg.Check(c.tree.Module+"/"+p.Dir, c.tree.Fset, asts(u.files), u.info)
	return u
}

// importer imports for one package, as go/types wants it.
type importer struct {
	*checker
	user *Package
}

// Import types packages from elsewhere for the guarded folders alone, and for the
// others those that keep state: the rules that read the types need no more.
func (c importer) Import(name string) (*types.Package, error) {
	dir, ours := c.tree.in(name)
	switch {
	case !ours && (under(c.user.Dir, guarded...) || name == "sync" || name == "sync/atomic"):
		return c.outside.Import(name)
	case !ours:
		return nil, fs.ErrNotExist
	}
	i := slices.IndexFunc(c.tree.Packages, func(p *Package) bool { return p.Dir == dir })
	if i < 0 {
		return nil, fs.ErrNotExist
	}
	u := c.check(c.tree.Packages[i])
	if u.types == nil {
		return nil, errors.New("import cycle")
	}
	return u.types, nil
}

func asts(files []*File) []*ast.File {
	list := make([]*ast.File, len(files))
	for i, f := range files {
		list[i] = f.AST
	}
	return list
}

// outside imports packages from elsewhere, from their source, as Linux on amd64
// builds them, without the bodies of functions and without the packages that
// they import themselves. That is fast, and gives what the rules need: which
// calls yield floats, and which methods have pointer receivers.
type outside struct {
	fset     *token.FileSet
	seen     map[string]*types.Package
	required map[string]string // module to version
}

func (o *outside) Import(name string) (*types.Package, error) {
	if name == "unsafe" {
		return types.Unsafe, nil
	}
	if p := o.seen[name]; p != nil {
		return p, nil
	}
	ctxt := targets[0].context()
	dir, err := o.folder(ctxt, name)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, e := range entries {
		if match, _ := ctxt.MatchFile(dir, e.Name()); !match || strings.HasSuffix(e.Name(), "_test.go") || filepath.Ext(e.Name()) != ".go" {
			continue
		}
		f, err := parser.ParseFile(o.fset, filepath.Join(dir, e.Name()), nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	cfg := types.Config{Importer: nothing{}, IgnoreFuncBodies: true, Error: func(error) {}}
	p, _ := cfg.Check(name, o.fset, files, nil)
	o.seen[name] = p
	return p, nil
}

// folder is where the source of a package lies: in the standard library, or in the
// module cache, in the version that go.mod requires.
func (o *outside) folder(ctxt *build.Context, name string) (string, error) {
	if first, _, _ := strings.Cut(name, "/"); !strings.Contains(first, ".") {
		return filepath.Join(ctxt.GOROOT, "src", filepath.FromSlash(name)), nil
	}
	for module, version := range o.required {
		if under(name, module) {
			cache, err := modCache()
			return filepath.Join(cache, filepath.FromSlash(module+"@"+version+name[len(module):])), err
		}
	}
	return "", fs.ErrNotExist
}

var modCache = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	return strings.TrimSpace(string(out)), err
})

// required reads the versions of modules from a go.mod.
func required(mod []byte) map[string]string {
	versions := map[string]string{}
	for line := range strings.Lines(string(mod)) {
		words := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(words) >= 2 && strings.HasPrefix(words[1], "v") {
			versions[words[0]] = words[1]
		}
	}
	return versions
}

// nothing imports no package but unsafe.
type nothing struct{}

func (nothing) Import(name string) (*types.Package, error) {
	if name == "unsafe" {
		return types.Unsafe, nil
	}
	return nil, fs.ErrNotExist
}
