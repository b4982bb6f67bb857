package watch

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ByName returns the processes whose program, or whose Python script, has a name.
func ByName(name string) (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, _ := os.ReadFile(file) // the process may have ended
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if slices.Contains(names(strings.Split(string(text), "\x00")), name) && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("%w: no process runs %s", ErrNotFound, name)
	}
	return pids, nil
}

// names returns the name of a program, and that of the script or module if the program is Python.
func names(command []string) []string {
	found := []string{filepath.Base(command[0])}
	if !strings.HasPrefix(found[0], "python") {
		return found
	}
	for _, word := range command[1:] {
		if !strings.HasPrefix(word, "-") {
			return append(found, filepath.Base(word))
		}
	}
	return found
}

// InGroup returns the processes of a control group and of the groups in it. path is its folder, or its path below
// /sys/fs/cgroup.
func InGroup(path string) (pids []int, err error) {
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join("/sys/fs/cgroup", path)
	}
	err = filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(file)
		for _, pid := range strings.Fields(string(text)) {
			if n, err := strconv.Atoi(pid); err == nil && n > 0 {
				pids = append(pids, n)
			}
		}
		return err
	})
	if err == nil && len(pids) == 0 {
		err = fmt.Errorf("%w: the control group %s has no processes", ErrNotFound, path)
	}
	return pids, err
}
