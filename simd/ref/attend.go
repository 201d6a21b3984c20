package ref

import "math"

// masked marks a place of a tile of probabilities that no key may enter: -0, which Exp never gives.
const masked = 0x80000000

// maxKeys is the most keys of a tile.
const maxKeys = 64

var (
	negInf  = float32(math.Inf(-1))
	posInf  = float32(math.Inf(1))
	negZero = float32(math.Copysign(0, -1))
	nan     = float32(math.NaN())
)

// larger is the maximum that lets a NaN win and keeps a when both are equal.
func larger(a, b float32) float32 {
	if b > a || b != b {
		return b
	}
	return a
}

// SoftmaxTile turns the dots of a tile into probabilities and moves the running maximum m and sum l of each row.
// s holds a column for each of n rows and a row for each of at most 64 keys: s[key*lds+j]. Row j sees the keys
// lo[j] <= key < hi[j] whose score is not -Inf; out of that range nothing of its column is read. For each row X is
//
//	t[key] = s[key]*scale            rounded
//	if no key is seen {
//		alpha = 1                    m and l stay
//	} else {
//		top = max(m, t[...])         of the keys seen; a NaN wins
//		alpha = exp(m - top)
//		p[key] = exp(t[key] - top)
//		sum = p[...]                 summed in key order from zero
//		l = fma(l, alpha, sum)
//		m = top
//	}
//
// p replaces s; the place of a key that is not seen becomes -0, which no exp gives. The result tells whether there is
// such a place in the range of its row.
func SoftmaxTile(s []float32, lds, keys, n int, lo, hi []int32, scale float32, m, l, alpha []float32) bool {
	holes := false
	for j := range n {
		column := s[min(j, len(s)):] // nothing at all without keys
		first, last := max(int(lo[j]), 0), min(int(hi[j]), keys)
		m[j], l[j], alpha[j] = softmaxColumn(column, lds, keys, first, last, scale, m[j], l[j])
		for key := first; key < last; key++ {
			holes = holes || math.Float32bits(column[key*lds]) == masked
		}
	}
	return holes
}

// softmaxColumn is SoftmaxTile for one row, whose keys are at s[0], s[lds], ...
func softmaxColumn(s []float32, lds, keys, first, last int, scale, m, l float32) (top, sum, alpha float32) {
	var t [maxKeys]float32
	seen := false
	top = m
	for key := first; key < last; key++ {
		t[key] = float32(s[key*lds] * scale)
		top = larger(top, t[key])
		seen = seen || t[key] != negInf
	}
	if !seen {
		hide(s, lds, 0, keys)
		return m, l, 1
	}
	hide(s, lds, 0, first)
	hide(s, lds, last, keys)
	for key := first; key < last; key++ {
		if t[key] == negInf {
			hide(s, lds, key, key+1)
			continue
		}
		p := Exp(t[key] - top)
		s[key*lds] = p
		sum += p
	}
	alpha = Exp(m - top)
	return top, Fma(l, alpha, sum), alpha
}

// hide masks the keys [from, to) of a column.
func hide(s []float32, lds, from, to int) {
	for key := from; key < to; key++ {
		s[key*lds] = math.Float32frombits(masked)
	}
}

// ValueTile adds the values of a tile of at most 64 keys to n rows of cols outputs. For row j and column c, X is
//
//	x := o[j*ldo+c]
//	if alpha != nil {
//		x = x * alpha[j]             rounded; left out where alpha is 1, to the same bits
//	}
//	for key := 0; key < keys; key++ {
//		x = fma(p[key*ldp+j], v[key*ldv+c], x)
//	}
func ValueTile(o []float32, ldo int, p []float32, ldp int, v []float32, ldv int, alpha []float32, keys, n, cols int) {
	var weights [maxKeys]float32
	for j := range n {
		row, w := span(o, j*ldo, cols), weights[:keys]
		for key := range w {
			w[key] = p[key*ldp+j]
		}
		if alpha != nil {
			scale(row, alpha[j])
		}
		addValues(row, w, v, ldv)
	}
}

