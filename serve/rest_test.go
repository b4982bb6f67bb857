package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/dtype"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

func post(body string) *http.Request {
	return httptest.NewRequest(http.MethodPost, "/v1/models/m:predict", strings.NewReader(body))
}

// REST answers as TensorFlow Serving does: rows or columns, bare values for a single input or output, and objects for
// several.
func TestREST(t *testing.T) {
	one := open(t, filepath.Join("..", "savedmodels", "testdata", "keras"), Options{Batch: 4})
	var y []struct{ Y float32 }
	require.NoError(t, one.Predict(t.Context(), []struct{ X [3]float32 }{{[3]float32{1, 2, 3}}, {[3]float32{4, 5, 6}}}, &y))
	rows, err := json.Marshal([][]float32{{y[0].Y}, {y[1].Y}})
	require.NoError(t, err)
	for body, key := range map[string]string{
		`{"instances": [[1, 2, 3], [4, 5, 6.0]]}`:                                 "predictions",
		`{"instances": [{"x": [1, 2, 3]}, {"x": [4, 5, 6]}]}`:                     "predictions",
		`{"signature_name": "serving_default", "inputs": [[1, 2, 3], [4, 5, 6]]}`: "outputs",
		`{"inputs": {"x": [[1, 2, 3], [4, 5, 6]]}}`:                               "outputs",
	} {
		answer, err := one.answer(post(body))
		require.NoError(t, err, body)
		assert.Equal(t, fmt.Sprintf(`{%q:%s}`, key, rows), string(answer), body)
	}

	model, images := digits(t)
	several := open(t, model.Dir, Options{})
	body, err := json.Marshal(map[string]any{"signature_name": "predict", "instances": [][]float32{images[0].Pixels, images[1].Pixels}})
	require.NoError(t, err)
	answer, err := several.answer(post(string(body)))
	require.NoError(t, err)
	var byRow struct {
		Predictions []struct {
			Class         int64
			Logits        []float32
			Probabilities [10]float32
		}
	}
	require.NoError(t, json.Unmarshal(answer, &byRow))
	want := expected(t, model, images[:2])
	require.Len(t, byRow.Predictions, 2)
	assert.Equal(t, want[1], byRow.Predictions[1].Probabilities)
	body, err = json.Marshal(map[string]any{"inputs": map[string]any{"x": [][]float32{images[0].Pixels, images[1].Pixels}}})
	require.NoError(t, err)
	answer, err = several.answer(post(string(body)))
	require.NoError(t, err)
	var byColumn struct {
		Outputs struct {
			Class         []int64
			Probabilities [][10]float32
		}
	}
	require.NoError(t, json.Unmarshal(answer, &byColumn))
	assert.Equal(t, want, byColumn.Outputs.Probabilities)
	assert.Equal(t, byRow.Predictions[0].Class, byColumn.Outputs.Class[0])
}

func TestErrorsOfREST(t *testing.T) {
	p := open(t, filepath.Join("..", "savedmodels", "testdata", "keras"), Options{})
	for body, says := range map[string]string{
		``:                  "expected a JSON object with instances or inputs",
		`{"instances": 1}`:  "instances must be an array",
		`{"instances": {}}`: "instances must be an array",
		`{}`:                `expected either "instances" or "inputs"`,
		`{"inputs": [[1,2,3]], "instances": [[1]]}`:        `expected either "instances" or "inputs"`,
		`{"instances": []}`:                                "there are no samples",
		`{"instances": [[1,2,3], [1,2]]}`:                  "the call does not fit the model: input x: nested arrays must have equal lengths",
		`{"instances": [{"x": [1,2,3]}, {"x": [1,2]}]}`:    "sample 1, input x: its shape is [2], and that of sample 0 is [3]",
		`{"instances": [[1,[2],3]]}`:                       "the call does not fit the model: input x: nested arrays must have equal lengths",
		`{"instances": [{"x": [[1,2],[3]]}]}`:              "sample 0, input x: nested arrays must have equal lengths",
		`{"instances": [[1,2,null]]}`:                      "the call does not fit the model: input x: found null",
		`{"instances": [{"x": [1,2,3]}, 7]}`:               "expected a JSON object",
		`{"instances": [[1,2,"a"]]}`:                       "input x: found string, expected float32",
		`{"instances": [[1,2,1e39]]}`:                      "input x: found number 1e39, expected float32",
		`{"instances": [[1,2]]}`:                           "expected samples of shape [3], got samples of shape [2]",
		`{"instances": [{"x": [1,2,3]}, {"y": [1]}]}`:      "sample 1, input x: there is no value",
		`{"instances": [{"b64": "AAAA"}]}`:                 "input x",
		`{"inputs": {"z": 1}}`:                             `the call does not fit the model: unknown input "z"; the model takes x (float32 [-1 3])`,
		`{"instances": [{"z": 1, "a": 2}]}`:                "the call does not fit the model: sample 0, input x: no value for x; found: a, z",
		`{"inputs": [[1,2,3]], "signature_name": "train"}`: `the signature "train" is not served; expected "serving_default", or none`,
	} {
		_, err := p.answer(post(body))
		require.ErrorIs(t, err, ErrInput, body)
		require.ErrorContains(t, err, says, body)
		assert.NotContains(t, err.Error(), "line", body)
	}
}

