package checkpoint_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func bytesOf(name string, b ...byte) checkpoint.Tensor {
	return checkpoint.Tensor{Name: name, DType: checkpoint.U8, Shape: []int{len(b)}, Data: b}
}

// names are the tensors of a directory, as "name file".
func names(d *checkpoint.Dir) []string {
	var list []string
	for x := range d.Tensors() {
		list = append(list, x.Name+" "+filepath.Base(x.File().Path()))
	}
	return list
}

// files are the names of a directory's files.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func TestWriteDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "model")
	tensors := []checkpoint.Tensor{bytesOf("b", 1, 2), bytesOf("a", 3), bytesOf("d", 4, 5, 6, 7), bytesOf("c"), bytesOf("e", 8)}
	check := func(where ...string) {
		t.Helper()
		d, err := checkpoint.OpenDir(dir)
		require.NoError(t, err)
		assert.Equal(t, where, names(d))
		assert.Equal(t, len(tensors), d.Len())
		for _, want := range tensors {
			got, ok := d.Tensor(want.Name)
			require.True(t, ok)
			b, err := got.Bytes()
			require.NoError(t, err)
			assert.True(t, slices.Equal(want.Data, b))
		}
		_, ok := d.Tensor("x")
		assert.False(t, ok)
		assert.Equal(t, map[string]string{"format": "pt"}, d.Files()[0].Metadata())
		assert.Equal(t, dir, d.Path())
		require.NoError(t, d.Close())
		_, ok = d.Tensor("a")
		assert.False(t, ok)
		assert.Empty(t, names(d))
		require.NoError(t, d.Close())
	}
	meta := map[string]string{"format": "pt"}
	require.NoError(t, checkpoint.WriteDir(dir, tensors, meta, 3))
	one, two, three := "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"
	check("a "+one, "b "+one, "c "+three, "d "+two, "e "+three)
	assert.Equal(t, []string{one, two, three, "model.safetensors.index.json"}, files(t, dir))
	var index struct {
		Metadata struct {
			Size int `json:"total_size"`
		}
		Map map[string]string `json:"weight_map"`
	}
	b, err := os.ReadFile(filepath.Join(dir, "model.safetensors.index.json"))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &index))
	assert.Equal(t, 8, index.Metadata.Size)
	assert.Equal(t, map[string]string{"a": one, "b": one, "c": three, "d": two, "e": three}, index.Map)

	single := "model.safetensors"
	require.NoError(t, checkpoint.WriteDir(dir, tensors, meta, 0))
	check("a "+single, "b "+single, "c "+single, "d "+single, "e "+single)
	assert.Equal(t, []string{one, two, three, single}, files(t, dir), "the index is gone")
	require.NoError(t, checkpoint.WriteDir(dir, tensors, meta, 7))
	one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	check("a "+one, "b "+one, "c "+one, "d "+one, "e "+two)
	assert.NotContains(t, files(t, dir), single)

	err = checkpoint.WriteDir(dir, []checkpoint.Tensor{bytesOf("a", 1), bytesOf("a", 2)}, nil, 1)
	assert.ErrorIs(t, err, checkpoint.ErrWrite, "twice, in two files")
	check("a "+one, "b "+one, "c "+one, "d "+one, "e "+two)
}

