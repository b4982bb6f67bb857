package savedmodels

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/manifest"
	"steadyfit/internal/texts"
	"steadyfit/internal/tfproto"
	"steadyfit/option"
)

// initSignature is the signature that runs when the model is loaded.
const initSignature = "__saved_model_init_op"

// Model describes a SavedModel folder without its weights. It does not change after Open, so
// several goroutines may use it.
type Model struct {
	// Dir is the path that was given to Open.
	Dir string
	// Files are the names of all files in Dir, with slashes. Each was a regular file in Dir when the model was
	// opened.
	Files []string
	// Tags are the tags of the metagraph in use, such as ["serve"]. Loading the model needs them.
	Tags []string
	// Signatures are sorted by name. They do not include the signature that runs at load.
	Signatures []Signature
	// Saver saves and restores the variables; nil if the model has no saver.
	Saver *Saver
	// Roles are the signatures chosen for each purpose.
	Roles Roles
	// Variables are the variables that signatures or the saver use, sorted by name.
	Variables []Variable
	// Problems are sorted by severity (errors first), code and subject.
	Problems []Problem
	// Metadata is the content of the exporter's notes; nil if there are none.
	Metadata *Metadata
	// TensorFlowVersion is the version that exported the model, such as "2.21.0".
	TensorFlowVersion string
	// Hash is the hexadecimal SHA-256 of saved_model.pb, which does not include the weights.
	Hash string
	// LossOutput is the name of the output that WithLoss renamed to loss; empty otherwise.
	LossOutput string
	// Base is a hash of the frozen variables: of their names in checkpoints, types, shapes and the
	// checksums of their values. An adapter fits only models with the same Base. Base is empty if
	// no variable is frozen, or if the names of variables in checkpoints are unknown.
	Base string
	// ByKey means that the saver restores variables and nothing else, each from the whole tensor Variable.Key of
	// a checkpoint, so setting the variables from these tensors replaces the saver.
	ByKey bool
	// Inexact is the reason why the gradients of micro-batches differ from those of the whole batch,
	// according to the graph; empty if the graph shows none.
	Inexact string

	program *Program // replaces that in Dir for a model of Features; nil otherwise
	known   knowledge
	notes   error // the error of reading Metadata
}

// knowledge has the facts of the graph, from which roles and problems are derived.
type knowledge struct {
	vars      []*Variable
	signature map[string]facts
	// load are the facts of loading the model without restoring its variables. save and restore
	// are the facts of the saver.
	load, save, restore facts
	keys                map[int]string // names of the variables in checkpoints
	// missing has the tensors that a signature names but the graph does not have.
	missing map[string]bool
	noSaver string     // the reason why Saver is nil
	tags    [][]string // of all metagraphs
}

// Signature is a named entry point of the model.
type Signature struct {
	Name string `json:"name"`
	// Method is the method name, such as "tensorflow/serving/predict".
	Method string `json:"method"`
	// Inputs and Outputs are sorted by name.
	Inputs  []Tensor `json:"inputs"`
	Outputs []Tensor `json:"outputs"`
}

// Tensor describes an input or output of a signature.
type Tensor struct {
	// Name is the name of the input or output in the model, such as "sepal length (cm)".
	Name string `json:"name"`
	// Key is the name in the signature if it differs from Name, such as "sepal_length__cm_"
	// (Metadata.Names); empty otherwise.
	Key string `json:"key,omitempty"`
	// Op is the name in the graph with the output index, such as "serving_default_x:0". It is
	// empty for a sparse or composite tensor, which consists of several tensors.
	Op    string      `json:"op"`
	DType dtype.DType `json:"dtype"`
	// Shape has -1 for an unknown dimension. It is empty for a scalar, and nil if UnknownRank is
	// set.
	Shape       []int64 `json:"shape"`
	UnknownRank bool    `json:"-"`
	// Constant is the value that an input takes in place of data (Model.WithConstants); nil for others.
	Constant *float64 `json:"constant,omitempty"`
}

