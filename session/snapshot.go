package session

import (
	"context"
	"fmt"

	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Snapshot is a copy of a model's state in memory: the variables of a checkpoint (Save), the
// learning rate and the loss scale. It must be closed, and may be used after its session is
// closed.
//
// A snapshot shares memory with the variables until training changes them. Then it takes the
// memory of the variables a second time, at most Bytes.
//
// State outside of variables, such as random generators in operations, is not part of a
// snapshot (see contract.CodeStateNotSaved). It continues in the same session and starts
// over in a reloaded one.
type Snapshot struct {
	model  string // hash of the model
	base   string // savedmodels.Model.Base
	values tfbind.Results
	rate   float64
	scale  lossScaler
}

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

// fits returns ErrMismatch if the snapshot cannot be written to a model's variables.
func (p *Snapshot) fits(m *savedmodels.Model) error {
	switch {
	case p == nil || p.values == nil:
		return fmt.Errorf("%w: it is closed", errSnapshot)
	case p.model != m.Hash:
		return fmt.Errorf("%w: it belongs to another model (SHA-256 %.12s, but this model has %.12s)", errSnapshot, p.model,
			m.Hash)
	case p.base != m.Base:
		return fmt.Errorf("%w: %w", errSnapshot, otherBase(p.base, m.Base))
	}
	return nil
}

// Snapshot copies the state of the model. The result must be closed.
func (s *Session) Snapshot(ctx context.Context) (*Snapshot, error) {
	o, err := s.stateOperations()
	if err != nil {
		return nil, err
	}
	reads := o.reads[:o.changing]
	values := tfbind.Results{} // for a model without variables
	if len(reads) > 0 {
		values, err = s.tf.Run(ctx, nil, reads)
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot: %w", err)
	}
	p := &Snapshot{model: s.model.Hash, base: s.model.Base, values: values, rate: s.rate}
	if s.scaler != nil {
		p.scale = *s.scaler
	}
	return p, nil
}

// Revert returns the model to a snapshot, which may be from another session of the same model.
// It leaves the snapshot open. After an error, some of the variables may be restored.
func (s *Session) Revert(ctx context.Context, p *Snapshot) error {
	if err := p.fits(s.model); err != nil {
		return fmt.Errorf("revert: %w", err)
	}
	o, err := s.stateOperations()
	if err != nil {
		return err
	}
	feeds := make(tfbind.Feeds, len(p.values))
	for i, value := range p.values {
		feeds[o.places[i]] = value
	}
	if len(feeds) > 0 {
		if err := s.runState(ctx, feeds, o.writes[:len(feeds)]...); err != nil {
			return fmt.Errorf("revert: %w", err)
		}
	}
	s.rate = p.rate
	if s.scaler != nil && p.scale.Scale > 0 {
		*s.scaler = p.scale
	}
	return nil
}
