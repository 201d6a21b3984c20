package bf16_test

import (
	"flag"
	"math"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lamina-ml/lamina/bf16"
	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
)

var exhaustive = flag.Bool("exhaustive", false, "try all 2^32 float32 values, not a sample")

func TestMain(m *testing.M) { kerneltest.Main(m) }

func TestLevel(t *testing.T) { kerneltest.Level(t) }

// The definition of the conversion, for the 2^16 values whose upper half is hi:
// they lie between hi and hi+1, read as bf16, and go to the nearer of the two, in
// the middle to the even one. The neighbour above the largest finite value counts
// as 2^128. All distances are exact in float64.
type definition struct {
	hi      uint16
	special bool // Inf and NaN
	middle  float64
}

func define(hi uint16) definition {
	d := definition{hi: hi, special: hi&0x7F80 == 0x7F80}
	if !d.special {
		d.middle = (magnitude(hi) + magnitude(hi+1)) / 2
	}
	return d
}

func magnitude(bits uint16) float64 {
	if bits&0x7FFF == 0x7F80 {
		return 0x1p128
	}
	return math.Abs(float64(math.Float32frombits(uint32(bits) << 16)))
}

func (d definition) nearest(x float32) uint16 {
	if d.special {
		if x != x {
			return d.hi | 0x0040
		}
		return d.hi
	}
	abs := math.Abs(float64(x))
	if abs > d.middle || abs == d.middle && d.hi%2 != 0 {
		return d.hi + 1
	}
	return d.hi
}

// All float32 values with -exhaustive, seconds on all CPUs; else those near every
// border, and a sample.
func TestExhaustive(t *testing.T) {
	if *exhaustive {
		everyFloat32(t)
		return
	}
	edges := []uint32{0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF}
	r := rand.New(rand.NewPCG(1, 2))
	for hi := range uint32(1 << 16) {
		d := define(uint16(hi))
		for _, lo := range append(edges, r.Uint32()>>16) {
			x := math.Float32frombits(hi<<16 + lo)
			if got, want := bf16.FromFloat32(x).Bits(), d.nearest(x); got != want {
				t.Fatalf("FromFloat32(%08X) = %04X, want %04X", hi<<16+lo, got, want)
			}
		}
	}
}

