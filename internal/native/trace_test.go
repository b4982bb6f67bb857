package native_test

import (
	"compress/gzip"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/gpuopts"
	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/native"
	"steadyfit/internal/tflibrary"
	"steadyfit/internal/tfproto"
	"steadyfit/memory"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

func TestMain(m *testing.M) {
	// TensorFlow reads these variables when it is loaded. The default of oneDNN depends on the
	// processor.
	os.Setenv("TF_ENABLE_ONEDNN_OPTS", "1")
	os.Unsetenv("TF_ONEDNN_USE_SYSTEM_ALLOCATOR")
	os.Exit(m.Run())
}

// trace runs the model's train step a few times on zeros and traces the last execution.
func trace(t *testing.T, model *savedmodels.Model, config []byte) []byte {
	t.Helper()
	session, err := tfbind.LoadSavedModel(model.Dir, model.Tags, config)
	require.NoError(t, err)
	defer session.Close()
	signature, err := model.Signature(model.Roles.Train)
	require.NoError(t, err)
	var feeds []tfbind.Output
	for _, in := range signature.Inputs {
		feed, err := session.Graph().Output(in.Op)
		require.NoError(t, err)
		feeds = append(feeds, feed)
	}
	loss, err := session.Graph().Output(signature.Output(contract.OutputLoss).Op)
	require.NoError(t, err)
	step, err := session.Prepare(feeds, []tfbind.Output{loss})
	require.NoError(t, err)
	defer step.Close()
	for i, in := range signature.Inputs {
		shape, n := []int64{}, int64(1)
		for _, d := range in.Shape {
			if d < 0 {
				d = 32
			}
			shape, n = append(shape, d), n*d
		}
		switch in.DType {
		case dtype.Float32:
			require.NoError(t, step.Set(i, make([]float32, n), shape...))
		case dtype.Int64:
			require.NoError(t, step.Set(i, make([]int64, n), shape...))
		default:
			t.Fatalf("input %s is of %s", in.Name, in.DType)
		}
	}
	for range 2 {
		require.NoError(t, step.Run(context.Background()))
	}
	metadata, err := step.Trace(context.Background())
	require.NoError(t, err)
	return metadata
}

// ofRun returns the number of operations that used an allocator, the maximum amount that the
// execution held of it, and the sum of all its allocations.
func ofRun(run native.Trace, allocator string) (operations int, held, requested memory.Bytes) {
	var records []native.Record
	for _, a := range run.Allocations {
		if a.Allocator == allocator {
			operations++
			records = append(records, a.Records...)
		}
	}
	for _, r := range records {
		requested += max(r.Bytes, 0)
	}
	held, _ = native.Peak(records)
	return operations, held, requested
}

func TestReadTrace(t *testing.T) {
	if _, err := tfbind.Load(""); err != nil {
		t.Skipf("no TensorFlow (set %s): %v", tflibrary.EnvLibrary, err)
	}
	model, err := savedmodels.Builtin("digits-cnn")
	require.NoError(t, err)
	for name, config := range map[string][]byte{
		"functions inlined": nil,
		// Functions are inlined unless RewriterConfig.disable_meta_optimizer and
		// ConfigProto.Experimental.disable_functional_ops_lowering are set.
		"functions called": []byte("\x52\x05\x52\x03\x98\x01\x01\x82\x01\x03\xa8\x01\x01"),
	} {
		t.Run(name, func(t *testing.T) {
			run, err := native.ReadTrace(trace(t, model, config))
			require.NoError(t, err)
			u := run.Allocators["mklcpu"]
			operations, held, requested := ofRun(run, "mklcpu")
			// The train function is a single call in the graph.
			assert.Greater(t, operations, 30)
			assert.Greater(t, requested, memory.MiB)
			assert.Greater(t, held, 256*memory.KiB)
			assert.Less(t, held, requested)
			// The convolution's output has 32*8*8*32 floats, enough for a block of the pool.
			assert.GreaterOrEqual(t, u.Peak.Bytes, 256*memory.KiB)
			assert.GreaterOrEqual(t, u.Peak.Bytes, u.InUse.Bytes)
		})
	}

	t.Run("an executor that does not trace", func(t *testing.T) {
		config, err := gpuopts.Options{Executor: gpuopts.SingleThreaded}.ConfigProto()
		require.NoError(t, err)
		run, err := native.ReadTrace(trace(t, model, config))
		require.NoError(t, err)
		assert.Empty(t, run.Allocators)
		assert.Zero(t, run.Operations)
	})

	t.Run("image-224", func(t *testing.T) {
		model, err := savedmodels.Builtin("image-224")
		require.NoError(t, err)
		run, err := native.ReadTrace(trace(t, model, nil))
		require.NoError(t, err)
		u := run.Allocators["mklcpu"]
		assert.Greater(t, u.Peak.Bytes, 256*memory.MiB)
		assert.True(t, u.InUse.OK)
		_, held, _ := ofRun(run, "mklcpu")
		assert.Greater(t, held, 256*memory.MiB)
	})
}

func TestReadTraceAllocators(t *testing.T) {
	records := func(pairs ...int64) (r []*tfproto.AllocationRecord) {
		for i := 0; i < len(pairs); i += 2 {
			r = append(r, &tfproto.AllocationRecord{AllocMicros: pairs[i], AllocBytes: pairs[i+1]})
		}
		return r
	}
	metadata, err := proto.Marshal(&tfproto.RunMetadata{StepStats: &tfproto.StepStats{DevStats: []*tfproto.DeviceStepStats{
		{NodeStats: []*tfproto.NodeExecStats{
			// The operation listed first ended last.
			{AllStartNanos: 100, AllEndRelNanos: 50, Memory: []*tfproto.AllocatorMemoryUsed{
				{AllocatorName: "pool", AllocatorBytesInUse: 1000, AllocationRecords: records(7, 300, 9, -300)}}},
			{AllStartNanos: 110, AllEndRelNanos: 20, Memory: []*tfproto.AllocatorMemoryUsed{
				{AllocatorName: "pool", AllocatorBytesInUse: 1500,
					AllocationRecords: records(5, 400, 7, -400, 8, 100)},
				{AllocatorName: "plain", AllocationRecords: records(5, 64)}}},
			{AllStartNanos: 120},
		}},
		{NodeStats: []*tfproto.NodeExecStats{
			{Memory: []*tfproto.AllocatorMemoryUsed{{AllocatorName: "pool"}}},
		}},
	}}})
	require.NoError(t, err)
	run, err := native.ReadTrace(metadata)
	require.NoError(t, err)
	assert.Equal(t, map[string]native.Use{
		"pool":  {InUse: memory.Known(1000), Peak: memory.Known(1500)},
		"plain": {},
	}, run.Allocators)
	operations, held, requested := ofRun(run, "pool")
	assert.Equal(t, []any{3, memory.Bytes(400), memory.Bytes(800)}, []any{operations, held, requested})
	operations, held, requested = ofRun(run, "plain")
	assert.Equal(t, []any{1, memory.Bytes(64), memory.Bytes(64)}, []any{operations, held, requested})
	assert.Equal(t, 4, run.Operations)

	run, err = native.ReadTrace(nil)
	require.NoError(t, err)
	assert.Empty(t, run.Allocators)
	_, err = native.ReadTrace([]byte("no message"))
	assert.ErrorContains(t, err, "RunMetadata")
}

// Only the operations of a setting's own rewriting are counted.
func TestReadTraceRewrites(t *testing.T) {
	if _, err := tfbind.Load(""); err != nil {
		t.Skipf("no TensorFlow (set %s): %v", tflibrary.EnvLibrary, err)
	}
	model, err := savedmodels.Builtin("digits-cnn")
	require.NoError(t, err)
	read := func(o gpuopts.Options) native.Trace {
		config, err := o.ConfigProto()
		require.NoError(t, err)
		run, err := native.ReadTrace(trace(t, model, config))
		require.NoError(t, err)
		return run
	}
	plain := read(gpuopts.Options{})
	assert.Greater(t, plain.Operations, 100)
	assert.Positive(t, plain.OneDNN)
	for _, test := range []struct {
		name    string
		options gpuopts.Options
		count   func(native.Trace) int
	}{
		{"bfloat16", gpuopts.Options{Precision: gpuopts.BFloat16}, func(r native.Trace) int { return r.BFloat16Casts }},
		{"float16", gpuopts.Options{Precision: gpuopts.Float16CPU}, func(r native.Trace) int { return r.Float16Casts }},
		{"recomputation", gpuopts.Options{MemoryOptimization: "recomputation"},
			func(r native.Trace) int { return r.Recomputed }},
		{"XLA", gpuopts.Options{XLA: "on-2"}, func(r native.Trace) int { return r.XLAClusters }},
		{"no rewriting", gpuopts.Options{GrapplerOff: true}, func(r native.Trace) int { return r.Calls }},
	} {
		t.Run(test.name, func(t *testing.T) {
			assert.Zero(t, test.count(plain))
			assert.Positive(t, test.count(read(test.options)))
		})
	}
}

var update = flag.Bool("update", false, "record the traces of testdata anew")

// ReadTrace counts the operations of recorded traces of digits-cnn, in float32 and rewritten to
// bfloat16.
func TestReadTraceRecorded(t *testing.T) {
	for _, test := range []struct {
		name    string
		options gpuopts.Options
		want    native.Trace
	}{
		{"float32", gpuopts.Options{}, native.Trace{
			Operations: 318, OneDNN: 10,
			Matrix: map[dtype.DType]int{dtype.Float32: 8},
		}},
		{"bfloat16", gpuopts.Options{Precision: gpuopts.BFloat16}, native.Trace{
			Operations: 333, OneDNN: 10, BFloat16Casts: 11, Casts: 14,
			Matrix: map[dtype.DType]int{dtype.BFloat16: 8},
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			path := filepath.Join("testdata", test.name+".pb.gz")
			if *update {
				record(t, path, test.options)
			}
			file, err := os.Open(path)
			require.NoError(t, err, "run the test with -update to make the file")
			defer file.Close()
			plain, err := gzip.NewReader(file)
			require.NoError(t, err)
			metadata, err := io.ReadAll(plain)
			require.NoError(t, err)
			run, err := native.ReadTrace(metadata)
			require.NoError(t, err)
			assert.Equal(t, test.want, native.Trace{
				Operations: run.Operations, Matrix: run.Matrix,
				BFloat16Casts: run.BFloat16Casts, Float16Casts: run.Float16Casts, Casts: run.Casts,
				Recomputed: run.Recomputed, XLAClusters: run.XLAClusters, OneDNN: run.OneDNN, Calls: run.Calls,
			})
			assert.Contains(t, run.Allocators, "mklcpu")
		})
	}
}

func record(t *testing.T, path string, o gpuopts.Options) {
	t.Helper()
	model, err := savedmodels.Builtin("digits-cnn")
	require.NoError(t, err)
	config, err := o.ConfigProto()
	require.NoError(t, err)
	file, err := os.Create(path)
	require.NoError(t, err)
	packed, err := gzip.NewWriterLevel(file, gzip.BestCompression)
	require.NoError(t, err)
	_, err = packed.Write(trace(t, model, config))
	require.NoError(t, err)
	require.NoError(t, packed.Close())
	require.NoError(t, file.Close())
}
