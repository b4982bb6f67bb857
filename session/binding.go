package session

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/inputs"
	"steadyfit/internal/texts"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// ErrData means that the data does not fit the signature.
var ErrData = errors.New("the data does not fit the model")

// binding maps the inputs of a signature to the fields of batches.
type binding struct {
	// Signature is the signature that a Step runs.
	Signature *savedmodels.Signature
	inputs    []input
	// features are the inputs that predict takes too. The other inputs are labels.
	features []string
	// fields are the fields of the batch that the inputs are mapped to.
	fields []string
	// strict makes a field an error if it is neither an input nor listed in the field also. It is true
	// for signatures with a loss, since training without a field could give another result, as for
	// sample weights.
	strict bool
	also   []string
}

// input is an input of the signature. Inputs have the order of the feeds of its tfbind.Step.
type input struct {
	savedmodels.Tensor
	stacked bool    // whether it has one value per step of an execution
	fixed   bool    // whether data must have its rank; see savedmodels.InputMetadata
	shape   []int64 // scratch: the shape of the value being set
	// field is the index of the field in a batch; -1 if the value is generated.
	field int
}

func newBinding(model *savedmodels.Model, sig *savedmodels.Signature) binding {
	if name, original := strings.CutPrefix(sig.Name, contract.OriginalPrefix); original {
		shown := *sig
		shown.Name, sig = name, &shown
	}
	b := binding{Signature: sig, strict: sig.HasLoss() && len(sig.DataInputs()) > 0}
	// Evaluation data may have fields that only the train signature takes.
	if train, err := model.Signature(model.Roles.Train); err == nil && sig.Name == model.Roles.Evaluate {
		for _, t := range train.Inputs {
			b.also = append(b.also, t.Name)
		}
	}
	for _, t := range sig.Inputs {
		b.inputs = append(b.inputs, input{Tensor: t, fixed: model.Metadata != nil && model.Metadata.Labels[t.Name].FixedRank})
	}
	if predict, err := model.Signature(model.Roles.Predict); err == nil {
		for _, t := range predict.DataInputs() {
			if sig.Input(t.Name) != nil {
				b.features = append(b.features, t.Name)
			}
		}
	}
	return b
}

