package tfbind_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/dtype"
	"steadyfit/memory"
	"steadyfit/tfbind"
)

// deliberateLeaks and deliberateLeakedBytes count the objects that TestLeaksAreCounted leaks on
// purpose.
var deliberateLeaks, deliberateLeakedBytes int64

func roundTrip[T tfbind.Element](values ...T) func(*testing.T) {
	return func(t *testing.T) {
		n := int64(len(values))
		x := tensor(t, values, 1, n)
		assert.Equal(t, []int64{1, n}, x.Shape())
		assert.Equal(t, len(values), tfbind.Len(x))
		assert.Equal(t, tfbind.TypeOf[T](), x.DType())
		if size := x.DType().Size(); size > 0 {
			assert.Equal(t, n*int64(size), x.Bytes())
		}
		got, err := tfbind.Values[T](x)
		require.NoError(t, err)
		assert.Equal(t, values, got)

		// Feed and fetch the values.
		d := x.DType()
		s := new(graphDef).placeholder("x", d).
			add("y", "Identity", map[string]*attr{"T": typeAttr(d)}, "x").session(t)
		out, err := s.Run(context.Background(), tfbind.Feeds{output(t, s, "x"): x}, []tfbind.Output{output(t, s, "y:0")})
		require.NoError(t, err)
		defer out.Close()
		got, err = tfbind.Values[T](out[0])
		require.NoError(t, err)
		assert.Equal(t, values, got)
		assert.Equal(t, []int64{1, n}, out[0].Shape())
	}
}

func TestTensorTypes(t *testing.T) {
	t.Run("float32", roundTrip[float32](0, -1.5, math.MaxFloat32))
	t.Run("float64", roundTrip(0, -1.5, math.MaxFloat64))
	t.Run("float16", roundTrip(dtype.NewHalf(1.5), dtype.NewHalf(-65504)))
	t.Run("bfloat16", roundTrip(dtype.NewBFloat(1.5), dtype.NewBFloat(-3e38)))
	t.Run("int8", roundTrip[int8](math.MinInt8, 0, math.MaxInt8))
	t.Run("int16", roundTrip[int16](math.MinInt16, 0, math.MaxInt16))
	t.Run("int32", roundTrip[int32](math.MinInt32, 0, math.MaxInt32))
	t.Run("int64", roundTrip[int64](math.MinInt64, 0, math.MaxInt64))
	t.Run("uint8", roundTrip[uint8](0, math.MaxUint8))
	t.Run("uint16", roundTrip[uint16](0, math.MaxUint16))
	t.Run("uint32", roundTrip[uint32](0, math.MaxUint32))
	t.Run("uint64", roundTrip[uint64](0, math.MaxUint64))
	t.Run("bool", roundTrip(true, false, true))
	t.Run("string", roundTrip("", "short", strings.Repeat("long, outside the element ", 9), "\x00\xff"))
}

func TestHalfAndBrain(t *testing.T) {
	for _, c := range []struct {
		in          float32
		half, brain uint16
	}{
		{0, 0, 0}, {1, 0x3c00, 0x3f80}, {-2, 0xc000, 0xc000},
		{65504, 0x7bff, 0x4780}, {65520, 0x7c00, 0x4780},
		{5.9604645e-8, 1, 0x3380},
		{1.00390625, 0x3c04, 0x3f80}, // halfway between two bfloat16 values: ties to even
		{1.01171875, 0x3c0c, 0x3f82},
		{float32(math.Inf(1)), 0x7c00, 0x7f80},
	} {
		assert.Equal(t, c.half, uint16(dtype.NewHalf(c.in)), "float16 of %v", c.in)
		assert.Equal(t, c.brain, uint16(dtype.NewBFloat(c.in)), "bfloat16 of %v", c.in)
	}
	nan := math.Float32frombits(0x7f800001)
	assert.True(t, math.IsNaN(float64(dtype.NewBFloat(nan).Float32())))
	assert.True(t, math.IsNaN(float64(dtype.NewHalf(nan).Float32())))
	assert.Equal(t, float32(1.0078125), dtype.NewBFloat(1.0078125).Float32())
}

