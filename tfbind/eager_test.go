package tfbind_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/attr_value_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/op_def_go_proto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/eager"
	"steadyfit/tfbind"
)

// eagerOp describes an operation with attributes, whose outputs go to the places from 9 on.
func eagerOp(t *testing.T, name string, attrs map[string]*attr, outputs int, inputs ...int32) *eager.Op {
	t.Helper()
	return eager.NewOp(name, encoded(t, attrs), eager.Places{Inputs: inputs, First: 9, Outputs: outputs})
}

func encoded(t *testing.T, attrs map[string]*attr) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	for name, a := range attrs {
		var err error
		out[name], err = proto.Marshal(a)
		require.NoError(t, err)
	}
	return out
}

// eagerFrame returns a frame with twelve places.
func eagerFrame(t *testing.T, e eager.Context) eager.Frame {
	t.Helper()
	f, err := e.NewFrame(12)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func newEager(t *testing.T) eager.Context {
	t.Helper()
	e, err := eager.New(nil)
	require.NoError(t, err)
	t.Cleanup(func() { e.Close() })
	return e
}

func put[T tfbind.Element](t *testing.T, f eager.Frame, at int32, values ...T) {
	t.Helper()
	x := tensor(t, values, int64(len(values)))
	require.NoError(t, f.Put(at, x))
	require.NoError(t, x.Close())
}

func valueAt[T tfbind.Element](t *testing.T, f eager.Frame, at int32) []T {
	t.Helper()
	out, err := tfbind.EagerTensor(f, at)
	require.NoError(t, err)
	defer out.Close()
	v, err := tfbind.Values[T](out)
	require.NoError(t, err)
	return v
}

var eagerFloats = map[string]*attr{"T": typeAttr(tfbind.Float32)}

func TestEager(t *testing.T) {
	f := eagerFrame(t, newEager(t))
	put[float32](t, f, 0, 1, -2)
	put[float32](t, f, 1, 3, 4)
	require.NoError(t, f.Execute(eagerOp(t, "AddV2", eagerFloats, 1, 0, 1)))
	assert.Equal(t, []float32{4, 2}, valueAt[float32](t, f, 9))
	assert.Equal(t, 3, f.Held())

	list := map[string]*attr{"T": typeAttr(tfbind.Float32), "N": {Value: &attr_value_go_proto.AttrValue_I{I: 3}}}
	require.NoError(t, f.Execute(eagerOp(t, "AddN", list, 1, 0, 1, 0)))
	assert.Equal(t, []float32{5, 0}, valueAt[float32](t, f, 9))

	put(t, f, 2, "text", strings.Repeat("long ", 10))
	require.NoError(t, f.Execute(eagerOp(t, "IdentityN", map[string]*attr{"T": typesAttr(tfbind.Float32, tfbind.String)}, 2, 0, 2)))
	assert.Equal(t, []string{"text", strings.Repeat("long ", 10)}, valueAt[string](t, f, 10))
	require.NoError(t, f.Drop(0, 1, 2, 9, 10, 11))
	assert.Zero(t, f.Held())
}

// An output reuses the memory of an input only if the input is dropped and its memory is not
// shared.
func TestEagerInPlace(t *testing.T) {
	f := eagerFrame(t, newEager(t))
	relu := func(last ...int32) *eager.Op {
		return eager.NewOp("Relu", encoded(t, eagerFloats), eager.Places{Inputs: []int32{1}, First: 9, Outputs: 1, Last: last})
	}
	negated := eager.NewOp("Neg", encoded(t, eagerFloats), eager.Places{Inputs: []int32{0}, First: 1, Outputs: 1})
	for _, c := range []struct {
		name  string
		last  []int32
		share bool
		held  int
	}{{"kept", nil, false, 3}, {"given up, but shared", []int32{1}, true, 3}, {"given up", []int32{1}, false, 2}, {"nothing is needed", []int32{0, 1, 9}, false, 0}} {
		require.NoError(t, f.Drop(0, 1, 2, 9))
		put[float32](t, f, 0, 1, -2)
		require.NoError(t, f.Execute(negated))
		if c.share {
			require.NoError(t, f.Share(1, f, 2))
		}
		require.NoError(t, f.Execute(relu(c.last...)))
		if c.share {
			assert.Equal(t, []float32{-1, 2}, valueAt[float32](t, f, 2), c.name)
			require.NoError(t, f.Drop(1))
			c.held++
		}
		if c.last == nil {
			assert.Equal(t, []float32{-1, 2}, valueAt[float32](t, f, 1), c.name)
		}
		if c.held > 0 {
			assert.Equal(t, []float32{0, 2}, valueAt[float32](t, f, 9), c.name)
			assert.Equal(t, []float32{1, -2}, valueAt[float32](t, f, 0), c.name)
		}
		if !c.share {
			assert.Equal(t, c.held, f.Held(), c.name)
		}
	}
}

func TestEagerPassing(t *testing.T) {
	e := newEager(t)
	f, g := eagerFrame(t, e), eagerFrame(t, e)
	put[int64](t, f, 0, 7)
	require.NoError(t, f.Share(0, g, 11))
	require.NoError(t, f.Move(0, f, 3))
	require.NoError(t, f.Move(3, f, 3))
	require.NoError(t, f.Share(3, f, 3))
	assert.Equal(t, []int64{7}, valueAt[int64](t, f, 3))
	assert.Equal(t, []int64{7}, valueAt[int64](t, g, 11))
	assert.Equal(t, []int{1, 1}, []int{f.Held(), g.Held()})
	require.ErrorIs(t, f.Move(0, g, 0), tfbind.ErrNotFed)
	require.ErrorIs(t, f.Share(3, g, 12), tfbind.ErrInvalidArgument)
	require.ErrorIs(t, f.Share(3, eagerFrame(t, newEager(t)), 0), tfbind.ErrInvalidArgument)
	require.NoError(t, g.Close())
	require.ErrorIs(t, f.Move(3, g, 0), tfbind.ErrClosed)
	assert.Equal(t, 1, f.Held())
}

// A variable belongs to the context and can be found by its name.
func TestEagerVariables(t *testing.T) {
	e := newEager(t)
	handle := map[string]*attr{"dtype": typeAttr(tfbind.Float32), "shape": anyShape(), "shared_name": textAttr("v")}
	of := map[string]*attr{"dtype": typeAttr(tfbind.Float32)}
	for i, name := range []string{"AssignVariableOp", "AssignAddVariableOp"} {
		f := eagerFrame(t, e)
		require.NoError(t, f.Execute(eagerOp(t, "VarHandleOp", handle, 1)))
		put(t, f, 0, float32(i+1))
		require.NoError(t, f.Execute(eagerOp(t, name, of, 0, 9, 0)))
		require.NoError(t, f.Close())
	}
	f := eagerFrame(t, e)
	require.NoError(t, f.Execute(eagerOp(t, "VarHandleOp", handle, 1)))
	require.NoError(t, f.Execute(eagerOp(t, "ReadVariableOp", of, 1, 9)))
	assert.Equal(t, []float32{3}, valueAt[float32](t, f, 9))
}

func TestEagerOpDef(t *testing.T) {
	e := newEager(t)
	text, err := e.OpDef("Unpack")
	require.NoError(t, err)
	var def op_def_go_proto.OpDef
	require.NoError(t, proto.Unmarshal(text, &def))
	require.Len(t, def.GetOutputArg(), 1)
	assert.Equal(t, "num", def.GetOutputArg()[0].GetNumberAttr())
	_, err = e.OpDef("Unpac")
	assert.ErrorIs(t, err, tfbind.ErrNotFound)
}

func TestEagerErrors(t *testing.T) {
	_, err := eager.New([]byte("no message"))
	require.ErrorIs(t, err, tfbind.ErrInvalidArgument)
	e := newEager(t)
	_, err = e.NewFrame(-1)
	require.ErrorIs(t, err, tfbind.ErrInvalidArgument)

	f := eagerFrame(t, e)
	put[float32](t, f, 0, 1, 2)
	put[float32](t, f, 1, 1, 2, 3)
	identity := func(at eager.Places) *eager.Op {
		return eager.NewOp("Identity", encoded(t, eagerFloats), at)
	}
	for _, c := range []struct {
		name    string
		op      *eager.Op
		is      error
		message string
	}{
		{"unknown", eagerOp(t, "Ad", nil, 1), tfbind.ErrNotFound, "execute Ad"},
		{"shapes", eagerOp(t, "AddV2", eagerFloats, 1, 0, 1), tfbind.ErrInvalidArgument, "execute AddV2"},
		{"attribute", eager.NewOp("AddV2", map[string][]byte{"T": []byte("no message")}, eager.Places{Inputs: []int32{0, 0}, First: 9, Outputs: 1}), tfbind.ErrInvalidArgument, "execute AddV2"},
		{"one output too few", eagerOp(t, "Identity", eagerFloats, 0, 0), tfbind.ErrInvalidArgument, "execute Identity"},
		{"one output too many", eagerOp(t, "Identity", eagerFloats, 2, 0), tfbind.ErrInvalidArgument, "it has 1 outputs, expected 2"},
		{"empty", eagerOp(t, "Identity", eagerFloats, 1, 2), tfbind.ErrNotFed, "input: place 2"},
		{"input", identity(eager.Places{Inputs: []int32{12}, Outputs: 1}), tfbind.ErrInvalidArgument, "input: place 12 of 12"},
		{"last", identity(eager.Places{Inputs: []int32{0}, Outputs: 1, Last: []int32{-1}}), tfbind.ErrInvalidArgument, "last: place -1 of 12"},
		{"outputs", identity(eager.Places{Inputs: []int32{0}, First: 12, Outputs: 1}), tfbind.ErrInvalidArgument, "1 outputs do not fit from place 12 of 12"},
	} {
		err := f.Execute(c.op)
		require.ErrorIs(t, err, c.is, c.name)
		require.ErrorContains(t, err, c.message, c.name)
		// An error does not affect the next operation.
		require.NoError(t, f.Execute(identity(eager.Places{Inputs: []int32{0}, First: 5, Outputs: 1, Last: []int32{5}})), c.name)
	}
	require.NoError(t, f.Drop(9, 10))
	assert.Equal(t, 2, f.Held())
	_, err = tfbind.EagerTensor(f, 7)
	require.ErrorIs(t, err, tfbind.ErrNotFed)
	require.ErrorIs(t, f.Drop(12), tfbind.ErrInvalidArgument)
	require.ErrorIs(t, f.Put(12, tensor(t, []float32{1})), tfbind.ErrInvalidArgument)
}

// In TensorFlow a context must outlive its values.
func TestEagerClose(t *testing.T) {
	before := tfbind.Live()
	e, err := eager.New(nil)
	require.NoError(t, err)
	f, err := e.NewFrame(1)
	require.NoError(t, err)
	put[float32](t, f, 0, 1, 2)
	live := tfbind.Live()
	assert.Equal(t, []int64{1, 1}, []int64{live.Eagers - before.Eagers, live.EagerFrames - before.EagerFrames})

	require.NoError(t, e.Close())
	require.NoError(t, e.Close())
	_, err = e.NewFrame(1)
	require.ErrorIs(t, err, tfbind.ErrClosed)
	assert.Equal(t, []float32{1, 2}, valueAt[float32](t, f, 0), "it is still there")
	assert.Equal(t, before.Eagers+1, tfbind.Live().Eagers)

	require.NoError(t, f.Close())
	require.NoError(t, f.Close())
	assert.Equal(t, before, tfbind.Live())
	_, err = tfbind.EagerTensor(f, 0)
	require.ErrorIs(t, err, tfbind.ErrClosed)
	require.ErrorIs(t, f.Drop(0), tfbind.ErrClosed)
	require.ErrorIs(t, f.Execute(eagerOp(t, "NoOp", nil, 0)), tfbind.ErrClosed)
	assert.Zero(t, f.Held())
}

// Several goroutines may use and close frames of one context.
func TestEagerConcurrently(t *testing.T) {
	e := newEager(t)
	f := eagerFrame(t, e)
	put[float32](t, f, 0, 1, 2)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			g, err := e.NewFrame(10)
			if !assert.NoError(t, err) {
				return
			}
			for range 50 {
				assert.NoError(t, f.Share(0, g, 0))
				assert.NoError(t, g.Execute(eagerOp(t, "Neg", eagerFloats, 1, 0)))
			}
			assert.NoError(t, g.Close())
		})
	}
	all.Wait()
	assert.Equal(t, 1, f.Held())
}

