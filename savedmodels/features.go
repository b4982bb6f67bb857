package savedmodels

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/attr_value_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/function_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/op_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/tensor_shape_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/versions_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/contract"
	"steadyfit/tfbind"
)

// ErrNoFeatures means that a model has no frozen part whose results can be computed once.
var ErrNoFeatures = errors.New("the model has no frozen part to compute once")

// Features is a model that is divided into a frozen part and the rest. The results of the
// frozen part, the features, are computed once per sample, and the rest is trained on them.
//
// The frozen part has the operations that depend only on data inputs, constants and variables
// that no training signature changes, draw no random numbers, and are of types that treat
// samples independently of each other. The axis along which an operation of such a type works
// is not always known from the graph. Whoever uses the features checks with a run that the
// features of a sample do not depend on the other samples.
type Features struct {
	// Model is the model with another program: Train, Evaluate and Gradients take the features
	// instead of the data inputs that only the frozen part needs. Predict, the saver and the
	// variables are those of the original model. The name of an original signature is
	// OriginalPrefix and its name.
	Model *Model
	// Compute is the signature that computes the features from data inputs. Each output is an
	// input of Train with the same name.
	Compute string
	// Operations is the number of operations of the frozen part, and Heavy that of matrix
	// products and convolutions among them.
	Operations, Heavy int
	// End is the first operation that is not in the frozen part, with the reason.
	End string
	// Sum is a hash of the computation, without the values of the variables.
	Sum string
	// Omitted is the reason why Model has no signature Evaluate or Gradients although the
	// original has one; nil if it has them.
	Omitted error
}

const (
	// OriginalPrefix begins the names of the original signatures in Features.Model.
	OriginalPrefix = "original/"
	// maxFeatures limits the number of features.
	maxFeatures = 64
	// computeSignature is the value of Features.Compute.
	computeSignature = "compute_features"
	// addedPrefix begins the names of the operations and functions that are added to the graph.
	addedPrefix = "steadyfit_features_"
)

// Features divides the model for training with the named signature; empty means the usual one.
// If that is not possible, the error is ErrNoFeatures with the reason. It reads
// saved_model.pb again, and returns ErrChanged if the file was replaced.
func (m *Model) Features(train string) (*Features, error) {
	roles, err := m.RolesFor(CheckOptions{AllowUnsafeOps: true, Train: train})
	if err != nil {
		return nil, err
	}
	file, err := readModel(m.Dir)
	if err != nil {
		return nil, err
	}
	if sum := sha256.Sum256(file); hex.EncodeToString(sum[:]) != m.Hash {
		return nil, fmt.Errorf("%s: %w", m.Dir, ErrChanged)
	}
	return m.features(file, roles)
}

// features implements Features for the content of saved_model.pb.
func (m *Model) features(file []byte, roles Roles) (*Features, error) {
	if f := m.known.signature[roles.Train].fleeting; len(f) > 0 {
		return nil, fmt.Errorf("%w: signature %s: %s (%s) %s, which no checkpoint includes", ErrNoFeatures, roles.Train, f[0].where, f[0].op, f[0].does)
	}
	if m.base == "" {
		return nil, fmt.Errorf("%w: no frozen variable is known by a name in checkpoints", ErrNoFeatures)
	}
	src, err := decode(file, maxMemoryBytes)
	if err != nil {
		return nil, err
	}
	d := &division{model: m, def: src.graph, graph: newGraph(src.graph), library: &function_go_proto.FunctionDefLibrary{}}
	d.changed = m.known.of(roles.used(), facts.changed)
	return d.divide(roles)
}

// division adds the signatures of Features to a graph.
type division struct {
	model   *Model
	def     *graph_go_proto.GraphDef
	graph   *graph
	changed set
	// features has the names of the features by the hash of their computation.
	features map[string]string
	nodes    []*node_def_go_proto.NodeDef
	library  *function_go_proto.FunctionDefLibrary
}