func everyFloat32(t *testing.T) {
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for w := range workers {
		wg.Go(func() {
			x, b := make([]float32, 1<<16), make([]bf16.BF16, 1<<16)
			for hi := w; hi < 1<<16; hi += workers {
				for lo := range x {
					x[lo] = math.Float32frombits(uint32(hi<<16 + lo))
				}
				bf16.FromFloat32s(b, x)
				d := define(uint16(hi))
				for lo := range x {
					if want := d.nearest(x[lo]); b[lo].Bits() != want || bf16.FromFloat32(x[lo]) != b[lo] {
						t.Errorf("FromFloat32(%08X) = %04X, want %04X", math.Float32bits(x[lo]), b[lo].Bits(), want)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// Every bf16 goes to float32 and back, and says of itself what its float32 says.
func TestEveryCode(t *testing.T) {
	for u := range 1 << 16 {
		b := bf16.FromBits(uint16(u))
		x := b.Float32()
		wide := float64(x)
		if math.Float32bits(x) != uint32(u)<<16 {
			t.Fatalf("%04X widens to %08X", u, math.Float32bits(x))
		}
		want := uint16(u)
		if math.IsNaN(wide) {
			want |= 0x0040
		}
		if back := bf16.FromFloat32(x).Bits(); back != want {
			t.Fatalf("%04X comes back as %04X", u, back)
		}
		abs := math.Abs(wide)
		for _, is := range []struct {
			name      string
			got, want bool
		}{
			{"IsNaN", b.IsNaN(), math.IsNaN(wide)},
			{"IsInf(1)", b.IsInf(1), math.IsInf(wide, 1)},
			{"IsInf(-1)", b.IsInf(-1), math.IsInf(wide, -1)},
			{"IsInf(0)", b.IsInf(0), math.IsInf(wide, 0)},
			{"IsFinite", b.IsFinite(), !math.IsNaN(wide) && !math.IsInf(wide, 0)},
			{"IsNormal", b.IsNormal(), abs >= 0x1p-126 && abs < math.Inf(1)},
			{"Signbit", b.Signbit(), math.Signbit(wide)},
			{"Bits", b.Bits() == uint16(u), true},
		} {
			if is.got != is.want {
				t.Fatalf("%s of %04X is %v", is.name, u, is.got)
			}
		}
	}
}

func TestSpecial(t *testing.T) {
	assert.True(t, bf16.NaN().IsNaN())
	assert.True(t, bf16.Inf(0).IsInf(1))
	assert.True(t, bf16.Inf(1).IsInf(1))
	assert.True(t, bf16.Inf(-1).IsInf(-1))
	assert.Equal(t, "-Inf", bf16.Inf(-1).String())
	assert.Equal(t, "NaN", bf16.NaN().String())
	assert.Equal(t, "0.5", bf16.FromFloat32(0.5).String())
	// Four of five public libraries make these an Inf, for the upper half alone
	// has an empty payload.
	assert.Equal(t, uint16(0x7FC0), bf16.FromFloat32(math.Float32frombits(0x7F800001)).Bits())
	assert.Equal(t, uint16(0xFFFF), bf16.FromFloat32(math.Float32frombits(0xFFFFFFFF)).Bits())
}

func TestSlices(t *testing.T) {
	x := []float32{1, -2, 0.1, 3e38, 1e-40}
	b := make([]bf16.BF16, len(x))
	require.Equal(t, len(x), bf16.FromFloat32s(b, x))
	wide := make([]float32, len(x))
	require.Equal(t, len(x), bf16.ToFloat32s(wide, b))
	for i := range x {
		assert.Equal(t, bf16.FromFloat32(x[i]), b[i])
		assert.Equal(t, b[i].Float32(), wide[i])
	}
	assert.Equal(t, 2, bf16.FromFloat32s(b[:2], x))
	assert.Equal(t, 3, bf16.ToFloat32s(wide, b[:3]))
	assert.Zero(t, bf16.FromFloat32s(nil, x))
	assert.Zero(t, bf16.ToFloat32s(wide, nil))
}

func TestCast(t *testing.T) {
	type word uint16
	w := []word{0x3F80, 0xC000}
	b := bf16.Cast(w)
	require.Len(t, b, 2)
	assert.Equal(t, float32(1), b[0].Float32())
	b[1] = bf16.Inf(1)
	assert.Equal(t, word(0x7F80), w[1], "the memory is shared")
	assert.Empty(t, bf16.Cast([]uint16(nil)))
}

func TestFromBytes(t *testing.T) {
	raw := make([]byte, 17)
	even := raw
	if uintptr(unsafe.Pointer(&raw[0]))%2 != 0 {
		even = raw[1:]
	}
	b, err := bf16.FromBytes(even[:4])
	require.NoError(t, err)
	require.Len(t, b, 2)
	b[1] = 0x1234
	assert.Equal(t, []byte{0x34, 0x12}, even[2:4], "the memory is shared, little-endian")

	b, err = bf16.FromBytes(nil)
	assert.NoError(t, err)
	assert.Empty(t, b)
	_, err = bf16.FromBytes(even[:3])
	assert.ErrorIs(t, err, bf16.ErrLength)
	assert.ErrorContains(t, err, "3 bytes")
	_, err = bf16.FromBytes(even[1:5])
	assert.ErrorIs(t, err, bf16.ErrAlign)
}

func BenchmarkFromFloat32s(b *testing.B) {
	x, y := make([]float32, 4096), make([]bf16.BF16, 4096)
	for i := range x {
		x[i] = float32(i) * 0.37
	}
	b.Run("n=4096/simd="+simd.Level(), func(b *testing.B) {
		b.SetBytes(int64(4 * len(x)))
		for b.Loop() {
			bf16.FromFloat32s(y, x)
		}
	})
}
