//go:build !linux

package child

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

const self = ""

func attributes(bool) *syscall.SysProcAttr { return nil }

// signalGroup sends a signal to the process only.
func signalGroup(pid int, signal syscall.Signal) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Signal(signal)
}

func await(cmd *exec.Cmd) { _ = cmd.Wait() }

func KillSelf() error { return signalGroup(os.Getpid(), syscall.SIGKILL) }

// Inherited is not supported on this system.
func Inherited(int, uint32) (*os.File, error) { return nil, errors.New("children need Linux") }
