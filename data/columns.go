package data

import (
	"fmt"
	"math"
	"slices"

	"steadyfit/internal/dtype"
	"steadyfit/option"
)

// joins reports whether the columns of a table with these names are combined into the single field x.
func (o *CSVOptions) joins(names []string) bool {
	has := func(name string) bool { return slices.Contains(names, name) }
	return o.always || len(o.Columns) == 0 && o.Input != "" && (o.Row || !has(o.Input)) && (len(o.Features) == 0 || slices.ContainsFunc(o.Features, has))
}

// selects reports whether Features determines the columns of x.
func (o *CSVOptions) selects(names []string) bool {
	return len(names) > 0 && len(o.Features) > 0 && len(o.Columns) == 0 && o.joins(names)
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
		if name != label && (slices.Contains(o.ignore, name) || selects && name != sampleWeight && !isWanted) {
			out = append(out, name)
			delete(found, name)
		}
	}
	for _, name := range o.Features {
		if _, ok := found[name]; selects && (!ok || name == label || name == sampleWeight) {
			return nil, fmt.Errorf("no column %q, which the model was trained with: add it, or rename a column to it: %w", name, ErrFormat)
		}
	}
	return out, nil
}

// byName reports whether columns become fields of their names, because a model has inputs of these names.
// names are the columns without the label, the weights and those that are left out. label is the name of
// the label, or empty.
func (o *CSVOptions) byName(names []string, label string) (bool, error) {
	for _, c := range o.Columns {
		switch {
		case slices.Contains(names, c.Name):
		case max(len(names), len(o.Columns)) <= 1:
			return false, nil
		case c.Name == label:
			return false, option.Errorf("column %q is an input of the model and cannot also be the label: choose another column as the label ({CSVOptions.Label}): %w", label, ErrFormat)
		default:
			return false, fmt.Errorf("no column %q, which is an input of the model: add it, or rename a column to it: %w", c.Name, ErrFormat)
		}
	}
	return len(o.Columns) > 0, nil
}

// choose returns the name of the label. It sets s.order to the names of the values in their order, and
// s.out to the names that are left out. first is the first record, whose values have these names.
func (s *recordSet) choose(names []string, first map[string]value) (label string, err error) {
	label = s.options.CSV.Label
	if usual := s.format.usualLabel(); usual != "" && label == "label" && first[label].kind == nil {
		label = usual
	}
	if _, ok := first[label]; !ok && label != "" {
		return "", fmt.Errorf("the records have no value %s; their values are %s: %w", quote(s.options.CSV.Label), list(names), ErrField)
	}
	if err := s.options.CSV.useSchema(s.rules, names, label); err != nil {
		return "", err
	}
	if table, ok := s.format.(tableFormat); ok {
		s.order, s.out = table.chosen()
		return label, nil
	}
	s.order = names
	s.out, err = s.options.CSV.leaveOut(names, label)
	return label, err
}

// layOut combines the columns of a table into the field x, as in a CSV file, if each column has one
// value per row and none has the name of the model's input. A single column is renamed to x. order has
// the names of the columns in the order of the table. label is the name of the label, or empty. The
// dataset has no label yet.
func (m *InMemory) layOut(order []string, label string, o *CSVOptions) error {
	if o.Schema.allTexts() {
		return nil
	}
	single := true
	names := slices.DeleteFunc(slices.Clone(order), func(name string) bool {
		c, ok := m.column(name)
		leave := !ok || name == sampleWeight
		single = single && (leave || len(c.shape) == 0 && !c.pixels)
		return leave
	})
	byName, err := o.byName(names, label)
	switch {
	case err != nil || byName:
		return err
	case single && o.joins(names) && (len(names) > 1 || o.selects(names)):
		if o.selects(names) {
			names = o.Features
		}
		return m.join(names, o)
	case len(names) == 1:
		at := slices.IndexFunc(m.columns, func(c column) bool { return c.name == names[0] })
		c := &m.columns[at]
		if c.name = "x"; single && c.kind.Kind != dtype.String {
			c.columns = names
		}
	}
	return nil
}

