package workload

import (
	"context"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/attr_value_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/function_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/op_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_shape_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"steadyfit/internal/eager"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/synth"
	"steadyfit/internal/lab/worker"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

func builtin(t *testing.T, name string) *savedmodels.Model {
	t.Helper()
	m, err := savedmodels.Builtin(name)
	if !slices.Contains(savedmodels.BuiltinNames(), name) {
		t.Skipf("%v: make it with make models", err)
	}
	require.NoError(t, err)
	return m
}

// curve returns the scalars of each train step on the same batches, and then those of an
// evaluation.
func curve(t *testing.T, e engine, m *savedmodels.Model, steps, batch int) (trained [][]float64, evaluated []float64) {
	t.Helper()
	s, err := synth.New(m, e.Roles().Train, 1)
	require.NoError(t, err)
	b := s.Batch(batch)
	for n := range steps {
		s.Fill(b, uint64(n))
		out := make([]float64, len(e.TrainMetrics()))
		require.NoError(t, e.Train(context.Background(), int64(n), b, out))
		trained = append(trained, out)
	}
	evaluated = make([]float64, len(e.EvaluateMetrics()))
	require.NoError(t, e.Evaluate(context.Background(), b, evaluated))
	return trained, evaluated
}

func near(t *testing.T, want, got []float64, what ...any) {
	t.Helper()
	require.Len(t, got, len(want), what...)
	for i := range want {
		assert.InDelta(t, want[i], got[i], 1e-4*math.Abs(want[i])+1e-7, what...)
	}
}

// The models have dropout, convolutions, loops, and functions that XLA compiles.
func TestEagerTrainsTheSame(t *testing.T) {
	for name, c := range map[string]struct{ steps, batch int }{
		"digits-cnn": {40, 32}, "digits": {40, 32}, "dense-100-64-1": {40, 32}, "dense-784-10": {40, 32},
		"dropout-200-512-256-1": {40, 64}, "lstm": {10, 32}, "image-224": {4, 8},
	} {
		t.Run(name, func(t *testing.T) {
			m := builtin(t, name)
			before := tfbind.Live()
			s, err := compileAndOpen(context.Background(), m, session.Options{})
			require.NoError(t, err)
			trained, evaluated := curve(t, s, m, c.steps, c.batch)
			metrics, evaluations := s.TrainMetrics(), s.EvaluateMetrics()
			require.NoError(t, s.Close())

			e, err := newEagerEngine(m, session.Options{})
			require.NoError(t, err)
			assert.Equal(t, metrics, e.TrainMetrics())
			assert.Equal(t, evaluations, e.EvaluateMetrics())
			got, gotEvaluated := curve(t, e, m, c.steps, c.batch)
			for n := range trained {
				near(t, trained[n], got[n], "step %d", n+1)
			}
			near(t, evaluated, gotEvaluated, "evaluation")
			require.NoError(t, e.Close())
			assert.Equal(t, before, tfbind.Live())
		})
	}
}

// Only the handles of variables outlive a step.
func TestEagerKeepsNoValues(t *testing.T) {
	m := builtin(t, "lstm")
	e, err := openEager(m, session.Options{})
	require.NoError(t, err)
	defer e.Close()
	e.train, err = e.signature(e.roles.Train)
	require.NoError(t, err)
	e.settle()
	s, err := synth.New(m, e.roles.Train, 1)
	require.NoError(t, err)
	b := s.Batch(4)
	s.Fill(b, 0)
	out := make([]float64, len(e.TrainMetrics()))
	held := func() (n int) {
		for _, p := range e.programs {
			n += p.frame.Held()
		}
		return n
	}
	variables := 0
	for _, in := range slices.Concat(e.train.code, e.restore.code) {
		if in.variable {
			variables++
		}
	}
	before := tfbind.Live()
	for range 3 {
		require.NoError(t, e.Train(context.Background(), 0, b, out))
		assert.Equal(t, before, tfbind.Live())
		assert.Equal(t, variables, held())
	}
	// A step succeeds after one that failed.
	wrong := &synth.Synth{Fields: slices.Clone(s.Fields)}
	x := &wrong.Fields[0]
	x.Shape, x.Width = []int{x.Shape[0], 3}, 3*x.Shape[0]
	err = e.Train(context.Background(), 0, wrong.Batch(4), out)
	require.ErrorIs(t, err, tfbind.ErrInvalidArgument)
	require.ErrorContains(t, err, e.roles.Train+": StatefulPartitionedCall_")
	require.NoError(t, e.Train(context.Background(), 0, b, out))
	assert.Equal(t, variables, held())
	require.ErrorIs(t, e.SetLearningRate(1), savedmodels.ErrNoSignature)

	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(assert.AnError)
	require.ErrorIs(t, e.Train(ctx, 0, b, out), assert.AnError)
	require.ErrorIs(t, e.Save(ctx, ""), assert.AnError)
	require.ErrorIs(t, e.Restore(ctx, ""), assert.AnError)
}

// A session can read the state that the eager engine saved, and the eager engine can read the state
// that a session saved.
func TestEagerCheckpoints(t *testing.T) {
	m := builtin(t, "digits")
	ctx, prefix := context.Background(), filepath.Join(t.TempDir(), "state")
	s, err := compileAndOpen(ctx, m, session.Options{})
	require.NoError(t, err)
	defer s.Close()
	e, err := newEagerEngine(m, session.Options{})
	require.NoError(t, err)
	defer e.Close()
	want, _ := curve(t, s, m, 6, 8)
	curve(t, e, m, 3, 8)
	require.NoError(t, e.Save(ctx, prefix))
	require.NoError(t, s.Restore(ctx, prefix))
	_, afterE := curve(t, e, m, 0, 8)
	_, afterS := curve(t, s, m, 0, 8)
	near(t, afterS, afterE)
	require.NoError(t, e.Restore(ctx, filepath.Join(m.Dir, "variables", "variables")))
	got, _ := curve(t, e, m, 6, 8)
	near(t, want[5], got[5])
	require.ErrorIs(t, e.Restore(ctx, prefix+"none"), tfbind.ErrNotFound)
}

func node(name, op string, a graphdef.Attrs, inputs ...string) *node_def_go_proto.NodeDef {
	return &node_def_go_proto.NodeDef{Name: name, Op: op, Attr: a, Input: inputs}
}

func functionAttr(name string) *graphdef.Attr {
	return &graphdef.Attr{Value: &attr_value_go_proto.AttrValue_Func{Func: &attr_value_go_proto.NameAttrList{Name: name}}}
}

// function returns a FunctionDef with float32 arguments and results. Each pair in ret is the name
// of a result and the tensor that it returns.
func function(name string, args []string, ret [][2]string, controls []string, nodes ...*node_def_go_proto.NodeDef) *function_go_proto.FunctionDef {
	f := &function_go_proto.FunctionDef{
		Signature: &op_def_go_proto.OpDef{Name: name}, NodeDef: nodes,
		Ret: map[string]string{}, ControlRet: map[string]string{},
	}
	for _, a := range args {
		f.Signature.InputArg = append(f.Signature.InputArg, &op_def_go_proto.OpDef_ArgDef{Name: a, Type: types_go_proto.DataType_DT_FLOAT})
	}
	for _, r := range ret {
		f.Signature.OutputArg = append(f.Signature.OutputArg, &op_def_go_proto.OpDef_ArgDef{Name: r[0], Type: types_go_proto.DataType_DT_FLOAT})
		f.Ret[r[0]] = r[1]
	}
	for _, c := range controls {
		f.ControlRet[c] = c
	}
	return f
}

// eagerGraph returns an eager context over a graph of the test.
func eagerGraph(t *testing.T, main []*node_def_go_proto.NodeDef, functions ...*function_go_proto.FunctionDef) *eagerModel {
	t.Helper()
	context, err := eager.New(nil)
	require.NoError(t, err)
	e := &eagerModel{context: context}
	t.Cleanup(func() { e.Close() })
	e.compiler = &compiler{
		dir: "made up", context: context, main: main, ops: map[string]*op_def_go_proto.OpDef{},
		functions: map[string]*function_go_proto.FunctionDef{}, done: map[string]*program{},
	}
	for _, f := range functions {
		e.compiler.functions[f.GetSignature().GetName()] = f
		e.compiler.ops[f.GetSignature().GetName()] = f.GetSignature()
	}
	return e
}

// results returns the results of a program that takes x.
func results(t *testing.T, p *program, x ...float32) []float64 {
	t.Helper()
	var set tensors
	for _, v := range x {
		s, err := tfbind.NewTensor([]float32{v})
		require.NoError(t, err)
		set = append(set, s)
	}
	defer set.close()
	out := make([]float64, len(p.results))
	require.NoError(t, p.runOn(set, out))
	return out
}

func TestEagerControlFlow(t *testing.T) {
	float := graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}
	limit := node("limit", "Const", graphdef.Attrs{"dtype": graphdef.Type(tfbind.Float32), "value": {Value: tensorOf(100)}})
	e := eagerGraph(t, []*node_def_go_proto.NodeDef{
		node("loop", "StatelessWhile", graphdef.Attrs{"cond": functionAttr("below"), "body": functionAttr("double"),
			"T": graphdef.Types([]tfbind.DType{tfbind.Float32})}, "x:0"),
		node("choice", "If", graphdef.Attrs{"then_branch": functionAttr("double"), "else_branch": functionAttr("same"),
			"Tcond": graphdef.Type(tfbind.Float32), "Tin": graphdef.Types([]tfbind.DType{tfbind.Float32}), "Tout": graphdef.Types([]tfbind.DType{tfbind.Float32})}, "y", "loop:0"),
		node("direct", "double", nil, "choice", "^loop"), // a function's name as the operation
		node("x", "Placeholder", graphdef.Attrs{"dtype": graphdef.Type(tfbind.Float32)}),
		node("y", "Placeholder", graphdef.Attrs{"dtype": graphdef.Type(tfbind.Float32)}),
	},
		function("below", []string{"v"}, [][2]string{{"yes", "less:z:0"}}, nil,
			node("less", "Less", float, "v", "limit:output:0"), limit),
		function("double", []string{"v"}, [][2]string{{"twice", "sum:z:0"}}, nil, node("sum", "AddV2", float, "v", "v")),
		function("same", []string{"v"}, [][2]string{{"it", "v"}}, nil),
	)
	p, err := e.compiler.part("made up", []string{"x:0", "y:0"}, []string{"direct:0", "loop:0", "x:0"})
	require.NoError(t, err)
	assert.Equal(t, []float64{512, 128, 1}, results(t, p, 1, 1))
	assert.Equal(t, []float64{400, 200, 200}, results(t, p, 200, 0))
	for _, p := range e.compiler.programs {
		assert.Zero(t, p.frame.Held(), p.name)
	}
}

