// Package matrix applies remedies for growing memory to workloads on the real
// TensorFlow runtime, and says what each one does.
//
// A [Workload] is a training loop or a piece of one that is known, or said, to
// grow. A [Remedy] is what people are told to do about it: a declaration of what
// it sets, how to see that it took, and where it makes no sense. A cell is one
// workload with one remedy on one runtime: this project's packages (go), the Go
// binding that exists (galeone), or Keras (keras).
//
// Each run of a cell is a fresh child process, since TensorFlow and the allocators
// read their settings once. Runs are ordered in groups: the workload as it is,
// then some remedies, and for the next pair the same backwards, so that a machine
// that becomes slower, or a cache that becomes warmer, favours neither side. A
// child that dies is a result with a cause, not a failure of the matrix.
//
// A value flows through it like this. [Run] expands a [Plan] into runs, leaves out
// those that the results folder has already, and starts one child after the other.
// Package cell is what they say to each other. The samples of a run become a
// memory.Series and a verdict; pairs of runs become a memory.Comparison; all of
// them a [Result], which package report renders. Every finished run is written to
// disk before the next one starts.
//
// It is no profiler and gives no advice of its own: what it cannot apply on this
// machine it reports as "could not apply", with the reason.
package matrix
