package kvpaged_test

import (
	"encoding/binary"
	"math"
	"sort"

	"github.com/lamina-ml/lamina/kvpaged"
)

// The formats once more, from their definitions and on their own: every code is
// found by comparing exact numbers, and float64 holds all of them.

// record is where the parts of a token lie.
type record struct {
	width       int // values, 0: any
	row, scales int // bytes in the two planes of a page; the first is elem*width where width is 0
	elem        int
	round       int // what the size of a page is a multiple of
}

var records = map[kvpaged.Format]record{
	kvpaged.BF16:                  {elem: 2, round: 1},
	kvpaged.F16:                   {elem: 2, round: 1},
	kvpaged.F32:                   {elem: 4, round: 1},
	kvpaged.FP8Unit:               {elem: 1, round: 1},
	kvpaged.FP8Tensor:             {elem: 1, round: 1},
	kvpaged.FP8Token:              {elem: 1, round: 1},
	kvpaged.DSMLA656:              {width: 576, row: 656, round: 1},
	kvpaged.V4_584:                {width: 512, row: 576, scales: 8, round: 576},
	kvpaged.V41_528Interleaved:    {width: 512, row: 528, round: 1},
	kvpaged.V41_528Planar:         {width: 512, row: 512, scales: 16, round: 512},
	kvpaged.V41FP4_288Interleaved: {width: 512, row: 288, round: 1},
	kvpaged.V41FP4_288Planar:      {width: 512, row: 256, scales: 32, round: 512},
}

// planes returns the bytes of a row and of its scales, and those of a page.
func planes(cfg kvpaged.Config) (row, scales, page int) {
	r := records[cfg.Format]
	row, scales = r.row+r.elem*cfg.Width, r.scales
	if r.width != 0 {
		row = r.row
	}
	if cfg.Format == kvpaged.FP8Token {
		for k := 0; k < cfg.Width; k += cfg.Group {
			scales += 4
		}
	}
	page = row * cfg.PageTokens
	if cfg.Scales == nil {
		page += scales * cfg.PageTokens
	}
	for page%r.round != 0 {
		page++
	}
	return row, scales, page
}

// bytesAt returns the row and the scales of a token in the caller's memory.
func bytesAt(cfg kvpaged.Config, arena, outer []byte, page, layer, slot int) (row, scales []byte) {
	r, s, size := planes(cfg)
	block := layer*cfg.Pages + page
	if cfg.Order == kvpaged.PageMajor {
		block = page*cfg.Layers + layer
	}
	row = arena[block*size+slot*r:][:r]
	if cfg.Scales != nil {
		return row, outer[(block*cfg.PageTokens+slot)*s:][:s]
	}
	return row, arena[block*size+cfg.PageTokens*r+slot*s:][:s]
}

// number is the value of an 8-bit or 4-bit code without NaN: an exponent above
// mant bits of mantissa.
func number(code, mant, bias int) float64 {
	exp, frac := code>>mant, float64(code&(1<<mant-1))/float64(int(1)<<mant)
	if exp == 0 {
		return math.Ldexp(frac, 1-bias)
	}
	return math.Ldexp(1+frac, exp-bias)
}

func signed(x float64, negative bool) float64 {
	if negative {
		return math.Copysign(x, -1)
	}
	return x
}

func e4m3(c byte) float64 {
	if c&0x7F == 0x7F {
		return math.NaN()
	}
	return signed(number(int(c&0x7F), 3, 7), c > 0x7F)
}

func e2m1(c byte) float64 { return signed(number(int(c&7), 1, 1), c&8 != 0) }

func e8m0(c byte) float64 {
	if c == 0xFF {
		return math.NaN()
	}
	return math.Ldexp(1, int(c)-127)
}

// nearestCode is the code, at most largest, whose value is nearest to |x|/scale,
// ties to even. Products with scale are exact, which quotients would not be.
func nearestCode(x, scale float64, largest, mant, bias int) int {
	x = math.Abs(x)
	return sort.Search(largest, func(c int) bool {
		middle := float64((number(c, mant, bias) + number(c+1, mant, bias)) / 2 * scale)
		return x < middle || x == middle && c%2 == 0
	})
}

