package serve

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/train"
)

// JSON is an input of Predict: objects with the inputs or the columns of a sample, one after the other, as in JSON
// lines, or in an array. {"b64": TEXT} is a text, or an image file, in base64.
type JSON []byte

func (text JSON) decode(v *version, a *session.Adapter) (data.Batch, error) {
	var rows []sample
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if err == io.EOF {
			return v.decode(rows, []byte{}, a)
		}
		read := make([]sample, 1)
		if err == nil && value[0] == '[' {
			err = json.Unmarshal(value, &read)
		} else if err == nil {
			err = json.Unmarshal(value, &read[0])
		}
		if err != nil { // reading the lines reports it
			return v.decode(nil, slices.Clone(text), a)
		}
		rows = append(rows, read...)
	}
}

// sample has the values of a sample by name.
type sample map[string]json.RawMessage

// of returns the value of an input, and its name in the sample, which may be that in the signature.
func (s sample) of(p port) (value json.RawMessage, name string) {
	if value = s[p.Name]; value == nil && s[p.Key] != nil {
		return s[p.Key], p.Key
	}
	return value, p.Name
}

// decode reads samples. If they have the inputs, these are the values that the model takes. Otherwise, they are read as
// JSON lines, as the training of the model or of an adapter has read its data. Without rows, lines are read.
func (v *version) decode(rows []sample, lines []byte, a *session.Adapter) (b data.Batch, err error) {
	model := v.model
	if a != nil {
		model = model.WithRecord(a.Record)
	}
	for i, row := range rows {
		if text, ok := row["b64"]; ok && len(row) == 1 && len(v.inputs) == 1 {
			rows[i] = sample{v.inputs[0].Name: fmt.Appendf(nil, `{"b64":%s}`, text)}
		}
	}
	if len(rows) > 0 && !slices.ContainsFunc(v.inputs, func(p port) bool { return !p.isIn(rows[0], model) }) {
		return v.tensors(rows, []int{len(rows)})
	}
	for _, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			return b, err
		}
		lines = append(append(lines, line...), '\n')
	}
	// Without a record, each input has the column of its name.
	columns, m := map[string][]string{}, cmp.Or(model.Metadata, &savedmodels.Metadata{})
	for _, p := range v.inputs {
		if len(m.Columns[p.Name]) == 0 {
			columns[p.Name] = []string{p.Name}
		}
	}
	from := train.Data{Path: "request.jsonl", Content: lines, Inputs: columns}
	ds, err := train.OpenData(model, v.signature.Name, from, "", data.Pass{Batch: 1})
	if row := (*data.RowError)(nil); errors.As(err, &row) {
		column := strings.TrimSuffix(", column "+row.Column, ", column ") // none for the whole row
		return b, fmt.Errorf("sample %d%s: found %s, expected %s: %w", row.Row-1, column, row.Found, row.Expected, row.Err)
	}
	for i := 0; err != nil && i < len(v.inputs) && len(rows) > 0; i++ {
		p := v.inputs[i]
		for _, name := range slices.Concat(columns[p.Name], m.Columns[p.Name]) {
			if rows[0][name] == nil {
				return b, fmt.Errorf("sample 0, input %s: no value for %s; found: %s", p.Name, name,
					strings.Join(slices.Sorted(maps.Keys(rows[0])), ", "))
			}
		}
	}
	if err != nil {
		return b, err
	}
	defer ds.Close()
	ds.UseJPEG(v.session.DecodeJPEG)
	for b, err = range ds.Batches(data.Pass{Batch: ds.Len()}) {
		b.Keep()
		break
	}
	return b, err
}

// isIn reports whether a sample has the value that the model takes, and not one that the training would convert.
func (p port) isIn(row sample, model *savedmodels.Model) bool {
	value, name := row.of(p)
	m := model.Metadata
	rules := m != nil && m.Schema != nil && slices.Contains(m.Columns[p.Name], name)
	return value != nil && !rules && (p.kind.Kind == dtype.StringKind || !isObject(value))
}

func isObject(value json.RawMessage) bool { return len(value) > 0 && value[0] == '{' }

