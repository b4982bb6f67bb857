package memory

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"steadyfit/internal/cgroup"
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
	kB := func(name string) Reading { return kilobytes(cgroup.Line(text, name)) }
	s := status{
		Usage:  Usage{RSS: kB("VmRSS:"), Anon: kB("RssAnon:"), File: kB("RssFile:"), Peak: kB("VmHWM:")},
		shared: kB("RssShmem:"), swap: kB("VmSwap:"), threads: amount(cgroup.Number(bytes.TrimSpace(cgroup.Line(text,
			"Threads:")))),
	}
	switch {
	case s.Usage != (Usage{}):
		return s, nil
	case len(cgroup.Line(text, "State:")) > 0:
		return s, os.ErrProcessDone
	}
	return s, fmt.Errorf("%w: the status of the process contains no memory amounts", ErrUnavailable)
}

func kilobytes(text []byte) Reading {
	text, ok := bytes.CutSuffix(bytes.TrimSpace(text), []byte(" kB"))
	if !ok {
		return Reading{}
	}
	r := amount(cgroup.Number(text))
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
	text, err := cgroup.ReadFile(p.status, buffer)
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
