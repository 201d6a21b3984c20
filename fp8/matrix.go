package fp8

import (
	"fmt"
	"math"

	"github.com/lamina-ml/lamina/simd"
)

// Matrix is rows x cols of codes with block scales, or of plain bf16, f16 or f32
// values. It refers to the caller's slices, which must not change while it is in
// use, and is itself immutable: Slice and Transpose return views of the same
// memory. The zero Matrix has no elements.
type Matrix struct {
	rows, cols int
	v          values
	at0        int // element [0,0]
	rowStride  int // elements from one row to the next
	colStride  int // elements from one column to the next

	scales               Scales
	blockRows, blockCols int
	rowPhase, colPhase   int // where in its block element [0,0] lies
	scale0               int // scale of that block
	scaleRow, scaleCol   int // scales from one row and column of blocks to the next
}

// New is a matrix of 8-bit codes [rows, cols], row-major, with
// ceil(rows/blockRows) x ceil(cols/blockCols) scales, row-major: value[i,j] =
// code[i,j] * scales[i/blockRows, j/blockCols]. Blocks of rows x cols are one scale
// for all, blocks of 1 x cols one for each row; with the zero Scales the codes
// are the values and the block is ignored.
//
// Errors: ErrElem for an elem that is no 8-bit format, ErrShape for sizes below
// 1 or slices of another length, ErrScale for a scale that is NaN, Inf or
// negative, and what simd.Err says.
func New(elem Elem, rows, cols int, codes []byte, scales Scales, blockRows, blockCols int) (Matrix, error) {
	if elem > ElemE5M2FNUZ {
		return Matrix{}, fmt.Errorf("%w: %v, want an 8-bit format (PlainBF16, PlainF16 and PlainF32 take the others)", ErrElem, elem)
	}
	m, err := plain(rows, cols, "codes", values{elem: elem, codes: codes})
	if err != nil || scales.kind == scalesNone {
		return m, err
	}
	return m.scaledBy(scales, blockRows, blockCols)
}

// scaledBy is a matrix without scales with scales.
func (m Matrix) scaledBy(scales Scales, blockRows, blockCols int) (Matrix, error) {
	if blockRows < 1 || blockCols < 1 {
		return Matrix{}, fmt.Errorf("%w: scale blocks of %dx%d, want at least 1x1", ErrShape, blockRows, blockCols)
	}
	down, across := ceilDiv(m.rows, blockRows), ceilDiv(m.cols, blockCols)
	if scales.Len() != down*across {
		return Matrix{}, fmt.Errorf("%w: scales has %d values, want %dx%d = %d for blocks of %dx%d in %dx%d",
			ErrShape, scales.Len(), down, across, down*across, blockRows, blockCols, m.rows, m.cols)
	}
	if err := scales.check(); err != nil {
		return Matrix{}, err
	}
	m.scales, m.blockRows, m.blockCols = scales, blockRows, blockCols
	m.scaleRow, m.scaleCol = across, 1
	return m, nil
}

// PlainBF16 is a matrix of bf16 values [rows, cols], row-major, without scales.
// It returns ErrShape for sizes below 1 or a slice of another length.
func PlainBF16[T ~uint16](rows, cols int, x []T) (Matrix, error) {
	return plain(rows, cols, "x", values{elem: ElemBF16, halves: words(x)})
}

// PlainF16 is PlainBF16 for binary16 values.
func PlainF16[T ~uint16](rows, cols int, x []T) (Matrix, error) {
	return plain(rows, cols, "x", values{elem: ElemF16, halves: words(x)})
}

// PlainF32 is PlainBF16 for float32 values.
func PlainF32(rows, cols int, x []float32) (Matrix, error) {
	return plain(rows, cols, "x", values{elem: ElemF32, floats: x})
}

func plain(rows, cols int, name string, v values) (Matrix, error) {
	if err := simd.Err(); err != nil {
		return Matrix{}, err
	}
	if rows < 1 || cols < 1 || rows > math.MaxInt/cols {
		return Matrix{}, fmt.Errorf("%w: a matrix of %dx%d, want at least 1x1 and a size that an int holds", ErrShape, rows, cols)
	}
	if v.len() != rows*cols {
		return Matrix{}, fmt.Errorf("%w: %s has %d values, want %dx%d = %d", ErrShape, name, v.len(), rows, cols, rows*cols)
	}
	return Matrix{rows: rows, cols: cols, v: v, rowStride: cols, colStride: 1}, nil
}

// Rows is the number of rows.
func (m Matrix) Rows() int { return m.rows }

// Cols is the number of columns.
func (m Matrix) Cols() int { return m.cols }