func TestTensorErrors(t *testing.T) {
	for _, c := range []struct {
		name  string
		shape []int64
		n     int
	}{
		{"too few values", []int64{2, 2}, 3},
		{"too many values", []int64{2, 2}, 5},
		{"no values for a scalar", nil, 0},
		{"negative size", []int64{-1}, 1},
		{"overflow", []int64{1 << 40, 1 << 40}, 1},
		{"rank", slices.Repeat([]int64{1}, 255), 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tfbind.NewTensor(make([]float32, c.n), c.shape...)
			assert.ErrorIs(t, err, tfbind.ErrShape)
		})
	}

	assert.Len(t, tensor(t, []float32{1}, slices.Repeat([]int64{1}, 254)...).Shape(), 254)

	x := tensor(t, []float32{1, 2}, 2)
	_, err := tfbind.Values[int32](x)
	assert.ErrorIs(t, err, tfbind.ErrType)
	assert.ErrorContains(t, err, "holds float32, not int32")

	require.NoError(t, x.Close())
	require.NoError(t, x.Close())
	_, err = tfbind.Values[float32](x)
	assert.ErrorIs(t, err, tfbind.ErrClosed)

	var none *tfbind.Tensor
	assert.NoError(t, none.Close())
}

func TestEmptyTensor(t *testing.T) {
	x := tensor(t, []float32{}, 0, 3)
	assert.Equal(t, []int64{0, 3}, x.Shape())
	got, err := tfbind.Values[float32](x)
	require.NoError(t, err)
	assert.Empty(t, got)

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	require.NoError(t, step.Set(0, []float32{}, 0))
	require.NoError(t, step.Run(context.Background()))
	require.NoError(t, step.Run(context.Background()))
}

func TestGraph(t *testing.T) {
	s := variableGraph().session(t)
	g := s.Graph()
	o := output(t, s, "twice:0")
	assert.Equal(t, "twice:0", tfbind.OutputName(o))
	assert.Equal(t, tfbind.Float32, o.DType())
	assert.Equal(t, output(t, s, "twice"), o)
	assert.Zero(t, tfbind.Output{}.DType())

	require.NoError(t, g.Import(new(graphDef).placeholder("x", tfbind.Int64).bytes(t), "more"))
	assert.Equal(t, tfbind.Int64, output(t, s, "more/x").DType())

	for name, code := range map[string]error{
		"nothing": tfbind.ErrNotFound, "twice:1": tfbind.ErrNotFound,
		"twice:x": tfbind.ErrInvalidArgument, "twice:-1": tfbind.ErrInvalidArgument,
	} {
		_, err := g.Output(name)
		assert.ErrorIs(t, err, code, name)
		assert.ErrorContains(t, err, strings.Split(name, ":")[0])
	}
	assert.ErrorIs(t, g.Import([]byte("no graph"), ""), tfbind.ErrInvalidArgument)
	assert.ErrorIs(t, g.Import(new(graphDef).placeholder("x", tfbind.Int64).bytes(t), ""), tfbind.ErrInvalidArgument)
	assert.ErrorContains(t, g.Import(new(graphDef).add("a", "NoSuchOp", nil).bytes(t), ""), "NoSuchOp")
}

func TestClosedGraphAndSession(t *testing.T) {
	g, err := tfbind.NewGraph()
	require.NoError(t, err)
	require.NoError(t, g.Import(variableGraph().bytes(t), ""))
	s, err := tfbind.NewSession(g, nil)
	require.NoError(t, err)
	x, err := g.Output("x")
	require.NoError(t, err)
	twice, err := g.Output("twice")
	require.NoError(t, err)
	step, err := s.Prepare([]tfbind.Output{x}, []tfbind.Output{twice})
	require.NoError(t, err)
	require.NoError(t, step.Set(0, []float32{1}))
	require.NoError(t, step.Run(context.Background()))

	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	assert.ErrorIs(t, step.Run(context.Background()), tfbind.ErrClosed)
	_, err = s.Run(context.Background(), nil, []tfbind.Output{twice})
	assert.ErrorIs(t, err, tfbind.ErrClosed)
	_, err = s.Prepare(nil, []tfbind.Output{twice})
	assert.ErrorIs(t, err, tfbind.ErrClosed)
	_, err = s.Devices()
	assert.ErrorIs(t, err, tfbind.ErrClosed)

	require.NoError(t, step.Close())
	require.NoError(t, step.Close())
	assert.ErrorIs(t, step.Run(context.Background()), tfbind.ErrClosed)
	assert.ErrorIs(t, step.Set(0, []float32{1}), tfbind.ErrClosed)

	require.NoError(t, g.Close())
	require.NoError(t, g.Close())
	_, err = g.Output("x")
	assert.ErrorIs(t, err, tfbind.ErrClosed)
	_, err = tfbind.NewSession(g, nil)
	assert.ErrorIs(t, err, tfbind.ErrClosed)
	assert.Equal(t, ":0", tfbind.OutputName(twice))
	assert.Zero(t, twice.DType())
}

