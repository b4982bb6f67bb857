package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// probeBytes is the size of the file that Writable writes.
const probeBytes = 4 << 10

// ProbePrefix begins the name of the file that Writable writes; a crash may leave it.
const ProbePrefix = ".write-"

// Writable returns the reason why a folder cannot take files of so many bytes in all, or nil.
// It writes a small file, and for a moment reserves the rest where the file system can: a
// quota shows there only, since free space does not count it.
func Writable(dir string, bytes int64) error {
	f, err := os.CreateTemp(dir, ProbePrefix)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, probeBytes))
	if err == nil {
		// Some network file systems report only here that they are full.
		err = f.Sync()
	}
	if err == nil {
		if free, ok := FreeSpace(dir); ok && free < bytes {
			err = &fs.PathError{Op: "write", Path: dir, Err: syscall.ENOSPC}
		} else if refused := reserve(f, bytes); Full(refused) {
			err = refused
		}
	}
	for _, other := range []error{f.Close(), os.Remove(f.Name())} {
		if err == nil {
			err = other
		}
	}
	return err
}

// Full reports whether an error means a full disk or an exhausted quota.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// remedies are for errors of the file system other than a full one.
var remedies = []struct {
	errs   []error
	remedy string
}{
	{[]error{syscall.EROFS}, "the file system is read-only, as after an error of the disk: see the kernel's log, make it writable, or use another folder"},
	{[]error{syscall.EACCES, syscall.EPERM}, "give this user the right to write there, or use another folder"},
	{[]error{syscall.EIO}, "the disk or the network file system fails: see the kernel's log, and copy sound files elsewhere"},
	{[]error{syscall.EMFILE, syscall.ENFILE}, "raise the limit of open files (ulimit -n)"},
	{[]error{syscall.EFBIG}, "raise the limit of the size of files (ulimit -f), or use a file system that takes larger ones"},
	{[]error{syscall.ENOENT, syscall.ENOTDIR}, "make the folder, or use another one"},
}

// Remedy says what to do about an error of the file system. freeing says how to free space on
// a full disk; it may be empty.
func Remedy(err error, freeing string) string {
	if Full(err) {
		if freeing != "" {
			freeing = " (" + freeing + ")"
		}
		return fmt.Sprintf("the disk or the quota is full: free some space%s, or use another folder", freeing)
	}
	for _, r := range remedies {
		if slices.ContainsFunc(r.errs, func(target error) bool { return errors.Is(err, target) }) {
			return r.remedy
		}
	}
	return "make the folder writable, or use another folder"
}
