// Package files replaces and copies files, makes them durable, and explains errors such as a full disk.
//
// Replace is for small files that must survive a crash, Stream for large outputs. To replace a folder,
// write a new folder beside it, call SyncTree, rename it, and call SyncPath on the parent folder.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// CopyFile copies a file to a new or existing path without a sync.
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

// Missing returns the error for a path that does not exist, or for a symbolic link whose target does not.
func Missing(path string, err error) error {
	if target, notLink := os.Readlink(path); notLink == nil {
		return fmt.Errorf("%s: a symbolic link to %s: %w; correct the link, or remove it", path, target, err)
	}
	return fmt.Errorf("%s: %w; check the path, which is relative to the working directory", path, err)
}

// Replace writes a temporary file beside path, syncs it and renames it to path. After a crash, path has
// either the old or the new content. The temporary file always has the same name, so only one process
// may replace a file at a time, and at most one temporary file is left after a crash.
// The error is a WriteError.
func Replace(path string, content []byte) error {
	return writeError(path, Disk{}.Replace(path, content))
}

// Stream calls write with a temporary file beside path, and renames the file to path. It does not sync
// the file. Several processes may replace the same path. An error of the file is a WriteError.
func Stream(path string, write func(io.Writer) error) error {
	f, err := CreateFor(path)
	if err != nil {
		return err
	}
	return f.Finish(write(f))
}

// Replacement is a temporary file that is written to replace another one.
type Replacement struct {
	// Path is the path of the file to replace.
	Path string
	file *os.File
}

// CreateFor creates a temporary file beside path. The caller must call Finish. An error is a WriteError.
func CreateFor(path string) (*Replacement, error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-")
	if err != nil {
		return nil, writeError(path, err)
	}
	r := &Replacement{path, f}
	if err := f.Chmod(0o644); err != nil {
		return nil, r.Finish(writeError(path, err))
	}
	return r, nil
}

// Write writes to the temporary file. An error is a WriteError.
func (r *Replacement) Write(b []byte) (int, error) {
	n, err := r.file.Write(b)
	return n, writeError(r.Path, err)
}

// Finish closes the temporary file and renames it to Path. If err is not nil, or if closing or renaming
// fails, Finish removes the temporary file and returns the errors.
func (r *Replacement) Finish(err error) error {
	if err = errors.Join(err, writeError(r.Path, r.file.Close())); err == nil {
		err = writeError(r.Path, os.Rename(r.file.Name(), r.Path))
	}
	if err != nil {
		err = errors.Join(err, os.Remove(r.file.Name()))
	}
	return err
}

// Same reports whether two paths refer to the same existing file or folder.
func Same(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// SyncTree syncs a folder and everything in it.
func SyncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return SyncPath(path)
	})
}

// SyncPath syncs a file, or the entries of a folder.
func SyncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	err = f.Sync()
	// Some network file systems cannot sync folders, and need no sync of folders.
	if info, statErr := f.Stat(); statErr == nil && info.IsDir() && errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, f.Close())
}
