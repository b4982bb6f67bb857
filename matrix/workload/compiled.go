package workload

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/function_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/graphdef"
	"steadyfit/savedmodels"
)

// mustCompile is the attribute that tf.function(jit_compile=True) leaves in a
// SavedModel: XLA compiles the function for each shape that it is called with.
// Auto-clustering is another thing: it compiles a shape when it comes again, and
// gives up on what has too many (TensorFlow 2.21, device_compilation_profiler.cc).
const mustCompile = "_XlaMustCompile"

// compiled writes a copy of a model into dir whose train signature must be compiled.
func compiled(model *savedmodels.Model, dir string) (*savedmodels.Model, error) {
	if err := os.CopyFS(dir, os.DirFS(model.Dir)); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "saved_model.pb")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	saved := &pb.SavedModel{}
	if err := proto.Unmarshal(text, saved); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, meta := range saved.MetaGraphs {
		if err := compileSignature(meta, model.Roles.Train); err != nil {
			return nil, fmt.Errorf("%s: signature %s: %w", model.Dir, model.Roles.Train, err)
		}
	}
	if text, err = proto.Marshal(saved); err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	return savedmodels.Open(dir)
}

var errNoFunction = errors.New("it is not a function that could be compiled")

// compileSignature marks the function that a signature calls. Between the two is a
// wrapper, which only sorts inputs and outputs.
func compileSignature(meta *pb.MetaGraphDef, name string) error {
	for _, out := range meta.SignatureDef[name].GetOutputs() {
		op, _, _ := strings.Cut(out.GetName(), ":")
		wrapper := nodeOf(meta.GraphDef.GetNode(), op)
		if wrapper == nil {
			return errNoFunction
		}
		inner := functionOf(meta.GraphDef, wrapper)
		for _, n := range inner.GetNodeDef() {
			if f := functionOf(meta.GraphDef, n); f != nil {
				n.Attr[mustCompile] = graphdef.Bool(true)
				f.Attr[mustCompile], f.Attr["_noinline"] = graphdef.Bool(true), graphdef.Bool(true)
				return nil
			}
		}
	}
	return errNoFunction
}

// nodeOf is the node of that name.
func nodeOf(nodes []*node_def_go_proto.NodeDef, name string) *node_def_go_proto.NodeDef {
	for _, n := range nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// functionOf is the function that a node calls; nil if it calls none.
func functionOf(g *graph_go_proto.GraphDef, n *node_def_go_proto.NodeDef) *function_go_proto.FunctionDef {
	if n.Op != "StatefulPartitionedCall" && n.Op != "PartitionedCall" {
		return nil
	}
	called := n.Attr["f"].GetFunc().GetName()
	for _, f := range g.GetLibrary().GetFunction() {
		if f.GetSignature().GetName() == called {
			return f
		}
	}
	return nil
}
