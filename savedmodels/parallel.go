package savedmodels

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/graphdef"
	"steadyfit/internal/tfproto"
	"steadyfit/option"
)

// errNotParallel means that several processes cannot train the model together.
var errNotParallel = errors.New("several processes cannot train the model together")

// Parallel has the train step that several processes ("ranks") run together. Each rank runs the
// signature gradients on its part of a batch. Then the accumulators, the variables that the
// signatures gradients and apply both change, are replaced by their sums over all ranks, and each
// rank runs the signature apply. The weights of all ranks thus stay equal.
//
// Running metrics are sums in variables, too. Before a step, all ranks except the first set these
// sums to zero. After the step, all ranks have the total sums and compute the metrics from them.
//
// Variables of 1 MiB or more are exchanged one by one, and smaller ones of the same type together.
// In an exchange of up to 256 KiB, the ranks gather all accumulators (CollectiveGatherV2) and add
// them in the order of the ranks. Gathering needs fewer consecutive messages than
// CollectiveReduceV2. With up to nine ranks, the sums then equal those of as many micro-batches bit
// for bit; with ten to twelve ranks, the sums of the model digits differed (TensorFlow 2.21).
// CollectiveReduceV2 adds parts in various orders, so its sums equal those of micro-batches only
// with two ranks. All ranks always have equal sums.
type Parallel struct {
	// Graph is a serialized GraphDef to import into the graph of the loaded model.
	Graph []byte
	// Signature is that of the step. Its inputs begin with those of the signature gradients. The inputs of the
	// signature apply, which may have the same names, are last. The first output is shares, float32 [ranks * n].
	// The outputs of the signature apply and the running metrics follow. The share of a rank consists of the
	// flags of the rank, a number that is 0 if its gradients are not finite and otherwise 1, and the metrics of
	// the signature gradients.
	Signature Signature
	// Own is the number of inputs that belong to the signature gradients.
	Own int
	// Flags is the tensor to feed the flags to, float32 [2].
	Flags string
}

const (
	// maxGathered is the maximum size, in bytes, of a group of variables whose parts the ranks
	// gather.
	maxGathered = 256 << 10
	// largeVariable is the least size, in bytes, of a variable that is exchanged alone.
	largeVariable = 1 << 20
	// parallelPrefix begins the names of the added operations.
	parallelPrefix = "steadyfit_parallel/"
)

// reducible maps the type of a variable to a type of the same size that CollectiveReduceV2 can add.
var reducible = map[dtype.DType]dtype.DType{
	dtype.Float32: dtype.Float32, dtype.Float64: dtype.Float64, dtype.Float16: dtype.Float16,
	dtype.BFloat16: dtype.BFloat16,
	dtype.Int32:    dtype.Int32, dtype.Int64: dtype.Int64, dtype.Uint32: dtype.Int32, dtype.Uint64: dtype.Int64,
}

// ParallelOptions configure Model.Parallel.
type ParallelOptions struct {
	// Rank is the index of this rank, and Ranks the number of ranks.
	Rank, Ranks int
	// Inexact allows variables that the signature gradients changes and the signature apply does
	// not clear. Floating-point variables, such as moving averages of BatchNormalization, get the
	// mean over the ranks. Integer variables, such as the states of random generators, get the
	// value of the first rank.
	Inexact bool
}

// Parallel returns the step of a rank. Without ParallelOptions.Inexact, variables that would differ
// between ranks are an error. The model needs the roles Gradients and Apply.
func (m *Model) Parallel(o ParallelOptions) (*Parallel, error) {
	if m.program != nil {
		return nil, fmt.Errorf("%w: its frozen part is computed in advance (Features)", errNotParallel)
	}
	src, err := m.source()
	if err != nil {
		return nil, err
	}
	p := &parallel{division: *m.division(src), rank: o.Rank, ranks: o.Ranks, functions: map[string]bool{}}
	out := &Parallel{}
	gradients, apply := m.find(m.Roles.Gradients), m.find(m.Roles.Apply)
	exchanged, err := p.choose(gradients, apply, o.Inexact)
	if err == nil {
		err = p.step(out, gradients, apply, exchanged)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotParallel, err)
	}
	out.Graph, err = proto.Marshal(&tfproto.GraphDef{Node: p.nodes, Library: p.library,
		Versions: p.def.GetVersions()})
	return out, err
}