// TestWriteStreams writes tensors that no memory holds: from functions, and from an open file.
func TestWriteStreams(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	const size = 32 << 20
	chunk := make([]byte, 1<<16)
	for i := range chunk {
		chunk[i] = byte(i * 7)
	}
	stream := func(n int) func(io.Writer) error {
		return func(w io.Writer) error {
			for left := n; left > 0; left -= len(chunk) {
				if _, err := w.Write(chunk[:min(left, len(chunk))]); err != nil {
					return err
				}
			}
			return nil
		}
	}
	streamed := func(n int) []checkpoint.Tensor {
		return []checkpoint.Tensor{{Name: "x", DType: checkpoint.U8, Shape: []int{size}, Stream: stream(n)}, bytesOf("y", 1)}
	}
	var err error
	n := allocated(func() { err = checkpoint.WriteFile(path, streamed(size), nil) })
	require.NoError(t, err)
	assert.Less(t, n, int64(1<<20))
	f, err := checkpoint.Open(path)
	require.NoError(t, err)
	defer f.Close()
	copied := filepath.Join(dir, "copy")
	n = allocated(func() {
		err = checkpoint.WriteFile(copied, slices.Collect(f.Tensors()), nil)
	})
	require.NoError(t, err)
	assert.Less(t, n, int64(1<<20))
	a, err := os.ReadFile(path)
	require.NoError(t, err)
	b, err := os.ReadFile(copied)
	require.NoError(t, err)
	assert.Equal(t, len(a), len(b))
	assert.True(t, slices.Equal(a, b))

	for _, wrong := range []int{size - 1, size + 1, 0} {
		err := checkpoint.WriteFile(path, streamed(wrong), nil)
		assert.ErrorIs(t, err, checkpoint.ErrWrite)
		assert.ErrorContains(t, err, path)
		assert.ErrorContains(t, err, "tensor x U8 [33554432]")
	}
	now, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.True(t, slices.Equal(a, now), "what was there stays")
	assert.Len(t, files(t, dir), 2)
	full := errors.New("full")
	err = checkpoint.WriteFile(path, []checkpoint.Tensor{{Name: "x", DType: checkpoint.U8, Shape: []int{1}, Stream: func(io.Writer) error { return full }}}, nil)
	assert.ErrorIs(t, err, full)
}

// TestTruncated shortens files that are open: every way to read them is an error.
func TestTruncated(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows refuses to shorten a mapped file")
	}
	dir := t.TempDir()
	wide := make([]byte, 1<<16)
	tensors := []checkpoint.Tensor{
		{Name: "bools", DType: checkpoint.BOOL, Shape: []int{len(wide)}, Data: wide},
		{Name: "bytes", DType: checkpoint.F8_E4M3, Shape: []int{len(wide)}, Data: wide},
		{Name: "halves", DType: checkpoint.BF16, Shape: []int{len(wide) / 2}, Data: wide},
		{Name: "floats", DType: checkpoint.F32, Shape: []int{len(wide) / 4}, Data: wide},
		{Name: "complex", DType: checkpoint.C64, Shape: []int{len(wide) / 8}, Data: wide},
	}
	read := map[string]func(x checkpoint.Tensor) error{
		"bools":   func(x checkpoint.Tensor) error { _, err := x.Bools(); return err },
		"bytes":   func(x checkpoint.Tensor) error { _, err := x.U8s(); return err },
		"halves":  func(x checkpoint.Tensor) error { _, err := x.U16s(); return err },
		"floats":  func(x checkpoint.Tensor) error { _, err := x.F32s(); return err },
		"complex": func(x checkpoint.Tensor) error { _, err := x.C64s(); return err },
	}
	require.NoError(t, checkpoint.WriteDir(dir, tensors, nil, 0))
	path := filepath.Join(dir, "model.safetensors")
	d, err := checkpoint.OpenDir(dir)
	require.NoError(t, err)
	for x := range d.Tensors() {
		require.NoError(t, read[x.Name](x))
	}
	require.NoError(t, os.Truncate(path, 700))
	for x := range d.Tensors() {
		for what, err := range map[string]error{
			"accessor": read[x.Name](x),
			"bytes":    func() error { _, err := x.Bytes(); return err }(),
			"read":     func() error { _, err := x.ReadAt(make([]byte, 1), 1<<16-1); return err }(),
			"write":    checkpoint.Write(io.Discard, []checkpoint.Tensor{x}, nil),
		} {
			assert.ErrorIs(t, err, checkpoint.ErrRead, "%s of %s", what, x.Name)
			assert.ErrorContains(t, err, path)
			assert.ErrorContains(t, err, "tensor "+x.Name)
			assert.ErrorContains(t, err, "shrunk")
		}
	}
	x, _ := d.Tensor("floats")
	require.NoError(t, d.Close())
	_, err = x.F32s()
	assert.ErrorIs(t, err, checkpoint.ErrRead)
	assert.ErrorIs(t, err, os.ErrClosed)
}

