package archtest

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// sample is what a block of Go in a page is held to: it stands in a file of the module, which tests
// compile, or it compiles between head and tail, in a package of its own.
type sample struct {
	quotes     string // path of the file, or
	head, tail string
}

// samples are the Go blocks of every page, in their order. A block that is not here is a finding.
var samples = map[string][]sample{
	"README.md": {
		{quotes: "mla/example_test.go"},
		{
			head: `import (
	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
)

func _(dir string) (*mla.Block, error) {
`,
			tail: `
	model.Config.Block.Core.Compute = mla.ComputeBF16
	return block, err
}
`,
		},
	},
	"docs/adding.md": {{quotes: "kvpaged/fp8_unit.go"}, {quotes: "simd/_gen/kernels.go"}, {quotes: "simd/_gen/widen.go"}},
	"docs/from-max.md": {
		{
			head: `import (
	"context"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/kvpaged"
	"github.com/lamina-ml/lamina/mla"
)

func _(
	ctx context.Context, pool *mla.Pool, kv, output, q, gamma []uint16, blocks []byte, freqsCis, wkScale, wukScale, wuvScale []float32,
	inputRowOffsets, cacheLengths, lookupTable, bufferRowOffsets, cacheOffsets []uint32,
	numBlocks, layer, bufferLength, maxSeqLen, batch int, scale float32, wk, wuk, wuv []byte,
) error {
`,
			tail: "\n\treturn err\n}\n",
		},
		{
			head: `import "github.com/lamina-ml/lamina/mla"

func _(indices, topkLengths []int32, stride int, sink []float32) *mla.GraphArgs {
	return &mla.GraphArgs{
`,
			tail: "\n\t}\n}\n",
		},
	},
}

// TestSamples holds the Go in the README and the pages to the module.
func TestSamples(t *testing.T) {
	tree, err := Load(os.DirFS("../.."))
	require.NoError(t, err)
	found := 0
	for _, page := range tree.Texts {
		if filepath.Ext(page.Path) != ".md" {
			continue
		}
		blocks := goBlocks(string(page.Data))
		require.Len(t, blocks, len(samples[page.Path]), "%s: Go blocks that samples has", page.Path)
		for i, s := range samples[page.Path] {
			found++
			assert.NoError(t, s.check(t, blocks[i]), "Go block %d of %s", i, page.Path)
		}
	}
	n := 0
	for _, list := range samples {
		n += len(list)
	}
	require.Equal(t, n, found, "samples of pages that are not there")

	// What is wrong is found.
	readme, page := samples["README.md"], samples["docs/adding.md"][0]
	assert.ErrorContains(t, page.check(t, "func widenFP8Unit(dst []float32, src []byte) { simd.WidenE4M3(dst, src) }"), "kvpaged/fp8_unit.go")
	assert.ErrorContains(t, page.check(t, "\n"), "kvpaged/fp8_unit.go")
	assert.ErrorContains(t, readme[1].check(t, "model, err := checkpoint.OpenModels(dir)\nblock, err := model.Block(3)"), "OpenModels")
}

// goBlocks are the blocks of Go of a page in Markdown, without the indentation that they have in a list.
func goBlocks(page string) (blocks []string) {
	for {
		before, after, ok := strings.Cut(page, "```go\n")
		if !ok {
			return blocks
		}
		indent := before[strings.LastIndexByte(before, '\n')+1:]
		block, rest, _ := strings.Cut(after, "```")
		var lines []string
		for line := range strings.Lines(block) {
			lines = append(lines, strings.TrimPrefix(line, indent))
		}
		blocks, page = append(blocks, strings.TrimRight(strings.Join(lines, ""), " ")), rest
	}
}

func (s sample) check(t *testing.T, block string) error {
	t.Helper()
	if s.quotes == "" {
		return builds(t, "package sample\n\n"+s.head+block+s.tail)
	}
	file, err := os.ReadFile(filepath.Join("../..", filepath.FromSlash(s.quotes)))
	require.NoError(t, err)
	if want := bare(block); want == "" || !strings.Contains("\n"+bare(string(file))+"\n", "\n"+want+"\n") {
		return fmt.Errorf("does not stand in %s as it is", s.quotes)
	}
	return nil
}

// bare is text without what it is indented by, which a quotation may change.
func bare(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimSpace(line)
	}
	return strings.Join(lines, "\n")
}

// builds compiles a file as a package of the module, which lies in no folder of it.
func builds(t *testing.T, file string) error {
	t.Helper()
	dir := t.TempDir()
	source, overlay := filepath.Join(dir, "sample.go"), filepath.Join(dir, "overlay.json")
	require.NoError(t, os.WriteFile(source, []byte(file), 0o600))
	here, err := os.Getwd()
	require.NoError(t, err)
	replace, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(here, "sample", "sample.go"): source}})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(overlay, replace, 0o600))
	out, err := exec.Command("go", "build", "-overlay", overlay, "./sample").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
