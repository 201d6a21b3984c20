package archtest

import (
	"go/ast"
	"path"
	"slices"
	"strconv"
	"strings"
)

// floors are the packages from the lowest up, one pattern of path.Match a folder.
var floors = [][]string{
	{"simd/ref", "simd/amd64/*", "simd/arm64/*"},
	{"simd"},
	{"bf16", "fp8"},
	{"kvpaged"},
	{"internal/compute"},
	{"internal/attend"},
	{"internal/forms"},
	{"mla"},
	{"checkpoint"},
	{"bench"},
	{"cmd/*", "examples/*"},
}

// doors are the folders that not every higher floor may import, with those that may.
var doors = map[string][]string{
	"simd/ref":            {"simd"},
	"simd/amd64/*":        {"simd"},
	"simd/arm64/*":        {"simd"},
	"bench":               {"cmd/*"},
	"internal/forms":      {"mla"},
	"internal/attend":     {"internal/forms", "mla"},
	"internal/compute":    {"internal/attend", "internal/forms", "mla"},
	"internal/workpool":   {"internal/attend", "internal/forms", "mla", "fp8", "bench"},
	"internal/mem":        {"kvpaged", "fp8", "internal/compute", "internal/attend", "internal/forms", "mla", "checkpoint", "bench", "internal/kerneltest"},
	"internal/atomicfile": {"mla", "checkpoint"},
	"internal/openfile":   {"mla", "checkpoint", "internal/atomicfile"},
	"internal/oracle":     {"bench"},
	"internal/kerneltest": {},
	"internal/archtest":   {},
}

// helpers are the packages that serve tests alone; they may look at what they test.
var helpers = map[string][]string{
	"internal/kerneltest": {"simd", "internal/mem"},
}

// modules are the modules from elsewhere, with the folders that may use them.
// Tests use any of them.
var modules = map[string][]string{
	"github.com/klauspost/cpuid/v2": {"simd", "bench", "cmd/lamina"},
	"github.com/x448/float16":       {"simd", "simd/ref", "bf16", "fp8", "kvpaged", "mla", "checkpoint", "bench"},
	"github.com/stretchr/testify":   {"internal/kerneltest"},
	"gonum.org/v1/gonum":            {"bench", "internal/oracle"},
	"golang.org/x/sys":              {"internal/mem", "internal/kerneltest", "checkpoint", "bench", "cmd/lamina"},
	"golang.org/x/term":             {"cmd/lamina"},
}

// Arrows finds imports that do not go down, that pass a closed door, and folders
// that stand on no floor. Tests are exempt.
func Arrows(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		if floor(p.Dir) < 0 && !known(doors, p.Dir) {
			found = append(found, Finding{p.Dir, 0, "stands on no floor: give it one in internal/archtest"})
			continue
		}
		for _, im := range imports(p) {
			if to, ours := t.in(im.path); ours && !allowed(p.Dir, to) {
				found = append(found, t.at(im.spec.Pos(), "%s must not import %s", p.Dir, to))
			}
		}
	}
	return found
}

func allowed(from, to string) bool {
	if may, ok := helpers[from]; ok {
		return slices.Contains(may, to)
	}
	for door, open := range doors {
		if matches(door, to) {
			return slices.ContainsFunc(open, func(who string) bool { return matches(who, from) })
		}
	}
	return floor(to) >= 0 && floor(from) > floor(to)
}

// floor is the number of dir's floor, -1 for a room beside the stairs.
func floor(dir string) int {
	return slices.IndexFunc(floors, func(rooms []string) bool {
		return slices.ContainsFunc(rooms, func(room string) bool { return matches(room, dir) })
	})
}

func known[V any](rooms map[string]V, dir string) bool {
	for room := range rooms {
		if matches(room, dir) {
			return true
		}
	}
	return false
}

func matches(pattern, dir string) bool {
	ok, err := path.Match(pattern, dir)
	return err == nil && ok
}

// Outside finds imports of modules that the importing folder has no business with.
func Outside(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		for _, im := range imports(p) {
			first, _, _ := strings.Cut(im.path, "/")
			if _, ours := t.in(im.path); ours || !strings.Contains(first, ".") {
				continue
			}
			if !usesModule(p.Dir, im.path) {
				found = append(found, t.at(im.spec.Pos(), "%s must not import %s", p.Dir, im.path))
			}
		}
	}
	return found
}

func usesModule(dir, importPath string) bool {
	for module, users := range modules {
		if under(importPath, module) {
			return slices.Contains(users, dir)
		}
	}
	return false
}

// imports lists what p imports outside its tests.
func imports(p *Package) []importOf {
	var list []importOf
	for _, f := range p.source() {
		for _, spec := range f.AST.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err == nil {
				list = append(list, importOf{spec, name})
			}
		}
	}
	return list
}

type importOf struct {
	spec *ast.ImportSpec
	path string
}
