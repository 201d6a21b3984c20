package archtest

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// want is a note at the end of a line that a rule must find, with a part of what it says.
var want = regexp.MustCompile(`(?m)// want (.*)$`)

// holds checks that a rule finds in files the lines with a note and those of more,
// given as "path: part" or "path:line: part", and no others. Every rule is broken
// at least once here: one that cannot fail holds nothing.
func holds(t *testing.T, check func(*Tree) []Finding, files map[string]string, more ...string) {
	t.Helper()
	wanted := more
	for name, text := range files {
		for _, m := range want.FindAllStringSubmatchIndex(text, -1) {
			at := Finding{name, lineOf([]byte(text), m[0]), text[m[2]:m[3]]}
			wanted = append(wanted, at.String())
		}
	}
	require.NotEmpty(t, wanted, "this case breaks no rule")
	found := lines(check(source(t, files)))
	for _, w := range wanted {
		i := slices.IndexFunc(found, func(f string) bool { return matchesFinding(f, w) })
		if assert.GreaterOrEqual(t, i, 0, "not found: %s\nfound: %q", w, found) {
			found = slices.Delete(found, i, i+1)
		}
	}
	assert.Empty(t, found, "found beside what was wanted")
}

// matchesFinding reports whether a finding is at the place of a wanted one and says its words.
func matchesFinding(found, wanted string) bool {
	place := regexp.MustCompile(`^(.*?(:\d+)?): (.*)$`)
	f, w := place.FindStringSubmatch(found), place.FindStringSubmatch(wanted)
	return f[1] == w[1] && regexp.MustCompile(regexp.QuoteMeta(w[3])).MatchString(f[3])
}

func TestArrows(t *testing.T) {
	holds(t, Arrows, map[string]string{
		"simd/ref/a.go": "package ref\n",
		"simd/a.go": `package simd
import _ "example.com/m/simd/ref"
import _ "example.com/m/simd/amd64/avx2"
import _ "example.com/m/bf16" // want simd must not import bf16
`,
		"simd/amd64/avx2/a.go": `package avx2
import _ "example.com/m/simd/ref" // want simd/amd64/avx2 must not import simd/ref
`,
		"bf16/a.go": `package bf16
import _ "example.com/m/simd"
import _ "example.com/m/simd/ref" // want bf16 must not import simd/ref
import _ "example.com/m/internal/mem" // want bf16 must not import internal/mem
`,
		"fp8/a.go": `package fp8
import _ "example.com/m/internal/workpool"
import _ "example.com/m/internal/mem"
import _ "example.com/m/kvpaged" // want fp8 must not import kvpaged
import _ "example.com/m/bf16" // want fp8 must not import bf16
`,
		"kvpaged/a.go": `package kvpaged
import _ "example.com/m/fp8"
import _ "example.com/m/internal/mem"
import _ "example.com/m/internal/workpool" // want kvpaged must not import internal/workpool
import _ "example.com/m/mla" // want kvpaged must not import mla
`,
		"mla/a.go": `package mla
import _ "example.com/m/kvpaged"
import _ "example.com/m/simd"
import _ "example.com/m/internal/oracle" // want mla must not import internal/oracle
import _ "example.com/m/simd/amd64/avx2" // want mla must not import simd/amd64/avx2
import _ "example.com/m/checkpoint" // want mla must not import checkpoint
`,
		"mla/a_test.go": `package mla_test
import _ "example.com/m/internal/oracle"
import _ "example.com/m/internal/kerneltest"
import _ "example.com/m/checkpoint"
`,
		"checkpoint/a.go": `package checkpoint
import _ "example.com/m/mla"
import _ "example.com/m/internal/mem"
import _ "example.com/m/bench" // want checkpoint must not import bench
`,
		"bench/a.go": `package bench
import _ "example.com/m/checkpoint"
import _ "example.com/m/internal/oracle"
import _ "example.com/m/internal/kerneltest" // want bench must not import internal/kerneltest
`,
		"cmd/lamina/a.go": `package main
import _ "example.com/m/bench"
import _ "example.com/m/simd"
import _ "example.com/m/internal/oracle" // want cmd/lamina must not import internal/oracle
`,
		"examples/layer/a.go": `package main
import _ "example.com/m/checkpoint"
import _ "example.com/m/bench" // want examples/layer must not import bench
`,
		"internal/workpool/a.go": `package workpool
import _ "example.com/m/internal/mem" // want internal/workpool must not import internal/mem
`,
		"internal/oracle/a.go": `package oracle
import _ "example.com/m/simd" // want internal/oracle must not import simd
`,
		"internal/kerneltest/a.go": `package kerneltest
import _ "example.com/m/simd"
import _ "example.com/m/mla" // want internal/kerneltest must not import mla
`,
		"util/a.go": "package util\n",
	}, "util: stands on no floor")
}

