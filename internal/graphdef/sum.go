package graphdef

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/tfproto"
)

// Sum returns a hexadecimal hash of the computation in a serialized GraphDef: the operations in
// their order, their attributes and inputs, and the functions that they run. The hash does not
// depend on names, on unused functions, or on the order of attributes and functions, which in
// C++ can change from process to process.
func Sum(def []byte) (string, error) {
	g, err := parse(def)
	if err != nil {
		return "", err
	}
	r := renaming{functions: map[string]*tfproto.FunctionDef{}, gradients: map[string]string{},
		names: map[string]string{}}
	for _, f := range g.GetLibrary().GetFunction() {
		r.functions[f.GetSignature().GetName()] = f
	}
	for _, gradient := range g.GetLibrary().GetGradient() {
		r.gradients[gradient.GetFunctionName()] = gradient.GetGradientFunc()
	}
	r.nodes(g.Node, nil)
	g.Library = nil
	if len(r.names) > 0 {
		g.Library = &tfproto.FunctionDefLibrary{}
	}
	for len(r.found) > 0 {
		f, gradient := r.found[0], ""
		r.found = r.found[1:]
		if gradient = r.gradients[f.GetSignature().GetName()]; gradient != "" {
			gradient = r.function(gradient)
		}
		r.inside(f)
		g.Library.Function = append(g.Library.Function, f)
		g.Library.Gradient = append(g.Library.Gradient, &tfproto.GradientDef{GradientFunc: gradient})
	}
	g.Versions = nil
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(g)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), nil
}

// renaming replaces the names of functions by numbers in the order of their first use.
type renaming struct {
	functions map[string]*tfproto.FunctionDef
	gradients map[string]string
	names     map[string]string
	found     []*tfproto.FunctionDef
}

// function returns the new name of a function. The name of an unknown function does not change.
func (r *renaming) function(name string) string {
	f := r.functions[name]
	if f == nil {
		return name
	}
	if r.names[name] == "" {
		r.names[name] = "function " + strconv.Itoa(len(r.names))
		r.found = append(r.found, f)
	}
	return r.names[name]
}

// nodes renames operations and returns their new names by old name. names has the new names of
// the enclosing function's arguments.
func (r *renaming) nodes(list []*tfproto.NodeDef, names map[string]string) map[string]string {
	numbers := make(map[string]string, len(list)+len(names))
	maps.Copy(numbers, names)
	for i, n := range list {
		numbers[n.GetName()] = strconv.Itoa(i)
	}
	for i, n := range list {
		n.Name, n.Op = strconv.Itoa(i), r.function(n.GetOp())
		for at, in := range n.Input {
			n.Input[at] = renamed(in, numbers)
		}
		n.ExperimentalDebugInfo = nil // has the old names
		r.attributes(n.Attr)
	}
	return numbers
}

// renamed returns an input with the new name of its source.
func renamed(input string, numbers map[string]string) string {
	name, control := strings.CutPrefix(input, "^")
	name, output, _ := strings.Cut(name, ":")
	return fmt.Sprintf("%v %s %s", control, numbers[name], cmp.Or(output, "0"))
}

func (r *renaming) attributes(attrs Attrs) {
	for _, name := range []string{
		"_class", // names of operations on the same device
		// The names of gradient functions, which a serialized graph does not use.
		"_gradient_op_type", "forward_function_name", "backward_function_name",
		"_user_specified_name",
	} {
		delete(attrs, name)
	}
	for _, name := range slices.Sorted(maps.Keys(attrs)) {
		r.call(attrs[name].GetFunc())
		for _, f := range attrs[name].GetList().GetFunc() {
			r.call(f)
		}
	}
}

func (r *renaming) call(f *tfproto.NameAttrList) {
	if f != nil {
		f.Name = r.function(f.GetName())
		r.attributes(f.Attr)
	}
}

// inside renames the operations, arguments and results of a function.
func (r *renaming) inside(f *tfproto.FunctionDef) {
	s := f.GetSignature()
	s.Name = r.names[s.GetName()]
	arguments := make(map[string]string)
	for i, a := range s.InputArg {
		arguments[a.GetName()] = "argument " + strconv.Itoa(i)
		a.Name = ""
	}
	numbers := r.nodes(f.NodeDef, arguments)
	results := make(map[string]string)
	for i, a := range s.OutputArg {
		results[strconv.Itoa(i)] = renamed(f.Ret[a.GetName()], numbers)
		a.Name = ""
	}
	f.Ret = results
	// The order of control outputs does not matter.
	var control []string
	for _, name := range f.ControlRet {
		control = append(control, numbers[name])
	}
	slices.Sort(control)
	s.ControlOutput, f.ControlRet = control, nil
	r.attributes(f.Attr)
	for _, a := range f.ArgAttr {
		r.attributes(a.Attr)
	}
}
