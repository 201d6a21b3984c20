package fp8_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/fp8"
	"github.com/lamina-ml/lamina/internal/kerneltest"
)

// packCase is a kind of weights; every path of the layout has one.
type packCase struct {
	name                  string
	elem                  fp8.Elem
	scales                string
	batch, n, k           int
	blockRows, blockCols  int
	step                  int
	nan                   bool // one code is NaN
	wantWord, wantScaling uint32
	wantFinite            uint32
}

var packCases = []packCase{
	{name: "words", elem: fp8.ElemE4M3, scales: "f32", batch: 2, n: 37, k: 136, blockRows: 24, blockCols: 64, wantWord: 4, wantScaling: 1, wantFinite: 1},
	{name: "words with NaN", elem: fp8.ElemE4M3, scales: "bf16", batch: 2, n: 37, k: 136, blockRows: 24, blockCols: 64, nan: true, wantWord: 4, wantScaling: 1},
	{name: "odd K", elem: fp8.ElemE4M3, scales: "e8m0", batch: 1, n: 16, k: 131, blockRows: 128, blockCols: 128, wantWord: 1, wantScaling: 1},
	{name: "K below a step", elem: fp8.ElemE4M3, scales: "f32", batch: 3, n: 5, k: 8, blockRows: 128, blockCols: 128, wantWord: 4, wantScaling: 1, wantFinite: 1},
	{name: "folded", elem: fp8.ElemE4M3, scales: "f32", batch: 2, n: 33, k: 30, blockRows: 4, blockCols: 1, wantWord: 1, wantScaling: 2},
	{name: "step of 12", elem: fp8.ElemE4M3, scales: "f32", batch: 1, n: 3, k: 7, blockRows: 4, blockCols: 12, wantWord: 1, wantScaling: 2},
	{name: "no scales", elem: fp8.ElemE4M3, scales: "none", batch: 2, n: 20, k: 44, wantWord: 1},
	{name: "E5M2", elem: fp8.ElemE5M2, scales: "f32", batch: 1, n: 18, k: 70, blockRows: 9, blockCols: 32, wantWord: 1, wantScaling: 1},
	{name: "E4M3FNUZ", elem: fp8.ElemE4M3FNUZ, scales: "f32", batch: 1, n: 18, k: 70, blockRows: 9, blockCols: 32, wantWord: 1, wantScaling: 1},
	{name: "E5M2FNUZ", elem: fp8.ElemE5M2FNUZ, scales: "f32", batch: 1, n: 18, k: 70, blockRows: 9, blockCols: 32, wantWord: 1, wantScaling: 1},
	{name: "bf16", elem: fp8.ElemBF16, batch: 2, n: 17, k: 33, wantWord: 1},
	{name: "f16", elem: fp8.ElemF16, batch: 2, n: 17, k: 33, wantWord: 1},
	{name: "f32", elem: fp8.ElemF32, batch: 2, n: 31, k: 29, wantWord: 1},
}

func (c packCase) matrices(t testing.TB) []fp8.Matrix {
	t.Helper()
	r := newRand(uint64(len(c.name)))
	var ms []fp8.Matrix
	for range c.batch {
		if c.nan {
			codes := someCodes(r, c.elem, c.n*c.k)
			codes[len(codes)/2] = 0xFF
			scales := someScales(r, c.scales, blocks(c.n, c.blockRows)*blocks(c.k, c.blockCols))
			m, err := fp8.New(c.elem, c.n, c.k, codes, scales, c.blockRows, c.blockCols)
			require.NoError(t, err)
			ms = append(ms, m)
			continue
		}
		ms = append(ms, someMatrix(t, r, c.elem, c.scales, c.n, c.k, c.blockRows, c.blockCols))
	}
	return ms
}

