// Package disk changes files so that they survive a crash at any moment: synced content stays,
// and a rename happens completely or not at all.
//
// A failed sync is final: the kernel may have dropped the data that it could not write, and a
// second sync of the same file would succeed without writing them. The caller removes the file
// and writes a new one.
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/internal/files"
)

// Disk makes changes to files. The zero value is ready to use.
type Disk struct {
	// Before is called before every change, and its error prevents the change. Tests use it to
	// simulate crashes. nil allows everything.
	Before func(op, path string) error
}

// Change makes one change; op and path describe it in errors.
func (d Disk) Change(op, path string, do func() error) (err error) {
	if d.Before != nil {
		err = d.Before(op, path)
	}
	if err == nil {
		err = do()
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, path, err)
	}
	return nil
}

// MakeDir creates a folder and its parents.
func (d Disk) MakeDir(path string) error {
	return d.Change("make", path, func() error { return os.MkdirAll(path, 0o777) })
}

// Remove removes a file, or a folder with its content, if it exists.
func (d Disk) Remove(path string) error {
	return d.Change("remove", path, func() error { return os.RemoveAll(path) })
}

// Rename renames a file or folder.
func (d Disk) Rename(from, to string) error {
	return d.Change("rename", to, func() error { return os.Rename(from, to) })
}

// Sync makes the content of a file durable, or the entries of a folder.
func (d Disk) Sync(path string) error {
	return d.Change("sync", path, func() error { return files.SyncPath(path) })
}

// Write creates or overwrites a file, and syncs it.
func (d Disk) Write(path string, content []byte) error {
	return files.Change(d.Change).Write(path, content)
}

// Replace writes a file so that the path always has either the old content or the new.
func (d Disk) Replace(path string, content []byte) error {
	return files.Change(d.Change).Replace(path, content)
}

// Probe reports why files cannot be written to a folder, or nil.
func (d Disk) Probe(dir string) error {
	return d.Change("write", dir, func() error { return files.Writable(dir, 0) })
}

// CopyFiles copies the files of a folder. It links them where the file system can, so the
// files must not be changed later.
func (d Disk) CopyFiles(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		err := d.Change("copy", target, func() error {
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

// Missing reports whether nothing is at a path.
func Missing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
