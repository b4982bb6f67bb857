package savedmodels

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"

	"steadyfit/internal/nearest"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// initSignature is the name of the signature that runs when the model is loaded.
const initSignature = "__saved_model_init_op"

// Model is the content of a SavedModel folder, without its weights. It does not change after
// Open, and several goroutines may use it.
type Model struct {
	// Dir is the folder, as given to Open.
	Dir string
	// Tags are the tags of the metagraph in use, as in ["serve"]. They are needed to load the
	// model.
	Tags []string
	// Signatures are sorted by name. The signature that runs at load is not included.
	Signatures []Signature
	// Saver saves and restores the variables; nil if the model has none.
	Saver *Saver
	// Roles are the signatures chosen for each purpose.
	Roles Roles
	// Variables are the variables that a signature or the saver uses, sorted by name.
	Variables []Variable
	// Problems are sorted: errors first, then by code and subject.
	Problems []Problem
	// Metadata is the exporter's notes; nil if there are none.
	Metadata *Metadata
	// TensorFlowVersion is the exporter's version of TensorFlow, as in "2.21.0".
	TensorFlowVersion string
	// Hash is the hexadecimal SHA-256 of saved_model.pb, which has the program and the
	// signatures but not the weights.
	Hash string
	// LossOutput is the output that WithLoss renamed to loss; empty if it renamed none.
	LossOutput string

	known knowledge
	notes error // why Metadata could not be read
}

// knowledge is the result of following the graph. Roles and problems are derived from it, and
// derived again if the caller names another train signature.
type knowledge struct {
	vars      []*variable
	signature map[string]facts
	composite map[string][]composite // composite inputs by signature
	// load is what runs when the model is loaded, except for restore. save and restore are the
	// parts of the saver; empty without one.
	load, save, restore facts
	// missing are the tensors that a signature names but the graph does not have.
	missing map[string]bool
	others  [][]string // tags of the unused metagraphs
	noSaver string     // why Saver is nil
}

// Signature is a named entry point of the model.
type Signature struct {
	Name string `json:"name"`
	// Method is the signature's method name, as in "tensorflow/serving/predict".
	Method string `json:"method"`
	// Inputs and Outputs are sorted by name.
	Inputs  []Tensor `json:"inputs"`
	Outputs []Tensor `json:"outputs"`
}

// Tensor is an input or output of a signature.
type Tensor struct {
	// Name is the signature's name for it, as in "x".
	Name string
	// Op is the graph's name for it with its output index, as in "serving_default_x:0". It is
	// empty for sparse and composite tensors, which have several.
	Op    string
	DType tfbind.DType
	// Shape has -1 for an open size, and is empty for scalars. It has no meaning if
	// UnknownRank is set.
	Shape       []int64
	UnknownRank bool
}

// Saver names the parts of the graph that write and read checkpoints: feed a path prefix to
// FilenameTensor, then fetch SaveTensor or run RestoreOp.
type Saver struct {
	FilenameTensor string `json:"filename_tensor"` // "saver_filename:0"
	SaveTensor     string `json:"save_tensor"`     // "StatefulPartitionedCall_6:0"
	RestoreOp      string `json:"restore_op"`      // "StatefulPartitionedCall_7"
}

// Variable is a variable of the model.
type Variable struct {
	Name string
	// Container is TensorFlow's namespace of the name; it is nearly always empty.
	Container string
	DType     tfbind.DType
	// Shape has -1 for unknown sizes.
	Shape       []int64
	UnknownRank bool
	// Restored and Saved report whether the saver restores and saves it.
	Restored, Saved bool
	// Trained reports whether a training signature may change it.
	Trained bool
}

// Bytes returns the size of the variable's value; 0 if the model does not fix it.
func (v Variable) Bytes() int64 {
	n := int64(v.DType.Size())
	if v.UnknownRank {
		return 0
	}
	for _, d := range v.Shape {
		if d < 0 || d > 0 && n > (1<<62)/d {
			return 0
		}
		n *= d
	}
	return n
}

