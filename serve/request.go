package serve

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// port is an input or an output of the signature.
type port struct {
	savedmodels.Tensor
	kind *dtype.Type // of its values in Go
	size int         // the number of values of a sample, or of which that number is a multiple
	open int         // the dimension of unknown size; 0 if there is none, and -1 if there are several
	rows bool        // whether the first dimension counts the samples
}

// describe finds the ports of the version.
func (v *version) describe() error {
	v.joinable = true
	batch := int64(-1) // the size of a batch, if the inputs fix it
	for i, t := range v.signature.DataInputs() {
		switch {
		case len(t.Shape) == 0:
		case i == 0:
			batch = t.Shape[0]
		default:
			batch = min(batch, t.Shape[0])
		}
	}
	for _, side := range []struct {
		tensors []savedmodels.Tensor
		ports   *[]port
	}{{v.signature.DataInputs(), &v.inputs}, {v.signature.Outputs, &v.outputs}} {
		for _, t := range side.tensors {
			p := port{Tensor: t, kind: dtype.ByCode(int32(t.DType)), size: 1,
				rows: t.UnknownRank || len(t.Shape) > 0 && (t.Shape[0] < 0 || t.Shape[0] == batch)}
			if p.kind != nil && p.kind.Slice == nil {
				p.kind = dtype.For[float32]()
			}
			if p.kind == nil || t.Op == "" {
				return fmt.Errorf("signature %s: %s has the type %s, which cannot be served", v.signature.Name, t.Name, t.DType)
			}
			if t.UnknownRank {
				p.open = -1
			} else if !p.rows || t.Shape[0] >= 0 {
				v.joinable = false
			}
			for i, size := range t.Shape[min(1, len(t.Shape)):] {
				switch {
				case size >= 0:
					p.size *= int(size)
				case p.open == 0:
					p.open = i + 1
				default:
					p.open = -1
				}
			}
			*side.ports = append(*side.ports, p)
		}
	}
	return nil
}

// form is how the fields of a struct map to ports.
type form struct {
	fields []formField // by port; those of outputs that the struct lacks have the kind nil
	stride uintptr
}

type formField struct {
	kind   *dtype.Type
	offset uintptr
	n      int          // number of values; -1 for a slice
	slice  reflect.Type // the type of a slice
}

// formOf returns the form of a struct for ports, which are all inputs, or all outputs, of a version.
func formOf(known *sync.Map, t reflect.Type, ports []port, what string) (*form, error) {
	if f, ok := known.Load(t); ok {
		return f.(*form), nil
	}
	f := &form{fields: make([]formField, len(ports)), stride: t.Size()}
	names := make([]string, len(ports))
	for i, p := range ports {
		names[i] = p.Name
	}
	for _, byTag := range []bool{true, false} { // a tag counts more than the name of another field
		for _, field := range reflect.VisibleFields(t) {
			name, tagged := field.Tag.Lookup("tensor")
			if tagged != byTag || name == "-" || !tagged && !field.IsExported() {
				continue
			}
			at := slices.IndexFunc(names, func(n string) bool {
				return n == name || !tagged && strings.EqualFold(n, field.Name)
			})
			known := at >= 0 && f.fields[at].kind != nil
			if !tagged && (at < 0 || known) {
				continue
			}
			err := tagError(field, at >= 0, known, what, names)
			if err == nil {
				f.fields[at], err = newFormField(t, field, ports[at], what)
			}
			if err != nil {
				return nil, fmt.Errorf("%w: field %s of %v: %w", ErrInput, field.Name, t, err)
			}
		}
	}
	lacks := func(f formField) bool { return f.kind == nil }
	missing := slices.IndexFunc(f.fields, lacks)
	found := len(slices.DeleteFunc(slices.Clone(f.fields), lacks))
	if missing >= 0 && (what == "input" || found == 0) {
		return nil, fmt.Errorf("%w: %v has no field for the %s %s; give one the tag `tensor:%q`", ErrInput, t, what,
			names[missing], names[missing])
	}
	known.Store(t, f)
	return f, nil
}

// tagError returns why a field cannot stand for the port that its tag names.
func tagError(field reflect.StructField, found, twice bool, what string, names []string) error {
	why := ""
	switch {
	case !found:
		why = "the model has the " + what + "s " + strings.Join(names, ", ")
	case !field.IsExported():
		why = "the field is not exported"
	case twice:
		why = "another field has it, too"
	default:
		return nil
	}
	return fmt.Errorf("it has the tag %q, and %s", field.Tag.Get("tensor"), why)
}

