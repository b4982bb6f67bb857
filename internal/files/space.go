package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

const probeBytes = 4 << 10

// ProbePrefix begins the name of the file that Writable writes. A crash may leave the file behind.
const ProbePrefix = ".write-"

// WriteError reports that a file or a folder could not be written, and what to do about it.
type WriteError struct {
	// Path is the path that the caller gave, not that of a temporary file.
	Path string
	// Err is the cause, without a path.
	Err error
}

func (e *WriteError) Error() string {
	return fmt.Sprintf("write %s: %v; %s", e.Path, e.Err, Remedy(e.Err))
}

// Unwrap returns the cause.
func (e *WriteError) Unwrap() error { return e.Err }

// writeError returns err as a WriteError; nil stays nil.
func writeError(path string, err error) error {
	if err == nil {
		return nil
	}
	return &WriteError{path, Cause(err)}
}

// Cause returns an error of the file system without its operation and path.
func Cause(err error) error {
	var write *WriteError
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &write):
		return write.Err
	case errors.As(err, &path):
		return path.Err
	case errors.As(err, &link):
		return link.Err
	}
	return err
}

// Writable returns a WriteError if a folder cannot store files of this total size. It writes a small file.
func Writable(dir string, bytes int64) error { return writeError(dir, writable(dir, bytes)) }

func writable(dir string, bytes int64) error {
	f, err := os.CreateTemp(dir, ProbePrefix)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, probeBytes))
	if err == nil {
		// Some network file systems report only on sync that they are full.
		err = f.Sync()
	}
	if err == nil {
		if free, ok := FreeSpace(dir); ok && free < bytes {
			err = syscall.ENOSPC
		}
	}
	for _, other := range []error{f.Close(), os.Remove(f.Name())} {
		if err == nil {
			err = other
		}
	}
	return err
}

// WritableDir makes a folder, and returns a WriteError if it cannot store files of this total size.
func WritableDir(dir string, bytes int64) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return writeError(dir, err)
	}
	return Writable(dir, bytes)
}

// Full reports whether an error means a full disk or an exhausted quota.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// Remedy returns what to do about a file system error.
func Remedy(err error) string {
	if Full(err) {
		return "the disk or the quota is full: free some space, or use another folder"
	}
	return "make the folder writable, or use another folder"
}
