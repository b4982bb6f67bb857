// Package memory says how much memory this process holds, layer by layer, in
// numbers that can be compared from one moment to the next.
//
// It knows nothing of TensorFlow. It is not a profiler of the Go heap: what it
// is for is the memory that the Go runtime cannot see, which native libraries
// take and may never give back.
//
// A value flows through it like this: Read asks the operating system once and
// returns a Usage; each of its amounts is a Reading, which knows whether the
// system told it. An amount that is not known is absent, never zero, in Go as
// in everything that is printed or written.
package memory

import "errors"

// ErrUnavailable means that this system does not say how much memory a process
// uses: no /proc is mounted, or the question was refused.
var ErrUnavailable = errors.New("memory usage is not available on this system")

// Usage is what the operating system says about this process's memory at one
// moment.
type Usage struct {
	// RSS is the memory that is resident: anonymous, file-backed and shared.
	RSS Reading
	// Anon is the anonymous part of RSS: heaps, stacks, what malloc and the Go
	// runtime hold. Compare this from step to step; pages of a library that was
	// just loaded raise RSS but not Anon.
	Anon Reading
	// File is the part of RSS that is backed by files, mostly the code and data
	// of libraries. The system can drop and re-read most of it.
	File Reading
	// Peak is the largest RSS since the process started.
	Peak Reading
}

// Reading is an amount of memory that may be unknown. The zero value is
// unknown.
type Reading struct {
	Bytes Bytes
	// OK is false if the amount is not known; Bytes means nothing then.
	OK bool
}

// Known is a Reading of that amount.
func Known(b Bytes) Reading { return Reading{Bytes: b, OK: true} }

// String is the amount, as Bytes prints it, or "unknown".
func (r Reading) String() string {
	if !r.OK {
		return "unknown"
	}
	return r.Bytes.String()
}
