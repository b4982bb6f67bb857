package session

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"steadyfit/internal/files"
	"steadyfit/internal/texts"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// adapterFile is the name of the file in the folder of an adapter.
const adapterFile = "adapter.safetensors"

// Adapter is a set of trained weights without those of the base model: LoRA matrices, a head, or any
// other part of a model whose rest is frozen. It is a value in Go's memory, which needs no Close and
// remains valid after its session is closed. It does not include the state of the optimizer; a
// checkpoint does.
//
// In a folder, an adapter is the file adapter.safetensors, which the Python package safetensors can
// read. The metadata of the file include the hash of the base.
type Adapter struct {
	// Base is the hash of the frozen weights that the adapter belongs to
	// (savedmodels.Model.Base). It is empty for a model without frozen weights. Only the names,
	// types and shapes of the weights are then compared.
	Base string
	// Record states how the data of the training became inputs; nil if unknown. Data for the adapter is
	// read as Record states (savedmodels.Model.WithRecord).
	Record *savedmodels.DataRecord
	// Weights are the trained weights by name (savedmodels.Variable.WeightName).
	Weights map[string]Weight
}

// Weight is the value of a variable.
type Weight struct {
	DType tfbind.DType
	Shape []int64
	// Data has the elements in row-major order, little-endian.
	Data []byte
}

// check returns an error if the data do not have the size of the shape.
func (w Weight) check() error {
	if want := (savedmodels.Variable{DType: w.DType, Shape: w.Shape}).Bytes(); want != int64(len(w.Data)) {
		return fmt.Errorf("%d bytes do not fit its shape %v", len(w.Data), w.Shape)
	}
	return nil
}

// The metadata of the file.
const (
	formatKey     = "format"
	adapterFormat = "steadyfit.adapter/1"
	baseKey       = "base"
	recordKey     = "data" // Adapter.Record, as JSON
)

// ReadAdapter reads the adapter for a model from a folder. A folder without an adapter is
// fs.ErrNotExist. A damaged file, and an adapter that does not fit the model (CheckAdapter), are
// ErrMismatch.
func ReadAdapter(dir string, model *savedmodels.Model) (*Adapter, error) {
	if model == nil {
		return nil, errNoModel
	}
	path := filepath.Join(dir, adapterFile)
	raw, err := files.Read(path, model.WeightBytes()+maxHeader)
	info, statErr := os.Stat(dir)
	switch {
	case statErr == nil && !info.IsDir():
		return nil, fmt.Errorf("adapter %s: %w: it is a file; give a folder with the file %s", dir, errAdapterFile,
			adapterFile)
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("no adapter in %s: %w; give the folder of an adapter", dir, err)
	case errors.Is(err, files.ErrTooLarge):
		return nil, fmt.Errorf("%w: %w, so it may belong to another model", errAdapterFile, err)
	case err != nil:
		return nil, fmt.Errorf("adapter: %w", err)
	}
	weights, metadata, err := decodeWeights(raw)
	a := &Adapter{Base: metadata[baseKey], Weights: weights}
	if text := metadata[recordKey]; err == nil && text != "" {
		err = json.Unmarshal([]byte(text), &a.Record)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %w; write it again, or give another folder", path, errAdapterFile, err)
	}
	return a, CheckAdapter(model, a)
}

// Write writes the adapter to a folder, which it makes. Write replaces an adapter in the folder: a
// crash leaves the old one or the new one.
func (a *Adapter) Write(dir string) error {
	metadata := map[string]string{formatKey: adapterFormat, baseKey: a.Base}
	record, err := json.Marshal(a.Record)
	if err == nil && a.Record != nil && len(record) > len("{}") {
		metadata[recordKey] = string(record)
	}
	var raw []byte
	if err == nil {
		raw, err = encodeWeights(a.Weights, metadata)
	}
	if err == nil {
		err = os.MkdirAll(dir, 0o777)
	}
	if err == nil {
		err = files.Replace(filepath.Join(dir, adapterFile), raw)
	}
	if err != nil {
		return fmt.Errorf("adapter %s: %w", dir, err)
	}
	return nil
}

