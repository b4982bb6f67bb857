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

// limit limits the memory of a child by a control group, as containers do.
type limit struct {
	size   memory.Bytes // 0 is no limit
	dir    string       // folder of the control group
	events string
}

// newLimit creates a control group of version 1 or 2.
func newLimit(size memory.Bytes) (*limit, error) {
	l := &limit{size: size}
	if size == 0 {
		return l, nil
	}
	own := cgroup.Find(os.DirFS("/"), "self", "memory")
	if own.Version == 0 {
		return l, errors.New("no control group is mounted")
	}
	var err error
	if l.dir, err = os.MkdirTemp(own.Dirs[0], "steadyfit-"); err != nil {
		return l, err
	}
	text := strconv.FormatInt(int64(size), 10)
	events, limitFile, swapFile, swap := "memory.events", "memory.max", "memory.swap.max", "0"
	if own.Version == 1 {
		events, limitFile, swapFile, swap = "memory.oom_control", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", text
	}
	l.events = filepath.Join(l.dir, events)
	if err := l.write(limitFile, text); err != nil {
		return l, err
	}
	// A kernel without swap accounting lacks the file.
	if err := l.write(swapFile, swap); !errors.Is(err, os.ErrNotExist) {
		return l, err
	}
	return l, nil
}

func (l *limit) write(file, text string) error {
	f, err := os.OpenFile(filepath.Join(l.dir, file), os.O_WRONLY, 0) // fails if the group has no memory controller
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

func (l *limit) apply(pid int) error {
	if l.size == 0 {
		return nil
	}
	err := l.write("cgroup.procs", strconv.Itoa(pid))
	if err != nil && !errors.Is(err, syscall.ESRCH) { // ESRCH: the process has ended
		return fmt.Errorf("memory limit of process %d: %w", pid, err)
	}
	return nil
}

func (l *limit) killed() bool {
	kills, _ := cgroup.OOMKills(l.events)
	return kills > 0
}

func (l *limit) String() string { return fmt.Sprintf("memory limit of %v", l.size) }

func (l *limit) close() {
	if l.dir != "" {
		_ = os.Remove(l.dir)
	}
}
