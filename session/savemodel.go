package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"steadyfit/internal/files"
	"steadyfit/internal/manifest"
	"steadyfit/savedmodels"
)

// SaveModel writes a SavedModel with the same graph, signatures and assets and the current
// variables. Python, TensorFlow Serving and savedmodels.Open can load it, and training can
// continue with the optimizer's state. The file fingerprint.pb is omitted because it describes
// the original variables.
//
// SaveModel replaces a SavedModel at dir atomically. If the process is killed during the
// replacement, both models can remain in a folder .DIR.tmp-* beside dir. The next SaveModel or
// CheckOutput for dir cleans up, on a file system with locks. SaveModel fails if dir has other
// content or is inside the folder of the model being trained. An error of the file system is a
// *SaveError.
//
// Each complete function is called with the folder of the new files before it replaces dir, for
// example to add a file. The file SHA256SUMS has the hashes of all files.
func (s *Session) SaveModel(ctx context.Context, dir string, complete ...func(dir string) error) error {
	if err := replaceable(dir, s.model.Dir); err != nil {
		return err
	}
	return s.modelError(dir, s.writeModel(ctx, dir, complete))
}

// writeFiles writes a SavedModel with its manifest to a new folder, and syncs it.
func (s *Session) writeFiles(ctx context.Context, dir string, complete []func(string) error) error {
	variables := filepath.Join(dir, "variables")
	err := os.MkdirAll(variables, 0o777)
	if err == nil {
		err = copyModel(s.model, dir)
	}
	if err == nil {
		err = s.saveAll(ctx, filepath.Join(variables, "variables"))
	}
	for _, f := range complete {
		if err == nil {
			err = f(dir)
		}
	}
	if err == nil {
		err = manifest.Write(ctx, dir)
	}
	if err == nil {
		err = files.SyncTree(dir)
	}
	return err
}

func (s *Session) writeModel(ctx context.Context, dir string, complete []func(string) error) (err error) {
	dir = filepath.Clean(dir)
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return err
	}
	tidy(dir)
	temp, remove, err := files.NewScratch(parent, unfinished(dir))
	if err != nil {
		return err
	}
	defer func() {
		if left := remove(); left != nil {
			err = errors.Join(err, left)
		}
	}()
	whole := filepath.Join(temp, newModel)
	if err := s.writeFiles(ctx, whole, complete); err != nil {
		return err
	}
	// A rename cannot replace a folder that has files, so the old model is moved away first. If
	// the new model cannot be renamed, the old one is moved back.
	old := filepath.Join(temp, replacedModel)
	err = os.Rename(dir, old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(whole, dir); err != nil {
		back := os.Rename(old, dir)
		if errors.Is(back, fs.ErrNotExist) { // no model was replaced
			back = nil
		}
		remove = func() error { return nil }
		return errors.Join(fmt.Errorf("%w; the trained model is in %s: move it, because a later save to %s removes it", err,
			whole, dir), back)
	}
	return files.SyncPath(parent)
}

// newModel and replacedModel are the names of the new and the replaced model in the folder for
// unfinished models.
const (
	newModel      = "new"
	replacedModel = "old"
)

// unfinished returns the beginning of the names of the temporary folders beside dir in which
// SaveModel writes the model.
func unfinished(dir string) string { return "." + filepath.Base(dir) + ".tmp-" }

// tidy removes the temporary folders of killed processes that were saving a model to dir. If dir does
// not exist, tidy restores the model that was being replaced. If that fails, it removes nothing.
func tidy(dir string) {
	prefix := filepath.Join(filepath.Dir(dir), unfinished(dir))
	files.EachLeft(filepath.Dir(dir), unfinished(dir), func(left string) {
		if strings.Trim(strings.TrimPrefix(left, prefix), "0123456789") != "" {
			return // the folder belongs to a model with a longer name
		}
		if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
			if err := os.Rename(filepath.Join(left, replacedModel), dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return
			}
		}
		_ = os.RemoveAll(left)
	})
}

// replaceable rejects a folder that has other content than a SavedModel or is inside the folder
// of the original model.
func replaceable(dir, model string) error {
	if files.Within(dir, model) && !files.Same(dir, model) {
		return fmt.Errorf("save model to %s: the folder is inside the model %s; choose another folder", dir, model)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return newSaveError("save model to", dir, 0, files.Cause(err))
	}
	isModel := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "saved_model.pb" })
	if len(entries) > 0 && !isModel {
		return fmt.Errorf("save model to %s: the folder holds something other than a SavedModel (%s); choose another "+
			"folder or empty it", dir, entries[0].Name())
	}
	return nil
}

// CheckOutput removes the temporary folders of killed processes that were saving a model to dir, and
// reports early what SaveModel would report at the end of a run: a dir with other content or, as a
// *SaveError, a dir that is not writable or a disk without enough free space.
func CheckOutput(dir string, model *savedmodels.Model) error {
	if model == nil {
		return errNoModel
	}
	if err := replaceable(dir, model.Dir); err != nil {
		return err
	}
	tidy(filepath.Clean(dir)) // remains of a model take space
	return checkSpace(dir, filepath.Dir(filepath.Clean(dir)), model)
}

// checkSpace returns a SaveError if a model cannot be saved to dir for lack of space or rights in
// the folder parent, which it creates.
func checkSpace(dir, parent string, model *savedmodels.Model) error {
	needs := modelBytes(model)
	if err := files.WritableDir(parent, needs); err != nil {
		return newSaveError("save model to", dir, needs, files.Cause(err))
	}
	return nil
}

// copied iterates over the files of a SavedModel that a trained model has, too: all but the variables,
// the manifest and the fingerprint.
func copied(m *savedmodels.Model) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, name := range m.Files {
			if name != "fingerprint.pb" && name != manifest.Name && !strings.HasPrefix(name, "variables/") && !yield(name) {
				return
			}
		}
	}
}

func copyModel(m *savedmodels.Model, to string) error {
	for name := range copied(m) {
		if err := os.MkdirAll(filepath.Join(to, filepath.Dir(name)), 0o777); err != nil {
			return err
		}
		if err := files.CopyFile(filepath.Join(m.Dir, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// modelError returns an error of saving a model to dir. It is a *SaveError if the file system refused. A
// missing file is not an error of the disk: the original model lacks it.
func (s *Session) modelError(dir string, err error) error {
	var saving *SaveError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &saving):
		return newSaveError("save model to", dir, modelBytes(s.model), saving.Err)
	case errors.As(err, new(syscall.Errno)) && !errors.Is(err, fs.ErrNotExist):
		return newSaveError("save model to", dir, modelBytes(s.model), files.Cause(err))
	}
	return fmt.Errorf("save model to %s: %w", dir, err)
}

func modelBytes(m *savedmodels.Model) int64 {
	sum := saveBytes(m.Variables)
	for name := range copied(m) {
		if info, err := os.Stat(filepath.Join(m.Dir, name)); err == nil { // copying reports the error
			sum += info.Size()
		}
	}
	return sum
}
