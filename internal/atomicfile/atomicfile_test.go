package atomicfile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/atomicfile"
)

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	says := func(text string) {
		t.Helper()
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, text, string(b))
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		assert.Len(t, entries, 1, "nothing is left beside it")
	}
	write := func(text string) error {
		return atomicfile.Replace(path, func(w io.Writer) error { _, err := io.WriteString(w, text); return err })
	}
	require.NoError(t, write("one"))
	says("one")
	require.NoError(t, write("two"))
	says("two")
	full := errors.New("full")
	err := atomicfile.Replace(path, func(w io.Writer) error {
		_, err := io.WriteString(w, "half of thr")
		require.NoError(t, err)
		return full
	})
	assert.ErrorIs(t, err, full)
	says("two")
	assert.ErrorIs(t, atomicfile.Replace(filepath.Join(dir, "none", "x"), func(io.Writer) error { return nil }), os.ErrNotExist)
}
