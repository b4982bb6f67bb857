// Package mustcompile makes copies of SavedModels whose train signature XLA has to
// compile: what tf.function(jit_compile=True) leaves in a model, without Python. The
// workload of varying shapes under XLA is the same model with it on every runtime.
//
// It is not auto-clustering, which is a setting of a session (gpuopts) and another
// thing: that compiles a shape when it comes again, and gives up on what has too many
// (TensorFlow 2.21, device_compilation_profiler.cc).
//
// A model goes into [Copy] with a folder, and comes out as the one that was written
// there, to be loaded like any other.
package mustcompile

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

// Attribute marks a function, and each call of it, that XLA compiles for every shape
// that it is called with.
const Attribute = "_XlaMustCompile"

// ErrNoFunction: a signature that calls no function that could be compiled.
var ErrNoFunction = errors.New("it is not a function that could be compiled")

// Copy writes a copy of a model into dir whose train signature must be compiled, and
// opens it. The folder must not hold files of a model yet (fs.ErrExist); what a failure
// leaves in it is the caller's. A train signature that calls no function is
// ErrNoFunction.
func Copy(model *savedmodels.Model, dir string) (*savedmodels.Model, error) {
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
		if err := mark(meta, model.Roles.Train); err != nil {
			return nil, fmt.Errorf("%s: signature %s: %w", model.Dir, model.Roles.Train, err)
		}
	}
	if text, err = proto.Marshal(saved); err != nil {
		return nil, err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return nil, err
	}
	if model.Metadata != nil {
		// Its checksum is that of the original.
		if err := os.RemoveAll(filepath.Join(dir, "assets.extra")); err != nil {
			return nil, err
		}
	}
	return savedmodels.Open(dir)
}

// mark marks the function that a signature calls. Between the two is a wrapper, which
// only sorts inputs and outputs.
func mark(meta *pb.MetaGraphDef, name string) error {
	for _, out := range meta.SignatureDef[name].GetOutputs() {
		op, _, _ := strings.Cut(out.GetName(), ":")
		wrapper := nodeOf(meta.GraphDef.GetNode(), op)
		if wrapper == nil {
			return ErrNoFunction
		}
		inner := functionOf(meta.GraphDef, wrapper)
		for _, n := range inner.GetNodeDef() {
			if f := functionOf(meta.GraphDef, n); f != nil {
				n.Attr[Attribute] = graphdef.Bool(true)
				f.Attr[Attribute], f.Attr["_noinline"] = graphdef.Bool(true), graphdef.Bool(true)
				return nil
			}
		}
	}
	return ErrNoFunction
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
