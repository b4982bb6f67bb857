package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/internal/autotune"
	"steadyfit/internal/child"
	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/lab/programs"
	"steadyfit/internal/memlayer"
	"steadyfit/internal/native"
	"steadyfit/internal/tflibrary"
	"steadyfit/internal/tfproto"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// testCase describes the training of a process that a test starts.
type testCase struct {
	// Model is the name of a built-in model or a folder. Samples is the number of samples of the
	// dataset.
	Model   string
	Samples int
	Batch   int
	Seconds float64
	// Growth is the number of executions before the first verdict on growth; see Plan.Samples.
	Growth int
	// Options are those of the session, and Budgeted is that of the Plan.
	Options  session.Options
	Budgeted bool
	// Retain names what the process retains in each step: "go" or "native" memory, or what a workload
	// of the matrix retains.
	Retain string
}

const caseEnv = "STEADYFIT_TEST_EXPLAIN"

func TestMain(m *testing.M) {
	if os.Getenv(caseEnv) == "" {
		os.Exit(m.Run())
	}
	var c testCase
	parent, err := child.Connect(caseEnv, &c)
	if err == nil {
		var r *Report
		if r, err = c.measure(); err == nil {
			err = parent.Send(r)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (c testCase) measure() (*Report, error) {
	m, err := savedmodels.Builtin(c.Model)
	if filepath.IsAbs(c.Model) {
		m, err = savedmodels.Open(c.Model)
	}
	if err != nil {
		return nil, err
	}
	var retained [][]byte
	var tensors []*tfbind.Tensor
	var leak *program.Loop
	p := Plan{
		Name: c.Model, Model: m, Options: c.Options, Budgeted: c.Budgeted, Shuffle: true, Batch: c.Batch, Prefetch: -1,
		Time: time.Duration(c.Seconds * float64(time.Second)), Samples: c.Growth,
		OpenData:       func() (*data.InMemory, error) { return synthetic(m, c.Samples) },
		LoadTensorFlow: func() error { _, err := tfbind.Load(""); return err },
		EachStep: func(step int) (err error) {
			switch c.Retain {
			case "":
			case "go":
				retained = append(retained, bytes.Repeat([]byte{1}, 64<<10))
			case "native":
				x, err := tfbind.NewTensor(make([]float32, 16<<10), 16<<10)
				tensors = append(tensors, x)
				return err
			default:
				if leak == nil {
					leak, err = programs.Open(context.Background(), c.Retain,
						"--model="+m.Dir, fmt.Sprintf("--batch=%d", c.Batch))
				}
				if err == nil {
					err = program.Caught(func() { leak.Step(context.Background(), step) })
				}
			}
			return err
		},
	}
	r, err := Measure(context.Background(), p)
	if len(retained) > 1<<30 || len(tensors) > 1<<30 {
		return nil, nil
	}
	return r, err
}

// synthetic returns a dataset of ones for the inputs of the train signature.
func synthetic(m *savedmodels.Model, samples int) (*data.InMemory, error) {
	sig, err := m.Signature(m.Roles.Train)
	if err != nil {
		return nil, err
	}
	var fields []data.Field
	for _, in := range sig.DataInputs() {
		shape, n := []int{samples}, samples
		for _, d := range in.Shape[1:] {
			shape, n = append(shape, int(d)), n*int(d)
		}
		a := data.Array{Shape: shape, Values: slices.Repeat([]float32{1}, n)}
		if in.DType == dtype.Int64 {
			a.Values = slices.Repeat([]int64{1}, n)
		}
		fields = append(fields, data.Field{Name: in.Name, Array: a})
	}
	return data.New("ones", fields...)
}

// measure runs a case in a process of its own.
func measure(t *testing.T, oneDNN string, c testCase) *Report {
	t.Helper()
	if _, err := tflibrary.Locate(""); err != nil {
		t.Skipf("no TensorFlow (set %s): %v", tflibrary.EnvLibrary, err)
	}
	t.Setenv("TF_ENABLE_ONEDNN_OPTS", oneDNN)
	t.Setenv("TF_CPP_MIN_LOG_LEVEL", "2")
	p, err := child.Start(t.Context(), child.Command{Variable: caseEnv, Spec: c, Log: os.Stderr})
	require.NoError(t, err)
	line, err := p.Receive(time.Now().Add(time.Hour))
	require.NoError(t, err, p.End(nil).Cause)
	var r *Report
	require.NoError(t, json.Unmarshal(line, &r))
	var b strings.Builder
	require.NoError(t, r.WriteText(&b))
	t.Log("\n" + b.String())
	assert.LessOrEqual(t, strings.Count(b.String(), "\n"), 30, "the report does not fit on a screen")
	return r
}

// adds asserts that the parts that are known add up to the peak.
func adds(t *testing.T, r *Report) {
	t.Helper()
	assert.Less(t, float64(r.Part(Unattributed)), 0.05*float64(r.PeakBytes), "unattributed")
	assert.Less(t, float64(r.Excess()), 0.05*float64(r.PeakBytes), "excess")
	assert.GreaterOrEqual(t, r.PeakBytes, r.BeforeBytes-memory.MiB)
}

// written asserts that nearly all that was allocated is resident.
func written(t *testing.T, r *Report) {
	t.Helper()
	var unwritten memory.Bytes
	for _, p := range r.Parts {
		unwritten += p.Unwritten
	}
	assert.Less(t, float64(r.Excess()+unwritten), 0.05*float64(r.PeakBytes))
}

// The text has a line for the part of the peak that is not explained, and a line for the excess of
// the parts over the peak.
func TestRest(t *testing.T) {
	r := &Report{PeakBytes: 100 * memory.MiB, Parts: []Part{{Name: Weights, Bytes: 98 * memory.MiB},
		{Name: Unattributed, Bytes: 2 * memory.MiB}}}
	var b strings.Builder
	require.NoError(t, r.WriteText(&b))
	assert.Contains(t, b.String(), "2.0 MiB   2.0%  unattributed\n")
	assert.Contains(t, b.String(), "100.0 MiB  sum of the parts\n")
	r.Parts[1] = Part{Name: MallocSlack, Bytes: 3 * memory.MiB}
	b.Reset()
	require.NoError(t, r.WriteText(&b))
	assert.Contains(t, b.String(), "101.0 MiB  sum of the parts; the parts exceed the peak by 1.0 MiB (1.0%)\n")
}

func TestShort(t *testing.T) {
	assert.Equal(t, `a\x1b[2J/Relu (Conv)`, Holder{Name: "f/a/Relu", Layer: "a\x1b[2J", Type: "_Conv"}.Short())
	assert.Equal(t, `w\n`, Holder{Name: "w\n"}.Short())
}

// The variables of a training on a GPU are not in the resident memory.
func TestVariablesOnGPU(t *testing.T) {
	m := &measurement{plan: Plan{Model: &savedmodels.Model{Variables: []savedmodels.Variable{{Name: "w",
		DType: dtype.Float32, Shape: []int64{1 << 20}, Trained: true}}}}}
	m.data, m.executions = one(t)
	m.before.Anon, m.before.RSS = memory.Known(10*memory.MiB), memory.Known(10*memory.MiB)
	assert.Equal(t, Weights, m.parts(nil)[1].Name)
	m.trace.Allocators = map[string]native.Use{"GPU_0_bfc": {}}
	assert.Equal(t, []Part{{Name: Unattributed, Bytes: 10 * memory.MiB}}, m.parts(nil))
}

func one(t *testing.T) (*data.InMemory, *autotune.Executions) {
	ds, err := data.New("one", data.Field{Name: "x", Array: data.Array{Shape: []int{1}, Values: []float32{1}}})
	require.NoError(t, err)
	return ds, &autotune.Executions{Ahead: data.Prefetch(ds, 1)}
}

// With another malloc, the size of the pool is not known.
func TestPoolOfOtherMalloc(t *testing.T) {
	m := &measurement{peak: 400 * memory.MiB, plan: Plan{Model: &savedmodels.Model{}}}
	m.data, m.executions = one(t)
	m.trace.Allocators = map[string]native.Use{"mklcpu": {Peak: memory.Known(256 * memory.MiB)}}
	m.before.Anon, m.before.RSS = memory.Known(400*memory.MiB), memory.Known(400*memory.MiB)
	m.opened.malloc = tfbind.Malloc{InUse: 100 << 20, Mapped: -1}
	m.before.malloc = tfbind.Malloc{InUse: 350 << 20, Free: 50 << 20, Mapped: -1}
	parts := m.parts(nil)
	assert.Equal(t, []Part{{Name: Unattributed, Bytes: 350 * memory.MiB}, {Name: MallocSlack, Bytes: 50 * memory.MiB}},
		parts)
}

func each(t *testing.T, test func(t *testing.T, oneDNN string)) {
	for _, v := range []string{"0", "1"} {
		t.Run("oneDNN="+v, func(t *testing.T) { test(t, v) })
	}
}

func TestDigits(t *testing.T) {
	each(t, func(t *testing.T, oneDNN string) {
		r := measure(t, oneDNN, testCase{Model: "digits", Samples: 1000, Batch: 32, Seconds: 4})
		adds(t, r)
		written(t, r)
		assert.NotEqual(t, memory.Leak, r.Growth.Kind, r.GrowthText)
		assert.Empty(t, r.Growth.Cause, r.GrowthText)
		assert.InDelta(t, 37.5*1024, float64(r.Part(Weights)), 1024)
		assert.InDelta(t, 2*37.5*1024, float64(r.Part(Optimizer)), 1024)
		assert.InDelta(t, 1000*(64*4+8), float64(r.Part(Dataset)), 1)
	})
}

// A workspace that is sized for a cache, whatever the batch, is mostly not resident, unless another kernel has written
// its pages before, which depends on the order of the kernels of a process.
func TestUnwrittenWorkspace(t *testing.T) {
	var unwritten []memory.Bytes
	for range 5 {
		r := measure(t, "0", testCase{Model: "digits-cnn", Samples: 1000, Batch: 32, Seconds: 2})
		assert.Less(t, float64(r.Excess()), 0.05*float64(r.PeakBytes), "excess")
		i := slices.IndexFunc(r.Parts, func(p Part) bool { return p.Name == Workspace })
		require.GreaterOrEqual(t, i, 0)
		p := r.Parts[i]
		assert.Contains(t, p.Of[0].Type, "Conv2DBackprop")
		// Of its 17 MiB, a kernel writes 64 columns of 288 floats for each of 32 samples.
		assert.Greater(t, p.Of[0].Bytes, 16*memory.MiB)
		if unwritten = append(unwritten, p.Unwritten); p.Unwritten > 4*memory.MiB {
			return
		}
	}
	t.Errorf("all pages were written in each process: %v", unwritten)
}

// The large activations of a model are attributed to its layers.
func TestImages(t *testing.T) {
	each(t, func(t *testing.T, oneDNN string) {
		r := measure(t, oneDNN, testCase{Model: "image-224", Samples: 16, Batch: 8, Seconds: 2})
		adds(t, r)
		written(t, r)
		// The convolution's output has 8*222*222*32 floats.
		const output = 8 * 222 * 222 * 32 * 4
		assert.GreaterOrEqual(t, int64(r.Part(Activations)), int64(output))
		for _, p := range r.Parts {
			if p.Name == Workspace && oneDNN == "0" { // the gradient of the pool needs a temporary copy of its input or output
				assert.GreaterOrEqual(t, p.Bytes, 12*memory.MiB)
				assert.Equal(t, "MaxPoolGrad", p.Of[0].Type)
			}
			if p.Name == Activations {
				assert.InEpsilon(t, output, float64(p.Of[0].Bytes), 0.01)
				assert.Contains(t, p.Of[0].Layer, "conv2d")
			}
		}
		assert.InEpsilon(t, 3943018*4, float64(r.Part(Weights)), 0.01)
		assert.NotEmpty(t, r.Timeline.Spans)
		var most memory.Bytes
		for i := range r.Timeline.Micros {
			var sum memory.Bytes
			for _, s := range r.Timeline.Series {
				sum += s.Bytes[i]
			}
			most = max(most, sum)
		}
		for _, p := range r.Parts {
			if slices.Contains(stepParts, p.Name) {
				most -= p.Bytes + p.Unwritten
			}
		}
		assert.Zero(t, most, "the highest moment of the timeline is the peak")
	})
}

// A variable and a dataset that are larger than everything else are named.
func TestPlantedHolders(t *testing.T) {
	each(t, func(t *testing.T, oneDNN string) {
		r := measure(t, oneDNN, testCase{Model: holder(t), Samples: 32 << 10, Batch: 32, Seconds: 0.5})
		adds(t, r)
		p := largest(r)
		assert.Contains(t, []string{Weights, OtherVars, Optimizer}, p.Name)
		require.NotEmpty(t, p.Of)
		assert.Equal(t, Holder{Name: "held", Bytes: 64 * memory.MiB}, p.Of[0])

		r = measure(t, oneDNN, testCase{Model: "digits", Samples: 512 << 10, Batch: 32, Seconds: 0.5})
		adds(t, r)
		p = largest(r)
		assert.Equal(t, Dataset, p.Name)
		assert.InEpsilon(t, (512<<10)*(64*4+8), float64(p.Bytes), 0.01)
	})
}

// largest is the largest part except the pages of files: how many of those are resident is a
// decision of the kernel.
func largest(r *Report) Part {
	i := slices.IndexFunc(r.Parts, func(p Part) bool { return p.Name != Files })
	return r.Parts[i]
}

// holder writes a model with a variable of 64 MiB.
func holder(t *testing.T) string {
	float := graphdef.Type(dtype.Float32)
	shape := graphdef.Shape([]int64{16 << 20})
	reduce := graphdef.Attrs{"T": float, "Tidx": graphdef.Type(dtype.Int32), "keep_dims": graphdef.Bool(false)}
	g := (&graphdef.Graph{}).
		Placeholder("x", dtype.Float32).
		Add("variable", "VarHandleOp", graphdef.Attrs{"dtype": float, "shape": shape, "shared_name": graphdef.Text("held"),
			"container": graphdef.Text("")}).
		Constant("dims", dtype.Int32, []byte{0, 0, 0, 1}, 1).
		Constant("one", dtype.Float32, []byte{0, 0, 128, 63}).
		Constant("axes", dtype.Int32, make([]byte, 4), 1).
		Add("ones", "Fill", graphdef.Attrs{"T": float, "index_type": graphdef.Type(dtype.Int32)}, "dims", "one").
		Add("init", "AssignVariableOp", graphdef.Attrs{"dtype": float, "validate_shape": graphdef.Bool(false)}, "variable",
			"ones").
		Add("loss", "Sum", reduce, "x", "axes").
		Add("add", "AssignAddVariableOp", graphdef.Attrs{"dtype": float}, "variable", "ones")
	text, err := g.Bytes()
	require.NoError(t, err)
	graph := &tfproto.GraphDef{}
	require.NoError(t, proto.Unmarshal(text, graph))
	info := func(op string, dims ...int64) *tfproto.TensorInfo {
		return &tfproto.TensorInfo{Encoding: &tfproto.TensorInfo_Name{Name: op + ":0"}, Dtype: tfproto.DataType_DT_FLOAT,
			TensorShape: graphdef.Shape(dims).GetShape()}
	}
	step := &tfproto.SignatureDef{Inputs: map[string]*tfproto.TensorInfo{"x": info("x", -1)},
		Outputs: map[string]*tfproto.TensorInfo{"loss": info("loss")}}
	init := &tfproto.SignatureDef{Outputs: map[string]*tfproto.TensorInfo{"__saved_model_init_op": {Encoding: &tfproto.TensorInfo_Name{Name: "init"}}}}
	content, err := proto.Marshal(&tfproto.SavedModel{MetaGraphs: []*tfproto.MetaGraphDef{{
		MetaInfoDef: &tfproto.MetaGraphDef_MetaInfoDef{Tags: []string{"serve"}}, GraphDef: graph,
		SignatureDef: map[string]*tfproto.SignatureDef{"train": step, "__saved_model_init_op": init},
	}}})
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(filepath.Join(dir, "variables"), os.DirFS("../../savedmodels/testdata/flat/variables")))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "saved_model.pb"), content, 0o644))
	return dir
}