func TestDevices(t *testing.T) {
	devices, err := variableGraph().session(t).Devices()
	require.NoError(t, err)
	require.NotEmpty(t, devices)
	assert.Equal(t, "CPU", devices[0].Type)
	assert.Contains(t, devices[0].Name, "device:CPU:0")
}

func TestRunErrors(t *testing.T) {
	ctx := context.Background()
	s := variableGraph().session(t)
	other := variableGraph().session(t)
	x, twice := output(t, s, "x"), output(t, s, "twice")
	one := tensor(t, []float32{1})

	_, err := s.Run(ctx, nil, []tfbind.Output{twice})
	assert.ErrorIs(t, err, tfbind.ErrInvalidArgument)
	assert.ErrorContains(t, err, "must feed a value")
	_, err = s.Run(ctx, tfbind.Feeds{x: tensor(t, []int32{1})}, []tfbind.Output{twice})
	assert.ErrorIs(t, err, tfbind.ErrType)
	assert.ErrorContains(t, err, "feed x:0: wrong element type: expected float32, got int32")
	_, err = s.Run(ctx, tfbind.Feeds{x: nil}, []tfbind.Output{twice})
	assert.ErrorIs(t, err, tfbind.ErrNotFed)
	_, err = s.Run(ctx, tfbind.Feeds{x: one}, []tfbind.Output{output(t, other, "twice")})
	assert.ErrorContains(t, err, "another graph")
	_, err = s.Run(ctx, tfbind.Feeds{output(t, other, "x"): one}, []tfbind.Output{twice})
	assert.ErrorContains(t, err, "another graph")
	_, err = s.Run(ctx, tfbind.Feeds{x: one}, []tfbind.Output{{}})
	assert.ErrorIs(t, err, tfbind.ErrInvalidArgument)
	_, err = s.Run(ctx, tfbind.Feeds{x: one}, nil, tfbind.RunOptions{Targets: []string{"nothing"}})
	assert.ErrorIs(t, err, tfbind.ErrNotFound)
	_, err = s.Prepare([]tfbind.Output{x}, nil, tfbind.RunOptions{Targets: []string{"nothing"}})
	assert.ErrorIs(t, err, tfbind.ErrNotFound)
	closed := tensor(t, []float32{1})
	require.NoError(t, closed.Close())
	_, err = s.Run(ctx, tfbind.Feeds{x: closed}, []tfbind.Output{twice})
	assert.ErrorIs(t, err, tfbind.ErrClosed)

	// After these errors the session still works.
	out, err := s.Run(ctx, tfbind.Feeds{x: one}, []tfbind.Output{twice})
	require.NoError(t, err)
	defer out.Close()
	v, err := tfbind.Values[float32](out[0])
	require.NoError(t, err)
	assert.Equal(t, []float32{2}, v)

	var e *tfbind.Error
	_, err = s.Run(ctx, nil, []tfbind.Output{output(t, s, "read")})
	require.ErrorAs(t, err, &e)
	assert.ErrorIs(t, err, &tfbind.Error{Code: "FAILED_PRECONDITION"})
	assert.Equal(t, "session run", e.Op)
	assert.NotEmpty(t, e.Message)
	assert.False(t, errors.Is(err, tfbind.ErrNotFound))

	_, err = tfbind.LoadSavedModel(t.TempDir(), []string{"serve"}, nil)
	assert.ErrorIs(t, err, tfbind.ErrNotFound)
	_, err = tfbind.NewSession(s.Graph(), []byte("no ConfigProto"))
	assert.ErrorIs(t, err, tfbind.ErrInvalidArgument)
}

