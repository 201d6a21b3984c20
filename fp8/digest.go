package fp8

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"math"
	"unsafe"
)

// Digest is a SHA-256 of all that the matrix is: its shape, type, blocks, codes and
// scales. Two matrices have the same digest if and, as far as SHA-256 can tell, only
// if they are alike in these, wherever their elements lie: a view has the digest of
// its copy. Scales count by their values, not by the type they are stored in.
//
// It is what packed weights that were saved are known by; it reads every code.
func (m Matrix) Digest() [sha256.Size]byte {
	h := sha256.New()
	head := make([]byte, 0, 8*8)
	for _, x := range []int{int(m.v.elem), m.rows, m.cols, m.blockRows, m.blockCols, m.rowPhase, m.colPhase} {
		head = binary.LittleEndian.AppendUint64(head, uint64(x))
	}
	h.Write(head)
	switch m.v.elem.Size() {
	case 1:
		digestRows(h, &m, m.v.codes)
	case 2:
		digestRows(h, &m, m.v.halves)
	default:
		digestRows(h, &m, m.v.floats)
	}
	if m.Scaled() && m.rows > 0 {
		m.digestScales(h)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// digestRows hashes the elements, row by row.
func digestRows[T any](h hash.Hash, m *Matrix, elems []T) {
	if m.colStride == 1 && m.rowStride == m.cols {
		hashAll(h, elems[m.at0:][:m.rows*m.cols])
		return
	}
	row := make([]T, m.cols)
	for i := range m.rows {
		at := m.at0 + i*m.rowStride
		if m.colStride == 1 {
			hashAll(h, elems[at:][:m.cols])
			continue
		}
		for j := range row {
			row[j] = elems[at+j*m.colStride]
		}
		hashAll(h, row)
	}
}

// hashPart is how many elements are hashed by one call, which cannot be interrupted.
const hashPart = 8 << 10

// hashAll hashes the bytes of x, which are little-endian.
func hashAll[T any](h hash.Hash, x []T) {
	for len(x) > 0 {
		part := x[:min(len(x), hashPart)]
		h.Write(unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(part))), len(part)*int(unsafe.Sizeof(part[0]))))
		x = x[len(part):]
	}
}

// digestScales hashes the scales of every block that has an element in m.
func (m *Matrix) digestScales(h hash.Hash) {
	down, across := ceilDiv(m.rowPhase+m.rows, m.blockRows), ceilDiv(m.colPhase+m.cols, m.blockCols)
	row := make([]byte, 0, 4*across)
	for i := range down {
		row = row[:0]
		for j := range across {
			scale := m.scales.Float32(m.scale0 + i*m.scaleRow + j*m.scaleCol)
			row = binary.LittleEndian.AppendUint32(row, math.Float32bits(scale))
		}
		hashAll(h, row)
	}
}
