package openfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// ErrKind is wrapped by the error of opening what is no regular file.
var ErrKind = errors.New("it is no regular file")

// Regular opens a regular file for reading and returns its size. Symbolic links are followed.
// Errors: ErrKind with what is there instead, and *fs.PathError.
func Regular(path string) (*os.File, int64, error) {
	// To open a device may do something to it: one that is seen beforehand is not opened.
	info, err := os.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if err := regular(info); err != nil {
		return nil, 0, err
	}
	return open(path)
}

// open opens what may have been exchanged since somebody looked.
func open(path string) (*os.File, int64, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|withoutWaiting, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err == nil {
		err = regular(info)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

// Directory opens a directory. Errors are *fs.PathError, of syscall.ENOTDIR for anything else.
func Directory(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|withoutWaiting, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.IsDir() {
		err = &fs.PathError{Op: "open", Path: path, Err: syscall.ENOTDIR}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func regular(info fs.FileInfo) error {
	if info.Mode().IsRegular() {
		return nil
	}
	return fmt.Errorf("%w but %s", ErrKind, Kind(info.Mode()))
}

// Kind is what a mode is of, in words.
func Kind(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a regular file"
	case m.IsDir():
		return "a directory"
	case m&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case m&fs.ModeSocket != 0:
		return "a socket"
	case m&fs.ModeDevice != 0:
		return "a device"
	}
	return "something else: " + m.Type().String()
}
