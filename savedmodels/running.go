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
