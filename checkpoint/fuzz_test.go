package checkpoint_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/stretchr/testify/require"
)

// FuzzParse demands of anything that passes: it is JSON for Go's own reader too, its tensors
// tile the data, and written again it says the same.
func FuzzParse(f *testing.F) {
	paths, err := filepath.Glob("testdata/broken/*.safetensors")
	require.NoError(f, err)
	for _, path := range append(paths, "testdata/merge_one_part.safetensors") {
		b, err := os.ReadFile(path)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add(file(`{"__metadata__":{"\u00e9":"\\"},"a":{"dtype":"F4","shape":[2,1],"data_offsets":[0,1]},"b":{"dtype":"I16","shape":[],"data_offsets":[1,3]}}  `, 1, 2, 3))
	f.Add(file(`{"\ud83d\ude00é":{"dtype":"U8","shape":[0,1152921504606846975],"data_offsets":[0,0]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := checkpoint.Parse(b)
		if err != nil {
			require.True(t, errors.Is(err, checkpoint.ErrFormat) || errors.Is(err, checkpoint.ErrLimit), "%v", err)
			return
		}
		n := binary.LittleEndian.Uint64(b)
		require.True(t, json.Valid(b[8:8+n]))
		var all map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(b[8:8+n], &all))
		delete(all, "__metadata__")
		require.Len(t, all, file.Len())
		var tensors []checkpoint.Tensor
		total := 0
		for tensor := range file.Tensors() {
			require.Contains(t, all, tensor.Name)
			tensors = append(tensors, tensor)
			total += len(tensor.Data)
			tensor.Bools()
			tensor.I8s()
			tensor.I16s()
			tensor.U16s()
			tensor.I32s()
			tensor.F32s()
			tensor.F64s()
			tensor.C64s()
			tensor.I64s()
		}
		require.Equal(t, len(b)-8-int(n), total)
		var again bytes.Buffer
		require.NoError(t, checkpoint.Write(&again, tensors, file.Metadata()))
		second, err := checkpoint.Parse(again.Bytes())
		require.NoError(t, err)
		require.Equal(t, file.Metadata(), second.Metadata())
		for _, want := range tensors {
			got, ok := second.Tensor(want.Name)
			require.True(t, ok)
			require.Equal(t, want.String(), got.String())
			require.True(t, bytes.Equal(want.Data, got.Data))
		}
	})
}

// FuzzIndex demands of an index that passes: Go's own reader finds the same tensors in the
// same files, which have them.
func FuzzIndex(f *testing.F) {
	for _, path := range []string{"missing-shard", "shard-outside"} {
		b, err := os.ReadFile(filepath.Join("testdata", "broken", path, "model.safetensors.index.json"))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte(`{"metadata":{"total_size":-1.5e3,"x":[null,true,{"y":"\n"}]},"weight_map":{"x":"a","y":"b","z":"b"}}`))
	f.Add([]byte(`{"weight_map":{"y":"a","\u0079":"b","x":"./a"}}`))
	open := map[string]*checkpoint.File{}
	for name, tensors := range map[string][]checkpoint.Tensor{"a": {bytesOf("x", 1), bytesOf("y", 2)}, "b": {bytesOf("y", 3), bytesOf("z", 4)}} {
		var b bytes.Buffer
		require.NoError(f, checkpoint.Write(&b, tensors, nil))
		file, err := checkpoint.Parse(b.Bytes())
		require.NoError(f, err)
		open[name] = file
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := checkpoint.OpenIndex(b, open)
		if err != nil {
			require.True(t, errors.Is(err, checkpoint.ErrFormat) || errors.Is(err, checkpoint.ErrLimit) || errors.Is(err, fs.ErrNotExist), "%v", err)
			return
		}
		require.True(t, json.Valid(b))
		var keys map[string]json.RawMessage // by the very name, which a struct's field is not
		require.NoError(t, json.Unmarshal(b, &keys))
		var weightMap map[string]string
		require.NoError(t, json.Unmarshal(keys["weight_map"], &weightMap))
		require.Len(t, weightMap, d.Len())
		for name, in := range weightMap {
			got, ok := d.Tensor(name)
			require.True(t, ok)
			want, ok := open[in].Tensor(name)
			require.True(t, ok)
			require.Equal(t, want.Data, got.Data)
		}
	})
}