// ValueTileMasked is ValueTile with
//
//	if p[key*ldp+j] is not -0 {
//		x = fma(p[key*ldp+j], v[key*ldv+c], x)
//	}
//
// A masked key is skipped, so whatever its values are, they reach nothing.
func ValueTileMasked(o []float32, ldo int, p []float32, ldp int, v []float32, ldv int, alpha []float32, keys, n, cols int) {
	var weights [maxKeys]float32
	for j := range n {
		row, w := span(o, j*ldo, cols), weights[:keys]
		for key := range w {
			w[key] = p[key*ldp+j]
		}
		if alpha != nil {
			scale(row, alpha[j])
		}
		for first := 0; first < keys; {
			last := visibleRun(w, first)
			if first < last {
				addValues(row, w[first:last], v[min(first*ldv, len(v)):], ldv)
			}
			first = last + 1
		}
	}
}

// ValueTileCausal is ValueTileMasked for the p of a causal mask: row j sees the keys below seen+j, and p is -0 at the
// others and only there. seen is at least 0.
func ValueTileCausal(o []float32, ldo int, p []float32, ldp int, v []float32, ldv int, alpha []float32, keys, n, cols, seen int) {
	for j := range n {
		row := o[min(j*ldo, len(o)):]
		if alpha != nil {
			scale(span(row, 0, cols), alpha[j])
		}
		ValueTile(row, ldo, p[min(j, len(p)):], ldp, v, ldv, nil, min(keys, seen+j), 1, cols)
	}
}

// scale multiplies a row by alpha, rounded.
func scale(row []float32, alpha float32) {
	if alpha == 1 {
		return
	}
	for c := range row {
		row[c] = float32(row[c] * alpha)
	}
}

// addValues adds p[key] * v[key*ldv+c] to a row, 8 columns at a time over all keys.
func addValues(row, p, v []float32, ldv int) {
	if len(p) == 0 {
		return
	}
	for c := 0; c < len(row); c += width {
		to := row[c:min(c+width, len(row))]
		var sums [width]float64
		for i, x := range to {
			sums[i] = float64(x)
		}
		accumulate(&sums, p, v[c:], ldv, len(to))
		store(to, &sums)
	}
}

// visibleRun is the end of the run of visible keys that begins at first.
func visibleRun(p []float32, first int) int {
	for key := first; key < len(p); key++ {
		if math.Float32bits(p[key]) == masked {
			return key
		}
	}
	return len(p)
}

// FoldRows folds the partition (m, l, o) of n rows into the running (M, L, O). For each row X is
//
//	if m == -Inf { }                         an empty partition changes nothing
//	else if M == -Inf { M, L, O = m, l, o }  the first that is not is taken as it is
//	else {
//		top := max(M, m)                     a NaN wins
//		a, b := exp(M-top), exp(m-top)
//		O[c] = fma(o[c], b, O[c]*a)          the product rounded
//		L = fma(l, b, L*a)
//		M = top
//	}
func FoldRows(O []float32, ldO int, M, L []float32, o []float32, ldo int, m, l []float32, n, cols int) {
	for j := range n {
		if m[j] == negInf {
			continue
		}
		to, from := span(O, j*ldO, cols), span(o, j*ldo, cols)
		if M[j] == negInf {
			M[j], L[j] = m[j], l[j]
			copy(to, from)
			continue
		}
		top := larger(M[j], m[j])
		a, b := Exp(M[j]-top), Exp(m[j]-top)
		for c, x := range from {
			to[c] = Fma(x, b, float32(to[c]*a))
		}
		L[j] = Fma(l[j], b, float32(L[j]*a))
		M[j] = top
	}
}

