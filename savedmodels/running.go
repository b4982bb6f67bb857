package savedmodels

import (
	"fmt"
	"slices"
	"strconv"

	"steadyfit/internal/tfproto"
)

// running is a function that computes running metrics from their variables.
type running struct {
	*builder
	call *tfproto.NodeDef
	// The field of has the variable of each argument.
	of []int
}

// checkSums returns an error if a variable that the ranks add up is not a sum: an operation other
// than an addition changes it, or the added value depends on such variables.
func (p *parallel) checkSums(part *part, list []*exchanged) error {
	sums := map[int]bool{}
	for _, e := range list {
		sums[e.id] = !e.mean && !e.first
	}
	// The function of returns the variable that is the first input of an operation; -1 if there is
	// none.
	of := func(op *flatOp) int {
		if len(op.in) == 0 || op.in[0].op >= 0 {
			return -1
		}
		return p.graph.main.nodes[part.flat.args[op.in[0].arg()].from].variable
	}
	reads := func(op *flatOp) bool { return op.def.GetOp() == "ReadVariableOp" && sums[of(op)] }
	for i := range part.ops {
		op := &part.ops[i]
		for k, v := range op.in {
			if v.op >= 0 || !sums[p.graph.main.nodes[part.flat.args[v.arg()].from].variable] {
				continue
			}
			id, name := of(op), op.def.GetOp()
			ok := k == 0 && name == "ReadVariableOp"
			switch {
			case k == 0 && (name == "AssignAddVariableOp" || name == "ResourceScatterAdd"):
				ok = !part.any(part.flat.needed(op.in[1:], nil, nil, false), reads)
			case k == 0 && name == "AssignVariableOp" && len(op.in) > 1:
				ok = part.adds(op.in[1], func(op *flatOp) bool { return op.def.GetOp() == "ReadVariableOp" && of(op) == id }, reads)
			}
			if !ok {
				return fmt.Errorf("%s (%s) changes variable %s, which is the sum over micro-batches, other than by adding to it",
					op.def.GetName(), name, p.graph.vars[max(id, 0)].Name)
			}
		}
	}
	return nil
}

// running returns the function for the running metrics of a signature; nil if it has none.
func (p *parallel) running(part *part, list []*exchanged) (*running, error) {
	s, reset := part.signature, p.model.find(p.model.Roles.ResetMetrics)
	if reset == nil || !slices.ContainsFunc(list, func(e *exchanged) bool { return e.running }) {
		return nil, nil
	}
	isRunning := map[int]bool{}
	for _, e := range list {
		isRunning[e.id] = e.running
	}
	before := len(p.nodes)
	b := p.builder(part, "running_"+s.Name, map[value]string{})
	var results []value
	for i, t := range s.Outputs {
		if reset.Output(t.Name) == nil {
			continue
		}
		results = append(results, part.results[i])
		if err := b.output(t.Name, part.results[i]); err != nil {
			return nil, err
		}
	}
	need := part.flat.needed(results, nil, nil, false)
	for i, is := range need {
		if op := &part.ops[i]; is && !pureOps[op.def.GetOp()] && op.def.GetOp() != "ReadVariableOp" ||
			is && slices.ContainsFunc(op.in, func(v value) bool { return v.op < 0 && part.inputs[v.arg()] != nil }) {
			return nil, fmt.Errorf("running metrics depend on more than their variables: on %s", op.def.GetName())
		}
	}
	b.finish(need, nil)
	r := &running{builder: b, call: p.nodes[len(p.nodes)-1]}
	p.nodes = p.nodes[:before]
	for _, source := range r.sources {
		id := p.graph.main.nodes[p.graph.nodeOf(source)].variable
		if !isRunning[id] {
			return nil, fmt.Errorf("running metrics depend on more than their variables: on %s", source)
		}
		r.of = append(r.of, id)
	}
	return r, nil
}

// adds reports whether a value is the sum of two results. One must be the result of an operation
// for which old is true. The other must not depend on an operation for which excluded is true.
func (p *part) adds(v value, old, excluded func(*flatOp) bool) bool {
	if v.op < 0 {
		return false
	}
	sum := &p.ops[v.op]
	if name := sum.def.GetOp(); name != "AddV2" && name != "Add" {
		return false
	}
	for i, in := range sum.in {
		if in.op < 0 || !old(&p.ops[in.op]) {
			continue
		}
		need := p.flat.needed([]value{sum.in[1-i]}, nil, nil, false)
		return !p.any(need, excluded)
	}
	return false
}

func (p *part) any(need []bool, is func(*flatOp) bool) bool {
	for i := range p.ops {
		if need[i] && is(&p.ops[i]) {
			return true
		}
	}
	return false
}

// add adds a call of the function, to run after an operation. It returns the metrics.
func (r *running) add(g *subgraph, list []*exchanged, after string) (metrics []Tensor) {
	if r == nil {
		return nil
	}
	var inputs []string
	for _, id := range r.of {
		i := slices.IndexFunc(list, func(e *exchanged) bool { return e.id == id })
		inputs = append(inputs, list[i].handle)
	}
	call := g.add("running", r.call.GetOp(), r.call.GetAttr(), append(inputs, "^"+after)...)
	for i, t := range r.signature.Outputs {
		t.Op = call + ":" + strconv.Itoa(i)
		metrics = append(metrics, t)
	}
	return metrics
}