// A program that retains an object in each step has a leak. The cause names the object: in W2 the tensors of
// a step, in W4 a session, in W5 an operation of a graph, in W6 an executor for other fetches, in W10
// predictions.
func TestLeaks(t *testing.T) {
	for _, c := range []struct {
		retained string
		batch    int
		samples  int
		cause    string
		carrier  memory.Layer
	}{
		{"go", 32, 256, memlayer.HostHistory, "go heap live"},
		{"native", 32, 256, memlayer.Unreleased, memlayer.LiveBytes},
		{"W2", 256, 256, memlayer.Unreleased, memlayer.LiveBytes},
		{"W4", 32, 32, memlayer.Unreleased, memlayer.LiveCount},
		{"W5", 32, 256, memlayer.RuntimeCache, memlayer.GraphOperations},
		{"W6", 32, 256, memlayer.RuntimeCache, memlayer.Executors},
		{"W10", 512, 1024, memlayer.HostHistory, "go heap live"},
	} {
		t.Run(c.retained, func(t *testing.T) {
			r := measure(t, "1", testCase{Model: "digits", Samples: 1000, Batch: c.batch, Seconds: 90, Growth: c.samples,
				Retain: c.retained})
			assert.Equal(t, memory.Leak, r.Growth.Kind, r.GrowthText)
			assert.Equal(t, c.cause, r.Growth.Cause, r.GrowthText)
			assert.Equal(t, c.carrier, r.Growth.Carrier, r.GrowthText)
			require.Greater(t, len(r.growing()), 1)
			assert.Contains(t, r.growing()[1], string(c.carrier)+" +")
		})
	}
}

