package session_test

import (
	"testing"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/data"
	"steadyfit/internal/graphdef"
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
		g.Placeholder("x"+n, tfbind.Float32).Add("put"+n, "QueueEnqueueV2", graphdef.Attrs{"Tcomponents": types}, "queue", "x"+n)
		sum("loss"+n, "x"+n, "^put"+n)
	}
	g.Add("taken", "QueueDequeueV2", graphdef.Attrs{"component_types": types}, "queue")
	sum("kept", "taken")
	text, err := g.Bytes()
	require.NoError(t, err)
	x := map[string]*pb.TensorInfo{"x": tensorInfo("x", tfbind.Float32, -1)}
	return writeModel(t, t.TempDir(), text, map[string]*pb.SignatureDef{
		"train": {Inputs: x, Outputs: map[string]*pb.TensorInfo{"loss": tensorInfo("loss", tfbind.Float32)}},
		"train_n": {
			Inputs:  map[string]*pb.TensorInfo{"x": tensorInfo("x_n", tfbind.Float32, -1, -1)},
			Outputs: map[string]*pb.TensorInfo{"loss": tensorInfo("loss_n", tfbind.Float32)},
		},
		"evaluate": {Inputs: x, Outputs: map[string]*pb.TensorInfo{"loss": tensorInfo("kept", tfbind.Float32)}},
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

// If a model keeps memory of a batch, an execution of several steps copies later batches, too.
func TestCallThatTheModelKeeps(t *testing.T) {
	const batch, calls, n = 16 << 10, 6, 2
	values := make([]float32, batch*calls*n)
	for i := range values {
		values[i] = float32(i / batch)
	}
	ds, err := data.New("steps", data.Field{Name: "x", Array: data.Array{Shape: []int{len(values)}, Values: values}})
	require.NoError(t, err)
	s := openModel(t, keeper(t), session.Options{StepsPerExecution: n})
	other := batches(t, ds, batch, 1)[0]
	out := make([]float64, 1)
	from := data.Prefetch(ds, 2)
	from.SetBlock(n)
	for b, err := range from.Batches(data.Pass{Batch: batch}) {
		require.NoError(t, err)
		if call := b.Index / n; call == 0 || call == 3 {
			require.NoError(t, s.Capabilities().Stack(b.Index%n, n, b))
			if b.Index%n == n-1 {
				require.NoError(t, s.Capabilities().TrainN(t.Context(), 0, n, out))
			}
		}
	}
	for _, want := range []float64{0 + 1, 6 + 7} {
		require.NoError(t, s.Evaluate(t.Context(), other, out))
		assert.Equal(t, want*batch, out[0])
	}
}

// A failed execution does not affect the next one.
func TestCallAfterOneThatFailed(t *testing.T) {
	ds := random(t, 2*5*64, 100)
	plain, many := open(t, "dense-100-64-1", session.Options{}), open(t, "dense-100-64-1", session.Options{StepsPerExecution: 5})
	single(t, plain, batches(t, ds, 64, 10)[5:], 0)
	from := data.Prefetch(ds, 2)
	from.SetBlock(5)
	for b, err := range from.Batches(data.Pass{Batch: 64}) {
		require.NoError(t, err)
		require.NoError(t, many.Capabilities().Stack(b.Index%5, 5, b))
		switch b.Index {
		case 4:
			require.Error(t, many.Capabilities().TrainN(t.Context(), 0, 5, nil))
		case 9:
			require.NoError(t, many.Capabilities().TrainN(t.Context(), 0, 5, make([]float64, len(many.TrainMetrics()))))
		}
	}
	assert.True(t, variables(t, plain) == variables(t, many), "the variables differ")
}

// Training fails on batches whose memory the dataset has reused since Stack.
func TestCallOnBatchesThatAreGone(t *testing.T) {
	const block = 4
	ds := random(t, 12*block*64, 100)
	s := open(t, "dense-100-64-1", session.Options{StepsPerExecution: block})
	before := variables(t, s)
	from := data.Prefetch(ds, 2)
	from.SetBlock(block)
	out := make([]float64, len(s.TrainMetrics()))
	for b, err := range from.Batches(data.Pass{Batch: 64}) {
		require.NoError(t, err)
		if b.Index < block {
			require.NoError(t, s.Capabilities().Stack(b.Index, block, b))
		}
		if b.Index == 3*block { // the third block reuses the memory of the first
			require.ErrorIs(t, s.Capabilities().TrainN(t.Context(), 0, block, out), session.ErrStack)
			break
		}
	}
	assert.True(t, before == variables(t, s), "nothing has run")
}

// Contiguous batches are read in place by an execution of several steps, also if an execution
// begins in the middle of a block. The training is the same as with single steps on copies.
func TestJoinedBatchesAreReadInPlace(t *testing.T) {
	const block, batch = 5, 64
	for name, ds := range map[string]*data.InMemory{"digits": digits(t).(*data.InMemory), "dense-100-64-1": random(t, 14*batch+7, 100)} {
		for skip := range 3 {
			plain, many := open(t, name, session.Options{}), open(t, name, session.Options{StepsPerExecution: block})
			copies := batches(t, ds, batch, 14)[skip:]
			single(t, plain, copies, 0)
			from := data.Prefetch(ds, 2)
			from.SetBlock(block)
			before := tfbind.Live().StepBytes
			out := make([]float64, len(many.TrainMetrics()))
			done, have, n := 0, 0, block-skip // the first execution has fewer steps
			for b, err := range from.Batches(data.Pass{Batch: batch, Skip: skip}) {
				require.NoError(t, err)
				if n = min(n, len(copies)-done); n == 0 {
					break
				}
				require.Equal(t, n, many.Capabilities().Stackable(n, batch))
				require.NoError(t, many.Capabilities().Stack(have, n, b))
				if have++; have == n {
					require.NoError(t, many.Capabilities().TrainN(t.Context(), int64(done), n, out))
					done, have, n = done+n, 0, block
				}
			}
			require.Equal(t, len(copies), done)
			assert.True(t, variables(t, plain) == variables(t, many), "%s from %d: the variables differ", name, skip)
			if name != "digits" && skip == 0 { // the digits are converted
				assert.Less(t, tfbind.Live().StepBytes-before, int64(10<<10), "labels and seeds")
			}
		}
	}
}

// If the size of a batch is not a multiple of 64 bytes, the second execution in a block is not
// aligned and cannot be read in place.
func TestJoinedBatchesOutOfLine(t *testing.T) {
	const batch = 133
	ds := random(t, 10*batch, 100)
	plain, many := open(t, "dense-100-64-1", session.Options{}), open(t, "dense-100-64-1", session.Options{StepsPerExecution: 5})
	single(t, plain, batches(t, ds, batch, 10), 0)
	from := data.Prefetch(ds, 2)
	from.SetBlock(5)
	before := tfbind.Live().StepBytes
	out := make([]float64, len(many.TrainMetrics()))
	for b, err := range from.Batches(data.Pass{Batch: batch}) {
		require.NoError(t, err)
		at, n := b.Index%5, 3
		if at >= n {
			at, n = at-n, 2
		}
		require.NoError(t, many.Capabilities().Stack(at, n, b))
		if at == n-1 {
			require.NoError(t, many.Capabilities().TrainN(t.Context(), int64(b.Index-at), n, out))
		}
	}
	assert.True(t, variables(t, plain) == variables(t, many), "the variables differ")
	copied := tfbind.Live().StepBytes - before
	assert.GreaterOrEqual(t, copied, int64(2*batch*100*4))
	assert.Less(t, copied, int64(3*batch*100*4))
}

// If a caller replaced the values of a batch, that batch and the earlier ones are copied.
func TestJoinedBatchesThatAreNot(t *testing.T) {
	ds := random(t, 32*5, 100)
	plain, many := open(t, "dense-100-64-1", session.Options{}), open(t, "dense-100-64-1", session.Options{StepsPerExecution: 5})
	copies := batches(t, ds, 32, 5)
	copies[3] = copies[0]
	single(t, plain, copies, 0)
	from := data.Prefetch(ds, 2)
	from.SetBlock(5)
	for b, err := range from.Batches(data.Pass{Batch: 32}) {
		require.NoError(t, err)
		at := b.Index
		if at == 3 {
			b = copies[0]
		}
		require.NoError(t, many.Capabilities().Stack(at, 5, b))
	}
	require.NoError(t, many.Capabilities().TrainN(t.Context(), 0, 5, make([]float64, len(many.TrainMetrics()))))
	assert.True(t, variables(t, plain) == variables(t, many), "the variables differ")
}

// A batch that does not fit is an error before anything runs. It leaves no borrowed memory.
func TestJoinedBatchesThatDoNotFit(t *testing.T) {
	const samples = 4 * 8
	x := make([]float64, samples*64)
	x[len(x)-1] = 1e300
	ds, err := data.New("large", data.Field{Name: "x", Array: data.Array{Shape: []int{samples, 64}, Values: x}},
		data.Field{Name: "y", Array: data.Array{Shape: []int{samples}, Values: make([]int64, samples)}})
	require.NoError(t, err)
	s := open(t, "digits", session.Options{StepsPerExecution: 4})
	before := variables(t, s)
	from := data.Prefetch(ds, 2)
	from.SetBlock(4)
	for b, err := range from.Batches(data.Pass{Batch: 8}) {
		require.NoError(t, err)
		err = s.Capabilities().Stack(b.Index, 4, b)
		if b.Index < 3 {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, tfbind.ErrType)
		require.ErrorContains(t, err, "1e+300")
	}
	require.ErrorIs(t, s.Capabilities().TrainN(t.Context(), 0, 4, make([]float64, 2)), session.ErrStack)
	assert.True(t, before == variables(t, s), "nothing has run")
}
