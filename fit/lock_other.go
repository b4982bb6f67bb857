//go:build !linux && !darwin

package fit

import (
	"errors"
	"os"
)

func flock(*os.File) error { return errors.ErrUnsupported }
