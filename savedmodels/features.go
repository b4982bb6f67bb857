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

	"github.com/galeone/tensorflow/tensorflow/go/core/framework/function_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/graph_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/node_def_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/types_go_proto"
	"github.com/galeone/tensorflow/tensorflow/go/core/framework/versions_go_proto"
	"google.golang.org/protobuf/proto"

	"steadyfit/internal/contract"
)

// ErrNoFeatures means that a model has no frozen part whose results can be computed once.
var ErrNoFeatures = errors.New("the model has no frozen part to compute once")

// Features is a model that is divided into a frozen part and the rest. The results of the
// frozen part, the features, are computed once per sample, and the rest is trained on them.
//
// The frozen part has the operations that depend only on data inputs, constants and variables
// that no training signature changes, draw no random numbers, and are of types that treat
// samples independently of each other. The axis along which an operation of such a type works
// is not always known from the graph. A caller must run the frozen part to check that the features
// of a sample do not depend on the other samples.
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
