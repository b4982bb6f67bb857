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

// Snapshot is a copy of a model's state in memory: the variables of a checkpoint, the learning
// rate and the loss scale. It must be closed, and may be used after its session is closed.
//
// A snapshot shares memory with the variables until training changes them. Then it takes the
// memory of the variables a second time, at most Bytes.
//
// State outside of variables, such as random generators in operations, is not part of a
// snapshot (see savedmodels.CodeStateNotSaved). It continues in the same session and starts
// over in a reloaded one.
type Snapshot struct {
	model  string // hash of the model
	values tfbind.Results
	rate   float64
	scale  scaleState
}

// ErrSnapshot means that the snapshot is closed or belongs to another model.
var ErrSnapshot = errors.New("the snapshot cannot be used")

// Bytes returns the size of the variables.
func (p *Snapshot) Bytes() int64 {
	var n int64
	for _, v := range p.values {
		n += v.Bytes()
	}
	return n
}

// Close frees the memory. Closing twice does nothing.
func (p *Snapshot) Close() error {
	if p == nil {
		return nil
	}
	values := p.values
	p.values = nil
	return values.Close()
}

// stateOps are operations that read and write the variables, added to the model's graph.
type stateOps struct {
	reads, places []tfbind.Output
	writes        []tfbind.Operation
}

// statePrefix is the prefix of the names of added operations.
const statePrefix = "steadyfit_state"

// stateOperations adds the operations at their first use. It makes new handles: a handle with
// the name and container of a variable refers to that variable.
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

// fits returns ErrSnapshot if the snapshot cannot be written to a model's variables.
func (p *Snapshot) fits(m *savedmodels.Model) error {
	switch {
	case p == nil || p.values == nil:
		return fmt.Errorf("%w: it is closed", ErrSnapshot)
	case p.model != m.Hash:
		return fmt.Errorf("%w: it belongs to another model (SHA-256 %.12s, but this model has %.12s)", ErrSnapshot, p.model, m.Hash)
	}
	return nil
}

// Snapshot copies the state of the model. The result must be closed.
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

// Revert returns the model to a snapshot, which may be from another session of the same model.
// It leaves the snapshot open and does not change a fixed loss scale. After an error, some of
// the variables may be restored.
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
