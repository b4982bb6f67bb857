//go:build !linux

package child

import (
	"os"
	"os/exec"
	"syscall"
)

// Group is nil: elsewhere than on Linux, a child shares the group of its parent.
func Group() *syscall.SysProcAttr { return nil }

// Signal sends a signal to the child alone.
func Signal(pid int, signal syscall.Signal) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Signal(signal)
}

// Kill ends the child alone.
func Kill(pid int) error {
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// Await returns when a started child has ended.
func Await(cmd *exec.Cmd) { _ = cmd.Wait() } // its outcome is in ProcessState

// Collect has nothing left to do after Await.
func Collect(*exec.Cmd) error { return nil }

// State is not known.
func State(int) string { return "" }