func TestEagerScalars(t *testing.T) {
	f := eagerFrame(t, newEager(t))
	put[float32](t, f, 0, -1.5)
	put(t, f, 1, true)
	put[int64](t, f, 2, 1, 2)
	put(t, f, 3, "1")
	for at, want := range []float64{-1.5, 1, math.NaN(), math.NaN()} {
		got, err := f.Float(int32(at))
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprint(want), fmt.Sprint(got), at)
	}
	_, err := f.Float(4)
	require.ErrorIs(t, err, tfbind.ErrNotFed)
	require.NoError(t, f.Close())
	_, err = f.Float(0)
	require.ErrorIs(t, err, tfbind.ErrClosed)
}

func TestEagerAllocatesNothing(t *testing.T) {
	f := eagerFrame(t, newEager(t))
	put[float32](t, f, 0, 1)
	op := eager.NewOp("Neg", encoded(t, eagerFloats), eager.Places{Inputs: []int32{0}, First: 9, Outputs: 1, Last: []int32{9}})
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if err := f.Execute(op); err != nil {
			t.Error(err)
		}
		if v, err := f.Float(0); err != nil || v != 1 {
			t.Error(v, err)
		}
	}))
}

// abi_check.c cannot check these prototypes because their header is C++.
func TestExperimentalPrototype(t *testing.T) {
	info, err := tfbind.Load("")
	require.NoError(t, err)
	text, err := os.ReadFile(filepath.Join(filepath.Dir(info.Library), "include/tensorflow/c/eager/c_api_experimental.h"))
	if err != nil {
		t.Skipf("no headers beside %s (make runtime fetches them, STEADYFIT_TENSORFLOW names the folder): %v", info.Library, err)
	}
	assert.Contains(t, strings.Join(strings.Fields(string(text)), " "),
		"extern void TFE_OpSetAttrValueProto(const TFE_Op* op, const char* attr_name, const void* proto, size_t proto_len, TF_Status* status);")
}
