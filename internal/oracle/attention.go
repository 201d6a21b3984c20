package oracle

import "math"

// Row is the answer for one query row of one head.
type Row struct {
	Out      []float64 // the output, len V (or the value's width in Attend)
	LSE      float64   // natural log of the sum of exp(t); the sink is not in it; +Inf when nothing is visible
	MaxLogit float64   // largest score; -Inf when nothing is visible
	MaxAbs   float64   // largest |t| over the visible finite scores
	Visible  int       // number of visible keys, counted with repeats
}

// Largest is the largest |output| of the row: what errors are measured against.
func (r Row) Largest() float64 {
	var m float64
	for _, x := range r.Out {
		m = math.Max(m, math.Abs(x))
	}
	return m
}

// CoreBound is the error that attention alone may have in float32, absolute:
// 2e-6 + 1.2e-7*max|t|, of the row's largest output.
func (r Row) CoreBound() float64 { return (2e-6 + 1.2e-7*r.MaxAbs) * r.Largest() }

// LayerBound is the error that the whole layer may have: twice CoreBound.
func (r Row) LayerBound() float64 { return 2 * r.CoreBound() }

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
	r := Row{Out: make([]float64, dv), LSE: math.Inf(1), MaxLogit: math.Inf(-1), Visible: len(visible)}
	t := make([]float64, len(visible))
	for i, j := range visible {
		t[i] = dot(q, key(j)) * scale
		r.MaxLogit = math.Max(r.MaxLogit, t[i]) // math.Max lets NaN win
		if !math.IsInf(t[i], 0) && !math.IsNaN(t[i]) {
			r.MaxAbs = math.Max(r.MaxAbs, math.Abs(t[i]))
		}
	}
	m := r.MaxLogit
	switch {
	case math.IsInf(m, -1):
		return r
	case math.IsNaN(m) || math.IsInf(m, 1):
		return poisoned(r)
	}
	var sum float64
	for i, j := range visible {
		if math.IsInf(t[i], -1) {
			continue
		}
		p := math.Exp(t[i] - m)
		sum += p
		for c, v := range value(j) {
			r.Out[c] += p * v
		}
	}
	den := sum + math.Exp(sink-m)
	for c := range r.Out {
		r.Out[c] /= den
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
