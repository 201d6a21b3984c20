package kvpaged

import (
	"fmt"
	"strings"

	"github.com/lamina-ml/lamina/internal/mem"
)

// Format is how the values of a row are stored. The names are those of String
// and ParseFormat; two formats may have rows of the same size, so none is ever
// recognised by its size.
type Format uint8

// A format is a file of this package, a constant here, a row in formats, and a
// case in encode and in widen. These two are switches because a table of
// functions would make every buffer of a caller escape to the heap.
const (
	BF16      Format = iota // bf16
	F16                     // binary16
	F32                     // float32
	FP8Unit                 // E4M3FN codes; a value is its code
	FP8Tensor               // E4M3FN codes; a value is its code times Config.Scale
	FP8Token                // E4M3FN codes; a float32 scale for every Config.Group values of a token, in a second plane
	DSMLA656                // DeepSeek-V3.2: 576 values in records of 656 bytes

	V4_584                // DeepSeek-V4: 512 values in 576 bytes and, in a second plane, 8
	V41_528Interleaved    // DeepSeek-V4.1, FP8: 512 values in records of 528 bytes
	V41_528Planar         // the same in two planes, 512 bytes and 16
	V41FP4_288Interleaved // DeepSeek-V4.1, FP4: 512 values in records of 288 bytes
	V41FP4_288Planar      // the same in two planes, 256 bytes and 32
)

// formats says where the values of a token are. A page holds the rows of its
// tokens one after the other, and then, if the format has a second plane, their
// scales:
//
//	[PageTokens][row] [PageTokens][scales]   filled up with zeros to a multiple of round
var formats = [...]struct {
	name   string
	align  int // of the arena, for the sake of the values in it
	width  int // values of a token, 0: any number
	elem   int // bytes of a value, where a row is values and nothing else
	row    int // bytes of a row, where it is not
	scales int // bytes of a token in the second plane
	pad    int // of these, how many at the end are always zero
	round  int // what the size of a page in one layer is a multiple of
	outer  ScaleKind
}{
	BF16:      {name: "bf16", align: 2, elem: 2, round: 1},
	F16:       {name: "f16", align: 2, elem: 2, round: 1},
	F32:       {name: "f32", align: 4, elem: 4, round: 1},
	FP8Unit:   {name: "fp8_unit", align: 1, elem: 1, round: 1},
	FP8Tensor: {name: "fp8_tensor", align: 1, elem: 1, round: 1, outer: ScaleTensor},
	FP8Token:  {name: "fp8_token", align: 1, elem: 1, round: 1, outer: ScaleToken},
	DSMLA656:  {name: "ds_mla_656", align: 2, width: 576, row: 656, round: 1},

	V4_584:                {name: "v4_584", align: 2, width: 512, row: 576, scales: 8, pad: 1, round: 576},
	V41_528Interleaved:    {name: "v41_528_interleaved", align: 1, width: 512, row: 528, round: 1},
	V41_528Planar:         {name: "v41_528_planar", align: 1, width: 512, row: 512, scales: 16, round: 512},
	V41FP4_288Interleaved: {name: "v41_fp4_288_interleaved", align: 1, width: 512, row: 288, round: 1},
	V41FP4_288Planar:      {name: "v41_fp4_288_planar", align: 1, width: 512, row: 256, scales: 32, round: 512},
}

// ScaleKind says which scales of a cache its Config gives or may give.
type ScaleKind uint8

const (
	ScaleNone   ScaleKind = iota // none: values have no scales, or they are among the bytes of the page
	ScaleTensor                  // one for the cache, Config.Scale
	ScaleToken                   // a float32 for every Config.Group values of a token, in Config.Scales or in the arena
)

// tokenScale is the bytes of a scale of a ScaleToken format.
const tokenScale = 4

