package data

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestJSONL(t *testing.T) {
	text := `{"text": "a \u00e9", "size": [[1, 2.5], [3, 4]], "old": true, "label": "dog"}

{"label": "cat", "old": false, "size": [[5, 6], [7, 8]], "text": ""}
`
	m := opened(t, write(t, "d.jsonl.gz", compressed(t, []byte(text))), Options{CSV: CSVOptions{Label: "label"}})
	require.Equal(t, map[string]Array{
		"text": {[]int{2}, []string{"a é", ""}},
		"size": {[]int{2, 2, 2}, []float32{1, 2.5, 3, 4, 5, 6, 7, 8}},
		"old":  {[]int{2}, []bool{true, false}},
		"y":    {[]int{2}, []int64{1, 0}},
	}, fieldsOf(t, m))
	require.Equal(t, []string{"cat", "dog"}, spec(m, "y").Classes)
	err := Check(m, "y", Values{Classes: 1})
	require.ErrorContains(t, err, `line 1, column "label": found 1`)

	line, y := `{"text": "a", "label": 9007199254740991}`, Array{[]int{1}, []int64{1<<53 - 1}}
	words := Array{[]int{1}, []string{"a"}}
	// Text sorts "10" before "2".
	numbered, one := "{\"a\": 1, \"b\": \"10\"}\n{\"a\": 1, \"b\": \"2\"}", Array{[]int{2}, []int64{1, 1}}
	for _, c := range []struct {
		text string
		o    CSVOptions
		want map[string]Array
	}{
		{line, CSVOptions{Label: "label"}, map[string]Array{"x": words, "y": y}},
		{line, CSVOptions{Label: "label", Inputs: []FieldSpec{{Name: "text", Type: "string"}}},
			map[string]Array{"text": words, "y": y}},
		{`{"words": "a", "sample_weight": 0.5}`, CSVOptions{},
			map[string]Array{"x": words, "sample_weight": {[]int{1}, []float32{0.5}}}},
		{`{"a": 16777217.0}`, CSVOptions{Inputs: exactInputs}, map[string]Array{"x": {[]int{1}, []float64{16777217}}}},
		{`{"a": 1, "b": "n"}`, CSVOptions{Label: "b", Classes: []string{"m", "n"}},
			map[string]Array{"x": {[]int{1}, []int64{1}}, "y": {[]int{1}, []int64{1}}}},
		{numbered, CSVOptions{Label: "b"}, map[string]Array{"x": one, "y": {[]int{2}, []int64{10, 2}}}},
		{numbered, CSVOptions{Label: "b", Names: []string{"2", "10"}}, map[string]Array{"x": one, "y": {[]int{2}, []int64{1, 0}}}},
	} {
		m, err := readCSV("d.jsonl", strings.NewReader(c.text), c.o)
		require.NoError(t, err, c.text)
		require.Equal(t, c.want, fieldsOf(t, m), c.text)
	}
	_, err = readCSV("d.jsonl", strings.NewReader(`{"a": 1, "b": "n"}`), CSVOptions{Label: "b", Classes: []string{"n", "n"}})
	require.ErrorContains(t, err, `class "n" is listed twice`)
	_, err = readCSV("d.jsonl", strings.NewReader(`{"a": 1}`), CSVOptions{Label: "y"})
	require.ErrorIs(t, err, ErrField)
}

