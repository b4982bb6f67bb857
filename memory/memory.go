// Package memory measures the memory of a process, layer by layer, and decides whether it
// leaks: with a slope, an interval, and the layer that carries the growth.
//
// It needs neither TensorFlow nor cgo. It is not a profiler of the Go heap: it measures memory
// that the Go runtime cannot see, which native libraries allocate and may never return.
//
// A [Sampler] reads the operating system, the Go runtime and each [Source] of the caller (an
// allocator's figures, counters of live objects, a GPU) and writes a [Sample]: one [Reading]
// per [Layer]. An unknown amount is absent, never zero. A [Series] keeps a bounded number of
// samples. [Series.Judge] cuts off the warm-up, estimates the slope of the rest, and returns
// a [Verdict]: leak, plateau, jump, flat, sawtooth, or inconclusive, with the number of steps
// that would decide. [Verdict.Trimmed] adds what became of the growth when all was closed.
// [Series.Outcome] is the result of a run, and [Compare] compares runs with a remedy with
// runs without it.
//
// [Watch] does all of that in the background, [RequireFlat] in a test, and [Read] is one
// cheap reading of this process.
package memory

import "errors"

var (
	// ErrUnavailable means that this system does not report the memory of a process: no
	// /proc is mounted, or access is denied.
	ErrUnavailable = errors.New("memory usage is not available on this system")
	// ErrEnded means that the process has ended.
	ErrEnded = errors.New("the process has ended")
)

// Usage is the memory of a process at one moment, as the operating system reports it.
type Usage struct {
	// RSS is the resident memory: anonymous, file-backed and shared.
	RSS Reading
	// Anon is the anonymous part of RSS: heaps, stacks, and the memory that malloc and the Go
	// runtime hold. Loading a library raises RSS but not Anon.
	Anon Reading
	// File is the part of RSS that is backed by files, mostly libraries. The system can
	// drop and re-read most of it.
	File Reading
	// Peak is the largest RSS since the process started.
	Peak Reading
}

// Reading is an amount that may be unknown; the zero value is unknown. Layers that are not
// memory also use it, with a count or nanoseconds in Bytes.
type Reading struct {
	Bytes Bytes
	// OK is false if the amount is unknown.
	OK bool
}

// Known returns a Reading of a known amount.
func Known(b Bytes) Reading { return Reading{Bytes: b, OK: true} }

// String formats the amount as Bytes does, or is "unknown".
func (r Reading) String() string {
	if !r.OK {
		return "unknown"
	}
	return r.Bytes.String()
}
