//go:build !linux

package matrix

import (
	"errors"
	"os"
	"syscall"

	"steadyfit/memory"
)

func childAttributes() *syscall.SysProcAttr { return nil }

func killGroup(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

func newLimit(size memory.Bytes) (limit, error) {
	if size > 0 {
		return nil, errors.New("memory limits need Linux")
	}
	return noLimit{}, nil
}
