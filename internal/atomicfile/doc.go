// Package atomicfile writes a file that is either there, whole and on the disk, or
// not there at all.
//
//	path.xxxxxxxx.tmp   written, synchronised, closed
//	        |
//	        +---------- renamed ----------> path
package atomicfile
