package savedmodels

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/texts"
	"steadyfit/internal/tfproto"
)

// Each case hides an unsafe operation in another place than a node of the main graph, such as a
// function.
func TestUnsafeOperationsAreFoundWhereverTheyHide(t *testing.T) {
	bad := nodeDef("bad", "WriteFile", nil, nil)
	call := func(op string, a attrs) *tfproto.MetaGraphDef {
		return trainer([]*tfproto.FunctionDef{
			def("leaf", nil, nil, bad), def("fine", nil, nil),
			def("outer", nil, nil, nodeDef("c", "PartitionedCall", nil, attrs{"f": function("leaf")})),
			replaceable("cpu", nodeDef("fine", "NoOp", nil, nil)), replaceable("gpu", bad),
			// The caller gives an attribute of the operation, here the stream.
			def("open", nil, nil, nodeDef("p", "PrintV2", nil, attrs{"output_stream": {
				Value: &tfproto.AttrValue_Placeholder{Placeholder: "stream"}}})),
		}, nodeDef("call", op, nil, a))
	}
	for name, c := range map[string]struct {
		meta  *tfproto.MetaGraphDef
		found bool
	}{
		"plain node":         {trainer(nil, bad), true},
		"function":           {call("StatefulPartitionedCall", attrs{"f": function("leaf")}), true},
		"nested":             {call("PartitionedCall", attrs{"f": function("outer")}), true},
		"loop body":          {call("While", attrs{"cond": function("fine"), "body": function("leaf")}), true},
		"branch":             {call("If", attrs{"then_branch": function("fine"), "else_branch": function("leaf")}), true},
		"list of functions":  {call("Case", attrs{"branches": functions("fine", "leaf")}), true},
		"dataset function":   {call("MapDataset", attrs{"f": function("leaf")}), true},
		"unknown operation":  {call("SomeCustomOp", attrs{"whatever": function("leaf")}), true},
		"called by own name": {call("leaf", nil), true},
		"missing function":   {call("PartitionedCall", attrs{"f": function("nowhere")}), false},
		"harmless":           {call("PartitionedCall", attrs{"f": function("fine")}), false},
		"replaced function":  {call("PartitionedCall", attrs{"f": function("cpu")}), true},
		"open attribute":     {call("PartitionedCall", attrs{"f": function("open")}), true},
		"gradient":           {call("SymbolicGradient", attrs{"f": function("fine")}), true},
		"unknown alone":      {call("SomeCustomOp", nil), true},
		"file as memory":     {call("ImmutableConst", attrs{"memory_region_name": text("/etc/passwd")}), true},
		"message":            {call("DecodeProtoV2", attrs{"descriptor_source": text("local://")}), true},
		"print to terminal":  {trainer(nil, nodeDef("p", "PrintV2", nil, attrs{"output_stream": text("stderr")})), false},
		"print to a file": {trainer(nil, nodeDef("p", "PrintV2", nil, attrs{"output_stream": text("file:///tmp/x")})),
			true},
	} {
		t.Run(name, func(t *testing.T) {
			err := read(t, c.meta).CheckTrainable(false)
			if c.found {
				require.ErrorIs(t, err, ErrUnsafeOps)
			} else {
				require.NoError(t, err)
			}
		})
	}
}

func replaceable(name string, nodes ...*tfproto.NodeDef) *tfproto.FunctionDef {
	f := def(name, nil, nil, nodes...)
	f.Attr = attrs{"api_implements": text("layer")}
	return f
}

func TestUnknownOperation(t *testing.T) {
	m := read(t, trainer(nil, nodeDef("twice", "SomeCustomOp", nil, nil)))
	require.Equal(t, []Problem{{failure, codeUnsafeOp, "SomeCustomOp",
		"SomeCustomOp is not an operation that steadyfit knows: run by signature train, at twice", unsafeFix}}, m.Problems)
}

func TestUnreachedOperationsAreNotReported(t *testing.T) {
	meta := trainer([]*tfproto.FunctionDef{def("unused", nil, nil, nodeDef("w", "WriteFile", nil, nil))})
	meta.GraphDef.Node = append(meta.GraphDef.Node, nodeDef("w", "WriteFile", nil, nil))
	require.Empty(t, read(t, meta).Problems)
}

