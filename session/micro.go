package session

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"steadyfit/data"
)

// CanSplit reports whether the model's batches can be split: whether it has the
// signatures gradients and apply.
func (s *Session) CanSplit() bool {
	return s.roles.Gradients != "" && s.roles.Apply != ""
}

// SetMicroBatches has the train steps that follow split each batch into n parts,
// run one after the other, whose gradients are summed for one update. A step then
// needs the memory of a part. The update is that of the whole batch, but for the
// order in which floats are added. 1 is not to split. A batch of fewer samples is
// split into as many parts.
//
// A model without the signatures gradients and apply gives ErrNoSignature, and so
// does one whose gradients do not report all that its train signature does.
func (s *Session) SetMicroBatches(n int) error {
	if n < 1 {
		return fmt.Errorf("micro-batches: expected at least 1, got %d", n)
	}
	if n > 1 {
		if err := s.prepareParts(); err != nil {
			return err
		}
	}
	s.parts = n
	return nil
}

// MicroBatches is what SetMicroBatches set.
func (s *Session) MicroBatches() int { return max(s.parts, 1) }

// splitter is what a split step runs.
type splitter struct {
	gradients *runner
	apply     *Step
	// metric is the position in the results of gradients of each result of train.
	metric []int
	part   []float64
}

func (p *splitter) Close() error {
	if p == nil {
		return nil
	}
	var err error
	if p.gradients != nil {
		err = p.gradients.Close()
	}
	return errors.Join(err, p.apply.Close())
}

func (s *Session) prepareParts() error {
	if s.split != nil {
		return nil
	}
	if s.train == nil {
		return fmt.Errorf("micro-batches: %w: the session was opened to read only", ErrNoSignature)
	}
	if !s.CanSplit() {
		return fmt.Errorf("micro-batches: %w: it takes gradients and apply; export the model with them (scripts/export.py --micro-batches)", ErrNoSignature)
	}
	p := &splitter{}
	var err error
	if p.gradients, err = s.runner(s.roles.Gradients); err != nil {
		return err
	}
	for _, name := range s.train.names {
		at := slices.Index(p.gradients.names, name)
		if at < 0 {
			err = fmt.Errorf("micro-batches: %w: signature %s does not report %s, which %s does", ErrNoSignature, s.roles.Gradients, name, s.roles.Train)
			return errors.Join(err, p.Close())
		}
		p.metric = append(p.metric, at)
	}
	p.part = make([]float64, len(p.gradients.names))
	if p.apply, err = s.Prepare(s.roles.Apply); err != nil {
		return errors.Join(err, p.Close())
	}
	s.split = p
	return nil
}

// trainParts is a train step in parts. Its results are means over the samples.
func (s *Session) trainParts(ctx context.Context, b data.Batch, out []float64, metadata *[]byte) error {
	if len(out) != len(s.train.metrics) {
		return s.train.room(out)
	}
	clear(out)
	p, parts := s.split, min(s.parts, b.Size)
	p.gradients.seed = s.train.seed
	for i := range parts {
		part := b.Slice(i*b.Size/parts, (i+1)*b.Size/parts)
		if err := p.gradients.step(ctx, part, p.part, metadata); err != nil {
			return fmt.Errorf("part %d of %d: %w", i+1, parts, err)
		}
		for m, at := range p.metric {
			out[m] += p.part[at] * float64(part.Size) / float64(b.Size)
		}
	}
	return p.apply.Run(ctx)
}