// Random numbers and several kinds of layers are no leak.
func TestControls(t *testing.T) {
	each(t, func(t *testing.T, oneDNN string) {
		for _, model := range []string{"dropout-200-512-256-1", "lstm"} {
			r := measure(t, oneDNN, testCase{Model: model, Samples: 1000, Batch: 32, Seconds: 6})
			assert.NotEqual(t, memory.Leak, r.Growth.Kind, r.GrowthText)
			assert.Empty(t, r.Growth.Cause, r.GrowthText)
		}
	})
}

// The page says the same as the text about the execution and the earlier peak of the process, and which
// part of a step its chart shows.
func TestPageOfMicroBatches(t *testing.T) {
	r := &Report{Batch: 32, MicroBatches: 8, PeakBytes: 100 * memory.MiB, ProcessPeakBytes: 300 * memory.MiB}
	written := func() string {
		var b bytes.Buffer
		require.NoError(t, r.HTML(&b))
		return b.String()
	}
	text := written()
	assert.Contains(t, text, "Batch 32 in 8 micro-batches: a step peaks at <b>100.0 MiB</b>")
	assert.Contains(t, text, "The process peaked at 300.0 MiB before")
	assert.Contains(t, text, "A step runs 8 micro-batches and the update one after the other; the chart shows the one "+
		"of them that holds most.")
	r.MicroBatches = 1
	assert.NotContains(t, written(), "micro-batches")
}

