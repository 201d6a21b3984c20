//go:build (linux || darwin || freebsd) && !lamina_heap

package mem

import "golang.org/x/sys/unix"

// maxBytes is past what any of these systems maps; the kernel says no earlier.
const maxBytes = 1<<62 - 1

func alloc(n int) (mapping, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return mapping{b, unix.Munmap}, err
}
