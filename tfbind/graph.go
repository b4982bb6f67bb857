package tfbind

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Graph is a TensorFlow graph.
type Graph struct {
	h        *handle
	imported *tally
}

// NewGraph makes an empty graph. The result must be closed.
func NewGraph() (*Graph, error) {
	if err := library(); err != nil {
		return nil, err
	}
	return wrapGraph(capi.newGraph()), nil
}

func wrapGraph(p ptr) *Graph {
	imported := &tally{total: &operations}
	g := &Graph{newHandle(p, graphKind, 0, func(p ptr) {
		capi.deleteGraph(p)
		imported.clear()
	}), imported}
	watch(g, g.h)
	return g
}

// Close frees the graph when no session uses it. Closing twice does nothing.
func (g *Graph) Close() error {
	if g != nil {
		g.h.close()
		runtime.KeepAlive(g)
	}
	return nil
}

// Import adds the operations of a serialized tensorflow.GraphDef. A non-empty prefix and a slash
// are put before their names. Sessions that use the graph see the operations at their next run.
func (g *Graph) Import(def []byte, prefix string) error {
	p, err := g.h.acquire()
	if err != nil {
		return err
	}
	defer g.h.release()
	if err := capi.importGraph(p, def, prefix); err != nil {
		return err
	}
	g.imported.add(countNodes(def))
	return nil
}

// countNodes returns the number of operations of a serialized tensorflow.GraphDef, outside of its
// functions.
func countNodes(def []byte) (n int64) {
	const node = 1 // GraphDef.node
	for len(def) > 0 {
		field, _, size := protowire.ConsumeField(def)
		if size < 0 {
			break
		}
		if field == node {
			n++
		}
		def = def[size:]
	}
	return n
}

// Output is an output of an operation, which can be fed or fetched. It is valid until its graph is
// closed. Outputs are comparable.
type Output struct {
	graph *Graph
	op    ptr
	index int
}

// operation returns the operation with a name, or ErrNotFound.
func (g *Graph) operation(name string) (ptr, error) {
	p, err := g.h.acquire()
	if err != nil {
		return nil, err
	}
	defer g.h.release()
	op := capi.findOperation(p, name)
	if op == nil {
		return nil, &Error{Op: "find operation", Code: "NOT_FOUND", Message: "the graph has no operation " +
			strconv.Quote(name)}
	}
	return op, nil
}

// Output returns an output by its tensor name, such as "StatefulPartitionedCall:0". The default
// index is 0.
func (g *Graph) Output(name string) (Output, error) {
	opName, index := name, 0
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		n, err := strconv.Atoi(name[i+1:])
		if err != nil || n < 0 {
			return Output{}, &Error{Op: "find output", Code: "INVALID_ARGUMENT",
				Message: fmt.Sprintf("%q is not a tensor name: expected operation:index", name)}
		}
		opName, index = name[:i], n
	}
	op, err := g.operation(opName)
	if err != nil {
		return Output{}, err
	}
	o := Output{g, op, index}
	if _, n, _ := o.describe(); index >= n {
		return Output{}, &Error{Op: "find output", Code: "NOT_FOUND",
			Message: fmt.Sprintf("%q: operation %s has %d outputs", name, opName, n)}
	}
	return o, nil
}

// describe returns the operation of an output, its number of outputs and the element type. All are
// zero for the zero Output and after the graph was closed. d is 0 if the index of o is too large.
func (o Output) describe() (operation string, outputs int, d DType) {
	if o.graph == nil {
		return "", 0, 0
	}
	if _, err := o.graph.h.acquire(); err != nil {
		return "", 0, 0
	}
	defer o.graph.h.release()
	if operation, outputs = capi.describeOperation(o.op); o.index < outputs {
		d = capi.outputDType(o.op, o.index)
	}
	return operation, outputs, d
}

// DType returns the element type. It is 0 if the graph was closed.
func (o Output) DType() DType { _, _, d := o.describe(); return d }

// name returns the tensor name, such as "x:0".
func (o Output) name() string {
	operation, _, _ := o.describe()
	return operation + ":" + strconv.Itoa(o.index)
}
