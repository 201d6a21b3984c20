package openfile_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/openfile"
)

func TestRegular(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	require.NoError(t, os.WriteFile(path, []byte("four"), 0o600))
	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink("x", link))
	for _, p := range []string{path, link} {
		f, size, err := openfile.Regular(p)
		require.NoError(t, err)
		assert.Equal(t, int64(4), size)
		b := make([]byte, 4)
		_, err = f.ReadAt(b, 0)
		require.NoError(t, err)
		assert.Equal(t, "four", string(b))
		require.NoError(t, f.Close())
	}
	_, _, err := openfile.Regular(filepath.Join(dir, "absent"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, _, err = openfile.Regular(dir)
	assert.ErrorIs(t, err, openfile.ErrKind)
	assert.ErrorContains(t, err, "a directory")

	f, err := openfile.Directory(dir)
	require.NoError(t, err)
	names, err := f.Readdirnames(-1)
	require.NoError(t, err)
	assert.Len(t, names, 2)
	require.NoError(t, f.Close())
	_, err = openfile.Directory(path)
	assert.ErrorIs(t, err, syscall.ENOTDIR)
}
