package data

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// is reports whether an input takes values of one of the kinds.
func (f *FieldSpec) is(kinds ...dtype.Kind) bool {
	if f == nil {
		return false
	}
	kind := dtype.ByName(f.Type)
	return kind != nil && slices.Contains(kinds, kind.Kind)
}

func (o *CSVOptions) keeps(column string) bool { return slices.Contains(o.Keep, column) }

// only reports whether the model has one input, which is of a type.
func (o *CSVOptions) only(kind *dtype.Type) bool {
	return len(o.Inputs) == 1 && o.Inputs[0].Type == kind.Name
}

// nameKey is equal for the names of an input and of its column: spaces around a name do not count, and an input
// outer/class takes the value class of an object or struct outer, which is the column outer.class.
func nameKey(name string) string { return strings.ReplaceAll(strings.TrimSpace(name), "/", ".") }

// input returns the input that lists a column or has its name; nil if there is none.
func (o *CSVOptions) input(column string) *FieldSpec {
	for i, in := range o.Inputs {
		if slices.Contains(in.Columns, column) || in.Columns == nil && nameKey(in.Name) == nameKey(column) {
			return &o.Inputs[i]
		}
	}
	return nil
}

// takes reports whether a column feeds an input of a type.
func (o *CSVOptions) takes(column string, kind *dtype.Type) bool {
	in := o.input(column)
	return o.only(kind) || in != nil && in.Type == kind.Name
}

// positions returns the index of each name.
func positions(names []string) map[string]int {
	at := make(map[string]int, len(names))
	for i, name := range names {
		at[name] = i
	}
	return at
}

// leaveOut returns the columns of a table that are not read: those in Options.Ignore and, with InputsOnly, those that
// feed no input. label is the name of the label.
func (o *CSVOptions) leaveOut(names []string, label string) (out []string) {
	wanted := map[string]bool{sampleWeight: true}
	for _, in := range o.Inputs {
		wanted[nameKey(in.Name)] = wanted[nameKey(in.Name)] || in.Columns == nil
		for _, name := range in.Columns {
			wanted[name] = true
		}
	}
	for _, name := range names {
		isUnwanted := o.InputsOnly && !wanted[name] && !wanted[nameKey(name)] && !o.keeps(name)
		within := slices.IndexFunc(o.ignore, func(all string) bool { return strings.HasPrefix(name, all+".") })
		if name != label && (slices.Contains(o.ignore, name) || within >= 0 || isUnwanted) {
			out = append(out, name)
		}
		if within >= 0 && !slices.Contains(out, o.ignore[within]) {
			out = append(out, o.ignore[within]) // a struct, whose values are columns
		}
	}
	return out
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
	of      *FieldSpec  // the input; nil if it feeds none
	columns []int       // indexes in tableColumns, in the order of the values
	joined  bool        // whether a sample is a row with a value of each column
	kind    *dtype.Type // string, bool, or float32 for any numbers; nil if the values decide
}

// layOut decides which columns become which field.
func (o *CSVOptions) layOut(t tableColumns) (fields []tableInput, err error) {
	var assigned [][]int
	all := make([]int, len(t.names))
	for i := range all {
		all[i] = i
	}
	plain := o.flat && (t.unnamed || len(o.Inputs) == 0) // all columns are those of x
	switch {
	case len(all) == 0 && len(o.Inputs) == 0 || o.Schema.allTexts():
	case t.unnamed && len(o.Inputs) > 1:
		return nil, fmt.Errorf("the file has no header, and the inputs of the model take columns by their names: add a "+
			"line with the names: %w", ErrFormat)
	case plain, len(o.Inputs) == 0 && len(all) == 1:
		assigned = [][]int{all}
	default:
		if assigned, err = o.assign(t); err != nil {
			return nil, err
		}
	}
	used := make([]bool, len(t.names))
	for i, columns := range assigned {
		if columns != nil {
			fields = append(fields, o.field(t, i, columns))
		}
		for _, at := range columns {
			used[at] = true
		}
	}
	return append(fields, o.unused(t, used)...), nil
}

// unused returns a field for each column that is neither used nor kept.
func (o *CSVOptions) unused(t tableColumns, used []bool) (fields []tableInput) {
	for i, name := range t.names {
		if used[i] || o.keeps(name) {
			continue
		}
		f := tableInput{name: name, columns: []int{i}}
		if o.flat && !o.Schema.allTexts() && !slices.Contains(o.Schema.names(), name) {
			f.kind = dtype.For[string]()
		}
		fields = append(fields, f)
	}
	return fields
}

