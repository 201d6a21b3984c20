package workshop

import (
	"bytes"
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write what is generated instead of comparing it")

// TestGenerated is the workshop's command: it compares what the list generates with the files of the house, or writes
// them.
func TestGenerated(t *testing.T) {
	want, err := files(kernels)
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range want {
		path = filepath.Join("..", filepath.FromSlash(path))
		if *write {
			if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, text, 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if got, err := os.ReadFile(path); err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, text) {
			t.Errorf("%s is not what the workshop writes", path)
		}
	}
	for _, path := range generated(t) {
		if _, ok := want[path]; ok {
			continue
		}
		if *write {
			if err := os.Remove(filepath.Join("..", filepath.FromSlash(path))); err != nil {
				t.Fatal(err)
			}
			continue
		}
		t.Errorf("%s says that the workshop writes it, and no row does", path)
	}
}

// generated are the files below simd that say they are generated, or that are assembly.
func generated(t *testing.T) (paths []string) {
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if d.Name() == "_gen" || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if bytes.HasPrefix(text, []byte(strings.TrimSpace(header))) || strings.HasSuffix(path, ".s") {
			rel, err := filepath.Rel("..", path)
			if err != nil {
				return err
			}
			paths = append(paths, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestRefusesInstructions shows that a body cannot need more than its folder and its row say.
func TestRefusesInstructions(t *testing.T) {
	for _, c := range []struct {
		level *Level
		needs string
		gen   func(g *G)
		fails bool
	}{
		{avx2, "", func(g *G) { g.VADDPS(Y(1), Y(2), Y(3)) }, false},
		{avx2, "", func(g *G) { g.VADDPS(Z(1), Z(2), Z(3)) }, true},
		{avx2, "", func(g *G) { g.VADDPS(Y(1), Y(2), Y(17)) }, true},
		{avx512, "", func(g *G) { g.VADDPS(Z(1), Z(2), Z(3)) }, false},
		{avx512, "", func(g *G) { g.VPERMI2B(Z(1), Z(2), Z(3)) }, true},
		{avx512, "VBMI", func(g *G) { g.VPERMI2B(Z(1), Z(2), Z(3)) }, false},
		{avx512, "VBMI", func(g *G) { g.VPDPBUSD(Z(1), Z(2), Z(3)) }, true},
		{avx512, "AMX", func(g *G) {}, true},
	} {
		gen := func(g *G) { c.gen(g); g.Done() }
		k := &Kernel{Name: "K", File: "k", Args: []Arg{num("n", "int")}, Bodies: []Body{{c.level, c.needs, gen}}}
		_, err := files([]*Kernel{k})
		if (err != nil) != c.fails {
			t.Errorf("%s %q: error %v, want one: %v", c.level.Name, c.needs, err, c.fails)
		}
	}
}

// TestBlocks looks for the block of five lines above each generator that the list names.
func TestBlocks(t *testing.T) {
	docs := map[string]string{}
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil {
				docs[fn.Name.Name] = fn.Doc.Text()
			}
		}
	}
	block := regexp.MustCompile(`(?s)\tcomputes   .*\n\tregisters  .*\n\treads      .*\n\torder      .*\n\tlimits     `)
	for _, k := range kernels {
		for _, b := range k.Bodies {
			name := runtime.FuncForPC(reflect.ValueOf(b.Gen).Pointer()).Name()
			name = name[strings.LastIndex(name, ".")+1:]
			if !block.MatchString(docs[name]) {
				t.Errorf("%s, %s: the comment of %s lacks the lines computes, registers, reads, order and limits", k.Name, b.Level.Name, name)
			}
		}
	}
}
