//go:build !linux && !darwin

package checkpoint

import (
	"errors"
	"os"
)

func flock(*os.File) error { return errors.ErrUnsupported }
