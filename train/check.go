package train

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/internal/inputs"
	"steadyfit/internal/texts"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// checkData returns an error for data that does not fit a signature, and for values that would make
// a step fail or make weights NaN.
func checkData(ds *data.InMemory, model *savedmodels.Model, signature string, pass data.Pass) error {
	fields, err := session.CheckData(model, signature, ds, pass)
	if err != nil {
		return labelHint(err, ds, model, signature)
	}
	if err := data.Check(ds, "", data.Values{Finite: true}); err != nil {
		return err
	}
	sig, err := model.Signature(signature)
	if err != nil {
		return err
	}
	for _, in := range sig.DataInputs() {
		if err := checkInput(ds, model.Metadata, sig, in, fields[in.Name]); err != nil {
			return err
		}
	}
	return nil
}

// labelHint returns the error for data that does not fit a signature, with what to do if it has no label.
func labelHint(err error, m *data.InMemory, model *savedmodels.Model, signature string) error {
	sig, noSignature := model.Signature(signature)
	if noSignature != nil || m.FilePath(0) != "" { // a folder
		return err
	}
	fields, columns := m.Fields(), fieldOf(m, "x").Columns
	for _, in := range sig.DataInputs() {
		has := func(f data.FieldSpec) bool { return f.Name == "y" || f.Name == in.Name }
		switch {
		case !inputs.IsLabel(model, in) || slices.ContainsFunc(fields, has):
		case columns == nil:
			return option.Errorf("%w (for a table or records, {Data.Label} names the label)", err)
		default:
			return option.Errorf("%s: %w: signature %s takes a label, and the table has the columns %s, none of which is "+
				"called label or y; {Data.Label} names the label",
				m.Name(), session.ErrData, signature, texts.Some(columns))
		}
	}
	return err
}

// checkInput checks the classes of a label, or the integers that an input takes: those of its type or, for an embedding
// table, its indices. Negative indices count from the end.
func checkInput(ds *data.InMemory, m *savedmodels.Metadata, sig *savedmodels.Signature, in savedmodels.Tensor,
	field string) error {
	what, rows := in.DType.String(), int64(0)
	low, high, integer := integerRange(what)
	if m != nil {
		rows = max(m.Inputs[in.Name].Rows, 0)
		if classes := classesOf(m, in.Name); classes > 0 && integer {
			if err := checkNames(ds.Name(), field, fieldOf(ds, field).Classes, classes); err != nil {
				return err
			}
			return data.Check(ds, field, data.Values{Classes: classes})
		}
		losses := slices.Compact(slices.Sorted(maps.Values(m.Loss)))
		if m.Labels[in.Name].DType != "" && slices.Equal(losses, []string{"binary_crossentropy"}) {
			if err := data.Check(ds, field, data.Values{Probabilities: true}); err != nil {
				return err
			}
		}
	}
	if !integer || rows == 0 && fieldOf(ds, field).Type == what {
		return nil
	}
	if rows > 0 {
		what, low, high = fmt.Sprintf("indices of a table of %d rows", rows), max(low, -rows), min(high, rows-1)
	}
	if err := data.Check(ds, field, data.Values{Integers: &[2]int64{low, high}}); err != nil {
		return fmt.Errorf("input %s of signature %s takes %s: %w", in.Name, sig.Name, what, err)
	}
	return nil
}

// classesOf returns the number of classes of a label; 0 if unknown.
func classesOf(m *savedmodels.Metadata, label string) int {
	if m == nil || m.Labels[label].DType == "" {
		return 0
	}
	if len(m.Labels) == 1 && len(m.ClassNames) > 0 {
		return len(m.ClassNames)
	}
	return m.Labels[label].Classes
}

// checkNames returns an error if class names cannot be mapped to the class numbers of a model.
func checkNames(ds, field string, names []string, classes int) error {
	shown := texts.Some(names)
	switch {
	case len(names) > classes:
		return fmt.Errorf("%s: field %s has the %d labels %s, and the model has %d classes: rename or remove the labels "+
			"(or class folders) that are not classes of the model, or export the model with %d classes: %w", ds, field,
			len(names), shown, classes, len(names), data.ErrLabel)
	case len(names) > 0 && len(names) < classes:
		return fmt.Errorf("%s: field %s has the %d labels %s, and the model has %d classes without names, so the labels "+
			"have no numbers; write numbers, or export the model with its class names: %w", ds, field, len(names), shown,
			classes, data.ErrLabel)
	}
	return nil
}

// integerRange returns the range of an integer type, limited to that of int64.
func integerRange(name string) (low, high int64, ok bool) {
	t := dtype.ByName(name)
	switch {
	case t == nil || t.Kind != dtype.IntKind && t.Kind != dtype.UintKind:
		return 0, 0, false
	case t.Kind == dtype.IntKind:
		return math.MinInt64 >> (64 - 8*t.Size), math.MaxInt64 >> (64 - 8*t.Size), true
	case t.Size == 8:
		return 0, math.MaxInt64, true
	}
	return 0, 1<<(8*t.Size) - 1, true
}
