package data

import (
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// exact reports whether an input takes numbers that float32 may not represent.
func (o *CSVOptions) exact() bool {
	return slices.ContainsFunc(o.Inputs, func(in FieldSpec) bool {
		kind := dtype.ByName(in.Type)
		if kind == nil {
			return false
		}
		return kind == dtype.For[float64]() || kind.Kind != dtype.FloatKind && kind.Kind != dtype.BoolKind &&
			kind.Kind != dtype.StringKind
	})
}

// integers reports whether the input that a field feeds, which is the only one or has its name, takes integers.
func (o *CSVOptions) integers(field string) bool {
	in := o.input(field)
	if in == nil && len(o.Inputs) == 1 {
		in = &o.Inputs[0]
	}
	if in == nil {
		return false
	}
	kind := dtype.ByName(in.Type)
	return kind != nil && (kind.Kind == dtype.IntKind || kind.Kind == dtype.UintKind)
}

// keeps reports whether a column is kept and is not an input.
func (o *CSVOptions) keeps(column string) bool {
	isInput := slices.Contains(o.Features, column) || o.feedsByName() && o.input(column) != nil
	return slices.Contains(o.Keep, column) && !isInput
}

// only reports whether the model has one input, which is of a type.
func (o *CSVOptions) only(kind *dtype.Type) bool {
	return len(o.Inputs) == 1 && o.Inputs[0].Type == kind.Name
}

// input returns the input that a column with a name of its own feeds; nil if there is none.
func (o *CSVOptions) input(column string) *FieldSpec {
	for i, in := range o.Inputs {
		if in.Name == column || slices.Contains(in.Columns, column) {
			return &o.Inputs[i]
		}
	}
	return nil
}

// takes reports whether a column feeds an input of a type by its name.
func (o *CSVOptions) takes(column string, kind *dtype.Type) bool {
	in := o.input(column)
	return o.feedsByName() && in != nil && in.Type == kind.Name
}

// feedsByName reports whether columns feed the inputs with their names.
func (o *CSVOptions) feedsByName() bool {
	grouped := func(in FieldSpec) bool { return in.Columns != nil }
	several := func(in FieldSpec) bool { return len(in.Shape) > 0 }
	return slices.ContainsFunc(o.Inputs, grouped) ||
		(len(o.Inputs) > 1 || o.only(dtype.For[string]())) && !slices.ContainsFunc(o.Inputs, several)
}

// joins reports whether columns with one value per row become the rows of x. Those of a CSV file always do,
// unless there are several inputs.
func (o *CSVOptions) joins(names []string) bool {
	if o.flat {
		return len(o.Inputs) <= 1
	}
	if len(o.Inputs) != 1 || o.feedsByName() {
		return false
	}
	in := o.Inputs[0]
	return (len(in.Shape) == 1 || !slices.Contains(names, in.Name)) &&
		(len(o.Features) == 0 || slices.ContainsFunc(o.Features,
			func(name string) bool { return slices.Contains(names, name) }))
}

// selects reports whether Features determines the columns of x.
func (o *CSVOptions) selects(names []string) bool {
	return len(names) > 0 && len(o.Features) > 0 && !o.feedsByName() && o.joins(names)
}

// positions returns the index of each name.
func positions(names []string) map[string]int {
	at := make(map[string]int, len(names))
	for i, name := range names {
		at[name] = i
	}
	return at
}

// leaveOut returns the columns of a table that are not read: those in Options.Ignore and, if Features
// determines the columns of x, those that are not in Features. label is the name of the label.
func (o *CSVOptions) leaveOut(names []string, label string) (out []string, err error) {
	selects, wanted, found := o.selects(names), positions(o.Features), positions(names)
	for _, name := range names {
		_, isWanted := wanted[name]
		isUnwanted := selects && name != sampleWeight && !isWanted && !slices.Contains(o.Keep, name)
		within := slices.IndexFunc(o.ignore, func(all string) bool { return strings.HasPrefix(name, all+".") })
		if name != label && (slices.Contains(o.ignore, name) || within >= 0 || isUnwanted) {
			out = append(out, name)
			delete(found, name)
		}
		if within >= 0 && !slices.Contains(out, o.ignore[within]) {
			out = append(out, o.ignore[within]) // a struct, whose values are columns
		}
	}
	for _, name := range o.Features {
		if _, ok := found[name]; selects && (!ok || name == label || name == sampleWeight) {
			return nil, fmt.Errorf("no column %q, which the model was trained with: add it, or rename a column to it: %w", name,
				ErrFormat)
		}
	}
	return out, nil
}

// tableColumns are the columns of a table without the label, the weights and those that are left out.
type tableColumns struct {
	names   []string
	unnamed bool // whether the names are empty
	single  bool // whether each column has one value per row
}

// tableInput is a field that columns of a table become.
type tableInput struct {
	name    string
	columns []int       // indexes in tableColumns, in the order of the values
	joined  bool        // whether a sample is a row with a value of each column
	only    bool        // whether the only column got the name x
	kind    *dtype.Type // string, bool, or float32 for any numbers; nil if the values decide
}

// layOut decides which columns become which field.
func (o *CSVOptions) layOut(t tableColumns) (fields []tableInput, err error) {
	own := func(at int) tableInput { return tableInput{name: t.names[at], columns: []int{at}} }
	byName := !t.unnamed && o.feedsByName() && !o.Schema.allTexts()
	if byName {
		if byName, err = o.findInputs(t.names); err != nil {
			return nil, err
		}
	}
	joins := t.single && o.joins(t.names) && (o.flat || len(t.names) > 1 || o.selects(t.names))
	switch {
	case byName:
		return o.inputsByName(t), nil
	case o.Schema.allTexts() || !joins && len(t.names) > 1 && !t.unnamed:
		for i := range t.names {
			fields = append(fields, own(i))
		}
	case len(t.names) == 1 && !joins:
		x := own(0)
		x.name, x.only = "x", true
		fields = append(fields, x)
	case len(t.names) > 0:
		fields = append(fields, o.row(t.names))
	}
	return fields, nil
}

// row returns the field x, whose samples are rows of values.
func (o *CSVOptions) row(names []string) tableInput {
	x := tableInput{name: "x", joined: true, kind: dtype.For[float32]()}
	for _, kind := range []*dtype.Type{dtype.For[string](), dtype.For[bool]()} {
		if o.only(kind) {
			x.kind = kind
		}
	}
	if o.selects(names) {
		at := positions(names)
		for _, name := range o.Features {
			x.columns = append(x.columns, at[name])
		}
		return x
	}
	for i := range names {
		x.columns = append(x.columns, i)
	}
	return x
}

// findInputs reports whether the columns feed the inputs with their names. A single column feeds a single
// input with any name.
func (o *CSVOptions) findInputs(names []string) (bool, error) {
	for _, in := range o.Inputs {
		for _, column := range in.columns() {
			switch {
			case slices.Contains(names, column):
			case max(len(names), len(o.Inputs)) <= 1 && in.Columns == nil:
				return false, nil
			case column == o.Label:
				return false, option.Errorf("column %q is an input of the model and cannot also be the label: choose another "+
					"column as the label ({CSVOptions.Label}): %w", column, ErrFormat)
			default:
				return false, fmt.Errorf("no column %q, which is an input of the model: add it, or rename a column to it: %w",
					column, ErrFormat)
			}
		}
	}
	return true, nil
}

// columns returns the columns that feed an input.
func (f FieldSpec) columns() []string {
	if f.Columns != nil {
		return f.Columns
	}
	return []string{f.Name}
}

// inputsByName returns a field for each input, and one for each column that feeds none.
func (o *CSVOptions) inputsByName(t tableColumns) (fields []tableInput) {
	at := positions(t.names)
	for i, name := range t.names {
		in := o.input(name)
		if in == nil {
			f := tableInput{name: name, columns: []int{i}}
			if o.flat {
				f.kind = dtype.For[string]()
			}
			fields = append(fields, f)
			continue
		}
		if name != in.columns()[0] { // the first column of an input stands for all of them
			continue
		}
		f := tableInput{name: in.Name, joined: in.Columns != nil, kind: dtype.For[float32]()}
		if kind := dtype.ByName(in.Type); kind != nil && (kind.Kind == dtype.StringKind || kind.Kind == dtype.BoolKind) {
			f.kind = kind
		}
		for _, column := range in.columns() {
			f.columns = append(f.columns, at[column])
		}
		fields = append(fields, f)
	}
	return fields
}