func TestUnsafeOperationsOutsideTraining(t *testing.T) {
	meta := trainer(nil)
	meta.GraphDef.Node = append(meta.GraphDef.Node, nodeDef("w", "ReadFile", nil, nil))
	meta.SignatureDef["dump"] = &tfproto.SignatureDef{Outputs: infos{"y": info("w:0", tfproto.DataType_DT_STRING)}}
	m := read(t, meta)
	require.Equal(t, []string{"warning unsafe-op ReadFile"}, brief(m.Problems))
	require.Contains(t, m.Problems[0].Message, "run by signature dump, at w")
	require.NoError(t, m.CheckTrainable(false))

	// The same operations run at load, through the init signature of TensorFlow 2 or the
	// collection of TensorFlow 1.
	meta = trainer(nil)
	meta.GraphDef.Node = append(meta.GraphDef.Node, nodeDef("w", "ReadFile", nil, nil))
	meta.SignatureDef[initSignature] = &tfproto.SignatureDef{Outputs: infos{initSignature: info("w", 0)}}
	m = read(t, meta)
	require.ErrorIs(t, m.CheckTrainable(false), ErrUnsafeOps)
	require.Contains(t, m.Problems[0].Message, "run by loading the model")
	require.Len(t, m.Signatures, 1, "it is no signature to call")

	delete(meta.SignatureDef, initSignature)
	require.Empty(t, read(t, meta).Problems)
	meta.CollectionDef = map[string]*tfproto.CollectionDef{"legacy_init_op": {
		Kind: &tfproto.CollectionDef_NodeList_{NodeList: &tfproto.CollectionDef_NodeList{Value: []string{"w"}}}}}
	require.ErrorIs(t, read(t, meta).CheckTrainable(false), ErrUnsafeOps)
}

func TestSaverMayDoNothingButSave(t *testing.T) {
	meta := trainer(nil)
	meta.GraphDef.Node = append(meta.GraphDef.Node, nodeDef("w", "WriteFile", nil, nil))
	for _, n := range meta.GraphDef.Node {
		if n.Name == "saved" {
			n.Input = append(n.Input, "^w")
		}
	}
	m := read(t, meta)
	require.Equal(t, []string{"error unsafe-op WriteFile"}, brief(m.Problems))
	require.Contains(t, m.Problems[0].Message, "the model's saver")
}

