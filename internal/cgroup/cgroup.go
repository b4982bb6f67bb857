// Package cgroup reads Linux control groups, versions 1 and 2: limits, the memory left below them, and
// the number of processes killed for lack of memory. On other systems it finds nothing.
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

	"github.com/shirou/gopsutil/v3/mem"
)

// Amount is a number of bytes and the file that contains it. The zero value means unknown, or no limit.
type Amount struct {
	Bytes int64
	File  string
}

func (a Amount) Known() bool { return a.File != "" }

// least returns the lower of two amounts. An unknown amount is ignored.
func least(a, b Amount) Amount {
	if !a.Known() || b.Known() && b.Bytes < a.Bytes {
		return b
	}
	return a
}

// Controller is the control groups of a process for one resource.
type Controller struct {
	Version int
	// Dirs are the folders of the process's group and of its parents that are visible. A container
	// usually sees only its own group.
	Dirs []string
}

// Find returns the control groups of a process ("self" or a number) for a resource ("memory" or
// "cpu"). If a machine mounts both versions, a resource is in only one of them.
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

// memoryFiles returns the names of the usage and limit files in each folder, and the key of the inactive
// file pages in memory.stat.
func (c Controller) memoryFiles() (used, limit, inactive string) {
	if c.Version == 1 {
		return "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file"
	}
	return "memory.current", "memory.max", "inactive_file"
}

// WorkingSet returns the memory of the first group that reports it, without its inactive file pages, which
// the kernel can reclaim at once.
func (c Controller) WorkingSet(fsys fs.FS) Amount {
	usedFile, _, inactive := c.memoryFiles()
	for _, dir := range c.Dirs {
		used, pages := amount(fsys, path.Join(dir, usedFile)), field(read(fsys, path.Join(dir, "memory.stat")), inactive)
		if n, err := strconv.ParseInt(pages, 10, 64); err == nil && used.Known() {
			return Amount{max(used.Bytes-n, 0), used.File}
		}
	}
	return Amount{}
}

// Memory has the memory limits of a process: the lowest ones of its group and the parent groups.
type Memory struct {
	Limit Amount
	// Left is the number of bytes until a limit is reached, file pages included, since the kernel drops them first.
	Left Amount
}

func ReadMemory(fsys fs.FS, pid string) (m Memory) {
	c := Find(fsys, pid, "memory")
	usedFile, limitFile, inactive := c.memoryFiles()
	for _, dir := range c.Dirs {
		stat := read(fsys, path.Join(dir, "memory.stat"))
		if limit := amount(fsys, path.Join(dir, limitFile)); limit.Known() {
			m.Limit = least(m.Limit, limit)
			if used := amount(fsys, path.Join(dir, usedFile)); used.Known() {
				active := strings.Replace(inactive, "inactive", "active", 1)
				held := max(used.Bytes-number(field(stat, inactive))-number(field(stat, active)), 0)
				m.Left = least(m.Left, Amount{max(limit.Bytes-held, 0), limit.File})
			}
		}
		if c.Version == 1 {
			// This value includes the limits of parents that are not visible.
			if n := number(field(stat, "hierarchical_memory_limit")); n > 0 {
				m.Limit = least(m.Limit, Amount{n, path.Join(dir, "memory.stat")})
			}
		}
	}
	return m
}

// Available returns the bytes that a process ("self" or a number) can still allocate: the machine's available
// memory (MemAvailable of /proc/meminfo), or the rest of the limit of its control groups if that is less.
func Available(pid string) Amount {
	var left Amount
	if m, err := mem.VirtualMemory(); err == nil && m.Total > 0 { // Total is 0 if gopsutil cannot read the file
		left = Amount{int64(m.Available), "/proc/meminfo"}
	}
	return least(left, ReadMemory(os.DirFS("/"), pid).Left)
}

// Cores returns the lowest CPU quota of this process in cores, and the file that contains it. 0 means
// no quota.
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

// OOMCounter counts processes that the kernel kills for lack of memory. The zero value reports unknown.
type OOMCounter struct {
	file string
	last int64
}

// NewOOMCounter starts counting in the control group of a process, or on the whole machine if there is
// no group. The kernel counts a kill in the group of the killed process before it sends the signal,
// also if the machine is out of memory (mm/oom_kill.c, __oom_kill_process).
func NewOOMCounter(pid int) OOMCounter {
	c := Find(os.DirFS("/"), strconv.Itoa(pid), "memory")
	for _, file := range c.oomFiles() {
		if n, ok := OOMKills(file); ok {
			return OOMCounter{file, n}
		}
	}
	return OOMCounter{}
}

// New returns the number of kills since the previous call. ok is false if the number is unknown.
func (c *OOMCounter) New() (kills int64, ok bool) {
	n, ok := OOMKills(c.file)
	if !ok {
		return 0, false
	}
	kills, c.last = n-c.last, n
	return kills, true
}

// oomFiles returns files that may contain the number of kills, best first. memory.oom_control contains
// it since Linux 4.13.
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

// OOMKills reads the number of kills from memory.events, memory.oom_control or /proc/vmstat. ok is false
// if the file does not contain it.
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

// number parses an amount; 0 means none. Version 1 represents "no limit" by the largest number of whole
// pages, version 2 by "max".
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || n >= math.MaxInt64>>1 {
		return 0
	}
	return n
}

func field(text, name string) string {
	for line := range strings.Lines(text) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), " "); key == name {
			return value
		}
	}
	return ""
}

// groupPath returns the path of a group from /proc/PID/cgroup: of "4:memory:/app" in version 1, of
// "0::/app" in version 2.
func groupPath(text, controller string, version int) (group string, ok bool) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) == 3 && (version == 2 && fields[0] == "0" && fields[1] == "" || version == 1 &&
			lists(fields[1], controller)) {
			return fields[2], true
		}
	}
	return "", false
}

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

// upwards returns the folders of a group and its parents up to the mount point. root is the mounted
// group, often that of the container. A group outside root is visible only as the mount point.
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