func newFormField(t reflect.Type, field reflect.StructField, p port, what string) (formField, error) {
	f := formField{kind: p.kind, n: 1}
	for _, i := range field.Index { // through embedded structs
		if t.Kind() == reflect.Pointer {
			return f, fmt.Errorf("it is in an embedded %v; embed the struct itself", t)
		}
		f.offset += t.Field(i).Offset
		t = t.Field(i).Type
	}
	element := field.Type
	switch element.Kind() {
	case reflect.Slice:
		f.n, f.slice, element = -1, element, element.Elem()
	case reflect.Array:
		f.n, element = element.Len(), element.Elem()
	}
	if element != p.kind.Slice.Elem() {
		return f, fmt.Errorf("expected %v, a slice or an array of it for %s %s, got %v", p.kind.Slice.Elem(), what, p.Name,
			field.Type)
	}
	if !p.rows {
		return f, fmt.Errorf("%s %s has the shape %v, which is not one row for each sample; use a *data.Batch", what, p.Name,
			p.Shape)
	}
	if f.n >= 0 && p.open >= 0 && !p.takes(f.n) {
		return f, fmt.Errorf("%d values, and a sample of %s %s has the shape %v", f.n, what, p.Name, p.Shape[1:])
	}
	if p.open < 0 {
		return f, fmt.Errorf("%s %s has the shape %v, whose sizes a struct cannot state; use a *data.Batch", what, p.Name,
			p.Shape)
	}
	return f, nil
}

// takes reports whether a sample can have n values.
func (p port) takes(n int) bool {
	return n == p.size || p.open > 0 && p.size > 0 && n%p.size == 0
}

// values returns the values of a field of the struct at base.
func (f formField) values(base unsafe.Pointer) (first unsafe.Pointer, n int) {
	first = unsafe.Add(base, f.offset)
	if f.n >= 0 {
		return first, f.n
	}
	s := *(*[]byte)(first) // the header of any slice
	return unsafe.Pointer(unsafe.SliceData(s)), len(s)
}

// resize gives the values of a field of the struct at base a number.
func (f formField) resize(base unsafe.Pointer, n int) {
	at := unsafe.Add(base, f.offset)
	if s := (*[]byte)(at); cap(*s) >= n {
		*s = (*s)[:n]
		return
	}
	reflect.NewAt(f.slice, at).Elem().Set(reflect.MakeSlice(f.slice, n, n))
}

// request has the samples and the result of a call.
type request struct {
	adapter  *session.Adapter
	n        int   // number of samples
	sizes    []int // the number of values of a sample, by input; empty if the samples are fed as they are
	joinable bool
	batch    data.Batch // if form is nil
	fields   []int      // the fields of batch, by input
	form     *form
	base     unsafe.Pointer // the first struct

	result  *data.Batch // if outForm is nil
	outForm *form
	outBase unsafe.Pointer
}

// fill reads the arguments of Predict.
func (v *version) fill(c *call, in, out any) (err error) {
	switch x := in.(type) {
	case *data.Batch:
		if x == nil {
			return fmt.Errorf("%w: the batch is nil", ErrInput)
		}
		err = v.fillBatch(c, *x)
	case JSON:
		err = v.fillDecoded(c, x.decode)
	case *restRequest:
		err = v.fillDecoded(c, x.decode)
	default:
		err = v.fillStructs(c, in)
	}
	if err != nil {
		return err
	}
	if c.n <= 0 {
		return fmt.Errorf("%w: there are no samples", ErrInput)
	}
	return v.fillResult(c, out)
}

// fillDecoded fills in the batch that a function decodes from JSON.
func (v *version) fillDecoded(c *call, decode func(*version, *session.Adapter) (data.Batch, error)) error {
	b, err := decode(v, c.adapter)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	return v.fillBatch(c, b)
}

// fillBatch fills in a batch. It can be computed with other calls if its fields are the inputs.
func (v *version) fillBatch(c *call, b data.Batch) error {
	wholes := slices.ContainsFunc(v.inputs, func(p port) bool { return !p.rows }) // inputs of the whole batch
	for _, f := range b.Fields {
		if !wholes && len(f.Shape) > 0 && f.Shape[0] != b.Size {
			return fmt.Errorf("%w: field %s has the shape %v, and the batch has %d samples", ErrInput, f.Name, f.Shape, b.Size)
		}
	}
	c.batch, c.n, c.joinable = b, b.Size, v.joinable && len(b.Fields) == len(v.inputs)
	for _, p := range v.inputs {
		at := slices.IndexFunc(b.Fields, func(f data.Field) bool { return f.Name == p.Name })
		if at < 0 || !c.joinable || !p.holds(b.Fields[at].Array, b.Size) {
			c.joinable = false
			return nil
		}
		_, _, n := dtype.Data(b.Fields[at].Values)
		c.sizes, c.fields = append(c.sizes, n/b.Size), append(c.fields, at)
	}
	return nil
}

