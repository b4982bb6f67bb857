// Package testkit has what the tests of several packages need: limits of memory, failing disks and a
// fake NVIDIA driver.
package testkit

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