func (c packCase) pack(t testing.TB) *fp8.Packed {
	t.Helper()
	p, err := fp8.Pack(c.matrices(t), fp8.PackOptions{Step: c.step})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func file(t testing.TB, p *fp8.Packed) []byte {
	t.Helper()
	var b bytes.Buffer
	n, err := p.WriteTo(&b)
	require.NoError(t, err)
	require.EqualValues(t, b.Len(), n)
	require.Equal(t, fp8.PackedHeader+p.Bytes(), n)
	return b.Bytes()
}

func read(b, into []byte) (*fp8.Packed, error) {
	return fp8.ReadPacked(bytes.NewReader(b), int64(len(b)), into)
}

// aligned are n bytes of 0xFF that begin at a multiple of 64, and one more byte.
func aligned(n int64) []byte {
	b := bytes.Repeat([]byte{0xFF}, int(n)+65)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & 63)
	return b[skip:][:n+1]
}

// sameProduct fails unless two weights give the same bits.
func sameProduct(t testing.TB, want, got *fp8.Packed) {
	t.Helper()
	require.Equal(t, [3]int{want.Batch(), want.N(), want.K()}, [3]int{got.Batch(), got.N(), got.K()})
	require.Equal(t, want.Bytes(), got.Bytes())
	require.Equal(t, want.Scaled(), got.Scaled())
	require.Equal(t, fp8.Decodes(want), fp8.Decodes(got))
	const m = 3
	x := normal(newRand(5), want.Batch()*m*want.K(), 1)
	var out [2][]float32
	for i, p := range []*fp8.Packed{want, got} {
		out[i] = make([]float32, p.Batch()*m*p.N())
		s := fp8.Shape{M: m, LdX: p.K(), StrideX: m * p.K(), LdY: p.N(), StrideY: m * p.N()}
		require.NoError(t, p.Mul(context.Background(), nil, out[i], fp8.RowsF32(x), s, fp8.Product{}))
	}
	for i := range out[0] {
		require.True(t, kerneltest.SameBits(out[0][i], out[1][i]), "y[%d] is %v, want %v", i, out[1][i], out[0][i])
	}
}

// TestPackInto: packed into the caller's memory, whatever was in it, weights are what
// they are in their own, and nothing beyond PackedBytes is touched.
func TestPackInto(t *testing.T) {
	for _, c := range packCases {
		t.Run(c.name, func(t *testing.T) {
			want := c.pack(t)
			ms, opt := c.matrices(t), fp8.PackOptions{Step: c.step}
			n, err := fp8.PackedBytes(ms, opt)
			require.NoError(t, err)
			require.Equal(t, want.Bytes(), n)
			opt.Into = aligned(n)
			got, err := fp8.Pack(ms, opt)
			require.NoError(t, err)
			require.Equal(t, byte(0xFF), opt.Into[n], "beyond the end")
			sameProduct(t, want, got)
			require.Equal(t, file(t, want), file(t, got))
			require.Equal(t, file(t, want)[fp8.PackedHeader:], opt.Into[:n])
			before := slices.Clone(opt.Into)
			require.NoError(t, got.Close())
			require.NoError(t, got.Close())
			require.Equal(t, before, opt.Into, "Close leaves the caller's memory alone")
			require.ErrorIs(t, got.Acquire(), fp8.ErrClosed)
		})
	}
}

func TestPackIntoErrors(t *testing.T) {
	c := packCases[0]
	ms := c.matrices(t)
	n, err := fp8.PackedBytes(ms, fp8.PackOptions{})
	require.NoError(t, err)
	whole := aligned(n)
	b := file(t, c.pack(t))
	for says, into := range map[string][]byte{
		fmt.Sprintf("Into has %d bytes, want at least %d", n-1, n): whole[:n-1],
		"Into has 0 bytes":   {},
		"want a multiple of": whole[1:],
	} {
		_, err := fp8.Pack(ms, fp8.PackOptions{Into: into})
		require.ErrorIs(t, err, fp8.ErrShape)
		require.ErrorContains(t, err, says)
		_, err = read(b, into)
		require.ErrorIs(t, err, fp8.ErrShape)
		require.ErrorContains(t, err, says)
	}
	for _, err := range []error{
		second(fp8.PackedBytes(nil, fp8.PackOptions{})),
		second(fp8.PackedBytes([]fp8.Matrix{{}}, fp8.PackOptions{})),
	} {
		require.ErrorIs(t, err, fp8.ErrShape)
	}
	require.ErrorIs(t, second(fp8.PackedBytes(ms, fp8.PackOptions{Step: 7})), fp8.ErrStep)
}

