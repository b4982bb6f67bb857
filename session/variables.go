package session

import (
	"fmt"

	"steadyfit/internal/bundle"
	"steadyfit/savedmodels"
)

func (s capable) CheckVariables(prefix string) error { return checkPrefix(s.model, prefix) }

// checkPrefix returns nil if a checkpoint, perhaps of another model, has exactly the variables of a
// model, with their names, types and shapes. A checkpoint without frozen variables must belong to a
// model with the same frozen variables. Otherwise the error is ErrMismatch with the first
// differences. checkPrefix compares the object names in the files, which stay the same when a model
// is exported again. It does not need TensorFlow and does not read values.
func checkPrefix(model *savedmodels.Model, prefix string) error {
	if model.Saver == nil {
		return errNoSaver(model)
	}
	have, err := bundle.Read(prefix)
	if err != nil {
		return err
	}
	return checkVariables(model, have)
}

// checkVariables implements checkPrefix for the tensors of a checkpoint.
func checkVariables(model *savedmodels.Model, have map[string]bundle.Tensor) error {
	want, err := bundle.Read(ownWeights(model))
	if err != nil {
		return fmt.Errorf("the weights of the model: %w", err)
	}
	if base, part := baseIn(have); part {
		if base != model.Base {
			return fmt.Errorf("%w: %w", errVariables, otherBase(base, model.Base))
		}
		delete(have, baseMark+base)
		vars, changing := stateVariables(model)
		for _, v := range vars[changing:] {
			delete(want, v.Key)
		}
	}
	if found := bundle.Differences(want, have); found != "" {
		return fmt.Errorf("%w: %s", errVariables, found)
	}
	return nil
}
