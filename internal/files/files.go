// Package files copies files and makes them durable, for what writes
// checkpoints and models, and says what a full disk leaves and what to do.
//
// It is not a layer over package os: what can be one call there is. Whoever
// replaces a folder writes the new one beside it, calls SyncTree, renames, and
// calls SyncPath on the parent.
package files

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// CopyFile copies the content of a file to one that it creates or overwrites.
// It does not sync.
func CopyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// Replace writes a file under another name, syncs it and renames it: the file at
// path is the old one or the new one, whole.
func Replace(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".write-")
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// SyncTree makes a folder durable with all that is in it.
func SyncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return SyncPath(path)
	})
}

// SyncPath makes the content of a file durable, or the entries of a folder.
func SyncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	// Some network file systems cannot sync folders and need not.
	if info, statErr := f.Stat(); statErr == nil && info.IsDir() && errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, f.Close())
}
