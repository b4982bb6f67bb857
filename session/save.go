package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"steadyfit/internal/files"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Save writes all variables, including those of the optimizer, to the files prefix.index and
// prefix.data-00000-of-00001. ctx is checked before the save; a save in progress is not
// interrupted. If the file system refuses, the error is a SaveError.
func (s *Session) Save(ctx context.Context, prefix string) error {
	return s.withPrefix("save", prefix, func(saver *savedmodels.Saver, feeds tfbind.Feeds) error {
		target, err := s.tf.Graph().Output(saver.SaveTensor)
		if err != nil {
			return err
		}
		// TensorFlow writes to this folder before it renames the files to their prefix. After
		// an error the folder stays (TensorFlow 2.21).
		temp := prefix + "_temp"
		_, there := os.Lstat(temp)
		out, err := s.tf.Run(ctx, feeds, []tfbind.Output{target})
		if err != nil {
			if errors.Is(there, fs.ErrNotExist) && !remote(prefix) {
				_ = os.RemoveAll(temp) // the first error is more important
			}
			return s.saveError(prefix, err)
		}
		return out.Close()
	})
}

// Restore sets all variables from the files of Save. If it fails, only some of the variables
// may be restored.
func (s *Session) Restore(ctx context.Context, prefix string) error {
	return s.withPrefix("restore", prefix, func(saver *savedmodels.Saver, feeds tfbind.Feeds) error {
		target, err := s.tf.Graph().Operation(saver.RestoreOp)
		if err != nil {
			return err
		}
		_, err = s.tf.RunWith(ctx, feeds, nil, tfbind.RunOptions{Targets: []tfbind.Operation{target}})
		return err
	})
}

// withPrefix calls run with the model's saver and with the feed of the file prefix.
func (s *Session) withPrefix(op, prefix string, run func(*savedmodels.Saver, tfbind.Feeds) error) error {
	saver := s.model.Saver
	if saver == nil {
		return errNoSaver(s.model)
	}
	input, err := s.tf.Graph().Output(saver.FilenameTensor)
	if err != nil {
		return err
	}
	name, err := tfbind.NewTensor([]string{prefix})
	if err != nil {
		return err
	}
	defer name.Close()
	err = run(saver, tfbind.Feeds{input: name})
	if err == nil || errors.As(err, new(*SaveError)) {
		return err
	}
	return fmt.Errorf("%s %s: %w", op, prefix, err)
}

func errNoSaver(m *savedmodels.Model) error {
	return fmt.Errorf("%s cannot be saved or restored: the SavedModel has no saver; export it with TensorFlow 2 or scripts/export.py", m.Dir)
}

// SaveError reports that the file system could not store the files of Save or SaveModel.
// errors.Is finds the cause: syscall.ENOSPC, EDQUOT, EROFS, EACCES and others. It is never
// ErrOutOfMemory, although TensorFlow has one code for both. The session is not affected.
type SaveError struct {
	// Op is "save" or "save model to".
	Op string
	// Path is the prefix or the folder.
	Path string
	// Needs is the approximate size of the files.
	Needs memory.Bytes
	// Free is the free space on the disk.
	Free memory.Reading
	// Remedy is what the user can do.
	Remedy string
	// Err is the error of the file system.
	Err error
	// TensorFlow is TensorFlow's error if TensorFlow was writing. For a full disk, its text is
	// about memory.
	TensorFlow error
}

func (e *SaveError) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
	if e.Free.OK && files.Full(e.Err) {
		text += fmt.Sprintf(" (it needs about %s, %s are free)", e.Needs, e.Free)
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Unwrap returns the error of the file system.
func (e *SaveError) Unwrap() error { return e.Err }

// diskCodes are TensorFlow's codes for errors of the file system; other errors have them too.
// Measured on 2.21: ENOSPC is RESOURCE_EXHAUSTED, EROFS and EPERM are PERMISSION_DENIED,
// ENOENT is NOT_FOUND. In absl::ErrnoToStatusCode, EDQUOT and EMFILE are like ENOSPC, EACCES
// is like EPERM, and EIO is UNKNOWN.
var diskCodes = []tfbind.Code{tfbind.ResourceExhausted, tfbind.PermissionDenied, tfbind.NotFound, tfbind.Unknown}

// saveError returns a SaveError if the file system cannot write to a prefix. Otherwise it
// returns err, which is TensorFlow's error. It tests the file system by writing a file:
// TensorFlow's error has the cause only as text, and TensorFlow has already removed the file
// that did not fit.
func (s *Session) saveError(prefix string, err error) error {
	var failed *tfbind.Error
	if !errors.As(err, &failed) || !slices.Contains(diskCodes, failed.Code) || remote(prefix) {
		return err
	}
	needs := saveBytes(s.model)
	why := files.Writable(filepath.Dir(prefix), needs)
	if why == nil {
		return err
	}
	e := newSaveError("save", prefix, needs, withoutProbe(why))
	e.TensorFlow = fmt.Errorf("save %s: %w", prefix, err)
	return e
}

// withoutProbe removes the path of the probe file from an error of files.Writable.
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

// saveBytes estimates the size of the files of Save: the values, and the names twice, since
// TensorFlow merges one index into another.
func saveBytes(m *savedmodels.Model) int64 {
	const overhead, entry = 16 << 10, 64 // bytes of the files, and of each variable in an index
	sum := int64(overhead)
	for _, v := range m.Variables {
		if v.Saved {
			sum += v.Bytes() + 2*(int64(len(v.Name))+entry)
		}
	}
	return sum
}

// remote reports whether TensorFlow would write to a remote file system, as for
// gs://bucket/model.
func remote(prefix string) bool { return strings.Contains(prefix, "://") }
