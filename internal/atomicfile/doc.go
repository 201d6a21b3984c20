// Package atomicfile writes a file that is either there, whole and on the disk, or
// not there at all.
//
//	path ──> symbolic links ──> target
//	                              ^
//	target.xxxxxxxx.tmp           |
//	  permissions of the target   |
//	  written, synchronised, closed ── renamed
package atomicfile
