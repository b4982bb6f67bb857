package savedmodels

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/attr_value_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/function_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/op_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_shape_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares got with a file. If they differ, it writes got to a file beside it.
func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
		return
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run the test with -update to make the file")
	if !bytes.Equal(want, got) {
		require.NoError(t, os.WriteFile(path+".got", got, 0o644))
		require.Equal(t, string(want), string(got), "see %s.got", path)
	}
}

// models returns the names of the models written by testdata/make.py.
func models(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*/" + modelFile)
	require.NoError(t, err)
	require.NotEmpty(t, files)
	var names []string
	for _, f := range files {
		names = append(names, filepath.Base(filepath.Dir(f)))
	}
	return names
}

func open(t testing.TB, name string) *Model {
	t.Helper()
	m, err := Open(filepath.Join("testdata", name))
	require.NoError(t, err)
	return m
}

func checked(m *Model, o CheckOptions) error {
	_, err := m.CheckTrainable(o)
	return err
}

// brief formats problems as "severity code subject".
func brief(problems []Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, strings.TrimSpace(p.Severity+" "+p.Code+" "+p.Subject))
	}
	return out
}

// The functions below write small models that Python would not export.

type attrs map[string]*attr_value_go_proto.AttrValue

func text(s string) *attr_value_go_proto.AttrValue {
	return &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_S{S: []byte(s)}}
}

func function(name string) *attr_value_go_proto.AttrValue {
	return &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_Func{
		Func: &attr_value_go_proto.NameAttrList{Name: name}}}
}

func functions(names ...string) *attr_value_go_proto.AttrValue {
	list := &attr_value_go_proto.AttrValue_ListValue{}
	for _, n := range names {
		list.Func = append(list.Func, &attr_value_go_proto.NameAttrList{Name: n})
	}
	return &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_List{List: list}}
}

func constant(s string) *attr_value_go_proto.AttrValue {
	return &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_Tensor{
		Tensor: &tensor_go_proto.TensorProto{Dtype: types_go_proto.DataType_DT_STRING, StringVal: [][]byte{[]byte(s)}}}}
}

func nodeDef(name, op string, inputs []string, a attrs) *node_def_go_proto.NodeDef {
	return &node_def_go_proto.NodeDef{Name: name, Op: op, Input: inputs, Attr: a}
}

// def returns a function with resource arguments that returns the values rets.
func def(name string, args, rets []string, nodes ...*node_def_go_proto.NodeDef) *function_go_proto.FunctionDef {
	f := &function_go_proto.FunctionDef{Signature: &op_def_go_proto.OpDef{Name: name}, NodeDef: nodes,
		Ret: map[string]string{}}
	for _, a := range args {
		f.Signature.InputArg = append(f.Signature.InputArg,
			&op_def_go_proto.OpDef_ArgDef{Name: a, Type: types_go_proto.DataType_DT_RESOURCE})
	}
	for i, r := range rets {
		out := string(rune('a' + i))
		f.Signature.OutputArg = append(f.Signature.OutputArg,
			&op_def_go_proto.OpDef_ArgDef{Name: out, Type: types_go_proto.DataType_DT_RESOURCE})
		f.Ret[out] = r
	}
	return f
}

func info(op string, dtype types_go_proto.DataType, dims ...int64) *pb.TensorInfo {
	shape := &tensor_shape_go_proto.TensorShapeProto{}
	for _, d := range dims {
		shape.Dim = append(shape.Dim, &tensor_shape_go_proto.TensorShapeProto_Dim{Size: d})
	}
	return &pb.TensorInfo{Encoding: &pb.TensorInfo_Name{Name: op}, Dtype: dtype, TensorShape: shape}
}

type infos map[string]*pb.TensorInfo

const float = types_go_proto.DataType_DT_FLOAT

// lossOnly returns a train signature whose loss is the tensor "loss:0".
func lossOnly() map[string]*pb.SignatureDef {
	return map[string]*pb.SignatureDef{"train": {
		Inputs:  infos{"x": info("x:0", float, -1, 3)},
		Outputs: infos{"loss": info("loss:0", float)},
	}}
}

// trainer returns a metagraph that updates and saves a variable v. Its loss depends on the
// nodes in extra.
func trainer(funcs []*function_go_proto.FunctionDef, extra ...*node_def_go_proto.NodeDef) *pb.MetaGraphDef {
	loss := nodeDef("loss", "Identity", []string{"sum", "^update"}, nil)
	nodes := []*node_def_go_proto.NodeDef{
		nodeDef("x", "Placeholder", nil, nil),
		nodeDef("sum", "Sum", []string{"x"}, nil),
		nodeDef("v", "VarHandleOp", nil, attrs{"shared_name": text("v")}),
		nodeDef("update", "AssignSubVariableOp", []string{"v", "sum"}, nil),
		nodeDef("file", "Placeholder", nil, nil),
		nodeDef("read", "ReadVariableOp", []string{"v"}, nil),
		nodeDef("SaveV2", "SaveV2", []string{"file", "read"}, nil),
		nodeDef("saved", "Identity", []string{"file", "^SaveV2"}, nil),
		nodeDef("RestoreV2", "RestoreV2", []string{"file"}, nil),
		nodeDef("assign", "AssignVariableOp", []string{"v", "RestoreV2"}, nil),
		nodeDef("restored", "NoOp", []string{"^assign"}, nil),
		loss,
	}
	for _, n := range extra {
		nodes = append(nodes, n)
		loss.Input = append(loss.Input, "^"+n.Name)
	}
	return &pb.MetaGraphDef{
		MetaInfoDef:  &pb.MetaGraphDef_MetaInfoDef{Tags: []string{"serve"}},
		GraphDef:     &graph_go_proto.GraphDef{Node: nodes, Library: &function_go_proto.FunctionDefLibrary{Function: funcs}},
		SaverDef:     &pb.SaverDef{FilenameTensorName: "file:0", SaveTensorName: "saved:0", RestoreOpName: "restored"},
		SignatureDef: lossOnly(),
	}
}

// read opens metagraphs like Open, without files beside saved_model.pb.
func read(t testing.TB, metas ...*pb.MetaGraphDef) *Model {
	t.Helper()
	data, err := proto.Marshal(&pb.SavedModel{MetaGraphs: metas})
	require.NoError(t, err)
	m, err := parse("byhand", data)
	require.NoError(t, err)
	m.settle("")
	return m
}
