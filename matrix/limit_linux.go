package matrix

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"steadyfit/internal/child"
	"steadyfit/memory"
)

func childAttributes() *syscall.SysProcAttr {
	a := child.Group()
	a.Pdeathsig = syscall.SIGKILL
	return a
}

// newLimit makes a control group where this process may, since only that is what
// containers and services really die of; else the limit is on the writable memory
// that a process may map (RLIMIT_DATA), where malloc fails rather than the process
// being killed. 0 is no limit.
func newLimit(size memory.Bytes) (limit, error) {
	if size == 0 {
		return noLimit{}, nil
	}
	if g, err := newGroup(size); err == nil {
		return g, nil
	}
	return dataLimit{size}, nil
}

type dataLimit struct{ size memory.Bytes }

func (l dataLimit) apply(pid int) error {
	r := &unix.Rlimit{Cur: uint64(l.size), Max: uint64(l.size)}
	if err := unix.Prlimit(pid, unix.RLIMIT_DATA, r, nil); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("memory limit of process %d: %w", pid, err)
	}
	return nil
}
func (dataLimit) killed() bool          { return false }
func (dataLimit) kind() string          { return "RLIMIT_DATA" }
func (l dataLimit) bytes() memory.Bytes { return l.size }
func (l dataLimit) String() string      { return fmt.Sprintf("data limit of %v", l.size) }
func (dataLimit) close()                {}

// group is a control group of version 1 or 2.
type group struct {
	dir  string
	size memory.Bytes
	// events is the file that counts kills.
	events string
}

func newGroup(size memory.Bytes) (*group, error) {
	parent, version, err := ownGroup()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "steadyfit-")
	if err != nil {
		return nil, err
	}
	g := &group{dir: dir, size: size, events: filepath.Join(dir, "memory.events")}
	limitFile, swapFile, swap := "memory.max", "memory.swap.max", "0"
	if version == 1 {
		g.events = filepath.Join(dir, "memory.oom_control")
		limitFile, swapFile, swap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", strconv.FormatInt(int64(size), 10)
	}
	if err := g.write(limitFile, strconv.FormatInt(int64(size), 10)); err != nil {
		g.close()
		return nil, err
	}
	// A kernel without swap accounting has no such file.
	if err := g.write(swapFile, swap); err != nil && !errors.Is(err, os.ErrNotExist) {
		g.close()
		return nil, err
	}
	return g, nil
}

// ownGroup is the folder of the control group that this process is in.
func ownGroup() (dir string, version int, err error) {
	file, err := os.Open("/proc/self/cgroup")
	if err != nil {
		return "", 0, err
	}
	defer file.Close()
	unified := ""
	for lines := bufio.NewScanner(file); lines.Scan(); {
		part := strings.SplitN(lines.Text(), ":", 3)
		switch {
		case len(part) != 3:
		case part[1] == "":
			unified = part[2]
		default:
			for name := range strings.SplitSeq(part[1], ",") {
				if name == "memory" {
					return filepath.Join("/sys/fs/cgroup/memory", part[2]), 1, nil
				}
			}
		}
	}
	return filepath.Join("/sys/fs/cgroup", unified), 2, nil
}

func (g *group) write(file, text string) error {
	// Without O_CREATE: a file that is not there is a controller that is not.
	f, err := os.OpenFile(filepath.Join(g.dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (g *group) apply(pid int) error {
	if err := g.write("cgroup.procs", strconv.Itoa(pid)); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("memory limit of process %d: %w", pid, err)
	}
	return nil
}

func (g *group) killed() bool {
	text, err := os.ReadFile(g.events)
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(text)) {
		if name, n, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == "oom_kill" {
			return n != "0"
		}
	}
	return false
}

func (g *group) kind() string        { return "control group" }
func (g *group) bytes() memory.Bytes { return g.size }
func (g *group) String() string      { return fmt.Sprintf("memory limit of %v", g.size) }

// close leaves the folder behind if a process is still in it, which the end of
// the child's group prevents.
func (g *group) close() { _ = os.Remove(g.dir) }
