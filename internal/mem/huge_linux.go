//go:build !lamina_heap

package mem

import "golang.org/x/sys/unix"

// huge passes the wish on. The error of a kernel without huge pages is no news.
func huge(b []byte) { _ = unix.Madvise(b, unix.MADV_HUGEPAGE) }
