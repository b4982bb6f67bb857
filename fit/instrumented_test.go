//go:build race

package fit_test

// instrumented is true if this build allocates more memory than usual, for the race detector.
const instrumented = true
