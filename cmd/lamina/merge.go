package main

import (
	"time"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
)

// mergeCase is a case of op merge: p partial results of n rows of h heads.
type mergeCase struct {
	p          int
	shape      checkpoint.Shape // [n, h, d], of the output
	parts, lse []float32        // [p, n, h, d], [p, n, h]

	output  []float32 // [n, h, d]
	wantLSE []float32 // [n, h], or nil
	tol     tolerances
	lseTol  tolerance
}

func readMerge(r *reader) (*mergeCase, error) {
	m := &mergeCase{}
	parts := r.tensor("parts.output", types(checkpoint.F32), free("parts"), free("rows"), free("heads"), free("values"))
	if r.err != nil {
		return nil, r.err
	}
	if m.p = parts.Shape[0]; m.p == 0 || parts.Shape[3] == 0 {
		r.failf("tensor %v: wanted at least 1 part and 1 value", parts)
	}
	m.shape = parts.Shape[1:]
	n, h, d := dim{"rows", m.shape[0]}, dim{"heads", m.shape[1]}, dim{"values", m.shape[2]}
	m.parts = r.valuesOf(parts)
	m.lse = r.floats("parts.lse", dim{"parts", m.p}, n, h)
	m.output = r.floats("expect.output", n, h, d)
	m.wantLSE = r.optionalFloats("expect.lse", n, h)
	m.tol = r.tolerances()
	r.has("scale") // which files carry, and merging has no use for
	if m.wantLSE != nil {
		m.lseTol = r.named("lse")
	}
	r.known()
	return m, r.err
}

// run merges and compares. An error means that the library refused the case.
func (m *mergeCase) run() (outcome, error) {
	rows, d := m.shape[0]*m.shape[1], m.shape[2]
	o := outcome{output: newValues(checkpoint.F32, rows*d)}
	lse := make([]float32, rows)
	start := time.Now()
	if err := mla.Merge(o.output.floats, lse, m.parts, m.lse, m.p, rows, d); err != nil {
		return outcome{}, err
	}
	o.seconds = time.Since(start).Seconds()
	o.compareOutput(m.shape, m.output, m.tol)
	if m.wantLSE != nil {
		o.lse = lse
		o.compareLSE(check{what: "lse", shape: m.shape[:2], tol: m.lseTol}, lse, m.wantLSE)
	}
	return o, nil
}
