package savedmodels

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"

	"steadyfit/internal/bundle"
	"steadyfit/internal/nearest"
	"steadyfit/option"
	"steadyfit/tfbind"
)

// initSignature is how a SavedModel names what runs when it is loaded.
const initSignature = "__saved_model_init_op"

// Model is what a SavedModel folder holds, less its weights. It is not changed
// after Open and may be used from several goroutines.
type Model struct {
	// Dir is the folder, as given to Open.
	Dir string
	// Tags name the metagraph that is used, as in ["serve"]; what loading the
	// model must be told.
	Tags []string
	// Signatures are sorted by name; what runs at load is not among them.
	Signatures []Signature
	// Saver says how to save and restore the variables; nil if the model
	// cannot.
	Saver *Saver
	// Roles are the signatures chosen for each purpose.
	Roles Roles
	// Variables are the variables that a signature or the saver touches,
	// sorted by name.
	Variables []Variable
	// Problems are sorted: errors first, then by code and subject.
	Problems []Problem
	// Metadata is what the exporter noted; nil if it noted nothing.
	Metadata *Metadata
	// TensorFlowVersion is that of the exporting side, as in "2.21.0".
	TensorFlowVersion string
	// Hash is the hex SHA-256 of saved_model.pb. It covers the program and the
	// signatures, not the weights.
	Hash string
	// LossOutput is the output that WithLoss made the loss; "" if it made none.
	LossOutput string

	known knowledge
	notes error // why Metadata could not be read
}

// knowledge is what following the graph gave; roles and problems are drawn from
// it, again when the caller names another train signature.
type knowledge struct {
	vars      []*variable
	signature map[string]facts
	composite map[string][]composite // inputs by signature
	// load is what runs when the model is loaded, besides restore; save and
	// restore are the saver's parts, empty without one.
	load, save, restore facts
	// missing are the tensors that a signature names and the graph lacks.
	missing map[string]bool
	others  [][]string // tags of the metagraphs that are not used
	noSaver string     // why Saver is nil
}

// Signature is a named entry point of the model.
type Signature struct {
	Name string `json:"name"`
	// Method is the kind of signature, as in "tensorflow/serving/predict".
	Method string `json:"method"`
	// Inputs and Outputs are sorted by name.
	Inputs  []Tensor `json:"inputs"`
	Outputs []Tensor `json:"outputs"`
}

// Tensor is an input or output of a signature.
type Tensor struct {
	// Name is the signature's name for it, as in "x".
	Name string
	// Op is the graph's name for it with its output index, as in
	// "serving_default_x:0"; empty for sparse and composite tensors, which
	// have no single one.
	Op    string
	DType tfbind.DType
	// Shape has -1 for a size that may vary, and is empty for scalars. It
	// says nothing if UnknownRank.
	Shape       []int64
	UnknownRank bool
}

// Saver names the parts of the graph that write and read checkpoints: feed a
// path prefix to FilenameTensor, then fetch SaveTensor or run RestoreOp.
type Saver struct {
	FilenameTensor string `json:"filename_tensor"` // "saver_filename:0"
	SaveTensor     string `json:"save_tensor"`     // "StatefulPartitionedCall_6:0"
	RestoreOp      string `json:"restore_op"`      // "StatefulPartitionedCall_7"
}

// Variable is a variable of the model.
type Variable struct {
	Name string
	// Container is TensorFlow's, beside the name; nearly always empty.
	Container string
	DType     tfbind.DType
	// Shape has -1 for unknown sizes.
	Shape       []int64
	UnknownRank bool
	// Restored and Saved say whether the saver covers it.
	Restored, Saved bool
	// Trained says that a training signature may change it.
	Trained bool
}

// Bytes is the size of the variable's value; 0 if the model does not fix it.
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

// Open reads the SavedModel in dir and everything about it but its weights. It
// needs no TensorFlow and runs nothing. Files beyond MaxFileBytes or graphs
// beyond MaxMemoryBytes give ErrTooLarge; what is no SavedModel, or a damaged
// one, gives ErrNotSavedModel, also where saved_model.pb is not the file that the exporter's
// notes name (Metadata.SavedModelSHA256); a model that is merely unfit for training opens,
// with Problems.
func Open(dir string) (*Model, error) {
	if name, ok := strings.CutPrefix(dir, BuiltinPrefix); ok {
		return Builtin(name)
	}
	data, err := readModel(dir)
	if err != nil {
		return nil, err
	}
	m, err := parse(dir, data, MaxMemoryBytes)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, modelFile), err)
	}
	if err := m.checkVariables(); err != nil {
		return nil, err
	}
	m.Metadata, m.notes = readMetadata(filepath.Join(dir, filepath.FromSlash(metadataFile)))
	if m.Metadata != nil && m.Metadata.SavedModelSHA256 != "" && m.Metadata.SavedModelSHA256 != m.Hash {
		return nil, fmt.Errorf("%w: %s was damaged or replaced since it was exported: its SHA-256 is %s, and %s has %s; export the model again",
			ErrNotSavedModel, filepath.Join(dir, modelFile), m.Hash, metadataFile, m.Metadata.SavedModelSHA256)
	}
	m.settle()
	return m, nil
}

// WithLoss is the model with the output of that name called loss, in signatures that have no
// loss: for models whose train step gives it another name. It has to be a float scalar. If no
// signature has such an output, the error is ErrNoSignature. "" changes nothing.
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
		return nil, &option.Error{Option: "Model.WithLoss", Value: output, Reason: reason, Fix: "correct the name, or leave it out", Err: ErrNoSignature}
	}
	named.settle()
	return &named, nil
}

