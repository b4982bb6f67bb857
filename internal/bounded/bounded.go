// Package bounded limits the memory that a function may allocate in a test.
package bounded

import (
	"runtime"
	"testing"
)

// Allocates runs f and fails the test if the process allocates more than most bytes in the meantime.
// Bytes that are freed again count, too.
func Allocates(t testing.TB, most int, f func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	if took := after.TotalAlloc - before.TotalAlloc; took > uint64(most) {
		t.Fatalf("%d bytes were allocated, expected at most %d", took, most)
	}
}