type parallel struct {
	division
	rank, ranks int
	functions   map[string]bool // names of the functions in library
}

// exchanged is a variable that the ranks exchange in a step.
type exchanged struct {
	*Variable
	id int
	as dtype.DType // the type of the sum
	// mean is true for a variable that is averaged instead of summed. first is true for a variable
	// that gets the value of the first rank. running is true for a variable of running metrics.
	mean, first, running bool
	handle               string // the operation in the current step
}

// choose returns the variables that the ranks exchange between the signatures of and then.
func (p *parallel) choose(of, then *Signature, inexact bool) (list []*exchanged, err error) {
	k := &p.model.known
	running := k.signature[p.model.Roles.ResetMetrics].changed()
	cleared := k.signature[then.Name].changed()
	for _, id := range slices.Sorted(maps.Keys(k.signature[of.Name].changed())) {
		e := &exchanged{Variable: p.graph.vars[id], id: id, running: running[id] && !cleared[id]}
		var known bool
		e.as, known = reducible[e.DType]
		differs := !cleared[id] && !e.running
		e.mean = differs && slices.Contains(floats, e.DType)
		e.first = differs && !e.mean
		switch {
		case differs && !inexact:
			return nil, option.Errorf("signature %s changes variable %s, so the ranks would differ; "+
				"{Options.AllowInexactSplit} accepts that", of.Name, e.Name)
		case !known:
			return nil, fmt.Errorf("variable %s, which signature %s changes, has the type %s", e.Name, of.Name, e.DType)
		case e.UnknownRank || slices.ContainsFunc(e.Shape, func(d int64) bool { return d < 0 }):
			return nil, fmt.Errorf("variable %s, which signature %s changes, has no fixed shape", e.Name, of.Name)
		}
		list = append(list, e)
	}
	if !slices.ContainsFunc(list, func(e *exchanged) bool { return cleared[e.id] }) {
		return nil, fmt.Errorf("signatures %s and %s change no variable in common", of.Name, then.Name)
	}
	return list, nil
}

// whyInexact returns the value for Model.Inexact.
func (m *Model) whyInexact() string {
	k, r := &m.known, m.Roles
	uses := func(signature string) set {
		return union(k.signature[signature].changed(), k.signature[signature].passed)
	}
	gradients := k.signature[r.Gradients]
	if own := uses(r.Gradients).minus(uses(r.Apply), uses(r.ResetMetrics)); len(own) > 0 {
		return fmt.Sprintf("signature %s changes %s", r.Gradients,
			m.variables(own, "that signature "+r.Apply+" does not, such as moving averages or the state of a random generator"))
	}
	if len(gradients.fleeting) > 0 {
		f := gradients.fleeting[0]
		return fmt.Sprintf("signature %s has state outside of variables: %s %s", r.Gradients, f.op, f.does)
	}
	return ""
}

// subgraph adds operations with a prefix in their names.
type subgraph struct {
	graphdef.Graph
	prefix string
}

func (g *subgraph) add(name, op string, a graphdef.Attrs, inputs ...string) string {
	g.Add(g.prefix+name, op, a, inputs...)
	return g.prefix + name
}

func (g *subgraph) integers(name string, values []int64, shape ...int64) string {
	raw := make([]byte, 0, 8*len(values))
	for _, v := range values {
		raw = binary.LittleEndian.AppendUint64(raw, uint64(v))
	}
	g.Constant(g.prefix+name, dtype.Int64, raw, shape...)
	return g.prefix + name
}

func (g *subgraph) int32(name string, value int32) string {
	g.Constant(g.prefix+name, dtype.Int32, binary.LittleEndian.AppendUint32(nil, uint32(value)))
	return g.prefix + name
}

func (g *subgraph) cast(name, value string, from, to dtype.DType) string {
	return g.add(name, "Cast", graphdef.Attrs{"SrcT": graphdef.Type(from), "DstT": graphdef.Type(to)}, value)
}

// convert reinterprets a value as another type of the same size, or rounds it to a type of another
// size.
func (g *subgraph) convert(name, value string, from, to dtype.DType) string {
	switch {
	case from == to:
		return value
	case from.Size() != to.Size():
		return g.cast(name, value, from, to)
	}
	return g.add(name, "Bitcast", graphdef.Attrs{"T": graphdef.Type(from), "type": graphdef.Type(to)}, value)
}