// field returns the field of the columns of an input. The name is that of the input or, if the only input takes columns
// with other names, x.
func (o *CSVOptions) field(t tableColumns, input int, columns []int) tableInput {
	f := tableInput{name: "x", columns: columns, joined: len(columns) > 1}
	if input < len(o.Inputs) {
		f.of = &o.Inputs[input]
	}
	byName := len(o.Inputs) > 1 || f.of != nil && !f.joined && nameKey(t.names[columns[0]]) == nameKey(f.of.Name) &&
		(!o.flat || f.of.is(dtype.StringKind))
	if byName {
		f.name = f.of.Name
	}
	f.joined = f.joined || o.flat && !byName
	switch {
	case !f.joined && (!byName || len(f.of.Shape) > 0):
	case f.of.is(dtype.StringKind, dtype.BoolKind):
		f.kind = dtype.ByName(f.of.Type)
	default:
		f.kind = dtype.For[float32]()
	}
	return f
}

// assignment has the columns that each input takes, and those that are free.
type assignment struct {
	*CSVOptions
	tableColumns
	free    map[string]int
	columns [][]int
	err     error
}

// take gives an input columns that are free.
func (a *assignment) take(input int, names ...string) {
	for _, name := range names {
		at, ok := a.free[name]
		delete(a.free, name)
		a.columns[input] = append(a.columns[input], at)
		switch {
		case ok || a.err != nil:
		case name == a.Label:
			a.err = option.Errorf("column %q is an input of the model and cannot also be the label: choose another column as "+
				"the label ({CSVOptions.Label}): %w", name, ErrFormat)
		case slices.Contains(a.names, name):
			other := slices.IndexFunc(a.columns, func(c []int) bool { return slices.Contains(c, positions(a.names)[name]) })
			a.err = option.Errorf("column %q feeds input %s and cannot also feed %s: name another column "+
				"({CSVOptions.Inputs %[3]s=COLUMN,...}): %[4]w", name, a.Inputs[max(other, 0)].Name, a.Inputs[input].Name,
				ErrFormat)
		default:
			a.err = option.Errorf("no column %q, which input %s of the model takes: add it, or name the columns of the input "+
				"({CSVOptions.Inputs %[2]s=COLUMN,...}): %[3]w", name, a.Inputs[input].Name, ErrFormat)
		}
	}
}

// called returns the column with the name of an input, or the name if there is none.
func (a *assignment) called(input string) string {
	isOther := func(column string) bool { return nameKey(column) != nameKey(input) }
	found := slices.DeleteFunc(slices.Clone(a.names), isOther)
	if len(found) > 1 {
		a.err = option.Errorf("the columns %s have the name of input %s of the model: leave one of them out "+
			"({Options.Ignore}): %w", list(found), input, ErrFormat)
	}
	return cmp.Or(append(found, input)...)
}

// rest returns the free columns whose names begin with a text, without kept columns.
func (a *assignment) rest(prefix string) (names []string) {
	for _, name := range a.names {
		if _, ok := a.free[name]; ok && strings.HasPrefix(name, prefix) && !a.keeps(name) {
			names = append(names, name)
		}
	}
	return names
}

// assign returns the columns of each input: those in FieldSpec.Columns, or the one with its name, or those whose names
// begin with its name, one for each value. The last input without columns may take all others. If the only input takes
// none of several columns, each becomes a field.
func (o *CSVOptions) assign(t tableColumns) ([][]int, error) {
	a := &assignment{o, t, positions(t.names), make([][]int, len(o.Inputs)), nil}
	one := len(o.Inputs) == 1
	for i, in := range o.Inputs {
		column := a.called(in.Name)
		_, named := a.free[column]
		isRow := one && t.single && (len(in.Shape) == 1 || o.flat && !in.is(dtype.StringKind))
		if in.Columns != nil {
			a.take(i, in.Columns...)
		} else if named && !isRow {
			a.take(i, column)
		}
	}
	var left []int
	for i, in := range o.Inputs {
		if a.columns[i] != nil {
			continue
		}
		if len(in.Shape) == 1 && t.single {
			if group := a.rest(in.Name); len(group) == in.Shape[0] {
				a.take(i, group...)
				continue
			}
		}
		left = append(left, i)
	}
	if len(left) > 0 {
		a.fill(left, one)
	}
	return a.columns, a.err
}

// fill gives the columns that remain to the only input without columns.
func (a *assignment) fill(left []int, one bool) {
	in, others := &a.Inputs[left[0]], a.rest("")
	isText := in.is(dtype.StringKind)
	isRow := a.single && (len(in.Shape) == 1 || one && !isText)
	switch {
	case one && isText && len(a.free) > 1 && len(others) == 1:
		a.err = option.Errorf("input %s of the model may take any of the columns %s, also one that is kept: name its column "+
			"({CSVOptions.Inputs %[1]s=COLUMN}): %[3]w", in.Name, list(a.names), ErrFormat)
	case len(left) == 1 && len(others) > 0 && (isRow || one && len(others) == 1):
		a.take(left[0], others...)
	case !one || isText:
		a.take(left[0], in.Name)
	}
}