func (d *division) divide(roles Roles) (*Features, error) {
	named := *d.model
	named.Signatures, named.Roles = nil, roles
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
		if err == nil {
			divided[role] = s
		} else if err = fmt.Errorf("%w: signature %s: %w", ErrNoFeatures, role, err); role == roles.Train {
			return nil, err
		} else {
			features.Omitted = errors.Join(features.Omitted, err)
		}
	}
	known := d.model.known
	known.signature = maps.Clone(known.signature)
	for _, s := range d.model.Signatures {
		changed, is := divided[s.Name]
		if !is {
			// The others would compute the frozen part in each step.
			if s.Name == roles.Evaluate || slices.Contains(roles.Training(), s.Name) && s.Name != roles.Apply {
				continue
			}
			named.Signatures = append(named.Signatures, s)
			continue
		}
		known.signature[OriginalPrefix+s.Name] = known.signature[s.Name]
		original := s
		original.Name = OriginalPrefix + s.Name
		named.Signatures = append(named.Signatures, changed, original)
	}
	named.Signatures = append(named.Signatures, divided[computeSignature])
	slices.SortFunc(named.Signatures, func(a, b Signature) int { return strings.Compare(a.Name, b.Name) })
	named.known = known
	added := &graph_go_proto.GraphDef{Node: d.nodes, Library: d.library, Versions: &versions_go_proto.VersionDef{
		Producer: d.def.GetVersions().GetProducer(), MinConsumer: d.def.GetVersions().GetMinConsumer(),
	}}
	var err error
	if named.added, err = proto.Marshal(added); err != nil {
		return nil, err
	}
	named.settle()
	return features, nil
}

// Added returns the serialized GraphDef to import into the graph of a loaded model before its
// signatures can run; nil for a model as it was opened. Package session imports it.
func (m *Model) Added() []byte { return m.added }

// kind is what a value of a flat function depends on.
type kind uint8

const (
	// live values depend on trained variables, random numbers, or the reserved inputs.
	live kind = iota
	// frozen values depend on constants and on variables that training does not change.
	frozen
	// sample values also depend on data inputs, and have one part per sample.
	sample
	// shapes are values that depend on the shapes of sample values.
	shapes
)

// part is a signature with the analysis of its function.
type part struct {
	signature *Signature
	*flat
	results []value // one for each output of the signature
	args    []kind
	inputs  []*Tensor // the data or reserved input of each argument; nil for the model's own values
	kinds   []kind
	heavy   []bool // whether an operation or one that it depends on is heavy
	sums    []string
	needed  []bool
}

// analyse finds the kind of each operation that a signature needs.
func (d *division) analyse(s *Signature) (*part, error) {
	f, outputs, err := flatten(d.def, d.graph, s)
	if err != nil {
		return nil, err
	}
	p := &part{signature: s, flat: f}
	p.kinds, p.heavy, p.sums = make([]kind, len(f.ops)), make([]bool, len(f.ops)), make([]string, len(f.ops))
	for _, a := range f.args {
		k, in := d.argument(s, a)
		p.args, p.inputs = append(p.args, k), append(p.inputs, in)
	}
	f.effects = slices.DeleteFunc(f.effects, func(i int) bool { return pureOps[f.ops[i].def.GetOp()] })
	for _, i := range outputs {
		p.results = append(p.results, f.rets[i])
	}
	p.needed = f.needed(p.results, f.effects, nil)
	for i := range f.ops {
		if p.needed[i] {
			p.kinds[i] = p.classify(i)
		}
		p.sums[i] = p.sum(i)
	}
	return p, nil
}

// argument returns the kind of an argument, and the input of the signature that provides it.
func (d *division) argument(s *Signature, a flatArg) (kind, *Tensor) {
	n := &d.graph.main.nodes[a.from]
	for i, t := range s.Inputs {
		if d.graph.nodeOf(t.Op) != a.from {
			continue
		}
		if contract.IsReserved(t.Name) || t.DType == tfbind.String {
			return live, &s.Inputs[i]
		}
		return sample, &s.Inputs[i]
	}
	switch {
	case n.variable >= 0 && !d.changed[n.variable], n.def.GetOp() == "Const":
		return frozen, nil
	}
	return live, nil
}

func (p *part) kindOf(v value) kind {
	if v.op < 0 {
		return p.args[v.arg()]
	}
	return p.kinds[v.op]
}

