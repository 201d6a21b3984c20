package oracle

import (
	"math"
	"slices"
)

// Row is the answer for one query row of one head.
type Row struct {
	Out      []float64 // the output, len V (or the value's width in Attend)
	LSE      float64   // natural log of the sum of exp(t); the sink is not in it; +Inf when nothing is visible
	MaxLogit float64   // largest score; -Inf when nothing is visible
	MaxAbs   float64   // largest |t| over the visible finite scores
	Visible  int       // number of visible keys, counted with repeats

	sizes, moves []float64 // of the outputs, len V: see CoreBound
}

// Largest is the largest |output| of the row: what errors are measured against.
func (r Row) Largest() float64 { return largest(r.Out) }

// Size is the largest S of the row's outputs, as CoreBound has it: what a row of so few values
// that all may cancel is measured by.
func (r Row) Size() float64 { return largest(r.sizes) }

// CoreBound is the error that attention alone may have in float32, absolute: the greater of
//
//	(2e-6 + 1.2e-7*max|t|) * largest |output|
//	2e-6*S + 1.5e-6*D
//
// where S and D are the largest of the row's outputs. S is the size of an output: its magnitude
// or, if that is more, the root of the sum of the squares of its terms, p*v. D is how far it moves
// with its scores: the same root, of p*(v-output) times the size of the score. So the second
// line is the greater one in rows of so few values, or keys, that the terms of all outputs may
// cancel: what is rounded are the terms, and their errors do not cancel with them.
func (r Row) CoreBound() float64 {
	return math.Max((2e-6+1.2e-7*r.MaxAbs)*r.Largest(), 2e-6*r.Size()+1.5e-6*largest(r.moves))
}

// LayerBound is the error that the whole layer may have: twice CoreBound.
func (r Row) LayerBound() float64 { return 2 * r.CoreBound() }

func largest(x []float64) float64 {
	var m float64
	for _, v := range x {
		m = math.Max(m, math.Abs(v))
	}
	return m
}

// Product is the row of y[N] = r.Out[K] . w[N][K]^T: the same but for its outputs.
func (r Row) Product(w []float64, n int) Row {
	y := product(sized{r.Out, r.sizes}, w, n)
	moves := make([]float64, n)
	for i := range moves {
		moves[i] = root(r.moves, w[i*len(r.Out):(i+1)*len(r.Out)])
	}
	r.Out, r.sizes, r.moves = y.x, y.size, moves
	return r
}

// Plus is the row with a bias [V] added to its outputs, nil for none.
func (r Row) Plus(bias []float64) Row {
	if len(bias) == 0 {
		return r
	}
	r.Out, r.sizes = slices.Clone(r.Out), slices.Clone(r.sizes)
	for i, v := range bias {
		r.Out[i] += v
		r.sizes[i] = math.Max(r.sizes[i], math.Abs(r.Out[i]))
	}
	return r
}

// Join is the outputs of several rows one behind the other, with the largest of their scores.
func Join(rows ...Row) Row {
	var all Row
	for _, r := range rows {
		all.Out, all.sizes, all.moves = append(all.Out, r.Out...), append(all.sizes, r.sizes...), append(all.moves, r.moves...)
		all.MaxAbs = math.Max(all.MaxAbs, r.MaxAbs)
	}
	return all
}

// NoSink is the sink logit that adds nothing to the denominator.
var NoSink = math.Inf(-1)

// Table serves the rows of a [n][width] slice by number.
func Table(rows []float64, width int) func(j int) []float64 {
	return func(j int) []float64 { return rows[j*width : (j+1)*width] }
}