func TestJSONLRefuses(t *testing.T) {
	for text, says := range map[string]string{
		"":                                    "it has no rows",
		"\n \n":                               "it has no rows",
		"[1]":                                 "line 1: found \"[1]\", expected a JSON object",
		`{"a": 1`:                             "line 1: found \"{\\\"a\\\": 1\", expected a JSON object",
		`{"a": 1} {"a": 2}`:                   "more after the object",
		"{\"a\": 1}\n{\"b\": 1}":              `line 2, column "b": found an unknown name, expected a name of the first line: a`,
		"{\"a\": 1, \"b\": 2}\n{\"a\": 1}":    `line 2, column "b": found no value`,
		"{\"a\": 1}\n{\"a\": 1, \"a\": 2}":    "found a repeated name",
		`{"a": null}`:                         `column "a": found null, expected a number, text`,
		`{"a": {"b": 1}, "a": {"c": 2}}`:      `line 1, column "a": found a repeated name`,
		`{"a": {"b": 1}, "a": 2}`:             `line 1, column "a": found a repeated name`,
		`{"a": {}}`:                           "expected a number, text",
		`{"a": {"b": 1}, "a.b": 2}`:           `line 1, column "a.b": found a repeated name`,
		"{\"a\": {\"b\": 1}}\n{\"a\": 1}":     `line 2, column "a": found an unknown name, expected a name of the first line: a.b`,
		"{\"a\": 1}\n{\"a\": \"x\"}":          "found text, expected a number, as in the first line",
		"{\"a\": 1}\n{\"a\": [1]}":            "found an array, expected a single value",
		"{\"a\": [1]}\n{\"a\": 1}":            "found a number, expected an array, as in the first line",
		"{\"a\": [1, 2]}\n{\"a\": [1]}":       "found an array of 1, expected an array of 2",
		`{"a": [[1, 2], [3]]}`:                "found an array of 1, expected an array of 2",
		`{"a": [1, [2]]}`:                     "found an array, expected a single value",
		`{"a": ` + strings.Repeat("[", 1<<20): `line 1, column "a": found an invalid JSON value: `,
		`{"a": 1, "b": nan}`:                  `line 1, column "b": found an invalid JSON value: `,
		`{"a": []}`:                           "found an array of 0, expected an array of 1",
		"{\"a\": \"K\xf6ln\"}":                `line 1: found "{\"a\": \"K\xf6ln\"}", expected text in UTF-8; convert the file`,
		`{"a": 1e39}`:                         "expected a number within float32",
		`{"a": 0, "b": "o", "b": "p"}`:        `found a repeated name`,
		strings.Repeat(" ", maxLine+1):        "more than 16777216 bytes",
		"{\"a\": 1}\n{\"a\": 1, \"b\": nan":   "line 2",
		"\xff\xfe{":                           "UTF-16",
	} {
		_, err := readCSV("d.jsonl", strings.NewReader(text), CSVOptions{})
		require.ErrorContains(t, err, says, text)
		require.ErrorContains(t, err, "d.jsonl", text)
	}
	// The error for a line that is cut off says so, instead of naming the columns after the cut. An error
	// in a column that is left out has a position.
	features := CSVOptions{InputsOnly: true, Inputs: columnInputs("a", "b")}
	_, err := readCSV("d.jsonl", strings.NewReader(`{"a": 1, "c":`), features)
	require.EqualError(t, err, `d.jsonl: line 1, column "c": found an invalid JSON value: the line ends, expected a number, text, true, false, or an array; correct the line, or remove it`)
	_, err = readCSV("d.jsonl", strings.NewReader("{\"a\": 1, \"b\": 2, \"c\": null}\n{\"c\": nan, \"a\": 1}"),
		features)
	require.ErrorContains(t, err, `d.jsonl: line 2, column "c": found an invalid JSON value: `)
	_, err = readCSV("d.jsonl", strings.NewReader(`{"a": 1, "b": "n"}`), CSVOptions{Label: "b", Classes: []string{"m"}})
	require.ErrorContains(t, err, `line 1, column "b": found "n", expected one of the 1 classes, such as "m"`)
}

func FuzzJSONL(f *testing.F) {
	for _, text := range []string{`{"text": "a", "label": 1}`, "{\"a\": [[1, 2]], \"b\": true}\n{\"b\": false, \"a\": [[3, 4]]}", `{"a": 1e400}`} {
		f.Add(text, "label")
	}
	f.Fuzz(func(t *testing.T, text, label string) {
		m, err := readCSV("d.jsonl", strings.NewReader(text), CSVOptions{Label: label})
		if err != nil {
			return
		}
		require.LessOrEqual(t, m.Len(), strings.Count(text, "\n")+1)
		for _, a := range fieldsOf(t, m) {
			_, err := arrayVector(a)
			require.NoError(t, err)
		}
	})
}

// Base64 stands for the bytes of a text, or of an image.
func TestJSONLInBase64(t *testing.T) {
	picture := image.NewGray(image.Rect(0, 0, 2, 1))
	picture.Pix = []byte{10, 200}
	var file bytes.Buffer
	require.NoError(t, png.Encode(&file, picture))
	line := fmt.Sprintf(`{"image": {"b64": %q}, "word": {"b64": "/w=="}, "label": 1}`, base64.StdEncoding.EncodeToString(file.Bytes()))
	m, err := Parse("d.jsonl", []byte(line), Options{CSV: CSVOptions{Label: "label"},
		Images: ImageOptions{Height: 1, Width: 2, Channels: 1}})
	require.NoError(t, err)
	require.Equal(t, map[string]Array{
		"image": {[]int{1, 1, 2, 1}, []uint8{10, 200}},
		"word":  {[]int{1}, []string{"\xff"}},
		"y":     {[]int{1}, []int64{1}},
	}, fieldsOf(t, m))
	_, err = Parse("d.jsonl", []byte(`{"a": {"b64": "&"}, "label": 1}`), Options{CSV: CSVOptions{Label: "label"}})
	require.ErrorContains(t, err, `line 1, column "a": found an object, expected a number, text`)
	m, err = Parse("d.jsonl", []byte(`{"image": {"b64": "iVBORw0KGgo="}}`), Options{Images: ImageOptions{Size: 2}})
	require.NoError(t, err)
	for _, err := range m.Batches(Pass{Batch: 1}) {
		require.ErrorContains(t, err, "sample 0: x: a damaged PNG image")
	}
}
