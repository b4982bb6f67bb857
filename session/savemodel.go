package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"steadyfit/internal/files"
	"steadyfit/savedmodels"
)

// SaveModel writes the model with its present variables as a SavedModel: the
// same graph, signatures and assets, with new values. Python, TensorFlow Serving
// and savedmodels.Open load it, and training continues from it, the optimizer's
// state included.
//
// The folder appears whole or not at all. If there is a SavedModel at dir
// already it is replaced: a crash of the machine between two renames can leave
// it, and the new one, under a name .DIR.tmp-* beside dir, and TidyModels then brings the old
// one back. Anything else at dir is an error, and so is a folder inside the model that is being
// trained. If the
// place cannot be written, or the disk is full, it is a SaveError. fingerprint.pb
// is not written, since it describes the variables that the model came with.
func (s *Session) SaveModel(ctx context.Context, dir string) error {
	if err := replaceable(dir, s.model.Dir); err != nil {
		return err
	}
	return s.modelError(dir, s.writeModel(ctx, dir))
}

func (s *Session) writeModel(ctx context.Context, dir string) (err error) {
	parent := filepath.Dir(filepath.Clean(dir))
	if err := os.MkdirAll(parent, 0o777); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(parent, "."+filepath.Base(filepath.Clean(dir))+unfinishedMark)
	if err != nil {
		return err
	}
	keep := false
	defer func() {
		if !keep {
			if left := os.RemoveAll(temp); left != nil {
				err = errors.Join(err, left)
			}
		}
	}()
	whole := filepath.Join(temp, "new")
	variables := filepath.Join(whole, "variables")
	if err := os.MkdirAll(variables, 0o777); err != nil {
		return err
	}
	if err := copyModel(s.model.Dir, whole); err != nil {
		return err
	}
	if err := s.Save(ctx, filepath.Join(variables, "variables")); err != nil {
		return err
	}
	if err := files.SyncTree(whole); err != nil {
		return err
	}
	// A folder cannot be renamed over one that has files, so the old one steps
	// aside first; if the second rename fails it comes back.
	old := filepath.Join(temp, replacedModel)
	err = os.Rename(dir, old)
	replaced := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(whole, dir); err != nil {
		// Two finished models must not be lost to a name.
		keep = true
		err = fmt.Errorf("%w; the trained model is in %s", err, whole)
		if replaced {
			err = errors.Join(err, os.Rename(old, dir))
		}
		return err
	}
	return files.SyncPath(parent)
}

// What SaveModel writes for the folder NAME is in a folder .NAME + unfinishedMark + digits
// beside it; the model that it replaces is replacedModel in there for a moment.
const (
	unfinishedMark = ".tmp-"
	replacedModel  = "old"
)

// TidyModels removes what calls of SaveModel have left of models in a folder whose process
// died meanwhile, and gives a model that was being replaced its name back where there is
// none in its place. A trained model that was not in its place yet is lost, and so is one
// that an error of SaveModel has said to be there. of says what to look at, by the name
// of the model's folder and the time of the last change: what another program, or a run
// long ago, has left may be all that there is of a model; nil takes all. A folder that does
// not exist has nothing in it.
//
// It must not run while a process saves a model that of takes: it would remove what that
// process writes. An error is that of the file system, at the first thing that could not be
// tidied; what was before it is.
func TidyModels(folder string, of func(model string, changed time.Time) bool) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("tidy models: %w", err)
	}
	for _, e := range entries {
		at := strings.LastIndex(e.Name(), unfinishedMark)
		if at < 2 || e.Name()[0] != '.' || !e.IsDir() {
			continue
		}
		if number := e.Name()[at+len(unfinishedMark):]; number == "" || strings.Trim(number, "0123456789") != "" {
			continue
		}
		model := e.Name()[1:at]
		if of != nil {
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return fmt.Errorf("tidy models: %w", err)
			}
			if !of(model, info.ModTime()) {
				continue
			}
		}
		if err := tidyModel(filepath.Join(folder, model), filepath.Join(folder, e.Name())); err != nil {
			return fmt.Errorf("tidy models: %w", err)
		}
	}
	return nil
}

// tidyModel removes what is left of a model, but for the one that it was to replace.
func tidyModel(model, left string) error {
	if _, err := os.Lstat(model); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(filepath.Join(left, replacedModel), model); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(left)
}

// replaceable refuses to put a model in the place of what is none, or inside the
// model that it would be copied from.
func replaceable(dir, model string) error {
	inside, err := within(dir, model)
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	if inside {
		return fmt.Errorf("save model to %s: the folder is inside the model %s; choose another", dir, model)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	for _, e := range entries {
		if e.Name() == "saved_model.pb" {
			return nil
		}
	}
	if len(entries) > 0 {
		return fmt.Errorf("save model to %s: the folder holds something else than a SavedModel (%s); choose another or empty it", dir, entries[0].Name())
	}
	return nil
}

// within reports whether dir is, or would be, a folder below the folder top.
func within(dir, top string) (bool, error) {
	info, err := os.Stat(top)
	if err != nil {
		return false, err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return false, err
	}
	for parent := filepath.Dir(dir); parent != dir; dir, parent = parent, filepath.Dir(parent) {
		if at, err := os.Stat(parent); err == nil && os.SameFile(at, info) {
			return true, nil
		}
	}
	return false, nil
}

// CheckOutput reports early what SaveModel, of a session on that model, would
// refuse at the end of a long run: a place that is taken, and, with a SaveError, one
// that cannot be written to or has too little room for the model.
func CheckOutput(dir string, model *savedmodels.Model) error {
	if model == nil {
		return errNoModel
	}
	if err := replaceable(dir, model.Dir); err != nil {
		return err
	}
	parent := filepath.Dir(filepath.Clean(dir))
	needs := modelBytes(model)
	err := os.MkdirAll(parent, 0o777)
	if err == nil {
		err = files.Writable(parent, needs)
	}
	if err == nil {
		return nil
	}
	return newSaveError("save model to", dir, needs, withoutProbe(err))
}

// copyModel copies a SavedModel without its variables.
func copyModel(from, to string) error {
	return files.Walk(from, func(name string, info fs.FileInfo) error {
		switch {
		case name == "variables":
			return fs.SkipDir
		case info.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o777)
		case name == "fingerprint.pb":
			return nil
		}
		return files.CopyFile(filepath.Join(from, name), filepath.Join(to, name))
	})
}
