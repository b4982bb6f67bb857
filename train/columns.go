package train

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/inputs"
	"steadyfit/internal/texts"
	"steadyfit/option"
	"steadyfit/savedmodels"
)

// setColumns sets which columns of a table feed the inputs of a signature and the label: those in the options, or else
// those that the model records.
func (r *reader) setColumns(model *savedmodels.Model, sig *savedmodels.Signature) error {
	known := sig
	if train, err := model.Signature(model.Roles.Train); err == nil {
		known = train // whose labels are columns of the data, too
	}
	r.labels = inputs.Labels(model, known)
	given := maps.Clone(r.record.Columns)
	if given == nil {
		given = map[string][]string{}
	}
	maps.Copy(given, r.Inputs)
	for _, name := range slices.Sorted(maps.Keys(r.Inputs)) {
		if known.Input(name) == nil && sig.Input(name) == nil {
			return refuse("Data.Inputs", name, "the model has no such input; its inputs are %s",
				texts.Some(savedmodels.Names(known.DataInputs())))
		}
	}
	if err := r.setLabels(known, given, model.Roles.Predict == ""); err != nil {
		return err
	}
	if columns := r.Inputs[r.only()]; len(columns) == 1 && r.Label == "" {
		r.Label = columns[0]
	}
	for i, in := range r.csv.Inputs {
		r.csv.Inputs[i].Columns = given[in.Name]
	}
	return nil
}

// only returns the name of the only label, or "".
func (r *reader) only() string {
	if len(r.labels) != 1 {
		return ""
	}
	return r.labels[0].Name
}

// setLabels parses Label. It removes the columns of several labels from Label, and adds them to the columns of inputs.
// If unknown is true, any input may be a label.
func (r *reader) setLabels(known *savedmodels.Signature, columns map[string][]string, unknown bool) error {
	items := strings.Split(r.Label, ",")
	if unknown {
		r.labels = slices.DeleteFunc(known.DataInputs(), func(in savedmodels.Tensor) bool {
			return in.Name != "y" && !slices.ContainsFunc(items, func(item string) bool {
				name, _, _ := strings.Cut(item, "=")
				return name == in.Name
			})
		})
	}
	switch {
	case len(r.labels) == 1:
		r.csv.Inputs = slices.DeleteFunc(r.csv.Inputs, func(in data.FieldSpec) bool { return in.Name == r.only() })
		items = []string{r.Label} // may have a comma
	case len(r.labels) > 1 && r.Label != "":
		r.Label = ""
	default:
		return nil
	}
	for _, item := range items {
		name, column, both := strings.Cut(item, "=")
		at := slices.IndexFunc(r.labels, func(in savedmodels.Tensor) bool { return in.Name == name || in.Name == "y_"+name })
		switch {
		case len(r.labels) == 1 && both && at == 0:
			r.Label = column
		case len(r.labels) == 1:
		case at < 0:
			return refuse("Data.Label", item, "the model has the labels %s; expected their columns, as in %s=COLUMN,...",
				texts.Some(savedmodels.Names(r.labels)), r.labels[0].Name)
		case both:
			columns[r.labels[at].Name] = []string{column}
		default:
			columns[r.labels[at].Name] = []string{item}
		}
	}
	return nil
}

// columns returns the columns that the inputs of the model and several labels were trained with.
func (r *reader) columns() (names []string) {
	for input, columns := range r.record.Columns {
		if input != r.only() {
			names = append(names, columns...)
		}
	}
	return names
}

// columnsOf returns the columns of inputs, by input. It omits an input whose only column has its name,
// unless it is the only input, and takes text.
func (r *reader) columnsOf(ds *data.InMemory) map[string][]string {
	found := map[string][]string{}
	for _, f := range ds.Fields() {
		switch one := len(r.csv.Inputs) == 1; {
		case f.Columns == nil:
		case f.Name == "y" && r.only() != "":
			found[r.only()] = f.Columns
		case !one:
			found[f.Name] = f.Columns
		case len(f.Columns) > 1 || r.text:
			found[r.csv.Inputs[0].Name] = f.Columns
		}
	}
	return found
}

// checkInputs returns an error for columns in the options of data without columns, such as arrays.
func (r *reader) checkInputs(ds *data.InMemory) error {
	for _, name := range slices.Sorted(maps.Keys(r.Inputs)) {
		columns := r.Inputs[name]
		if !slices.ContainsFunc(ds.Fields(), func(f data.FieldSpec) bool {
			isColumn := f.Columns == nil && f.Name == name && slices.Equal(columns, []string{name})
			return isColumn || slices.Equal(f.Columns, columns)
		}) {
			return refuse("Data.Inputs", name+"="+strings.Join(columns, ","), "%s has no such columns; name its fields like "+
				"the inputs", ds.Name())
		}
	}
	return nil
}

