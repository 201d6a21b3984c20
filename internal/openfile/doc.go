// Package openfile opens what a path of the user's leads to, if that is a regular file, and
// never waits for it.
//
//	path ──> look ──> open without blocking ──> look at what was opened ──> *os.File
//	          └─ is a FIFO, a socket, a device or a directory: an error ─┘
//
// To open a FIFO in the ordinary way is to wait for its writer, maybe for ever. A look beforehand
// does not help alone: what was looked at need not be what is there when it is opened.
package openfile
