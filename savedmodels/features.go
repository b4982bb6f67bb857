package savedmodels

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/contract"
	"steadyfit/internal/tfproto"
)

// ErrNoFeatures means that a model has no frozen part whose results can be computed once.
var ErrNoFeatures = errors.New("the model has no frozen part to compute once")

// Features is a model that is divided into a frozen part and the rest. The results of the
// frozen part, the features, are computed once per sample, and the rest is trained on them.
//
// The frozen part has the operations that depend only on data inputs, on constants, and on
// variables that no training signature changes. These operations draw no random numbers, and their
// types treat samples independently of each other. The axis along which an operation of such a type
// works is not always known from the graph. A caller must run the frozen part to check that the
// features of a sample do not depend on the other samples.
type Features struct {
	// Model is the model with another program, in which Train, Evaluate and Gradients take the
	// features instead of the data inputs that only the frozen part needs. Gradients is missing if it needs
	// more inputs than Train. Predict, the saver and the
	// variables are unchanged. The name of the original train signature begins with "original/".
	Model *Model
	// Compute is the signature that computes the features from data inputs. Each output is an
	// input of Train with the same name.
	Compute string
	// Operations is the number of operations of the frozen part.
	Operations int
	// End is the first operation that is not in the frozen part.
	End string
}

const (
	// computeSignature is the value of Features.Compute.
	computeSignature = "compute_features"
	// addedPrefix begins the names of the operations and functions that are added to the graph.
	addedPrefix = "steadyfit_features_"
)

// Features divides the model. If that is not possible, the error is ErrNoFeatures with the reason. It
// reads saved_model.pb again, and returns ErrChanged if the file was replaced.
func (m *Model) Features() (*Features, error) {
	if err := m.CheckTrainable(true); err != nil {
		return nil, err
	}
	src, err := m.source()
	if err != nil {
		return nil, err
	}
	return m.features(src)
}

func (m *Model) features(src *source) (*Features, error) {
	train := m.Roles.Train
	if f := m.known.signature[train].fleeting; len(f) > 0 {
		return nil, fmt.Errorf("%w: signature %s: %s (%s) %s, and checkpoints do not include this state", ErrNoFeatures,
			train, f[0].where, f[0].op, f[0].does)
	}
	if m.Base == "" {
		return nil, fmt.Errorf("%w: training changes all variables that it uses; freeze layers before the export",
			ErrNoFeatures)
	}
	for _, t := range m.find(train).DataInputs() {
		if !t.UnknownRank && len(t.Shape) > 0 && t.Shape[0] >= 0 {
			return nil, fmt.Errorf("%w: input %s of signature %s takes batches of %d samples only", ErrNoFeatures, t.Name,
				train, t.Shape[0])
		}
	}
	return m.division(src).divide()
}

// outputShapes is an attribute that TensorFlow writes for readers of a graph and does not use. It is on each
// operation of a function.
const outputShapes = "_output_shapes"

// Program is what TensorFlow needs of a model, besides the values of its variables.
type Program struct {
	Graph []byte // a serialized tensorflow.GraphDef
	// Init is the operation that runs once the variables have their values, such as one that fills tables; empty
	// if there is none.
	Init string
	// Assets are the paths of the files that Init reads, by the tensor that takes the path.
	Assets map[string]string
}

// Program returns what the named signatures, the saver and loading need of the model; nil means all
// signatures. An exported model has a copy of its layers for each signature. Program reads
// saved_model.pb again, and returns ErrChanged if the file was replaced. For a model of Features, it has all
// signatures.
func (m *Model) Program(signatures []string) (*Program, error) {
	if m.program != nil {
		return m.program, nil
	}
	src, err := m.source()
	if err != nil {
		return nil, err
	}
	d := m.division(src)
	for _, s := range m.Signatures {
		if signatures == nil || slices.Contains(signatures, s.Name) {
			for _, t := range slices.Concat(s.Inputs, s.Outputs) {
				d.roots = append(d.roots, t.Op)
			}
		}
	}
	return d.program(m)
}