func (g *subgraph) reshape(name, value string, d dtype.DType, shape string) string {
	return g.add(name, "Reshape", graphdef.Attrs{"T": graphdef.Type(d), "Tshape": graphdef.Type(dtype.Int64)}, value,
		shape)
}

// concat joins vectors.
func (g *subgraph) concat(name string, d dtype.DType, vectors ...string) string {
	axis := g.int32(name+"_axis", 0)
	return g.add(name, "ConcatV2", graphdef.Attrs{"N": graphdef.Int(len(vectors)), "T": graphdef.Type(d),
		"Tidx": graphdef.Type(dtype.Int32)}, append(vectors, axis)...)
}

// step adds the step of a rank.
func (p *parallel) step(to *Parallel, of, then *Signature, list []*exchanged) error {
	part, err := p.analyse(of)
	if err == nil {
		err = p.checkSums(part, list)
	}
	var result *running
	if err == nil {
		result, err = p.running(part, list)
	}
	if err != nil {
		return fmt.Errorf("signature %s: %w", of.Name, err)
	}
	g := &subgraph{prefix: parallelPrefix}
	before := p.handles(g, list)
	var after []string // the operations that run before the exchange
	own, apply, s := *of, *then, &to.Signature
	p.copy(&own, g.prefix+"own/", before...)
	for _, t := range own.Outputs {
		op, _, _ := strings.Cut(t.Op, ":")
		after = append(after, "^"+op)
	}
	slices.Sort(after)
	flags := g.add("flags", "Placeholder", graphdef.Attrs{"dtype": graphdef.Type(dtype.Float32),
		"shape": graphdef.Shape([]int64{contract.ShareFlags})})
	shares, done := p.exchange(g, p.share(g, flags, &own), shareSize(of), list, slices.Compact(after))
	p.copy(&apply, g.prefix+"then/", done)
	s.Name, to.Own, to.Flags = of.Name, len(own.Inputs), flags+":0"
	s.Inputs = slices.Concat(own.Inputs, apply.Inputs)
	s.Outputs = slices.Concat([]Tensor{
		{Name: "shares", Op: shares, DType: dtype.Float32, Shape: []int64{int64(p.ranks) * shareSize(of)}},
	}, apply.Outputs, result.add(g, list, done))
	p.nodes = append(p.nodes, g.Nodes()...)
	return nil
}

func shareSize(of *Signature) int64 { return int64(contract.ShareResults + len(of.Metrics())) }

// handles adds the handles of the variables. It returns the operations that prepare variables of
// ranks other than the first: they set running metrics to zero, and give the seed generators of
// Keras (uint32 [2], of which each draw increments the second number) other first numbers.
func (p *parallel) handles(g *subgraph, list []*exchanged) (prepared []string) {
	for i, e := range list {
		id := strconv.Itoa(i)
		e.handle = g.add("handle"+id, "VarHandleOp", e.HandleAttrs())
		if e.running && p.rank > 0 {
			g.Constant(g.prefix+"zero"+id, e.DType, make([]byte, e.Bytes()), e.Shape...)
			prepared = append(prepared, g.add("clear"+id, "AssignVariableOp", graphdef.Attrs{"dtype": graphdef.Type(e.DType)},
				e.handle, g.prefix+"zero"+id))
		}
		if e.first && p.rank > 0 && e.DType == dtype.Uint32 && slices.Equal(e.Shape, []int64{2}) {
			offset := binary.LittleEndian.AppendUint64(nil, uint64(uint32(p.rank)*0x9e3779b9))
			g.Constant(g.prefix+"offset"+id, e.DType, offset, 2)
			read := g.add("seed"+id, "ReadVariableOp", graphdef.Attrs{"dtype": graphdef.Type(e.DType)}, e.handle)
			seed := g.add("seeded"+id, "AddV2", graphdef.Attrs{"T": graphdef.Type(e.DType)}, read, g.prefix+"offset"+id)
			prepared = append(prepared, g.add("reseed"+id, "AssignVariableOp", graphdef.Attrs{"dtype": graphdef.Type(e.DType)},
				e.handle, seed))
		}
	}
	return prepared
}