// A vocabulary may be read from an asset of the model, whose path arrives directly or through a variable.
func TestVocabularyAssets(t *testing.T) {
	type nodes = []*tfproto.NodeDef
	ofText := attrs{"dtype": {Value: &tfproto.AttrValue_Type{Type: tfproto.DataType_DT_STRING}}}
	assign := func(name, value string) *tfproto.NodeDef {
		return nodeDef(name, "AssignVariableOp", []string{"path", value}, ofText)
	}
	stored := nodes{nodeDef("value", "ReadVariableOp", []string{"path", "^store"}, ofText), assign("store", "vocabulary")}
	elsewhere := nodeDef("c", "Const", nil, attrs{"value": constant("/etc/passwd")})
	same := def("same", []string{"s"}, []string{"s"})
	call := func(op, input string, a attrs) nodes { return nodes{nodeDef("call", op, []string{input, input}, a)} }
	for name, c := range map[string]struct {
		asset string // the value that TensorFlow sets
		file  string // the value that is the path of the table
		nodes nodes
		funcs []*tfproto.FunctionDef
		train bool   // the table is filled in a step instead of at load
		path  string // of the asset; default vocabulary.txt
		safe  bool
	}{
		"asset":             {asset: "vocabulary:0", file: "vocabulary", safe: true},
		"another file":      {asset: "vocabulary:0", file: "elsewhere"},
		"outside of assets": {asset: "vocabulary:0", file: "vocabulary", path: "../../passwd"},
		"another result":    {asset: "vocabulary:1", file: "vocabulary"},
		// TensorFlow sets the value only while it loads the model.
		"constant":           {asset: "elsewhere:0", file: "elsewhere"},
		"variable":           {asset: "vocabulary:0", file: "value", nodes: stored, safe: true},
		"variable in a step": {asset: "vocabulary:0", file: "value", nodes: stored, train: true, safe: true},
		"another value": {asset: "vocabulary:0", file: "value",
			nodes: append(slices.Clone(stored), assign("again", "elsewhere"))},
		"another handle": {asset: "vocabulary:0", file: "value", nodes: stored, funcs: []*tfproto.FunctionDef{
			def("unused", []string{"r", "s"}, nil, nodeDef("a", "AssignVariableOp", []string{"r", "s"}, ofText))}},
		"changed by a loop": {asset: "vocabulary:0", file: "vocabulary",
			nodes: call("While", "vocabulary", attrs{"cond": function("same"), "body": function("body")}),
			funcs: []*tfproto.FunctionDef{same, def("body", []string{"s"}, []string{"c:output:0"}, elsewhere,
				nodeDef("init", "InitializeTableFromTextFileV2", []string{"s", "s"}, nil))}},
		"first value of a loop": {asset: "vocabulary:0", file: "call",
			nodes: append(call("ReduceDataset", "elsewhere", attrs{"f": function("f")}), stored...),
			funcs: []*tfproto.FunctionDef{def("f", []string{"r"}, []string{"v:value:0"},
				nodeDef("v", "ReadVariableOp", []string{"r"}, ofText))}},
		"result of a function": {asset: "vocabulary:0", file: "call",
			nodes: call("PartitionedCall", "vocabulary", attrs{"f": function("f")}),
			funcs: []*tfproto.FunctionDef{def("f", []string{"s"}, []string{"c:output:0"}, elsewhere)}},
		"argument of a function": {asset: "vocabulary:0", file: "call",
			nodes: call("PartitionedCall", "vocabulary", attrs{"f": function("same")}),
			funcs: []*tfproto.FunctionDef{same}, safe: true},
	} {
		t.Run(name, func(t *testing.T) {
			table := nodeDef("init", "InitializeTableFromTextFileV2", []string{"table", c.file}, nil)
			for _, n := range c.nodes {
				table.Input = append(table.Input, "^"+n.Name)
			}
			var extra nodes
			if c.train {
				extra = nodes{table}
			}
			meta := trainer(c.funcs, extra...)
			meta.GraphDef.Node = append(append(meta.GraphDef.Node, nodeDef("vocabulary", "Placeholder", nil, nil),
				nodeDef("elsewhere", "Const", nil, attrs{"value": constant("/etc/passwd")}),
				nodeDef("path", "VarHandleOp", nil, attrs{"shared_name": text("path")}),
				nodeDef("table", "HashTableV2", nil, nil)), c.nodes...)
			if !c.train {
				meta.GraphDef.Node = append(meta.GraphDef.Node, table)
				meta.SignatureDef[initSignature] = &tfproto.SignatureDef{Outputs: infos{initSignature: info("init", 0)}}
			}
			meta.AssetFileDef = []*tfproto.AssetFileDef{{TensorInfo: info(c.asset, tfproto.DataType_DT_STRING),
				Filename: cmp.Or(c.path, "vocabulary.txt")}}
			require.NotEqual(t, c.safe, errors.Is(read(t, meta).CheckTrainable(false), ErrUnsafeOps))
		})
	}
}

