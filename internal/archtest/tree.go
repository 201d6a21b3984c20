package archtest

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Tree is the source of a module: its packages, parsed, and all its text.
type Tree struct {
	Module   string // the module path
	Fset     *token.FileSet
	Packages []*Package // every folder with Go files, by name
	Texts    []Text     // every source, script and page, Go files included, by name

	files fs.FS
	mod   []byte  // go.mod
	units []*unit // what types made of it; nil until asked for
}

// Package is one folder with Go files, tests included.
type Package struct {
	Dir   string // slash-separated, from the root of the module
	Files []*File
}

// File is one Go file.
type File struct {
	Path string
	Test bool // a _test.go file
	AST  *ast.File
	Text []byte
}

// Text is one file that people write or read as text.
type Text struct {
	Path string
	Data []byte
}

// Finding is one place that breaks a rule.
type Finding struct {
	Path string
	Line int // 0: the file or folder as a whole
	Says string
}

func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s", f.Path, f.Says)
	}
	return fmt.Sprintf("%s:%d: %s", f.Path, f.Line, f.Says)
}

// Load reads the module whose go.mod is at the root of files. Folders that the go
// command passes over (testdata, and names that begin with a dot or underscore) hold
// no packages, but for testdata their text is read all the same. A file that does
// not parse is an error.
func Load(files fs.FS) (*Tree, error) {
	mod, err := fs.ReadFile(files, "go.mod")
	if err != nil {
		return nil, err
	}
	t := &Tree{Module: modulePath(mod), Fset: token.NewFileSet(), files: files, mod: mod}
	if t.Module == "" {
		return nil, errors.New("archtest: go.mod names no module")
	}
	err = fs.WalkDir(files, ".", t.visit)
	if err != nil {
		return nil, err
	}
	slices.SortFunc(t.Packages, func(a, b *Package) int { return cmp.Compare(a.Dir, b.Dir) })
	return t, nil
}

func modulePath(mod []byte) string {
	for line := range strings.Lines(string(mod)) {
		if name, ok := strings.CutPrefix(line, "module "); ok {
			return strings.TrimSpace(name)
		}
	}
	return ""
}

func (t *Tree) visit(name string, d fs.DirEntry, err error) error {
	switch {
	case err != nil:
		return err
	case d.IsDir():
		if base := d.Name(); base == ".git" || base == "testdata" {
			return fs.SkipDir
		}
		return nil
	case !d.Type().IsRegular() || !isText(name):
		return nil
	}
	data, err := fs.ReadFile(t.files, name)
	if err != nil {
		return err
	}
	t.Texts = append(t.Texts, Text{name, data})
	if path.Ext(name) == ".go" && !passedOver(path.Dir(name)) {
		return t.add(name, data)
	}
	return nil
}

// isText reports whether name is source, a script or a page, rather than data.
func isText(name string) bool {
	switch path.Ext(name) {
	case ".go", ".s", ".h", ".c", ".md", ".mod", ".sh", ".yml", ".yaml":
		return true
	}
	return strings.HasPrefix(name, ".ci/")
}

// passedOver reports whether the go command sees no package in dir.
func passedOver(dir string) bool {
	for part := range strings.SplitSeq(dir, "/") {
		if part != "." && (part[0] == '.' || part[0] == '_') {
			return true
		}
	}
	return false
}

func (t *Tree) add(name string, data []byte) error {
	file, err := parser.ParseFile(t.Fset, name, data, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir := path.Dir(name)
	i := slices.IndexFunc(t.Packages, func(p *Package) bool { return p.Dir == dir })
	if i < 0 {
		i = len(t.Packages)
		t.Packages = append(t.Packages, &Package{Dir: dir})
	}
	p := t.Packages[i]
	p.Files = append(p.Files, &File{name, strings.HasSuffix(name, "_test.go"), file, data})
	return nil
}

// in is the folder of one of the module's packages, from its import path.
func (t *Tree) in(importPath string) (dir string, ok bool) {
	if importPath == t.Module {
		return ".", true
	}
	return strings.CutPrefix(importPath, t.Module+"/")
}

func (t *Tree) at(pos token.Pos, format string, args ...any) Finding {
	p := t.Fset.Position(pos)
	return Finding{p.Filename, p.Line, fmt.Sprintf(format, args...)}
}

// lineOf counts the lines of text up to offset i.
func lineOf(text []byte, i int) int { return 1 + bytes.Count(text[:i], []byte("\n")) }

// main reports whether p is a program.
func (p *Package) main() bool {
	return slices.ContainsFunc(p.Files, func(f *File) bool { return !f.Test && f.AST.Name.Name == "main" })
}

// source is p's files that are not tests.
func (p *Package) source() []*File {
	return slices.DeleteFunc(slices.Clone(p.Files), func(f *File) bool { return f.Test })
}

// under reports whether dir is one of roots or a folder below one.
func under(dir string, roots ...string) bool {
	return slices.ContainsFunc(roots, func(root string) bool {
		return dir == root || strings.HasPrefix(dir, root+"/")
	})
}
