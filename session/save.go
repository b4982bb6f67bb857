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

// Save writes all variables, those of the optimizer included, to the files
// prefix.index and prefix.data-00000-of-00001. ctx is looked at before; a save
// in progress is not interrupted. If the file system refuses, the error is a SaveError.
func (s *Session) Save(ctx context.Context, prefix string) error {
	return s.withPrefix("save", prefix, func(saver *savedmodels.Saver, feeds tfbind.Feeds) error {
		target, err := s.tf.Graph().Output(saver.SaveTensor)
		if err != nil {
			return err
		}
		// TensorFlow writes to this folder before it renames the files to their prefix.
		// After an error it stays (2.21).
		temp := prefix + "_temp"
		_, there := os.Lstat(temp)
		out, err := s.tf.Run(ctx, feeds, []tfbind.Output{target})
		if err != nil {
			if errors.Is(there, fs.ErrNotExist) && !remote(prefix) {
				_ = os.RemoveAll(temp) // there is an error already
			}
			return s.saveError(prefix, err)
		}
		return out.Close()
	})
}

// Restore sets all variables from the files of Save. If it fails, the variables
// are in doubt.
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

// withPrefix calls run with the model's saver and the file prefix to feed.
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

// SaveError is a file system that did not take the files of Save or SaveModel. errors.Is
// says why: syscall.ENOSPC, EDQUOT, EROFS, EACCES and others. It is never ErrOutOfMemory,
// though TensorFlow has one code for both. The session is not affected.
type SaveError struct {
	// Op is "save" or "save model to".
	Op string
	// Path is the prefix or the folder.
	Path string
	// Needs is about the size of the files.
	Needs memory.Bytes
	// Free is the free space on the disk.
	Free memory.Reading
	// Remedy says what to do.
	Remedy string
	// Err is the error of the file system.
	Err error
	// TensorFlow is TensorFlow's error, if it was writing. For a full disk it has advice
	// on memory.
	TensorFlow error
}

func (e *SaveError) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
	if e.Free.OK && files.Full(e.Err) {
		text += fmt.Sprintf(" (it takes about %s, %s are free)", e.Needs, e.Free)
	}
	if e.Remedy != "" {
		text += "; " + e.Remedy
	}
	return text
}

// Unwrap is the error of the file system.
func (e *SaveError) Unwrap() error { return e.Err }

// diskCodes are the codes of TensorFlow for errors of a file system, among others.
// Measured on 2.21: ENOSPC is RESOURCE_EXHAUSTED, EROFS and EPERM are
// PERMISSION_DENIED, ENOENT is NOT_FOUND. In absl::ErrnoToStatusCode, EDQUOT and
// EMFILE are as ENOSPC, EACCES is as EPERM, and EIO is UNKNOWN.
var diskCodes = []tfbind.Code{tfbind.ResourceExhausted, tfbind.PermissionDenied, tfbind.NotFound, tfbind.Unknown}

// saveError returns a SaveError if the file system refuses to write to a prefix, and else
// err, which is TensorFlow's. It asks the file system by writing there: TensorFlow has the
// reason in words only, and removes the file that did not fit.
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

// withoutProbe removes the path from an error of files.Writable: that of its probe file.
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

// saveBytes estimates the size of the files of Save: the values, and the names
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

// remote reports whether TensorFlow would write elsewhere than to this machine's file
// systems, as in gs://bucket/model.
func remote(prefix string) bool { return strings.Contains(prefix, "://") }
