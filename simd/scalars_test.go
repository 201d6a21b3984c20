package simd_test

import (
	"testing"

	"github.com/lamina-ml/lamina/internal/kerneltest"
	"github.com/lamina-ml/lamina/simd"
	"github.com/lamina-ml/lamina/simd/ref"
)

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
