package session

import (
	"context"
	"errors"
	"fmt"

	"steadyfit/internal/bundle"
	"steadyfit/savedmodels"
)

// ErrVariables means that the variables of a checkpoint differ from those of the model.
var ErrVariables = errors.New("the checkpoint has other variables than the model")

// CheckVariables returns nil if a checkpoint, perhaps of another model, has exactly the
// variables of this model, with their names, types and shapes. A checkpoint without the frozen
// variables must belong to the same base. Otherwise the error is ErrVariables with the first
// differences. It compares the files' object names, which stay the same when a model is
// exported again. It needs no TensorFlow and does not read values.
func CheckVariables(model *savedmodels.Model, prefix string) error {
	if model == nil {
		return errNoModel
	}
	if model.Saver == nil {
		return errNoSaver(model)
	}
	want, err := bundle.Read(ownWeights(model))
	if err != nil {
		return fmt.Errorf("the weights of the model: %w", err)
	}
	have, err := bundle.Read(prefix)
	if err != nil {
		return err
	}
	if base, part := baseIn(have); part {
		if base != model.Base {
			return fmt.Errorf("%w: %w", ErrVariables, errBase(base, model.Base))
		}
		delete(have, baseMark+base)
		vars, changing := stateVariables(model)
		for _, v := range vars[changing:] {
			delete(want, v.Key)
		}
	}
	if found := bundle.Differences(want, have); found != "" {
		return fmt.Errorf("%w: %s", ErrVariables, found)
	}
	return nil
}

// CheckVariables calls the function CheckVariables for the session's model.
func (s *Session) CheckVariables(_ context.Context, prefix string) error {
	return CheckVariables(s.model, prefix)
}
