package memory

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// statusSize is more than /proc/self/status has ever been; the memory lines
// come in its first half.
const statusSize = 8 << 10

// Read asks the operating system how much memory this process uses, now. It
// costs one read of /proc/self/status, some 20 us, and allocates a few bytes, so
// that watching memory does not move it. A [Sampler] does the same at half the
// cost, since it keeps the file open.
//
// Amounts that this kernel does not tell are absent from the result. If it
// tells none, the error is ErrUnavailable.
func Read() (Usage, error) {
	u, err := readStatus("/proc/self/status")
	if u.Peak.OK {
		u.Peak.Bytes = max(u.Peak.Bytes, Bytes(highest.Load()))
	}
	return u, err
}

// highest is the largest peak that this process had when its peak began anew.
var highest atomic.Int64

// ReadPID is Read for another process. If there is no such process, or it has
// ended and only waits for its parent to collect it, the error is ErrEnded.
func ReadPID(pid int) (Usage, error) {
	return readStatus("/proc/" + strconv.Itoa(pid) + "/status")
}

func readStatus(path string) (Usage, error) {
	fd, err := syscall.Open(path, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return Usage{}, unreadable(path, err)
	}
	defer syscall.Close(fd)
	var buffer [statusSize]byte
	text, err := readAll(fd, buffer[:])
	if err != nil {
		return Usage{}, unreadable(path, err)
	}
	status, err := parseStatus(text)
	return status.Usage, err
}

// unreadable says what a failed system call on a file of /proc means.
func unreadable(path string, err error) error {
	_, mounted := os.Stat("/proc/self")
	if mounted == nil && (errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOENT)) {
		return fmt.Errorf("%w: %s: %w", ErrEnded, path, err)
	}
	return fmt.Errorf("%w: %s: %w; mount /proc to have it", ErrUnavailable, path, err)
}

// readAll fills the buffer from the start of a file.
func readAll(fd int, buffer []byte) ([]byte, error) {
	n := 0
	for n < len(buffer) {
		m, err := syscall.Pread(fd, buffer[n:], int64(n))
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return nil, err
		}
		if m <= 0 {
			break
		}
		n += m
	}
	return buffer[:n], nil
}

// status is what /proc/PID/status says.
type status struct {
	Usage
	shared, swap, threads Reading
}

// parseStatus reads the text of /proc/PID/status, which says "kB" and means
// units of 1024 bytes. A process that is ending, or has ended and is not yet
// collected, has a state but no memory any more; kernel threads never have any.
func parseStatus(text []byte) (status, error) {
	var s status
	state := false
	for len(text) > 0 {
		line := text
		if end := bytes.IndexByte(text, '\n'); end >= 0 {
			line, text = text[:end], text[end+1:]
		} else {
			text = nil
		}
		name, value, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		switch string(name) {
		case "State":
			state = true
		case "VmRSS":
			s.RSS = kilobytes(value)
		case "RssAnon":
			s.Anon = kilobytes(value)
		case "RssFile":
			s.File = kilobytes(value)
		case "RssShmem":
			s.shared = kilobytes(value)
		case "VmSwap":
			s.swap = kilobytes(value)
		case "VmHWM":
			s.Peak = kilobytes(value)
		case "Threads":
			s.threads = number(bytes.TrimSpace(value))
		}
	}
	switch {
	case s.Usage != (Usage{}):
		return s, nil
	case state:
		return s, ErrEnded
	default:
		return s, fmt.Errorf("%w: the process's status says nothing about memory", ErrUnavailable)
	}
}

// kilobytes reads "   1696 kB".
func kilobytes(text []byte) Reading {
	text, ok := bytes.CutSuffix(bytes.TrimSpace(text), []byte(" kB"))
	if !ok {
		return Reading{}
	}
	r := number(text)
	r.Bytes *= KiB
	return r
}

