//go:build linux || darwin || freebsd

package mem

import (
	"os"

	"golang.org/x/sys/unix"
)

func mapFile(f *os.File, n int) (mapping, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_PRIVATE)
	return mapping{b, unix.Munmap}, err
}
