package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
)

// unreadable converts an error of reading /proc to os.ErrProcessDone or ErrUnavailable.
func unreadable(err error) error {
	_, mounted := os.Stat("/proc/self")
	if mounted == nil && (errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOENT)) {
		return fmt.Errorf("%w: %w", os.ErrProcessDone, err)
	}
	return fmt.Errorf("%w: %w; mount /proc", ErrUnavailable, err)
}

// statusSize exceeds the size of every known /proc/PID/status.
const statusSize = 8 << 10

// parseStatus parses /proc/PID/status, whose kB are 1024 bytes. The file of a process that has ended
// has the state of the process, but no amounts of memory. parseStatus does not allocate.
func parseStatus(text []byte) (status, error) {
	kB := func(name string) Reading { return field(text, name, " kB", KiB) }
	s := status{
		Usage:  Usage{RSS: kB("\nVmRSS:"), Anon: kB("\nRssAnon:"), File: kB("\nRssFile:"), Peak: kB("\nVmHWM:")},
		shared: kB("\nRssShmem:"), swap: kB("\nVmSwap:"), threads: field(text, "\nThreads:", "", 1),
	}
	switch {
	case s.Usage != (Usage{}):
		return s, nil
	case bytes.Contains(text, []byte("\nState:")):
		return s, os.ErrProcessDone
	}
	return s, fmt.Errorf("%w: the status of the process contains no memory amounts", ErrUnavailable)
}

// field returns the number in the line that begins with name and ends with suffix. It is unknown without such a line.
func field(text []byte, name, suffix string, unit Bytes) Reading {
	_, rest, _ := bytes.Cut(text, []byte(name))
	line, _, _ := bytes.Cut(rest, []byte("\n"))
	digits, found := bytes.CutSuffix(bytes.TrimSpace(line), []byte(suffix))
	if !found {
		return Reading{}
	}
	n, err := strconv.ParseInt(string(digits), 10, 64)
	return Reading{Bytes: unit * Bytes(n), OK: err == nil}
}

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
	n, err := p.status.ReadAt(buffer, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return status{}, unreadable(err)
	}
	return parseStatus(buffer[:n])
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
