package child

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Group are the attributes of a child in a process group of its own, which Ctrl-C
// on a terminal does not reach.
func Group() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// Signal sends a signal to all processes of a child's group. That none is left is
// no error.
func Signal(pid int, signal syscall.Signal) error {
	if err := syscall.Kill(-pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// Kill ends all processes of a child's group.
func Kill(pid int) error { return Signal(pid, syscall.SIGKILL) }

// Await returns when a started child has ended. The child still has its number
// until Collect.
func Await(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return // Collect waits if this could not
		}
	}
}

// Collect ends what a child that has ended has left running in its group, and is
// then its Wait.
func Collect(cmd *exec.Cmd) error {
	return errors.Join(Kill(cmd.Process.Pid), cmd.Wait())
}

// State says what the first thread of a process does; empty if that is not known.
func State(pid int) string {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	end := bytes.LastIndexByte(text, ')') // a program's name may hold anything
	if err != nil || end < 0 || end+2 >= len(text) {
		return ""
	}
	switch text[end+2] {
	case 'R':
		return "running"
	case 'S':
		return "waiting"
	case 'D':
		return "waiting for a disk or a driver"
	case 'T':
		return "stopped by a signal"
	case 't':
		return "stopped by a debugger"
	}
	return ""
}
