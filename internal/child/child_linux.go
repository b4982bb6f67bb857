package child

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
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

// OOMCounter counts the processes that the kernel has killed for want of memory.
// The zero value knows nothing.
type OOMCounter struct {
	file string
	last int64
}

// NewOOMCounter begins to count in the control group of a process, of version 1 or
// 2; where that tells nothing, on the whole machine.
//
// The kernel counts a kill in the group of the process that it kills, and before it
// sends the signal, even if it was the machine that had run out of memory
// (mm/oom_kill.c, __oom_kill_process).
func NewOOMCounter(pid int) OOMCounter {
	groups, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	for _, file := range oomFiles(string(groups)) {
		if n, ok := readOOMKills(file); ok {
			return OOMCounter{file, n}
		}
	}
	return OOMCounter{}
}

// New is the number of kills since the last call. If it is not known, ok is false.
func (c *OOMCounter) New() (kills int64, ok bool) {
	n, ok := readOOMKills(c.file)
	if !ok {
		return 0, false
	}
	kills, c.last = n-c.last, n
	return kills, true
}

// oomFiles are the files that may have the counter, best first. In a container, a
// group is often mounted without those above it, at the place of the root.
func oomFiles(groups string) []string {
	const mount = "/sys/fs/cgroup"
	var files, unified []string
	for line := range strings.Lines(groups) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		if controllers == "" {
			for _, dir := range []string{mount + path, mount + "/unified" + path, mount} {
				unified = append(unified, dir+"/memory.events.local", dir+"/memory.events")
			}
		}
		for name := range strings.SplitSeq(controllers, ",") {
			if name == "memory" {
				files = append(files, mount+"/memory"+path+"/memory.oom_control", mount+"/memory/memory.oom_control")
			}
		}
	}
	return append(append(files, unified...), "/proc/vmstat")
}

func readOOMKills(file string) (int64, bool) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(text)) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "oom_kill" {
			n, err := strconv.ParseInt(value, 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}