// An input may have its name in the signature.
func TestNamesOfTheSignature(t *testing.T) {
	v := &version{signature: &savedmodels.Signature{}, model: &savedmodels.Model{}, inputs: []port{{
		Tensor: savedmodels.Tensor{Name: "shop id", Key: "shop_id"}, kind: dtype.For[float32](), rows: true}}}
	for _, body := range []string{`{"instances": [{"shop_id": 1}]}`, `{"instances": [{"shop id": 1}]}`, `{"inputs": {"shop_id": [1]}}`} {
		var in restRequest
		require.NoError(t, json.Unmarshal([]byte(body), &in))
		b, err := in.decode(v, nil)
		require.NoError(t, err, body)
		assert.Equal(t, []data.Field{{Name: "shop id", Array: data.Array{Shape: []int{1}, Values: []float32{1}}}}, b.Fields, body)
	}
}

// Texts and bytes are texts or base64, and whole floats have a decimal point.
func TestRESTOfTexts(t *testing.T) {
	text := func(name string) port {
		return port{Tensor: savedmodels.Tensor{Name: name}, kind: dtype.For[string](), rows: true}
	}
	v := &version{inputs: []port{text("x")}, signature: &savedmodels.Signature{}}
	v.model = &savedmodels.Model{}
	for _, body := range []string{`{"instances": ["a\"]", {"b64": "/w=="}]}`, `{"inputs": ["a\"]", {"b64": "/w=="}]}`,
		`{"instances": [{"x": "a\"]"}, {"x": {"b64": "/w=="}}]}`, `{"instances": [{"b64": "YSJd"}, {"b64": "/w=="}]}`,
		`{"instances": [ {"b64": "YSJd"}, {"b64": "/w=="}]}`, `{"instances": [{ "b64": "YSJd"}, {"b64": "/w=="}]}`} {
		var in restRequest
		require.NoError(t, json.Unmarshal([]byte(body), &in))
		b, err := in.decode(v, nil)
		require.NoError(t, err)
		assert.Equal(t, data.Batch{Size: 2, Fields: []data.Field{{Name: "x", Array: data.Array{Shape: []int{2}, Values: []string{`a"]`, "\xff"}}}}}, b)
	}
	b, err := (&restRequest{Instances: []byte(`[{"b64": "YQ=="}, "b"]`)}).decode(v, nil)
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b"}, b.Fields[0].Values)
	out := data.Batch{Size: 2, Fields: []data.Field{
		{Name: "a_bytes", Array: data.Array{Shape: []int{2}, Values: []string{"\xff", ""}}},
		{Name: "b", Array: data.Array{Shape: []int{2, 1}, Values: []string{`"`, "é"}}},
		{Name: "c", Array: data.Array{Shape: []int{2, 2}, Values: []float64{1, math.Inf(-1), 1e9, 0.5}}},
		{Name: "d", Array: data.Array{Shape: []int{2}, Values: []bool{true, false}}},
	}}
	rows, err := (&restRequest{}).answer(&out)
	require.NoError(t, err)
	assert.Equal(t, `{"predictions":[{"a_bytes":{"b64":"/w=="},"b":["\""],"c":[1.0,-Infinity],"d":true},`+
		`{"a_bytes":{"b64":""},"b":["é"],"c":[1e+09,0.5],"d":false}]}`, string(rows))
	columns, err := (&restRequest{Inputs: []byte("[]")}).answer(&out)
	require.NoError(t, err)
	assert.Equal(t, `{"outputs":{"a_bytes":[{"b64":"/w=="},{"b64":""}],"b":[["\""],["é"]],"c":[[1.0,-Infinity],[1e+09,0.5]],"d":[true,false]}}`,
		string(columns))
	out.Fields = append(out.Fields, data.Field{Name: "mean", Array: data.Array{Values: []float32{1}}})
	_, err = (&restRequest{}).answer(&out)
	require.ErrorContains(t, err, `output mean has the shape [], and not one row for each of 2 instances; send "inputs"`)
}

