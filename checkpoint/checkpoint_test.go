package checkpoint_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestLevel(t *testing.T) { kerneltest.Level(t) }

// file is a file with this header and data, whatever they say.
func file(header string, data ...byte) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), data...)
}

func TestRefused(t *testing.T) {
	const a8 = `"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}`
	eight := make([]byte, 8)
	nested := strings.Repeat(`[`, 1<<20)
	tests := []struct {
		name, wants string
		file        []byte
	}{
		{"empty", "0 bytes long", nil},
		{"no room for the length", "3 bytes long", []byte{1, 2, 3}},
		{"header past the end", "runs past the end", file("{}")[:9]},
		{"header length 2^64-1", "runs past the end", append(bytes.Repeat([]byte{255}, 8), "{}"...)},
		{"empty header", "does not begin with '{'", file("")},
		{"white space first", "does not begin with '{'", file(" {}")},
		{"not JSON", "not JSON", file(`{"a": nope}`)},
		{"an array", "does not begin with '{'", file(`[]`)},
		{"unended", "the end of the header, wanted ',' or '}'", file(`{`+a8, eight...)},
		{"something behind", "wanted nothing more", file(`{`+a8+`}{`, eight...)},
		{"zeros behind", "wanted nothing more", file("{"+a8+"}\x00", eight...)},
		{"comma at the end", `wanted '"'`, file(`{`+a8+`,}`, eight...)},
		{"no colon", "wanted ':'", file(`{"a" {}}`)},
		{"unended string", "the end of the header", file(`{"a`)},
		{"unended escape", "the end of the header", file(`{"a\`)},
		{"bad escape", "the string at byte 2", file(`{"a\q":{}}`)},
		{"control character", "control character", file("{\"a\n\":{}}")},
		{"not UTF-8", "not UTF-8", file("{\"a\xff\":{}}")},
		{"entry is a number", `checkpoint: malformed safetensors: tensor "a": the header is not JSON of the form wanted: at byte 5 stands '7', wanted '{'`, file(`{"a":7}`)},
		{"entry is null", "wanted '{'", file(`{"a":null}`)},
		{"deep", `wanted '{'`, file(`{"a":` + nested)},
		{"deep shape", "wanted a whole number", file(`{"a":{"dtype":"U8","shape":` + nested)},
		{"tensor twice", `tensor "a" twice`, file(`{`+a8+`,`+a8+`}`, eight...)},
		{"tensor twice in disguise", `tensor "a" twice`, file(`{`+a8+`,"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[8,8]}}`, eight...)},
		{"key twice", `key "dtype" comes twice`, file(`{"a":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}`, eight...)},
		{"shape twice", `key "shape" comes twice`, file(`{"a":{"shape":[8],"shape":[8],"dtype":"U8","data_offsets":[0,8]}}`, eight...)},
		{"offsets twice", `key "data_offsets" comes twice`, file(`{"a":{"data_offsets":[0,8],"data_offsets":[0,8]}}`, eight...)},
		{"unknown key", `unknown key "stride"`, file(`{"a":{"stride":1}}`)},
		{"no dtype", "dtype is missing", file(`{"a":{"shape":[8],"data_offsets":[0,8]}}`, eight...)},
		{"no shape", "shape is missing", file(`{"a":{"dtype":"U8","data_offsets":[0,8]}}`, eight...)},
		{"no offsets", "data_offsets is missing", file(`{"a":{"dtype":"U8","shape":[8]}}`, eight...)},
		{"unknown dtype", `dtype "F7" does not exist`, file(`{"a":{"dtype":"F7","shape":[8],"data_offsets":[0,8]}}`, eight...)},
		{"empty dtype", `dtype "" does not exist`, file(`{"a":{"dtype":"","shape":[8],"data_offsets":[0,8]}}`, eight...)},
		{"lower case dtype", `dtype "u8" does not exist`, file(`{"a":{"dtype":"u8","shape":[8],"data_offsets":[0,8]}}`, eight...)},
		{"dtype is a number", `wanted '"'`, file(`{"a":{"dtype":8}}`)},
		{"negative dimension", "wanted a whole number", file(`{"a":{"dtype":"U8","shape":[-8],"data_offsets":[0,8]}}`, eight...)},
		{"fraction", "wanted ',' or ']'", file(`{"a":{"dtype":"U8","shape":[8.0],"data_offsets":[0,8]}}`, eight...)},
		{"exponent", "wanted ',' or ']'", file(`{"a":{"dtype":"U8","shape":[8e0],"data_offsets":[0,8]}}`, eight...)},
		{"leading zero", "leading zeros", file(`{"a":{"dtype":"U8","shape":[08],"data_offsets":[0,8]}}`, eight...)},
		{"number past 64 bits", "overflows 64 bits", file(`{"a":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,8]}}`, eight...)},
		{"dimension past 63 bits", "overflows 63 bits", file(`{"a":{"dtype":"U8","shape":[18446744073709551615],"data_offsets":[0,8]}}`, eight...)},
		{"product past 64 bits", "the product of shape [8589934592, 8589934592] overflows", file(`{"a":{"dtype":"F32","shape":[8589934592,8589934592],"data_offsets":[0,8]}}`, eight...)},
		{"product past 64 bits beside a zero", "overflows 64 bits", file(`{"a":{"dtype":"F32","shape":[0,8589934592,8589934592],"data_offsets":[0,0]}}`)},
		{"bits past 64 bits", "overflows 64 bits", file(`{"a":{"dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,8]}}`, eight...)},
		{"65 dimensions", "more than 64 values", file(`{"a":{"dtype":"U8","shape":[1` + strings.Repeat(",1", 64) + `]}}`)},
		{"half a byte", "no whole number of bytes", file(`{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}`, 0, 0)},
		{"one offset", "data_offsets has 1 values, wanted 2", file(`{"a":{"data_offsets":[0]}}`)},
		{"three offsets", "more than 2 values", file(`{"a":{"data_offsets":[0,8,8]}}`)},
		{"backwards", "run backwards", file(`{"a":{"dtype":"U8","shape":[8],"data_offsets":[8,0]}}`, eight...)},
		{"shape against bytes", "shape [3] F32 is 12 bytes, data_offsets [0, 8] say 8", file(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, eight...)},
		{"overlap", `tensors "a" and "b" overlap`, file(`{"b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]},`+a8+`}`, eight...)},
		{"empty one inside", `tensors "a" and "b" overlap`, file(`{"b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]},`+a8+`}`, eight...)},
		{"gap", `bytes 8 to 9 of the data, before tensor "b", belong to no tensor`, file(`{`+a8+`,"b":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}}`, make([]byte, 10)...)},
		{"gap at the front", `bytes 0 to 1 of the data`, file(`{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 0, 0)},
		{"truncated", `ends in the middle of tensor "a"`, file(`{`+a8+`}`, eight[:7]...)},
		{"trailing", `24 bytes follow the last tensor`, file(`{`+a8+`}`, make([]byte, 32)...)},
		{"data without tensors", `8 bytes follow`, file(`{}`, eight...)},
		{"offsets near 2^64", "ends in the middle", file(`{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"b":{"dtype":"U8","shape":[1152921504606846976],"data_offsets":[0,1152921504606846976]}}`)},
		{"metadata is null", "wanted '{'", file(`{"__metadata__":null}`)},
		{"metadata twice", "__metadata__ twice", file(`{"__metadata__":{},"__metadata__":{}}`)},
		{"metadata key twice", `metadata has key "x" twice`, file(`{"__metadata__":{"x":"1","x":"1"}}`)},
		{"metadata number", `metadata key "x" is not a string`, file(`{"__metadata__":{"x":1}}`)},
		{"metadata object", `metadata key "x" is not a string`, file(`{"__metadata__":{"x":{}}}`)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := checkpoint.Parse(tt.file)
			require.ErrorIs(t, err, checkpoint.ErrFormat)
			assert.ErrorContains(t, err, tt.wants)
			path := filepath.Join(t.TempDir(), "x.safetensors")
			require.NoError(t, os.WriteFile(path, tt.file, 0o600))
			_, opened := checkpoint.Open(path)
			require.Error(t, opened)
			assert.Equal(t, path+": "+err.Error(), opened.Error())
		})
	}
}

// TestBroken reads the malformed files that belong to the project's reference data.
func TestBroken(t *testing.T) {
	for name, wants := range map[string]string{
		"dtype-unknown":     `dtype "F7" does not exist`,
		"empty":             "0 bytes",
		"header-not-json":   "not JSON",
		"header-past-end":   "runs past the end of the file",
		"overlap":           `tensors "a" and "b" overlap`,
		"shape-bytes":       "shape [3] F32 is 12 bytes, data_offsets [0, 16] say 16",
		"shape-overflow":    "overflows 64 bits",
		"short-length":      "3 bytes",
		"trailing":          "24 bytes follow the last tensor",
		"../merge_one_part": "",
	} {
		f, err := checkpoint.Open(filepath.Join("testdata", "broken", name+".safetensors"))
		if wants == "" {
			require.NoError(t, err, name)
			require.NoError(t, f.Close())
			continue
		}
		assert.ErrorIs(t, err, checkpoint.ErrFormat, name)
		assert.ErrorContains(t, err, wants, name)
	}
}

func TestOpenGolden(t *testing.T) {
	f, err := checkpoint.Open("testdata/merge_one_part.safetensors")
	require.NoError(t, err)
	assert.Equal(t, "merge", f.Metadata()["op"])
	assert.ElementsMatch(t, []string{"parts.output", "parts.lse", "expect.output", "expect.lse"}, f.Names())
	parts, ok := f.Tensor("parts.output")
	require.True(t, ok)
	assert.Equal(t, "parts.output F32 [1, 4, 2, 8]", parts.String())
	values, err := parts.F32s()
	require.NoError(t, err)
	assert.Len(t, values, 64)
	_, ok = f.Tensor("nothing")
	assert.False(t, ok)

	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	_, ok = f.Tensor("parts.output")
	assert.False(t, ok)
	for t2 := range f.Tensors() {
		t.Fatalf("%v after Close", t2)
	}
}

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	dir := t.TempDir()
	_, err := checkpoint.Open(filepath.Join(dir, "absent"))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.Equal(t, 1, strings.Count(err.Error(), "absent"), "the path once: %v", err)
	_, err = checkpoint.Open(dir)
	assert.ErrorIs(t, err, checkpoint.ErrFormat)
	assert.ErrorContains(t, err, "no regular file")
}

func TestLimit(t *testing.T) {
	header := `{"__metadata__":{"x":"` + strings.Repeat("x", 100) + `"}}`
	_, err := checkpoint.Limits{Header: 50}.Parse(file(header))
	assert.ErrorIs(t, err, checkpoint.ErrLimit)
	assert.ErrorContains(t, err, fmt.Sprintf("%d bytes long, at most 50", len(header)))
	_, err = checkpoint.Limits{Header: int64(len(header))}.Parse(file(header))
	assert.NoError(t, err)

	path := filepath.Join(t.TempDir(), "long.safetensors")
	length := binary.LittleEndian.AppendUint64(nil, 32<<20+1)
	require.NoError(t, os.WriteFile(path, length, 0o600))
	require.NoError(t, os.Truncate(path, 40<<20))
	_, err = checkpoint.Open(path)
	assert.ErrorIs(t, err, checkpoint.ErrLimit, "32 MB by default")
}

func TestEmptyFileOfNoTensors(t *testing.T) {
	f, err := checkpoint.Parse(file("{}  \n\t\r "))
	require.NoError(t, err)
	assert.Empty(t, f.Names())
	assert.Empty(t, f.Metadata())
}

func TestOrderAndEmptyTensors(t *testing.T) {
	f, err := checkpoint.Parse(file(`{
		"z": {"shape": [0, 9], "data_offsets": [3, 3], "dtype": "F32"},
		"b": {"data_offsets": [1, 3], "dtype": "F4", "shape": [4]},
		"__metadata__": {"k\"\u00e9\ud83d\ude00": "v\\"},
		"scalar": {"dtype": "BOOL", "shape": [], "data_offsets": [0, 1]},
		"y": {"shape": [0], "data_offsets": [0, 0], "dtype": "F64"}
	}`, 1, 2, 3))
	require.NoError(t, err)
	assert.Equal(t, []string{"z", "b", "scalar", "y"}, f.Names())
	assert.Equal(t, map[string]string{`k"é😀`: `v\`}, f.Metadata())
	b, _ := f.Tensor("b")
	codes, err := b.U8s()
	require.NoError(t, err)
	assert.Equal(t, []byte{2, 3}, codes)
	scalar, _ := f.Tensor("scalar")
	bools, err := scalar.Bools()
	require.NoError(t, err)
	assert.Equal(t, []bool{true}, bools)
	z, _ := f.Tensor("z")
	floats, err := z.F32s()
	require.NoError(t, err)
	assert.Empty(t, floats)
}

// TestAccessors reads every type at every alignment, and with every accessor of another type.
func TestAccessors(t *testing.T) {
	inf := float32(math.Inf(-1))
	all := []struct {
		dtype checkpoint.DType
		want  any
		get   func(checkpoint.Tensor) (any, error)
	}{
		{checkpoint.BOOL, []bool{true, false}, func(t checkpoint.Tensor) (any, error) { return t.Bools() }},
		{checkpoint.U8, []byte{7, 255}, func(t checkpoint.Tensor) (any, error) { return t.U8s() }},
		{checkpoint.I8, []int8{7, -1}, func(t checkpoint.Tensor) (any, error) { return t.I8s() }},
		{checkpoint.I16, []int16{7, -2}, func(t checkpoint.Tensor) (any, error) { return t.I16s() }},
		{checkpoint.BF16, []uint16{0x3F80, 0xFFFF}, func(t checkpoint.Tensor) (any, error) { return t.U16s() }},
		{checkpoint.I32, []int32{7, -3}, func(t checkpoint.Tensor) (any, error) { return t.I32s() }},
		{checkpoint.U32, []uint32{7, 1 << 31}, func(t checkpoint.Tensor) (any, error) { return t.U32s() }},
		{checkpoint.F32, []float32{1.5, inf}, func(t checkpoint.Tensor) (any, error) { return t.F32s() }},
		{checkpoint.C64, []complex64{complex(1.5, -2), complex(0, inf)}, func(t checkpoint.Tensor) (any, error) { return t.C64s() }},
		{checkpoint.F64, []float64{1.5, -7}, func(t checkpoint.Tensor) (any, error) { return t.F64s() }},
		{checkpoint.I64, []int64{7, -4}, func(t checkpoint.Tensor) (any, error) { return t.I64s() }},
		{checkpoint.U64, []uint64{7, 1 << 63}, func(t checkpoint.Tensor) (any, error) { return t.U64s() }},
	}
	for _, from := range all {
		data, err := binary.Append(nil, binary.LittleEndian, from.want)
		require.NoError(t, err)
		for shift := range 8 {
			shape := checkpoint.Shape{2}
			header := fmt.Sprintf(`{"pad":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]},"t":{"dtype":"%v","shape":%v,"data_offsets":[%d,%d]}}`,
				shift, shift, from.dtype, shape, shift, shift+len(data))
			f, err := checkpoint.Parse(file(header, append(make([]byte, shift), data...)...))
			require.NoError(t, err)
			tensor, ok := f.Tensor("t")
			require.True(t, ok)
			for _, by := range all {
				got, err := by.get(tensor)
				if by.dtype == from.dtype {
					require.NoError(t, err)
					assert.Equal(t, from.want, got)
				} else {
					assert.ErrorIs(t, err, checkpoint.ErrDType)
				}
			}
		}
	}
	_, err := checkpoint.Tensor{Name: "t", DType: checkpoint.BOOL, Shape: []int{1}, Data: []byte{2}}.Bools()
	assert.ErrorIs(t, err, checkpoint.ErrFormat)
}

func TestDTypes(t *testing.T) {
	names := strings.Fields("BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ F4 F6_E2M3 F6_E3M2 I16 U16 F16 BF16 I32 U32 F32 C64 F64 I64 U64")
	for _, name := range names {
		d, err := checkpoint.ParseDType(name)
		require.NoError(t, err)
		assert.Equal(t, name, d.String())
		assert.Positive(t, d.Bits())
		shape := checkpoint.Shape{4, 2}
		var b bytes.Buffer
		require.NoError(t, checkpoint.Write(&b, []checkpoint.Tensor{{Name: "x", DType: d, Shape: shape, Data: make([]byte, d.Bits())}}, nil))
		f, err := checkpoint.Parse(b.Bytes())
		require.NoError(t, err)
		x, _ := f.Tensor("x")
		assert.Equal(t, "x "+name+" [4, 2]", x.String())
	}
	for _, name := range []string{"", "F7", "f32", "F32 "} {
		_, err := checkpoint.ParseDType(name)
		assert.ErrorIs(t, err, checkpoint.ErrDType)
	}
	assert.Equal(t, `"\x1b[31m\n" U8 []`, checkpoint.Tensor{Name: "\x1b[31m\n", DType: checkpoint.U8}.String(), "what terminals obey")
	assert.Equal(t, "DType(0)", checkpoint.DType(0).String())
	assert.Equal(t, "DType(200)", checkpoint.DType(200).String())
}

func TestWrite(t *testing.T) {
	tensors := []checkpoint.Tensor{
		{Name: "byte\n\"é", DType: checkpoint.U8, Shape: []int{3}, Data: []byte{1, 2, 3}},
		{Name: "half", DType: checkpoint.F16, Shape: []int{1}, Data: []byte{0, 0x3C}},
		{Name: "none", DType: checkpoint.F32, Shape: []int{0, 5}},
		{Name: "wide", DType: checkpoint.F64, Shape: nil, Data: make([]byte, 8)},
	}
	metadata := map[string]string{"b": "<2>", "a": "1"}
	var one, two bytes.Buffer
	require.NoError(t, checkpoint.Write(&one, tensors, metadata))
	require.NoError(t, checkpoint.Write(&two, tensors, metadata))
	assert.Equal(t, one.Bytes(), two.Bytes())
	n := binary.LittleEndian.Uint64(one.Bytes())
	assert.Zero(t, n%8)
	assert.True(t, json.Valid(one.Bytes()[8:8+n]))

	f, err := checkpoint.Parse(one.Bytes())
	require.NoError(t, err)
	assert.Equal(t, []string{"wide", "none", "half", "byte\n\"é"}, f.Names())
	assert.Equal(t, metadata, f.Metadata())
	for _, want := range tensors {
		got, ok := f.Tensor(want.Name)
		require.True(t, ok)
		assert.Equal(t, want.DType, got.DType)
		assert.Equal(t, want.Shape, got.Shape)
		assert.True(t, bytes.Equal(want.Data, got.Data))
	}
}

func TestWriteRefuses(t *testing.T) {
	u8 := func(name string, n int) checkpoint.Tensor {
		return checkpoint.Tensor{Name: name, DType: checkpoint.U8, Shape: []int{n}, Data: make([]byte, max(n, 0))}
	}
	for name, tensors := range map[string][]checkpoint.Tensor{
		"twice":         {u8("a", 1), u8("a", 1)},
		"reserved":      {u8("__metadata__", 1)},
		"not UTF-8":     {u8("\xff", 1)},
		"no type":       {{Name: "a"}},
		"negative":      {u8("a", -1)},
		"wrong length":  {{Name: "a", DType: checkpoint.U8, Shape: []int{2}, Data: make([]byte, 3)}},
		"half a byte":   {{Name: "a", DType: checkpoint.F4, Shape: []int{1}, Data: make([]byte, 1)}},
		"overflow":      {{Name: "a", DType: checkpoint.U8, Shape: []int{1 << 40, 1 << 40}}},
		"overflow bits": {{Name: "a", DType: checkpoint.F32, Shape: []int{1 << 62}}},
	} {
		var b bytes.Buffer
		assert.ErrorIs(t, checkpoint.Write(&b, tensors, nil), checkpoint.ErrWrite, name)
		assert.Zero(t, b.Len(), name)
	}
	assert.ErrorIs(t, checkpoint.Write(&bytes.Buffer{}, nil, map[string]string{"a": "\xff"}), checkpoint.ErrWrite)
	fails := errors.New("full")
	assert.ErrorIs(t, checkpoint.Write(failing{fails}, nil, nil), fails)
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
