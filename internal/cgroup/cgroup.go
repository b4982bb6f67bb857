// Package cgroup reads the control groups of Linux, versions 1 and 2: the limits on a process,
// the memory left below them, and the number of processes that the kernel killed because memory
// ran out. On other systems it finds nothing.
package cgroup

import (
	"cmp"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Amount is a number of bytes and the file from which it was read. The zero value means unknown
// or no limit.
type Amount struct {
	Bytes int64
	File  string
}

// Known reports whether the amount is known.
func (a Amount) Known() bool { return a.File != "" }

// least returns the lower of two amounts. An unknown amount counts as the higher one.
func least(a, b Amount) Amount {
	if !a.Known() || b.Known() && b.Bytes < a.Bytes {
		return b
	}
	return a
}

// Controller holds the groups of a process for one resource.
type Controller struct {
	Version int
	// Dirs are the folders of the process's group and of its parents, up to the mounted one. A
	// container usually sees only its own group.
	Dirs []string
}

// Find returns the groups of a process ("self" or a number) for a resource ("memory", "cpu"). A
// controller is in version 1 or in version 2, never in both; a machine that mounts both lists
// it in version 1.
func Find(fsys fs.FS, pid, controller string) Controller {
	groups, mounts := read(fsys, "/proc/"+pid+"/cgroup"), read(fsys, "/proc/self/mountinfo")
	for version := 1; version <= 2; version++ {
		group, ok := groupPath(groups, controller, version)
		if !ok {
			continue
		}
		if root, point, ok := mount(mounts, controller, version); ok {
			return Controller{version, upwards(group, root, point)}
		}
	}
	return Controller{}
}

// MemoryFiles returns the names of the memory controller's files in each folder of Dirs, and
// the key in memory.stat of the inactive file pages, which the kernel reclaims first.
func (c Controller) MemoryFiles() (used, limit, inactive string) {
	if c.Version == 1 {
		return "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"
	}
	return "memory.current", "memory.max", "inactive_file"
}

// Memory holds the memory limits of the groups of a process. Each amount is the lowest over the
// group and its parents.
type Memory struct {
	Limit Amount
	// Left is the amount that can be allocated before a limit is reached. It includes inactive
	// file pages, since the kernel drops them first.
	Left Amount
	// High is the amount above which the kernel slows the process down; version 2 only.
	High Amount
	// Swap is the limit of swap space; version 2 only.
	Swap Amount
}

// ReadMemory reads the memory limits of a process.
func ReadMemory(fsys fs.FS, pid string) (m Memory) {
	c := Find(fsys, pid, "memory")
	usedFile, limitFile, inactive := c.MemoryFiles()
	for _, dir := range c.Dirs {
		stat := read(fsys, path.Join(dir, "memory.stat"))
		if limit := amount(fsys, path.Join(dir, limitFile)); limit.Known() {
			m.Limit = least(m.Limit, limit)
			if used := amount(fsys, path.Join(dir, usedFile)); used.Known() {
				held := max(used.Bytes-number(field(stat, inactive)), 0)
				m.Left = least(m.Left, Amount{max(limit.Bytes-held, 0), limit.File})
			}
		}
		if c.Version == 1 {
			// This value includes the limits of groups above the mounted one.
			if n := number(field(stat, "hierarchical_memory_limit")); n > 0 {
				m.Limit = least(m.Limit, Amount{n, path.Join(dir, "memory.stat")})
			}
			continue
		}
		m.High = least(m.High, amount(fsys, path.Join(dir, "memory.high")))
		m.Swap = least(m.Swap, amount(fsys, path.Join(dir, "memory.swap.max")))
	}
	return m
}

// Cores returns the lowest CPU quota of this process in cores and the file that
// sets it; 0 means no quota.
func Cores(fsys fs.FS) (cores float64, file string) {
	c := Find(fsys, "self", "cpu")
	for _, dir := range c.Dirs {
		name := path.Join(dir, "cpu.max") // "QUOTA PERIOD"
		fields := strings.Fields(read(fsys, name))
		if c.Version == 1 {
			name = path.Join(dir, "cpu.cfs_quota_us")
			fields = []string{read(fsys, name), read(fsys, path.Join(dir, "cpu.cfs_period_us"))}
		}
		if len(fields) != 2 {
			continue
		}
		quota, period := number(fields[0]), number(fields[1]) // "max" and -1 mean no quota
		if n := float64(quota) / float64(period); quota > 0 && period > 0 && (cores == 0 || n < cores) {
			cores, file = n, name
		}
	}
	return cores, file
}

// OOMCounter counts the processes that the kernel kills because memory ran out. The zero value
// does not count.
type OOMCounter struct {
	file string
	last int64
}

// NewOOMCounter starts counting in the memory group of a process or, without one, on the whole
// machine. The kernel counts a kill in the group of the killed process before it sends the
// signal, even if the machine rather than the group ran out of memory (mm/oom_kill.c,
// __oom_kill_process).
func NewOOMCounter(pid int) OOMCounter {
	c := Find(os.DirFS("/"), strconv.Itoa(pid), "memory")
	for _, file := range c.oomFiles() {
		if n, ok := OOMKills(file); ok {
			return OOMCounter{file, n}
		}
	}
	return OOMCounter{}
}

// New returns the number of kills since the last call; ok is false if unknown.
func (c *OOMCounter) New() (kills int64, ok bool) {
	n, ok := OOMKills(c.file)
	if !ok {
		return 0, false
	}
	kills, c.last = n-c.last, n
	return kills, true
}

// oomFiles returns the files that may count kills, the best first. Before Linux 4.13,
// memory.oom_control has no count.
func (c Controller) oomFiles() (files []string) {
	names := []string{"memory.events.local", "memory.events"}
	if c.Version == 1 {
		names = []string{"memory.oom_control"}
	}
	for _, dir := range c.Dirs {
		for _, name := range names {
			files = append(files, path.Join(dir, name))
		}
	}
	return append(files, "/proc/vmstat")
}

// OOMKills reads the number of kills from memory.events, memory.oom_control or /proc/vmstat; ok
// is false if the file does not contain it.
func OOMKills(file string) (kills int64, ok bool) {
	text, _ := os.ReadFile(file)
	n, err := strconv.ParseInt(field(string(text), "oom_kill"), 10, 64)
	return n, err == nil
}

func read(fsys fs.FS, file string) string {
	text, _ := fs.ReadFile(fsys, strings.TrimPrefix(file, "/"))
	return strings.TrimSpace(string(text))
}

func amount(fsys fs.FS, file string) Amount {
	text := read(fsys, file)
	if n := number(text); n > 0 || text == "0" {
		return Amount{n, file}
	}
	return Amount{}
}

// number parses an amount; 0 means none. Version 1 writes "no limit" as the largest number of
// whole pages, version 2 as "max".
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= math.MaxInt64>>1 {
		return 0
	}
	return n
}

