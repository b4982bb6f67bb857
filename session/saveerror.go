package session

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// SaveError is a file system that did not take what Save or SaveModel wrote.
// errors.Is tells why: syscall.ENOSPC, EDQUOT, EROFS, EACCES and others. It is
// never ErrOutOfMemory, though TensorFlow has one code for both. The session is
// not affected.
type SaveError struct {
	// Op is what was done: "save" or "save model to".
	Op string
	// Path is the prefix, or the folder, that was to be written.
	Path string
	// Needs is about how much room it takes.
	Needs memory.Bytes
	// Free is the space on the disk.
	Free memory.Reading
	// Remedy says what to do.
	Remedy string
	// Err is the error of the file system.
	Err error
	// TensorFlow is what TensorFlow said, if it was writing: not always why, and of a
	// full disk, advice on memory.
	TensorFlow error
}

func (e *SaveError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %v", e.Op, e.Path, e.Err)
	if e.Free.OK && files.Full(e.Err) {
		fmt.Fprintf(&b, " (it takes about %s, %s are free)", e.Needs, e.Free)
	}
	if e.Remedy != "" {
		b.WriteString("; " + e.Remedy)
	}
	return b.String()
}

// Unwrap is the error of the file system.
func (e *SaveError) Unwrap() error { return e.Err }

// The codes that TensorFlow gives for errors of a file system, and for other things.
// Measured on 2.21: ENOSPC is RESOURCE_EXHAUSTED, EROFS and EPERM are
// PERMISSION_DENIED, ENOENT is NOT_FOUND. In absl::ErrnoToStatusCode, EDQUOT and
// EMFILE are as ENOSPC, EACCES is as EPERM, and EIO is UNKNOWN.
var diskCodes = []tfbind.Code{tfbind.ResourceExhausted, tfbind.PermissionDenied, tfbind.NotFound, tfbind.Unknown}

// saveError says why TensorFlow could not write to a prefix. The reason is asked of
// the file system, by writing there: TensorFlow has it in words only, and removes
// the file that there was no room for.
func (s *Session) saveError(prefix string, err error) error {
	failed := fmt.Errorf("save %s: %w", prefix, err)
	var said *tfbind.Error
	if !errors.As(err, &said) || !slices.Contains(diskCodes, said.Code) || remote(prefix) {
		return failed
	}
	needs := saveBytes(s.model)
	why := files.Writable(filepath.Dir(prefix), needs)
	if why == nil {
		return failed
	}
	e := newSaveError("save", prefix, needs, withoutProbe(why))
	e.TensorFlow = failed
	return e
}

// withoutProbe is an error of files.Writable without the path, which is that of a file made
// to find out.
func withoutProbe(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

func newSaveError(op, path string, needs int64, err error) *SaveError {
	e := &SaveError{Op: op, Path: path, Needs: memory.Bytes(needs), Remedy: files.Remedy(err, ""), Err: err}
	if free, ok := files.FreeSpace(filepath.Dir(filepath.Clean(path))); ok {
		e.Free = memory.Known(memory.Bytes(free))
	}
	return e
}

// modelError is the error of SaveModel, with what there is to know about the disk.
func (s *Session) modelError(dir string, err error) error {
	var saving *SaveError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &saving) && err == error(saving):
		e := newSaveError("save model to", dir, modelBytes(s.model), saving.Err)
		e.TensorFlow = saving.TensorFlow
		return e
	case errors.As(err, new(syscall.Errno)) && !errors.Is(err, fs.ErrNotExist):
		return newSaveError("save model to", dir, modelBytes(s.model), err)
	}
	// What does not exist is the model that it is copied from.
	return fmt.Errorf("save model to %s: %w", dir, err)
}

// modelBytes is about what the files of a SaveModel take.
func modelBytes(m *savedmodels.Model) int64 {
	sum := saveBytes(m)
	// What cannot be read is not counted: there is an error already.
	_ = files.Walk(m.Dir, func(name string, info fs.FileInfo) error {
		if name == "variables" {
			return fs.SkipDir
		}
		if info.Mode().IsRegular() {
			sum += info.Size()
		}
		return nil
	})
	return sum
}

// saveBytes is about what the files of a Save take: the values, and the names
// twice, since TensorFlow merges one index into another.
func saveBytes(m *savedmodels.Model) int64 {
	const overhead, entry = 16 << 10, 64 // of files, and of a variable in an index
	sum := int64(overhead)
	for _, v := range m.Variables {
		if v.Saved {
			sum += v.Bytes() + 2*(int64(len(v.Name))+entry)
		}
	}
	return sum
}

// remote reports whether TensorFlow would write to something else than a file
// system of this machine, as in gs://bucket/model.
func remote(prefix string) bool { return strings.Contains(prefix, "://") }

// unfinished is the folder where TensorFlow writes before it renames the files to
// their prefix. After an error it stays (2.21), and with it those that were whole.
type unfinished struct{ dir string }

func newUnfinished(prefix string) unfinished {
	dir := prefix + "_temp"
	if _, err := os.Lstat(dir); remote(prefix) || !errors.Is(err, fs.ErrNotExist) {
		return unfinished{} // somebody else's
	}
	return unfinished{dir}
}

// remove does what it can: there is an error already.
func (u unfinished) remove() {
	if u.dir != "" {
		_ = os.RemoveAll(u.dir)
	}
}
