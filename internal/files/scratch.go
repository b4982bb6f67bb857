package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// scratchTries limits the attempts to make a folder while other processes remove it.
const scratchTries = 100

// Scratch makes a folder for temporary files and a function that removes it. The prefix of its
// name is for one purpose of this program. Folders of that prefix whose process was killed are
// removed first: every process holds a lock on its own. Where the file system has no locks,
// they stay.
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
		// A folder that cannot be removed belongs to another user.
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
			continue // another process removes it
		}
		if _, err := os.Stat(dir); err != nil {
			_ = lock.Close()
			continue
		}
		return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
	}
	return "", nil, fmt.Errorf("%s: a folder for temporary files was removed %d times by other processes", parent, scratchTries)
}

// errNoLocks: the file system has no locks.
var errNoLocks = errors.New("no locks")
