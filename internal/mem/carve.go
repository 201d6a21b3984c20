package mem

import "unsafe"

// Carver cuts one piece of memory into aligned slices, one after the other. Without memory it
// only counts, so that one function both sizes a workspace and lays it out:
//
//	var count mem.Carver
//	layout(&count)
//	b, err := mem.Alloc(count.Bytes())
//	layout(mem.NewCarver(b.Bytes()))
type Carver struct {
	left []byte
	need int
	real bool
}

// NewCarver cuts b, whose first byte is 64-byte aligned.
func NewCarver(b []byte) *Carver { return &Carver{left: b, real: true} }

// Bytes is how much has been cut, or counted, padding included.
func (c *Carver) Bytes() int { return c.need }

// Real tells that there is memory: slices are cut, not only counted.
func (c *Carver) Real() bool { return c.real }

// maxCarved keeps the count an int; no system has so much memory.
const maxCarved = 1 << 56

// Carve is the next n values of T, from a multiple of Align on; nil while memory is only counted.
// It panics when there is too little: the same layout has counted what it needs.
func Carve[T Scalar](c *Carver, n int) []T {
	var t T
	size := int(unsafe.Sizeof(t))
	if n < 0 || n > maxCarved/size || c.need > maxCarved-n*size-Align {
		c.need = maxCarved // Alloc refuses it
		if c.real {
			panic("mem: a slice beyond any memory")
		}
		return nil
	}
	padded := (n*size + Align - 1) / Align * Align
	c.need += padded
	if !c.real {
		return nil
	}
	out := Cast[T](c.left[:n*size])
	c.left = c.left[padded:]
	return out[:n:n]
}