// read reads saved_model.pb again. If the file was replaced, the error is ErrChanged.
func (m *Model) read() ([]byte, error) {
	file, err := readModel(m.Dir)
	if err != nil {
		return nil, err
	}
	if now := sha256.Sum256(file); hex.EncodeToString(now[:]) != m.Hash {
		return nil, fmt.Errorf("%s: %w: its SHA-256 was %.12s when it was opened and is %.12s now; restore the file, or "+
			"start a new training with the new one", filepath.Join(m.Dir, modelFile), ErrChanged, m.Hash,
			hex.EncodeToString(now[:]))
	}
	return file, nil
}

// division adds the signatures of Features to a graph.
type division struct {
	model  *Model
	meta   *tfproto.MetaGraphDef // without its graph
	def    *tfproto.GraphDef
	graph  *graph
	frozen map[[2]string]bool // whether a variable is frozen, by its container and name
	roots  []string           // tensors and operations of the original graph that are still needed
	// features has the names of the features by the hash of their computation.
	features map[string]string
	nodes    []*tfproto.NodeDef
	library  *tfproto.FunctionDefLibrary
}

func (m *Model) division(src *source) *division {
	frozen := map[[2]string]bool{}
	for _, v := range m.Variables {
		frozen[[2]string{v.Container, v.Name}] = v.Frozen
	}
	return &division{model: m, meta: src.meta, def: src.graph, graph: newGraph(src.graph), frozen: frozen,
		library: &tfproto.FunctionDefLibrary{}}
}

func (d *division) divide() (*Features, error) {
	named, roles := *d.model, d.model.Roles
	named.Signatures = nil
	divided := map[string]Signature{}
	features := &Features{Model: &named, Compute: computeSignature}
	for _, role := range unique(roles.Train, roles.Evaluate, roles.Gradients) {
		part, err := d.analyse(d.model.find(role))
		if err == nil && role == roles.Train {
			err = d.compute(part, features, divided)
		}
		var s Signature
		if err == nil {
			s, err = d.rest(part, divided[roles.Train])
		}
		switch {
		case err == nil:
			divided[role] = s
		case role != roles.Gradients:
			return nil, fmt.Errorf("%w: signature %s: %w", ErrNoFeatures, role, err)
		}
	}
	train := *d.model.find(roles.Train)
	for _, s := range d.model.Signatures {
		if changed, is := divided[s.Name]; is {
			named.Signatures = append(named.Signatures, changed)
			continue
		}
		// The other training signatures are left out, since they would compute the frozen part in
		// each step.
		if s.Name == roles.Apply || !slices.Contains(roles.Training(), s.Name) {
			named.Signatures = append(named.Signatures, s)
			for _, t := range s.Outputs {
				d.roots = append(d.roots, t.Op)
			}
		}
	}
	for _, t := range train.Outputs {
		d.roots = append(d.roots, t.Op)
	}
	train.Name = contract.OriginalPrefix + train.Name
	named.Signatures = append(named.Signatures, divided[computeSignature], train)
	slices.SortFunc(named.Signatures, func(a, b Signature) int { return strings.Compare(a.Name, b.Name) })
	named.known.signature = maps.Clone(d.model.known.signature)
	named.known.signature[train.Name] = named.known.signature[roles.Train]
	var err error
	if named.program, err = d.program(&named); err != nil {
		return nil, err
	}
	named.settle()
	return features, nil
}

// program returns the program with the new functions. It keeps only the parts of the original
// graph that the roots, the saver of m and loading need. TensorFlow's work for the first run
// of each signature grows with the size of the graph.
func (d *division) program(m *Model) (*Program, error) {
	p := &Program{Assets: map[string]string{}}
	roots := d.roots
	load := loadOps(d.meta)
	load = load[:min(1, len(load))]
	if t := d.graph.follow(load); len(t.main)+len(t.bodies) > 1 { // more than a NoOp
		p.Init, _, _ = strings.Cut(load[0], ":")
		roots = append(roots, p.Init)
		for _, a := range d.meta.GetAssetFileDef() {
			name := a.GetTensorInfo().GetName()
			roots = append(roots, name)
			p.Assets[name] = filepath.Join(m.Dir, "assets", filepath.FromSlash(a.GetFilename()))
		}
	}
	if s := m.Saver; s != nil {
		roots = append(roots, s.FilenameTensor, s.SaveTensor)
		if !m.ByKey {
			roots = append(roots, s.RestoreOp)
		}
	}
	nodes, library := d.reached(roots, d.library.Function...)
	for _, f := range library.Function {
		for _, n := range f.GetNodeDef() {
			delete(n.Attr, outputShapes)
		}
	}
	var err error
	p.Graph, err = proto.Marshal(&tfproto.GraphDef{Node: append(nodes, d.nodes...), Library: library,
		Versions: d.def.GetVersions()})
	return p, err
}

