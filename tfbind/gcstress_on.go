//go:build gcstress

package tfbind

import "runtime"

// stress collects garbage whenever a native object is about to be used, so
// that a test fails if anything depends on when the collector runs.
func stress() { runtime.GC() }