func second[T any](_ T, err error) error { return err }

// TestPackedFile: what is read back gives the bits of what was written, and the same
// file again; its header says what these weights are.
func TestPackedFile(t *testing.T) {
	for _, c := range packCases {
		t.Run(c.name, func(t *testing.T) {
			want := c.pack(t)
			b := file(t, want)
			u32 := func(at int) uint32 { return binary.LittleEndian.Uint32(b[at:]) }
			require.Equal(t, []uint32{1, 16, uint32(c.elem), c.wantScaling, c.wantWord, c.wantFinite},
				[]uint32{u32(8), u32(12), u32(16), u32(20), u32(24), u32(28)})
			into := aligned(want.Bytes())
			for _, memory := range [][]byte{nil, into} {
				got, err := read(b, memory)
				require.NoError(t, err)
				sameProduct(t, want, got)
				require.Equal(t, b, file(t, got))
				require.NoError(t, got.Close())
				require.ErrorIs(t, second(got.WriteTo(io.Discard)), fp8.ErrClosed)
			}
			require.Equal(t, byte(0xFF), into[want.Bytes()], "beyond the end")
		})
	}
}

// reseal makes the checksums right again.
func reseal(b []byte) []byte {
	if len(b) >= fp8.PackedHeader {
		table := crc64.MakeTable(crc64.ECMA)
		binary.LittleEndian.PutUint64(b[96:], crc64.Checksum(b[fp8.PackedHeader:], table))
		binary.LittleEndian.PutUint64(b[120:], crc64.Checksum(b[:120], table))
	}
	return b
}

// TestPackedFileDamage flips every byte and cuts the file at every length.
func TestPackedFileDamage(t *testing.T) {
	c := packCases[0]
	c.batch, c.n, c.k = 1, 5, 36
	b := file(t, c.pack(t))
	for at := range b {
		damaged := slices.Clone(b)
		damaged[at] ^= 0x10
		_, err := read(damaged, nil)
		require.ErrorIs(t, err, fp8.ErrPacked, "byte %d", at)
		part := "payload"
		switch {
		case at < 8:
			part = "magic"
		case at < 12:
			part = "version"
		case at < fp8.PackedHeader:
			part = "checksum of the header"
		}
		require.ErrorContains(t, err, part, "byte %d", at)
	}
	for n := range b {
		_, err := read(b[:n], nil)
		require.ErrorIs(t, err, fp8.ErrPacked, "%d bytes", n)
		_, err = fp8.ReadPacked(bytes.NewReader(b[:n]), int64(len(b)), nil)
		require.ErrorIs(t, err, fp8.ErrPacked, "%d bytes", n)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF, "%d bytes", n)
	}
	_, err := read(append(slices.Clone(b), 0), nil)
	require.ErrorIs(t, err, fp8.ErrPacked)
	require.ErrorContains(t, err, "size is")
	_, err = fp8.ReadPacked(bytes.NewReader(b), -1, nil)
	require.ErrorIs(t, err, fp8.ErrPacked)
}

