package savedmodels

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"steadyfit/internal/bundle"
	"steadyfit/internal/files"
)

// CheckUnchanged checks that the model can be loaded from its folder again. The error is
// ErrChanged if saved_model.pb differs from Hash or the frozen variables from Base,
// ErrNotSavedModel if the folder is damaged, and the file system's error if a file cannot be
// read. The values of other variables may differ from those at Open.
func (m *Model) CheckUnchanged() error {
	path := filepath.Join(m.Dir, modelFile)
	hash := sha256.New()
	f, _, err := files.Open(path)
	if err == nil {
		_, err = io.Copy(hash, f)
		f.Close()
	}
	if err != nil {
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	}
	if now := hex.EncodeToString(hash.Sum(nil)); now != m.Hash {
		return fmt.Errorf("%s: %w: its SHA-256 was %.12s when it was opened and is %.12s now; restore the file, or start "+
			"a new training with the new one",
			path, ErrChanged, m.Hash, now)
	}
	if err := m.checkWeights(); err != nil {
		return err
	}
	if m.Base != "" && m.frozenSum() != m.Base {
		return fmt.Errorf("%s: %w: its frozen variables have other values than when it was opened; restore the files, or "+
			"start a new training with the new ones",
			m.weights(), ErrChanged)
	}
	return nil
}

// checkWeights reports missing or damaged files of weights.
func (m *Model) checkWeights() error {
	if len(m.known.vars) == 0 {
		return nil // TensorFlow needs no weights
	}
	dir := filepath.Join(m.Dir, "variables")
	info, err := os.Stat(filepath.Join(dir, "variables.index"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: it has variables, but variables/variables.index is missing; "+
			"copy the whole folder, variables/ included", m.Dir, ErrNotSavedModel)
	case err != nil:
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	case !info.Mode().IsRegular() || info.Size() == 0:
		return fmt.Errorf("%s: %w: variables/variables.index is empty or not a regular file; copy the model again", m.Dir,
			ErrNotSavedModel)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	}
	// The names of the files contain the number of files, as in variables.data-00000-of-00002.
	have, want := 0, 1
	for _, e := range entries {
		var i, n int
		if _, err := fmt.Sscanf(e.Name(), "variables.data-%05d-of-%05d", &i, &n); err == nil && i < n {
			have, want = have+1, max(want, n)
		}
	}
	if have < want {
		return fmt.Errorf("%s: %w: variables/ has %d of %d files of weights (variables.data-*); copy the whole folder",
			m.Dir, ErrNotSavedModel, have, want)
	}
	index, err := readFile(filepath.Join(dir, "variables.index"), bundle.MaxBytes)
	if err == nil {
		err = bundle.Check(filepath.Join(dir, "variables"), index)
	}
	switch {
	case errors.Is(err, bundle.ErrDamaged):
		return fmt.Errorf("SavedModel %s: %w: %w", m.Dir, ErrNotSavedModel, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("SavedModel %s: %w: %w; copy the whole folder, variables/ included", m.Dir, ErrNotSavedModel, err)
	case err != nil:
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	}
	return nil
}
