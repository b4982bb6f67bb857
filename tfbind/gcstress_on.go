//go:build gcstress

package tfbind

import "runtime"

// stress collects garbage before each use of a native object, so that a test fails if its
// result depends on when the collector runs.
func stress() { runtime.GC() }
