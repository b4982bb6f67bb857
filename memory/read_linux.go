package memory

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"steadyfit/internal/cgroup"
	"steadyfit/internal/procfile"
)

// unreadable converts an error of reading /proc to os.ErrProcessDone or ErrUnavailable.
func unreadable(err error) error {
	_, mounted := os.Stat("/proc/self")
	if mounted == nil && (errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOENT)) {
		return fmt.Errorf("%w: %w", os.ErrProcessDone, err)
	}
	return fmt.Errorf("%w: %w; mount /proc", ErrUnavailable, err)
}

// parseStatus parses /proc/PID/status, whose kB are 1024 bytes. The file of a process that has ended
// has the state of the process, but no amounts of memory.
func parseStatus(text []byte) (status, error) {
	kB := func(name string) Reading { return kilobytes(procfile.Line(text, name)) }
	s := status{
		Usage:  Usage{RSS: kB("VmRSS:"), Anon: kB("RssAnon:"), File: kB("RssFile:"), Peak: kB("VmHWM:")},
		shared: kB("RssShmem:"), swap: kB("VmSwap:"), threads: amount(procfile.Number(bytes.TrimSpace(procfile.Line(text, "Threads:")))),
	}
	switch {
	case s.Usage != (Usage{}):
		return s, nil
	case len(procfile.Line(text, "State:")) > 0:
		return s, os.ErrProcessDone
	}
	return s, fmt.Errorf("%w: the status of the process contains no memory amounts", ErrUnavailable)
}

func kilobytes(text []byte) Reading {
	text, ok := bytes.CutSuffix(bytes.TrimSpace(text), []byte(" kB"))
	if !ok {
		return Reading{}
	}
	r := amount(procfile.Number(text))
	r.Bytes *= KiB
	return r
}

func amount(n int64, ok bool) Reading { return Reading{Bytes: Bytes(n), OK: ok} }

// process holds the open status of a process. It never reads another process: if the process ends and its
// ID is reused, reading fails.
type process struct {
	dir    string
	status *os.File
}

// folder returns the name of a process in /proc; pid 0 means this process.
func folder(pid int) string {
	if pid == 0 {
		return "self"
	}
	return strconv.Itoa(pid)
}

func (p *process) open(pid int) (err error) {
	p.dir = "/proc/" + folder(pid)
	if p.status, err = os.Open(p.dir + "/status"); err != nil {
		return unreadable(err)
	}
	return nil
}

func (p *process) usage(buffer []byte) (status, error) {
	text, err := procfile.Read(p.status, buffer)
	if err != nil {
		return status{}, unreadable(err)
	}
	return parseStatus(text)
}

func (p *process) resetPeak() error {
	if p.dir == "/proc/"+folder(0) {
		if u, err := Read(); err == nil && u.Peak.OK {
			highest.Store(int64(u.Peak.Bytes))
		}
	}
	if err := os.WriteFile(p.dir+"/clear_refs", []byte("5"), 0); err != nil {
		return fmt.Errorf("%w: the peak cannot be reset: %w", ErrUnavailable, err)
	}
	return nil
}

func (p *process) close() error { return p.status.Close() }

// group holds the open files of control groups: the usage of the process's group, and the limits of
// the group and its parents.
type group struct {
	used   *os.File
	limits []*os.File
	buffer [64]byte
}

func (g *group) open(pid int) {
	c := cgroup.Find(os.DirFS("/"), folder(pid), "memory")
	used, limit, _ := c.MemoryFiles()
	for _, dir := range c.Dirs {
		if g.used == nil {
			g.used, _ = os.Open(dir + "/" + used)
		}
		if file, err := os.Open(dir + "/" + limit); err == nil {
			g.limits = append(g.limits, file)
		}
	}
}

func (g *group) read() (used, limit Reading) {
	for _, file := range g.limits {
		// Version 1 represents "no limit" by the largest number of whole pages.
		if l := amount(procfile.Amount(file, g.buffer[:])); l.OK && l.Bytes < 1<<62 && (!limit.OK || l.Bytes < limit.Bytes) {
			limit = l
		}
	}
	return amount(procfile.Amount(g.used, g.buffer[:])), limit
}

func (g *group) close() {
	for _, file := range append(g.limits, g.used) {
		file.Close()
	}
}
