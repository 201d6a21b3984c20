//go:build !linux || lamina_heap

package mem

// huge does nothing: these systems choose the size of a page by themselves, and what the Go heap
// lies on is the collector's.
func huge([]byte) {}
