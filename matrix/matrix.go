// Package matrix applies remedies for growing memory to workloads on the real TensorFlow
// runtime, and reports what each one does.
//
// A [Workload] is a training loop or a part of one that grows, or is said to. A [Remedy]
// is what people do about it. A [Cell] is one workload with one remedy on one runtime:
// this project's packages (go), the Go binding that exists (galeone), or Keras (keras).
//
// Each run of a cell is a child process of its own, since TensorFlow and the allocators
// read their settings once. Runs are ordered in pairs of groups: the workload as it is and
// some remedies, and for the next pair the same backwards, so that a machine that becomes
// slower favours neither side. A child that crashes is a result with a cause.
//
// [Run] expands a [Plan] into runs, leaves out those that the results folder has, and
// starts one child after the other (internal/lab/runner). The samples of a run become a
// memory.Series and a verdict, pairs of runs become a memory.Comparison, and all of them a
// [Result]. Every run is on disk before the next one starts.
//
// What cannot be applied on this machine is reported as "could not apply", with the
// reason. The package does not render results: internal/lab/report does.
package matrix