// Open reads the SavedModel in dir, except its weights. dir may be "builtin:NAME" for a model
// of BuiltinNames. Open needs no TensorFlow and runs nothing. A model that exceeds the limits
// on files and memory is ErrTooLarge. The error is ErrNotSavedModel if dir has no SavedModel
// or a damaged one, or if the exporter's notes have a different hash of saved_model.pb
// (Metadata.SavedModelSHA256). A model that only cannot be trained is opened, with Problems.
func Open(dir string) (*Model, error) {
	if name, ok := strings.CutPrefix(dir, BuiltinPrefix); ok {
		return Builtin(name)
	}
	data, err := readModel(dir)
	if err != nil {
		return nil, err
	}
	m, err := parse(dir, data, maxMemoryBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, modelFile), err)
	}
	if err := m.checkWeights(); err != nil {
		return nil, err
	}
	m.Metadata, m.notes = readMetadata(filepath.Join(dir, filepath.FromSlash(metadataFile)))
	if n := m.Metadata; n != nil && n.SavedModelSHA256 != "" && n.SavedModelSHA256 != m.Hash {
		return nil, fmt.Errorf("%w: %s was damaged or replaced since it was exported: its SHA-256 is %s, but %s has %s; export the model again",
			ErrNotSavedModel, filepath.Join(dir, modelFile), m.Hash, metadataFile, n.SavedModelSHA256)
	}
	m.settle()
	return m, nil
}

// WithLoss returns the model with the named output renamed to loss in the signatures that have
// no loss. It must be a float scalar of some signature, or else the error is ErrNoSignature.
// An empty name changes nothing.
func (m *Model) WithLoss(output string) (*Model, error) {
	if output == "" || output == m.LossOutput || output == OutputLoss {
		return m, nil
	}
	named := *m
	named.LossOutput = output
	named.Signatures = slices.Clone(m.Signatures)
	found := false
	for i := range named.Signatures {
		s := &named.Signatures[i]
		t := s.Output(output)
		if t == nil || t.Op == "" || len(s.DataInputs()) == 0 || s.Output(OutputLoss) != nil || !reservedOutputs[OutputLoss].fits(*t) {
			continue
		}
		found = true
		s.Outputs = slices.Clone(s.Outputs)
		s.Output(output).Name = OutputLoss
		slices.SortFunc(s.Outputs, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	}
	if !found {
		var scalars []string
		for _, s := range m.Signatures {
			if len(s.DataInputs()) > 0 && s.Output(OutputLoss) == nil {
				scalars = append(scalars, tensorNames(s.Metrics())...)
			}
		}
		reason := "every signature that takes data has an output named loss"
		if slices.Sort(scalars); len(scalars) > 0 {
			reason = "no signature has such a float scalar; there are " + enumerate(slices.Compact(scalars), 8)
		}
		return nil, &option.Error{Option: "Model.WithLoss", Value: output, Reason: reason, Fix: "correct the name, or omit it", Err: ErrNoSignature}
	}
	named.settle()
	return &named, nil
}

// parse reads the content of saved_model.pb and follows its graph.
func parse(dir string, data []byte, maxMemory int64) (*Model, error) {
	src, err := decode(data, maxMemory)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	info := src.meta.GetMetaInfoDef()
	m := &Model{
		Dir: dir, Tags: append([]string{}, info.GetTags()...),
		TensorFlowVersion: info.GetTensorflowVersion(), Hash: hex.EncodeToString(sum[:]),
	}
	for _, name := range slices.Sorted(maps.Keys(src.meta.GetSignatureDef())) {
		if def := src.meta.GetSignatureDef()[name]; name != initSignature {
			m.Signatures = append(m.Signatures, Signature{
				Name: name, Method: def.GetMethodName(),
				Inputs: tensors(def.GetInputs()), Outputs: tensors(def.GetOutputs()),
			})
		}
	}
	return m, m.gather(src)
}

// tensors converts the inputs or outputs of a signature.
func tensors(infos map[string]*pb.TensorInfo) []Tensor {
	out := []Tensor{}
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		info := infos[name]
		shape := info.GetTensorShape()
		t := Tensor{
			Name: name, Op: info.GetName(), DType: tfbind.DType(info.GetDtype()),
			UnknownRank: shape.GetUnknownRank(), Shape: []int64{},
		}
		if t.Op != "" && !strings.Contains(t.Op, ":") {
			t.Op += ":0"
		}
		for _, d := range shape.GetDim() {
			t.Shape = append(t.Shape, max(d.GetSize(), -1))
		}
		out = append(out, t)
	}
	return out
}

