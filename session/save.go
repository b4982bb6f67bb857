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

// Save writes the variables, including the optimizer's, to prefix.index and
// prefix.data-00000-of-00001. It leaves out frozen variables (savedmodels.Variable.Frozen),
// which are in the model's own files, and writes a hash of them. ctx is checked before saving,
// which is not interrupted. An error of the file system is a *SaveError.
func (s *Session) Save(ctx context.Context, prefix string) error {
	if s.model.Base == "" {
		return s.saveAll(ctx, prefix)
	}
	f, err := s.freeze(ctx)
	if err != nil {
		return fmt.Errorf("save %s: %w", prefix, err)
	}
	defer f.Close()
	return f.Save(prefix)
}

// saveAll writes all variables with the model's saver.
func (s *Session) saveAll(ctx context.Context, prefix string) error {
	saver := s.model.Saver
	if saver == nil {
		return errNoSaver(s.model)
	}
	input, err := s.tf.Graph().Output(saver.FilenameTensor)
	if err != nil {
		return err
	}
	target, err := s.tf.Graph().Output(saver.SaveTensor)
	if err != nil {
		return err
	}
	// TensorFlow writes to this folder and then renames the files. After an error it does
	// not remove the folder (TensorFlow 2.21).
	temp := prefix + "_temp"
	_, there := os.Lstat(temp)
	var out tfbind.Results
	err = withFiles(prefix, func(name *tfbind.Tensor) (err error) {
		out, err = s.tf.Run(ctx, tfbind.Feeds{input: name}, []tfbind.Output{target},
			tfbind.RunOptions{Proto: inCaller(s.tf)})
		return err
	})
	tfbind.TrimMalloc() // see oneThread
	if err == nil {
		return out.Close()
	}
	if errors.Is(there, fs.ErrNotExist) && !remote(prefix) {
		_ = os.RemoveAll(temp)
	}
	vars, _ := stateVariables(s.model)
	if err = saveError(prefix, vars, err); errors.As(err, new(*SaveError)) {
		return err
	}
	return fmt.Errorf("save %s: %w", prefix, err)
}

// Restore sets all variables from the files of Save, or from a complete checkpoint such as the
// weights of a SavedModel. If the files are for a model with other frozen variables, the error is
// ErrMismatch, and nothing changes. After another error, some of the variables may be restored.
func (s *Session) Restore(ctx context.Context, prefix string) (err error) {
	if s.model.Base != "" {
		err = s.CheckVariables(prefix)
	}
	switch {
	case errors.Is(err, ErrMismatch): // TensorFlow reports what cannot be read, or reads remote files
	case hasKeys(s.model):
		var o *stateOps
		if o, err = s.stateOperations(); err == nil {
			err = restore(ctx, s.tf, prefix, o.prefix, o.writes[:o.changing]...)
		}
	default:
		err = s.restoreBySaver(ctx, s.tf, prefix)
	}
	if err != nil {
		return fmt.Errorf("restore %s: %w", prefix, err)
	}
	return nil
}

// withFiles calls use with a prefix of files for TensorFlow.
func withFiles(prefix string, use func(name *tfbind.Tensor) error) error {
	literal, release, err := tfbind.Literal(prefix)
	if err != nil {
		return err
	}
	defer release()
	name, err := tfbind.NewTensor([]string{literal})
	if err != nil {
		return err
	}
	defer name.Close()
	return use(name)
}

func errNoSaver(m *savedmodels.Model) error {
	return fmt.Errorf("%s cannot be saved or restored: the SavedModel has no saver; export it with TensorFlow 2 or "+
		"steadyfit-export", m.Dir)
}

// SaveError reports that the file system could not store the files of Save or SaveModel. It
// never matches ErrOutOfMemory, although TensorFlow has the same code for a full disk. The
// session remains usable.
type SaveError struct {
	// Op is "save" or "save model to".
	Op string
	// Path is the prefix or the folder.
	Path string
	// Needs is the approximate size of the files.
	Needs memory.Bytes
	// Free is the free space on the disk.
	Free memory.Reading
	// Err is the file system's error, such as syscall.ENOSPC, EROFS or EACCES.
	Err error
}

func (e *SaveError) Error() string {
	text := fmt.Sprintf("%s %s: %v", e.Op, e.Path, e.Err)
	if e.Free.OK && files.Full(e.Err) {
		text += fmt.Sprintf(" (it needs about %s, %s are free)", e.Needs, e.Free)
	}
	return text
}

func (e *SaveError) Unwrap() error { return e.Err }

// diskCodes lists the codes that TensorFlow has for errors of the file system. It uses them for
// other errors, too. TensorFlow 2.21 returned RESOURCE_EXHAUSTED for ENOSPC, PERMISSION_DENIED for
// EROFS and EPERM, and NOT_FOUND for ENOENT. absl::ErrnoToStatusCode maps EDQUOT and EMFILE like
// ENOSPC, EACCES like EPERM, and EIO to UNKNOWN.
var diskCodes = []string{"RESOURCE_EXHAUSTED", "PERMISSION_DENIED", "NOT_FOUND", "UNKNOWN"}

// saveError returns a SaveError if a test file cannot be written beside the prefix, and otherwise
// err, TensorFlow's error. A test file is necessary because TensorFlow's error has the cause only
// as text. TensorFlow has already removed its own files.
func saveError(prefix string, vars []savedmodels.Variable, err error) error {
	var failed *tfbind.Error
	if !errors.As(err, &failed) || !slices.Contains(diskCodes, failed.Code) || remote(prefix) {
		return err
	}
	needs := saveBytes(vars)
	why := files.Writable(filepath.Dir(prefix), needs)
	if why == nil {
		return err
	}
	return newSaveError("save", prefix, needs, files.Cause(why))
}

func newSaveError(op, path string, needs int64, err error) *SaveError {
	e := &SaveError{Op: op, Path: path, Needs: memory.Bytes(needs), Err: err}
	if free, ok := files.FreeSpace(filepath.Dir(filepath.Clean(path))); ok {
		e.Free = memory.Known(memory.Bytes(free))
	}
	return e
}

// saveBytes estimates the size of the files of Save. It counts names twice, because TensorFlow
// writes them to two indexes and merges these.
func saveBytes(vars []savedmodels.Variable) int64 {
	const overhead, entry = 16 << 10, 64 // bytes per checkpoint, and per variable in an index
	sum := int64(overhead)
	for _, v := range vars {
		if v.Saved {
			sum += v.Bytes() + 2*(int64(len(v.Name))+entry)
		}
	}
	return sum
}

// remote reports whether the prefix is on a remote file system, such as gs://bucket/model.
func remote(prefix string) bool { return strings.Contains(prefix, "://") }