// FinishRows divides n rows by their denominators. For each row X is
//
//	den := L                             sink nil
//	den := L + exp(sink - M)             one rounding each
//	out[c] = O[c] / den
//	lse = M + Log(L)
//	maxlogit = M                         a zero as +0
//
// The sink enters neither lse nor maxlogit: -Inf is none, +Inf leaves the zero of O/+Inf. A row that saw nothing
// (M is -Inf) gives output 0, lse +Inf and maxlogit -Inf, whatever its sink; one whose L is NaN gives NaN for all
// three. sink, lse and maxlogit may be nil.
func FinishRows(out []float32, ldout int, O []float32, ldO int, M, L, sink, lse, maxlogit []float32, n, cols, _ int) {
	for j := range n {
		row := finish(M, L, sink, lse, maxlogit, j)
		to := span(out, j*ldout, cols)
		for c, x := range span(O, j*ldO, cols) {
			to[c] = row.of(x)
		}
	}
}

// FinishRowsBF16 is FinishRows with outputs rounded to bfloat16, to nearest even.
func FinishRowsBF16(out []uint16, ldout int, O []float32, ldO int, M, L, sink, lse, maxlogit []float32, n, cols, _ int) {
	for j := range n {
		row := finish(M, L, sink, lse, maxlogit, j)
		to := span(out, j*ldout, cols)
		for c, x := range span(O, j*ldO, cols) {
			to[c] = F32ToBF16(row.of(x))
		}
	}
}

// finished is what becomes of a row: value everywhere, or quotients by den.
type finished struct {
	den, value float32
	constant   bool
}

func (f finished) of(x float32) float32 {
	if f.constant {
		return f.value
	}
	return x / f.den
}

// finish is FinishRows for the numbers of row j.
func finish(M, L, sink, lse, maxlogit []float32, j int) finished {
	row, sum, top := finished{den: L[j]}, posInf, M[j]+0
	switch {
	case M[j] == negInf:
		row = finished{constant: true}
	case L[j] != L[j]:
		row, sum, top = finished{value: nan, constant: true}, nan, nan
	default:
		sum = M[j] + Log(L[j])
		if sink != nil {
			row.den += Exp(sink[j] - M[j])
		}
	}
	if lse != nil {
		lse[j] = sum
	}
	if maxlogit != nil {
		maxlogit[j] = top
	}
	return row
}

// MergeRows merges p partial results of n rows of d values. parts is [p][n][d], each part normalised, partsLSE is
// [p][n]; out is [n][d], lse is [n]. A part is live if its lse is neither +Inf nor -Inf. For each row X is
//
//	M := max of the live lse             a NaN wins and makes the row NaN
//	for each part in order {
//		w := exp(lse - M)
//		if w == 0 { continue }           whatever the part holds
//		W = W + w                        from zero
//		O[c] = fma(part[c], w, O[c])     from zero
//	}
//	out[c] = O[c] / W
//	lse = M + Log(W)
//
// A single live part is returned unchanged; with none the row saw nothing: output 0, lse +Inf.
func MergeRows(out []float32, lse []float32, parts []float32, partsLSE []float32, p, n, d int) {
	for j := range n {
		lse[j] = mergeRow(out[j*d:][:d], parts, partsLSE, p, n, j)
	}
}

// mergeRow is MergeRows for row j of n.
func mergeRow(out []float32, parts, partsLSE []float32, p, n, j int) float32 {
	d := len(out)
	top, live, last := negInf, 0, 0
	for i := range p {
		if x := partsLSE[i*n+j]; !dead(x) {
			top, last = larger(top, x), i
			live++
		}
	}
	if live == 0 {
		clear(out)
		return posInf
	}
	if top != top {
		for c := range out {
			out[c] = nan
		}
		return nan
	}
	if live == 1 {
		copy(out, parts[(last*n+j)*d:])
		return partsLSE[last*n+j]
	}
	clear(out)
	var sum float32
	for i := range p {
		x := partsLSE[i*n+j]
		if dead(x) {
			continue
		}
		w := Exp(x - top)
		if w == 0 {
			continue
		}
		sum += w
		for c, v := range parts[(i*n+j)*d:][:d] {
			out[c] = Fma(v, w, out[c])
		}
	}
	for c := range out {
		out[c] /= sum
	}
	return top + Log(sum)
}

// dead tells that a part with this lse saw nothing.
func dead(lse float32) bool { return lse == negInf || lse == posInf }
