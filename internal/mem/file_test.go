package mem_test

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/mem"
)

// opened writes a file of these bytes and opens it.
func opened(t *testing.T, b []byte) (*mem.File, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, b, 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	m, err := mem.NewFile(f, int64(len(b)))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m, path
}

func TestFileReads(t *testing.T) {
	for _, n := range []int{0, 1, 4096, 4097, 40000} {
		want := bytes.Repeat([]byte("lamina. "), 5000)[:n]
		f, _ := opened(t, want)
		assert.Equal(t, int64(n), f.Size())
		require.NoError(t, iotest.TestReader(io.NewSectionReader(f, 0, f.Size()), want))
		p := make([]byte, 10)
		got, err := f.ReadAt(p, int64(n))
		assert.Zero(t, got)
		assert.Equal(t, io.EOF, err)
		got, err = f.ReadAt(p, int64(n)-min(3, int64(n)))
		assert.Equal(t, min(3, n), got)
		assert.Equal(t, io.EOF, err)
		_, err = f.ReadAt(p, -1)
		assert.ErrorIs(t, err, mem.ErrSize)
		require.NoError(t, f.Close())
		require.NoError(t, f.Close(), "a second Close does nothing")
		_, err = f.ReadAt(p, 0)
		assert.ErrorIs(t, err, os.ErrClosed)
	}
}

func TestFileRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(path, []byte("four"), 0o600))
	for _, n := range []int64{-1, 5, math.MaxInt64, math.MinInt64} {
		f, err := os.Open(path)
		require.NoError(t, err)
		_, err = mem.NewFile(f, n)
		require.ErrorIs(t, err, mem.ErrSize, "size %d", n)
		require.ErrorIs(t, f.Close(), os.ErrClosed, "it was taken")
	}
	f, err := os.Open(path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = mem.NewFile(f, 1)
	require.ErrorIs(t, err, os.ErrClosed)
}

// TestShortenedFile takes pages away from under a mapping, and then only part of one.
func TestShortenedFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows refuses to shorten a mapped file")
	}
	const size = 1 << 20
	f, path := opened(t, bytes.Repeat([]byte{7}, size))
	p := make([]byte, size)
	for _, left := range []int64{size - 1, size / 2, 4097, 1, 0} {
		require.NoError(t, os.Truncate(path, left))
		_, err := f.ReadAt(p, 0)
		require.ErrorIs(t, err, mem.ErrShrunk, "%d bytes left", left)
		_, err = f.ReadAt(p[:1], size-1)
		require.ErrorIs(t, err, mem.ErrShrunk, "%d bytes left", left)
		if left > 0 {
			_, err = f.ReadAt(p[:left], 0)
			require.NoError(t, err, "what is left can be read")
		}
	}
	// Other faults on this goroutine are what they were.
	var none *[1]byte
	require.Panics(t, func() { none[0]++ })
}

func TestFileClosesUnderReaders(t *testing.T) {
	f, _ := opened(t, bytes.Repeat([]byte{7}, 1<<16))
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			p := make([]byte, 1<<16)
			for {
				_, err := f.ReadAt(p, 0)
				if errors.Is(err, os.ErrClosed) {
					return
				}
				assert.NoError(t, err)
				assert.Equal(t, byte(7), p[len(p)-1])
			}
		})
	}
	require.NoError(t, f.Close())
	wg.Wait()
}