func TestOutside(t *testing.T) {
	holds(t, Outside, map[string]string{
		"simd/a.go": `package simd
import "os"
import "github.com/klauspost/cpuid/v2"
import "github.com/klauspost/cpuid/v21" // want simd must not import github.com/klauspost/cpuid/v21
`,
		"mla/a.go": `package mla
import "github.com/klauspost/cpuid/v2" // want mla must not import
import "gonum.org/v1/gonum/blas" // want mla must not import
`,
		"mla/a_test.go": `package mla
import "github.com/stretchr/testify/require"
`,
		"bench/a.go": `package bench
import "gonum.org/v1/gonum/blas/blas32"
import "github.com/stretchr/testify/require" // want bench must not import
`,
	})
}

func TestInstructionSets(t *testing.T) {
	holds(t, InstructionSets, map[string]string{
		"simd/a.go": "package simd // AVX2\n",
		"mla/a.go": `package mla
const fast = "avx2" // want says avx2
var neonLike, process int // the sum has senses
// On NEON this is fast. // want says NEON
`,
		"mla/a_test.go": "package mla // avx2\n",
		"bench/a.go":    "package bench // avx512\n",
	})
}

func TestDocFiles(t *testing.T) {
	const picture = "// Package x does.\n//\n//\ta | b\n"
	holds(t, DocFiles, map[string]string{
		"fp8/doc.go":               picture + "package fp8\n",
		"bf16/a.go":                "package bf16\n",
		"mla/doc.go":               "// Package mla has no picture. // want has no picture\npackage mla\n",
		"kvpaged/doc.go":           "//go:build linux // want no build constraint\n\n" + picture + "package kvpaged\n",
		"internal/mem/doc.go":      "// Package mem needs no picture.\npackage mem\n",
		"internal/mem/a_test.go":   "package mem\n",
		"simd/amd64/avx2/a.go":     "package avx2\n",
		"internal/archtest/doc.go": "package archtest // want says nothing\n",
		"cmd/lamina/doc.go":        "// Lamina runs.\npackage main\n",
		"examples/layer/main.go":   "package main\n",
		"checkpoint/a_test.go":     "package checkpoint_test\n",
		"checkpoint/testdata/a.go": "package a\n",
	}, "bf16: has no doc.go", "simd/amd64/avx2: has no doc.go", "examples/layer: has no doc.go", "checkpoint: has no doc.go")
}

func TestExamples(t *testing.T) {
	holds(t, Examples, map[string]string{
		"fp8/doc.go": "package fp8\n",
		"fp8/a_test.go": `package fp8_test
func Example() {
	println()
	// Output:
}
`,
		"bf16/doc.go": "package bf16\n",
		"bf16/a_test.go": `package bf16_test
func Example() {
	println()
}
`,
		"mla/doc.go":              "package mla\n",
		"internal/mem/doc.go":     "package mem\n",
		"simd/amd64/avx2/doc.go":  "package avx2\n",
		"cmd/lamina/doc.go":       "package main\n",
		"simd/ref/doc.go":         "package ref\n",
		"simd/ref/a.go":           "package ref\nfunc Example() {\n// Output:\n}\n",
		"simd/ref/other_test.go":  "package ref\nfunc TestX() {\n// Output:\n}\n",
		"examples/layer/doc.go":   "package main\n",
		"internal/mem/doc_xx.txt": "",
	}, "bf16: has no example", "mla: has no example", "simd/ref: has no example")
}

