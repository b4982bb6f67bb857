package testkit

import (
	"os"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// DiskFailure makes one change to files fail, or that change and all later ones, and records the
// changes. Its method Before is meant for files.Disk.Before.
type DiskFailure struct {
	sync.Mutex
	At    int // number of the change that fails, from 0
	Err   error
	All   bool // all later changes fail, too
	Count int
	Ops   []string
}

func (f *DiskFailure) Before(op, path string) error {
	f.Lock()
	defer f.Unlock()
	at := f.Count
	f.Count++
	f.Ops = append(f.Ops, op+" "+path)
	if at == f.At || (f.All && at > f.At) {
		return f.Err
	}
	return nil
}

// FileNames returns the names of the files in a folder.
func FileNames(t testing.TB, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	found := []string{}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}