// Saver names the parts of the graph that write and read checkpoints. To save, feed the path
// prefix to FilenameTensor and fetch SaveTensor. To restore, feed it and run RestoreOp.
type Saver struct {
	FilenameTensor string `json:"filename_tensor"` // such as "saver_filename:0"
	SaveTensor     string `json:"save_tensor"`     // such as "StatefulPartitionedCall_6:0"
	RestoreOp      string `json:"restore_op"`      // such as "StatefulPartitionedCall_7"
}

// Variable describes a variable of the model.
type Variable struct {
	Name string `json:"name"`
	// Container is TensorFlow's namespace of the name. It is usually empty.
	Container string      `json:"-"`
	DType     dtype.DType `json:"dtype"`
	// Shape has -1 for an unknown dimension. It is nil if UnknownRank is set.
	Shape       []int64 `json:"shape"`
	UnknownRank bool    `json:"-"`
	// Restored and Saved report whether the saver restores and saves the variable.
	Restored bool `json:"restored"`
	Saved    bool `json:"saved"`
	// Trained reports whether a training signature may change the variable.
	Trained bool `json:"trained"`
	// Frozen reports whether the saver covers the variable and signatures use it, but no signature
	// except restore changes it.
	Frozen bool `json:"-"`
	// Weight reports whether a signature changes the variable, and predictions or evaluations
	// depend on it.
	Weight bool `json:"-"`
	// Key is the name of the variable in checkpoints; empty if it has none or several.
	Key string `json:"-"`
}

// Bytes returns the size of the variable's value; 0 if its shape is not fully known.
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

// HandleAttrs returns the attributes of an operation VarHandleOp that refers to the variable.
func (v Variable) HandleAttrs() graphdef.Attrs {
	shape := graphdef.AnyShape()
	if !v.UnknownRank {
		shape = graphdef.Shape(v.Shape)
	}
	return graphdef.Attrs{"dtype": graphdef.Type(v.DType), "shape": shape,
		"shared_name": graphdef.Text(v.Name), "container": graphdef.Text(v.Container)}
}

// WeightBytes returns the total size of the variables for which Variable.Weight is true; 0 if there
// are none, or if a shape is not fully known.
func (m *Model) WeightBytes() (sum int64) {
	for _, v := range m.Variables {
		if v.Weight && v.Bytes() == 0 {
			return 0
		}
		if v.Weight {
			sum += v.Bytes()
		}
	}
	return sum
}

// Open reads the SavedModel in dir without its weights. It needs no TensorFlow and runs
// nothing. dir may be "builtin:NAME"; see BuiltinNames. tags choose one of several metagraphs. Without
// tags, Open uses those of the training that wrote the model, or else the tag serve. A model that cannot be
// trained opens without an error, and Model.Problems has the reasons. The error is
// ErrNotSavedModel if dir has no SavedModel, a damaged or a too large one, or if
// Metadata.SavedModelSHA256 differs from the hash of saved_model.pb.
func Open(dir string, tags ...string) (*Model, error) {
	if name, ok := strings.CutPrefix(dir, contract.BuiltinPrefix); ok {
		return Builtin(name, tags...)
	}
	data, err := readModel(dir)
	if err != nil {
		return nil, err
	}
	names, err := listFiles(dir)
	if err != nil {
		return nil, err
	}
	metadata, notes := readMetadata(dir)
	if metadata != nil && len(tags) == 0 {
		tags = metadata.Tags
	}
	m, err := parse(dir, data, tags)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, modelFile), err)
	}
	m.Files = names
	if err := m.checkWeights(); err != nil {
		return nil, err
	}
	m.Metadata, m.notes = metadata, notes
	if n := m.Metadata; n != nil && n.SavedModelSHA256 != "" && n.SavedModelSHA256 != m.Hash {
		return nil, fmt.Errorf("%w: %s was damaged or replaced since it was exported: its SHA-256 is %s, but %s has %s; "+
			"export the model again",
			ErrNotSavedModel, filepath.Join(dir, modelFile), m.Hash, manifest.NotesFile, n.SavedModelSHA256)
	}
	for _, s := range m.Signatures {
		m.Metadata.rename(s.Inputs)
		m.Metadata.rename(s.Outputs)
	}
	m.settle()
	m.findBase()
	if len(tags) > 0 {
		record := m.record()
		record.Tags = m.Tags
		m = m.WithRecord(&record)
	}
	return m.WithConstants(m.record().Constants)
}