// checkColumns reports a table with names for values that had none in the training, unless the options list them. For
// validation data, it returns an error. If all is true, it returns an error for any columns that differ from those of
// the training.
func (r *reader) checkColumns(ds *data.InMemory, all bool) error {
	for name, columns := range r.columnsOf(ds) {
		switch known := r.record.Columns[name]; {
		case known == nil && r.record.Unnamed && len(columns) > 1 && r.Inputs[name] == nil:
			takes := fmt.Sprintf("%s: input %s takes the columns %s", ds.Name(), name, texts.Some(columns))
			if len(r.opened) > 1 { // validation data
				return option.Errorf("%s, and the training data has no names for its values: train on a table with these names, "+
					"or use data without names, such as arrays or a table without a header ({Data.Header no}): %w", takes,
					data.ErrField)
			}
			if r.Note != nil {
				r.Note(takes + " in this order, and the training data had no names for its values")
			}
		case all && known != nil && !slices.Equal(columns, known):
			return fmt.Errorf("%s: input %s takes the columns %s, and in the training data it took %s: %w", ds.Name(), name,
				texts.Some(columns), texts.Some(known), data.ErrField)
		}
	}
	return nil
}

// noteColumns reports columns of a table that are left out because the model was trained without
// them, and columns without names.
func (r *reader) noteColumns(ds *data.InMemory) {
	if r.Note == nil || len(r.columns()) == 0 {
		return
	}
	out := slices.DeleteFunc(ds.LeftOut(), func(name string) bool {
		whole, _, _ := strings.Cut(name, ".")
		return slices.Contains(slices.Concat(r.Ignore, r.columns(), r.record.Columns[r.only()]), name) ||
			slices.Contains(r.Ignore, whole)
	})
	switch {
	case len(out) > 0:
		r.Note(fmt.Sprintf("%s: the model was trained without these columns, which are left out: %s", ds.Name(),
			texts.Some(out)))
	case len(fieldOf(ds, "x").Shape) == 1 && fieldOf(ds, "x").Columns == nil:
		r.Note(fmt.Sprintf("%s has no names of columns, so the values are taken to be, in this order: %s", ds.Name(),
			texts.Some(r.columns())))
	}
}

// checkLabel returns an error if a table or records have both usual labels (label and y), and the
// options name none. The argument label is the one that was used.
func (r *reader) checkLabel(ds *data.InMemory, label string) error {
	other := map[string]string{"label": "y", "y": "label"}[label]
	if r.Label != "" || r.predicts || other == "" || slices.Contains(slices.Concat(r.Ignore, r.columns()), other) {
		return nil
	}
	names := fieldOf(ds, "x").Columns
	if label == "y" { // a label with the name label becomes the field y, so then only columns count
		for _, f := range ds.Fields() {
			names = append(names, f.Name)
		}
	}
	if !slices.Contains(names, other) {
		return nil
	}
	return &option.Error{Option: "Data.Label", Reason: ds.Name() + " has label and y",
		Fix: "name the one that is the label; drop the other one with {InMemory.Drop}, or rename it in the file, unless " +
			"it is a feature"}
}

// oneHot replaces class numbers by one-hot vectors where a label takes them.
func (r *reader) oneHot(ds *data.InMemory) (*data.InMemory, error) {
	for _, in := range r.vectors {
		f := fieldOf(ds, in.Name)
		if f.Name == "" && in.Name == r.only() {
			f = fieldOf(ds, "y")
		}
		shape, rank := f.Shape, len(in.Shape)
		if n := len(shape); n > 0 && n == rank-1 && shape[n-1] == 1 {
			shape = shape[:n-1]
		}
		if f.Name == "" || len(shape) != rank-2 {
			continue
		}
		classes := int(in.Shape[rank-1])
		err := checkNames(ds.Name(), f.Name, f.Classes, classes)
		if f.Type == dtype.For[string]().Name {
			err = option.Errorf("%s: field %s has texts, and label %s takes class numbers: convert names to numbers, as with "+
				"numpy.unique(names, return_inverse=True), or by a rule of type category for a column of a table "+
				"({Data.Schema}): %w", ds.Name(), f.Name, in.Name, data.ErrLabel)
		}
		if err == nil {
			ds, err = ds.OneHot(f.Name, classes)
		}
		if err != nil {
			return nil, err
		}
	}
	return ds, nil
}
