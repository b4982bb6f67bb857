package session

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

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
// it, and the new one, under a name .DIR.tmp-* beside dir. Anything else at dir
// is an error, and so is a folder inside the model that is being trained. If the
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
	temp, err := os.MkdirTemp(parent, "."+filepath.Base(filepath.Clean(dir))+".tmp-")
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
	if err := copyModel(s.model.Dir, whole); err != nil {
		return err
	}
	variables := filepath.Join(whole, "variables")
	if err := os.MkdirAll(variables, 0o777); err != nil {
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
	old := filepath.Join(temp, "old")
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
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case rel == "variables":
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o777)
		case rel == "fingerprint.pb":
			return nil
		}
		return files.CopyFile(path, filepath.Join(to, rel))
	})
}