func TestVariablesAreFollowedThrough(t *testing.T) {
	slot := nodeDef("slot", "VarHandleOp", nil, attrs{"shared_name": text("opt/slot")})
	use := def("use", []string{"r"}, nil, nodeDef("u", "ReadVariableOp", []string{"r"}, nil))
	give := def("give", []string{"r", "s"}, []string{"s", "i:output:1"},
		nodeDef("i", "IdentityN", []string{"s", "r"}, nil))
	inside := def("inside", nil, nil, nodeDef("h", "VarHandleOp", nil, attrs{"shared_name": text("opt/slot")}),
		nodeDef("u", "ReadVariableOp", []string{"h:resource:0"}, nil))
	loop := def("loop", []string{"n", "r"}, []string{"n", "r"},
		nodeDef("c", "PartitionedCall", []string{"r"}, attrs{"f": function("use")}))
	funcs := []*tfproto.FunctionDef{use, give, inside, loop}
	for name, c := range map[string]struct {
		meta *tfproto.MetaGraphDef
		want []string // variables without a value
	}{
		"identity": {trainer(funcs, slot, nodeDef("i", "Identity", []string{"slot"}, nil),
			nodeDef("u", "ResourceApplyMomentum", []string{"v", "i"}, nil)), []string{"opt/slot"}},
		"argument": {trainer(funcs, slot, nodeDef("c", "StatefulPartitionedCall", []string{"slot"},
			attrs{"f": function("use")})), []string{"opt/slot"}},
		"loop": {trainer(funcs, slot, nodeDef("c", "While", []string{"v", "slot"},
			attrs{"cond": function("loop"), "body": function("loop")})), []string{"opt/slot"}},
		"branch": {trainer(funcs, slot, nodeDef("c", "If", []string{"sum", "slot"},
			attrs{"then_branch": function("use"), "else_branch": function("use")})), []string{"opt/slot"}},
		"result": {trainer(funcs, slot, nodeDef("c", "PartitionedCall", []string{"v", "slot"}, attrs{"f": function("give")}),
			nodeDef("u", "ReadVariableOp", []string{"c:0"}, nil)), []string{"opt/slot"}},
		"the other result": {trainer(funcs, slot, nodeDef("c", "PartitionedCall", []string{"v", "slot"},
			attrs{"f": function("give")}),
			nodeDef("u", "ReadVariableOp", []string{"c:1"}, nil)), nil},
		"made in a function": {trainer(funcs, nodeDef("c", "PartitionedCall", nil, attrs{"f": function("inside")})),
			[]string{"opt/slot"}},
		"a second handle": {trainer(funcs, nodeDef("again", "VarHandleOp", nil, attrs{"shared_name": text("v")}),
			nodeDef("u", "ReadVariableOp", []string{"again"}, nil)), nil},
		"another container": {trainer(funcs, nodeDef("again", "VarHandleOp", nil,
			attrs{"shared_name": text("v"), "container": text("c")}),
			nodeDef("u", "ReadVariableOp", []string{"again"}, nil)), []string{"v"}},
		"captured by a dataset": {trainer(funcs, slot, nodeDef("c", "MapDataset", []string{"sum", "slot"},
			attrs{"f": function("use")})), []string{"opt/slot"}},
		"only assigned": {trainer(funcs, slot, nodeDef("u", "AssignVariableOp", []string{"slot", "sum"}, nil)), nil},
		"asked for first": {trainer(funcs, slot, nodeDef("t", "VarIsInitializedOp", []string{"slot"}, nil),
			nodeDef("u", "ReadVariableOp", []string{"slot"}, nil)), nil},
		"not used": {trainer(funcs, slot), nil},
		"cycle of nodes": {trainer(funcs, nodeDef("m", "Merge", []string{"slot", "n"}, nil),
			nodeDef("n", "NextIteration", []string{"m"}, nil), slot,
			nodeDef("u", "ReadVariableOp", []string{"n"}, nil)), []string{"opt/slot"}},
		"input that is not there": {trainer(funcs, nodeDef("u", "ReadVariableOp", []string{"gone", "gone:7", "^gone", ""},
			nil)), nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := read(t, c.meta)
			var message string
			for _, p := range m.Problems {
				if p.Code == codeOptimizerNotRestored {
					message = p.Message
				}
			}
			if c.want == nil {
				require.Empty(t, message)
				return
			}
			for _, v := range c.want {
				require.Contains(t, message, "training uses: "+v)
			}
		})
	}
}