// The calling thread flushes denormal numbers to zero, as TensorFlow's threads do.
func TestDenormals(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	require.NoError(t, step.Set(0, []float32{1e-40}))
	callerRuns := []byte{24, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1} // inter_op_thread_pool: -1
	for _, options := range [][]byte{nil, callerRuns, nil} {
		require.NoError(t, step.SetRunOptions(options))
		require.NoError(t, step.Run(t.Context()))
		v, err := step.Float(0)
		require.NoError(t, err)
		assert.Zero(t, v, options)
	}
	tiny := math.Float32frombits(uint32(4 + os.Getpid()%2)) // unknown to the compiler
	assert.NotZero(t, tiny/2, "this thread does not flush after the step")
}

func TestStepTrace(t *testing.T) {
	ctx := context.Background()
	s := variableGraph().session(t)
	for _, options := range [][]byte{nil, {8, 0}, {8, 3, 16, 0xe0, 0xd4, 3}} { // NO_TRACE; FULL_TRACE and a timeout
		step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")},
			tfbind.RunOptions{Proto: options})
		require.NoError(t, err)
		defer step.Close()
		_, err = step.Trace(ctx)
		assert.ErrorIs(t, err, tfbind.ErrNotFed)
		require.NoError(t, step.Set(0, []float32{21}))
		metadata, err := step.Trace(ctx)
		require.NoError(t, err)
		assert.Contains(t, string(metadata), "twice")
		assert.Contains(t, string(metadata), "cpu", "the name of the allocator")
		v, err := step.Float(0)
		require.NoError(t, err)
		assert.Equal(t, 42.0, v)
		require.NoError(t, step.Run(ctx), "a run after a traced one")

		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err = step.Trace(ended)
		assert.ErrorIs(t, err, context.Canceled)
		require.NoError(t, step.Close())
		_, err = step.Trace(ctx)
		assert.ErrorIs(t, err, tfbind.ErrClosed)
	}
}

func TestStep(t *testing.T) {
	ctx := context.Background()
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()

	_, err = step.Float(0)
	assert.ErrorIs(t, err, &tfbind.Error{Code: "FAILED_PRECONDITION"})
	assert.ErrorIs(t, step.Run(ctx), tfbind.ErrNotFed)
	assert.ErrorIs(t, step.Set(0, []float64{1}), tfbind.ErrType)
	assert.ErrorIs(t, step.Set(1, []float32{1}), tfbind.ErrInvalidArgument)
	assert.ErrorIs(t, step.Set(0, []float32{1}, 2), tfbind.ErrShape)
	assert.ErrorIs(t, step.Set(0, []float32{1}, -1), tfbind.ErrShape)
	assert.ErrorIs(t, step.Set(0, []float32{1}, slices.Repeat([]int64{1}, 255)...), tfbind.ErrShape)
	assert.ErrorIs(t, step.Set(0, []float32{1}, 1<<40), tfbind.ErrShape)
	assert.Zero(t, tfbind.Live().StepBytes, "a shape that does not fit takes no memory")
	assert.ErrorIs(t, step.Run(ctx), tfbind.ErrNotFed, "a value that failed to be set is no value")

	for i := range 3 {
		require.NoError(t, step.Set(0, []float32{float32(i)}))
		require.NoError(t, step.Run(ctx))
		v, err := step.Float(0)
		require.NoError(t, err)
		assert.Equal(t, float64(2*i), v)
	}
	require.NoError(t, step.Set(0, []float32{1, 2, 3}, 3))
	assert.Equal(t, int64(12), tfbind.Live().StepBytes)
	require.NoError(t, step.Run(ctx))
	v, err := step.Float(0)
	require.NoError(t, err)
	assert.True(t, math.IsNaN(v), "not a scalar")
	values, shape, err := step.Read(0, nil)
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 4, 6}, values)
	assert.Equal(t, []int64{3}, shape)
	_, _, err = step.Read(1, nil)
	assert.ErrorIs(t, err, tfbind.ErrInvalidArgument)
}

