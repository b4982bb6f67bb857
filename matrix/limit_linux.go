package matrix

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"steadyfit/internal/cgroup"
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
	own := cgroup.Find(os.DirFS("/"), "self", "memory")
	if own.Version == 0 {
		return nil, errors.New("no control group is mounted")
	}
	dir, err := os.MkdirTemp(own.Dirs[0], "steadyfit-")
	if err != nil {
		return nil, err
	}
	g := &group{dir: dir, size: size, events: filepath.Join(dir, "memory.events")}
	limitFile, swapFile, swap := "memory.max", "memory.swap.max", "0"
	if own.Version == 1 {
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
	kills, _ := cgroup.OOMKills(g.events)
	return kills > 0
}

func (g *group) kind() string        { return "control group" }
func (g *group) bytes() memory.Bytes { return g.size }
func (g *group) String() string      { return fmt.Sprintf("memory limit of %v", g.size) }

// close leaves the folder behind if a process is still in it, which the end of
// the child's group prevents.
func (g *group) close() { _ = os.Remove(g.dir) }
