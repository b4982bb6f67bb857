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

// signalGroup sends a signal to the child alone.
func signalGroup(pid int, signal syscall.Signal) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Signal(signal)
}

// Group is nil.
func Group() *syscall.SysProcAttr { return nil }

// Kill kills the child alone.
func Kill(pid int) error { return signalGroup(pid, syscall.SIGKILL) }

// Await returns when a child has ended.
func Await(cmd *exec.Cmd) { _ = cmd.Wait() }

// KillSelf kills this process.
func KillSelf() error { return signalGroup(os.Getpid(), syscall.SIGKILL) }

// Inherited is not known here.
func Inherited(int, uint32) (*os.File, error) { return nil, errors.New("children need Linux") }
