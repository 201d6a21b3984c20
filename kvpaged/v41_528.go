package kvpaged

import "github.com/lamina-ml/lamina/simd"

// v41_528, of DeepSeek-V4.1: 512 values with scales, rope included.
//
//	row     [512] E4M3FN codes
//	scales  [16]  E8M0, one for 32 codes
//
// Interleaved: the scales of a token follow its codes, records of 528 bytes.
// Planar: a page in one layer is PageTokens rows, then the scales of PageTokens
// tokens, filled up to a multiple of 512 bytes.

const (
	v41Row    = 512
	v41Group  = 32
	v41Scales = v41Row / v41Group
)

func encodeV41(row, scales []byte, x []float32) {
	for k := 0; k < v41Row; k += v41Group {
		scales[k/v41Group] = encodeGroup(row[k:k+v41Group], x[k:k+v41Group])
	}
}

// widenV41 reads the scales of token i from scales[scalesAt[i]:].
func widenV41(t *tile, rows, scales []byte, scalesAt *[tileRows]int) {
	var wide [v41Scales]float32
	for i, at := range t.rows[:t.n] {
		for g, e := range scales[scalesAt[i]:][:v41Scales] {
			wide[g] = simd.E8M0ToF32(e)
		}
		simd.WidenE4M3Groups(t.row(i), rows[at:][:v41Row], wide[:], v41Group)
	}
}