// Bare values of a single input are those of "inputs", and take no map for each.
func TestValuesOfRESTAreReadAtOnce(t *testing.T) {
	v := &version{signature: &savedmodels.Signature{}, model: &savedmodels.Model{},
		inputs: []port{{Tensor: savedmodels.Tensor{Name: "x"}, kind: dtype.For[float32](), rows: true}}}
	const n = 10000
	in := restRequest{Instances: []byte("[1" + strings.Repeat(",1", n-1) + "]")}
	var b data.Batch
	allocations := testing.AllocsPerRun(1, func() {
		var err error
		b, err = in.decode(v, nil)
		require.NoError(t, err)
	})
	assert.Equal(t, []int{n}, b.Fields[0].Shape)
	assert.Less(t, allocations, n/10.0)
}

func TestCodesOfErrors(t *testing.T) {
	for err, code := range map[error]int{context.DeadlineExceeded: 504, ErrClosed: 503, errors.New("x"): 500,
		tfbind.ErrResourceExhausted: 429, tfbind.ErrInvalidArgument: 400} {
		assert.Equal(t, code, codeOf(fmt.Errorf("predict: %w", err)), err)
	}
}

// Fields of embedded structs are fields of the struct.
func TestEmbeddedStructs(t *testing.T) {
	model, images := digits(t)
	p := open(t, model.Dir, Options{})
	in := struct {
		Name string
		digit
	}{"", images[3]}
	var out struct {
		Text string
		answer
	}
	require.NoError(t, p.Predict(t.Context(), &in, &out))
	assert.Equal(t, expected(t, model, images[3:4])[0], out.Probabilities)
	assert.Empty(t, out.Text)
	err := p.Predict(t.Context(), &struct{ *digit }{&images[3]}, &out)
	require.ErrorContains(t, err, "it is in an embedded *serve.digit; embed the struct itself")
}

// Handler has the paths, the status codes and the errors of TensorFlow Serving.
func TestHandler(t *testing.T) {
	p := open(t, filepath.Join("..", "savedmodels", "testdata", "keras"), Options{})
	handler := http.MaxBytesHandler(p.Handler("m"), 100)
	for _, c := range []struct {
		method, path, body string
		code               int
		answer             string
	}{
		{"POST", "/v1/models/m:predict", `{"instances": []}`, 400, `{"error":"predict: the call does not fit the model: there are no samples"}`},
		{"POST", "/v1/models/m:predict", strings.Repeat(" ", 101), 413, `{"error":"http: request body too large"}`},
		{"GET", "/v1/models/m", "", 200, `{"model_version_status":[{"version":"0","state":"AVAILABLE","status":{"error_code":"OK","error_message":""}}]}`},
		{"POST", "/v1/models/m/versions/1:predict", "", 404, `{"error":"POST /v1/models/m/versions/1:predict is not served; expected POST /v1/models/m:predict or GET /v1/models/m"}`},
		{"GET", "/v1/models/other", "", 404, `{"error":"GET /v1/models/other is not served; expected POST /v1/models/m:predict or GET /v1/models/m"}`},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		assert.Equal(t, c.code, w.Code, c.path)
		assert.Equal(t, c.answer, strings.TrimSpace(w.Body.String()), c.path)
		assert.Equal(t, "application/json", w.Header().Get("Content-Type"))
	}
}

func TestCloseOfNothing(t *testing.T) { require.NoError(t, new(Predictor).Close()) }
