// Package matrix applies remedies for growing memory to training loops on the real TensorFlow
// runtime and measures their effect.
//
// A [Workload] is a training loop, or a part of one. A [Remedy] is a setting or a change of the
// loop that is said to lower memory. A [Combination] is a workload with a remedy on a runtime:
// this project's packages (go), galeone's Go binding (galeone), or Keras (keras).
//
// [Run] runs each combination several times, each time in a new child process, because
// TensorFlow and the allocators read their settings only once. Runs form groups of a baseline
// and some remedies. Every second pair of runs has the reverse order, so that a machine that
// becomes slower does not favour one side. A crash of a child is a result with a cause. Each
// run is on disk before the next one starts, and the same plan resumes in the same folder.
//
// The samples of a run become a memory.Verdict, pairs of runs become a compare.Comparison, and
// all of them a [Result]. A remedy that cannot be applied is reported with the reason. Package
// internal/lab/report renders results.
package matrix