// gather follows the graph from everything that can run.
func (m *Model) gather(src *source) (err error) {
	g := newGraph(src.graph)
	for _, a := range src.meta.GetAssetFileDef() {
		if i := g.nodeOf(a.GetTensorInfo().GetName()); i >= 0 {
			g.asset[g.main.nodes[i].def.GetName()] = true
		}
	}
	inspect := func(to *facts, roots ...string) {
		if err == nil {
			*to, err = g.inspect(roots)
		}
	}
	k := &m.known
	*k = knowledge{vars: g.vars, signature: map[string]facts{}, composite: map[string][]composite{}, missing: map[string]bool{}, others: src.others}
	for _, s := range m.Signatures {
		var roots []string
		for _, t := range s.Outputs {
			roots = append(roots, t.Op)
		}
		for _, t := range slices.Concat(s.Inputs, s.Outputs) {
			if t.Op != "" && g.nodeOf(t.Op) < 0 {
				k.missing[t.Op] = true
			}
		}
		var f facts
		inspect(&f, roots...)
		k.signature[s.Name] = f
		if err == nil {
			k.composite[s.Name], err = g.composites(roots, src.kinds)
		}
	}
	inspect(&k.load, loadOps(src.meta)...)

	saver := src.meta.GetSaverDef()
	for _, part := range [][2]string{
		{"file name to feed", saver.GetFilenameTensorName()},
		{"tensor that saves", saver.GetSaveTensorName()},
		{"operation that restores", saver.GetRestoreOpName()},
	} {
		if part[1] == "" {
			k.noSaver = "the model does not name the " + part[0]
			return err
		}
		if g.nodeOf(part[1]) < 0 {
			k.noSaver = "the model names " + part[1] + " as the " + part[0] + ", but the graph does not have it"
			return err
		}
	}
	m.Saver = &Saver{saver.GetFilenameTensorName(), saver.GetSaveTensorName(), saver.GetRestoreOpName()}
	inspect(&k.save, m.Saver.SaveTensor)
	inspect(&k.restore, m.Saver.RestoreOp)
	return err
}

// loadOps returns the operations that TensorFlow runs when it loads the model, except for
// restoring the variables (RunInitOp in saved_model/loader.cc: the init signature, or else the
// collections of TensorFlow 1).
func loadOps(meta *pb.MetaGraphDef) []string {
	var ops []string
	for _, out := range meta.GetSignatureDef()[initSignature].GetOutputs() {
		ops = append(ops, out.GetName())
	}
	for _, key := range []string{"saved_model_main_op", "legacy_init_op", "saved_model_initializers"} {
		ops = append(ops, meta.GetCollectionDef()[key].GetNodeList().GetValue()...)
	}
	return ops
}

// Signature finds a signature by name. If there is none, the error is ErrNoSignature and lists
// the signatures of the model, the nearest name first.
func (m *Model) Signature(name string) (*Signature, error) {
	if m == nil {
		return nil, errNoModel
	}
	if i := slices.IndexFunc(m.Signatures, func(s Signature) bool { return s.Name == name }); i >= 0 {
		return &m.Signatures[i], nil
	}
	if len(m.Signatures) == 0 {
		return nil, fmt.Errorf("%s: %w: %q; the model has no signatures; export it with signatures", m.Dir, ErrNoSignature, name)
	}
	return nil, fmt.Errorf("%s: %w: %q; there are %s", m.Dir, ErrNoSignature, name,
		enumerate(nearest.Sort(name, m.signatureNames()), 10))
}

func (m *Model) signatureNames() []string {
	names := make([]string, len(m.Signatures))
	for i, s := range m.Signatures {
		names[i] = s.Name
	}
	return names
}

// find returns the signature with a name, or nil. An empty name means no signature, even if
// the model has one with that name.
func (m *Model) find(name string) *Signature {
	i := slices.IndexFunc(m.Signatures, func(s Signature) bool { return s.Name == name })
	if name == "" || i < 0 {
		return nil
	}
	return &m.Signatures[i]
}
