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

// Scratch is ScratchIn with os.TempDir as the parent folder.
func Scratch(prefix string) (dir string, remove func() error, err error) {
	return ScratchIn(os.TempDir(), prefix)
}

// ScratchIn makes a folder for temporary files and returns a function that removes it. The folder's
// name begins with prefix, which identifies its purpose. Each process locks its folder, and ScratchIn
// first removes the folders of killed processes (ClearScratch).
func ScratchIn(parent, prefix string) (dir string, remove func() error, err error) {
	ClearScratch(parent, prefix)
	return NewScratch(parent, prefix)
}

// NewScratch is like ScratchIn, but does not remove other folders.
func NewScratch(parent, prefix string) (dir string, remove func() error, err error) {
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
	return "", nil, fmt.Errorf("%s: other processes removed the new folder for temporary files %d times", parent,
		scratchTries)
}

// ClearScratch removes the folders of ScratchIn that no process has locked. They belonged to killed
// processes. On a file system without locks, ClearScratch removes nothing.
func ClearScratch(parent, prefix string) {
	// Removing fails for the folders of other users.
	EachLeft(parent, prefix, func(left string) { _ = os.RemoveAll(left) })
}

// EachLeft calls do with each folder of ScratchIn that no process has locked. EachLeft holds the lock
// meanwhile.
func EachLeft(parent, prefix string, do func(left string)) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), prefix) {
			continue
		}
		left := filepath.Join(parent, e.Name())
		if lock, err := lockDir(left); err == nil {
			do(left)
			_ = lock.Close()
		}
	}
}

// ErrLocked means that another process has locked the file.
var ErrLocked = errors.New("locked")

var errNoLocks = errors.New("no locks")

func lockDir(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err = Lock(f); err == nil {
		return f, nil
	}
	_ = f.Close()
	if !errors.Is(err, ErrLocked) {
		err = errNoLocks
	}
	return nil, err
}
