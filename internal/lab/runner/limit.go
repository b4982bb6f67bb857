package runner

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"steadyfit/internal/cgroup"
	"steadyfit/memory"
)

// limit limits the memory of a child. It uses a control group, as containers do, if this
// process may create one, otherwise RLIMIT_DATA. With RLIMIT_DATA, malloc fails and the kernel
// kills no process.
type limit struct {
	size   memory.Bytes // 0 is no limit
	dir    string       // folder of the control group; empty for RLIMIT_DATA
	events string
}

func newLimit(size memory.Bytes) (*limit, error) {
	l := &limit{size: size}
	if size == 0 {
		return l, nil
	}
	if !dataLimit {
		return nil, errors.New("memory limits need Linux")
	}
	if err := l.group(); err != nil {
		l.close()
		l.dir = ""
	}
	return l, nil
}

// LimitKind returns the kind of limit that a child gets, "control group" or "RLIMIT_DATA";
// empty for no limit.
func LimitKind(size memory.Bytes) (string, error) {
	l, err := newLimit(size)
	switch {
	case err != nil || size == 0:
		return "", err
	case l.dir == "":
		return "RLIMIT_DATA", nil
	}
	l.close()
	return "control group", nil
}

// group creates a control group of version 1 or 2.
func (l *limit) group() error {
	own := cgroup.Find(os.DirFS("/"), "self", "memory")
	if own.Version == 0 {
		return errors.New("no control group is mounted")
	}
	var err error
	if l.dir, err = os.MkdirTemp(own.Dirs[0], "steadyfit-"); err != nil {
		return err
	}
	size := strconv.FormatInt(int64(l.size), 10)
	events, limitFile, swapFile, swap := "memory.events", "memory.max", "memory.swap.max", "0"
	if own.Version == 1 {
		events, limitFile, swapFile, swap = "memory.oom_control", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", size
	}
	l.events = filepath.Join(l.dir, events)
	if err := l.write(limitFile, size); err != nil {
		return err
	}
	// A kernel without swap accounting lacks the file.
	if err := l.write(swapFile, swap); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

func (l *limit) write(file, text string) error {
	f, err := os.OpenFile(filepath.Join(l.dir, file), os.O_WRONLY, 0) // fails if the group has no memory controller
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (l *limit) apply(pid int) (err error) {
	switch {
	case l.size == 0:
		return nil
	case l.dir == "":
		err = setDataLimit(pid, uint64(l.size))
	default:
		err = l.write("cgroup.procs", strconv.Itoa(pid))
	}
	if err != nil && !errors.Is(err, syscall.ESRCH) { // ESRCH: the process has ended
		return fmt.Errorf("memory limit of process %d: %w", pid, err)
	}
	return nil
}

func (l *limit) killed() bool {
	kills, _ := cgroup.OOMKills(l.events)
	return kills > 0
}

func (l *limit) String() string {
	if l.dir == "" {
		return fmt.Sprintf("data limit of %v", l.size)
	}
	return fmt.Sprintf("memory limit of %v", l.size)
}

func (l *limit) close() {
	if l.dir != "" {
		_ = os.Remove(l.dir)
	}
}