func TestTestMains(t *testing.T) {
	main := "package p\nfunc TestMain(m *testing.M) { kerneltest.Main(m) }\n"
	holds(t, TestMains, map[string]string{
		"simd/doc.go":         "package p\n",
		"simd/main_test.go":   main,
		"fp8/doc.go":          "package p\n",
		"fp8/main.go":         main,
		"mla/doc.go":          "package p\n",
		"mla/main_test.go":    "package p\nfunc TestMain(m *testing.M) { m.Run() }\n",
		"internal/mem/doc.go": "package p\n",
	}, "fp8: has no TestMain", "mla: has no TestMain")
}

func TestNoC(t *testing.T) {
	holds(t, NoC, map[string]string{
		"fp8/a.go":      "package fp8\nimport \"C\" // want cgo\n",
		"fp8/a_test.go": "package fp8\nimport \"C\" // want cgo\n",
		"fp8/b.go":      "package fp8\nimport \"c\"\n",
		"fp8/k.c":       "int x;\n",
		"fp8/k.h":       "int x;\n",
	}, "fp8/k.c: C is not used", "fp8/k.h: C is not used")
}

func TestLeftovers(t *testing.T) {
	const todo, fixme, triple = "TO" + "DO", "FIX" + "ME", "XX" + "X"
	holds(t, Leftovers, map[string]string{
		"fp8/a.go":            "package fp8\n// " + todo + "(me): more // want says " + todo + "\nconst MASTODON, mastodo = 1, 2\n",
		"simd/k.s":            "// " + fixme + " // want says " + fixme + "\n",
		"docs/a.md":           "an " + triple + "L shirt\n" + triple + ": here\n",
		"simd/_gen/a.go":      "package main // " + triple + " // want says " + triple + "\n",
		"fp8/testdata/a.go":   "package fp8 // " + todo + "\n",
		".ci/run":             "# " + todo + "\n",
		"fp8/testdata/x/a.md": todo + "\n",
	}, "docs/a.md:2: says "+triple, ".ci/run:1: says "+todo)
}

func TestProducts(t *testing.T) {
	exact := map[string]string{
		"fp8/a.go:decode":   "a code times 2^8 is exact",
		"fp8/a.go:T.decode": "a code times 2^8 is exact",
		"fp8/a.go:gone":     "holds no product any more",
	}
	holds(t, func(t *Tree) []Finding { return Products(t, exact) }, map[string]string{
		"fp8/a.go": `package fp8
import (
	"math"
	"os"
	"unknown"

	"github.com/x448/float16"
)
type half float32
type number interface{ ~int | float64 }
const third = 1.0 / 3
func good(x, y float32, z float64, n int) float32 {
	n *= n * 3
	k := third * 2 * third
	s := float32(x*y) + float32((x * y))
	s += float32(float64(float64(x)*float64(y)) + z)
	s += float32(half(half(x)*half(y)))
	return s + float32(k) / (x + y) - float32(float32(x*y)*y)
}
func bad(x, y float32, z float64, h half, c complex64, n int) float32 {
	s := x * y // want a float product without
	s += float32(x*y*z2) // want a float product without
	s *= x // want by *=
	s += float32(x*y + 1) // want a float product without
	s += float32(int(x * 3)) // want a float product without
	s += -(x * y) // want a float product without
	z += math.Sqrt(z) * z // want a float product without
	z += float64(math.Sqrt(z * z)) // want a float product without
	h = h * h // want a float product without
	c *= c // want by *=
	c = c * c // want a float product without
	n += os.Getpagesize() * n
	n += int(unknown.X * 2) // want type of this product cannot be told
	s += float16.Frombits(1).Float32() * x // want a float product without
	s += float32(square(x * y)) // want a float product without
	return s + func(a float32) float32 { return a * a }(s) // want a float product without
}
func square(x float32) float32 { return float32(x * x) }
var z2, global = float32(2), z2 * z2 // want a float product without
func generic[T number](x T) T { return x * x } // want a float product without
func whole[T ~int | ~uint8](x T) T { return x * x }
func guarded[T number](x T) float64 { return float64(x * x) }
func decode(x float32, n int) float32 { x *= 4; return x * 256 + x * -0.5 + x * 0x1p-3 }
type T struct{}
func (*T) decode(x float32) float32 { return 256 * x }
func (*T) other(x float32) float32 { return 256 * x } // want a float product without
`,
		"fp8/a_test.go": "package fp8\nvar y float32\nvar x = y * y\n",
		"fp8/a_arm64.go": `package fp8
func arm(x float64) float64 { return x * x } // want a float product without
`,
		"fp8/race.go": `//go:build race
package fp8
func race(x float64) float64 { return x * x } // want a float product without
`,
		"fp8/a_plan9.go":       "package fp8\n",
		"bench/a.go":           "package bench\nvar y = float32(2)\nvar x = y * y\n",
		"simd/amd64/avx2/a.go": "package avx2\nfunc f(x float32) float32 { return x * x } // want a float product without\n",
	}, "fp8/a_plan9.go: built for none", "fp8/a.go:gone: holds none")
}

