//go:build race || leakcheck

package fit_test

// instrumented is true if this build allocates more memory than usual: for the race detector, or
// for the call stacks that leakcheck records.
const instrumented = true
