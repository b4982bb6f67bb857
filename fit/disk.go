package fit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/internal/files"
)

// disk changes files so that they survive a crash at any moment: what is synced
// stays, and a rename happens or does not.
//
// A sync that fails is final. The kernel may have dropped what it could not
// write, and a second sync of the same file would find nothing to do and
// succeed; so whoever gets the error removes the file and writes a new one.
type disk struct {
	// before is called before every change; an error prevents it. Tests crash
	// there. nil allows everything.
	before func(op, path string) error
}

func (d disk) change(op, path string, do func() error) error {
	if d.before != nil {
		if err := d.before(op, path); err != nil {
			return fmt.Errorf("%s %s: %w", op, path, err)
		}
	}
	if err := do(); err != nil {
		return fmt.Errorf("%s %s: %w", op, path, err)
	}
	return nil
}

func (d disk) makeDir(path string) error {
	return d.change("make", path, func() error { return os.MkdirAll(path, 0o777) })
}

func (d disk) remove(path string) error {
	return d.change("remove", path, func() error { return os.RemoveAll(path) })
}

func (d disk) rename(from, to string) error {
	return d.change("rename", to, func() error { return os.Rename(from, to) })
}

// sync makes the contents of a file durable, or the entries of a folder.
func (d disk) sync(path string) error {
	return d.change("sync", path, func() error { return files.SyncPath(path) })
}

// write creates a file, or overwrites one, and syncs it.
func (d disk) write(path string, content []byte) error {
	return files.Change(d.change).Write(path, content)
}

// replace writes a file so that the path always has either its old content or the
// new.
func (d disk) replace(path string, content []byte) error {
	return files.Change(d.change).Replace(path, content)
}

// discard removes a folder that others may read: it loses its name first, so
// that nobody finds half of it. One that is gone already is no error.
func (d disk) discard(path string) error {
	trash := hidden(path, trashSuffix)
	if err := d.remove(trash); err != nil {
		return err
	}
	if missing(path) {
		return nil
	}
	if err := d.rename(path, trash); err != nil {
		return err
	}
	return d.remove(trash)
}

// probe finds out whether files can be written to a folder.
func (d disk) probe(dir string) error {
	return d.change("write", dir, func() error { return files.Writable(dir, 0) })
}

// copyFiles puts the files of one folder into another. They are linked where
// the file system can do that; whoever wrote them must not change them.
func (d disk) copyFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		err := d.change("copy", target, func() error {
			if os.Link(source, target) == nil {
				return nil
			}
			return files.CopyFile(source, target)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// missing reports whether there is nothing at a path.
func missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
