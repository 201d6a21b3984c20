//go:build !linux && !darwin && !freebsd && !windows

package mem

import (
	"errors"
	"os"
)

func mapFile(*os.File, int) (mapping, error) { return mapping{}, errors.ErrUnsupported }
