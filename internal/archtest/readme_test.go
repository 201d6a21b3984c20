package archtest

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestQuickStart holds the README's quick start to the example of package mla,
// which the tests compile and run: the same lines, less one indentation.
func TestQuickStart(t *testing.T) {
	example, err := os.ReadFile("../../mla/example_test.go")
	require.NoError(t, err)
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	require.NoError(t, quickStart(string(example), string(readme)))
	require.Error(t, quickStart(string(example), strings.Replace(string(readme), "Reserve", "Reserves", 1)))
	require.Error(t, quickStart(string(example), "no code"))
}

// quickStart compares the first Go block of a README with the body of Example.
func quickStart(example, readme string) error {
	_, body, ok := strings.Cut(example, "func Example() {\n")
	if !ok {
		return errNoExample
	}
	body, _, _ = strings.Cut(body, "\n}\n")
	var want []string
	for line := range strings.SplitSeq(body, "\n") {
		if line = strings.TrimPrefix(line, "\t"); !strings.HasPrefix(line, "// Output:") {
			want = append(want, line)
			continue
		}
		break
	}
	_, block, ok := strings.Cut(readme, "```go\n")
	if !ok {
		return errNoBlock
	}
	block, _, _ = strings.Cut(block, "```")
	if got := strings.TrimSpace(block); got != strings.TrimSpace(strings.Join(want, "\n")) {
		return errDiffer
	}
	return nil
}

const (
	errNoExample = quickStartError("mla/example_test.go has no func Example")
	errNoBlock   = quickStartError("README.md has no Go block")
	errDiffer    = quickStartError("the first Go block of README.md is not the body of mla's Example")
)

type quickStartError string

func (e quickStartError) Error() string { return string(e) }
