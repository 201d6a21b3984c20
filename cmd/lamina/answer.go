package main

import (
	"time"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
)

// answer is what a case of attention should give; all but the output may be nil.
type answer struct {
	output    []float32
	lse       []float32
	maxLogits []float32

	shape       checkpoint.Shape // of output
	perHead     checkpoint.Shape // of lse and maxLogits
	tol         tolerances
	lseTol      tolerance
	maxLogitTol tolerance

	arithmetic mla.Compute
}

// answer reads expect.output of one shape, and expect.lse and expect.max_logits of another.
func (r *reader) answer(output, perHead []dim) answer {
	a := answer{
		output:    r.floats("expect.output", output...),
		lse:       r.optionalFloats("expect.lse", perHead...),
		maxLogits: r.optionalFloats("expect.max_logits", perHead...),
		shape:     sizes(output),
		perHead:   sizes(perHead),
		tol:       r.tolerances(),
	}
	if a.lse != nil || a.maxLogits != nil {
		a.lseTol = r.named("lse")
		a.maxLogitTol = a.lseTol
	}
	return a
}

// sizes is the shape of dimensions that are all known.
func sizes(dims []dim) checkpoint.Shape {
	shape := make(checkpoint.Shape, len(dims))
	for i, d := range dims {
		shape[i] = d.n
	}
	return shape
}

// attend computes a case into out, lse and maxLogits.
type attend func(out mla.Rows, lse, maxLogits []float32) error

// judge runs a case with its output in the type of q, and once more in F32 if the case has
// tolerances for that, and compares. An error means that the library refused the case.
func (a *answer) judge(dtype checkpoint.DType, run attend) (outcome, error) {
	o := outcome{output: newValues(dtype, len(a.output)), arithmetic: a.arithmetic}
	n, err := a.perHead.Elements()
	if err != nil {
		return o, err
	}
	lse, maxLogits := make([]float32, n), make([]float32, n)
	start := time.Now()
	if err := run(o.output.rows(), lse, maxLogits); err != nil {
		return o, err
	}
	o.seconds = time.Since(start).Seconds()
	o.compareOutput(a.shape, a.output, a.tol)
	if a.lse != nil {
		o.lse = lse
		o.compareLSE(check{what: "lse", shape: a.perHead, tol: a.lseTol}, lse, a.lse)
	}
	if a.maxLogits != nil {
		o.add(check{what: "max_logits", shape: a.perHead, tol: a.maxLogitTol}.compare(maxLogits, a.maxLogits))
	}
	if dtype == checkpoint.F32 || a.tol.f32 == nil {
		return o, nil
	}
	unrounded := newValues(checkpoint.F32, len(a.output))
	if err := run(unrounded.rows(), nil, nil); err != nil {
		return o, err
	}
	c := check{what: "output in F32", shape: a.shape, tol: *a.tol.f32, cosine: true}
	o.add(c.compare(unrounded.floats, a.output))
	return o, nil
}
