package savedmodels

import (
	"maps"
	"slices"
	"strings"

	pb "github.com/galeone/tensorflow/tensorflow/go/core/protobuf/for_core_protos_go_proto"
)

// composite is an argument that consists of several tensors, such as a tf.RaggedTensor.
// TensorFlow 2 gives its signature one input per tensor. A ragged tensor x has the inputs x,
// the values of all rows, and x_1, the positions where the rows begin.
type composite struct {
	kind  string // "ragged tensor"
	parts []string
}

// argumentKinds records the kind of each argument of the functions in a serialized
// SavedObjectGraph: "" for a tensor, or the kind of composite tensor. It skips functions
// without a composite argument.
func (src *source) argumentKinds(encoded []byte, budget *estimate) error {
	objects := &pb.SavedObjectGraph{}
	if err := budget.decode(encoded, objects, "object graph"); err != nil {
		return err
	}
	for name, f := range objects.GetConcreteFunctions() {
		kinds := leaves(f.GetCanonicalizedInputSignature(), nil)
		if slices.ContainsFunc(kinds, func(kind string) bool { return kind != "" }) {
			src.kinds[name] = kinds
		}
	}
	return nil
}

// leaves appends the kinds of the tensors in a nested structure to kinds, in TensorFlow's
// flattening order.
func leaves(v *pb.StructuredValue, kinds []string) []string {
	var inner []*pb.StructuredValue
	switch k := v.GetKind().(type) {
	case *pb.StructuredValue_TensorSpecValue, *pb.StructuredValue_BoundedTensorSpecValue:
		return append(kinds, "")
	case *pb.StructuredValue_TypeSpecValue:
		name := strings.TrimSuffix(k.TypeSpecValue.GetTypeSpecClass().String(), "_SPEC")
		return append(kinds, strings.ToLower(strings.ReplaceAll(name, "_", " ")))
	case *pb.StructuredValue_ListValue:
		inner = k.ListValue.GetValues()
	case *pb.StructuredValue_TupleValue:
		inner = k.TupleValue.GetValues()
	case *pb.StructuredValue_NamedTupleValue:
		for _, pair := range k.NamedTupleValue.GetValues() {
			inner = append(inner, pair.GetValue())
		}
	case *pb.StructuredValue_DictValue:
		fields := k.DictValue.GetFields()
		for _, name := range slices.Sorted(maps.Keys(fields)) {
			inner = append(inner, fields[name])
		}
	}
	for _, v := range inner {
		kinds = leaves(v, kinds)
	}
	return kinds
}

// composites finds the composite inputs of a signature with the outputs roots. The signature
// calls a wrapper function, which takes one argument per tensor and calls the exported Python
// function.
func (g *graph) composites(roots []string, kinds map[string][]string) ([]composite, error) {
	var found []composite
	for _, root := range roots {
		i := g.nodeOf(root)
		if i < 0 || len(kinds) == 0 {
			continue
		}
		for _, wrapper := range g.main.nodes[i].calls {
			if err := g.spend(len(wrapper.to.nodes)); err != nil {
				return nil, err
			}
			for _, n := range wrapper.to.nodes {
				for _, c := range n.calls {
					found = append(found, c.to.composites(kinds[c.to.name])...)
				}
			}
		}
	}
	return found, nil
}

// composites finds the composite arguments of a function. Arguments with the same user name
// belong to the same composite tensor.
func (b *body) composites(kinds []string) []composite {
	var found []composite
	for i, j := 0, 0; len(kinds) > 0 && i < len(b.args); i, kinds = j, kinds[1:] {
		j = i + 1
		for kinds[0] != "" && j < len(b.args) && b.args[j].user == b.args[i].user {
			j++
		}
		if j > i+1 {
			c := composite{kind: kinds[0]}
			for _, a := range b.args[i:j] {
				c.parts = append(c.parts, a.name)
			}
			found = append(found, c)
		}
	}
	return found
}
