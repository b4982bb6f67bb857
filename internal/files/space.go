package files

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

const probeBytes = 4 << 10

// ProbePrefix begins the name of the file that Writable writes. A crash may leave the file behind.
const ProbePrefix = ".write-"

// Writable returns an error if a folder cannot store files of this total size. It writes a small file and
// briefly reserves the rest if the file system supports that. A reservation also detects a quota, which
// free space does not show.
func Writable(dir string, bytes int64) error {
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

// WritableDir makes a folder, and returns an error if it cannot store files of this total size.
func WritableDir(dir string, bytes int64) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	return Writable(dir, bytes)
}

// Full reports whether an error means a full disk or an exhausted quota.
func Full(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

var remedies = []struct {
	errs   []error
	remedy string
}{
	{[]error{syscall.EROFS}, "the file system is read-only, perhaps after a disk error: check the kernel's log, make it writable, or use another folder"},
	{[]error{syscall.EACCES, syscall.EPERM}, "give this user the right to write there, or use another folder"},
	{[]error{syscall.EIO}, "the disk or the network file system is failing: check the kernel's log, and copy undamaged files elsewhere"},
	{[]error{syscall.EMFILE, syscall.ENFILE}, "raise the limit of open files (ulimit -n)"},
	{[]error{syscall.EFBIG}, "raise the limit on file size (ulimit -f), or use a file system that supports larger files"},
	{[]error{syscall.ENOENT, syscall.ENOTDIR}, "create the folder, or use another one"},
}

// Remedy returns what to do about a file system error. freeing is advice on freeing space on a full
// disk; it may be empty.
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