// copy adds copies of the nodes that a signature needs, with a prefix in their names, and the functions that they call.
// It gives s the names of its tensors there. Handles with the same name and container refer to the same
// variable. Operations with inputs run after the operations in after.
func (p *parallel) copy(s *Signature, prefix string, after ...string) {
	var roots []string
	for _, list := range []*[]Tensor{&s.Inputs, &s.Outputs} {
		*list = slices.Clone(*list)
		for i := range *list {
			roots = append(roots, (*list)[i].Op)
			(*list)[i].Op = prefix + (*list)[i].Op
		}
	}
	nodes, library := p.reached(roots)
	for _, n := range nodes {
		c := (&flatOp{def: n}).clone(prefix+n.GetName(), nil)
		for _, in := range n.GetInput() {
			name, control := strings.CutPrefix(in, "^")
			in = prefix + name
			if control {
				in = "^" + in
			}
			c.Input = append(c.Input, in)
		}
		if len(n.GetInput()) > 0 {
			for _, name := range after {
				c.Input = append(c.Input, "^"+name)
			}
		}
		if v := p.graph.main.nodes[p.graph.main.byName[n.GetName()]].variable; v >= 0 {
			c.Attr["shared_name"] = graphdef.Text(p.graph.vars[v].Name)
		} else if shared := c.Attr["shared_name"]; shared != nil && len(shared.GetS()) == 0 {
			c.Attr["shared_name"] = graphdef.Text(n.GetName()) // such as that of a table
		}
		p.nodes = append(p.nodes, c)
	}
	for _, f := range library.Function {
		if name := f.GetSignature().GetName(); !p.functions[name] {
			p.functions[name] = true
			p.library.Function = append(p.library.Function, f)
		}
	}
}

// share adds to g a vector with a place for the share of each rank (Parallel.Signature). It has the share of
// this rank, and zeros in the other places, so that the sum over all ranks has all shares.
func (p *parallel) share(g *subgraph, flags string, of *Signature) string {
	one := g.integers("one", []int64{1}, 1)
	applied := g.cast("sound", one, dtype.Int64, dtype.Float32)
	if finite := of.Output(contract.OutputGradsFinite); finite != nil {
		applied = g.reshape("finite", g.cast("finite_number", finite.Op, dtype.Bool, dtype.Float32), dtype.Float32, one)
	}
	parts := []string{flags, applied}
	for i, t := range of.Metrics() {
		id := strconv.Itoa(i)
		parts = append(parts, g.reshape("result"+id, g.cast("number"+id, t.Op, t.DType, dtype.Float32), dtype.Float32, one))
	}
	size := shareSize(of)
	own := g.concat("share", dtype.Float32, parts...)
	around := g.integers("around", []int64{int64(p.rank) * size, int64(p.ranks-1-p.rank) * size}, 1, 2)
	return g.add("placed", "Pad", graphdef.Attrs{"T": graphdef.Type(dtype.Float32),
		"Tpaddings": graphdef.Type(dtype.Int64)}, own, around)
}

// group is a list of variables that are exchanged as one vector.
type group struct {
	vars   []*exchanged
	as     dtype.DType
	shares bool // the vector ends with the shares
}

// groupsOf returns the groups of the exchanged variables. Each group takes a round of messages, so
// small variables of a type share one. Each large variable has a group of its own, since joining
// variables to a vector and dividing it copies them. The first group has the shares.
func groupsOf(list []*exchanged) []*group {
	groups := []*group{{as: dtype.Float32, shares: true}}
	small := map[dtype.DType]*group{dtype.Float32: groups[0]}
	for _, e := range list {
		to := small[e.as]
		if to == nil || e.Bytes() >= largeVariable {
			to = &group{as: e.as}
			groups = append(groups, to)
			if e.Bytes() < largeVariable {
				small[e.as] = to
			}
		}
		to.vars = append(to.vars, e)
	}
	return groups
}

