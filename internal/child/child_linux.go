package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is the running program, even if its file has been replaced.
const self = "/proc/self/exe"

// attributes put a child into a process group of its own, which Ctrl-C on a terminal does not
// reach.
func attributes(killWithParent bool) *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if killWithParent {
		a.Pdeathsig = syscall.SIGKILL
	}
	return a
}

// signalGroup sends a signal to all processes of a child's group. An empty group is no error.
func signalGroup(pid int, signal syscall.Signal) error {
	if err := syscall.Kill(-pid, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// await returns when a child has ended. The child keeps its number until cmd.Wait.
func await(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return // cmd.Wait waits if this could not
		}
	}
}

// KillSelf kills this process and all others of its group.
func KillSelf() error { return signalGroup(os.Getpid(), syscall.SIGKILL) }

// Inherited opens a file descriptor that the parent has given to this process, of a type of
// file such as syscall.S_IFIFO. Pipes do not block writers of the raw descriptor.
func Inherited(fd int, kind uint32) (*os.File, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil || stat.Mode&syscall.S_IFMT != kind {
		return nil, fmt.Errorf("file descriptor %d is not one that a parent opens", fd)
	}
	syscall.CloseOnExec(fd)
	if kind == syscall.S_IFIFO {
		if err := syscall.SetNonblock(fd, true); err != nil {
			return nil, os.NewSyscallError("fcntl", err)
		}
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("file descriptor %d", fd)), nil
}
