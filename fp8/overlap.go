package fp8

import "unsafe"

// Overlaps says whether r and o share memory: what a call may not write while
// it reads the other.
func (r Rows) Overlaps(o Rows) bool {
	r0, r1 := r.extent()
	o0, o1 := o.extent()
	return r0 < o1 && o0 < r1
}

// extent is the addresses [from, to) that r lies in; 0, 0 if it is empty.
func (r Rows) extent() (from, to uintptr) {
	if len(r.v.floats) > 0 {
		from = uintptr(unsafe.Pointer(unsafe.SliceData(r.v.floats)))
		return from, from + uintptr(len(r.v.floats))*4
	}
	if len(r.v.halves) > 0 {
		from = uintptr(unsafe.Pointer(unsafe.SliceData(r.v.halves)))
		return from, from + uintptr(len(r.v.halves))*2
	}
	return 0, 0
}
