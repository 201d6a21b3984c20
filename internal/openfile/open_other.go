//go:build !unix

package openfile

// withoutWaiting is nothing where a file system holds no FIFOs.
const withoutWaiting = 0