func toE4M3(x, scale float64) byte {
	c := byte(0x7F)
	if !math.IsNaN(x) {
		c = byte(nearestCode(x, scale, 0x7E, 3, 7))
	}
	if math.Signbit(x) {
		c |= 0x80
	}
	return c
}

func toE2M1(x, scale float64) byte {
	c := byte(7)
	if !math.IsNaN(x) {
		c = byte(nearestCode(x, scale, 7, 1, 1))
	}
	if math.Signbit(x) {
		c |= 8
	}
	return c
}

func largestFinite(x []float32) float64 {
	m := 0.0
	for _, v := range x {
		if a := math.Abs(float64(v)); !math.IsInf(a, 0) && a > m {
			m = a
		}
	}
	return m
}

// powerAbove is the exponent of the smallest power of two that is not below
// max(amax/448, 1e-4).
func powerAbove(x []float32) int {
	e := -200
	for amax := largestFinite(x); math.Ldexp(448, e) < amax || math.Ldexp(1, e) < 1e-4; e++ {
	}
	return e
}

// codesOf encodes a group and returns the exponent of its scale.
func codesOf(dst []byte, x []float32) int {
	e := powerAbove(x)
	for i, v := range x {
		dst[i] = toE4M3(float64(v), math.Ldexp(1, e))
	}
	return e
}

func bf16Of(x float32) uint16 {
	if x != x {
		return uint16(math.Float32bits(x)>>16) | 0x40
	}
	y := float32(overflow(nearest(float64(x), 8, -126), 0x1.FEp127, math.Inf(1)))
	return uint16(math.Float32bits(y) >> 16)
}

// f16Of is F16 by way of the exact value.
func f16Of(x float32) uint16 {
	sign := uint16(math.Float32bits(x) >> 16 & 0x8000)
	switch y := math.Abs(overflow(nearest(float64(x), 11, -14), 65504, math.Inf(1))); {
	case x != x:
		return sign | 0x7E00 | uint16(math.Float32bits(x)>>13&0x3FF)
	case math.IsInf(y, 0):
		return sign | 0x7C00
	default:
		return sign | uint16(sort.Search(0x7C00, func(c int) bool { return number(c, 10, 15) >= y }))
	}
}

// encoded is the row and the scales of a token.
func encoded(cfg kvpaged.Config, x []float32) (row, scales []byte) {
	r, s, _ := planes(cfg)
	row, scales = make([]byte, r), make([]byte, s)
	put := binary.LittleEndian
	switch cfg.Format {
	case kvpaged.BF16:
		for i, v := range x {
			put.PutUint16(row[2*i:], bf16Of(v))
		}
	case kvpaged.F16:
		for i, v := range x {
			put.PutUint16(row[2*i:], f16Of(v))
		}
	case kvpaged.F32:
		for i, v := range x {
			put.PutUint32(row[4*i:], math.Float32bits(v))
		}
	case kvpaged.FP8Unit:
		for i, v := range x {
			row[i] = toE4M3(float64(v), 1)
		}
	case kvpaged.FP8Tensor:
		for i, v := range x {
			row[i] = toE4M3(float64(v/cfg.Scale), 1)
		}
	case kvpaged.FP8Token:
		for k := 0; k < len(x); k += cfg.Group {
			end := min(k+cfg.Group, len(x))
			e := codesOf(row[k:end], x[k:end])
			put.PutUint32(scales[k/cfg.Group*4:], uint32(e+127)<<23)
		}
	case kvpaged.DSMLA656:
		for g := range 4 {
			e := codesOf(row[128*g:], x[128*g:128*(g+1)])
			put.PutUint32(row[512+4*g:], uint32(e+127)<<23)
		}
		for i, v := range x[512:] {
			put.PutUint16(row[528+2*i:], bf16Of(v))
		}
	case kvpaged.V4_584:
		for g := range 7 {
			scales[g] = byte(codesOf(row[64*g:], x[64*g:64*(g+1)]) + 127)
		}
		for i, v := range x[448:] {
			put.PutUint16(row[448+2*i:], bf16Of(v))
		}
	case kvpaged.V41_528Interleaved, kvpaged.V41_528Planar:
		own := append(row[:512:512], scales...)
		if s == 0 {
			own = row
		}
		for g := range 16 {
			own[512+g] = byte(codesOf(own[32*g:], x[32*g:32*(g+1)]) + 127)
		}
		copy(row, own)
		copy(scales, own[512:])
	case kvpaged.V41FP4_288Interleaved, kvpaged.V41FP4_288Planar:
		for g := range 32 {
			scale := fp4Group(row[8*g:8*g+8], x[16*g:16*g+16])
			if s == 0 {
				row[256+g] = scale
			} else {
				scales[g] = scale
			}
		}
	}
	return row, scales
}