// TestPackedFileFields writes every field wrong under right checksums.
func TestPackedFileFields(t *testing.T) {
	base := packCases[0] // 2 matrices of 37x136 in words, a step of 64
	nan := math.Float32bits(float32(math.NaN()))
	for name, c := range map[string]struct {
		of    packCase
		spoil func(b []byte)
		says  string
	}{
		"elem":             {base, put32(16, 7), "elem is 7"},
		"another elem":     {base, put32(16, uint32(fp8.ElemE5M2)), "word is 4, want 1"},
		"wider elem":       {base, put32(16, uint32(fp8.ElemBF16)), "word is"},
		"scaling":          {base, put32(20, 3), "scaling is 3"},
		"unscaled":         {base, put32(20, 0), "step is 64, want 0 to 0"},
		"folded":           {base, put32(20, 2), "step is 64, want 1 to 15"},
		"lanes":            {base, put32(12, 8), "lanes is 8, want 16"},
		"word":             {base, put32(24, 1), "word is 1, want 4"},
		"finite 2":         {base, put32(28, 2), "finite is 2"},
		"finite denied":    {base, put32(28, 0), "finite is false, want true"},
		"finite claimed":   {packCases[1], put32(28, 1), "finite is true, want false"},
		"finite of others": {packCases[2], put32(28, 1), "finite is true, want false"},
		"batch 0":          {base, put64(32, 0), "batch is 0"},
		"batch huge":       {base, put64(32, 1<<63), "batch is 9223372036854775808"},
		"N 0":              {base, put64(40, 0), "N is 0"},
		"N huge":           {base, put64(40, math.MaxUint64), "N is"},
		"N beyond":         {base, put64(40, math.MaxInt64), "more than an int counts"},
		"N more":           {base, put64(40, 49), "codes is"},
		"N less":           {base, put64(40, 36), "lanes past N"},
		"K 0":              {base, put64(48, 0), "K is 0"},
		"K beyond":         {base, put64(48, math.MaxInt64), "more than an int counts"},
		"K more":           {base, put64(48, 140), "codes is"},
		"all beyond":       {base, func(b []byte) { put64(32, 1<<31)(b); put64(40, 1<<31)(b); put64(48, 1<<31)(b) }, "more than an int counts"},
		"step 0":           {base, put64(56, 0), "step is 0, want 16 to 136"},
		"step short":       {base, put64(56, 15), "step is 15"},
		"step long":        {base, put64(56, 137), "step is 137"},
		"step huge":        {base, put64(56, 1<<63), "step is"},
		"groups":           {base, put64(64, 4), "groups is 4, want 3"},
		"codes":            {base, put64(72, 64), "codes is 64"},
		"scales":           {base, put64(80, 64), "scales is 64"},
		"payload":          {base, put64(88, 1<<40), "payload is"},
		"unused":           {base, put64(104, 1), "unused is 1, want 0"},
		"unused too":       {base, put64(112, 1), "unused is 1, want 0"},
		"one more byte":    {packCases[6], put64(40, 10), "codes is"},
		"scale NaN":        {base, lastScaleOf(nan), "is NaN, want a finite number"},
		"scale Inf":        {base, lastScaleOf(math.Float32bits(float32(math.Inf(1)))), "is +Inf, want a finite number"},
		"scale negative":   {base, lastScaleOf(math.Float32bits(-1)), "is -1, want a finite number"},
		"scale past N":     {base, lastScaleOf(math.Float32bits(1)), "lanes past N"},
		"code past N":      {base, func(b []byte) { b[fp8.PackedHeader+3*136*16-1] = 1 }, "lanes past N"},
		"between":          {packCases[2], func(b []byte) { b[fp8.PackedHeader+131*16] = 1 }, "between codes and scales"},
	} {
		t.Run(name, func(t *testing.T) {
			b := file(t, c.of.pack(t))
			_, err := read(reseal(b), nil)
			require.NoError(t, err)
			c.spoil(b)
			_, err = read(reseal(b), nil)
			require.ErrorIs(t, err, fp8.ErrPacked)
			require.ErrorContains(t, err, c.says)
		})
	}
}

func put32(at int, x uint32) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint32(b[at:], x) }
}

func put64(at int, x uint64) func([]byte) {
	return func(b []byte) { binary.LittleEndian.PutUint64(b[at:], x) }
}

// lastScaleOf sets the scale of the last lane of the last group: one past N.
func lastScaleOf(x uint32) func([]byte) {
	return func(b []byte) { put32(len(b)-4, x)(b) }
}