// join replaces the named columns by the field x, whose samples have the values of the columns in
// the order of the names.
func (m *InMemory) join(names []string, o *CSVOptions) error {
	x := column{name: "x", shape: []int{len(names)}, width: len(names), kind: dtype.For[float32](), file: m.name, columns: slices.Clone(names)}
	takes := "numbers"
	switch {
	case o.Text:
		x.kind, takes = dtype.For[string](), "text"
	case o.Bool:
		x.kind, takes = dtype.For[bool](), "bools"
	case o.Exact:
		x.kind = dtype.For[float64]()
	}
	j := &joined{}
	isNumber := func(kind *dtype.Type) bool { return kind.Kind != dtype.Bool && kind.Kind != dtype.String }
	for _, name := range names {
		c, _ := m.column(name)
		if c.kind != x.kind && !(isNumber(c.kind) && isNumber(x.kind)) {
			return option.Errorf("column %q has values of type %s, and the model takes %s; encode it by a rule of a schema ({CSVOptions.Schema}), or leave it out ({Options.Ignore}): %w",
				name, c.kind.Name, takes, ErrFormat)
		}
		j.of = append(j.of, c)
	}
	m.columns = slices.DeleteFunc(m.columns, func(c column) bool { return slices.Contains(names, c.name) })
	m.columns = slices.Insert(m.columns, 0, x)
	if m.records != nil {
		m.columns[0].made = j
		return nil
	}
	rows := makeVector(x.kind, m.n*x.width)
	m.columns[0].values = rows
	h := &hand{between: map[maker]vector{}}
	for row := range m.n {
		if err := j.make(h, rows, row*x.width, Sample{Row: row}); err != nil {
			return err
		}
	}
	return nil
}

// joined makes each sample of x from columns with one value per row.
type joined struct {
	fromFiles
	of []column
}

func (j *joined) describe() string {
	text := "columns"
	for _, c := range j.of {
		text += fmt.Sprintf(" %q", c.name)
	}
	return text
}

// observed returns the extremes of the values in the joined columns of records.
func (j *joined) observed() observed {
	all := unobserved
	for _, c := range j.of {
		f := c.made.(*recordField)
		of := f.set.index.observed[f.index]
		all.Known = all.Known && of.Known && (of.Whole || c.kind.Kind == dtype.Float)
		if of.Whole { // observed.add sets no magnitude for integers
			of.Magnitude = max(math.Abs(float64(of.Low)), math.Abs(float64(of.High)))
		}
		all.Magnitude = max(all.Magnitude, of.Magnitude)
		all.Finite = all.Finite && of.Finite && of.Magnitude <= math.MaxFloat32
		all.Whole = all.Whole && of.Whole && of.Magnitude < 1<<53
		all.Low, all.High = min(all.Low, of.Low), max(all.High, of.High)
	}
	return all
}

func (j *joined) make(h *hand, dst vector, at int, s Sample) error {
	for i := range j.of {
		c := &j.of[i]
		v, row := c.values, s.Row
		if c.made != nil {
			one, ok := h.between[c.made]
			if !ok {
				one = makeVector(c.kind, 1)
				h.between[c.made] = one
			}
			if err := c.made.make(h, one, 0, s); err != nil {
				return err
			}
			v, row = one, 0
		}
		if err := putNumber(v.(vector), row, dst, at+i); err != nil {
			return err
		}
	}
	return nil
}

// putNumber writes element i of v to dst[at]. A number is rounded to float32, unless dst has the type
// float64 and the number is an integer below 2^53. CSV files are read in the same way.
func putNumber(v vector, i int, dst vector, at int) error {
	kind := v.kind()
	if kind == dtype.For[bool]() || kind == dtype.For[string]() {
		return v.copyTo(dst, at, i, i+1)
	}
	number := kind.Float(v.element(i))
	narrow := float32(number)
	if n, ok := kind.Int(v.element(i)); ok && kind.Kind != dtype.Float { // the conversion to float64 may have rounded it
		narrow = float32(n)
	}
	switch dst := dst.(type) {
	case vec[float32]:
		dst[at] = narrow
	case vec[float64]:
		if dst[at] = float64(narrow); number == math.Trunc(number) && math.Abs(number) < 1<<53 {
			dst[at] = number
		}
	}
	return nil
}
