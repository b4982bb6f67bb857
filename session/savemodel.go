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
	"strconv"
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
	clean := filepath.Clean(dir)
	tidy(clean)
	return s.writeModel(ctx, dir, filepath.Dir(clean), unfinished(clean), complete, func(temp string) error {
		// A rename cannot replace a folder that has files, so the old model is moved away first.
		old := filepath.Join(temp, replacedModel)
		if err := os.Rename(clean, old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		err := os.Rename(filepath.Join(temp, newModel), clean)
		if err != nil {
			_ = os.Rename(old, clean) // fails if no model was replaced
		}
		return err
	})
}

// SaveVersion writes the model of SaveModel to a new folder dir/N and returns its path. N is one more
// than the largest number in dir. Readers such as TensorFlow Serving see only complete versions:
// SaveVersion writes the files to a hidden folder, syncs them, and renames it. Several processes may
// write to the same dir.
//
// SaveVersion removes no version. It removes what killed processes left, on a file system with locks.
//
// Each complete function is called with the folder of the files before it is published. After
// an error, path is empty unless the version was published.
func (s *Session) SaveVersion(ctx context.Context, dir string, complete ...func(dir string) error) (path string,
	err error) {
	if err := replaceableVersions(dir); err != nil {
		return "", err
	}
	files.ClearScratch(dir, versionPrefix)
	err = s.writeModel(ctx, dir, dir, versionPrefix, complete, func(temp string) (err error) {
		path, err = publish(filepath.Join(temp, newModel), dir)
		return err
	})
	return path, err
}

// writeModel writes a SavedModel for dir with its manifest to the folder newModel of a temporary folder in parent,
// which it syncs. Then it calls publish with the temporary folder, whose name begins with prefix. If publish fails,
// the temporary folder stays, so that the model is not lost.
func (s *Session) writeModel(ctx context.Context, dir, parent, prefix string, complete []func(string) error,
	publish func(temp string) error) error {
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return s.modelError(dir, err)
	}
	temp, remove, err := files.NewScratch(parent, prefix)
	if err != nil {
		return s.modelError(dir, err)
	}
	whole := filepath.Join(temp, newModel)
	variables := filepath.Join(whole, "variables")
	steps := []func(string) error{
		func(string) error { return os.MkdirAll(variables, 0o777) },
		func(string) error { return copyModel(s.model, whole) },
		func(string) error { return s.saveAll(ctx, filepath.Join(variables, "variables")) },
	}
	steps = append(append(steps, complete...), func(string) error { return manifest.Write(ctx, whole) }, files.SyncTree)
	for _, step := range steps {
		if err == nil {
			err = step(whole)
		}
	}
	if err != nil {
		return s.modelError(dir, errors.Join(err, remove()))
	}
	if err := publish(temp); err != nil {
		return fmt.Errorf("%w; the trained model is in %s: move it, because a later save removes it", s.modelError(dir, err),
			whole)
	}
	return s.modelError(dir, errors.Join(files.SyncPath(parent), remove()))
}

// publish renames a complete folder to the next number in dir. The rename fails if another process has
// taken that number. Any file or folder whose name is a number counts, even if it is not a version.
func publish(whole, dir string) (string, error) {
	for {
		entries, err := os.ReadDir(dir)
		if err != nil {
			return "", err
		}
		largest := uint64(0)
		for _, e := range entries {
			if n, err := strconv.ParseUint(e.Name(), 10, 63); err == nil {
				largest = max(largest, n)
			}
		}
		path := filepath.Join(dir, strconv.FormatUint(largest+1, 10))
		switch err := os.Rename(whole, path); {
		case err == nil:
			return path, nil
		case !errors.Is(err, fs.ErrExist):
			return "", err
		}
	}
}

// versionPrefix begins the name of the folder in which a version is written.
const versionPrefix = ".version-"

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

// CheckVersions reports early what SaveVersion would report at the end of a run, and removes the temporary
// folders of killed processes in dir. It returns the same errors as CheckOutput.
func CheckVersions(dir string, model *savedmodels.Model) error {
	if model == nil {
		return errNoModel
	}
	if err := replaceableVersions(dir); err != nil {
		return err
	}
	files.ClearScratch(dir, versionPrefix)
	return checkSpace(dir, dir, model)
}

// replaceableVersions rejects a folder that is a SavedModel.
func replaceableVersions(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "saved_model.pb")); err == nil {
		return fmt.Errorf("save a version in %s: the folder is a SavedModel; choose the folder that has the versions", dir)
	}
	return nil
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
		err = saving.Err
	case errors.As(err, new(syscall.Errno)) && !errors.Is(err, fs.ErrNotExist):
		err = files.Cause(err)
	default:
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	return newSaveError("save model to", dir, modelBytes(s.model), err)
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