func fp4Group(dst []byte, x []float32) (scale byte) {
	scale = byte(max(1, nearestCode(largestFinite(x), 6, 0x7E, 3, 7)))
	s := e4m3(scale)
	for i := range dst {
		dst[i] = toE2M1(float64(x[2*i]), s) | toE2M1(float64(x[2*i+1]), s)<<4
	}
	for _, v := range x {
		if v != v {
			return 0x7F
		}
	}
	return scale
}

// decoded is the values of a token.
func decoded(cfg kvpaged.Config, row, scales []byte) []float32 {
	x := make([]float32, cfg.Width)
	get := binary.LittleEndian
	f32 := func(b []byte) float64 { return float64(math.Float32frombits(get.Uint32(b))) }
	bf16 := func(b []byte) float32 { return math.Float32frombits(uint32(get.Uint16(b)) << 16) }
	codes := func(dst []float32, codes []byte, scale float64) {
		for i := range dst {
			dst[i] = float32(e4m3(codes[i]) * scale)
		}
	}
	switch cfg.Format {
	case kvpaged.BF16:
		for i := range x {
			x[i] = bf16(row[2*i:])
		}
	case kvpaged.F16:
		for i := range x {
			x[i] = f16(get.Uint16(row[2*i:]))
		}
	case kvpaged.F32:
		for i := range x {
			x[i] = math.Float32frombits(get.Uint32(row[4*i:]))
		}
	case kvpaged.FP8Unit:
		codes(x, row, 1)
	case kvpaged.FP8Tensor:
		codes(x, row, float64(cfg.Scale))
	case kvpaged.FP8Token:
		for i := range x {
			codes(x[i:i+1], row[i:], f32(scales[i/cfg.Group*4:]))
		}
	case kvpaged.DSMLA656:
		for i := range 512 {
			codes(x[i:i+1], row[i:], f32(row[512+i/128*4:]))
		}
		for i := range 64 {
			x[512+i] = bf16(row[528+2*i:])
		}
	case kvpaged.V4_584:
		for i := range 448 {
			codes(x[i:i+1], row[i:], e8m0(scales[i/64]))
		}
		for i := range 64 {
			x[448+i] = bf16(row[448+2*i:])
		}
	case kvpaged.V41_528Interleaved, kvpaged.V41_528Planar:
		all := append(row[:len(row):len(row)], scales...)
		for i := range x {
			codes(x[i:i+1], all[i:], e8m0(all[512+i/32]))
		}
	case kvpaged.V41FP4_288Interleaved, kvpaged.V41FP4_288Planar:
		all := append(row[:len(row):len(row)], scales...)
		for i := range x {
			x[i] = float32(e2m1(all[i/2]>>(i%2*4)&15) * e4m3(all[256+i/16]))
		}
	}
	return x
}

func f16(u uint16) float32 {
	switch mag := int(u & 0x7FFF); {
	case mag > 0x7C00:
		return float32(math.NaN())
	case mag == 0x7C00:
		return float32(signed(math.Inf(1), u > 0x7FFF))
	default:
		return float32(signed(number(mag, 10, 15), u > 0x7FFF))
	}
}
