package main

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/lamina-ml/lamina/checkpoint"
	"github.com/lamina-ml/lamina/mla"
)

// outcome is what a case gave.
type outcome struct {
	form       string // that ran: decode, prefill, mixed, or nothing
	arithmetic mla.Compute
	seconds    float64
	output     values
	lse        []float32 // nil if the file has none to compare with

	shape     checkpoint.Shape // of the output
	verdict   verdict          // on the output
	lseMaxAbs *float64
	faults    []string // of everything compared; none: passed
}

// compareOutput judges the output, which was rounded once to its type.
func (o *outcome) compareOutput(shape checkpoint.Shape, want []float32, tol tolerances) {
	o.shape = shape
	c := check{what: "output in " + o.output.dtype.String(), shape: shape, tol: tol.out, cosine: true,
		rounded: tol.f32, dtype: o.output.dtype}
	o.verdict = c.compare(o.output.widened(), want)
	o.add(o.verdict)
}

func (o *outcome) compareLSE(c check, got, want []float32) {
	v := c.compare(got, want)
	o.lseMaxAbs = &v.maxAbs
	o.add(v)
}

func (o *outcome) add(v verdict) {
	if v.fault != "" {
		o.faults = append(o.faults, v.fault)
	}
}

// worst is the index of the output's worst element; empty for an empty output.
func (o *outcome) worst() []int {
	if n, _ := o.shape.Elements(); n == 0 {
		return []int{}
	}
	return place(o.verdict.worst, o.shape)
}

// hash is the SHA-256 over the bits of the output, then of the lse if the file has one.
func (o *outcome) hash() string {
	h := sha256.New()
	o.output.addTo(h)
	values{dtype: checkpoint.F32, floats: o.lse}.addTo(h)
	return hex.EncodeToString(h.Sum(nil))
}