// Attend is softmax attention of one query over the visible rows:
//
//	t_j = scale * sum_c q[c] * row(j)[c]           c < len(q)
//	out = sum_j exp(t_j-m) * row(j)[:dv] / (sum_j exp(t_j-m) + exp(sink-m))
//
// visible lists rows; a row that is listed twice counts twice. Rows that are not
// listed are never asked for, and a row is used before the next is asked for. A
// visible NaN score makes the answer NaN, and so does +Inf; a score of -Inf
// counts as not visible.
func Attend(q []float64, row func(j int) []float64, visible []int, scale, sink float64, dv int) Row {
	return AttendApart(q, row, func(j int) []float64 { return row(j)[:dv] }, visible, scale, sink, dv)
}

// AttendApart is Attend with keys and values of different places.
func AttendApart(q []float64, key, value func(int) []float64, visible []int, scale, sink float64, dv int) Row {
	return attend(sized{q, q}, key, value, visible, scale, sink, dv)
}

// attend is AttendApart of a query whose values may be sums.
func attend(q sized, key, value func(int) []float64, visible []int, scale, sink float64, dv int) Row {
	r := Row{
		Out: make([]float64, dv), LSE: math.Inf(1), MaxLogit: math.Inf(-1), Visible: len(visible),
		sizes: make([]float64, dv), moves: make([]float64, dv),
	}
	t, size := make([]float64, len(visible)), make([]float64, len(visible))
	for i, j := range visible {
		k := key(j)
		t[i] = dot(q.x, k) * scale
		r.MaxLogit = math.Max(r.MaxLogit, t[i]) // math.Max lets NaN win
		if !math.IsInf(t[i], 0) && !math.IsNaN(t[i]) {
			r.MaxAbs = math.Max(r.MaxAbs, math.Abs(t[i]))
			size[i] = math.Max(math.Abs(t[i]), root(q.size, k)*math.Abs(scale))
		}
	}
	m := r.MaxLogit
	switch {
	case math.IsInf(m, -1):
		return r
	case math.IsNaN(m) || math.IsInf(m, 1):
		return poisoned(r)
	}
	var sum, squares float64     // of p, and of p*size
	first := make([]float64, dv) // sums of (p*size)^2 * v; r.moves has those of (p*size)^2 * v^2
	for i, j := range visible {
		if math.IsInf(t[i], -1) {
			continue
		}
		p := math.Exp(t[i] - m)
		w := p * size[i] * p * size[i]
		sum += p
		squares += w
		for c, v := range value(j) {
			r.Out[c] += p * v
			r.sizes[c] += p * v * p * v
			first[c] += w * v
			r.moves[c] += w * v * v
		}
	}
	den := sum + math.Exp(sink-m)
	for c := range r.Out {
		r.Out[c] /= den
		r.sizes[c] = math.Max(math.Abs(r.Out[c]), math.Sqrt(r.sizes[c])/den)
		r.moves[c] = math.Sqrt(math.Max(0, r.moves[c]-2*r.Out[c]*first[c]+r.Out[c]*r.Out[c]*squares)) / den
	}
	r.LSE = m + math.Log(sum)
	return r
}

func poisoned(r Row) Row {
	for c := range r.Out {
		r.Out[c] = math.NaN()
	}
	r.LSE, r.MaxLogit = math.NaN(), math.NaN()
	return r
}

// Merge joins partial answers of one row over disjoint keys, each normalised,
// with its natural-log lse. An lse of -Inf or +Inf marks a part that saw
// nothing: it is skipped, whatever its output holds. When all are such, the
// result is 0 and +Inf.
func Merge(parts [][]float64, lse []float64) ([]float64, float64) {
	out := make([]float64, len(parts[0]))
	m := math.Inf(-1)
	for _, x := range lse {
		if !math.IsInf(x, 1) {
			m = math.Max(m, x)
		}
	}
	if math.IsInf(m, -1) {
		return out, math.Inf(1)
	}
	var sum float64
	for p, x := range lse {
		w := math.Exp(x - m)
		if math.IsInf(x, 0) || w == 0 {
			continue
		}
		sum += w
		for c, o := range parts[p] {
			out[c] += w * o
		}
	}
	for c := range out {
		out[c] /= sum
	}
	return out, m + math.Log(sum)
}
