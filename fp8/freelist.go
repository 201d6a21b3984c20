package fp8

import "sync"

// freeList keeps values of past calls for later ones, so that a call allocates
// nothing in steady state. The zero freeList is empty.
type freeList[T any] struct {
	mu   sync.Mutex
	free []*T
}

// take returns a kept value, or a new one that is zero.
func (l *freeList[T]) take() *T {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.free)
	if n == 0 {
		return new(T)
	}
	v := l.free[n-1]
	l.free = l.free[:n-1]
	return v
}

// give keeps v.
func (l *freeList[T]) give(v *T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.free = append(l.free, v)
}
