// Package files copies files and makes them durable, for what writes
// checkpoints and models, and says what a full disk leaves and what to do.
//
// It is not a layer over package os: what can be one call there is. Whoever
// replaces a folder writes the new one beside it, calls SyncTree, renames, and
// calls SyncPath on the parent.
package files

import (
	"errors"
	"fmt"
	"hash"
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

// Change makes one change to files, named by what it does and where. It stands
// between this package and the disk, so that tests can have any change fail; nil
// makes it as it is.
type Change func(op, path string, do func() error) error

func (c Change) do(op, path string, do func() error) error {
	if c != nil {
		return c(op, path, do)
	}
	return do()
}

// Write creates a file, or overwrites one, and syncs it.
func (c Change) Write(path string, content []byte) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = c.do("write", path, func() error {
		_, err := f.Write(content)
		return err
	})
	if err == nil {
		err = c.do("sync", path, f.Sync)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// Replace is the function Replace.
func (c Change) Replace(path string, content []byte) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".tmp")
	err := c.Write(temporary, content)
	if err == nil {
		err = c.do("rename", path, func() error { return os.Rename(temporary, path) })
	}
	if err != nil {
		// What cannot be removed now is overwritten by the next.
		_ = c.do("remove", temporary, func() error { return os.RemoveAll(temporary) })
		return err
	}
	dir := filepath.Dir(path)
	return c.do("sync", dir, func() error { return SyncPath(dir) })
}

// Replace writes a file under another name beside it, which no other process must
// do at the same time, syncs it and renames it: after a crash, the file at path is
// the old one or the new one, whole.
func Replace(path string, content []byte) error { return Change(nil).Replace(path, content) }

// Same reports whether two paths lead to one file or folder, which has to be there.
func Same(a, b string) bool {
	infoA, errA := os.Stat(a)
	infoB, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(infoA, infoB)
}

// Walk calls visit for a file, or for all folders and files below a folder, in the order of
// their names, and follows links. The name is relative to the folder. A folder is left out
// if visit returns fs.SkipDir.
func Walk(path string, visit func(name string, info fs.FileInfo) error) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return visit(".", info)
	}
	return walk(path, ".", visit)
}

func walk(root, folder string, visit func(name string, info fs.FileInfo) error) error {
	entries, err := os.ReadDir(filepath.Join(root, folder))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(folder, e.Name())
		info, err := os.Stat(filepath.Join(root, name))
		if err == nil {
			err = visit(name, info)
		}
		switch {
		case info != nil && info.IsDir() && errors.Is(err, fs.SkipDir):
		case err != nil:
			return err
		case info.IsDir():
			if err := walk(root, name, visit); err != nil {
				return err
			}
		}
	}
	return nil
}

// Hash writes the content of a file to a hash, or the names and contents of all files of a
// folder, in the order of their names.
func Hash(sum hash.Hash, path string) error {
	return Walk(path, func(name string, info fs.FileInfo) error {
		if !info.Mode().IsRegular() {
			return nil
		}
		fmt.Fprintln(sum, name, info.Size())
		f, err := os.Open(filepath.Join(path, name))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(sum, f)
		return err
	})
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
