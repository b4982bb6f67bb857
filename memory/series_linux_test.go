package memory

import (
	"encoding/binary"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The first sample makes all memory of a series resident, so that sampling does not look like
// growth.
func TestSeriesIsResident(t *testing.T) {
	s := Series{Keep: 1 << 20}
	s.Append(&Sample{At: time.Now(), Values: []Value{{RSS, Known(1)}}})
	assert.Zero(t, absentPages(t, s.steps[:cap(s.steps)]), "steps")
	assert.Zero(t, absentPages(t, s.times[:cap(s.times)]), "times")
	assert.Zero(t, absentPages(t, s.columns[0]), "values of a layer")
	assert.Positive(t, absentPages(t, make([]int, 16<<20)), "memory that nobody used")
}

// absentPages returns the number of pages of a slice that are not in memory. Bit 63 of an entry of
// /proc/self/pagemap marks a page that is in memory (proc(5)).
func absentPages[T any](t *testing.T, values []T) (absent int) {
	t.Helper()
	pages, err := os.Open("/proc/self/pagemap")
	require.NoError(t, err)
	defer pages.Close()
	size := uintptr(os.Getpagesize())
	first := uintptr(unsafe.Pointer(unsafe.SliceData(values)))
	end := first + uintptr(len(values))*unsafe.Sizeof(values[0])
	entries := make([]byte, 8*((end-1)/size-first/size+1))
	_, err = pages.ReadAt(entries, int64(8*(first/size)))
	require.NoError(t, err)
	for i := 0; i < len(entries); i += 8 {
		if binary.NativeEndian.Uint64(entries[i:])>>63 == 0 {
			absent++
		}
	}
	return absent
}
