//go:build !linux

package runner

import "errors"

const dataLimit = false

func setDataLimit(int, uint64) error { return errors.ErrUnsupported }