// Scales says which scales a cache of the format takes from its Config; a format
// that is unknown takes none.
func (f Format) Scales() ScaleKind {
	if !f.known() {
		return ScaleNone
	}
	return formats[f].outer
}

// Planar reports whether the pages of the format have a second plane, of scales,
// after that of the rows; those of a ScaleToken format have not if Config.Scales
// holds the scales.
func (f Format) Planar() bool {
	return f.known() && (formats[f].scales != 0 || formats[f].outer == ScaleToken)
}

// String returns the name of the format, such as bf16 or v41_528_planar.
func (f Format) String() string {
	if !f.known() {
		return fmt.Sprintf("Format(%d)", uint8(f))
	}
	return formats[f].name
}

func (f Format) known() bool { return int(f) < len(formats) }

// ParseFormat returns the format of a name, ErrFormat if there is none.
func ParseFormat(name string) (Format, error) {
	var names []string
	for f, row := range formats {
		if row.name == name {
			return Format(f), nil
		}
		names = append(names, row.name)
	}
	return 0, fmt.Errorf("%w: %q, want one of %s", ErrFormat, name, strings.Join(names, ", "))
}

// aligned reports whether b lies where values may lie.
func (f Format) aligned(b []byte) bool {
	switch formats[f].align {
	case 2:
		return mem.Aligned[uint16](b)
	case 4:
		return mem.Aligned[float32](b)
	}
	return true
}

// encode stores the values of a token in its row and in its scales in the second
// plane, which are empty if the format has none.
func (f Format) encode(row, scales []byte, x []float32, cfg *Config) {
	switch f {
	case BF16:
		encodeBF16(row, x)
	case F16:
		encodeF16(row, x)
	case F32:
		encodeF32(row, x)
	case FP8Unit:
		encodeFP8Unit(row, x)
	case FP8Tensor:
		encodeFP8Tensor(row, x, cfg.Scale)
	case FP8Token:
		encodeFP8Token(row, scales, x, cfg.Group)
	case DSMLA656:
		encodeDSMLA656(row, x)
	case V4_584:
		encodeV4(row, scales, x)
	case V41_528Interleaved:
		encodeV41(row[:v41Row], row[v41Row:], x)
	case V41_528Planar:
		encodeV41(row, scales, x)
	case V41FP4_288Interleaved:
		encodeV41FP4(row[:v41FP4Row], row[v41FP4Row:], x)
	case V41FP4_288Planar:
		encodeV41FP4(row, scales, x)
	}
}

// tile is n tokens that are widened together: where their bytes begin in the two
// planes, and where their values go, width of them, ld apart.
type tile struct {
	dst          []float32
	ld, width, n int
	rows, scales [tileRows]int
}

const tileRows = 64

// row is the place of the values of token i.
func (t *tile) row(i int) []float32 { return t.dst[i*t.ld:][:t.width] }

// widen reads the values of a tile. The formats loop over its tokens themselves:
// what is the same for all of them is done once.
func (f Format) widen(t *tile, rows, scales []byte, cfg *Config) {
	switch f {
	case BF16:
		widenBF16(t, rows)
	case F16:
		widenF16(t, rows)
	case F32:
		widenF32(t, rows)
	case FP8Unit:
		widenFP8Unit(t, rows)
	case FP8Tensor:
		widenFP8Tensor(t, rows, cfg.Scale)
	case FP8Token:
		widenFP8Token(t, rows, scales, cfg.Group)
	case DSMLA656:
		widenDSMLA656(t, rows)
	case V4_584:
		widenV4(t, rows, scales)
	case V41_528Interleaved:
		widenV41(t, rows, rows[v41Row:], &t.rows)
	case V41_528Planar:
		widenV41(t, rows, scales, &t.scales)
	case V41FP4_288Interleaved:
		widenV41FP4(t, rows, rows[v41FP4Row:], &t.rows)
	case V41FP4_288Planar:
		widenV41FP4(t, rows, scales, &t.scales)
	}
}
