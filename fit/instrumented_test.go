//go:build race || leakcheck

package fit_test

// instrumented says that this build keeps memory of its own: the race detector's, or the
// stacks of leakcheck.
const instrumented = true
