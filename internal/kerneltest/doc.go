// Package kerneltest is what tests of kernels share: a TestMain that tells the instruction set and refuses a run on the
// wrong one, buffers between pages that may not be touched, classes of data, and an f32 fused multiply-add that has
// nothing in common with the library's.
//
//	Fenced buffer:   | no access |        pad | values | no access |     Back
//	                 | no access | values | pad        | no access |     Front
//
// Only _test files import it.
package kerneltest