// TestPackedFileClaims: what a header claims costs nothing that the file does not have,
// not even if every check before the size agrees with it.
func TestPackedFileClaims(t *testing.T) {
	b := file(t, packCases[6].pack(t))[:fp8.PackedHeader]
	const batch, n, k = 1 << 20, 1 << 10, 1 << 10
	for at, x := range map[int]uint64{32: batch, 40: n, 48: k, 72: batch * n * k, 80: batch * n * k, 88: batch * n * k} {
		put64(at, x)(b)
	}
	for _, more := range []int{0, 1 << 10} {
		_, err := read(reseal(append(slices.Clone(b), make([]byte, more)...)), nil)
		require.ErrorIs(t, err, fp8.ErrPacked)
		require.ErrorContains(t, err, fmt.Sprintf("size is %d, want %d", fp8.PackedHeader+more, fp8.PackedHeader+batch*n*k))
	}
}

// TestPackedFileTroubles: what reader and writer say comes through, as itself.
func TestPackedFileTroubles(t *testing.T) {
	p := packCases[0].pack(t)
	b := file(t, p)
	trouble := errors.New("trouble")
	for _, good := range []int{0, fp8.PackedHeader} {
		_, err := fp8.ReadPacked(&troubled{b, good, trouble}, int64(len(b)), nil)
		require.ErrorIs(t, err, trouble)
		require.NotErrorIs(t, err, fp8.ErrPacked)
		n, err := p.WriteTo(&troubled{b, good, trouble})
		require.ErrorIs(t, err, trouble)
		require.EqualValues(t, good, n)
	}
	// Close waits for nobody: while the weights are written, it is refused.
	_, err := p.WriteTo(writerFunc(func(b []byte) (int, error) {
		require.ErrorIs(t, p.Close(), fp8.ErrBusy)
		return len(b), nil
	}))
	require.NoError(t, err)
}

// troubled reads and writes so many bytes well.
type troubled struct {
	b    []byte
	good int
	err  error
}

func (r *troubled) ReadAt(b []byte, at int64) (int, error) {
	if int(at)+len(b) > r.good {
		return 0, r.err
	}
	return copy(b, r.b[at:]), nil
}

