package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/klauspost/cpuid/v2"

	"github.com/lamina-ml/lamina/bench"
	"github.com/lamina-ml/lamina/simd"
)

// info is what "lamina info" knows about machine and program. Sizes are bytes;
// 0 means not known.
type info struct {
	CPU      string   `json:"cpu"`
	Features []string `json:"features"`

	SIMD   string   `json:"simd"`
	Why    string   `json:"why"`
	Env    string   `json:"lamina_simd"` // the variable, "" if not set
	Levels []string `json:"levels"`
	Error  string   `json:"error,omitempty"`

	Cores      int `json:"cores"` // logical
	Physical   int `json:"physical_cores,omitempty"`
	GOMAXPROCS int `json:"gomaxprocs"`
	L1D        int `json:"l1d_bytes,omitempty"`
	L2         int `json:"l2_bytes,omitempty"`
	L3         int `json:"l3_bytes,omitempty"`
	Line       int `json:"cache_line_bytes,omitempty"`

	Go       string `json:"go"`
	Platform string `json:"platform"`
	Commit   string `json:"commit,omitempty"`
}

func newInfo() info {
	known := func(n int) int { return max(n, 0) } // cpuid says -1 where it cannot tell
	i := info{
		CPU: bench.CPUName(), Features: simd.Features(),
		SIMD: simd.Level(), Why: simd.Why(), Env: os.Getenv(simd.Env), Levels: simd.Levels(),
		Cores: runtime.NumCPU(), Physical: cpuid.CPU.PhysicalCores, GOMAXPROCS: runtime.GOMAXPROCS(0),
		L1D: known(cpuid.CPU.Cache.L1D), L2: known(cpuid.CPU.Cache.L2), L3: known(cpuid.CPU.Cache.L3),
		Line: known(cpuid.CPU.CacheLine),
		Go:   runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Commit: bench.Commit(),
	}
	if err := simd.Err(); err != nil {
		i.Error = err.Error()
	}
	return i
}

const infoUsage = `usage: lamina info [-json]

Says what the machine has, and which instruction set was chosen and why.
`

// runInfo is "lamina info".
func runInfo(_ context.Context, args []string, stdout, stderr io.Writer) int {
	f := newFlags("info", infoUsage, stdout)
	asJSON := f.Bool("json", false, "print one JSON object")
	if status, done := f.failed(f.parse(args), stderr); done {
		return status
	}
	i := newInfo()
	if *asJSON {
		json.NewEncoder(stdout).Encode(i)
	} else {
		i.print(stdout)
	}
	if i.Error != "" {
		fmt.Fprintf(stderr, "lamina info: %s\n", i.Error)
		return statusUnusable
	}
	return statusOK
}

func (i info) print(w io.Writer) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-12s"+format+"\n", append([]any{name}, args...)...)
	}
	line("cpu", "%s", i.CPU)
	line("features", "%s", orUnknown(strings.Join(i.Features, " ")))
	line("simd", "%s: %s", i.SIMD, i.Why)
	line("levels", "%s", strings.Join(i.Levels, " "))
	line("LAMINA_SIMD", "%s", orNotSet(i.Env))
	line("cores", "%d logical, %s physical, GOMAXPROCS %d", i.Cores, orUnknown(count(i.Physical)), i.GOMAXPROCS)
	line("caches", "L1d %s, L2 %s, L3 %s, line %s", size(i.L1D), size(i.L2), size(i.L3), size(i.Line))
	line("go", "%s %s", i.Go, i.Platform)
	line("commit", "%s", orUnknown(i.Commit))
}

func orUnknown(s string) string {
	if s == "" {
		return "unknown"
	}
	return s
}

func orNotSet(s string) string {
	if s == "" {
		return "not set"
	}
	return s
}

func count(n int) string {
	if n <= 0 {
		return ""
	}
	return fmt.Sprint(n)
}

func size(n int) string {
	switch {
	case n <= 0:
		return "unknown"
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d B", n)
}