// reached returns the nodes and functions that run for the tensors or operations in roots, and the
// added functions with the functions that they call.
func (d *division) reached(roots []string, added ...*tfproto.FunctionDef) (nodes []*tfproto.NodeDef,
	library *tfproto.FunctionDefLibrary) {
	var called []call
	for _, f := range added {
		for _, n := range f.GetNodeDef() {
			called = append(called, d.graph.callsOf(n)...)
		}
	}
	t := d.graph.follow(roots, called...)
	for _, i := range t.main {
		nodes = append(nodes, d.graph.main.nodes[i].def)
	}
	library = &tfproto.FunctionDefLibrary{Function: added}
	for _, f := range d.def.GetLibrary().GetFunction() {
		if t.callers[d.graph.funcs[f.GetSignature().GetName()]] != nil {
			library.Function = append(library.Function, f)
		}
	}
	return nodes, library
}

// compute finds the features of the train signature, and adds the signature that computes them.
func (d *division) compute(p *part, to *Features, divided map[string]Signature) error {
	var features []value
	seen := map[string]bool{}
	visited := map[int]bool{} // operations that are computed again
	end := -1
	var use func(v value, by int)
	use = func(v value, by int) {
		if v.op < 0 || !p.heavy[v.op] || p.kinds[v.op] == live {
			return
		}
		// Shapes and the order of elements are computed again from features. The first dimension of a feature
		// is the number of samples, and a Reshape or Transpose may have moved it.
		if op := p.ops[v.op].def.GetOp(); p.kinds[v.op] != sample || op == "Reshape" || op == "Transpose" {
			if visited[v.op] {
				return
			}
			visited[v.op] = true
			for _, in := range p.ops[v.op].in {
				use(in, by)
			}
			return
		}
		if end < 0 {
			end = by
		}
		if sum := p.sumOf(v); !seen[sum] {
			seen[sum] = true
			features = append(features, v)
		}
	}
	p.uses(use)
	if len(features) == 0 {
		return errors.New("no matrix product or convolution depends only on the data and on frozen variables")
	}
	features = p.independent(features)
	need := p.flat.needed(features, nil, nil, true)
	for i, is := range need {
		if is && p.kinds[i] != frozen {
			to.Operations++
		}
	}
	to.End = "the end of the step"
	if end >= 0 {
		to.End = p.ops[end].def.GetName() + " (" + p.ops[end].def.GetOp() + ")"
	}
	d.features = map[string]string{}
	b := d.builder(p, computeSignature, nil)
	for i, v := range features {
		name := "feature_" + strconv.Itoa(i)
		d.features[p.sumOf(v)] = name
		if err := b.output(name, v); err != nil {
			return err
		}
	}
	divided[computeSignature] = b.finish(need, nil)
	return nil
}

// rest adds a signature that takes the features instead of computing them. If train is not empty,
// the new signature has the inputs of train.
func (d *division) rest(p *part, train Signature) (Signature, error) {
	given := map[value]string{}
	b := d.builder(p, p.signature.Name, given)
	all := slices.Clone(p.results)
	for i := range p.ops {
		all = append(all, p.ops[i].in...)
	}
	for _, v := range all {
		if name := d.features[p.sumOf(v)]; name != "" && v.op >= 0 {
			if err := b.given(name, v); err != nil {
				return Signature{}, err
			}
		}
	}
	for i, t := range p.signature.Outputs {
		if err := b.output(t.Name, p.results[i]); err != nil {
			return Signature{}, err
		}
	}
	need := p.flat.needed(p.results, p.effects, given, true)
	s := b.finish(need, p.effects)
	for _, t := range train.Inputs { // so that batches with and without features have the same fields
		if s.Input(t.Name) == nil && !t.IsReserved() && t.Constant == nil {
			b.placeholder(t)
		}
	}
	s = b.sorted()
	if why := s.differs(&train, 0); train.Name != "" && why != "" {
		return s, errors.New(why)
	}
	return s, nil
}
