//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package openfile_test

import (
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/openfile"
)

// soon fails a test whose f waits for something.
func soon(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatalf("%s hangs", what)
	}
}

// TestNoRegularFile opens what is none: seen beforehand, and exchanged after the look.
func TestNoRegularFile(t *testing.T) {
	dir := t.TempDir()
	fifo, socket := filepath.Join(dir, "fifo"), filepath.Join(dir, "socket")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	if l, err := net.Listen("unix", socket); err == nil { // whose names may not be this long
		defer l.Close()
	}
	for path, kind := range map[string]string{fifo: "a FIFO", socket: "a socket", os.DevNull: "a device", dir: "a directory"} {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		soon(t, path, func() {
			_, _, err := openfile.Regular(path)
			assert.ErrorIs(t, err, openfile.ErrKind, path)
			assert.ErrorContains(t, err, kind)
			_, _, err = openfile.Open(path)
			assert.Error(t, err, path)
			if path != socket { // which nobody can open
				assert.ErrorIs(t, err, openfile.ErrKind, path)
				assert.ErrorContains(t, err, kind)
			}
			if path != dir {
				_, err = openfile.Directory(path)
				assert.Error(t, err)
			}
		})
	}
}

// TestExchanged opens a path where a file and a FIFO take turns.
func TestExchanged(t *testing.T) {
	dir := t.TempDir()
	path, fifo, other := filepath.Join(dir, "path"), filepath.Join(dir, "fifo"), filepath.Join(dir, "other")
	require.NoError(t, os.WriteFile(path, []byte("four"), 0o600))
	var stop atomic.Bool
	exchanged := make(chan error, 1)
	go func() {
		for !stop.Load() {
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				exchanged <- err
				return
			}
			if err := os.WriteFile(other, []byte("four"), 0o600); err != nil {
				exchanged <- err
				return
			}
			os.Rename(fifo, path)
			os.Rename(other, path)
		}
		exchanged <- nil
	}()
	soon(t, "a path that is exchanged", func() {
		for end := time.Now().Add(200 * time.Millisecond); time.Now().Before(end); {
			f, size, err := openfile.Regular(path)
			if err != nil {
				assert.ErrorIs(t, err, openfile.ErrKind)
				continue
			}
			assert.Equal(t, int64(4), size)
			assert.NoError(t, f.Close())
		}
	})
	stop.Store(true)
	require.NoError(t, <-exchanged)
}