func TestTensorReadAt(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, checkpoint.WriteDir(dir, []checkpoint.Tensor{bytesOf("a", 1, 2, 3), bytesOf("b", 4, 5), bytesOf("none")}, nil, 0))
	d, err := checkpoint.OpenDir(dir)
	require.NoError(t, err)
	defer d.Close()
	for _, name := range []string{"a", "b", "none"} {
		x, _ := d.Tensor(name)
		size, err := x.Size()
		require.NoError(t, err)
		b, err := x.Bytes()
		require.NoError(t, err)
		got, err := io.ReadAll(io.NewSectionReader(x, 0, size+10))
		require.NoError(t, err)
		assert.Equal(t, slices.Clone(b), got[:len(b):len(b)])
		p := make([]byte, 4)
		n, err := x.ReadAt(p, size)
		assert.Zero(t, n)
		assert.Equal(t, io.EOF, err)
		n, err = x.ReadAt(p, 0)
		assert.Equal(t, int(size), n, "a tensor ends before its neighbour")
		assert.Equal(t, io.EOF, err)
		_, err = x.ReadAt(p, -1)
		assert.Error(t, err)
	}
	small, err := checkpoint.Limits{Tensor: 2}.OpenDir(dir)
	require.NoError(t, err)
	defer small.Close()
	x, _ := small.Tensor("a")
	_, err = x.Bytes()
	assert.ErrorIs(t, err, checkpoint.ErrLimit)
	_, err = x.U8s()
	assert.ErrorIs(t, err, checkpoint.ErrLimit)
	x, _ = small.Tensor("b")
	_, err = x.U8s()
	assert.NoError(t, err)
}