// holds reports whether an array has n samples of the type and the shape of the port.
func (p port) holds(a data.Array, n int) bool {
	kind, _, values := dtype.Data(a.Values)
	if kind != p.kind || p.open < 0 || len(a.Shape) != len(p.Shape) || n <= 0 {
		return false
	}
	has := n
	for i, size := range p.Shape {
		if i > 0 && size >= 0 && int(size) != a.Shape[i] {
			return false
		}
		if i > 0 {
			has *= a.Shape[i]
		}
	}
	return p.rows && has == values
}

func (v *version) fillStructs(c *call, in any) error {
	x := reflect.ValueOf(in)
	var t reflect.Type
	if k := x.Kind(); k == reflect.Slice || k == reflect.Pointer && !x.IsNil() {
		t = x.Type().Elem()
	}
	switch {
	case t != nil && t.Kind() == reflect.Struct && x.Kind() == reflect.Pointer:
		c.n = 1
	case t != nil && t.Kind() == reflect.Struct:
		c.n = x.Len()
	default:
		return fmt.Errorf("%w: expected a pointer to a struct, a slice of structs, a *data.Batch or JSON, got %T", ErrInput,
			in)
	}
	var err error
	if c.form, err = formOf(&v.inForms, t, v.inputs, "input"); err != nil {
		return err
	}
	c.base, c.joinable = x.UnsafePointer(), v.joinable
	for i, f := range c.form.fields {
		for j := range c.n {
			_, n := f.values(c.sample(j))
			switch p := v.inputs[i]; {
			case !p.takes(n):
				return fmt.Errorf("%w: sample %d: a sample of input %s has the shape %v, got %d values", ErrInput, j, p.Name,
					p.Shape[1:], n)
			case j == 0:
				c.sizes = append(c.sizes, n)
			case n != c.sizes[i]:
				return fmt.Errorf("%w: sample %d: input %s has %d values, and sample 0 has %d", ErrInput, j, p.Name, n, c.sizes[i])
			}
		}
	}
	return nil
}

// sample returns the struct of a sample.
func (c *call) sample(j int) unsafe.Pointer { return unsafe.Add(c.base, uintptr(j)*c.form.stride) }

func (v *version) fillResult(c *call, out any) (err error) {
	if b, ok := out.(*data.Batch); ok && b != nil {
		c.result = b
		return nil
	}
	x, t := reflect.ValueOf(out), reflect.TypeFor[int]()
	if x.Kind() == reflect.Pointer && !x.IsNil() {
		t, c.outBase = x.Type().Elem(), x.UnsafePointer()
	}
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		s := x.Elem()
		if s.Cap() < c.n {
			s.Set(reflect.MakeSlice(t, c.n, c.n))
		}
		s.SetLen(c.n)
		t, c.outBase = t.Elem(), s.UnsafePointer()
	case t.Kind() != reflect.Struct:
		return fmt.Errorf("%w: expected a pointer to a struct or to a slice of structs, or a *data.Batch for the result, "+
			"got %T", ErrInput, out)
	case c.n > 1:
		return fmt.Errorf("%w: there are %d samples, and the result %T has one; use a pointer to a slice", ErrInput, c.n, out)
	}
	c.outForm, err = formOf(&v.outForms, t, v.outputs, "output")
	return err
}

// warm computes a sample of zeros.
func (s *slot) warm() {
	b := data.Batch{Size: 1}
	for _, p := range s.version.inputs {
		shape := make([]int, 0, 4)
		n := 1
		for _, size := range p.Shape {
			shape = append(shape, max(int(size), 1))
			n *= max(int(size), 1)
		}
		b.Fields = append(b.Fields, data.Field{Name: p.Name, Array: data.Array{Shape: shape, Values: p.kind.Make(n)}})
	}
	if s.step.Feed(b) == nil {
		_ = s.step.Run(context.Background()) // a model may refuse zeros
	}
}
