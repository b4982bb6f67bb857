package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"steadyfit/internal/bundle"
	"steadyfit/savedmodels"
)

// ErrVariables means that the variables of the checkpoint differ from those of the model.
var ErrVariables = errors.New("the checkpoint has other variables than the model")

// CheckVariables checks that a checkpoint, perhaps of another model, has exactly the variables
// of this model: the names, types and shapes in the files of the model's own weights.
// Otherwise it returns ErrVariables with the first few differences. It needs no TensorFlow and
// reads no values. The names are those of Python's objects, so they stay the same when a model
// is exported again.
func CheckVariables(model *savedmodels.Model, prefix string) error {
	if model == nil {
		return errNoModel
	}
	if model.Saver == nil {
		return errNoSaver(model)
	}
	want, err := bundle.Read(filepath.Join(model.Dir, "variables", "variables"))
	if err != nil {
		return fmt.Errorf("the weights of the model: %w", err)
	}
	have, err := bundle.Read(prefix)
	if err != nil {
		return err
	}
	if found := bundle.Differences(want, have); found != "" {
		return fmt.Errorf("%w: %s", ErrVariables, found)
	}
	return nil
}

// CheckVariables calls the function CheckVariables for the session's model. It is part of
// fit.VariableChecker.
func (s *Session) CheckVariables(_ context.Context, prefix string) error {
	return CheckVariables(s.model, prefix)
}
