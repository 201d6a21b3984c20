package fp8

import (
	"fmt"
	"math"
)

// smallestScale keeps the scales of Quantize normal: below it they would have
// few bits, and the quotients would overflow the codes.
const smallestScale = 0x1p-126

// Quantize makes a matrix of 8-bit codes from x [rows, cols], row-major, with one
// float32 scale for each block of blockRows x blockCols. For each block
//
//	amax  = the largest |x| that is finite
//	scale = max(amax / the largest value of the format, 2^-126)
//	code  = x/scale, to nearest even
//
// so an error is at most half the distance of two codes times the scale: of a
// normal code 2^-4 of the value in the E4M3 formats, 2^-3 in the E5M2 ones. Inf
// becomes the largest code with its sign, NaN stays NaN; neither touches amax.
// The codes and scales are new, x is not retained.
//
// Errors: ErrElem for an elem that is no 8-bit format, ErrShape for sizes below
// 1 or an x of another length, and what simd.Err says.
func Quantize(elem Elem, rows, cols int, x []float32, blockRows, blockCols int) (Matrix, error) {
	if elem > ElemE5M2FNUZ {
		return Matrix{}, fmt.Errorf("%w: %v, want an 8-bit format", ErrElem, elem)
	}
	if _, err := PlainF32(rows, cols, x); err != nil {
		return Matrix{}, err
	}
	if blockRows < 1 || blockCols < 1 {
		return Matrix{}, fmt.Errorf("%w: scale blocks of %dx%d, want at least 1x1", ErrShape, blockRows, blockCols)
	}
	across := ceilDiv(cols, blockCols)
	codes, scales := make([]byte, rows*cols), make([]float32, ceilDiv(rows, blockRows)*across)
	b := block{elem: elem, cols: cols, x: x, codes: codes}
	for i := range scales {
		b.row0, b.col0 = i/across*blockRows, i%across*blockCols
		b.row1, b.col1 = b.row0+min(blockRows, rows-b.row0), b.col0+min(blockCols, cols-b.col0)
		scales[i] = b.quantize()
	}
	return New(elem, rows, cols, codes, ScalesF32(scales), blockRows, blockCols)
}

// block is one block of a matrix that is being quantised.
type block struct {
	elem                   Elem
	cols                   int
	x                      []float32
	codes                  []byte
	row0, row1, col0, col1 int
}

// quantize writes the codes of the block and returns its scale.
func (b *block) quantize() float32 {
	var amax float32
	for i := b.row0; i < b.row1; i++ {
		for _, x := range b.x[i*b.cols+b.col0 : i*b.cols+b.col1] {
			if x < 0 {
				x = -x
			}
			if x > amax && x <= math.MaxFloat32 {
				amax = x
			}
		}
	}
	scale := max(amax/b.elem.largest(), smallestScale)
	for i := b.row0; i < b.row1; i++ {
		for j := i*b.cols + b.col0; j < i*b.cols+b.col1; j++ {
			b.codes[j] = narrowOne(b.elem, b.x[j]/scale, Saturate)
		}
	}
	return scale
}
