package serve

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Handler serves the Predictor in TensorFlow Serving's REST API, as the model of a name: POST /v1/models/NAME:predict
// and GET /v1/models/NAME.
//
// A request has "instances", as rows, or "inputs", as columns, which are the inputs of the model, by their names or
// by those in the signature. Objects in
// "instances" may also have the columns of the training, as in JSON. "signature_name" must be empty, serving_default or
// that of the signature. Texts of outputs whose names end in _bytes are in base64. Requests for another
// version are not served. http.MaxBytesHandler limits the size of requests.
func (p *Predictor) Handler(name string) http.Handler {
	path := "/v1/models/" + name
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.Method + " " + r.URL.Path {
		case "POST " + path + ":predict":
			answer, err := p.answer(r)
			if err != nil {
				fail(w, codeOf(err), err.Error())
				return
			}
			_, _ = w.Write(answer) // an error means that the client is gone
		case "GET " + path:
			fmt.Fprintf(w, `{"model_version_status":[{"version":"%d","state":"AVAILABLE","status":{"error_code":"OK",`+
				`"error_message":""}}]}`, p.Version())
		default:
			fail(w, http.StatusNotFound, fmt.Sprintf("%s %s is not served; expected POST %s:predict or GET %s", r.Method,
				r.URL.Path, path, path))
		}
	})
}

func fail(w http.ResponseWriter, code int, text string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": text}) // an error means that the client is gone
}

// codeOf returns the status code for an error.
func codeOf(err error) int {
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return http.StatusRequestEntityTooLarge
	case errors.Is(err, ErrInput), errors.Is(err, tfbind.ErrInvalidArgument):
		return http.StatusBadRequest
	case errors.Is(err, tfbind.ErrResourceExhausted):
		return http.StatusTooManyRequests
	case errors.Is(err, context.DeadlineExceeded):
		return http.StatusGatewayTimeout
	case errors.Is(err, ErrClosed):
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// answer returns the body of the response to a predict request.
func (p *Predictor) answer(r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	var in restRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return nil, fmt.Errorf("%w: expected a JSON object with instances or inputs: %w", ErrInput, err)
	}
	var out data.Batch
	if err := p.Predict(r.Context(), &in, &out); err != nil {
		return nil, err
	}
	return in.answer(&out)
}

// restRequest is the body of a request.
type restRequest struct {
	Signature string          `json:"signature_name"`
	Instances json.RawMessage `json:"instances"`
	Inputs    json.RawMessage `json:"inputs"`
}

func (r *restRequest) decode(v *version, a *session.Adapter) (b data.Batch, err error) {
	columns := sample{}
	first := bytes.TrimLeft(r.Instances, "[ \t\r\n")
	isText := len(v.inputs) == 1 && v.inputs[0].kind.Kind == dtype.StringKind && bytes.HasPrefix(first, []byte(`{"b64"`))
	switch {
	case !slices.Contains([]string{"", "serving_default", v.signature.Name}, r.Signature):
		return b, fmt.Errorf("the signature %q is not served; expected %q, or none", r.Signature, v.signature.Name)
	case (r.Instances == nil) == (r.Inputs == nil):
		return b, errors.New(`expected either "instances" or "inputs"`)
	case r.Inputs == nil && !bytes.HasPrefix(r.Instances, []byte("[")):
		return b, errors.New("instances must be an array with an element for each sample")
	case isObject(first) && !isText:
		return JSON(r.Instances).decode(v, a)
	case isObject(r.Inputs):
		_ = json.Unmarshal(r.Inputs, &columns) // it is an object
		for name := range columns {
			if !slices.ContainsFunc(v.inputs, func(p port) bool { return name == p.Name || name == p.Key }) {
				return b, fmt.Errorf("unknown input %q; the model takes %s", name, v.takes())
			}
		}
	case len(v.inputs) != 1:
		return b, fmt.Errorf("found a value, expected an object with the %d inputs of the model", len(v.inputs))
	default:
		columns[v.inputs[0].Name] = append(r.Inputs, r.Instances...) // one of them is nil
	}
	return v.tensors([]sample{columns}, nil)
}

// answer returns the body of the response: by row, as the instances, or else by output.
func (r *restRequest) answer(out *data.Batch) (text []byte, err error) {
	elements := make([]func([]byte, int) []byte, len(out.Fields))
	for i, f := range out.Fields {
		if elements[i] = elementsOf(f); r.Inputs == nil && (len(f.Shape) == 0 || f.Shape[0] != out.Size) {
			return nil, fmt.Errorf("%w: output %s has the shape %v, and not one row for each of %d instances; send "+
				"\"inputs\" in place of \"instances\"", ErrInput, f.Name, f.Shape, out.Size)
		}
	}
	// value appends element at of each output; the first dimensions of its shape number the elements.
	value := func(text []byte, dimensions, at int) []byte {
		for i, f := range out.Fields {
			if len(out.Fields) > 1 {
				text = append(strconv.AppendQuote(append(text, "{,"[min(i, 1)]), f.Name), ':')
			}
			_, _, n := dtype.Data(f.Values)
			text, _ = appendArray(text, f.Shape[dimensions:], at*n/out.Size, elements[i])
		}
		if len(out.Fields) > 1 {
			text = append(text, '}')
		}
		return text
	}
	if r.Inputs != nil {
		return append(value([]byte(`{"outputs":`), 0, 0), '}'), nil
	}
	text = []byte(`{"predictions":`)
	for i := range out.Size {
		text = value(append(text, "[,"[min(i, 1)]), 1, i)
	}
	return append(text, "]}"...), nil
}

// appendArray appends elements as nested arrays of a shape. at is the index of the first one, and next that after the
// last one.
func appendArray(text []byte, shape []int, at int, element func([]byte, int) []byte) (_ []byte, next int) {
	if len(shape) == 0 {
		return element(text, at), at + 1
	}
	text = append(text, '[')
	for i := range shape[0] {
		if i > 0 {
			text = append(text, ',')
		}
		text, at = appendArray(text, shape[1:], at, element)
	}
	return append(text, ']'), at
}

// elementsOf returns a function that appends an element of a field.
func elementsOf(f data.Field) func(text []byte, i int) []byte {
	switch x := f.Values.(type) {
	case []float32:
		return func(text []byte, i int) []byte { return appendFloat(text, float64(x[i]), 32) }
	case []float64:
		return func(text []byte, i int) []byte { return appendFloat(text, x[i], 64) }
	case []string:
		return func(text []byte, i int) []byte {
			if strings.HasSuffix(f.Name, "_bytes") {
				return append(base64.StdEncoding.AppendEncode(append(text, `{"b64":"`...), []byte(x[i])), `"}`...)
			}
			quoted, _ := json.Marshal(x[i]) // a text has no error
			return append(text, quoted...)
		}
	}
	kind, first, _ := dtype.Data(f.Values)
	return func(text []byte, i int) []byte {
		return kind.AppendText(text, unsafe.Add(first, uintptr(i*kind.Size)))
	}
}

// appendFloat writes whole numbers as 1.0, so that readers see that they are floats.
func appendFloat(text []byte, x float64, bits int) []byte {
	if math.IsInf(x, 0) {
		return append(text, map[bool]string{true: "Infinity", false: "-Infinity"}[x > 0]...)
	}
	from := len(text)
	text = strconv.AppendFloat(text, x, 'g', -1, bits)
	if !math.IsNaN(x) && !bytes.ContainsAny(text[from:], ".e") {
		text = append(text, ".0"...)
	}
	return text
}
