package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"

	"steadyfit/internal/cgroup"
)

// statusSize is larger than /proc/PID/status has ever been.
const statusSize = 8 << 10

// highest is the largest peak of this process before ResetPeak.
var highest atomic.Int64

// ownStatus is the open status file of this process.
var ownStatus atomic.Pointer[os.File]

// Read returns the current memory of this process. It reads /proc/self/status once, in about 10
// us, and does not allocate, so it can be called in each step. Amounts that this kernel does
// not report are unknown. If it reports none, the error is ErrUnavailable.
func Read() (Usage, error) {
	file := ownStatus.Load()
	if file == nil {
		var err error
		if file, err = os.Open("/proc/self/status"); err != nil {
			return Usage{}, unreadable(err)
		}
		if !ownStatus.CompareAndSwap(nil, file) {
			file.Close()
			file = ownStatus.Load()
		}
	}
	var buffer [statusSize]byte
	u, err := readStatus(file, buffer[:])
	if u.Peak.OK {
		u.Peak.Bytes = max(u.Peak.Bytes, Bytes(highest.Load()))
	}
	return u.Usage, err
}

// ReadPID is Read for another process. The error is ErrEnded if there is no such process, or if
// it has ended and its parent has not collected it.
func ReadPID(pid int) (Usage, error) {
	var p process
	if err := p.open(pid); err != nil {
		return Usage{}, err
	}
	defer p.close()
	s, err := p.usage()
	return s.Usage, err
}

func readStatus(file *os.File, buffer []byte) (status, error) {
	text, err := readAll(file, buffer)
	if err != nil {
		return status{}, unreadable(err)
	}
	return parseStatus(text)
}

// unreadable translates the error of a system call on a file of /proc.
func unreadable(err error) error {
	_, mounted := os.Stat("/proc/self")
	if mounted == nil && (errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.ENOENT)) {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return fmt.Errorf("%w: %w; mount /proc", ErrUnavailable, err)
}

// readAll reads the start of a file into the buffer. It does not allocate. A nil file is an
// error.
func readAll(file *os.File, buffer []byte) ([]byte, error) {
	n, err := file.ReadAt(buffer, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return buffer[:n], err
}

// status is the part of /proc/PID/status about memory.
type status struct {
	Usage
	shared, swap, threads Reading
}

// parseStatus parses /proc/PID/status, whose kB are units of 1024 bytes. A process that is
// ending, or has ended and is not yet collected, has a state but no memory.
func parseStatus(text []byte) (status, error) {
	kB := func(name string) Reading { return kilobytes(lineAfter(text, name)) }
	s := status{
		Usage:  Usage{RSS: kB("VmRSS:"), Anon: kB("RssAnon:"), File: kB("RssFile:"), Peak: kB("VmHWM:")},
		shared: kB("RssShmem:"), swap: kB("VmSwap:"), threads: number(bytes.TrimSpace(lineAfter(text, "Threads:"))),
	}
	switch {
	case s.Usage != (Usage{}):
		return s, nil
	case len(lineAfter(text, "State:")) > 0:
		return s, ErrEnded
	}
	return s, fmt.Errorf("%w: the process's status says nothing about memory", ErrUnavailable)
}

// kilobytes parses "   1696 kB".
func kilobytes(text []byte) Reading {
	text, ok := bytes.CutSuffix(bytes.TrimSpace(text), []byte(" kB"))
	if !ok {
		return Reading{}
	}
	r := number(text)
	r.Bytes *= KiB
	return r
}

// number parses digits without allocating; anything else, such as "max", is unknown.
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

// process holds the open files of one process. They stay bound to that process: reading fails
// if the process ends and its ID is reused.
type process struct {
	dir            string
	status, rollup *os.File
	buffer         [statusSize]byte
}

func (p *process) open(pid int) (err error) {
	p.dir = "/proc/" + strconv.Itoa(pid)
	if p.status, err = os.Open(p.dir + "/status"); err != nil {
		return unreadable(err)
	}
	return nil
}

func (p *process) usage() (status, error) { return readStatus(p.status, p.buffer[:]) }

func (p *process) pss() Reading {
	if p.rollup == nil {
		p.rollup, _ = os.Open(p.dir + "/smaps_rollup")
	}
	text, err := readAll(p.rollup, p.buffer[:])
	if err != nil {
		return Reading{}
	}
	return kilobytes(lineAfter(text, "Pss:"))
}

func (p *process) resetPeak() error {
	if p.dir == "/proc/"+strconv.Itoa(os.Getpid()) {
		if u, err := Read(); err == nil && u.Peak.OK {
			highest.Store(int64(u.Peak.Bytes))
		}
	}
	if err := os.WriteFile(p.dir+"/clear_refs", []byte("5"), 0); err != nil {
		return fmt.Errorf("%w: the peak cannot be reset: %w", ErrUnavailable, err)
	}
	return nil
}

func (p *process) close() error {
	p.rollup.Close() // closing nil has no effect
	return p.status.Close()
}

// lineAfter returns the text after a name at the start of a line, up to the end of the line.
func lineAfter(text []byte, name string) []byte {
	for rest := text; ; {
		at := bytes.Index(rest, []byte(name))
		if at < 0 {
			return nil
		}
		start := len(text) - len(rest) + at
		rest = rest[at+len(name):]
		if start == 0 || text[start-1] == '\n' {
			line, _, _ := bytes.Cut(rest, []byte("\n"))
			return line
		}
	}
}

// group holds the open files of a process's control groups: the usage of its own group, and the
// limits of it and its parents. Without control groups both amounts are unknown.
type group struct {
	used   *os.File
	limits []*os.File
	buffer [64]byte
}

func (g *group) open(pid int) {
	c := cgroup.Find(os.DirFS("/"), strconv.Itoa(pid), "memory")
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
		// Version 1 writes "no limit" as the largest number of whole pages.
		if l := amountIn(file, g.buffer[:]); l.OK && l.Bytes < 1<<62 && (!limit.OK || l.Bytes < limit.Bytes) {
			limit = l
		}
	}
	return amountIn(g.used, g.buffer[:]), limit
}

func (g *group) close() {
	for _, file := range append(g.limits, g.used) {
		file.Close()
	}
}

// amountIn reads a file with one number; "max" and a nil file are unknown.
func amountIn(file *os.File, buffer []byte) Reading {
	text, err := readAll(file, buffer)
	if err != nil {
		return Reading{}
	}
	return number(bytes.TrimSpace(text))
}
