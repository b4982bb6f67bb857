package memory

import (
	"bytes"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
)

// gauge reads /proc/self/statm, or files of the control group.
type gauge struct {
	statm int // -1 if it is not open
	group group
	// stat is memory.stat of the group whose use group.used tells, or -1; inactive is
	// the line in it that is taken off.
	stat     int
	inactive string
	page     Bytes
	buffer   [statusSize]byte
}

func (g *gauge) open(layer Layer) error {
	g.statm, g.stat, g.page = -1, -1, Bytes(os.Getpagesize())
	g.group.used = -1
	switch layer {
	case CgroupUsed:
		g.group.open(os.Getpid())
		return nil
	case CgroupWorkingSet:
		groups, _ := os.ReadFile("/proc/self/cgroup")
		mounts, _ := os.ReadFile("/proc/self/mountinfo")
		dirs, used, _ := groupDirs(string(groups), string(mounts))
		g.openGroup(dirs, used)
		return nil
	}
	fd, err := syscall.Open("/proc/self/statm", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return unreadable("/proc/self/statm", err)
	}
	g.statm = fd
	return nil
}

// openGroup takes the first folder that has both files; the file named used tells the
// version of control groups. Without any, the amount stays unknown.
func (g *gauge) openGroup(dirs []string, used string) {
	g.inactive = "\ninactive_file "
	if used == "memory.usage_in_bytes" {
		g.inactive = "\ntotal_inactive_file " // of the groups below, too, as used is
	}
	for _, dir := range dirs {
		fd, err := syscall.Open(dir+"/"+used, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			continue
		}
		stat, err := syscall.Open(dir+"/memory.stat", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			syscall.Close(fd)
			continue
		}
		g.group.used, g.stat = fd, stat
		return
	}
}

func (g *gauge) read(layer Layer) Reading {
	switch layer {
	case CgroupUsed:
		return g.group.amount(g.group.used)
	case CgroupWorkingSet:
		return g.workingSet()
	}
	if g.statm < 0 {
		return Reading{}
	}
	text, err := readAll(g.statm, g.buffer[:])
	if err != nil {
		return Reading{}
	}
	// size, resident, shared (files and shmem), in pages.
	_, text, _ = bytes.Cut(text, []byte(" "))
	first, text, _ := bytes.Cut(text, []byte(" "))
	second, _, _ := bytes.Cut(text, []byte(" "))
	resident, shared := number(first), number(second)
	if !resident.OK || !shared.OK {
		return Reading{}
	}
	if layer == Anon {
		resident.Bytes -= min(shared.Bytes, resident.Bytes)
	}
	return Known(resident.Bytes * g.page)
}

func (g *gauge) workingSet() Reading {
	used := g.group.amount(g.group.used)
	if !used.OK || g.stat < 0 {
		return Reading{}
	}
	text, err := readAll(g.stat, g.buffer[:])
	if err != nil {
		return Reading{}
	}
	at := bytes.Index(text, []byte(g.inactive))
	if at < 0 {
		return Reading{}
	}
	line, _, _ := bytes.Cut(text[at+len(g.inactive):], []byte("\n"))
	inactive := number(line)
	if !inactive.OK {
		return Reading{}
	}
	return Known(max(used.Bytes-inactive.Bytes, 0))
}

func (g *gauge) close() error {
	g.group.close()
	var failed error
	for _, fd := range []*int{&g.statm, &g.stat} {
		if *fd < 0 {
			continue
		}
		if err := syscall.Close(*fd); err != nil && failed == nil {
			failed = os.NewSyscallError("close "+strconv.Itoa(*fd), err)
		}
		*fd = -1
	}
	return failed
}

func uncertainty(layer Layer) Bytes {
	online := runtime.NumCPU()
	if text, err := os.ReadFile("/sys/devices/system/cpu/online"); err == nil {
		online = max(online, countCPUs(string(text)))
	}
	batch := max(32, 2*online)
	if layer == CgroupUsed || layer == CgroupWorkingSet {
		batch = 64
	}
	// Only those that this process may run on count for it.
	return Bytes(runtime.NumCPU() * batch * os.Getpagesize())
}

// countCPUs counts what a list such as "0-3,8" names; 0 if it is none.
func countCPUs(list string) int {
	count := 0
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		to := from
		if err == nil && isRange {
			to, err = strconv.Atoi(last)
		}
		if err != nil || to < from {
			return 0
		}
		count += to - from + 1
	}
	return count
}