// Elem is the type of the elements.
func (m Matrix) Elem() Elem { return m.v.elem }

// Scaled reports whether the matrix has scales.
func (m Matrix) Scaled() bool { return m.scales.kind != scalesNone }

// BlockRows is the height of a scale block, 0 without scales.
func (m Matrix) BlockRows() int { return m.blockRows }

// BlockCols is the width of a scale block, 0 without scales.
func (m Matrix) BlockCols() int { return m.blockCols }

// Code is the value of the code at row i, column j, without its scale. Like an
// index of a slice, i and j out of range panic.
func (m Matrix) Code(i, j int) float32 {
	m.mustHold(i, j)
	return m.v.at(m.at0 + i*m.rowStride + j*m.colStride)
}

// Scale is the scale at row i, column j: 1 without scales. Like an index of a
// slice, i and j out of range panic.
func (m Matrix) Scale(i, j int) float32 {
	m.mustHold(i, j)
	if !m.Scaled() {
		return 1
	}
	return m.scale(i, j)
}

// At is the value at row i, column j: the code times its scale, rounded once.
// Like an index of a slice, i and j out of range panic.
func (m Matrix) At(i, j int) float32 { return float32(m.Code(i, j) * m.Scale(i, j)) }

func (m Matrix) mustHold(i, j int) {
	if uint(i) >= uint(m.rows) || uint(j) >= uint(m.cols) {
		panic(fmt.Sprintf("fp8: index [%d, %d] out of range of %dx%d", i, j, m.rows, m.cols))
	}
}

func (m *Matrix) scale(i, j int) float32 {
	down, across := (m.rowPhase+i)/m.blockRows, (m.colPhase+j)/m.blockCols
	return m.scales.Float32(m.scale0 + down*m.scaleRow + across*m.scaleCol)
}

// Slice is a view of the rows r0 .. r1. It may begin and end inside a scale
// block: a head of 448 rows in blocks of 128, say, whose second block is shared
// with its neighbour. ErrShape unless 0 <= r0 < r1 <= Rows.
func (m Matrix) Slice(r0, r1 int) (Matrix, error) {
	if r0 < 0 || r0 >= r1 || r1 > m.rows {
		return Matrix{}, fmt.Errorf("%w: rows %d to %d of a matrix of %dx%d", ErrShape, r0, r1, m.rows, m.cols)
	}
	m.rows = r1 - r0
	m.at0 += r0 * m.rowStride
	if m.Scaled() {
		m.rowPhase += r0
		m.scale0 += m.rowPhase / m.blockRows * m.scaleRow
		m.rowPhase %= m.blockRows
	}
	return m, nil
}

// Transpose is a view of the matrix with rows and columns exchanged: its blocks
// are BlockCols x BlockRows and every value keeps its scale.
func (m Matrix) Transpose() Matrix {
	m.rows, m.cols = m.cols, m.rows
	m.rowStride, m.colStride = m.colStride, m.rowStride
	m.blockRows, m.blockCols = m.blockCols, m.blockRows
	m.rowPhase, m.colPhase = m.colPhase, m.rowPhase
	m.scaleRow, m.scaleCol = m.scaleCol, m.scaleRow
	return m
}

// Dequantize fills dst [rows, cols], row-major, with the values: dst[i*cols+j] =
// At(i, j). ErrShape if dst has another length.
func (m Matrix) Dequantize(dst []float32) error {
	if len(dst) != m.rows*m.cols {
		return fmt.Errorf("%w: dst has %d values, want %dx%d = %d", ErrShape, len(dst), m.rows, m.cols, m.rows*m.cols)
	}
	for i := range m.rows {
		row := dst[i*m.cols:][:m.cols]
		m.codes(row, i)
		if m.Scaled() {
			m.applyScales(row, i)
		}
	}
	return nil
}

// codes fills dst with the unscaled values of row i.
func (m *Matrix) codes(dst []float32, i int) {
	at := m.at0 + i*m.rowStride
	if m.colStride == 1 {
		m.v.widen(dst, at)
		return
	}
	for j := range dst {
		dst[j] = m.v.at(at + j*m.colStride)
	}
}

// applyScales multiplies the values of row i, block by block.
func (m *Matrix) applyScales(row []float32, i int) {
	for j := 0; j < len(row); {
		end := min(len(row), j+(m.blockCols-(m.colPhase+j)%m.blockCols))
		scale := m.scale(i, j)
		for ; j < end; j++ {
			row[j] = float32(row[j] * scale)
		}
	}
}

func ceilDiv(a, b int) int { return (a-1)/b + 1 }
