package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Save writes the variables, including the optimizer's, to prefix.index and
// prefix.data-00000-of-00001. It leaves out frozen variables (savedmodels.Variable.Frozen),
// which are in the model's own files, and writes a hash of them. ctx is checked before saving,
// which is not interrupted. An error never matches ErrOutOfMemory.
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
	return saveError(prefix, err)
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

// withFiles calls use with a prefix of files as a tensor.
func withFiles(prefix string, use func(name *tfbind.Tensor) error) error {
	name, err := tfbind.NewTensor([]string{prefix})
	if err != nil {
		return err
	}
	defer name.Close()
	return use(name)
}

func errNoSaver(m *savedmodels.Model) error {
	return fmt.Errorf("%s cannot be saved or restored: the SavedModel has no saver; export it with TensorFlow 2 or "+
		"scripts/export.py", m.Dir)
}

// saveError returns an error of saving without that of TensorFlow, which has the code of ErrOutOfMemory for a full disk.
func saveError(prefix string, err error) error {
	var failed *tfbind.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &failed):
		message, _, _ := strings.Cut(failed.Message, "\n") // a hint about memory follows
		return fmt.Errorf("save %s: %s", prefix, message)
	}
	return fmt.Errorf("save %s: %w", prefix, err)
}

// remote reports whether the prefix is on a remote file system, such as gs://bucket/model.
func remote(prefix string) bool { return strings.Contains(prefix, "://") }