func TestStepTakesStrings(t *testing.T) {
	s := new(graphDef).placeholder("x", tfbind.String).
		add("y", "StringJoin", map[string]*attr{"N": {Value: intAttr(2)}, "separator": textAttr("-")}, "x", "x").session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "y")})
	require.NoError(t, err)
	defer step.Close()
	require.ErrorIs(t, step.Run(t.Context()), tfbind.ErrNotFed)
	require.ErrorIs(t, step.Set(0, []float32{1}, 1), tfbind.ErrType)
	require.ErrorIs(t, step.Set(0, []string{"a"}, 2), tfbind.ErrShape)
	for _, texts := range [][]string{{"", "a\x00b", "é"}, {strings.Repeat("long", 100), "short"}, {}} {
		require.NoError(t, step.Set(0, texts, int64(len(texts))))
		require.NoError(t, step.Run(t.Context()))
		joined, _, err := step.Read(0, nil)
		require.NoError(t, err)
		require.Len(t, joined, len(texts))
		for i, text := range texts {
			assert.Equal(t, text+"-"+text, joined.([]string)[i])
		}
	}
}

func TestStepFloatReadsEveryType(t *testing.T) {
	for _, d := range []tfbind.DType{tfbind.Float32, tfbind.Float64, tfbind.Float16, tfbind.BFloat16, tfbind.Int8,
		tfbind.Int16, tfbind.Int32, tfbind.Int64, tfbind.Uint8, tfbind.Uint16, tfbind.Uint32, tfbind.Uint64, tfbind.Bool} {
		t.Run(d.String(), func(t *testing.T) {
			s := new(graphDef).placeholder("x", tfbind.Float32).
				add("y", "Cast", map[string]*attr{"SrcT": typeAttr(tfbind.Float32), "DstT": typeAttr(d)}, "x").session(t)
			step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "y")})
			require.NoError(t, err)
			defer step.Close()
			require.NoError(t, step.Set(0, []float32{1}))
			require.NoError(t, step.Run(context.Background()))
			v, err := step.Float(0)
			require.NoError(t, err)
			assert.Equal(t, 1.0, v)
		})
	}
}

// A variable that was assigned an input shares its memory, so reusing the buffer would change
// the variable.
func TestRetainedInputIsNotOverwritten(t *testing.T) {
	ctx := context.Background()
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, nil, tfbind.RunOptions{Targets: []string{"assign"}})
	require.NoError(t, err)
	defer step.Close()
	require.NoError(t, step.Set(0, []float32{1, 2}, 2))
	require.NoError(t, step.Run(ctx))
	require.NoError(t, step.Set(0, []float32{7, 7}, 2)) // without a run

	read := func() []float32 {
		out, err := s.Run(ctx, nil, []tfbind.Output{output(t, s, "read")})
		require.NoError(t, err)
		defer out.Close()
		v, err := tfbind.Values[float32](out[0])
		require.NoError(t, err)
		return v
	}
	assert.Equal(t, []float32{1, 2}, read())
	require.NoError(t, step.Run(ctx))
	assert.Equal(t, []float32{7, 7}, read())
	require.NoError(t, step.Run(ctx), "the value of an input lasts until it is set again")
	assert.Equal(t, []float32{7, 7}, read())
}

func TestStepDoesNotAllocate(t *testing.T) {
	s := variableGraph().session(t)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	values, shape := []float32{1}, []int64{1}
	allocs := testing.AllocsPerRun(100, func() {
		if err := step.Set(0, values, shape...); err != nil {
			t.Error(err)
		}
		if err := step.Run(ctx); err != nil {
			t.Error(err)
		}
		if _, err := step.Float(0); err != nil {
			t.Error(err)
		}
	})
	assert.Zero(t, allocs)
}