// parse is Open on the content of saved_model.pb, before roles and problems.
func parse(dir string, data []byte, maxMemory int64) (*Model, error) {
	src, err := decode(data, maxMemory)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	info := src.meta.GetMetaInfoDef()
	m := &Model{
		Dir:               dir,
		Tags:              append([]string{}, info.GetTags()...),
		TensorFlowVersion: info.GetTensorflowVersion(),
		Hash:              hex.EncodeToString(sum[:]),
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

// gather follows the graph from everything that can be run.
func (m *Model) gather(src *source) error {
	g := newGraph(src.graph)
	for _, a := range src.meta.GetAssetFileDef() {
		if i := g.nodeOf(a.GetTensorInfo().GetName()); i >= 0 {
			g.asset[g.main.nodes[i].def.GetName()] = true
		}
	}
	f := &m.known
	f.signature, f.missing, f.vars, f.others = map[string]facts{}, map[string]bool{}, g.vars, src.others
	f.composite = map[string][]composite{}

	has := func(name string) bool { return g.nodeOf(name) >= 0 }
	var err error
	for _, s := range m.Signatures {
		var roots []string
		for _, t := range s.Outputs {
			roots = append(roots, t.Op)
		}
		for _, t := range slices.Concat(s.Inputs, s.Outputs) {
			if t.Op != "" && !has(t.Op) {
				f.missing[t.Op] = true
			}
		}
		if f.signature[s.Name], err = g.inspect(roots); err != nil {
			return err
		}
		if f.composite[s.Name], err = g.composites(roots, src.kinds); err != nil {
			return err
		}
	}
	if f.load, err = g.inspect(loadOps(src.meta)); err != nil {
		return err
	}

	saver := src.meta.GetSaverDef()
	m.Saver = &Saver{saver.GetFilenameTensorName(), saver.GetSaveTensorName(), saver.GetRestoreOpName()}
	for _, part := range []struct{ what, name string }{
		{"a file name to feed", m.Saver.FilenameTensor},
		{"a tensor that saves", m.Saver.SaveTensor},
		{"an operation that restores", m.Saver.RestoreOp},
	} {
		switch {
		case part.name == "":
			f.noSaver = "the model names no " + strings.TrimPrefix(strings.TrimPrefix(part.what, "a "), "an ")
		case !has(part.name):
			f.noSaver = "the graph lacks " + part.name + ", which the model names as " + part.what
		default:
			continue
		}
		m.Saver = nil
		break
	}
	if m.Saver != nil {
		if f.save, err = g.inspect([]string{m.Saver.SaveTensor}); err != nil {
			return err
		}
		if f.restore, err = g.inspect([]string{m.Saver.RestoreOp}); err != nil {
			return err
		}
	}
	return nil
}

// loadOps names what TensorFlow runs when it loads the model, besides restoring
// the variables (RunInitOp in saved_model/loader.cc: the init signature, else
// the collections of TensorFlow 1).
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

// checkVariables reports weights that are not where the saver expects them.
func (m *Model) checkVariables() error {
	if len(m.known.vars) == 0 {
		return nil // nothing to restore: TensorFlow does not look for the files either
	}
	dir := filepath.Join(m.Dir, "variables")
	info, err := os.Stat(filepath.Join(dir, "variables.index"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%s: %w: it has variables, and variables/variables.index is missing; "+
			"copy the whole folder, variables/ included", m.Dir, ErrNotSavedModel)
	case err != nil:
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	case !info.Mode().IsRegular() || info.Size() == 0:
		return fmt.Errorf("%s: %w: variables/variables.index is empty or no file; copy the model again", m.Dir, ErrNotSavedModel)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	}
	// Each file of weights says how many there are: variables.data-00000-of-00002.
	have, want := 0, 1
	for _, e := range entries {
		var i, n int
		if _, err := fmt.Sscanf(e.Name(), "variables.data-%05d-of-%05d", &i, &n); err == nil && i < n {
			have, want = have+1, max(want, n)
		}
	}
	if have < want {
		return fmt.Errorf("%s: %w: variables/ has %d of %d files of weights (variables.data-*); copy the whole folder",
			m.Dir, ErrNotSavedModel, have, want)
	}
	index, err := readFile(filepath.Join(dir, "variables.index"), bundle.MaxBytes)
	if err == nil {
		err = bundle.Check(filepath.Join(dir, "variables"), index)
	}
	switch {
	case errors.Is(err, bundle.ErrDamaged):
		return fmt.Errorf("SavedModel %s: %w: %w", m.Dir, ErrNotSavedModel, err)
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("SavedModel %s: %w: %w; copy the whole folder, variables/ included", m.Dir, ErrNotSavedModel, err)
	case err != nil:
		return fmt.Errorf("SavedModel %s: %w", m.Dir, err)
	}
	return nil
}

var errNoModel = errors.New("the model is nil; give one from Open")

// Signature finds a signature by name. The error is ErrNoSignature and lists
// the names that there are, the nearest first.
func (m *Model) Signature(name string) (*Signature, error) {
	if m == nil {
		return nil, errNoModel
	}
	for i := range m.Signatures {
		if m.Signatures[i].Name == name {
			return &m.Signatures[i], nil
		}
	}
	if len(m.Signatures) == 0 {
		return nil, fmt.Errorf("%s: %w: %q, nor any other; export the model with signatures", m.Dir, ErrNoSignature, name)
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

// find is Signature for callers that know whether it is there.
// It gives nil for "", which stands for no signature, even if the model has
// one of that name.
func (m *Model) find(name string) *Signature {
	if name == "" {
		return nil
	}
	for i := range m.Signatures {
		if m.Signatures[i].Name == name {
			return &m.Signatures[i]
		}
	}
	return nil
}
