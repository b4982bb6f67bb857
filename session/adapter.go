package session

import (
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"steadyfit/adapter"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// CheckAdapter checks that an adapter fits a model: the adapter was trained on the same frozen
// variables (savedmodels.Model.Base) and has exactly the weights that training changes. If a is
// nil, CheckAdapter checks that the model can have adapters: training changes at least one weight,
// and each of these weights has a unique name in checkpoints. The error is ErrMismatch.
// CheckAdapter does not need TensorFlow.
func CheckAdapter(model *savedmodels.Model, a *adapter.Adapter) error {
	if model == nil {
		return errNoModel
	}
	vars, err := adapted(model)
	if err != nil || a == nil {
		return err
	}
	if a.Base != model.Base {
		return fmt.Errorf("adapter for %s: %w", model.Dir, otherBase(a.Base, model.Base))
	}
	var found []string
	have := maps.Clone(a.Weights)
	for _, v := range vars {
		name := v.WeightName()
		w, ok := have[name]
		delete(have, name)
		switch fits := w.DType == v.DType && (v.UnknownRank || slices.EqualFunc(v.Shape, w.Shape, func(want, is int64) bool { return want < 0 || want == is })); {
		case !ok:
			found = append(found, name+" is missing")
		case !fits:
			found = append(found, fmt.Sprintf("%s is %v %v, expected %v %v", name, w.DType, w.Shape, v.DType, v.Shape))
		case int64(len(w.Data)) != (savedmodels.Variable{DType: w.DType, Shape: w.Shape}).Bytes():
			found = append(found, fmt.Sprintf("%s has %d bytes, which do not fit its shape %v", name, len(w.Data), w.Shape))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		found = append(found, name+" is not one of the model's")
	}
	if len(found) == 0 {
		return nil
	}
	if more := len(found) - 5; more > 0 {
		found = append(found[:5], fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("adapter for %s: %w: %s", model.Dir, errAdapter, strings.Join(found, ", "))
}

// adapted returns the variables that an adapter of the model contains. It is an error if there are
// none, or if one has no unique name in checkpoints.
func adapted(m *savedmodels.Model) (vars []savedmodels.Variable, err error) {
	names := map[string]bool{}
	for _, v := range m.Variables {
		if !v.Weight {
			continue
		}
		if v.Key == "" || names[v.WeightName()] {
			return nil, fmt.Errorf("%w: the trained variable %s of %s has no name of its own in checkpoints, as if it were partitioned; save the whole model", errAdapter, v.Name, m.Dir)
		}
		names[v.WeightName()] = true
		vars = append(vars, v)
	}
	if len(vars) == 0 {
		return nil, fmt.Errorf("%w: %s has no weights that training changes and predictions or evaluations use; save the whole model", errAdapter, m.Dir)
	}
	return vars, nil
}

// Adapter returns the trained weights, without the frozen ones and without the state of the
// optimizer. If Restore has given the frozen variables other values than those of the model's
// files, the error is ErrMismatch.
func (s *Session) Adapter(ctx context.Context) (*adapter.Adapter, error) {
	if s.foreign {
		return nil, fmt.Errorf("adapter: %w: the frozen variables of this session are not those of %s; open the model that has them", errBase, s.model.Dir)
	}
	if _, err := adapted(s.model); err != nil {
		return nil, fmt.Errorf("adapter: %w", err)
	}
	o, err := s.stateOperations()
	if err != nil {
		return nil, err
	}
	var reads []tfbind.Output
	var names []string
	for i, v := range o.variables {
		if v.Weight {
			reads, names = append(reads, o.reads[i]), append(names, v.WeightName())
		}
	}
	values, err := s.tf.Run(ctx, nil, reads)
	if err != nil {
		return nil, fmt.Errorf("adapter: %w", err)
	}
	defer values.Close()
	a := &adapter.Adapter{Base: s.model.Base, Weights: map[string]adapter.Weight{}}
	for i, value := range values {
		raw, err := value.Raw()
		if err != nil {
			return nil, fmt.Errorf("adapter: weight %s: %w", names[i], err)
		}
		a.Weights[names[i]] = adapter.Weight{DType: value.DType(), Shape: value.Shape(), Data: raw}
	}
	return a, nil
}

// Swap gives the session the weights of an adapter, without loading the model again; nil stands
// for the weights of the model's files. Everything else that training changes gets its value
// from the model's files: the optimizer has no momentum, its learning rate is that of the model,
// and running metrics are reset. To change between trainings with their optimizers, use Save
// and Restore or Snapshot and Revert, which swap as fast.
//
// TensorFlow prepares the operations of a swap at their first use, which takes 0.1 to 0.5 s. A
// first Swap to nil after Open prepares them all, so that no later swap takes that time.
//
// An adapter that does not fit is ErrMismatch (see CheckAdapter), and nothing changes.
func (s *Session) Swap(ctx context.Context, a *adapter.Adapter) error {
	if a != nil {
		if err := CheckAdapter(s.model, a); err != nil {
			return err
		}
	}
	// Predictions depend only on the frozen variables and those of the adapter.
	if a == nil || !s.opts.ReadOnly || s.foreign {
		if err := s.Restore(ctx, ownWeights(s.model)); err != nil {
			return fmt.Errorf("swap: %w", err)
		}
	}
	if s.rate = math.NaN(); s.scaler != nil {
		*s.scaler = *s.lossScale
	}
	o, err := s.stateOperations()
	if err != nil {
		return err
	}
	if a == nil {
		if _, none := adapted(s.model); none != nil || o.adapted || s.model.Base == "" {
			return nil //nolint:nilerr // there are no operations to prepare
		}
		// Writing the session's own weights again changes nothing, but prepares the operations of a
		// swap.
		if a, err = s.Adapter(ctx); err != nil {
			return fmt.Errorf("swap: %w", err)
		}
	}
	feeds := tfbind.Feeds{}
	var writes []string
	for i, v := range o.variables {
		if !v.Weight {
			continue
		}
		w := a.Weights[v.WeightName()]
		value, err := tfbind.NewRaw(w.DType, w.Data, w.Shape...)
		if err != nil {
			return fmt.Errorf("swap: weight %s: %w", v.WeightName(), err)
		}
		defer value.Close()
		feeds[o.places[i]], writes = value, append(writes, o.writes[i])
	}
	if err := s.runState(ctx, feeds, writes...); err != nil {
		return fmt.Errorf("swap: %w", err)
	}
	o.adapted = true
	return nil
}