// TensorFlow would crash or hang when it loads these models.
func TestEndlessCalls(t *testing.T) {
	calls := func(name string, to ...string) *tfproto.FunctionDef {
		var nodes []*tfproto.NodeDef
		for i, f := range to {
			nodes = append(nodes, nodeDef(fmt.Sprint("c", i), "PartitionedCall", nil, attrs{"f": function(f)}))
		}
		return def(name, nil, nil, nodes...)
	}
	levels := func(n, times int) (list []*tfproto.FunctionDef) {
		for i := range n {
			list = append(list, calls(fmt.Sprint("f", i), slices.Repeat([]string{fmt.Sprint("f", i+1)}, times)...))
		}
		return append(list, def(fmt.Sprint("f", n), nil, nil, nodeDef("n", "NoOp", nil, nil)))
	}
	for name, c := range map[string]struct {
		funcs []*tfproto.FunctionDef
		first string // the functions in the error; empty if there is none
	}{
		"itself":      {[]*tfproto.FunctionDef{calls("f0", "f0")}, "f0 calls f0 calls f0 calls f0"},
		"each other":  {[]*tfproto.FunctionDef{calls("f0", "g"), calls("g", "f0")}, "f0 calls g calls f0 calls g"},
		"64 levels":   {levels(63, 1), ""},
		"65 levels":   {levels(64, 1), "f0 calls f1 calls f2 calls f3"},
		"5000 levels": {levels(5000, 1), "f0 calls f1 calls f2 calls f3"},
		"16 twice":    {levels(16, 2), ""},
		"40 twice":    {levels(40, 2), "calls f"},
		"not called":  {append(levels(1, 1), calls("g", "g")), ""},
		"known parts": {append(levels(59, 1), calls("a", "b"), calls("b", "c"), calls("c", "d"), calls("d", "f0")), ""},
		"known parts, too deep": {append(levels(62, 1), calls("a", "f0", "b"), calls("b", "c"), calls("c", "f0")),
			"a calls b calls c calls f0"},
	} {
		t.Run(name, func(t *testing.T) {
			main := "f0"
			if strings.HasPrefix(name, "known parts") {
				main = "a"
			}
			meta := trainer(c.funcs, nodeDef("call", "PartitionedCall", nil, attrs{"f": function(main)}))
			data, err := proto.Marshal(&tfproto.SavedModel{MetaGraphs: []*tfproto.MetaGraphDef{meta}})
			require.NoError(t, err)
			_, err = parse("byhand", data, nil)
			if c.first == "" {
				require.NoError(t, err)
			} else {
				require.ErrorIs(t, err, ErrNotSavedModel)
				require.ErrorContains(t, err, c.first)
			}
		})
	}
}

func TestNoUsableSaver(t *testing.T) {
	meta := trainer(nil)
	meta.SaverDef.RestoreOpName = "gone"
	m := read(t, meta)
	require.Nil(t, m.Saver)
	require.Equal(t, []string{"error optimizer-not-restored train", "warning no-saver"}, brief(m.Problems))
	require.Contains(t, m.Problems[1].Message, "names gone as the operation that restores, but the graph does not have it")
	meta.SaverDef = nil
	require.Nil(t, read(t, meta).Saver)
}

