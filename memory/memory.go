// Package memory says how much memory a process holds, layer by layer, and
// decides whether it leaks: with a slope, its interval, and the layer that
// carries it.
//
// It knows nothing of TensorFlow and needs no cgo; it works in any Go program.
// It is not a profiler of the Go heap: what it is for is the memory that the Go
// runtime cannot see, which native libraries take and may never give back.
//
// A value flows through it like this. A [Sampler] asks the operating system, the
// Go runtime and whatever [Source] the caller plugs in (an allocator's own
// figures, counters of live objects, a GPU) once per call, and writes the answers
// into a [Sample]: one [Reading] per [Layer]. An amount that is not known is
// absent, never zero, in Go as in everything that is printed or written. Samples
// go into a [Series], which keeps a bounded number of them. [Series.Judge] cuts
// off the warm-up, estimates the slope of what remains and its uncertainty, and
// returns a [Verdict]: leak, plateau, jump, flat, sawtooth, or inconclusive, with
// the number of steps that would decide. What became of the growth when all was
// closed can be added to it ([Verdict.Trimmed]). [Series.Outcome] is what a run came
// to, in the memory of the host and of a GPU, and [Compare] sets runs with a remedy against
// runs without it: by their slope if these leak ([Leaks]), else by another [Goal].
//
// [Watch] does all of that in the background, [RequireFlat] in a test, and
// [Read] is one cheap look at this process without any of it.
package memory

import "errors"

var (
	// ErrUnavailable means that this system does not say how much memory a process
	// uses: no /proc is mounted, or the question was refused.
	ErrUnavailable = errors.New("memory usage is not available on this system")
	// ErrEnded means that the process that was asked about has ended.
	ErrEnded = errors.New("the process has ended")
)

// Usage is what the operating system says about a process's memory at one
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
// unknown. In a [Sample] the layers that are not memory use it too: a count is
// that many, a time that many nanoseconds ([Layer.Unit]).
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
