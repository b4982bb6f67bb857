package programs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/graphdef"
	"steadyfit/internal/lab/program"
	"steadyfit/internal/tfproto"
	"steadyfit/savedmodels"
)

// compiled opens a copy of a model whose train step XLA must compile for each shape, as with
// tf.function(jit_compile=True).
//
// Auto-clustering, a setting of sessions in gpuopts, is different: it compiles a shape only when the shape repeats, and
// gives up on functions with too many shapes (TensorFlow 2.21, device_compilation_profiler.cc).
func (b *run) compiled(model *savedmodels.Model) *savedmodels.Model {
	dir := filepath.Join(b.Scratch, "compiled")
	program.Check(os.CopyFS(dir, os.DirFS(model.Dir)))
	program.Check(os.RemoveAll(filepath.Join(dir, "assets.extra"))) // with the checksum of the original
	file := filepath.Join(dir, "saved_model.pb")
	saved := &tfproto.SavedModel{}
	program.Check(proto.Unmarshal(program.Must(os.ReadFile(file)), saved))
	for _, meta := range saved.MetaGraphs {
		if !mustCompile(meta, model.Roles.Train) {
			program.Check(errors.New("the train signature calls no function that XLA can compile"))
		}
	}
	program.Check(os.WriteFile(file, program.Must(proto.Marshal(saved)), 0o600))
	return program.Must(savedmodels.Open(dir))
}

// mustCompile marks the function of a signature and its calls. The signature calls it through a wrapper, which only
// sorts inputs and outputs.
func mustCompile(meta *tfproto.MetaGraphDef, signature string) (marked bool) {
	functions := map[string]*tfproto.FunctionDef{}
	for _, f := range meta.GraphDef.GetLibrary().GetFunction() {
		functions[f.GetSignature().GetName()] = f
	}
	called := func(n *tfproto.NodeDef) *tfproto.FunctionDef { return functions[n.GetAttr()["f"].GetFunc().GetName()] }
	for _, out := range meta.SignatureDef[signature].GetOutputs() {
		op, _, _ := strings.Cut(out.GetName(), ":")
		for _, n := range meta.GraphDef.GetNode() {
			if n.GetName() != op {
				continue
			}
			for _, inner := range called(n).GetNodeDef() {
				if f := called(inner); f != nil {
					const attribute = "_XlaMustCompile"
					inner.Attr[attribute] = graphdef.Bool(true)
					f.Attr[attribute], f.Attr["_noinline"] = graphdef.Bool(true), graphdef.Bool(true)
					marked = true
				}
			}
		}
	}
	return marked
}