func TestUnfitVariantsAreNotUsed(t *testing.T) {
	sig := func(in infos, out infos) *tfproto.SignatureDef {
		return &tfproto.SignatureDef{Inputs: in, Outputs: out}
	}
	loss := infos{"loss": info("loss:0", float)}
	x := infos{"x": info("x:0", float, -1, 3)}
	for name, c := range map[string]struct {
		add  map[string]*tfproto.SignatureDef
		want []string
		says string
	}{
		"train_n of the same rank": {map[string]*tfproto.SignatureDef{"train_n": sig(x, loss)},
			[]string{"warning unusable-signature train_n"}, "its input x is [?,3]"},
		"twin of open shape": {map[string]*tfproto.SignatureDef{"train_xla": sig(x, loss)},
			[]string{"warning unusable-signature train_xla"}, "no fixed shape"},
		"twin of another type": {map[string]*tfproto.SignatureDef{"train_xla": sig(infos{"x": info("x:0",
			tfproto.DataType_DT_INT32, 4, 3)}, loss)},
			[]string{"warning unusable-signature train_xla"}, "its input x is int32"},
		"evaluate without the input": {map[string]*tfproto.SignatureDef{"evaluate": sig(infos{"z": info("x:0", float, -1, 3)},
			loss)},
			[]string{"warning unusable-signature evaluate"}, "it has no input x"},
		"gradients without apply": {map[string]*tfproto.SignatureDef{"gradients": sig(x, loss)},
			[]string{"warning unusable-signature gradients"}, "no signature apply"},
		"apply without gradients": {map[string]*tfproto.SignatureDef{"apply": sig(nil, loss)},
			[]string{"warning unusable-signature apply"}, "no signature gradients"},
		"apply that takes data": {map[string]*tfproto.SignatureDef{"accumulate": sig(x, loss), "apply": sig(x, loss)},
			[]string{"warning unusable-signature apply"}, "it takes data: x"},
		"rate of another type": {map[string]*tfproto.SignatureDef{"set_learning_rate": sig(infos{"learning_rate": info("x:0",
			tfproto.DataType_DT_INT32)}, loss)},
			[]string{"warning unusable-signature set_learning_rate"}, "one float scalar"},
		"tensor that is not there": {map[string]*tfproto.SignatureDef{"predict": sig(infos{"x": info("gone:0", float, -1, 3)},
			infos{"y": info("x:0", float)})},
			[]string{"warning missing-tensor predict.x"}, "the tensor gone:0"},
		"sparse": {map[string]*tfproto.SignatureDef{"predict": sig(infos{"x": {Encoding: &tfproto.TensorInfo_CooSparse_{CooSparse: &tfproto.TensorInfo_CooSparse{}}, Dtype: float}}, infos{"y": info("x:0", float)})},
			[]string{"warning sparse-input predict.x"}, "sparse"},
		"loss that is no scalar": {map[string]*tfproto.SignatureDef{"train": sig(x, infos{"loss": info("loss:0", float, -1)})},
			[]string{"error no-train-signature train"}, "must be a float scalar, but is float32 [?]"},
		"train gone": {map[string]*tfproto.SignatureDef{"train": nil, "learn_": sig(x, loss)},
			[]string{"error no-train-signature"}, "there are learn_"},
	} {
		t.Run(name, func(t *testing.T) {
			meta := trainer(nil)
			for k, v := range c.add {
				if meta.SignatureDef[k] = v; v == nil {
					delete(meta.SignatureDef, k)
				}
			}
			m := read(t, meta)
			require.Equal(t, c.want, brief(m.Problems))
			require.Contains(t, m.Problems[0].Message, c.says)
		})
	}
	meta := trainer(nil)
	meta.SignatureDef["accumulate"], meta.SignatureDef["apply"] = sig(x, loss), sig(nil, loss)
	m := read(t, meta)
	require.Equal(t, Roles{Train: "train", Gradients: "accumulate", Apply: "apply"}, m.Roles)
	require.Empty(t, m.Problems)
}

// Control characters in names must not reach a terminal.
func TestTextIsSafeForTerminals(t *testing.T) {
	meta := trainer(nil, nodeDef("esc\x1b[2J\nfake line", "WriteFile", nil, nil))
	meta.SignatureDef["a\x1b]0;title\x07"] = &tfproto.SignatureDef{MethodName: "m\r\n",
		Outputs: infos{"\u202ey": info("x\x00:0", float)}}
	meta.MetaInfoDef.Tags = []string{"serve", "\x9b31m"}[:1]
	meta.MetaInfoDef.TensorflowVersion = "2\x1b[0m"
	m := read(t, meta)
	var out bytes.Buffer
	require.NoError(t, m.WriteText(&out))
	out.WriteString(m.CheckTrainable(false).Error())
	for _, r := range out.String() {
		require.True(t, r == '\n' || texts.Printable(string(r)) == string(r), "%q", r)
	}
	require.NotContains(t, out.String(), "\nfake line")
	require.Contains(t, out.String(), `esc\x1b[2J\nfake line`)
}

// In a chain of nodes in reverse order, each search starts again, so the work is quadratic and
// exceeds the limit.
func TestWorkIsBounded(t *testing.T) {
	const n = 2000
	meta := trainer(nil)
	last := "v"
	for i := range n {
		name := fmt.Sprintf("i%d", i)
		meta.GraphDef.Node = append(meta.GraphDef.Node, nodeDef(name, "Identity", []string{last}, nil))
		last = name
	}
	loss := meta.GraphDef.Node[11]
	require.Equal(t, "loss", loss.Name)
	for i := range n {
		name := fmt.Sprintf("u%d", i)
		in := fmt.Sprintf("i%d", n-1-i)
		meta.GraphDef.Node = append(meta.GraphDef.Node, nodeDef(name, "ReadVariableOp", []string{in}, nil))
		loss.Input = append(loss.Input, "^"+name)
	}
	g := newGraph(meta.GraphDef)
	const left = 500_000
	g.work = maxWork - left
	g.inspect("loss:0")
	require.True(t, g.exhausted(0))
	require.Less(t, g.work, maxWork+left, "it stops soon after")
}
