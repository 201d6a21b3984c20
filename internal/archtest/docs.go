package archtest

import (
	"go/ast"
	"go/build/constraint"
	"go/doc"
	"go/doc/comment"
	"path"
	"regexp"
	"slices"
)

// DocFiles finds packages without a doc.go, doc.go files that a build may leave out,
// that say nothing, and those of public packages that show no picture.
func DocFiles(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		i := slices.IndexFunc(p.Files, func(f *File) bool { return path.Base(f.Path) == "doc.go" })
		if i < 0 {
			found = append(found, Finding{p.Dir, 0, "has no doc.go"})
			continue
		}
		found = append(found, docFile(t, p, p.Files[i])...)
	}
	return found
}

func docFile(t *Tree, p *Package, f *File) []Finding {
	var found []Finding
	for _, group := range f.AST.Comments {
		for _, c := range group.List {
			if constraint.IsGoBuild(c.Text) || constraint.IsPlusBuild(c.Text) {
				found = append(found, t.at(c.Pos(), "a doc.go has no build constraint"))
			}
		}
	}
	switch {
	case f.AST.Doc.Text() == "":
		found = append(found, t.at(f.AST.Name.Pos(), "says nothing about its package"))
	case public(p) && !pictured(f.AST.Doc.Text()):
		found = append(found, t.at(f.AST.Doc.Pos(), "has no picture (an indented block) of the package's layout"))
	}
	return found
}

func pictured(text string) bool {
	var parser comment.Parser
	return slices.ContainsFunc(parser.Parse(text).Content, func(b comment.Block) bool {
		_, code := b.(*comment.Code)
		return code
	})
}

// public reports whether users of the module see p as a package to import.
func public(p *Package) bool {
	hidden := under(p.Dir, "internal", "cmd", "examples", "simd/amd64", "simd/arm64")
	return !hidden && !p.main()
}

// Examples finds public packages without an example that go test runs and compares.
func Examples(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		if public(p) && !runnable(p) {
			found = append(found, Finding{p.Dir, 0, "has no example with an // Output: comment"})
		}
	}
	return found
}

func runnable(p *Package) bool {
	var tests []*ast.File
	for _, f := range p.Files {
		if f.Test {
			tests = append(tests, f.AST)
		}
	}
	return slices.ContainsFunc(doc.Examples(tests...), func(e *doc.Example) bool {
		return e.Output != "" || e.EmptyOutput
	})
}

// TestMains finds public packages whose tests do not begin with kerneltest.Main, which says what they ran on and refuses
// an instruction set that is not there.
func TestMains(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		if public(p) && !slices.ContainsFunc(p.Files, beginsTests) {
			found = append(found, Finding{p.Dir, 0, "has no TestMain that calls kerneltest.Main"})
		}
	}
	return found
}

func beginsTests(f *File) bool {
	return f.Test && slices.ContainsFunc(f.AST.Decls, func(d ast.Decl) bool {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Name.Name != "TestMain" {
			return false
		}
		calls := false
		ast.Inspect(fn, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			calls = calls || ok && s.Sel.Name == "Main" && isName(s.X, "kerneltest")
			return true
		})
		return calls
	})
}

func isName(e ast.Expr, name string) bool {
	id, ok := e.(*ast.Ident)
	return ok && id.Name == name
}

// NoC finds cgo, and files that only a C compiler could want.
func NoC(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		for _, f := range p.Files {
			for _, spec := range f.AST.Imports {
				if spec.Path.Value == `"C"` {
					found = append(found, t.at(spec.Pos(), "cgo is not used here"))
				}
			}
		}
	}
	for _, text := range t.Texts {
		if ext := path.Ext(text.Path); ext == ".c" || ext == ".h" {
			found = append(found, Finding{text.Path, 0, "C is not used here"})
		}
	}
	return found
}

// leftovers are the marks of work that waits. What a reader should know is missing
// stands in the README among the limits, not here and there in the source.
var leftovers = regexp.MustCompile(`\b(` + "TO" + "DO|FIX" + "ME|XX" + "X" + `)\b`)

// Leftovers finds marks of unfinished work in any text.
func Leftovers(t *Tree) []Finding {
	var found []Finding
	for _, text := range t.Texts {
		found = append(found, words(text, leftovers)...)
	}
	return found
}

// words finds the lines of text that hold one of the words.
func words(text Text, words *regexp.Regexp) []Finding {
	var found []Finding
	for _, at := range words.FindAllIndex(text.Data, -1) {
		found = append(found, Finding{text.Path, lineOf(text.Data, at[0]), "says " + string(text.Data[at[0]:at[1]])})
	}
	return found
}

// instructionSets are the names that only simd and the program's reports may say.
var instructionSets = regexp.MustCompile(`\b(?i:avx\w*|sse[0-9]\w*|neon|vnni|vbmi|amx\w*|sve2?)\b`)

// InstructionSets finds folders above simd that know an instruction set by name,
// comments included. Tests, bench and cmd may: they report what was chosen.
func InstructionSets(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		if !under(p.Dir, "bf16", "fp8", "kvpaged", "mla", "checkpoint", "internal/workpool", "internal/mem", "internal/oracle") {
			continue
		}
		for _, f := range p.source() {
			found = append(found, words(Text{f.Path, f.Text}, instructionSets)...)
		}
	}
	return found
}
