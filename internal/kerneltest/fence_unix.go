//go:build linux || darwin || freebsd

package kerneltest

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// fence is room for size bytes or more, whole pages between two that may not be touched, and what frees it.
func fence(t testing.TB, size int) (room []byte, free func()) {
	t.Helper()
	page := os.Getpagesize()
	pages := max(1, (size+page-1)/page)
	all, err := unix.Mmap(-1, 0, (pages+2)*page, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatalf("kerneltest: no memory for a fenced buffer of %d bytes: %v", size, err)
	}
	room = all[page : (pages+1)*page]
	if err := unix.Mprotect(room, unix.PROT_READ|unix.PROT_WRITE); err != nil {
		t.Fatalf("kerneltest: fenced buffer of %d bytes: %v", size, err)
	}
	return room, func() {
		if err := unix.Munmap(all); err != nil {
			t.Errorf("kerneltest: fenced buffer of %d bytes: %v", size, err)
		}
	}
}
