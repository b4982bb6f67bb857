package watch

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
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
		words := bytes.Split(text, []byte{0})
		for _, word := range words[:min(4, len(words))] {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if filepath.Base(string(word)) == name && pid != os.Getpid() {
				pids = append(pids, pid)
				break
			}
		}
	}
	if len(pids) == 0 {
		return nil, fmt.Errorf("%w: no process runs %s", ErrNotFound, name)
	}
	return pids, nil
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
