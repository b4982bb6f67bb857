package savedmodels

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/tfproto"
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

// brief formats problems as "severity code subject".
func brief(problems []Problem) []string {
	out := []string{}
	for _, p := range problems {
		out = append(out, strings.TrimSpace(p.Severity+" "+p.Code+" "+p.Subject))
	}
	return out
}

// The functions below write small models that Python would not export.

type attrs map[string]*tfproto.AttrValue

func text(s string) *tfproto.AttrValue {
	return &tfproto.AttrValue{Value: &tfproto.AttrValue_S{S: []byte(s)}}
}

func function(name string) *tfproto.AttrValue {
	return &tfproto.AttrValue{Value: &tfproto.AttrValue_Func{
		Func: &tfproto.NameAttrList{Name: name}}}
}

func functions(names ...string) *tfproto.AttrValue {
	list := &tfproto.AttrValue_ListValue{}
	for _, n := range names {
		list.Func = append(list.Func, &tfproto.NameAttrList{Name: n})
	}
	return &tfproto.AttrValue{Value: &tfproto.AttrValue_List{List: list}}
}

func constant(s string) *tfproto.AttrValue {
	return &tfproto.AttrValue{Value: &tfproto.AttrValue_Tensor{
		Tensor: &tfproto.TensorProto{Dtype: tfproto.DataType_DT_STRING, StringVal: [][]byte{[]byte(s)}}}}
}

func nodeDef(name, op string, inputs []string, a attrs) *tfproto.NodeDef {
	return &tfproto.NodeDef{Name: name, Op: op, Input: inputs, Attr: a}
}

// def returns a function with resource arguments that returns the values rets.
func def(name string, args, rets []string, nodes ...*tfproto.NodeDef) *tfproto.FunctionDef {
	f := &tfproto.FunctionDef{Signature: &tfproto.OpDef{Name: name}, NodeDef: nodes,
		Ret: map[string]string{}}
	for _, a := range args {
		f.Signature.InputArg = append(f.Signature.InputArg,
			&tfproto.OpDef_ArgDef{Name: a, Type: tfproto.DataType_DT_RESOURCE})
	}
	for i, r := range rets {
		out := string(rune('a' + i))
		f.Signature.OutputArg = append(f.Signature.OutputArg,
			&tfproto.OpDef_ArgDef{Name: out, Type: tfproto.DataType_DT_RESOURCE})
		f.Ret[out] = r
	}
	return f
}

func info(op string, dtype tfproto.DataType, dims ...int64) *tfproto.TensorInfo {
	shape := &tfproto.TensorShapeProto{}
	for _, d := range dims {
		shape.Dim = append(shape.Dim, &tfproto.TensorShapeProto_Dim{Size: d})
	}
	return &tfproto.TensorInfo{Encoding: &tfproto.TensorInfo_Name{Name: op}, Dtype: dtype, TensorShape: shape}
}

type infos map[string]*tfproto.TensorInfo

const float = tfproto.DataType_DT_FLOAT

// lossOnly returns a train signature whose loss is the tensor "loss:0".
func lossOnly() map[string]*tfproto.SignatureDef {
	return map[string]*tfproto.SignatureDef{"train": {
		Inputs:  infos{"x": info("x:0", float, -1, 3)},
		Outputs: infos{"loss": info("loss:0", float)},
	}}
}

// trainer returns a metagraph that updates and saves a variable v. Its loss depends on the
// nodes in extra.
func trainer(funcs []*tfproto.FunctionDef, extra ...*tfproto.NodeDef) *tfproto.MetaGraphDef {
	loss := nodeDef("loss", "Identity", []string{"sum", "^update"}, nil)
	nodes := []*tfproto.NodeDef{
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
	return &tfproto.MetaGraphDef{
		MetaInfoDef:  &tfproto.MetaGraphDef_MetaInfoDef{Tags: []string{"serve"}},
		GraphDef:     &tfproto.GraphDef{Node: nodes, Library: &tfproto.FunctionDefLibrary{Function: funcs}},
		SaverDef:     &tfproto.SaverDef{FilenameTensorName: "file:0", SaveTensorName: "saved:0", RestoreOpName: "restored"},
		SignatureDef: lossOnly(),
	}
}

// read opens metagraphs like Open, without files beside saved_model.pb.
func read(t testing.TB, metas ...*tfproto.MetaGraphDef) *Model {
	t.Helper()
	data, err := proto.Marshal(&tfproto.SavedModel{MetaGraphs: metas})
	require.NoError(t, err)
	m, err := parse("byhand", data, nil)
	require.NoError(t, err)
	m.settle()
	return m
}