// The tests below check the contract for contexts in doc.go.
func TestContextEndedBefore(t *testing.T) {
	s := variableGraph().session(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	_, err := s.Run(ctx, tfbind.Feeds{output(t, s, "x"): tensor(t, []float32{1})}, nil,
		tfbind.RunOptions{Targets: []string{"assign"}})
	assert.ErrorIs(t, err, cause)
	_, err = s.Run(context.Background(), nil, []tfbind.Output{output(t, s, "read")})
	assert.ErrorIs(t, err, &tfbind.Error{Code: "FAILED_PRECONDITION"}, "the variable was assigned")

	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	require.NoError(t, step.Set(0, []float32{1}))
	assert.ErrorIs(t, step.Run(ctx), cause)
	require.NoError(t, step.Run(context.Background()))
}

// startBlocked starts "wait" with or without Abort and returns when the run is inside
// TensorFlow. The channel gets its result.
func startBlocked(t *testing.T, s *tfbind.Session, ctx context.Context, abort bool) <-chan error {
	t.Helper()
	wait, err := s.Prepare(nil, []tfbind.Output{output(t, s, "wait")}, tfbind.RunOptions{Abort: abort})
	require.NoError(t, err)
	t.Cleanup(func() { wait.Close() })
	return runUntilBusy(t, wait, ctx)
}

func runUntilBusy(t *testing.T, step *tfbind.Step, ctx context.Context) <-chan error {
	t.Helper()
	result := make(chan error, 1)
	go func() {
		for {
			// The probe itself uses the step for a moment.
			if err := step.Run(ctx); !errors.Is(err, tfbind.ErrBusy) {
				result <- err
				return
			}
			runtime.Gosched()
		}
	}()
	for probes := 0; probes < 3; { // a single ErrBusy may come from another short use
		if _, err := step.Float(0); errors.Is(err, tfbind.ErrBusy) {
			probes++
		} else {
			probes = 0
		}
		runtime.Gosched()
	}
	return result
}

func fill(t *testing.T, s *tfbind.Session) {
	t.Helper()
	_, err := s.Run(context.Background(), tfbind.Feeds{output(t, s, "x"): tensor(t, []float32{5})}, nil,
		tfbind.RunOptions{Targets: []string{"put"}})
	require.NoError(t, err)
}

func TestFinishRunsToTheEnd(t *testing.T) {
	s := blockingGraph().session(t)
	ctx, cancel := context.WithCancel(context.Background())
	result := startBlocked(t, s, ctx, false)
	cancel()
	select {
	case err := <-result:
		t.Fatalf("the run ended with its context: %v", err)
	default:
	}
	fill(t, s)
	assert.NoError(t, <-result)
}

func TestAbortCutsARunShort(t *testing.T) {
	s := blockingGraph().session(t)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	result := startBlocked(t, s, ctx, true)
	cancel(cause)
	err := <-result
	assert.ErrorIs(t, err, tfbind.ErrInterrupted)
	assert.ErrorIs(t, err, cause)
	assert.ErrorIs(t, err, tfbind.ErrClosed)
	_, err = s.Run(context.Background(), tfbind.Feeds{output(t, s, "x"): tensor(t, []float32{1})},
		[]tfbind.Output{output(t, s, "ready")})
	assert.ErrorIs(t, err, tfbind.ErrClosed)
}

func TestDeadlineAborts(t *testing.T) {
	s := blockingGraph().session(t)
	var err error
	// On a busy machine, a short deadline may pass before the run starts.
	for timeout := 50 * time.Millisecond; timeout < time.Minute && !errors.Is(err, tfbind.ErrInterrupted); timeout *= 2 {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_, err = s.Run(ctx, nil, []tfbind.Output{output(t, s, "wait")}, tfbind.RunOptions{Abort: true})
		assert.ErrorIs(t, err, context.DeadlineExceeded)
	}
	assert.ErrorIs(t, err, tfbind.ErrInterrupted)
}

func TestAbortThatIsNotNeeded(t *testing.T) {
	s := blockingGraph().session(t)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	result := startBlocked(t, s, ctx, true)
	fill(t, s)
	require.NoError(t, <-result)
	fill(t, s) // requires an open session
}

func TestCloseEndsRuns(t *testing.T) {
	s := blockingGraph().session(t)
	result := startBlocked(t, s, context.Background(), false)
	require.NoError(t, s.Close())
	assert.ErrorIs(t, <-result, tfbind.ErrClosed)
}

func TestStepRefusesASecondUser(t *testing.T) {
	s := blockingGraph().session(t)
	wait, err := s.Prepare([]tfbind.Output{output(t, s, "x")},
		[]tfbind.Output{output(t, s, "wait"), output(t, s, "ready")})
	require.NoError(t, err)
	defer wait.Close()
	require.NoError(t, wait.Set(0, []float32{1}))
	result := runUntilBusy(t, wait, context.Background())
	assert.ErrorIs(t, wait.Run(context.Background()), tfbind.ErrBusy)
	assert.ErrorIs(t, wait.Set(0, []float32{2}), tfbind.ErrBusy)
	_, _, err = wait.Read(0, nil)
	assert.ErrorIs(t, err, tfbind.ErrBusy)
	fill(t, s)
	assert.NoError(t, <-result)
}

func TestSessionIsSafeForManyGoroutines(t *testing.T) {
	s := variableGraph().session(t)
	x, twice := output(t, s, "x"), output(t, s, "twice")
	shared := tensor(t, []float32{21})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 50 {
				out, err := s.Run(context.Background(), tfbind.Feeds{x: shared}, []tfbind.Output{twice})
				if !assert.NoError(t, err, "goroutine %d", i) {
					return
				}
				v, err := tfbind.Values[float32](out[0])
				assert.NoError(t, err)
				assert.Equal(t, []float32{42}, v)
				out.Close()
			}
		})
	}
	wg.Wait()
}

