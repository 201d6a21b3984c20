//go:build !linux

package mem

// huge does nothing: these systems choose the size of a page by themselves.
func huge([]byte) {}
