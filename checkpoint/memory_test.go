package checkpoint_test

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// allocated counts all that f allocates, garbage included: more than it can hold at once.
func allocated(f func()) int64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc)
}

// headerSize is the default limit, or less where time is short.
func headerSize() int {
	if testing.Short() {
		return 2 << 20
	}
	return 32 << 20
}

// budgetOf is what reading a header of size bytes may allocate: 64 MB for the 32 MB that are
// the default limit, and 4 more for a shorter one, to which a map of metadata is large.
func budgetOf(size int) int64 {
	if size < 32<<20 {
		return 2*int64(size) + 4<<20
	}
	return 2 * int64(size)
}

// filled is a text of at most size bytes: head, units until it is full, and tail.
func filled(size int, head string, unit func(i int) string, tail string) string {
	var b strings.Builder
	b.Grow(size)
	b.WriteString(head)
	for i := 0; ; i++ {
		u := unit(i)
		if b.Len()+len(u)+len(tail) > size {
			break
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(u)
	}
	b.WriteString(tail)
	return b.String()
}

func always(s string) func(int) string { return func(int) string { return s } }

// write writes a text to a file, behind its length if it is a header.
func write(t *testing.T, path, text string, header bool) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	if header {
		_, err = f.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))
		require.NoError(t, err)
	}
	_, err = f.WriteString(text)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

// hostile are headers that make the most of a limit.
func hostile(size int) map[string]string {
	tiny := func(i int) string {
		return fmt.Sprintf(`"%x":{"dtype":"U8","shape":[],"data_offsets":[%d,%d]}`, i, i, i+1)
	}
	none := func(i int) string { return fmt.Sprintf(`"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i) }
	zeros := strings.TrimSuffix(strings.Repeat("0,", 64), ",")
	ranks := func(i int) string {
		return fmt.Sprintf(`"%x":{"dtype":"U8","shape":[%s],"data_offsets":[0,0]}`, i, zeros)
	}
	names := func(i int) string {
		return fmt.Sprintf(`"%x%s":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i, strings.Repeat("n", 200))
	}
	return map[string]string{
		"tensors of one byte":   filled(size, "{", tiny, "}"),
		"empty tensors":         filled(size, "{", none, "}"),
		"many dimensions":       filled(size, "{", ranks, "}"),
		"names":                 filled(size, "{", names, "}"),
		"one name":              `{"` + strings.Repeat("x", size-64) + `":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`,
		"one shape":             filled(size-1, `{"a":{"shape":[`, always("0"), `]}}`),
		"depth":                 `{"a":{"shape":` + strings.Repeat("[", size-20),
		"unended string":        `{"` + strings.Repeat("x", size-2),
		"escapes":               `{"` + strings.Repeat(`\u0061`, size/6-1),
		"metadata key":          `{"__metadata__":{"` + strings.Repeat("x", size-40) + `":"y"}}`,
		"metadata value":        `{"__metadata__":{"y":"` + strings.Repeat("x", size-40) + `"}}`,
		"metadata keys":         filled(size, `{"__metadata__":{`, func(i int) string { return fmt.Sprintf(`"%x":""`, i) }, `}}`),
		"metadata of long keys": filled(size, `{"__metadata__":{`, func(i int) string { return fmt.Sprintf(`"%500x":""`, i) }, `}}`),
		"white space":           filled(size, "", always("          "), "{}"),
	}
}

// TestHostileHeaders counts what a header within the limit can make the reader allocate.
func TestHostileHeaders(t *testing.T) {
	size := headerSize()
	path := filepath.Join(t.TempDir(), "x.safetensors")
	for name, text := range hostile(size) {
		require.LessOrEqual(t, len(text), size, name)
		write(t, path, text, true)
		var f *checkpoint.File
		var err error
		n := allocated(func() { f, err = checkpoint.Open(path) })
		assert.Less(t, n, budgetOf(size), "%s: %v", name, err)
		t.Logf("%s: %d bytes: %.100v", name, n, err)
		if err == nil {
			names := 0
			for x := range f.Tensors() {
				names += len(x.Name)
				if names > 1000 {
					break
				}
			}
			require.NoError(t, f.Close())
		} else {
			assert.ErrorContains(t, err, path)
		}
	}
}

// TestHostileShards counts what the shards of one directory can make the reader allocate: what
// is kept of all of them has one limit, whose error comes early.
func TestHostileShards(t *testing.T) {
	dir := t.TempDir()
	const shards = 44 // of which each keeps nearly 1 MB
	entry := func(i int) string {
		return fmt.Sprintf(`"%0200x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`, i)
	}
	write(t, filepath.Join(dir, "0"), filled(1<<20, "{", entry, "}"), true)
	name := func(i int) string { return fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, shards) }
	for i := range shards {
		require.NoError(t, os.Symlink("0", filepath.Join(dir, name(i))))
	}
	index := filled(1<<18, `{"weight_map":{`, func(i int) string { return fmt.Sprintf("%q:%q", fmt.Sprintf("%0200x", i), name(i%shards)) }, "}}")
	write(t, filepath.Join(dir, "model.safetensors.index.json"), index, false)
	var err error
	n := allocated(func() { _, err = checkpoint.OpenDir(dir) })
	require.ErrorIs(t, err, checkpoint.ErrLimit)
	require.ErrorContains(t, err, "Limits.Kept")
	require.ErrorContains(t, err, "model-000")
	t.Logf("%d bytes", n)
	assert.Less(t, n, int64(64<<20))

	d, err := checkpoint.Limits{Kept: 64 << 20}.OpenDir(dir)
	require.NoError(t, err)
	require.NoError(t, d.Close())
}

// TestHostileIndex counts what an index can make the reader allocate.
func TestHostileIndex(t *testing.T) {
	size := headerSize()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "x"), `{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}`, true)
	for name, text := range map[string]string{
		"unknown tensors": filled(size, `{"weight_map":{`, func(i int) string { return fmt.Sprintf(`"%x":"x"`, i) }, "}}"),
		"one tensor":      filled(size, `{"weight_map":{`, always(`"a":"x"`), "}}"),
		"files":           filled(size, `{"weight_map":{`, func(i int) string { return fmt.Sprintf(`"%x":"%x"`, i, i) }, "}}"),
		"a long file":     `{"weight_map":{"a":"` + strings.Repeat("x", size-30) + `"}}`,
		"a long tensor":   `{"weight_map":{"` + strings.Repeat("x", size-30) + `":"x"}}`,
		"depth":           `{"metadata":` + strings.Repeat("[", size-20),
		"metadata":        filled(size-1, `{"metadata":{"x":[`, always("1e5"), `]},"weight_map":{}}`),
	} {
		write(t, filepath.Join(dir, "model.safetensors.index.json"), text, false)
		var err error
		n := allocated(func() { _, err = checkpoint.OpenDir(dir) })
		require.Error(t, err, name)
		assert.ErrorContains(t, err, "index", name)
		t.Logf("%s: %d bytes: %.200v", name, n, err)
		assert.Less(t, n, budgetOf(size), name)
	}
}