func TestCloseWhileInUse(t *testing.T) {
	for range 20 {
		g, err := tfbind.NewGraph()
		require.NoError(t, err)
		require.NoError(t, g.Import(variableGraph().bytes(t), ""))
		s, err := tfbind.NewSession(g, nil)
		require.NoError(t, err)
		x, twice := output(t, s, "x"), output(t, s, "twice")
		one, err := tfbind.NewTensor([]float32{1})
		require.NoError(t, err)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for {
					out, err := s.Run(context.Background(), tfbind.Feeds{x: one}, []tfbind.Output{twice})
					if err != nil {
						assert.ErrorIs(t, err, tfbind.ErrClosed)
						return
					}
					out.Close()
				}
			})
		}
		wg.Go(func() { one.Close() })
		wg.Go(func() { s.Close() })
		wg.Wait()
		require.NoError(t, g.Close())
	}
}

func TestLive(t *testing.T) {
	before := tfbind.Live()
	s := variableGraph().session(t)
	x, err := tfbind.NewTensor([]float32{1, 2}, 2)
	require.NoError(t, err)
	now := tfbind.Live()
	assert.Equal(t, before.Tensors+1, now.Tensors)
	assert.Equal(t, before.TensorBytes+8, now.TensorBytes)
	assert.Equal(t, before.Sessions+1, now.Sessions)
	assert.Equal(t, before.Graphs+1, now.Graphs)
	x.Close()
	out, err := s.Run(context.Background(), tfbind.Feeds{output(t, s, "x"): tensor(t, []float32{1})},
		[]tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	out.Close()
	assert.Equal(t, before.Tensors+1, tfbind.Live().Tensors, "the feed is open until the test ends")
}

// TensorFlow keeps memory for each operation of a graph and for each set of feeds and fetches.
func TestOperationsAndExecutorsAreCounted(t *testing.T) {
	before := tfbind.Live()
	counts := func() []int64 {
		now := tfbind.Live()
		return []int64{now.Operations - before.Operations, now.Executors - before.Executors}
	}
	g, err := tfbind.NewGraph()
	require.NoError(t, err)
	require.NoError(t, g.Import(new(graphDef).placeholder("x", tfbind.Float32).
		add("a", "Identity", map[string]*attr{"T": typeAttr(tfbind.Float32)}, "x").
		add("b", "Identity", map[string]*attr{"T": typeAttr(tfbind.Float32)}, "x").bytes(t), ""))
	require.Error(t, g.Import(new(graphDef).placeholder("x", tfbind.Float32).bytes(t), ""))
	s, err := tfbind.NewSession(g, nil)
	require.NoError(t, err)
	assert.Equal(t, []int64{3, 0}, counts())

	x, a, b := output(t, s, "x"), output(t, s, "a"), output(t, s, "b")
	for _, c := range []struct {
		fetches []tfbind.Output
		want    int64
	}{{[]tfbind.Output{a}, 1}, {[]tfbind.Output{a}, 1}, {[]tfbind.Output{b}, 2}, {[]tfbind.Output{a, b}, 3}} {
		out, err := s.Run(context.Background(), tfbind.Feeds{x: tensor(t, []float32{1})}, c.fetches)
		require.NoError(t, err)
		out.Close()
		assert.Equal(t, []int64{3, c.want}, counts())
	}
	step, err := s.Prepare([]tfbind.Output{x}, []tfbind.Output{a})
	require.NoError(t, err)
	defer step.Close()
	assert.Equal(t, []int64{3, 3}, counts(), "a run had the same set")
	require.NoError(t, s.Close())
	assert.Equal(t, []int64{3, 0}, counts())
	require.NoError(t, g.Close())
	assert.Equal(t, []int64{0, 0}, counts())
}

func TestLeaksAreCounted(t *testing.T) {
	before := tfbind.Live()
	lose := func() {
		_, err := tfbind.NewTensor(make([]float32, 256), 256)
		require.NoError(t, err)
	}
	lose()
	deliberateLeaks, deliberateLeakedBytes = deliberateLeaks+1, deliberateLeakedBytes+1024
	require.Eventually(t, func() bool {
		runtime.GC()
		return tfbind.Live().Leaked == before.Leaked+1
	}, time.Minute, time.Millisecond)
	now := tfbind.Live()
	assert.Equal(t, before.LeakedBytes+1024, now.LeakedBytes)
	assert.Equal(t, before.Tensors+1, now.Tensors, "a leak is counted, not freed")
	var stacks strings.Builder
	require.NoError(t, pprof.Lookup("tfbind").WriteTo(&stacks, 1))
	assert.Contains(t, stacks.String(), "TestLeaksAreCounted")
}

// Many tensors, runs, sessions and strings need a bounded amount of native memory.
//
//lane:skip gcstress (measures memory)
func TestNoNativeGrowth(t *testing.T) {
	ctx := context.Background()
	s := variableGraph().session(t)
	str := new(graphDef).placeholder("x", tfbind.String).
		add("y", "StringJoin", map[string]*attr{"N": {Value: intAttr(2)}, "separator": textAttr("")}, "x", "x").session(t)
	long := strings.Repeat("x", 1<<20)
	step, err := s.Prepare([]tfbind.Output{output(t, s, "x")}, []tfbind.Output{output(t, s, "twice")})
	require.NoError(t, err)
	defer step.Close()
	join, err := str.Prepare([]tfbind.Output{output(t, str, "x")}, []tfbind.Output{output(t, str, "y")})
	require.NoError(t, err)
	defer join.Close()
	megabyte := make([]float32, 1<<18)
	once := func(i int) {
		x, err := tfbind.NewTensor(megabyte, 1<<18)
		require.NoError(t, err)
		defer x.Close()
		out, err := s.Run(ctx, tfbind.Feeds{output(t, s, "x"): x}, []tfbind.Output{output(t, s, "twice")})
		require.NoError(t, err)
		out.Close()
		texts, err := tfbind.NewTensor([]string{long, "short"}, 2)
		require.NoError(t, err)
		defer texts.Close()
		joined, err := str.Run(ctx, tfbind.Feeds{output(t, str, "x"): texts}, []tfbind.Output{output(t, str, "y")})
		require.NoError(t, err)
		defer joined.Close()
		require.NoError(t, step.Set(0, megabyte[:1<<17+i%2], int64(1<<17+i%2)))
		require.NoError(t, step.Run(ctx))
		require.NoError(t, join.Set(0, []string{long, "short"}, 2))
		require.NoError(t, join.Run(ctx))
	}
	for i := range 50 {
		once(i)
	}
	before, err := memory.Read()
	require.NoError(t, err)
	for i := range 400 {
		once(i)
	}
	after, err := memory.Read()
	require.NoError(t, err)
	grown := int64(after.Anon.Bytes) - int64(before.Anon.Bytes)
	assert.Less(t, grown, int64(60<<20), "400 rounds that each use 6 MiB and keep nothing")
}

func ExampleNewTensor() {
	x, err := tfbind.NewTensor([]float32{1, 2, 3, 4}, 2, 2)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer x.Close()
	values, _ := tfbind.Values[float32](x)
	fmt.Println(x.DType(), x.Shape(), values)
	// Output: float32 [2 2] [1 2 3 4]
}
