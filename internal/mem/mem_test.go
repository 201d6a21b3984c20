package mem_test

import (
	"bytes"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/internal/mem"
)

func TestAllocIsZeroedAlignedAndWritable(t *testing.T) {
	for _, n := range []int{1, 63, 64, 65, 4095, 4096, 4097, 1 << 20} {
		b, err := mem.Alloc(n)
		require.NoError(t, err)
		p := b.Bytes()
		require.Len(t, p, n)
		assert.Zero(t, uintptr(unsafe.Pointer(&p[0]))%mem.Align)
		assert.Equal(t, make([]byte, n), p)
		for i := range p {
			p[i] = byte(i)
		}
		require.NoError(t, b.Free())
		assert.Nil(t, b.Bytes())
		require.NoError(t, b.Free(), "a second Free does nothing")
	}
}

func TestAllocEmpty(t *testing.T) {
	b, err := mem.Alloc(0)
	require.NoError(t, err)
	assert.NotNil(t, b.Bytes())
	assert.Empty(t, b.Bytes())
	require.NoError(t, b.Free())
	require.NoError(t, b.Free())
}

func TestHugeChangesNothing(t *testing.T) {
	for _, n := range []int{0, 1, 4096, 2<<20 - 1, 2 << 20, 5<<20 + 1} {
		b, err := mem.Alloc(n)
		require.NoError(t, err)
		b.Huge()
		p := b.Bytes()
		require.Len(t, p, n)
		assert.True(t, bytes.Equal(make([]byte, n), p))
		for i := range p {
			p[i] = byte(i)
		}
		require.NoError(t, b.Free())
		b.Huge() // of nothing
	}
}

func TestAllocRefusesSizes(t *testing.T) {
	for _, n := range []int{-1, math.MinInt, math.MaxInt} {
		_, err := mem.Alloc(n)
		require.ErrorIs(t, err, mem.ErrSize)
	}
	_, err := mem.Alloc(1<<62 - 1) // the platform's word, whatever it is
	require.Error(t, err)
}

func TestCast(t *testing.T) {
	b, err := mem.Alloc(64)
	require.NoError(t, err)
	defer b.Free()
	p := b.Bytes()
	f := mem.Cast[float32](p)
	require.Len(t, f, 16)
	f[1] = 1
	assert.Equal(t, []byte{0, 0, 0x80, 0x3F}, p[4:8])
	assert.Equal(t, uint16(0x3F80), mem.Cast[uint16](p)[3])
	assert.Len(t, mem.Cast[uint64](p[:23]), 2, "the tail that fills no value is left out")
	assert.Nil(t, mem.Cast[uint64](p[:7]))
	assert.Nil(t, mem.Cast[float64](nil))
	assert.True(t, mem.Aligned[uint16](p[2:]))
	assert.False(t, mem.Aligned[float32](p[2:]))
	assert.Panics(t, func() { mem.Cast[uint16](p[1:]) })
	assert.NotPanics(t, func() { mem.Cast[uint8](p[1:]) })
}