// classify returns the kind of an operation whose inputs have been classified.
func (p *part) classify(i int) kind {
	op := &p.ops[i]
	name := op.def.GetOp()
	k := frozen
	shape := false
	for _, v := range op.in {
		switch p.kindOf(v) {
		case live:
			return live
		case sample:
			k = sample
		case shapes:
			shape = true
		}
		p.heavy[i] = p.heavy[i] || v.op >= 0 && p.heavy[v.op]
	}
	for _, j := range op.after {
		if p.kinds[j] == live && !pureOps[p.ops[j].def.GetOp()] {
			return live
		}
	}
	switch {
	case !pureOps[name] || p.mixes(op):
		return live
	case k == sample && (name == "Shape" || name == "ShapeN" || name == "Size" || name == "Rank"):
		return shapes
	case k == frozen && shape:
		return shapes
	}
	p.heavy[i] = p.heavy[i] || k == sample && heavyMath[name]
	return k
}

// mixes reports whether an operation on samples is known to combine samples, or to treat them
// differently in training.
func (p *part) mixes(op *flatOp) bool {
	of := func(i int) bool { return i < len(op.in) && p.kindOf(op.in[i]) == sample }
	samples := func() bool { return slices.ContainsFunc(op.in, func(v value) bool { return p.kindOf(v) == sample }) }
	attr := op.def.GetAttr()
	switch name := op.def.GetOp(); name {
	case "FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3":
		training := attr["is_training"]
		return training == nil || training.GetB()
	case "Sum", "Mean", "Max", "Min", "Prod", "All", "Any", "ArgMax", "ArgMin", "Cumsum":
		axes, known := p.integers(op, 1)
		return of(0) && (!known || slices.Contains(axes, 0))
	case "ConcatV2":
		axes, known := p.integers(op, len(op.in)-1)
		return samples() && (!known || slices.Contains(axes, 0))
	case "Transpose":
		axes, known := p.integers(op, 1)
		return of(0) && (!known || len(axes) == 0 || axes[0] != 0)
	case "Pack":
		return samples() && attr["axis"].GetI() == 0
	case "MatMul":
		return of(0) && attr["transpose_a"].GetB() || of(1)
	case "GatherV2":
		axes, known := p.integers(op, 2)
		return of(0) && (!known || slices.Contains(axes, 0)) && attr["batch_dims"].GetI() == 0
	}
	return false
}

// integers returns the elements of an input of an operation that is an integer constant, or a
// concatenation of constants as for the axes of a tensor product.
func (p *part) integers(op *flatOp, input int) ([]int64, bool) {
	steps := 0
	return p.constant(op, input, &steps)
}

// constant implements integers in a limited number of steps.
func (p *part) constant(op *flatOp, input int, steps *int) (all []int64, known bool) {
	if *steps++; *steps > 100 || input < 0 || input >= len(op.in) || op.in[input].op < 0 {
		return nil, false
	}
	from := &p.ops[op.in[input].op]
	switch from.def.GetOp() {
	case "Const":
		t := from.def.GetAttr()["value"].GetTensor()
		return elementsOf(t.GetDtype(), t.GetTensorContent(), t.GetIntVal(), t.GetInt64Val())
	case "ConcatV2":
		for i := range len(from.in) - 1 {
			some, known := p.constant(from, i, steps)
			if !known {
				return nil, false
			}
			all = append(all, some...)
		}
		return all, true
	}
	return nil, false
}

// elementsOf decodes the elements of a TensorProto of int32 or int64.
func elementsOf(dtype types_go_proto.DataType, content []byte, small []int32, large []int64) (out []int64, ok bool) {
	size := map[types_go_proto.DataType]int{types_go_proto.DataType_DT_INT32: 4, types_go_proto.DataType_DT_INT64: 8}[dtype]
	if size == 0 {
		return nil, false
	}
	for ; len(content) >= size; content = content[size:] {
		var bits uint64
		for i := range size {
			bits |= uint64(content[i]) << (8 * i)
		}
		if size == 4 {
			out = append(out, int64(int32(bits)))
		} else {
			out = append(out, int64(bits))
		}
	}
	for _, v := range small {
		out = append(out, int64(v))
	}
	return append(out, large...), true
}

