package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// scratchTries limits how often Scratch makes a folder that another process removes.
const scratchTries = 100

// Scratch makes a folder for temporary files and returns a function that removes it. prefix is
// the prefix of the folder's name, unique to one purpose of this program. Scratch first
// removes the folders with that prefix whose process was killed: every process holds a lock on
// its folder. On file systems without locks, they stay.
func Scratch(prefix string) (dir string, remove func() error, err error) {
	return scratchIn(os.TempDir(), prefix)
}

func scratchIn(parent, prefix string) (dir string, remove func() error, err error) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return "", nil, err
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		// If the removal fails, the folder belongs to another user.
		left := filepath.Join(parent, e.Name())
		if lock, err := lockDir(left); err == nil {
			_ = os.RemoveAll(left)
			_ = lock.Close()
		}
	}
	for range scratchTries {
		dir, err := os.MkdirTemp(parent, prefix)
		if err != nil {
			return "", nil, err
		}
		lock, err := lockDir(dir)
		if errors.Is(err, errNoLocks) {
			return dir, func() error { return os.RemoveAll(dir) }, nil
		}
		if err != nil {
			continue // another process has removed it
		}
		if _, err := os.Stat(dir); err != nil {
			_ = lock.Close()
			continue
		}
		return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
	}
	return "", nil, fmt.Errorf("%s: other processes removed the new folder for temporary files %d times", parent, scratchTries)
}

// errNoLocks means that the file system has no locks.
var errNoLocks = errors.New("no locks")