// The explained execution is that of the options.
func TestOptions(t *testing.T) {
	each(t, func(t *testing.T, oneDNN string) {
		r := measure(t, oneDNN, testCase{Model: "image-224", Samples: 16, Batch: 8, Seconds: 2,
			Options: session.Options{MicroBatches: 4}})
		adds(t, r)
		assert.Equal(t, 4, r.MicroBatches)
		// TensorFlow may have freed it at the moment of the peak, which depends on the order of operations.
		assert.True(t, slices.ContainsFunc(r.Timeline.Spans, func(s Span) bool {
			return s.Part == Activations && math.Abs(float64(s.Bytes)/(2*222*222*32*4)-1) < 0.01
		}), "the convolution of a quarter of the batch: %v", r.Timeline.Spans)

		r = measure(t, oneDNN, testCase{Model: "digits", Samples: 1000, Batch: 32, Seconds: 2,
			Options: session.Options{StepsPerExecution: 10}})
		adds(t, r)
		assert.Equal(t, 10, r.StepsPerExecution)
		assert.Zero(t, r.Steps%10)
		assert.Contains(t, r.execution(), "an execution of 10 steps")

		r = measure(t, oneDNN, testCase{Model: "digits", Samples: 1000, Batch: 32, Seconds: 2, Budgeted: true,
			Options: session.Options{StepsPerExecution: 10, Device: gpuopts.Options{IntraThreads: 1, InterThreads: 1}}})
		adds(t, r)
		assert.Equal(t, 1, r.StepsPerExecution, "a budget looks at the memory after each step")
		assert.InDelta(t, 3*32*(64*4+8), float64(r.Part(Prefetched)), 1)
	})
}

