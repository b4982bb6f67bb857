//go:build gcstress

package tfbind

import "runtime"

// stress collects garbage before each use of a native object. A test then fails if its result
// depends on the garbage collector.
func stress() { runtime.GC() }