// tensors makes a batch of the inputs of samples. The shape of a field is batch, followed by the shape of a sample's
// value.
func (v *version) tensors(rows []sample, batch []int) (b data.Batch, err error) {
	for _, p := range v.inputs {
		list, shape := []byte{}, []int(nil)
		for i, row := range rows {
			of := []int(nil)
			value, _ := row.of(p)
			if list, of, err = flatten(list, value); value == nil {
				err = errors.New("there is no value")
			} else if err == nil && i > 0 && !slices.Equal(of, shape) {
				err = fmt.Errorf("its shape is %v, and that of sample 0 is %v", of, shape)
			}
			if err != nil && batch != nil {
				return b, fmt.Errorf("sample %d, input %s: %w", i, p.Name, err)
			} else if err != nil {
				return b, fmt.Errorf("input %s: %w", p.Name, err)
			}
			shape = of
		}
		f := data.Field{Name: p.Name, Array: data.Array{Shape: slices.Concat(batch, shape)}}
		if f.Values, err = p.parse(list); err != nil {
			return b, fmt.Errorf("input %s: %w", p.Name, err)
		}
		if b.Fields = append(b.Fields, f); b.Size == 0 && len(f.Shape) > 0 {
			b.Size = f.Shape[0]
		}
	}
	return b, nil
}

// flatten appends the elements of nested arrays to a list, each after a comma, and returns their shape. The value is
// valid JSON.
func flatten(list, value []byte) (_ []byte, shape []int, err error) {
	ragged := errors.New("nested arrays must have equal lengths")
	var open []int // the numbers of elements of the arrays around
	rank := -1
	for i := 0; i < len(value); i++ {
		switch c := value[i]; c {
		case ' ', '\t', '\r', '\n', ',':
			continue
		case ']':
			depth := len(open) - 1
			for len(shape) <= depth {
				shape = append(shape, -1)
			}
			if shape[depth] >= 0 && shape[depth] != open[depth] {
				return nil, nil, ragged
			}
			shape[depth], open = open[depth], open[:depth]
			continue
		}
		if len(open) > 0 {
			open[len(open)-1]++
		}
		if value[i] == '[' {
			open = append(open, 0)
			continue
		}
		if rank >= 0 && rank != len(open) {
			return nil, nil, ragged
		}
		rank = len(open)
		end := i + lengthOf(value[i:])
		if value[i] == 'n' {
			return nil, nil, errors.New("found null")
		}
		list = append(append(list, ','), value[i:end]...)
		i = end - 1
	}
	if rank >= 0 && rank != len(shape) {
		return nil, nil, ragged
	}
	return list, shape, nil
}

// lengthOf returns the length of the first element in a text, which is not an array.
func lengthOf(text []byte) int {
	depth, inside := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inside && c == '\\':
			i++
		case c == '"':
			inside = !inside
		case inside:
		case c == '{':
			depth++
		case c == '}':
			depth--
		case depth == 0 && bytes.IndexByte([]byte(",] \t\r\n"), c) >= 0:
			return i
		}
	}
	return len(text)
}

// parse returns the values of a list that flatten has made.
func (p port) parse(list []byte) (values any, err error) {
	if len(list) == 0 {
		return p.kind.Make(0), nil
	}
	list[0] = '['
	list = append(list, ']')
	if p.kind.Kind == dtype.StringKind {
		var found []encoded
		if err := json.Unmarshal(list, &found); err != nil {
			return nil, wrongType(err)
		}
		texts := make([]string, len(found))
		for i, text := range found {
			texts[i] = string(text)
		}
		return texts, nil
	}
	found := reflect.New(p.kind.Slice)
	if err := json.Unmarshal(list, found.Interface()); err != nil {
		return nil, wrongType(err)
	}
	return found.Elem().Interface(), nil
}

func wrongType(err error) error {
	if wrong := (*json.UnmarshalTypeError)(nil); errors.As(err, &wrong) {
		return fmt.Errorf("found %s, expected %v", wrong.Value, wrong.Type)
	}
	return err
}

// encoded is a text, or one in base64 as {"b64": TEXT}.
type encoded string

func (e *encoded) UnmarshalJSON(text []byte) error {
	if !isObject(text) {
		return json.Unmarshal(text, (*string)(e))
	}
	var object struct {
		B64 *[]byte `json:"b64"`
	}
	if err := json.Unmarshal(text, &object); err != nil || object.B64 == nil {
		return errors.New(`found an object, expected a text or {"b64": TEXT} with a text in base64`)
	}
	*e = encoded(*object.B64)
	return nil
}
