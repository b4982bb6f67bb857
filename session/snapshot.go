package session

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"steadyfit/internal/graphdef"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Snapshot is the state of a model at one moment, in memory: the values of all variables of a
// checkpoint, the learning rate and the loss scale. It outlives its session and must be
// closed.
//
// A snapshot shares the variables' buffers until training writes to the variables, which
// copies them. After some steps it takes the memory of the variables a second time, at most
// Bytes.
//
// State outside of variables (random generators of operations, tables that change, iterators)
// is not included: it continues in the same session and starts over in a reloaded one. Package
// savedmodels warns about it (savedmodels.CodeStateNotSaved).
type Snapshot struct {
	model  string // hash of the model
	values tfbind.Results
	rate   float64
	scale  scaleState
}

// ErrSnapshot means that the snapshot is closed, or is of another model.
var ErrSnapshot = errors.New("the snapshot cannot be used")

// Bytes returns the size of the values.
func (p *Snapshot) Bytes() int64 {
	var n int64
	for _, v := range p.values {
		n += v.Bytes()
	}
	return n
}

// Close frees the values. Closing twice does nothing.
func (p *Snapshot) Close() error {
	if p == nil {
		return nil
	}
	values := p.values
	p.values = nil
	return values.Close()
}

// stateOps are operations added to the model's graph that read and write its variables.
type stateOps struct {
	reads, places []tfbind.Output
	writes        []tfbind.Operation
}

// statePrefix is the prefix of the names of the operations that are added to a model's graph.
const statePrefix = "steadyfit_state"

// stateOperations adds the operations to the graph at their first use. A handle with the same
// name and container refers to the same variable.
func (s *Session) stateOperations() (*stateOps, error) {
	if s.state != nil {
		return s.state, nil
	}
	g := &graphdef.Graph{}
	n := 0
	for _, v := range s.model.Variables {
		if !v.Saved || !v.Restored {
			continue
		}
		id := strconv.Itoa(n)
		shape := graphdef.AnyShape()
		if !v.UnknownRank {
			shape = graphdef.Shape(v.Shape)
		}
		g.Add("handle"+id, "VarHandleOp", graphdef.Attrs{
			"dtype": graphdef.Type(v.DType), "shape": shape,
			"shared_name": graphdef.Text(v.Name), "container": graphdef.Text(v.Container),
		}).
			Add("read"+id, "ReadVariableOp", graphdef.Attrs{"dtype": graphdef.Type(v.DType)}, "handle"+id).
			Placeholder("value"+id, v.DType).
			Add("write"+id, "AssignVariableOp", graphdef.Attrs{"dtype": graphdef.Type(v.DType)}, "handle"+id, "value"+id)
		n++
	}
	def, err := g.Bytes()
	if err != nil {
		return nil, err
	}
	graph := s.tf.Graph()
	if err := graph.Import(def, statePrefix); err != nil {
		return nil, fmt.Errorf("operations for snapshots: %w", err)
	}
	o := &stateOps{}
	for i := range n {
		id := strconv.Itoa(i)
		read, err := graph.Output(statePrefix + "/read" + id)
		place, errPlace := graph.Output(statePrefix + "/value" + id)
		write, errWrite := graph.Operation(statePrefix + "/write" + id)
		if err := errors.Join(err, errPlace, errWrite); err != nil {
			return nil, err
		}
		o.reads, o.places, o.writes = append(o.reads, read), append(o.places, place), append(o.writes, write)
	}
	if err := s.adopt(nil, func(n *native) { n.state = o }); err != nil {
		return nil, fmt.Errorf("operations for snapshots: %w", err)
	}
	return o, nil
}

// fits reports whether the snapshot can be written to a model's variables. The error is
// ErrSnapshot.
func (p *Snapshot) fits(m *savedmodels.Model) error {
	switch {
	case p == nil || p.values == nil:
		return fmt.Errorf("%w: it is closed", ErrSnapshot)
	case p.model != m.Hash:
		return fmt.Errorf("%w: it is of another model (%.12s, this is %.12s)", ErrSnapshot, p.model, m.Hash)
	}
	return nil
}

// Snapshot takes the state of the model. The result must be closed.
func (s *Session) Snapshot(ctx context.Context) (*Snapshot, error) {
	o, err := s.stateOperations()
	if err != nil {
		return nil, err
	}
	values := tfbind.Results{} // for a model without variables
	if len(o.reads) > 0 {
		values, err = s.tf.Run(ctx, nil, o.reads)
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	p := &Snapshot{model: s.model.Hash, values: values, rate: s.rate}
	if s.scaler != nil {
		p.scale = s.scaler.scaleState
	}
	return p, nil
}

// Revert returns the model to a snapshot, of this session or another one of the same model. It
// does not close the snapshot and does not change a fixed loss scale. If it fails, only some
// of the variables may be restored.
func (s *Session) Revert(ctx context.Context, p *Snapshot) error {
	if err := p.fits(s.model); err != nil {
		return fmt.Errorf("revert: %w", err)
	}
	o, err := s.stateOperations()
	if err != nil {
		return err
	}
	feeds := make(tfbind.Feeds, len(o.places))
	for i, place := range o.places {
		feeds[place] = p.values[i]
	}
	if len(o.writes) > 0 {
		if _, err := s.tf.RunWith(ctx, feeds, nil, tfbind.RunOptions{Targets: o.writes}); err != nil {
			return fmt.Errorf("revert: %w", err)
		}
	}
	s.rate = p.rate
	if s.scaler != nil && p.scale.Scale > 0 {
		s.scaler.resume(p.scale)
	}
	return nil
}
