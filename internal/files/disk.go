package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Disk changes files so that they survive a crash: synced content stays, and a rename happens completely or
// not at all. The zero value is ready to use.
//
// A file whose sync failed must be removed and written again. The kernel may have dropped its
// data, and a second sync would succeed without writing them.
type Disk struct {
	// Before, if not nil, is called before every change. Its error prevents the change. Tests
	// use it to simulate crashes.
	Before func(op, path string) error
}

// Change makes one change. op and path describe it in errors.
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

// Remove removes a file or a folder with its content, if it exists.
func (d Disk) Remove(path string) error {
	return d.Change("remove", path, func() error { return os.RemoveAll(path) })
}

// Rename renames a file or folder.
func (d Disk) Rename(from, to string) error {
	return d.Change("rename", to, func() error { return os.Rename(from, to) })
}

// Sync makes the content of a file or the entries of a folder durable.
func (d Disk) Sync(path string) error {
	return d.Change("sync", path, func() error { return SyncPath(path) })
}

// Write creates or overwrites a file, and syncs it.
func (d Disk) Write(path string, content []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = d.Change("write", path, func() error {
		_, err := f.Write(content)
		return err
	})
	if err == nil {
		err = d.Change("sync", path, f.Sync)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// Replace is the function Replace with every change made through d.
func (d Disk) Replace(path string, content []byte) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	err := d.Write(temporary, content)
	if err == nil {
		err = d.Rename(temporary, path)
	}
	if err != nil {
		_ = d.Remove(temporary) // if that fails, the next Replace overwrites the file
		return err
	}
	return d.Sync(filepath.Dir(path))
}

// Probe returns an error if files cannot be written to a folder.
func (d Disk) Probe(dir string) error {
	return d.Change("write", dir, func() error { return Cause(Writable(dir, 0)) })
}

// IsMissing reports whether a path does not exist.
func IsMissing(path string) bool {
	_, err := os.Lstat(path)
	return errors.Is(err, fs.ErrNotExist)
}
