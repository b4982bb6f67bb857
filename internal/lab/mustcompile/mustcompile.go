// Package mustcompile makes copies of SavedModels whose train signature XLA must compile.
// [Copy] marks functions in the model as tf.function(jit_compile=True) does, without Python.
// The workload with varying shapes under XLA uses such a copy on every runtime.
//
// Auto-clustering, a setting of sessions in gpuopts, is different: it compiles a shape only
// when the shape repeats, and gives up on functions with too many shapes (TensorFlow 2.21,
// device_compilation_profiler.cc).
package mustcompile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
	"steadyfit/savedmodels"
)

// Attribute marks a function and its calls, so that XLA compiles it for every shape.
const Attribute = "_XlaMustCompile"

// ErrNoFunction means that a signature calls no function.
var ErrNoFunction = errors.New("the signature calls no function that XLA can compile")

// Copy writes a copy of a model to dir and opens it. dir must have no files of a model
// (fs.ErrExist). After an error, the caller removes the files in dir. The error is
// ErrNoFunction if the train signature calls no function.
func Copy(model *savedmodels.Model, dir string) (*savedmodels.Model, error) {
	if err := os.CopyFS(dir, os.DirFS(model.Dir)); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "saved_model.pb")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	saved := &tfproto.SavedModel{}
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
		// The checksum of the original does not match the copy.
		if err := os.RemoveAll(filepath.Join(dir, "assets.extra")); err != nil {
			return nil, err
		}
	}
	return savedmodels.Open(dir)
}

// mark marks the function that a signature calls through a wrapper, which only sorts inputs and
// outputs.
func mark(meta *tfproto.MetaGraphDef, name string) error {
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

func nodeOf(nodes []*tfproto.NodeDef, name string) *tfproto.NodeDef {
	for _, n := range nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// functionOf returns the function that a node calls, or nil.
func functionOf(g *tfproto.GraphDef, n *tfproto.NodeDef) *tfproto.FunctionDef {
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