// exchange adds the sums over all ranks: of the shares, and of the exchanged variables after the
// operations in after. It returns the tensor of the shares, and an operation that runs after the
// whole exchange.
func (p *parallel) exchange(g *subgraph, share string, width int64, list []*exchanged, after []string) (shares,
	done string) {
	flat := g.integers("flat", []int64{-1}, 1)
	size, axis := g.int32("ranks", int32(p.ranks)), g.int32("axis", 0)
	g.integers("row", []int64{1, -1}, 2)
	var assigned []string
	for i, group := range groupsOf(list) {
		id, d := strconv.Itoa(i), group.as
		var vectors []string
		var sizes []int64
		for j, e := range group.vars {
			at := fmt.Sprintf("%s_%d", id, j)
			value := g.add("read"+at, "ReadVariableOp", graphdef.Attrs{"dtype": graphdef.Type(e.DType)},
				append([]string{e.handle}, after...)...)
			value = g.reshape("vector"+at, g.convert("bits"+at, value, e.DType, d), d, flat)
			switch {
			case e.first && p.rank > 0:
				value = g.add("none"+at, "ZerosLike", graphdef.Attrs{"T": graphdef.Type(d)}, value)
			case e.mean:
				value = g.add("part"+at, "RealDiv", graphdef.Attrs{"T": graphdef.Type(d)}, value,
					g.cast("ranks"+at, size, dtype.Int32, d))
			}
			vectors, sizes = append(vectors, value), append(sizes, e.Bytes()/int64(e.DType.Size()))
		}
		if group.shares {
			vectors, sizes = append(vectors, share), append(sizes, int64(p.ranks)*width)
		}
		sums := []string{vectors[0]}
		if len(vectors) > 1 {
			sums[0] = g.concat("all"+id, d, vectors...)
		}
		sums[0] = p.sum(g, id, sums[0], d, sizes, int32(contract.FirstInstance+i))
		if len(vectors) > 1 {
			split := g.add("split"+id, "SplitV", graphdef.Attrs{"T": graphdef.Type(d), "Tlen": graphdef.Type(dtype.Int64),
				"num_split": graphdef.Int(len(vectors))},
				g.reshape("sums"+id, sums[0], d, flat), g.integers("sizes"+id, sizes, int64(len(sizes))), axis)
			sums = nil
			for j := range vectors {
				sums = append(sums, fmt.Sprintf("%s:%d", split, j))
			}
		}
		for j, e := range group.vars {
			at := fmt.Sprintf("%s_%d", id, j)
			value := g.reshape("value"+at, sums[j], d, g.integers("shape"+at, e.Shape, int64(len(e.Shape))))
			assigned = append(assigned, "^"+g.add("assign"+at, "AssignVariableOp",
				graphdef.Attrs{"dtype": graphdef.Type(e.DType)}, e.handle, g.convert("own"+at, value, d, e.DType)))
		}
		if group.shares {
			shares = g.reshape("shares", sums[len(group.vars)], d, flat)
		}
	}
	return shares + ":0", g.add("done", "NoOp", nil, assigned...)
}

// sum adds the sum over all ranks of a vector whose parts have the given sizes. The sum may be a
// matrix of one row, since TensorFlow splits a matrix into rows without a copy, unlike a vector
// into parts.
func (p *parallel) sum(g *subgraph, id, value string, d dtype.DType, sizes []int64, instance int32) string {
	bytes := int64(0)
	for _, n := range sizes {
		bytes += n * int64(d.Size())
	}
	typed := graphdef.Attrs{"T": graphdef.Type(d)}
	key := g.int32("instance"+id, instance)
	if bytes > maxGathered || d == dtype.BFloat16 { // CollectiveGatherV2 does not support bfloat16
		return g.add("sum"+id, "CollectiveReduceV2", graphdef.Attrs{"T": graphdef.Type(d), "merge_op": graphdef.Text("Add"),
			"final_op": graphdef.Text("Id")},
			value, g.prefix+"ranks", g.int32("group"+id, int32(contract.GroupKey(p.ranks))), key)
	}
	row := g.reshape("row"+id, value, d, g.prefix+"row")
	all := g.add("gathered"+id, "CollectiveGatherV2", typed, row, g.prefix+"ranks",
		g.int32("group"+id, int32(contract.GroupKey(p.ranks)+1)), key)
	each := g.add("each"+id, "Split", graphdef.Attrs{"T": graphdef.Type(d), "num_split": graphdef.Int(p.ranks)},
		g.prefix+"axis", all)
	value = each + ":0"
	for rank := 1; rank < p.ranks; rank++ {
		value = g.add(fmt.Sprintf("to%s_%d", id, rank), "AddV2", typed, value, fmt.Sprintf("%s:%d", each, rank))
	}
	return value
}