// number reads digits; anything else, such as "max", is unknown.
func number(text []byte) Reading {
	var n Bytes
	for _, c := range text {
		if c < '0' || c > '9' || n > 1<<58 {
			return Reading{}
		}
		n = n*10 + Bytes(c-'0')
	}
	return Reading{Bytes: n, OK: len(text) > 0}
}

// process reads the files of one process, which it keeps open. They stay bound
// to that process: if it ends and its number is given to another, reading fails.
type process struct {
	dir    string
	status int
	rollup int // -1 until it is needed
	buffer [statusSize]byte
}

func (p *process) open(pid int) error {
	p.dir, p.rollup = "/proc/"+strconv.Itoa(pid), -1
	fd, err := syscall.Open(p.dir+"/status", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return unreadable(p.dir+"/status", err)
	}
	p.status = fd
	return nil
}

func (p *process) usage() (status, error) {
	text, err := readAll(p.status, p.buffer[:])
	if err != nil {
		return status{}, unreadable(p.dir+"/status", err)
	}
	return parseStatus(text)
}

func (p *process) pss() Reading {
	if p.rollup < 0 {
		fd, err := syscall.Open(p.dir+"/smaps_rollup", syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
		if err != nil {
			return Reading{}
		}
		p.rollup = fd
	}
	text, err := readAll(p.rollup, p.buffer[:])
	if err != nil {
		return Reading{}
	}
	_, text, found := bytes.Cut(text, []byte("\nPss:"))
	if !found {
		return Reading{}
	}
	line, _, _ := bytes.Cut(text, []byte("\n"))
	return kilobytes(line)
}

func (p *process) resetPeak() error {
	if p.own() {
		// What cannot be read cannot be kept either.
		if u, err := Read(); err == nil && u.Peak.OK {
			highest.Store(int64(u.Peak.Bytes))
		}
	}
	err := os.WriteFile(p.dir+"/clear_refs", []byte("5"), 0)
	if err != nil {
		return fmt.Errorf("%w: the peak cannot be reset: %w", ErrUnavailable, err)
	}
	return nil
}

func (p *process) own() bool { return p.dir == "/proc/"+strconv.Itoa(os.Getpid()) }

func (p *process) mappings() ([]Mapping, error) {
	text, err := os.ReadFile(p.dir + "/smaps")
	if err != nil {
		return nil, unreadable(p.dir+"/smaps", err)
	}
	return parseMappings(string(text)), nil
}

// parseMappings reads smaps: for each mapping a line "start-end perms offset
// device inode   name", then lines "Rss:     4 kB".
func parseMappings(text string) []Mapping {
	byName := map[string]*Mapping{}
	var m *Mapping
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		key, isField := strings.CutSuffix(fields[0], ":")
		if !isField {
			name := "anonymous"
			if len(fields) > 5 {
				name = strings.Join(fields[5:], " ")
			}
			if m = byName[name]; m == nil {
				m = &Mapping{Name: name}
				byName[name] = m
			}
			m.Count++
			continue
		}
		if m == nil || len(fields) < 2 {
			continue
		}
		kb := number([]byte(fields[1])).Bytes * KiB
		switch key {
		case "Size":
			m.Size += kb
		case "Rss":
			m.RSS += kb
		case "Anonymous":
			m.Anon += kb
		}
	}
	list := make([]Mapping, 0, len(byName))
	for _, m := range byName {
		list = append(list, *m)
	}
	slices.SortFunc(list, func(a, b Mapping) int {
		return cmp.Or(cmp.Compare(b.RSS, a.RSS), cmp.Compare(b.Size, a.Size), cmp.Compare(a.Name, b.Name))
	})
	return list
}

func (p *process) close() error {
	if p.rollup >= 0 {
		syscall.Close(p.rollup)
		p.rollup = -1
	}
	err := syscall.Close(p.status)
	p.status = -1
	return err
}

