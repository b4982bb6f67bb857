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

// Snapshot is the state of a model at one moment, in memory: the values of all
// variables that a checkpoint would have, those of the optimizer included, the learning
// rate and the loss scale. It outlives the session that it was taken from and must be closed.
//
// It shares the variables' buffers until training writes to them, which then copies
// them: so it takes the memory of the variables once more, some steps later. Bytes says
// how much that is at most, the slots of the optimizer and accumulated gradients included.
//
// State that is in no variable is not part of it: the generators of stateful random
// operations, tables that change, iterators. Those of a session go on as they are, and
// those of one that is loaded anew begin anew. Package savedmodels warns of them
// (savedmodels.CodeStateNotSaved).
type Snapshot struct {
	model  string // its hash
	values tfbind.Results
	rate   float64
	scale  scaleState
}

// ErrSnapshot: a snapshot that is closed, or of another model.
var ErrSnapshot = errors.New("the snapshot cannot be used")

// Bytes is the size of the values.
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

// stateOps are operations that are added to the model's graph to read and write its
// variables, in the order of Model.Variables.
type stateOps struct {
	reads, places []tfbind.Output
	writes        []tfbind.Operation
}

// statePrefix begins the names of what is added to a model's graph.
const statePrefix = "steadyfit_state"

// stateOperations adds the operations when they are first needed. A handle of the
// same name and container leads to the same variable.
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
		if err != nil {
			return nil, err
		}
		place, err := graph.Output(statePrefix + "/value" + id)
		if err != nil {
			return nil, err
		}
		write, err := graph.Operation(statePrefix + "/write" + id)
		if err != nil {
			return nil, err
		}
		o.reads, o.places, o.writes = append(o.reads, read), append(o.places, place), append(o.writes, write)
	}
	if err := s.adopt(nil, func(n *native) { n.state = o }); err != nil {
		return nil, fmt.Errorf("operations for snapshots: %w", err)
	}
	return o, nil
}

// fits says whether the snapshot can be written to a model's variables.
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
	values := tfbind.Results{} // of a model without variables
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

// Revert brings the model back to a snapshot, of this session or of another one of
// the same model. The snapshot stays as it is, and so does a loss scale that is fixed. If it fails, the variables are in
// doubt.
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
		s.scaler.goOn(p.scale)
	}
	return nil
}