func (r *troubled) Write(b []byte) (int, error) {
	if len(b) > r.good {
		return 0, r.err
	}
	r.good -= len(b)
	return len(b), nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// FuzzReadPacked: any bytes, with the checksums made right or not, are an ErrPacked or
// weights that can be used and that are written as the bytes they came from.
func FuzzReadPacked(f *testing.F) {
	for _, c := range packCases {
		c.batch, c.n, c.k = 1, min(c.n, 18), min(c.k, 40)
		b := file(f, c.pack(f))
		f.Add(b, true)
		f.Add(b[:fp8.PackedHeader], false)
		f.Add(b[:len(b)-1], true)
	}
	f.Fuzz(func(t *testing.T, b []byte, sealed bool) {
		b = slices.Clone(b)
		if sealed {
			reseal(b)
		}
		p, err := read(b, nil)
		if err != nil {
			require.ErrorIs(t, err, fp8.ErrPacked)
			return
		}
		require.Equal(t, b, file(t, p))
		sameProduct(t, p, p)
		// The other products, on weights that are anything: NaN and infinity too.
		const m = 2
		x, y := normal(newRand(5), p.Batch()*m*p.K(), 1), make([]float32, p.Batch()*m*p.N())
		s := fp8.Shape{M: m, LdX: p.K(), StrideX: m * p.K(), LdY: p.N(), StrideY: m * p.N()}
		require.NoError(t, p.Mul(context.Background(), nil, y, fp8.RowsF32(x), s, fp8.Product{Compute: fp8.ComputeBF16}))
		for _, group := range []int{1, 7, 16, p.K(), math.MaxInt} {
			for _, c := range []fp8.Compute{fp8.ComputeF32, fp8.ComputeBF16} {
				err := p.Mul(context.Background(), nil, y, fp8.RowsF32(x), s, fp8.Product{Compute: c, Group: group})
				if !p.Scaled() {
					require.ErrorIs(t, err, fp8.ErrScale)
					continue
				}
				require.NoError(t, err)
			}
		}
		require.NoError(t, p.Close())
	})
}

// TestDigest: a view is what its copy is; whatever differs, differs.
func TestDigest(t *testing.T) {
	r := newRand(3)
	const rows, cols = 12, 10
	codes, scales := someCodes(r, fp8.ElemE4M3, rows*cols), normal(r, 12, 1)
	for i := range scales {
		scales[i] *= scales[i]
	}
	matrix := func(elem fp8.Elem, rows, cols int, codes []byte, s []float32, blockRows, blockCols int) fp8.Matrix {
		m, err := fp8.New(elem, rows, cols, codes, fp8.ScalesF32(s), blockRows, blockCols)
		require.NoError(t, err)
		return m
	}
	m := matrix(fp8.ElemE4M3, rows, cols, codes, scales, 4, 3)
	seen := map[[32]byte]string{}
	add := func(name string, m fp8.Matrix) {
		d := m.Digest()
		require.Empty(t, seen[d], "%s is like %s", name, seen[d])
		seen[d] = name
	}
	add("matrix", m)
	add("nothing", fp8.Matrix{})
	for i := range codes {
		other := slices.Clone(codes)
		other[i] ^= 1
		add(fmt.Sprintf("code %d", i), matrix(fp8.ElemE4M3, rows, cols, other, scales, 4, 3))
	}
	for i := range scales {
		other := slices.Clone(scales)
		other[i]++
		add(fmt.Sprintf("scale %d", i), matrix(fp8.ElemE4M3, rows, cols, codes, other, 4, 3))
	}
	add("elem", matrix(fp8.ElemE5M2, rows, cols, codes, scales, 4, 3))
	add("shape", matrix(fp8.ElemE4M3, cols, rows, codes, scales, 3, 4))
	add("blocks", matrix(fp8.ElemE4M3, rows, cols, codes, scales, 3, 4))
	plain, err := fp8.New(fp8.ElemE4M3, rows, cols, codes, fp8.Scales{}, 0, 0)
	require.NoError(t, err)
	add("no scales", plain)

	turned := m.Transpose()
	require.NoError(t, err)
	add("transpose", turned)
	var turnedCodes []byte
	for j := range cols {
		for i := range rows {
			turnedCodes = append(turnedCodes, codes[i*cols+j])
		}
	}
	var turnedScales []float32
	for j := range 4 {
		for i := range 3 {
			turnedScales = append(turnedScales, scales[i*4+j])
		}
	}
	require.Equal(t, matrix(fp8.ElemE4M3, cols, rows, turnedCodes, turnedScales, 3, 4).Digest(), turned.Digest())
	lower, err := m.Slice(8, 12)
	require.NoError(t, err)
	require.Equal(t, matrix(fp8.ElemE4M3, 4, cols, codes[8*cols:], scales[8:], 4, 3).Digest(), lower.Digest())
	inside, err := m.Slice(6, 10) // begins in the middle of a block
	require.NoError(t, err)
	add("inside", inside)

	x := normal(r, 40000, 1)
	one, err := fp8.PlainF32(4, 10000, x)
	require.NoError(t, err)
	before := one.Digest()
	x[39999]++
	require.NotEqual(t, before, one.Digest())
}

func ExampleReadPacked() {
	w, err := fp8.Quantize(fp8.ElemE4M3, 2, 4, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4)
	if err != nil {
		fmt.Println(err)
		return
	}
	packed, err := fp8.Pack([]fp8.Matrix{w}, fp8.PackOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer packed.Close()
	var file strings.Builder
	if _, err := packed.WriteTo(&file); err != nil {
		fmt.Println(err)
		return
	}
	again, err := fp8.ReadPacked(strings.NewReader(file.String()), int64(file.Len()), nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer again.Close()
	fmt.Println(again.Batch(), again.N(), again.K())

	_, err = fp8.ReadPacked(strings.NewReader(file.String()), int64(file.Len())-1, nil)
	fmt.Println(err)
	// Output:
	// 1 2 4
	// fp8: bad packed file: size is 447, want 448
}
