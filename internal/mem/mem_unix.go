//go:build linux || darwin || freebsd

package mem

import (
	"os"

	"golang.org/x/sys/unix"
)

// maxBytes is past what any of these systems maps; the kernel says no earlier.
const maxBytes = 1<<62 - 1

func alloc(n int) (mapping, error) {
	b, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	return mapping{b, unix.Munmap}, err
}

func mapFile(f *os.File, n int) (mapping, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_PRIVATE)
	return mapping{b, unix.Munmap}, err
}