// group reads the control group of a process: what the group holds, and the
// limits on it and on the groups above, as far as they are mounted here.
type group struct {
	used   int // -1 if unknown
	limits []int
	buffer [64]byte
}

// open finds the files once. A group that cannot be found leaves both amounts
// unknown, which is no error: many machines have none.
func (g *group) open(pid int) {
	g.used, g.limits = -1, nil
	groups, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	dirs, used, limit := groupDirs(string(groups), string(mounts))
	for _, dir := range dirs {
		if g.used < 0 {
			if fd, err := syscall.Open(dir+"/"+used, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err == nil {
				g.used = fd
			}
		}
		if fd, err := syscall.Open(dir+"/"+limit, syscall.O_RDONLY|syscall.O_CLOEXEC, 0); err == nil {
			g.limits = append(g.limits, fd)
		}
	}
}

func (g *group) read() (used, limit Reading) {
	used = g.amount(g.used)
	for _, fd := range g.limits {
		// Version 1 writes "no limit" as the largest number of whole pages.
		if l := g.amount(fd); l.OK && l.Bytes < 1<<62 && (!limit.OK || l.Bytes < limit.Bytes) {
			limit = l
		}
	}
	return used, limit
}

func (g *group) amount(fd int) Reading {
	if fd < 0 {
		return Reading{}
	}
	n, err := syscall.Pread(fd, g.buffer[:], 0)
	for err == syscall.EINTR {
		n, err = syscall.Pread(fd, g.buffer[:], 0)
	}
	if err != nil || n <= 0 {
		return Reading{}
	}
	return number(bytes.TrimSpace(g.buffer[:n]))
}

func (g *group) close() {
	if g.used >= 0 {
		syscall.Close(g.used)
	}
	for _, fd := range g.limits {
		syscall.Close(fd)
	}
	g.used, g.limits = -1, nil
}

// groupDirs lists the folders of the memory controller for a process, its own
// group first, and names the files in them. Where a machine has both versions
// of control groups, memory belongs to version 1 if that mounts it.
func groupDirs(groups, mounts string) (dirs []string, used, limit string) {
	var path1, path2 string
	for line := range strings.Lines(groups) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, path, _ := strings.Cut(rest, ":")
		switch {
		case id == "0" && controllers == "":
			path2 = path
		case slices.Contains(strings.Split(controllers, ","), "memory"):
			path1 = path
		}
	}
	var root1, mount1, root2, mount2 string
	for line := range strings.Lines(mounts) {
		place, kind, _ := strings.Cut(line, " - ")
		p, k := strings.Fields(place), strings.Fields(kind)
		if len(p) < 5 || len(k) < 3 {
			continue
		}
		switch {
		case k[0] == "cgroup2":
			root2, mount2 = p[3], p[4]
		case k[0] == "cgroup" && slices.Contains(strings.Split(k[2], ","), "memory"):
			root1, mount1 = p[3], p[4]
		}
	}
	if path1 != "" && mount1 != "" {
		return ancestors(path1, root1, mount1), "memory.usage_in_bytes", "memory.limit_in_bytes"
	}
	if path2 != "" && mount2 != "" {
		return ancestors(path2, root2, mount2), "memory.current", "memory.max"
	}
	return nil, "", ""
}

// ancestors lists the folders from a group up to the mount. root is the group
// that is mounted: in a container it is often the container's own. A group that
// lies outside of it is not visible here, except as the mount.
func ancestors(path, root, mount string) []string {
	rest, inside := strings.CutPrefix(path, strings.TrimSuffix(root, "/"))
	if !inside || (rest != "" && rest[0] != '/') || strings.Contains(rest, "/..") {
		rest = ""
	}
	var dirs []string
	for rest = strings.TrimSuffix(rest, "/"); rest != ""; rest = rest[:strings.LastIndexByte(rest, '/')] {
		dirs = append(dirs, mount+rest)
	}
	return append(dirs, mount)
}