// An operation with an effect runs though no result needs it, in the order of control inputs.
func TestEagerEffects(t *testing.T) {
	of := graphdef.Attrs{"dtype": graphdef.Type(tfbind.Float32)}
	resource := function("count", []string{"v", "by"}, [][2]string{{"now", "by"}}, nil,
		node("second", "AssignAddVariableOp", of, "v", "by", "^first"),
		node("first", "AssignVariableOp", of, "v", "by"),
	)
	resource.Signature.InputArg[0].Type = types_go_proto.DataType_DT_RESOURCE
	call := graphdef.Attrs{"f": functionAttr("count"), "Tin": graphdef.Types([]tfbind.DType{20, tfbind.Float32}), "Tout": graphdef.Types([]tfbind.DType{tfbind.Float32})}
	e := eagerGraph(t, []*node_def_go_proto.NodeDef{
		node("x", "Placeholder", of),
		node("v", "VarHandleOp", graphdef.Attrs{"dtype": graphdef.Type(tfbind.Float32), "shape": graphdef.AnyShape()}),
		node("w", "VarHandleOp", graphdef.Attrs{"dtype": graphdef.Type(tfbind.Float32), "shape": graphdef.AnyShape()}),
		node("call", "StatefulPartitionedCall", call, "v", "x"),
		node("other", "StatefulPartitionedCall", call, "w", "call", "^read"),
		node("read", "ReadVariableOp", of, "v", "^call"),
		node("unneeded", "Placeholder", of),
	}, resource)
	p, err := e.compiler.part("made up", []string{"x:0"}, []string{"read:0", "call:0", "other"})
	require.NoError(t, err)
	assert.Equal(t, []float64{6, 3}, results(t, p, 3), "two variables without a name are two")
	assert.Equal(t, []float64{10, 5}, results(t, p, 5))
	assert.Equal(t, 2, p.frame.Held())
}

