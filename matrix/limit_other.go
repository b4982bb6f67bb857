//go:build !linux

package matrix

import (
	"errors"
	"syscall"

	"steadyfit/memory"
)

func childAttributes() *syscall.SysProcAttr { return nil }

func newLimit(size memory.Bytes) (limit, error) {
	if size > 0 {
		return nil, errors.New("memory limits need Linux")
	}
	return noLimit{}, nil
}