// sum returns a hash of what an operation computes.
func (p *part) sum(i int) string {
	op := &p.ops[i]
	d := op.clone("", nil)
	for name := range d.Attr {
		if strings.HasPrefix(name, "_") {
			delete(d.Attr, name)
		}
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(d)
	if err != nil {
		text = []byte(op.def.GetName()) // such an operation equals no other
	}
	h := sha256.New()
	h.Write(text)
	for _, v := range op.in {
		fmt.Fprintf(h, "%s\n", p.sumOf(v))
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

func (p *part) sumOf(v value) string {
	if v.op >= 0 {
		return p.sums[v.op] + ":" + v.port
	}
	if in := p.inputs[v.arg()]; in != nil {
		return "input " + in.Name
	}
	return fmt.Sprintf("node %d", p.flat.args[v.arg()].from)
}

// compute finds the features of the train signature, and adds the signature that computes them.
func (d *division) compute(p *part, to *Features, divided map[string]Signature) error {
	var features []value
	seen := map[string]bool{}
	end := -1
	var use func(v value, by int)
	use = func(v value, by int) {
		if v.op < 0 || !p.heavy[v.op] || p.kinds[v.op] == live {
			return
		}
		if p.kinds[v.op] == shapes { // computed again from the shapes of features
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
		return errors.New(d.whyNone(p))
	}
	if len(features) > maxFeatures {
		return fmt.Errorf("%d values lead from the frozen part to the rest, more than %d", len(features), maxFeatures)
	}
	features = p.independent(features)
	need := p.flat.needed(features, nil, nil)
	for i, is := range need {
		if is && p.kinds[i] != frozen {
			to.Operations++
			if heavyMath[p.ops[i].def.GetOp()] {
				to.Heavy++
			}
		}
	}
	to.End = "the end of the step"
	if end >= 0 {
		to.End = d.why(p, end)
	}
	d.features = map[string]string{}
	b := d.builder(p, computeSignature, nil)
	sums := make([]string, len(features))
	for i, v := range features {
		sums[i] = p.sumOf(v)
		d.features[sums[i]] = "feature_" + strconv.Itoa(i)
		if err := b.output(d.features[sums[i]], v); err != nil {
			return err
		}
	}
	all := sha256.Sum256([]byte(strings.Join(sums, "\n")))
	to.Sum = hex.EncodeToString(all[:16])
	s, err := b.finish(need, nil)
	divided[computeSignature] = s
	return err
}

// independent returns the features without those that follow from the others without a matrix
// product or a convolution. The rest of the step computes them again.
func (p *part) independent(features []value) []value {
	slices.SortFunc(features, func(a, b value) int { return a.op - b.op })
	given := map[value]string{}
	return slices.DeleteFunc(features, func(v value) bool {
		need := p.flat.needed([]value{v}, nil, given)
		for i, is := range need {
			if is && p.kinds[i] == sample && heavyMath[p.ops[i].def.GetOp()] {
				given[v] = ""
				return false
			}
		}
		return true
	})
}

// uses calls use for each value that the live operations and the results use. by is the
// operation, or -1 for a result.
func (p *part) uses(use func(v value, by int)) {
	for i := range p.ops {
		if p.needed[i] && p.kinds[i] == live {
			for _, v := range p.ops[i].in {
				use(v, i)
			}
		}
	}
	for _, v := range p.results {
		use(v, -1)
	}
}

// rest adds the signature that takes the features of the train signature instead of computing
// them. It has the inputs of train, if not empty.
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
	if len(b.signature.Inputs) > 0 {
		for i := range p.ops {
			b.givenShape(i, b.signature.Inputs[0].Name)
		}
	}
	for i, t := range p.signature.Outputs {
		if err := b.output(t.Name, p.results[i]); err != nil {
			return Signature{}, err
		}
	}
	need := p.flat.needed(p.results, p.effects, given)
	s, err := b.finish(need, p.effects)
	if err != nil {
		return s, err
	}
	for _, t := range train.Inputs { // batches have the same fields for both
		if s.Input(t.Name) == nil && !contract.IsReserved(t.Name) {
			b.placeholder(t, types_go_proto.DataType(t.DType))
		}
	}
	s = b.sorted()
	if why := s.differs(&train, 0); train.Name != "" && why != "" {
		return s, errors.New(why)
	}
	return s, nil
}

// whyNone returns why the train step has no features.
func (d *division) whyNone(p *part) string {
	for i := range p.ops {
		op := &p.ops[i]
		if !p.needed[i] || p.kinds[i] != live || !slices.ContainsFunc(op.in, func(v value) bool { return p.kindOf(v) == sample }) {
			continue
		}
		if labels := d.labelsOnly(p, op); labels {
			continue
		}
		return "no matrix product or convolution comes before " + d.why(p, i)
	}
	return "no matrix product or convolution depends only on the data and on frozen variables"
}

// labelsOnly reports whether an operation depends on no data input that predict takes.
func (d *division) labelsOnly(p *part, op *flatOp) bool {
	predict := d.model.find(d.model.Roles.Predict)
	if predict == nil {
		return false
	}
	var seen func(op *flatOp, depth int) bool
	seen = func(op *flatOp, depth int) bool {
		for _, v := range op.in {
			if v.op >= 0 && depth < 100 && p.kinds[v.op] == sample && seen(&p.ops[v.op], depth+1) {
				return true
			}
			if v.op < 0 && p.inputs[v.arg()] != nil && predict.Input(p.inputs[v.arg()].Name) != nil {
				return true
			}
		}
		return false
	}
	return !seen(op, 0)
}

// why describes why a live operation is not frozen.
func (d *division) why(p *part, i int) string {
	op := &p.ops[i]
	name := op.def.GetName() + " (" + op.def.GetOp() + ")"
	switch kind := op.def.GetOp(); {
	case strings.HasPrefix(kind, "FusedBatchNorm") && pureOps[kind]:
		return name + ", a batch normalization in training mode"
	case drawsRandom(kind):
		return name + ", which draws random numbers"
	case pureOps[kind] && p.mixes(op):
		return name + ", which may combine samples"
	case !pureOps[kind]:
		return name + ", an operation that is not known to treat samples independently"
	}
	for _, v := range op.in {
		if p.kindOf(v) == live {
			if from := d.source(p, v); from != "" {
				return name + ", which depends on " + from
			}
		}
	}
	return name
}

// drawsRandom reports whether an operation draws random numbers.
func drawsRandom(op string) bool {
	keeps, _ := contract.Fleeting(op)
	return strings.HasPrefix(keeps, "draws") || strings.HasPrefix(op, "StatelessRandom") || strings.HasPrefix(op, "StatelessTruncated")
}

// source names the origin of a live value.
func (d *division) source(p *part, v value) string {
	for range 1000 {
		if v.op < 0 {
			if in := p.inputs[v.arg()]; in != nil {
				return "the input " + in.Name
			}
			n := &d.graph.main.nodes[p.flat.args[v.arg()].from]
			if n.variable >= 0 {
				return "the variable " + d.graph.vars[n.variable].name + ", which training changes"
			}
			return "the value " + n.def.GetName()
		}
		op := &p.ops[v.op]
		if drawsRandom(op.def.GetOp()) {
			return "random numbers"
		}
		at := slices.IndexFunc(op.in, func(in value) bool { return p.kindOf(in) == live })
		if at < 0 {
			return d.why(p, v.op)
		}
		v = op.in[at]
	}
	return ""
}

// builder makes a function from a part of a flat function, and the signature that calls it.
type builder struct {
	*division
	p         *part
	signature Signature
	function  *function_go_proto.FunctionDef
	replaced  map[value]string  // given values, with their names in the function
	sources   []string          // the nodes of the main graph that provide the arguments
	arguments map[int]bool      // arguments of p that are arguments here
	names     map[string]string // the features in the type that the operations take
}

func (d *division) builder(p *part, name string, given map[value]string) *builder {
	return &builder{
		division: d, p: p, replaced: given, arguments: map[int]bool{}, names: map[string]string{},
		signature: Signature{Name: name, Method: p.signature.Method, Inputs: []Tensor{}, Outputs: []Tensor{}},
		function: &function_go_proto.FunctionDef{
			Signature: &op_def_go_proto.OpDef{Name: addedPrefix + name, IsStateful: true},
			Ret:       map[string]string{}, ControlRet: map[string]string{},
		},
	}
}

func (b *builder) argument(name string, dtype types_go_proto.DataType, source string) {
	b.function.Signature.InputArg = append(b.function.Signature.InputArg, &op_def_go_proto.OpDef_ArgDef{Name: name, Type: dtype})
	b.sources = append(b.sources, source)
}

// placeholder adds an input of the signature.
func (b *builder) placeholder(t Tensor, dtype types_go_proto.DataType) string {
	name := addedPrefix + b.signature.Name + "_" + t.Name
	t.Op = name + ":0"
	b.signature.Inputs = append(b.signature.Inputs, t)
	shape := &tensor_shape_go_proto.TensorShapeProto{UnknownRank: t.UnknownRank}
	for _, n := range t.Shape {
		shape.Dim = append(shape.Dim, &tensor_shape_go_proto.TensorShapeProto_Dim{Size: n})
	}
	b.nodes = append(b.nodes, &node_def_go_proto.NodeDef{Name: name, Op: "Placeholder", Attr: map[string]*attr_value_go_proto.AttrValue{
		"dtype": typeAttr(dtype), "shape": {Value: &attr_value_go_proto.AttrValue_Shape{Shape: shape}},
	}})
	return name
}

// given adds an argument for a feature, which replaces a value.
func (b *builder) given(name string, v value) error {
	if _, is := b.replaced[v]; is {
		return nil
	}
	dtype, err := b.typeOf(v)
	if err != nil {
		return err
	}
	fed := fedType(dtype)
	if !slices.ContainsFunc(b.signature.Inputs, func(t Tensor) bool { return t.Name == name }) {
		b.argument(name, fed, b.placeholder(Tensor{Name: name, DType: tfbind.DType(fed), UnknownRank: true, Shape: []int64{}}, fed))
		b.names[name] = name
		if fed != dtype {
			b.names[name] = b.cast(name+"_cast", name, fed, dtype)
		}
	}
	b.replaced[v] = b.names[name]
	return nil
}

// givenShape replaces the shape of a data input by a computation from the shape of a feature,
// which has as many samples, so that the input itself is not needed.
func (b *builder) givenShape(i int, feature string) {
	op := &b.p.ops[i]
	if op.def.GetOp() != "Shape" || len(op.in) != 1 {
		return
	}
	from := op.in[0]
	for from.op >= 0 && keepsShape[b.p.ops[from.op].def.GetOp()] && len(b.p.ops[from.op].in) > 0 {
		from = b.p.ops[from.op].in[0]
	}
	if from.op >= 0 {
		return
	}
	in := b.p.inputs[from.arg()]
	if in == nil || in.UnknownRank || len(in.Shape) == 0 || slices.Min(append([]int64{0}, in.Shape[1:]...)) < 0 {
		return
	}
	dtype := types_go_proto.DataType_DT_INT32
	if a := op.def.GetAttr()["out_type"]; a != nil {
		dtype = a.GetType()
	}
	name := opName(i)
	constant := func(suffix string, t types_go_proto.DataType, values ...int64) string {
		v := &tensor_go_proto.TensorProto{Dtype: t, TensorShape: &tensor_shape_go_proto.TensorShapeProto{
			Dim: []*tensor_shape_go_proto.TensorShapeProto_Dim{{Size: int64(len(values))}},
		}}
		if suffix == "_axis" {
			v.TensorShape.Dim = nil
		}
		for _, n := range values {
			if t == types_go_proto.DataType_DT_INT32 {
				v.IntVal = append(v.IntVal, int32(n))
			} else {
				v.Int64Val = append(v.Int64Val, n)
			}
		}
		return b.add(name+suffix, "Const", "output:0", map[string]*attr_value_go_proto.AttrValue{
			"dtype": typeAttr(t), "value": {Value: &attr_value_go_proto.AttrValue_Tensor{Tensor: v}},
		})
	}
	integer := func(n int64) *attr_value_go_proto.AttrValue {
		return &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_I{I: n}}
	}
	zero, one := constant("_begin", types_go_proto.DataType_DT_INT32, 0), constant("_end", types_go_proto.DataType_DT_INT32, 1)
	of := b.function.Signature.InputArg[slices.IndexFunc(b.function.Signature.InputArg, func(a *op_def_go_proto.OpDef_ArgDef) bool { return a.GetName() == feature })]
	shape := b.add(name+"_feature", "Shape", "output:0", map[string]*attr_value_go_proto.AttrValue{"T": typeAttr(of.GetType()), "out_type": typeAttr(dtype)}, feature)
	samples := b.add(name+"_samples", "StridedSlice", "output:0", map[string]*attr_value_go_proto.AttrValue{
		"T": typeAttr(dtype), "Index": typeAttr(types_go_proto.DataType_DT_INT32),
		"begin_mask": integer(0), "end_mask": integer(0), "ellipsis_mask": integer(0), "new_axis_mask": integer(0), "shrink_axis_mask": integer(0),
	}, shape, zero, one, one)
	b.replaced[value{i, "output:0"}] = b.add(name+"_shape", "ConcatV2", "output:0", map[string]*attr_value_go_proto.AttrValue{
		"N": integer(2), "T": typeAttr(dtype), "Tidx": typeAttr(types_go_proto.DataType_DT_INT32),
	}, samples, constant("_rest", dtype, in.Shape[1:]...), constant("_axis", types_go_proto.DataType_DT_INT32, 0))
}

// add adds an operation, and returns the name of its result.
func (b *builder) add(name, op, port string, attr map[string]*attr_value_go_proto.AttrValue, inputs ...string) string {
	b.function.NodeDef = append(b.function.NodeDef, &node_def_go_proto.NodeDef{Name: name, Op: op, Input: inputs, Attr: attr})
	return name + ":" + port
}

// fedType returns the type in which values of a type are kept. Halves are kept as float32,
// which represents each of them.
func fedType(t types_go_proto.DataType) types_go_proto.DataType {
	if t == types_go_proto.DataType_DT_HALF || t == types_go_proto.DataType_DT_BFLOAT16 {
		return types_go_proto.DataType_DT_FLOAT
	}
	return t
}

func (b *builder) cast(name, input string, from, to types_go_proto.DataType) string {
	return b.add(name, "Cast", "y:0", map[string]*attr_value_go_proto.AttrValue{"SrcT": typeAttr(from), "DstT": typeAttr(to)}, input)
}

// output adds a result. The results of a signature that takes features keep their order and
// type.
func (b *builder) output(name string, v value) error {
	dtype, err := b.typeOf(v)
	if t := b.p.signature.Output(name); t != nil {
		dtype, err = types_go_proto.DataType(t.DType), nil
	}
	if err != nil {
		return err
	}
	t := Tensor{Name: name, DType: tfbind.DType(dtype), UnknownRank: true, Shape: []int64{}}
	if of := b.p.signature.Output(name); of != nil {
		t = *of
	}
	ref := b.ref(v)
	if fed := fedType(dtype); b.signature.Name == computeSignature && fed != dtype {
		ref, dtype, t.DType = b.cast(name+"_cast", ref, dtype, fed), fed, tfbind.DType(fed)
	}
	t.Op = addedPrefix + b.signature.Name + ":" + strconv.Itoa(len(b.signature.Outputs))
	b.signature.Outputs = append(b.signature.Outputs, t)
	out := "output_" + strconv.Itoa(len(b.signature.Outputs))
	b.function.Signature.OutputArg = append(b.function.Signature.OutputArg, &op_def_go_proto.OpDef_ArgDef{Name: out, Type: dtype})
	b.function.Ret[out] = ref
	return nil
}

// ref returns the name of a value in the new function.
func (b *builder) ref(v value) string {
	if name, ok := b.replaced[v]; ok {
		return name
	}
	if v.op < 0 {
		b.arguments[v.arg()] = true
		return "argument_" + strconv.Itoa(v.arg())
	}
	return opName(v.op) + ":" + v.port
}

func opName(i int) string { return "op_" + strconv.Itoa(i) }

// finish adds the needed operations, and the signature that runs the function.
func (b *builder) finish(need []bool, effects []int) (Signature, error) {
	for i, is := range need {
		if !is {
			continue
		}
		op := &b.p.ops[i]
		var inputs []string
		for _, v := range op.in {
			inputs = append(inputs, b.ref(v))
		}
		after, err := b.p.waits(b.graph, op.after, need)
		if err != nil {
			return Signature{}, err
		}
		for _, j := range after {
			inputs = append(inputs, "^"+opName(j))
		}
		b.function.NodeDef = append(b.function.NodeDef, op.clone(opName(i), inputs))
	}
	for _, i := range effects {
		b.function.Signature.ControlOutput = append(b.function.Signature.ControlOutput, opName(i))
		b.function.ControlRet[opName(i)] = opName(i)
	}
	for _, i := range slices.Sorted(maps.Keys(b.arguments)) {
		source, err := b.source(i)
		if err != nil {
			return Signature{}, err
		}
		b.argument("argument_"+strconv.Itoa(i), b.p.flat.args[i].dtype, source)
	}
	types := func(args []*op_def_go_proto.OpDef_ArgDef) *attr_value_go_proto.AttrValue {
		l := &attr_value_go_proto.AttrValue_ListValue{}
		for _, a := range args {
			l.Type = append(l.Type, a.GetType())
		}
		return &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_List{List: l}}
	}
	f := b.function.Signature
	b.library.Function = append(b.library.Function, b.function)
	b.nodes = append(b.nodes, &node_def_go_proto.NodeDef{
		Name: addedPrefix + b.signature.Name, Op: "StatefulPartitionedCall", Input: b.sources,
		Attr: map[string]*attr_value_go_proto.AttrValue{
			"Tin": types(f.InputArg), "Tout": types(f.OutputArg),
			"f": {Value: &attr_value_go_proto.AttrValue_Func{Func: &attr_value_go_proto.NameAttrList{Name: f.Name}}},
		},
	})
	return b.sorted(), nil
}

// sorted returns the signature with sorted inputs.
func (b *builder) sorted() Signature {
	slices.SortFunc(b.signature.Inputs, func(x, y Tensor) int { return strings.Compare(x.Name, y.Name) })
	return b.signature
}

// source returns the node of the main graph that provides an argument of the original
// function: a new placeholder, or a copy of a node without inputs. A copy of a handle refers to
// the same variable if it has the same name and container.
func (b *builder) source(i int) (string, error) {
	a := b.p.flat.args[i]
	if in := b.p.inputs[i]; in != nil {
		return b.placeholder(*in, a.dtype), nil
	}
	n := &b.graph.main.nodes[a.from]
	name := addedPrefix + "of/" + n.def.GetName()
	if slices.ContainsFunc(b.nodes, func(have *node_def_go_proto.NodeDef) bool { return have.GetName() == name }) {
		return name, nil
	}
	c := (&flatOp{def: n.def}).clone(name, nil)
	switch {
	case len(n.def.GetInput()) > 0:
		return "", fmt.Errorf("%s (%s) cannot be shared with another function", n.def.GetName(), n.def.GetOp())
	case n.variable >= 0:
		c.Attr["shared_name"] = &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_S{S: []byte(b.graph.vars[n.variable].name)}}
	case n.def.GetOp() != "Const" && len(c.Attr["shared_name"].GetS()) == 0:
		return "", fmt.Errorf("%s (%s) has no name to share", n.def.GetName(), n.def.GetOp())
	}
	b.nodes = append(b.nodes, c)
	return name, nil
}

func typeAttr(t types_go_proto.DataType) *attr_value_go_proto.AttrValue {
	return &attr_value_go_proto.AttrValue{Value: &attr_value_go_proto.AttrValue_Type{Type: t}}
}

// typeOf returns the type of a value of a pure operation.
func (b *builder) typeOf(v value) (types_go_proto.DataType, error) {
	if v.op < 0 {
		return b.p.flat.args[v.arg()].dtype, nil
	}
	d := b.p.ops[v.op].def
	if boolOps[d.GetOp()] {
		return types_go_proto.DataType_DT_BOOL, nil
	}
	for _, name := range []string{"DstT", "out_type", "output_type", "dtype", "Tparams", "T"} {
		if a := d.GetAttr()[name]; a != nil {
			return a.GetType(), nil
		}
	}
	return 0, fmt.Errorf("the type of %s (%s) is unknown", d.GetName(), d.GetOp())
}
