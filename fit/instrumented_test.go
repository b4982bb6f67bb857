//go:build race || leakcheck

package fit_test

// instrumented is true if this build allocates more: for the race detector, or for the stacks
// of leakcheck.
const instrumented = true
