//go:build unix

package openfile

import "syscall"

// withoutWaiting has a FIFO opened at once, and a terminal stay nobody's. Reads of regular files
// do not heed it.
const withoutWaiting = syscall.O_NONBLOCK | syscall.O_NOCTTY