func tensorOf(v float32) *attr_value_go_proto.AttrValue_Tensor {
	return &attr_value_go_proto.AttrValue_Tensor{Tensor: &tensor_go_proto.TensorProto{
		Dtype: types_go_proto.DataType_DT_FLOAT, TensorShape: &tensor_shape_go_proto.TensorShapeProto{}, FloatVal: []float32{v}}}
}

func TestEagerRefuses(t *testing.T) {
	float := graphdef.Attrs{"T": graphdef.Type(tfbind.Float32)}
	param := func(t *testing.T, err error, text string) {
		t.Helper()
		var refused *worker.ParameterError
		require.ErrorAs(t, err, &refused)
		assert.Equal(t, worker.CouldNotApply, refused.Failure)
		assert.ErrorContains(t, err, text)
	}
	e := eagerGraph(t, []*node_def_go_proto.NodeDef{
		node("x", "Placeholder", graphdef.Attrs{"dtype": graphdef.Type(tfbind.Float32)}),
		node("a", "Identity", float, "b"),
		node("b", "Identity", float, "a"),
		node("dangling", "Identity", float, "nowhere:0"),
		node("again", "PartitionedCall", graphdef.Attrs{"f": functionAttr("again")}, "x"),
		node("lost", "PartitionedCall", graphdef.Attrs{"f": functionAttr("lost")}, "x"),
		node("map", "MapDefun", graphdef.Attrs{"f": functionAttr("again")}, "x"),
		node("unknown", "Unknown", nil, "x"),
	}, function("again", []string{"x"}, nil, []string{"it"}, node("it", "PartitionedCall", graphdef.Attrs{"f": functionAttr("again")}, "x")))
	for want, text := range map[string]string{
		"x:0": "x: it is a placeholder that is not fed", "a:0": "depends on itself", "dangling:0": "unknown value nowhere:0",
	} {
		_, err := e.compiler.part("made up", nil, []string{want})
		param(t, err, text)
	}
	for want, text := range map[string]string{"again": "it calls itself", "lost": "there is no such function", "map": "MapDefun takes a function"} {
		_, err := e.compiler.part("made up", []string{"x:0"}, []string{want})
		param(t, err, text)
	}
	_, err := e.compiler.part("made up", []string{"x:0"}, []string{"unknown"})
	require.ErrorIs(t, err, tfbind.ErrNotFound)
	assert.ErrorContains(t, err, "unknown: definition of Unknown")
	_, err = e.compiler.part("made up", nil, []string{"none:0"})
	param(t, err, "unknown value none:0")
}

// compileAndOpen opens the plan of a model with options.
func compileAndOpen(ctx context.Context, model *savedmodels.Model, o session.Options) (*session.Session, error) {
	plan, err := session.Compile(model, o)
	if err != nil {
		return nil, err
	}
	return session.Open(ctx, plan)
}
