package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/lamina-ml/lamina/internal/openfile"
)

// Replace has write write a file, which takes the place of what path leads to at once and only
// when all of it is on the disk.
//
// A symbolic link stays, and the file that it leads to is replaced, or made if there is none. It
// is written beside that file, under a name that begins like its name and ends in .tmp. Of the
// file that was there the permission bits stay; the owner, access lists and extended attributes
// are those of a new file, and other hard links keep what there was. A file where there was none
// has the permissions of any new file. What is there and is no regular file is an error
// (openfile.ErrKind).
//
// After an error there is what there was before; only a process that is killed can leave a .tmp
// behind.
func Replace(path string, write func(io.Writer) error) (err error) {
	path, err = target(path)
	if err != nil {
		return err
	}
	f, err := createBeside(path)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close() // which it may be already
			os.Remove(f.Name())
		}
	}()
	if err := write(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	// The new name, too, should outlive a loss of power; where a directory cannot be
	// synchronised, that is up to the system.
	if dir, err := openfile.Directory(filepath.Dir(path)); err == nil {
		dir.Sync()
		dir.Close()
	}
	return nil
}

// maxLinks is how many symbolic links a path may lead through. A loop that the system has not
// found, because somebody is at work there, ends here.
const maxLinks = 40

// target is the path that symbolic links at the end of path lead to, whether or not there is
// anything.
func target(path string) (string, error) {
	for range maxLinks {
		info, err := os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return path, nil
		}
		if err != nil {
			return "", err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if !info.Mode().IsRegular() {
				return "", &fs.PathError{Op: "replace", Path: path, Err: fmt.Errorf("%w but %s", openfile.ErrKind, openfile.Kind(info.Mode()))}
			}
			return path, nil
		}
		to, err := os.Readlink(path)
		if err != nil {
			return "", err
		}
		switch {
		case filepath.IsAbs(to):
		case to != "" && os.IsPathSeparator(to[0]): // from the root of the same volume
			to = filepath.VolumeName(path) + to
		default:
			// Not by filepath.Join: in "link/../x" the two dots lead out of where link leads.
			dir, _ := filepath.Split(path)
			to = dir + to
		}
		path = to
	}
	return "", &fs.PathError{Op: "replace", Path: path, Err: fmt.Errorf("more than %d symbolic links lead from one to the next", maxLinks)}
}

// createBeside makes a new file in the directory of path, with the permissions of the file that
// path is, or with those of any new file.
func createBeside(path string) (*os.File, error) {
	kept, perm := false, fs.FileMode(0o666)
	info, err := os.Lstat(path)
	if err == nil {
		kept, perm = true, info.Mode().Perm()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for {
		// Never with more than it ends with: who may not read the file may not open it in between.
		f, err := os.OpenFile(fmt.Sprintf("%s.%08x.tmp", path, rand.Uint32()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err == nil && kept {
			if err = setPerm(f, perm); err != nil {
				f.Close()
				os.Remove(f.Name())
			}
		}
		return f, err
	}
}

// setPerm gives a file permissions, which the system has cut by its mask; where it keeps none, and
// all files have the same, that is not refused.
func setPerm(f *os.File, perm fs.FileMode) error {
	info, err := f.Stat()
	if err != nil || info.Mode().Perm() == perm {
		return err
	}
	return f.Chmod(perm)
}
