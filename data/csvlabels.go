package data

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// list sets the classes of the label to classes, in the order of their numbers, unless classes is
// empty.
func (t *table) list(classes []string) (err error) {
	if len(classes) > 0 {
		t.listed = classes
		t.class, err = numbered(classes)
	}
	return err
}

func (t *table) addLabel(column int, cell string) error {
	if cell == "" {
		return t.bad(column, "an empty cell", "a label", "fill it in, or remove the row")
	}
	numeric := isNumber(cell)
	first := t.labelLine == 0
	if first {
		t.labelLine, _ = t.lines.FieldPos(column)
	}
	if first && t.class == nil && !numeric { // the first label decides whether labels are text
		if err := t.list(t.options.Names); err != nil {
			return err
		}
		if t.class == nil {
			t.class = make(map[string]int64)
		}
	}
	class, known := t.class[cell]
	switch {
	case t.class == nil && slices.Contains(t.ambiguous, cell):
		return t.bad(column, quote(cell), "a label that is not both a number and the name of a class with another number",
			"write class numbers as an array (.npz), or class names as texts in JSON lines")
	case t.class == nil && numeric:
		return t.addNumber(column, cell)
	case t.class == nil:
		return t.bad(column, quote(cell), fmt.Sprintf("a number as in line %d", t.labelLine), "correct it, or list all classes if labels are names")
	case !known && t.listed != nil:
		return t.bad(column, quote(cell), fmt.Sprintf("one of the %d classes, such as %s", len(t.class), quote(t.listed[0])), "correct it, or remove the row")
	case !known && numeric:
		return t.bad(column, quote(cell), fmt.Sprintf("a name like %s in line %d", quote(t.found[0]), t.labelLine), "correct it, or list all classes")
	case !known:
		name := strings.Clone(cell) // a cell shares the memory of its row
		if err := t.values.take(classBytes + int64(len(name))); err != nil {
			return err
		}
		class = int64(len(t.found))
		t.class[name] = class
		t.found = append(t.found, name)
	}
	t.y = append(t.y, class)
	return nil
}

func (t *table) addNumber(column int, cell string) error {
	if t.real == nil {
		v, err := strconv.ParseInt(cell, 10, 64)
		if err == nil {
			t.y = append(t.y, v)
			return nil
		}
		if errors.Is(err, strconv.ErrRange) {
			return t.bad(column, quote(cell), "an integer within int64", "use smaller class numbers, or write it as a float")
		}
		t.real = make([]float32, len(t.y))
		for i, v := range t.y {
			t.real[i] = float32(v)
		}
	}
	v, err := t.number(column, cell)
	if err != nil {
		return err
	}
	t.real = append(t.real, v)
	return nil
}

// sortClasses renumbers the classes in sorted order, so that the numbers do not depend on the order
// of the rows.
func (t *table) sortClasses() []string {
	sorted := slices.Sorted(slices.Values(t.found))
	number := make([]int64, len(sorted))
	for i, name := range sorted {
		number[t.class[name]] = int64(i)
	}
	for i, class := range t.y {
		t.y[i] = number[class]
	}
	return sorted
}