// TestIndexRefused has what is wrong with an index, with the files a and b beside it, which
// have the tensors x and y, and y and z.
func TestIndexRefused(t *testing.T) {
	dir := t.TempDir()
	outside := filepath.Join(t.TempDir(), "outside.safetensors")
	for path, tensors := range map[string][]checkpoint.Tensor{
		filepath.Join(dir, "a"): {bytesOf("x", 1), bytesOf("y", 2)}, filepath.Join(dir, "b"): {bytesOf("y", 3), bytesOf("z", 4)}, outside: {bytesOf("x", 5)},
	} {
		require.NoError(t, checkpoint.WriteFile(path, tensors, nil))
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "folder"), 0o777))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	require.NoError(t, os.Symlink("folder", filepath.Join(dir, "to-folder")))
	require.NoError(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "linked")))
	path := filepath.Join(dir, "model.safetensors.index.json")
	for _, tt := range []struct {
		name, text, wants string
		err               error
	}{
		{"empty", ``, "the end of the index, wanted '{'", checkpoint.ErrFormat},
		{"an array", `[]`, "at byte 0 stands '[', wanted '{'", checkpoint.ErrFormat},
		{"no map", `{"metadata":{}}`, "no weight_map", checkpoint.ErrFormat},
		{"an empty map", `{"weight_map":{}}`, "names no files", checkpoint.ErrFormat},
		{"two maps", `{"weight_map":{"x":"a"},"weight_map":{"y":"a"}}`, "weight_map twice", checkpoint.ErrFormat},
		{"something behind", `{"weight_map":{"x":"a"}}1`, "wanted nothing more", checkpoint.ErrFormat},
		{"metadata unended", `{"weight_map":{"x":"a"},"metadata":{"x":[1,2`, "wanted ',' or ']'", checkpoint.ErrFormat},
		{"metadata of nonsense", `{"metadata":{"x":01},"weight_map":{"x":"a"}}`, "wanted ',' or '}'", checkpoint.ErrFormat},
		{"NaN", `{"metadata":{"x":NaN},"weight_map":{"x":"a"}}`, "wanted a value", checkpoint.ErrFormat},
		{"map of numbers", `{"weight_map":{"x":1}}`, `no file name for tensor "x"`, checkpoint.ErrFormat},
		{"tensor twice", `{"weight_map":{"x":"a","x":"a"}}`, `tensor "x" twice`, checkpoint.ErrFormat},
		{"tensor twice in two files", `{"weight_map":{"y":"a","\u0079":"b"}}`, `tensor "y" twice`, checkpoint.ErrFormat},
		{"another file's tensor", `{"weight_map":{"x":"a","z":"a"}}`, `tensor "z": the index says that it is in a, which lacks it`, checkpoint.ErrFormat},
		{"no file's tensor", `{"weight_map":{"longer than any":"a"}}`, `tensor "longer than any": the index says that it is in a`, checkpoint.ErrFormat},
		{"no such file", `{"weight_map":{"x":"c"}}`, filepath.Join(dir, "c") + ": ", fs.ErrNotExist},
		{"a folder", `{"weight_map":{"x":"folder"}}`, "no regular file", checkpoint.ErrFormat},
		{"a link to a folder", `{"weight_map":{"x":"to-folder"}}`, "no regular file", checkpoint.ErrFormat},
		{"a link to nothing", `{"weight_map":{"x":"dangling"}}`, "it is a symbolic link to nowhere", fs.ErrNotExist},
		{"a link to itself", `{"weight_map":{"x":"loop"}}`, filepath.Join(dir, "loop"), nil},
		{"above", `{"weight_map":{"x":"../outside.safetensors"}}`, `tensor "x": the index names the file "../outside.safetensors", which is no plain file name`, checkpoint.ErrFormat},
		{"in a folder", `{"weight_map":{"x":"folder/a"}}`, "no plain file name", checkpoint.ErrFormat},
		{"in this folder", `{"weight_map":{"x":"./a"}}`, "no plain file name", checkpoint.ErrFormat},
		{"absolute", `{"weight_map":{"x":"/etc/passwd"}}`, "no plain file name", checkpoint.ErrFormat},
		{"of Windows", `{"weight_map":{"x":"folder\\a"}}`, "no plain file name", checkpoint.ErrFormat},
		{"on a drive", `{"weight_map":{"x":"C:a"}}`, "no plain file name", checkpoint.ErrFormat},
		{"parent", `{"weight_map":{"x":".."}}`, "no plain file name", checkpoint.ErrFormat},
		{"itself", `{"weight_map":{"x":"."}}`, "no plain file name", checkpoint.ErrFormat},
		{"nameless", `{"weight_map":{"x":""}}`, "no plain file name", checkpoint.ErrFormat},
		{"with a zero", `{"weight_map":{"x":"a\u0000b"}}`, "no plain file name", checkpoint.ErrFormat},
	} {
		t.Run(tt.name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, []byte(tt.text), 0o600))
			_, err := checkpoint.OpenDir(dir)
			require.Error(t, err)
			assert.ErrorContains(t, err, tt.wants)
			assert.ErrorContains(t, err, path)
			if tt.err != nil {
				assert.ErrorIs(t, err, tt.err)
			}
		})
	}
	require.NoError(t, os.WriteFile(path, []byte(`{"weight_map":{"x":"linked","y":"b"},"metadata":{"total_size":2,"x":[-1.5e-3,null,true,false,"\ud83d\ude00"]}}  `), 0o600))
	d, err := checkpoint.OpenDir(dir)
	require.NoError(t, err)
	assert.Equal(t, []string{"x linked", "y b"}, names(d), "the index decides which y, and that there is no z")
	require.NoError(t, d.Close())

	_, err = checkpoint.Limits{Header: 20}.OpenDir(dir)
	assert.ErrorIs(t, err, checkpoint.ErrLimit)
	assert.ErrorContains(t, err, "at most 20 are allowed")

	require.NoError(t, os.Remove(path))
	_, err = checkpoint.OpenDir(dir)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, dir+": ")
	assert.ErrorContains(t, err, "neither model.safetensors nor model.safetensors.index.json")
	_, err = checkpoint.OpenDir(filepath.Join(dir, "none"))
	assert.ErrorIs(t, err, fs.ErrNotExist)
	_, err = checkpoint.OpenDir(outside)
	assert.Error(t, err)
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "model.safetensors")))
	_, err = checkpoint.OpenDir(dir)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.ErrorContains(t, err, "model.safetensors: ")
}

// TestBrokenDirs opens the directories of the reference data whose files do not fit together.
func TestBrokenDirs(t *testing.T) {
	for name, wants := range map[string]string{
		"missing-shard": "model-00001-of-00001.safetensors: ",
		"shard-outside": `the index names the file "../../outside.safetensors", which is no plain file name`,
	} {
		_, err := checkpoint.OpenDir(filepath.Join("testdata", "broken", name))
		assert.ErrorContains(t, err, wants, name)
		assert.ErrorContains(t, err, fmt.Sprintf("testdata/broken/%s/model.safetensors.index.json", name))
	}
}
