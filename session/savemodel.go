package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"

	"steadyfit/internal/files"
	"steadyfit/internal/manifest"
	"steadyfit/savedmodels"
)

// SaveModel writes a SavedModel with the same graph, signatures and assets and the current
// variables. Python, TensorFlow Serving and savedmodels.Open can load it, and training can
// continue with the optimizer's state. The file fingerprint.pb is omitted because it describes
// the original variables.
//
// SaveModel replaces a SavedModel at dir atomically. If the machine crashes during the
// replacement, both models can remain in a folder .DIR.tmp-* beside dir, which TidyModels
// cleans up. SaveModel fails if dir has other content or is inside the folder of the model
// being trained. An error of the file system is a *SaveError.
//
// Each complete function is called with the folder of the new files before it replaces dir, for
// example to add a file. The file SHA256SUMS has the hashes of all files.
func (s *Session) SaveModel(ctx context.Context, dir string, complete ...func(dir string) error) error {
	if err := replaceable(dir, s.model.Dir); err != nil {
		return err
	}
	return s.modelError(dir, s.writeModel(ctx, dir, complete))
}

// writeFiles writes a SavedModel to a new folder, without its manifest, which it returns.
func (s *Session) writeFiles(ctx context.Context, dir string, complete []func(string) error) (*manifest.Manifest, error) {
	variables := filepath.Join(dir, "variables")
	err := os.MkdirAll(variables, 0o777)
	if err == nil {
		err = copyModel(s.model.Dir, dir)
	}
	if err == nil {
		err = s.saveAll(ctx, filepath.Join(variables, "variables"))
	}
	for _, f := range complete {
		if err == nil {
			err = f(dir)
		}
	}
	if err != nil {
		return nil, err
	}
	return manifest.Hash(ctx, dir)
}

func (s *Session) writeModel(ctx context.Context, dir string, complete []func(string) error) (err error) {
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
	sums, err := s.writeFiles(ctx, whole, complete)
	if err == nil {
		err = sums.Write(whole)
	}
	if err == nil {
		err = files.SyncTree(whole)
	}
	if err != nil {
		return err
	}
	// A rename cannot replace a folder that has files, so the old model is moved away first. If
	// the new model cannot be renamed, the old one is moved back.
	old := filepath.Join(temp, replacedModel)
	err = os.Rename(dir, old)
	replaced := err == nil
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Rename(whole, dir); err != nil {
		// Keep both complete models.
		keep = true
		err = fmt.Errorf("%w; the trained model is in %s", err, whole)
		if replaced {
			err = errors.Join(err, os.Rename(old, dir))
		}
		return err
	}
	return files.SyncPath(parent)
}

// SaveModel writes the model NAME to a folder .NAME + unfinishedMark + digits beside it. In
// that folder, replacedModel is the model being replaced.
const (
	unfinishedMark = ".tmp-"
	replacedModel  = "old"
)

var unfinishedName = regexp.MustCompile(`(?s)^\.(.+)` + regexp.QuoteMeta(unfinishedMark) + `[0-9]+$`)

// TidyModels removes what a killed SaveModel left in a folder. If NAME does not exist, it
// restores the model that was being replaced. It deletes a new model that was not yet renamed
// to NAME. of selects models by their name and the time of their last change; nil selects all.
// A missing folder counts as empty.
//
// TidyModels must not run while a process saves one of the selected models. It returns the
// first error of the file system.
func TidyModels(folder string, of func(model string, changed time.Time) bool) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("tidy models: %w", err)
	}
	for _, e := range entries {
		name := unfinishedName.FindStringSubmatch(e.Name())
		if name == nil || !e.IsDir() {
			continue
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && (of == nil || of(name[1], info.ModTime())) {
			err = tidyModel(filepath.Join(folder, name[1]), filepath.Join(folder, e.Name()))
		}
		if err != nil {
			return fmt.Errorf("tidy models: %w", err)
		}
	}
	return nil
}

// tidyModel removes what a killed SaveModel left, and restores the replaced model.
func tidyModel(model, left string) error {
	if _, err := os.Lstat(model); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(filepath.Join(left, replacedModel), model); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return os.RemoveAll(left)
}

// replaceable rejects a folder that has other content than a SavedModel or is inside the folder
// of the original model.
func replaceable(dir, model string) error {
	if err := outside(dir, model); err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("save model to %s: %w", dir, err)
	}
	isModel := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "saved_model.pb" })
	if len(entries) > 0 && !isModel {
		return fmt.Errorf("save model to %s: the folder holds something other than a SavedModel (%s); choose another folder or empty it", dir, entries[0].Name())
	}
	return nil
}

// outside returns an error if dir is, or would be, inside the folder of a model.
func outside(dir, model string) error {
	info, err := os.Stat(model)
	if err != nil {
		return err
	}
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	for parent := filepath.Dir(dir); parent != dir; dir, parent = parent, filepath.Dir(parent) {
		if at, err := os.Stat(parent); err == nil && os.SameFile(at, info) {
			return fmt.Errorf("the folder is inside the model %s; choose another folder", model)
		}
	}
	return nil
}

// CheckOutput reports early what SaveModel would report at the end of a run: a dir with other
// content or, as a *SaveError, a dir that is not writable or a disk without enough free space.
func CheckOutput(dir string, model *savedmodels.Model) error {
	if model == nil {
		return errNoModel
	}
	if err := replaceable(dir, model.Dir); err != nil {
		return err
	}
	return checkSpace(dir, filepath.Dir(filepath.Clean(dir)), model)
}

// checkSpace returns a SaveError if a model cannot be saved to dir for lack of space or rights in
// the folder parent, which it creates.
func checkSpace(dir, parent string, model *savedmodels.Model) error {
	needs := modelBytes(model)
	if err := files.WritableDir(parent, needs); err != nil {
		return newSaveError("save model to", dir, needs, withoutProbe(err))
	}
	return nil
}

// copyModel copies a SavedModel without its variables and its manifest.
func copyModel(from, to string) error {
	return files.Walk(from, func(name string, info fs.FileInfo) error {
		switch {
		case name == "variables":
			return fs.SkipDir
		case info.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o777)
		case name == "fingerprint.pb" || name == manifest.Name:
			return nil
		}
		return files.CopyFile(filepath.Join(from, name), filepath.Join(to, name))
	})
}

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
	// A missing file is not an error of the disk: the original model lacks it.
	return fmt.Errorf("save model to %s: %w", dir, err)
}

func modelBytes(m *savedmodels.Model) int64 {
	sum := saveBytes(m.Variables)
	// Copying an unreadable file fails later.
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