// CheckAdapter checks that an adapter fits a model: the adapter was trained on the same frozen
// variables (savedmodels.Model.Base) and has exactly the weights that training changes. If a is
// nil, CheckAdapter checks that the model can have adapters: training changes at least one weight,
// and each of these weights has a unique name in checkpoints. The error is ErrMismatch.
// CheckAdapter does not need TensorFlow.
func CheckAdapter(model *savedmodels.Model, a *Adapter) error {
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
		switch sizes := cmp.Or(w.check(), w.fits(v)); {
		case !ok:
			found = append(found, name+" is missing")
		case sizes != nil:
			found = append(found, fmt.Sprintf("%s: %v", name, sizes))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		found = append(found, name+" is not one of the model's")
	}
	if len(found) > 0 {
		return fmt.Errorf("adapter for %s: %w: %s", model.Dir, errAdapter, texts.Some(found))
	}
	return nil
}

// fits returns an error if the weight cannot be the value of a variable.
func (w Weight) fits(v savedmodels.Variable) error {
	shape := func(want, is int64) bool { return want < 0 || want == is }
	if w.DType == v.DType && (v.UnknownRank || slices.EqualFunc(v.Shape, w.Shape, shape)) {
		return nil
	}
	return fmt.Errorf("%v %v, expected %v %v", w.DType, w.Shape, v.DType, v.Shape)
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
			return nil, fmt.Errorf("%w: the trained variable %s of %s has no name of its own in checkpoints, as if it were "+
				"partitioned; save the whole model", errAdapter, v.Name, m.Dir)
		}
		names[v.WeightName()] = true
		vars = append(vars, v)
	}
	if len(vars) == 0 {
		return nil, fmt.Errorf("%w: %s has no weights that training changes and predictions or evaluations use; save the "+
			"whole model", errAdapter, m.Dir)
	}
	return vars, nil
}

// Adapter returns the trained weights, without the frozen ones and without the state of the
// optimizer.
func (s *Session) Adapter(ctx context.Context) (*Adapter, error) {
	if _, err := adapted(s.model); err != nil {
		return nil, fmt.Errorf("adapter: %w", err)
	}
	p, err := s.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("adapter: %w", err)
	}
	defer p.Close()
	a := &Adapter{Base: s.model.Base, Weights: map[string]Weight{}}
	for i, value := range p.values {
		v := s.state.variables[i]
		if !v.Weight {
			continue
		}
		raw, err := value.Raw()
		if err != nil {
			return nil, fmt.Errorf("adapter: weight %s: %w", v.WeightName(), err)
		}
		a.Weights[v.WeightName()] = Weight{DType: value.DType(), Shape: value.Shape(), Data: raw}
	}
	return a, nil
}

// Swap gives the session the weights of an adapter, without loading the model again; nil stands
// for the weights of the model's files. Everything else that training changes gets its value
// from the model's files: the optimizer has no momentum, its learning rate is that of the model,
// and running metrics are reset. To change between trainings with their optimizers, use Save
// and Restore or Snapshot and Revert, which swap as fast.
//
// TensorFlow prepares the operations of a swap at their first use, which takes 0.1 to 0.5 s.
//
// An adapter that does not fit is ErrMismatch (see CheckAdapter), and nothing changes.
func (s *Session) Swap(ctx context.Context, a *Adapter) error {
	if a != nil {
		if err := CheckAdapter(s.model, a); err != nil {
			return err
		}
	}
	// Predictions depend only on the frozen variables and those of the adapter.
	if a == nil || !s.opts.ReadOnly {
		if err := s.Restore(ctx, ownWeights(s.model)); err != nil {
			return fmt.Errorf("swap: %w", err)
		}
	}
	if s.rate = math.NaN(); s.scaler != nil {
		*s.scaler = lossScaler{Scale: initialScale}
	}
	if a == nil {
		return nil
	}
	o, err := s.stateOperations()
	if err != nil {
		return err
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
	return nil
}
