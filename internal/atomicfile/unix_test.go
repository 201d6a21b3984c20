//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package atomicfile_test

import (
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/atomicfile"
	"github.com/lamina-ml/lamina/internal/openfile"
)

// TestReplaceKeepsPermissions: what is replaced leaves its bits, whatever the mask, and the new
// file never has more, not even while it is written.
func TestReplaceKeepsPermissions(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	perm := func(path string) fs.FileMode {
		info, err := os.Stat(path)
		require.NoError(t, err)
		return info.Mode().Perm()
	}
	write := func() fs.FileMode {
		var during fs.FileMode
		require.NoError(t, atomicfile.Replace(path, func(w io.Writer) error {
			during = perm(w.(*os.File).Name())
			_, err := io.WriteString(w, "new")
			return err
		}))
		return during
	}
	assert.Equal(t, fs.FileMode(0o640), write(), "a new file has what the mask leaves")
	assert.Equal(t, fs.FileMode(0o640), perm(path))
	for _, want := range []fs.FileMode{0o600, 0o644, 0o666, 0o640, 0o604, 0o755, 0o400, 0o444} {
		require.NoError(t, os.Chmod(path, want))
		assert.Equal(t, want, write(), "%o", want)
		assert.Equal(t, want, perm(path), "%o", want)
	}
}

// TestReplaceFollowsLinks: links stay, and what they lead to is replaced or made.
func TestReplaceFollowsLinks(t *testing.T) {
	for name, c := range map[string]struct {
		links  [][2]string // target, name
		path   string
		target string // what is replaced or made, "" for an error
		says   string
	}{
		"a link":                  {[][2]string{{"far/x", "l"}}, "l", "far/x", ""},
		"a link to a link":        {[][2]string{{"far/x", "l"}, {"l", "m"}}, "m", "far/x", ""},
		"absolute":                {[][2]string{{"DIR/far/x", "l"}}, "l", "far/x", ""},
		"in a linked folder":      {[][2]string{{"far", "f"}, {"x", "far/l"}}, "f/l", "far/x", ""},
		"out of a linked folder":  {[][2]string{{"far/deep", "f"}, {"f/../x", "l"}}, "l", "far/x", ""},
		"a link to nothing yet":   {[][2]string{{"far/new", "l"}}, "l", "far/new", ""},
		"a link to no folder":     {[][2]string{{"nowhere/new", "l"}}, "l", "", "no such file"},
		"a loop":                  {[][2]string{{"m", "l"}, {"l", "m"}}, "l", "", "symbolic links"},
		"a link to a folder":      {[][2]string{{"far", "l"}}, "l", "", "a directory"},
		"a link to a device":      {[][2]string{{os.DevNull, "l"}}, "l", "", "a device"},
		"a link to a FIFO":        {[][2]string{{"fifo", "l"}}, "l", "", "a FIFO"},
		"a FIFO":                  {nil, "fifo", "", "a FIFO"},
		"a folder":                {nil, "far", "", "a directory"},
		"a link to a linked loop": {[][2]string{{"m", "l"}, {"./m", "m"}}, "l", "", "symbolic links"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.MkdirAll(filepath.Join(dir, "far", "deep"), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "far", "x"), []byte("old"), 0o600))
			require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
			for _, l := range c.links {
				require.NoError(t, os.Symlink(strings.Replace(l[0], "DIR", dir, 1), filepath.Join(dir, l[1])))
			}
			before := tree(t, dir)
			err := atomicfile.Replace(filepath.Join(dir, c.path), func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err })
			after := tree(t, dir)
			if c.target == "" {
				require.Error(t, err)
				assert.ErrorContains(t, err, c.says)
				if c.says != "no such file" && c.says != "symbolic links" {
					assert.ErrorIs(t, err, openfile.ErrKind)
				}
				assert.Equal(t, before, after, "all is as before")
				return
			}
			require.NoError(t, err)
			before[c.target] = "new"
			assert.Equal(t, before, after)
		})
	}
}

// tree is what there is: a file's text, a link's target, and the type of all else.
func tree(t *testing.T, dir string) map[string]string {
	all := map[string]string{}
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		switch {
		case d.Type().IsRegular():
			b, err := os.ReadFile(path)
			require.NoError(t, err)
			all[name] = string(b)
		case d.Type()&fs.ModeSymlink != 0:
			all[name], err = os.Readlink(path)
			require.NoError(t, err)
			all[name] = "-> " + all[name]
		default:
			all[name] = d.Type().String()
		}
		return nil
	}))
	return all
}