func TestLayerOf(t *testing.T) {
	for name, want := range map[string]string{
		"StatefulPartitionedCall_7/StatefulPartitionedCall/sequential_1/conv2d_1/Relu":                                  "sequential_1/conv2d_1",
		"StatefulPartitionedCall_7/StatefulPartitionedCall/gradient_tape/sequential_1/dense_1/MatMul/MatMul_1":          "sequential_1/dense_1/MatMul",
		"StatefulPartitionedCall_7/StatefulPartitionedCall/sequential_1/lstm_1/while/body/_51/lstm_1/lstm_cell_1/split": "sequential_1/lstm_1/lstm_1/lstm_cell_1",
		"StatefulPartitionedCall/Add_3": "",
		"loss":                          "",
	} {
		assert.Equal(t, want, layerOf(name), name)
	}
	operations := classify([]native.Allocations{
		{Name: "a/model/conv/Relu", Records: []native.Record{{Bytes: 1}}, Allocator: "cpu"},
		{Name: "gradient_tape/a/model/conv/Relu/Grad", Type: "ReluGrad", Records: []native.Record{{Bytes: 1}},
			Allocator: "cpu"},
		{Name: "adam/Mul", Type: "Mul", Records: []native.Record{{Bytes: 1}}, Allocator: "cpu"},
		{Name: "update", Type: "ResourceApplyAdam", Records: []native.Record{{Bytes: 1}}, Allocator: "cpu"},
		{Name: "gpu", Records: []native.Record{{Bytes: 1}}, Allocator: "GPU_0_bfc"},
	})
	var got []string
	for _, o := range operations {
		got = append(got, o.part+" "+o.layer)
	}
	assert.Equal(t, []string{Activations + " model/conv", Gradients + " model/conv/Relu", Update + " adam", Update + " "},
		got)
}

