package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// self is the running executable, even if its file was replaced.
const self = "/proc/self/exe"

// killGroup kills all processes of a group, or does nothing if the group is empty.
func killGroup(pid int) error {
	if err := syscall.Kill(-pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return os.NewSyscallError("kill", err)
	}
	return nil
}

// await returns when a child has ended. Its process ID stays reserved until cmd.Wait.
func await(cmd *exec.Cmd) {
	for {
		err := unix.Waitid(unix.P_PID, cmd.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return // cmd.Wait waits instead
		}
	}
}

// KillSelf kills this process and its process group.
func KillSelf() error { return killGroup(os.Getpid()) }

// inherited opens a pipe that the parent passed to this process. Writes to the raw descriptor do not block.
func inherited(fd int) (*os.File, error) {
	var stat syscall.Stat_t
	if err := syscall.Fstat(fd, &stat); err != nil || stat.Mode&syscall.S_IFMT != syscall.S_IFIFO {
		return nil, fmt.Errorf("file descriptor %d was not opened by a parent process", fd)
	}
	syscall.CloseOnExec(fd)
	if err := syscall.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), fmt.Sprintf("file descriptor %d", fd)), nil
}