// TestScalings shows that a listed function may hold no product but an exact one.
func TestScalings(t *testing.T) {
	exact := map[string]string{"fp8/a.go:f": ""}
	holds(t, func(t *Tree) []Finding { return Products(t, exact) }, map[string]string{
		"fp8/a.go": `package fp8
func f(x, y float32) float32 {
	return x * 0.25 +
		x * 3 + // want a float product without
		x * y + // want a float product without
		x * 0 // want a float product without
}
func g(x float32) { x *= 2 } // want by *=
`})
}

func TestOpens(t *testing.T) {
	holds(t, Opens, map[string]string{
		"mla/a.go": `package mla
import "os"
func f() {
	os.Open("x") // want os.Open may wait
	os.ReadFile("x") // want os.ReadFile may wait
	open := os.OpenFile // want os.OpenFile may wait
	open("x", os.O_RDONLY, 0)
	os.Stat("x")
	os.ReadDir("x")
}
`,
		"mla/a_test.go":          "package mla\nimport \"os\"\nvar x, _ = os.ReadFile(\"x\")\n",
		"internal/openfile/a.go": "package openfile\nimport \"os\"\nvar x, _ = os.OpenFile(\"x\", 0, 0)\n",
	})
}

func TestMathCalls(t *testing.T) {
	holds(t, MathCalls, map[string]string{
		"mla/a.go": `package mla
import "math"
import "math/cmplx"
func f(x float64) float64 {
	x = math.Sqrt(math.Abs(x)) + math.Pi
	x = math.Exp(x) // want math.Exp has other bits
	g := math.Log // want math.Log has other bits
	return g(x) + real(cmplx.Sqrt(1)) // want cmplx.Sqrt has other bits
}
`,
		"bench/a.go": "package bench\nimport \"math\"\nvar x = math.Exp(1)\n",
	})
}

func TestGenerated(t *testing.T) {
	holds(t, Generated, map[string]string{
		"simd/amd64/avx2/a.go":      header + "\npackage avx2\n",
		"simd/amd64/avx2/a.s":       header + "TEXT\n",
		"simd/amd64/avx2/doc.go":    "package avx2\n",
		"simd/amd64/avx2/a_test.go": "package avx2\n",
		"simd/amd64/avx2/hand.go":   "package avx2\n",
		"simd/arm64/neon/hand.s":    "TEXT\n",
		"simd/dispatch.go":          header + "package simd\n",
		"simd/hand.go":              "package simd\n",
		"simd/stale.go":             "// Code generated by go run ./_gen -out x. DO NOT EDIT. // want the first line\npackage simd\n",
		"simd/stale2.go":            "// Code generated by go run ./_gen -out x. DO NOT EDIT.\npackage simd\n",
		"simd/late.go":              "//go:build amd64\n\n" + header + "\npackage simd\n",
		"simd/vague.s":              "// made by hand\n\n// generated code\nTEXT\n",
		"simd/manual.go":            "// Package simd is not generated.\npackage simd\n",
		"simd/quote.go":             "package simd\n\n" + header + "var x = `\n" + header + "`\n",
		"mla/a.go":                  header + "package mla\n",
		"mla/b.go":                  "// Code generated by stringer. DO NOT EDIT.\n\npackage mla\n",
		"docs/a.md":                 header,
	},
		"simd/amd64/avx2/hand.go: never written by hand",
		"simd/arm64/neon/hand.s: never written by hand",
		"simd/stale2.go:1: the first line",
		"simd/late.go:3: the first line",
		"simd/vague.s:3: the first line",
		"mla/a.go:1: only files in simd",
		"mla/b.go:1: the first line",
	)
}