// Slow growth is a leak if a number of objects grows, too.
func TestJudgeCounts(t *testing.T) {
	for _, c := range []struct {
		executors int
		growth    memory.Bytes
		want      memory.Kind
		cause     string
	}{
		{0, 0, memory.Flat, ""},
		{0, 3 * memory.KiB, memory.Flat, ""},
		{1, 3 * memory.KiB, memory.Leak, memlayer.RuntimeCache},
		{1, 0, memory.Inconclusive, ""},
	} {
		var s memory.Series
		for i := range 200 {
			sample := memory.Sample{Step: i, At: time.Unix(int64(i), 0)}
			sample.Set(memory.Anon, memory.Known(64*memory.MiB+memory.Bytes(i)*c.growth+memory.Bytes(i%3)*4*memory.KiB))
			sample.Set(memlayer.Executors, memory.Known(memory.Bytes(5+i*c.executors)))
			s.Append(&sample)
		}
		v := judge(&s, 200)
		assert.Equal(t, c.want, v.Kind, v)
		assert.Equal(t, c.cause, v.Cause, v)
	}
}

// Growth that has ended, and growth of memory that was freed, has no cause.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		kind  memory.Kind
		cause string
		want  memory.Kind
		keeps bool
	}{
		{memory.Leak, memlayer.Unreleased, memory.Leak, true},
		{memory.Leak, memlayer.HostHistory, memory.Leak, true},
		{memory.Leak, memlayer.Retention, memory.Inconclusive, false},
		{memory.Leak, memlayer.GoRuntime, memory.Inconclusive, false},
		{memory.Plateau, memlayer.HostHistory, memory.Plateau, false},
	} {
		v := memory.Verdict{Kind: c.kind, Cause: c.cause, From: 6, To: 106}
		settle(&v)
		assert.Equal(t, c.want, v.Kind, c.cause)
		assert.Equal(t, c.keeps, v.Cause != "", c.cause)
		assert.Equal(t, c.want == memory.Inconclusive, v.More == 100 && v.Reason != "", c.cause)
	}
}
