//go:build !linux && !darwin

package fit

import (
	"errors"
	"os"
)

func flock(*os.File) error { return errors.ErrUnsupported }

func freeSpace(string) (bytes int64, ok bool) { return 0, false }