func TestDirectCalls(t *testing.T) {
	holds(t, DirectCalls, map[string]string{
		"simd/a.go": `package simd
import "example.com/m/simd/ref"
import "errors"
type body struct{ dot func(x []float32) }
type bodies interface { Dot(x []float32) } // want an interface stands
type node struct { next *node; x int }
type float interface{ ~float32 | ~float64 }
var dot func(x []float32) // want dot holds functions
var table = [2]body{} // want table holds functions
var named map[string]*body // want named holds functions
var some any // want some holds functions
var list *node
var names = []string{"a"}
var fault = errors.New("none")
func Dot(x []float32) {
	switch len(names) {
	case 0:
		ref.Dot(x)
	default:
		(ref.Dot)(x)
	}
	func() { ref.Dot(x) }()
	f := ref.Dot // want Dot is used as a value
	f(x)
	apply(Dot, x) // want Dot is used as a value
	sum[float32](x)
}
func apply(f func([]float32), x []float32) { f(x) }
func sum[T float](x []T) {}
`,
		"simd/ref/a.go": "package ref\nfunc Dot(x []float32) {}\n",
		"mla/a.go":      "package mla\nvar f func()\n",
	})
}

func TestState(t *testing.T) {
	may := map[string]string{"simd.level": "chosen once", "simd.never": "does not change"}
	holds(t, func(t *Tree) []Finding { return State(t, may) }, map[string]string{
		"simd/a.go": `package simd
var level, never int
func Use() { level = 3 }
`,
		"mla/a.go": `package mla
import (
	"errors"
	"sync"
	"sync/atomic"
)
var ErrShape = errors.New("shape")
var table [4]int
var list = []int{1}
var names = map[string]int{}
var count, total int
var mu sync.Mutex
var hits atomic.Int32
var lazy = sync.OnceValue(func() int { return 1 })
var at struct{ x int }
var Public *int
func init() { table[0] = 1; count++ }
func use(i int) int {
	table[i] = 1 // want mla.table changes
	list = append(list, 1) // want mla.list changes
	copy(list[1:], list) // want mla.list changes
	names["x"] = 1 // want mla.names changes
	delete(names, "x") // want mla.names changes
	count++ // want mla.count changes
	at.x += 1 // want mla.at changes
	mu.Lock() // want mla.mu changes
	hits.Add(1) // want mla.hits changes
	p := &total // want mla.total changes
	for count = range 3 { // want mla.count changes
	}
	q := &table
	count := lazy() + *p + q[0]
	count++
	local := list
	_, local[0] = len(local), 2
	return count + len(local)
}
type t struct{}
func (t) init() { count = 1 } // want mla.count changes
`,
		"bench/a.go": `package bench
import "example.com/m/mla"
func use() { mla.Public = nil } // want mla.Public changes
`,
		"bench/a_test.go": "package bench\nvar x int\nfunc use2() { x = 1 }\n",
	}, "simd.never: does not")
}

func TestFileOrder(t *testing.T) {
	order := map[string][]string{"a": {"top.go", "middle.go", "bottom.go"}}
	holds(t, func(t *Tree) []Finding { return FileOrder(t, order) }, map[string]string{
		"a/top.go": `package a

type s struct{}

func (s) up() { middle(); bottom() }
`,
		"a/middle.go": `package a

func middle() { bottom() }
`,
		"a/bottom.go": `package a

func bottom() {
	s{}.up() // want calls up, which is above it, in top.go
	middle() // want calls middle, which is above it, in middle.go
}
`,
		"a/new.go": "package a\n",
		"b/b.go":   "package b\n\nfunc b() { c() }\n",
		"b/c.go":   "package b\n\nfunc c() { b() }\n",
	}, "a/new.go: has no place in the order")
}
