// Package matrix applies remedies for growing memory to workloads on the real TensorFlow
// runtime, and reports the effect of each one.
//
// A [Workload] is a training loop, or a part of one, whose memory grows or is said to grow. A
// [Remedy] is a measure that people take against that. A [Cell] is one workload with one remedy
// on one runtime: this project's packages (go), galeone's Go binding (galeone), or Keras
// (keras).
//
// Each run of a cell is its own child process, since TensorFlow and the allocators read their
// settings once. Runs form groups of a baseline and some remedies. Every second pair runs its
// groups backwards, so that a machine that becomes slower favours neither side. A child that
// crashes is a result with a cause.
//
// [Run] expands a [Plan] into runs, leaves out those that the results folder already has, and
// starts one child after the other (internal/lab/runner). The samples of a run become a
// memory.Series and a verdict, pairs of runs become a memory.Comparison, and all of them a
// [Result]. Every run is on disk before the next one starts.
//
// A remedy that cannot be applied on this machine is reported as "could not apply", with the
// reason. Package internal/lab/report renders results.
package matrix
