package archtest

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rules are all rules as they bind this module.
var rules = []struct {
	name  string
	check func(*Tree) []Finding
}{
	{"Arrows", Arrows},
	{"FileOrder", func(t *Tree) []Finding { return FileOrder(t, orders) }},
	{"Outside", Outside},
	{"InstructionSets", InstructionSets},
	{"DocFiles", DocFiles},
	{"Examples", Examples},
	{"TestMains", TestMains},
	{"NoC", NoC},
	{"Leftovers", Leftovers},
	{"Products", func(t *Tree) []Finding { return Products(t, scalings) }},
	{"Opens", Opens},
	{"MathCalls", MathCalls},
	{"Generated", Generated},
	{"DirectCalls", DirectCalls},
	{"State", func(t *Tree) []Finding { return State(t, changing) }},
}

// TestModule holds the module to the rules.
func TestModule(t *testing.T) {
	tree, err := Load(os.DirFS("../.."))
	require.NoError(t, err)
	require.Equal(t, "github.com/lamina-ml/lamina", tree.Module)
	for _, dir := range []string{"simd", "simd/ref", "bf16", "fp8", "kvpaged", "mla", "checkpoint", "internal/archtest"} {
		typed := slices.ContainsFunc(tree.checked(), func(u *unit) bool { return u.pkg.Dir == dir && len(u.files) > 0 && u.types != nil })
		require.True(t, typed, "the source of %s was not found", dir)
	}
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			for _, f := range lines(rule.check(tree)) {
				t.Error(f)
			}
		})
	}
}

// lines is each finding once, in order.
func lines(found []Finding) []string {
	list := make([]string, len(found))
	for i, f := range found {
		list[i] = f.String()
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// source loads a module of a few files, which requires what this module does.
func source(t *testing.T, files map[string]string) *Tree {
	t.Helper()
	mod, err := os.ReadFile("../../go.mod")
	require.NoError(t, err)
	mod = bytes.Replace(mod, []byte("github.com/lamina-ml/lamina"), []byte("example.com/m"), 1)
	m := fstest.MapFS{"go.mod": {Data: mod}}
	for name, text := range files {
		m[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tree, err := Load(m)
	require.NoError(t, err)
	return tree
}

func TestLoad(t *testing.T) {
	tree := source(t, map[string]string{
		"a/a.go":           "package a\n",
		"a/a_test.go":      "package a_test\n",
		"a/testdata/x.go":  "no Go at all",
		"b/_gen/gen.go":    "package main\n",
		".ci/run":          "#!/bin/bash\n",
		"b/data.bin":       "\x00",
		"README.md":        "# m\n",
		"b/b.s":            "TEXT\n",
		".git/hooks/x.go":  "no Go at all",
		"b/c/deep/deep.go": "package deep\n",
	})
	var dirs, texts []string
	for _, p := range tree.Packages {
		dirs = append(dirs, p.Dir)
	}
	for _, text := range tree.Texts {
		texts = append(texts, text.Path)
	}
	assert.Equal(t, []string{"a", "b/c/deep"}, dirs)
	assert.Equal(t, []string{".ci/run", "README.md", "a/a.go", "a/a_test.go", "b/_gen/gen.go", "b/b.s", "b/c/deep/deep.go", "go.mod"}, texts)
	assert.Len(t, tree.Packages[0].source(), 1)
}

func TestLoadErrors(t *testing.T) {
	_, err := Load(fstest.MapFS{})
	assert.ErrorContains(t, err, "go.mod")
	_, err = Load(fstest.MapFS{"go.mod": {Data: []byte("go 1.26\n")}})
	assert.ErrorContains(t, err, "no module")
	_, err = Load(fstest.MapFS{"go.mod": {Data: []byte("module m\n")}, "a.go": {Data: []byte("pack age")}})
	assert.ErrorContains(t, err, "a.go:1")
}
