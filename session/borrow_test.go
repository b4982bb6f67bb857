package session_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// Large batches of a dataset, including the last batch of a pass and those of an evaluation,
// are read in place. The training is the same as on copies.
func TestLargeBatchesAreReadInPlace(t *testing.T) {
	const batch, width = 256, 100
	ds := random(t, 2*batch+200, width)
	type result struct {
		out       [][]float64
		variables string
		buffers   int64
	}
	run := func(list func(yield func(data.Batch, error) bool)) (r result) {
		s := open(t, "dense-100-64-1", session.Options{})
		before := tfbind.Live().StepBytes
		for b, err := range list {
			require.NoError(t, err)
			out := make([]float64, len(s.TrainMetrics()))
			require.NoError(t, s.Train(t.Context(), 0, b, out))
			r.out = append(r.out, out)
			out = make([]float64, len(s.EvaluateMetrics()))
			require.NoError(t, s.Evaluate(t.Context(), b, out))
			r.out = append(r.out, out)
		}
		r.buffers = tfbind.Live().StepBytes - before
		r.variables = variables(t, s)
		return r
	}
	copies := batches(t, ds, batch, 3)
	want := run(func(yield func(data.Batch, error) bool) {
		for _, b := range copies {
			if !yield(b, nil) {
				return
			}
		}
	})
	require.GreaterOrEqual(t, want.buffers, int64(2*200*width*4))
	for name, from := range map[string]data.Dataset{"memory": ds, "prefetched": data.Prefetch(ds, 2)} {
		got := run(from.Batches(data.Pass{Batch: batch}))
		assert.Equal(t, want.out, got.out, name)
		assert.Equal(t, want.variables, got.variables, name)
		assert.Less(t, got.buffers, int64(10<<10), "%s: labels and seeds", name)
	}
}

// keeper returns a model whose train and train_n put their input into a queue. evaluate takes
// an element from the queue and reports its sum.
func keeper(t testing.TB) *savedmodels.Model {
	t.Helper()
	float := graphdef.Type(tfbind.Float32)
	types := graphdef.Types([]tfbind.DType{tfbind.Float32})
	reduce := graphdef.Attrs{"T": float, "Tidx": graphdef.Type(tfbind.Int32), "keep_dims": graphdef.Bool(false)}
	g := (&graphdef.Graph{}).Constant("axis", tfbind.Int32, make([]byte, 4), 1).
		Constant("flat", tfbind.Int32, []byte{255, 255, 255, 255}, 1).
		Add("queue", "FIFOQueueV2", graphdef.Attrs{"component_types": types})
	sum := func(name, of string, after ...string) {
		g.Add("flat_"+name, "Reshape", graphdef.Attrs{"T": float, "Tshape": graphdef.Type(tfbind.Int32)}, of, "flat").
			Add(name, "Sum", reduce, append([]string{"flat_" + name, "axis"}, after...)...)
	}
	for _, n := range []string{"", "_n"} {
		g.Placeholder("x"+n, tfbind.Float32).Add("put"+n, "QueueEnqueueV2", graphdef.Attrs{"Tcomponents": types}, "queue",
			"x"+n)
		sum("loss"+n, "x"+n, "^put"+n)
	}
	g.Add("taken", "QueueDequeueV2", graphdef.Attrs{"component_types": types}, "queue")
	sum("kept", "taken")
	text, err := g.Bytes()
	require.NoError(t, err)
	x := map[string]*tfproto.TensorInfo{"x": tensorInfo("x", tfbind.Float32, -1)}
	return writeModel(t, t.TempDir(), text, map[string]*tfproto.SignatureDef{
		"train": {Inputs: x, Outputs: map[string]*tfproto.TensorInfo{"loss": tensorInfo("loss", tfbind.Float32)}},
		"train_n": {
			Inputs:  map[string]*tfproto.TensorInfo{"x": tensorInfo("x_n", tfbind.Float32, -1, -1)},
			Outputs: map[string]*tfproto.TensorInfo{"loss": tensorInfo("loss_n", tfbind.Float32)},
		},
		"evaluate": {Inputs: x, Outputs: map[string]*tfproto.TensorInfo{"loss": tensorInfo("kept", tfbind.Float32)}},
	}, nil)
}

// If a model keeps memory of a batch, the step copies later batches and leaves that memory alone.
func TestBatchThatTheModelKeeps(t *testing.T) {
	const batch, batchCount = 16 << 10, 12
	values := make([]float32, batch*batchCount)
	for i := range values {
		values[i] = float32(i / batch)
	}
	ds, err := data.New("steps", data.Field{Name: "x", Array: data.Array{Shape: []int{len(values)}, Values: values}})
	require.NoError(t, err)
	s := openModel(t, keeper(t), session.Options{})
	other := batches(t, ds, batch, 1)[0]
	out := make([]float64, 1)
	before := tfbind.Live().StepBytes
	for b, err := range data.Prefetch(ds, 2).Batches(data.Pass{Batch: batch}) {
		require.NoError(t, err)
		switch b.Index {
		case 1, 7:
			require.NoError(t, s.Train(t.Context(), 0, b, out))
			require.Equal(t, float64(b.Index*batch), out[0])
		case 6, 11:
			require.NoError(t, s.Evaluate(t.Context(), other, out))
			require.Equal(t, float64(map[int]int{6: 1, 11: 7}[b.Index]*batch), out[0], "after batch %d", b.Index)
		}
		if b.Index == 6 {
			require.Less(t, tfbind.Live().StepBytes-before, int64(2*4*batch), "only the input of evaluate was copied")
		}
	}
	require.GreaterOrEqual(t, tfbind.Live().StepBytes-before, int64(2*4*batch))
}