// field returns the value of a line "name value".
func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			return value
		}
	}
	return ""
}

// groupPath returns the group from /proc/PID/cgroup: "4:memory:/app" in version 1, "0::/app" in
// version 2.
func groupPath(text, controller string, version int) (group string, ok bool) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && (version == 2 && fields[0] == "0" && fields[1] == "" || version == 1 && lists(fields[1], controller)) {
			return fields[2], true
		}
	}
	return "", false
}

// mount returns the mounted group and its mount point from /proc/self/mountinfo.
func mount(text, controller string, version int) (root, point string, ok bool) {
	for line := range strings.Lines(text) {
		left, right, _ := strings.Cut(line, " - ")
		place, kind := strings.Fields(left), strings.Fields(right)
		if len(place) < 5 || len(kind) < 3 {
			continue
		}
		if version == 2 && kind[0] == "cgroup2" || version == 1 && kind[0] == "cgroup" && lists(kind[2], controller) {
			return place[3], place[4], true
		}
	}
	return "", "", false
}

func lists(controllers, controller string) bool {
	return slices.Contains(strings.Split(controllers, ","), controller)
}

// upwards lists the folders from a group up to the mount. In a container, the mounted group
// (root) is often the container's own, and the group's name includes it. A group outside of
// root is only visible as the mount itself.
func upwards(group, root, point string) (dirs []string) {
	rest, inside := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
	if !inside || rest != "" && rest[0] != '/' || strings.Contains(rest, "/..") {
		rest = ""
	}
	for rest = cmp.Or(rest, "/"); rest != "/"; rest = path.Dir(rest) {
		dirs = append(dirs, path.Join(point, rest))
	}
	return append(dirs, point)
}
