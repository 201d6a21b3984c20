//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package checkpoint_test

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExchangedForFIFO has a file and a FIFO take turns under whatever opens a path: nothing waits
// for a writer who never comes.
func TestExchangedForFIFO(t *testing.T) {
	d := newDraft(t)
	d.shard = 0
	d.attention(module0)
	dir := d.write()
	m := d.open(dir)
	b, err := m.Block(0)
	require.NoError(t, err)
	defer b.Close()
	packed := filepath.Join(dir, "packed")
	require.NoError(t, m.SavePacked(0, b, packed))
	source, err := m.Fingerprint(0)
	require.NoError(t, err)
	shard, config := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "config.json")
	for _, c := range []struct {
		name, path string
		open       func() error
		kind       error
	}{
		{"Open", shard, func() error { _, err := checkpoint.Open(shard); return err }, checkpoint.ErrFormat},
		{"OpenDir", shard, func() error { _, err := checkpoint.OpenDir(dir); return err }, checkpoint.ErrFormat},
		{"OpenModel", config, func() error { _, err := checkpoint.OpenModel(dir); return err }, checkpoint.ErrFormat},
		{"LoadPackedBlock", packed, func() error { _, err := mla.LoadPackedBlock(m.Config.Block, packed, source); return err }, mla.ErrPacked},
		{"LoadPacked", packed, func() error { _, err := mla.LoadPacked(m.Config.Block.Core, packed, source); return err }, mla.ErrPacked},
	} {
		t.Run(c.name, func(t *testing.T) {
			file, fifo := c.path+".file", c.path+".fifo"
			require.NoError(t, os.Rename(c.path, file))
			require.NoError(t, os.Link(file, c.path))
			var stop atomic.Bool
			done, opened := make(chan error, 1), make(chan struct{})
			go func() {
				for !stop.Load() {
					err := syscall.Mkfifo(fifo, 0o600)
					if err == nil {
						err = os.Rename(fifo, c.path)
					}
					if err == nil {
						err = os.Link(file, fifo)
					}
					if err == nil {
						err = os.Rename(fifo, c.path)
					}
					if err != nil {
						done <- err
						return
					}
				}
				done <- nil
			}()
			go func() {
				defer close(opened)
				for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
					if err := c.open(); err != nil && c.name != "LoadPacked" { // which refuses a block's file, too
						assert.ErrorIs(t, err, c.kind)
						assert.ErrorContains(t, err, "no regular file but a FIFO")
					}
				}
			}()
			select {
			case <-opened:
			case <-time.After(20 * time.Second):
				t.Fatal("it waits for a writer")
			}
			stop.Store(true)
			require.NoError(t, <-done)
			require.NoError(t, os.Remove(file)) // c.path is another link to it
		})
	}
}
