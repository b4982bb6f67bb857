package files

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// scratchTries is the maximum number of folders that Scratch creates when others remove them.
const scratchTries = 100

// Scratch makes a folder for temporary files and returns a function that removes it. The folder's name
// begins with prefix, which identifies its purpose. Each process locks its folder, and Scratch removes
// folders without a lock, which belonged to killed processes. File systems without locks keep them.
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
			continue // another process has removed the folder
		}
		if _, err := os.Stat(dir); err != nil {
			_ = lock.Close()
			continue
		}
		return dir, func() error { return errors.Join(os.RemoveAll(dir), lock.Close()) }, nil
	}
	return "", nil, fmt.Errorf("%s: other processes removed the new folder for temporary files %d times", parent, scratchTries)
}

var errNoLocks = errors.New("no locks")
