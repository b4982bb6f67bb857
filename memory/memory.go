// Package memory measures the memory of a process by layers and decides whether it leaks. A verdict
// has a slope, an interval and the layer that carries the growth. The package uses neither TensorFlow
// nor cgo. It is not a Go heap profiler: native libraries allocate memory that the Go runtime cannot
// see, and may never return it.
//
// A [Sampler] reads the operating system, the Go runtime and each [Source] (such as allocator
// statistics or a GPU) into a [Sample]: one [Reading] per [Layer]. A [Series] keeps a bounded number
// of samples. [Series.Judge] cuts off the warm-up, estimates the slope of the rest, and returns a
// [Verdict]: leak, plateau, jump, flat, sawtooth, or inconclusive with the number of steps that would
// decide.
//
// [RequireFlat] judges a test, and [Read] is a single cheap reading of this process.
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

	"steadyfit/internal/texts"
)

// ErrUnavailable means that the system does not report the memory of a process, for example because /proc
// is not mounted or access is denied.
var ErrUnavailable = errors.New("memory usage is not available on this system")

// Usage is the memory of a process as reported by the operating system.
type Usage struct {
	// RSS is the resident memory: anonymous, of files and shared.
	RSS Reading
	// Anon is the anonymous part of RSS: stacks, and the heaps of malloc and the Go runtime.
	// Loading a library increases RSS but not Anon.
	Anon Reading
	// File is the part of RSS that belongs to files, mostly libraries. The system can drop most of
	// it and read it again.
	File Reading
	// Peak is the largest RSS since the process started.
	Peak Reading
}

// own is this process, whose files stay open. highest is the largest Peak of this process before
// calls of ResetPeak.
var (
	own     atomic.Pointer[process]
	highest atomic.Int64
)

// self is the folder of this process.
const self = "/proc/self"

// Read returns the current memory of this process. On Linux it takes about 10 us and does not allocate,
// so it can be called after each step. Amounts that the system does not report are unknown. If the system
// reports no amount, the error is ErrUnavailable.
func Read() (Usage, error) {
	p := own.Load()
	if p == nil {
		p = &process{}
		if err := p.open(0); err != nil {
			return Usage{}, err
		}
		if !own.CompareAndSwap(nil, p) {
			_ = p.close()
			p = own.Load()
		}
	}
	var buffer [statusSize]byte
	s, err := p.usage(buffer[:])
	if s.Peak.OK {
		s.Peak.Bytes = max(s.Peak.Bytes, Bytes(highest.Load()))
	}
	return s.Usage, err
}

// status is the memory of a process, with the layers that Usage lacks.
type status struct {
	Usage
	shared, swap, threads Reading
}

// unreadable converts an error of reading /proc to os.ErrProcessDone or ErrUnavailable.
func unreadable(err error) error {
	_, mounted := os.Stat(self)
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

func (p *process) open(pid int) (err error) {
	p.dir = self
	if pid != 0 {
		p.dir = "/proc/" + strconv.Itoa(pid)
	}
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
	if p.dir == self {
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

// Bytes is a number of bytes.
type Bytes int64

// Units in powers of 1024.
const (
	KiB Bytes = 1 << 10
	MiB Bytes = 1 << 20
	GiB Bytes = 1 << 30
)

// String formats the size with one decimal in the largest unit that fits: "512 B", "1.2 GiB",
// "-3.0 KiB".
func (b Bytes) String() string { return texts.FormatBytes(int64(b)) }

// Reading is an amount that may be unknown, as in the zero value. Bytes holds a count or nanoseconds
// for layers in these units.
type Reading struct {
	Bytes Bytes
	// OK is false if the amount is unknown.
	OK bool
}

// Known returns a known amount.
func Known(b Bytes) Reading { return Reading{Bytes: b, OK: true} }

// String formats the amount like Bytes.String, or returns "unknown".
func (r Reading) String() string {
	if !r.OK {
		return "unknown"
	}
	return r.Bytes.String()
}
