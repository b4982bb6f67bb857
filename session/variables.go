package session

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"steadyfit/internal/bundle"
	"steadyfit/savedmodels"
)

// ErrVariables: a checkpoint that has not the variables of a model.
var ErrVariables = errors.New("the checkpoint has other variables than the model")

// CheckVariables says whether a checkpoint that Save wrote, also in a session of another
// model, has exactly the variables of this one: their names in checkpoints, types and
// shapes. What they have to be is what the files of the model's own weights have, which
// the same saver wrote. ErrVariables has the first few differences. It needs no
// TensorFlow and reads no values.
//
// The names are those of Python's objects and layers, not of the graph, so they stay
// when a model is exported anew.
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

// CheckVariables is the function CheckVariables for the session's model. It makes a
// Session a fit.VariableChecker.
func (s *Session) CheckVariables(_ context.Context, prefix string) error {
	return CheckVariables(s.model, prefix)
}
