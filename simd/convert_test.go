package simd_test

import (
	"math"
	"testing"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
	"github.com/lamina-ml/lamina/simd/ref"
)

// The conversions of slices on this instruction set have the bits of ref, at every
// length up to several registers, and touch nothing beside their slices.
func TestConvertSlices(t *testing.T) {
	lengths := []int{0, 1, 3, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100}
	for _, at := range kerneltest.Edges {
		for _, n := range lengths {
			testWiden(t, n, at)
			testNarrow(t, n, at)
		}
	}
}

func testWiden(t *testing.T, n int, at kerneltest.Edge) {
	halves, codes := kerneltest.Fenced[uint16](t, n, at), kerneltest.Fenced[byte](t, n, at)
	for i := range n {
		halves[i], codes[i] = uint16(i*2741+n*997), byte(i*37+n*11)
	}
	got, want := kerneltest.Fenced[float32](t, n, at), make([]float32, n)
	check := func(name string) {
		t.Helper()
		for i := range want {
			if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
				t.Fatalf("%s, n %d: place %d is %08X, want %08X", name, n, i, math.Float32bits(got[i]), math.Float32bits(want[i]))
			}
		}
	}
	simd.WidenBF16(got, halves)
	ref.WidenBF16(want, halves)
	check("WidenBF16")
	simd.WidenF16(got, halves)
	ref.WidenF16(want, halves)
	check("WidenF16")
	simd.WidenE4M3(got, codes)
	ref.WidenE4M3(want, codes)
	check("WidenE4M3")
	simd.WidenE5M2(got, codes)
	ref.WidenE5M2(want, codes)
	check("WidenE5M2")
	simd.WidenE4M3FNUZ(got, codes)
	ref.WidenE4M3FNUZ(want, codes)
	check("WidenE4M3FNUZ")
	simd.WidenE5M2FNUZ(got, codes)
	ref.WidenE5M2FNUZ(want, codes)
	check("WidenE5M2FNUZ")
	for i, c := range codes {
		if c&0x7F == 0x7F {
			codes[i] = 0x31 // a NaN times a scale is a class, not bits
		}
	}
	simd.WidenE4M3Scaled(got, codes, 0x1.8ee0fcp-3)
	ref.WidenE4M3Scaled(want, codes, 0x1.8ee0fcp-3)
	check("WidenE4M3Scaled")
}

func testNarrow(t *testing.T, n int, at kerneltest.Edge) {
	x := kerneltest.Fenced[float32](t, n, at)
	for i := range x {
		x[i] = math.Float32frombits(uint32(i*2654435761 + n*40503))
	}
	codes, wantCodes := kerneltest.Fenced[byte](t, n, at), make([]byte, n)
	checkCodes := func(name string) {
		t.Helper()
		for i := range wantCodes {
			if codes[i] != wantCodes[i] {
				t.Fatalf("%s, n %d: place %d, %v, is %02X, want %02X", name, n, i, x[i], codes[i], wantCodes[i])
			}
		}
	}
	simd.NarrowE4M3(codes, x)
	ref.NarrowE4M3(wantCodes, x)
	checkCodes("NarrowE4M3")
	simd.NarrowE5M2(codes, x)
	ref.NarrowE5M2(wantCodes, x)
	checkCodes("NarrowE5M2")
	simd.NarrowE4M3FNUZ(codes, x)
	ref.NarrowE4M3FNUZ(wantCodes, x)
	checkCodes("NarrowE4M3FNUZ")
	simd.NarrowE5M2FNUZ(codes, x)
	ref.NarrowE5M2FNUZ(wantCodes, x)
	checkCodes("NarrowE5M2FNUZ")
	simd.NarrowE4M3Scaled(codes, x, 0x1.8ee0fcp-3)
	ref.NarrowE4M3Scaled(wantCodes, x, 0x1.8ee0fcp-3)
	checkCodes("NarrowE4M3Scaled")

	halves, wantHalves := kerneltest.Fenced[uint16](t, n, at), make([]uint16, n)
	checkHalves := func(name string) {
		t.Helper()
		for i := range wantHalves {
			if halves[i] != wantHalves[i] {
				t.Fatalf("%s, n %d: place %d, %v, is %04X, want %04X", name, n, i, x[i], halves[i], wantHalves[i])
			}
		}
	}
	simd.NarrowBF16(halves, x)
	ref.NarrowBF16(wantHalves, x)
	checkHalves("NarrowBF16")
	simd.NarrowF16(halves, x)
	ref.NarrowF16(wantHalves, x)
	checkHalves("NarrowF16")
}

func TestConvertScalars(t *testing.T) {
	for u := range 1 << 16 {
		if h := uint16(u); simd.BF16ToF32(h) != ref.BF16ToF32(h) && h&0x7FFF <= 0x7F80 || simd.F16ToF32(h) != ref.F16ToF32(h) && h&0x7FFF <= 0x7C00 {
			t.Fatalf("%04X differs", h)
		}
	}
	for c := range 256 {
		c := uint8(c)
		for _, v := range [][2]float32{
			{simd.E4M3ToF32(c), ref.E4M3ToF32(c)}, {simd.E5M2ToF32(c), ref.E5M2ToF32(c)},
			{simd.E4M3FNUZToF32(c), ref.E4M3FNUZToF32(c)}, {simd.E5M2FNUZToF32(c), ref.E5M2FNUZToF32(c)},
			{simd.E8M0ToF32(c), ref.E8M0ToF32(c)}, {simd.E2M1ToF32(c), ref.E2M1ToF32(c)},
		} {
			if !kerneltest.SameBits(v[0], v[1]) {
				t.Fatalf("code %02X is %v, want %v", c, v[0], v[1])
			}
		}
		x := ref.E5M2ToF32(c) * 0.0137
		for _, o := range []simd.Overflow{simd.Saturate, simd.SaturateKeepInf, simd.NoSaturate} {
			got := []uint8{simd.F32ToE4M3(x, o), simd.F32ToE5M2(x, o), simd.F32ToE4M3FNUZ(x, o), simd.F32ToE5M2FNUZ(x, o), simd.F32ToE8M0(x), simd.F32ToE2M1(x)}
			want := []uint8{ref.F32ToE4M3(x, o), ref.F32ToE5M2(x, o), ref.F32ToE4M3FNUZ(x, o), ref.F32ToE5M2FNUZ(x, o), ref.F32ToE8M0(x), ref.F32ToE2M1(x)}
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("%v by rule %d: %02X, want %02X", x, o, got, want)
				}
			}
		}
		if simd.F32ToBF16(x) != ref.F32ToBF16(x) || simd.F32ToF16(x) != ref.F32ToF16(x) {
			t.Fatalf("%v differs", x)
		}
	}
}