// WithConstants returns a copy of the model in which inputs of signatures take constants in place of data,
// such as training, keep_prob or, for one signature only, evaluate.keep_prob. true is 1. They are inputs of a
// number or bool for the whole batch. The copy keeps constants that values does not replace.
func (m *Model) WithConstants(values map[string]float64) (*Model, error) {
	if len(values) == 0 {
		return m, nil
	}
	record, all := m.record(), map[string]float64{}
	maps.Copy(all, record.Constants)
	maps.Copy(all, values)
	record.Constants = all
	m = m.WithRecord(&record)
	m.Signatures = slices.Clone(m.Signatures)
	used := map[string]bool{}
	var inputs []string
	for i := range m.Signatures {
		s := &m.Signatures[i]
		s.Inputs = slices.Clone(s.Inputs)
		for j := range s.Inputs {
			t := &s.Inputs[j]
			if !t.IsSwitch() {
				continue
			}
			inputs = append(inputs, t.Name)
			for _, key := range []string{t.Name, s.Name + "." + t.Name} {
				value, ok := all[key]
				if used[key] = used[key] || ok; !ok {
					continue
				}
				if kind := dtype.ByCode(int32(t.DType)); kind.Kind != dtype.FloatKind && value != math.Trunc(value) ||
					t.DType == dtype.Bool && value != 0 && value != 1 {
					return nil, constantError(key, value, fmt.Sprintf("signature %s takes %s", s.Name, t.DType), "give such a value")
				}
				t.Constant = &value
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if slices.Sort(inputs); !used[key] {
			return nil, constantError(key, values[key], "no signature has such an input for the whole batch; there are "+
				cmp.Or(texts.Some(slices.Compact(inputs)), "none"), "correct the name, or leave it out")
		}
	}
	m.settle()
	return m, nil
}

func constantError(key string, value float64, reason, fix string) error {
	return &option.Error{Option: "Config.Constants", Value: fmt.Sprintf("%s=%v", key, value), Reason: reason, Fix: fix,
		Err: ErrNoSignature}
}

// IsSwitch reports whether an input takes a number or bool for the whole batch that only the caller can know.
func (t Tensor) IsSwitch() bool {
	return !t.UnknownRank && len(t.Shape) == 0 && t.Op != "" && t.DType.Size() > 0 && !t.IsReserved()
}

// WithLoss returns a copy of the model in which the output is renamed to loss, in all
// signatures that have no loss. The output must be a float scalar; otherwise the error is
// ErrNoSignature. An empty name returns the model unchanged.
func (m *Model) WithLoss(output string) (*Model, error) {
	if output == "" || output == m.LossOutput || output == contract.OutputLoss {
		return m, nil
	}
	named := *m
	named.LossOutput = output
	named.Signatures = slices.Clone(m.Signatures)
	found := false
	for i := range named.Signatures {
		s := &named.Signatures[i]
		t := s.Output(output)
		if t == nil || t.Op == "" || len(s.DataInputs()) == 0 || s.Output(contract.OutputLoss) != nil ||
			!reservedOutputs[contract.OutputLoss].fits(*t) {
			continue
		}
		found = true
		s.Outputs = slices.Clone(s.Outputs)
		s.Output(output).Name = contract.OutputLoss
		slices.SortFunc(s.Outputs, func(a, b Tensor) int { return strings.Compare(a.Name, b.Name) })
	}
	if !found {
		return nil, &option.Error{Option: "Model.WithLoss", Value: output,
			Reason: "no signature that takes data and has no loss has such a float scalar",
			Fix:    "correct the name, or omit it", Err: ErrNoSignature}
	}
	named.settle()
	return &named, nil
}

func parse(dir string, data []byte, wanted []string) (*Model, error) {
	src, err := decode(data, wanted)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	info := src.meta.GetMetaInfoDef()
	m := &Model{
		Dir: dir, Tags: append([]string{}, info.GetTags()...),
		TensorFlowVersion: info.GetTensorflowVersion(), Hash: hex.EncodeToString(sum[:]), Signatures: []Signature{},
	}
	for _, name := range slices.Sorted(maps.Keys(src.meta.GetSignatureDef())) {
		if def := src.meta.GetSignatureDef()[name]; name != initSignature {
			m.Signatures = append(m.Signatures, Signature{
				Name: name, Method: def.GetMethodName(),
				Inputs: tensors(def.GetInputs()), Outputs: tensors(def.GetOutputs()),
			})
		}
	}
	g := newGraph(src.graph)
	if err := g.checkCalls(); err != nil {
		return nil, err
	}
	m.gather(src, g)
	m.known.tags = src.tags
	if g.exhausted(0) {
		return nil, fmt.Errorf("%w: following its graph takes more than %d steps, far more than any real model; the file "+
			"may be damaged or malicious", errTooLarge, maxWork)
	}
	return m, nil
}

// tensors converts inputs or outputs and sorts them by name.
func tensors(infos map[string]*tfproto.TensorInfo) []Tensor {
	out := []Tensor{}
	for _, name := range slices.Sorted(maps.Keys(infos)) {
		info := infos[name]
		shape := info.GetTensorShape()
		t := Tensor{
			Name: name, Op: info.GetName(), DType: dtype.DType(info.GetDtype()),
			UnknownRank: shape.GetUnknownRank(),
		}
		if !t.UnknownRank {
			t.Shape = []int64{}
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

// gather finds the facts of every part of the graph that can run.
func (m *Model) gather(src *source, g *graph) {
	g.findAssets(src.meta.GetAssetFileDef())
	k := &m.known
	*k = knowledge{vars: g.vars, signature: map[string]facts{}, missing: map[string]bool{}}
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
		k.signature[s.Name] = g.inspect(roots...)
	}
	k.load = g.inspect(loadOps(src.meta)...)

	saver := src.meta.GetSaverDef()
	for _, part := range [][2]string{
		{"file name to feed", saver.GetFilenameTensorName()},
		{"tensor that saves", saver.GetSaveTensorName()},
		{"operation that restores", saver.GetRestoreOpName()},
	} {
		if part[1] == "" {
			k.noSaver = "the model does not name the " + part[0]
			return
		}
		if g.nodeOf(part[1]) < 0 {
			k.noSaver = "the model names " + part[1] + " as the " + part[0] + ", but the graph does not have it"
			return
		}
	}
	m.Saver = &Saver{saver.GetFilenameTensorName(), saver.GetSaveTensorName(), saver.GetRestoreOpName()}
	k.save, k.restore = g.inspect(m.Saver.SaveTensor), g.inspect(m.Saver.RestoreOp)
	k.keys = g.keys(m.Saver.RestoreOp)
}

// loadOps returns the operations that TensorFlow runs when it loads the model, without
// restoring the variables. These are the init signature and the collections of TensorFlow 1
// (RunInitOp in saved_model/loader.cc).
func loadOps(meta *tfproto.MetaGraphDef) []string {
	var ops []string
	for _, out := range meta.GetSignatureDef()[initSignature].GetOutputs() {
		ops = append(ops, out.GetName())
	}
	for _, key := range []string{"saved_model_main_op", "legacy_init_op", "saved_model_initializers"} {
		ops = append(ops, meta.GetCollectionDef()[key].GetNodeList().GetValue()...)
	}
	return ops
}

// Signature returns the signature with the given name. The error ErrNoSignature lists the
// model's signatures.
func (m *Model) Signature(name string) (*Signature, error) {
	if m == nil {
		return nil, errNoModel
	}
	if s := m.find(name); s != nil {
		return s, nil
	}
	return nil, fmt.Errorf("%s: %w: %q; there are %s", m.Dir, ErrNoSignature, name,
		cmp.Or(strings.Join(m.signatureNames(), ", "), "none; export the model with signatures"))
}

func (m *Model) signatureNames() []string {
	names := make([]string, len(m.Signatures))
	for i, s := range m.Signatures {
		names[i] = s.Name
	}
	return names
}

// find returns the signature with the given name; nil for an empty or unknown name.
func (m *Model) find(name string) *Signature {
	if i := slices.IndexFunc(m.Signatures, func(s Signature) bool { return s.Name == name }); i >= 0 && name != "" {
		return &m.Signatures[i]
	}
	return nil
}