// matchTo maps the inputs to the fields of a batch. It does nothing if the last batch had the
// same fields.
func (b *binding) matchTo(fields []data.Field) error {
	if b.fields != nil && slices.EqualFunc(b.fields, fields,
		func(name string, f data.Field) bool { return name == f.Name }) {
		return nil
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return b.match(names)
}

// match maps each input to the field of the same name. If one feature has none, it maps it to the field x, and if one
// label has none, to the field y. Without features, any input may be a label.
func (b *binding) match(fields []string) error {
	data := b.Signature.DataInputs()
	named := map[string]string{}
	taken := map[string]bool{}
	for _, t := range data {
		name, isFeature := t.Name, slices.Contains(b.features, t.Name)
		if !slices.Contains(fields, name) {
			name = map[bool]string{true: "x", false: "y"}[isFeature]
		}
		if taken[name] || !slices.Contains(fields, name) {
			labels := len(data) - len(b.features)
			return b.unmatched(fields, len(b.features) == 1 && labels <= 1)
		}
		named[t.Name], taken[name] = name, true
	}
	for i := range b.inputs {
		in := &b.inputs[i]
		if in.Constant != nil {
			in.field = -1
			continue
		}
		name, ok := named[in.Name]
		if !ok {
			name = in.Name
		}
		in.field = slices.Index(fields, name)
	}
	for i, name := range fields {
		if b.strict && !slices.Contains(b.also, name) &&
			!slices.ContainsFunc(b.inputs, func(in input) bool { return in.field == i }) {
			return b.unused(name)
		}
	}
	b.fields = slices.Clone(fields)
	return nil
}

// unmatched returns the error for data that lacks a field for at least one input. The error has the names
// that differ. If roles is true, the error also suggests the names x and y.
func (b *binding) unmatched(fields []string, roles bool) error {
	var missing, others []string
	data := b.Signature.DataInputs()
	for _, in := range data {
		if !slices.Contains(fields, in.Name) {
			missing = append(missing, in.Name)
		}
	}
	for _, name := range fields {
		if b.Signature.Input(name) == nil {
			others = append(others, name)
		}
	}
	text, fix := "missing: "+texts.Some(missing), "add what is missing"
	if len(others) > 0 {
		text, fix = text+"; not inputs: "+texts.Some(others), "name the arrays of the data like the inputs"
		if roles {
			fix += ", or x and y"
		}
	}
	for _, in := range data {
		if in.IsSwitch() && slices.Contains(missing, in.Name) {
			fix = fmt.Sprintf("give %s a constant with {Config.Constants %s=%s}", in.Name, in.Name,
				map[bool]string{true: "true", false: "1"}[in.DType == tfbind.Bool])
		}
	}
	if len(fields) > len(data) {
		fix += ", and drop the others with {InMemory.Drop}"
	}
	return option.Errorf("%w: signature %s takes %s, and the data has %s (%s); "+fix,
		ErrData, b.Signature.Name, names(data), texts.Some(fields), text)
}

func (b *binding) unused(field string) error {
	fix := "drop it with {InMemory.Drop}, or rename it to the input that should take it"
	if field == contract.InputSampleWeight {
		fix = "export the model with that input, or drop the field with {InMemory.Drop}"
	}
	return option.Errorf("%w: no input of signature %s takes the field %s (the inputs are %s); "+fix, ErrData,
		b.Signature.Name, field, names(b.Signature.Inputs))
}

// CheckData checks the names, types and shapes of a dataset's fields, and its last batch size,
// against the inputs of a signature. The result maps the signature's data inputs to fields. The
// error is ErrData.
func CheckData(model *savedmodels.Model, signature string, ds data.Dataset, pass data.Pass) (fields map[string]string,
	err error) {
	sig, err := model.Signature(signature)
	if err != nil {
		return nil, err
	}
	b := newBinding(model, sig)
	specs := ds.Fields()
	names := make([]string, len(specs))
	for i, f := range specs {
		names[i] = f.Name
	}
	if err := b.match(names); err != nil {
		return nil, fmt.Errorf("%s: %w", ds.Name(), err)
	}
	sizes := []int{min(pass.Batch, ds.Len())}
	if last := ds.Len() % pass.Batch; last > 0 && !pass.DropRemainder {
		sizes = append(sizes, last)
	}
	fields = map[string]string{}
	for i := range b.inputs {
		in := &b.inputs[i]
		if in.field < 0 {
			if in.Name == contract.InputSampleWeight && len(in.Shape) > 1 && slices.Min(in.Shape[1:]) < 0 {
				return nil, fmt.Errorf("%s: %w", ds.Name(), in.noSize(sig))
			}
			continue
		}
		f := specs[in.field]
		fields[in.Name] = f.Name
		for _, size := range sizes {
			if err == nil {
				err = in.fit(append([]int{size}, f.Shape...), 0)
			}
		}
		err = columnsHint(shapeHint(err, in, f, inputs.IsLabel(model, in.Tensor)), in, f)
		if (f.Type == "string") != (in.DType == tfbind.String) || in.DType == tfbind.Bool && f.Type != "bool" {
			fix := ""
			if f.Type == "string" {
				fix = "; convert names to numbers, as with numpy.unique(names, return_inverse=True)"
			}
			err = cmp.Or(err, fmt.Errorf("%w: expected %s, got %s%s", ErrData, in.DType, f.Type, fix))
		}
		if err != nil {
			return nil, fmt.Errorf("%s: field %s for signature %s, input %s: %w", ds.Name(), f.Name, sig.Name, in.Name, err)
		}
	}
	return fields, nil
}

// shapeHint adds what to write instead to the error for one-hot labels.
func shapeHint(err error, in *input, f data.FieldSpec, label bool) error {
	if err != nil && label && len(in.Shape) == 1 && len(f.Shape) == 1 && f.Shape[0] > 1 {
		return fmt.Errorf("%w; if the labels are one-hot, write the number of the class instead, as with "+
			"numpy.argmax(labels, axis=1)", err)
	}
	return err
}

// columnsHint adds the columns of a table to the error for a field of several columns.
func columnsHint(err error, in *input, f data.FieldSpec) error {
	if err == nil || len(f.Columns) < 2 {
		return err
	}
	columns, few, fix := f.Columns, "", "leave out those that are no features ({Options.Ignore})"
	if len(in.Shape) == 2 && int(in.Shape[1]) > len(columns) {
		few, fix = fmt.Sprintf(", %d too few", int(in.Shape[1])-len(columns)), "add the missing columns"
	}
	return option.Errorf("%w; the table has %d columns besides the label%s: %s; "+fix, err, len(columns), few,
		texts.Some(columns))
}

func names(ts []savedmodels.Tensor) string { return cmp.Or(texts.Some(savedmodels.Names(ts)), "none") }
