package savedmodels

import (
	"errors"
	"fmt"
	"io/fs"

	"steadyfit/internal/bundle"
)

// CheckUnchanged checks that the model can be loaded from its folder again. The error is
// ErrChanged if saved_model.pb differs from Hash or the frozen variables from Base,
// ErrNotSavedModel if the folder is damaged, and the file system's error if a file cannot be
// read. The values of other variables may differ from those at Open.
func (m *Model) CheckUnchanged() error {
	if _, err := m.read(); err != nil {
		return err
	}
	if err := m.checkWeights(); err != nil {
		return err
	}
	if m.Base != "" && m.frozenSum() != m.Base {
		return fmt.Errorf("%s: %w: the values of its frozen variables differ; restore the files, or start a new training "+
			"with the changed files", m.weights(), ErrChanged)
	}
	return nil
}

// checkWeights reports missing or damaged files of weights.
func (m *Model) checkWeights() error {
	if len(m.known.vars) == 0 {
		return nil // TensorFlow needs no weights
	}
	index, err := readFile(m.weights()+".index", bundle.MaxBytes)
	if err == nil {
		err = bundle.Check(m.weights(), index)
	}
	switch {
	case errors.Is(err, bundle.ErrDamaged):
		return fmt.Errorf("SavedModel %s: %w: %w", m.Dir, ErrNotSavedModel, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("SavedModel %s: %w: a file of its variables is missing: %w; copy the whole folder, with variables/",
			m.Dir, ErrNotSavedModel, err)
	case err != nil:
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	}
	return nil
}
