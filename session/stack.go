package session

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"steadyfit/data"
	"steadyfit/option"
)

// prepareVariants prepares the signatures that can replace train.
func (s *Session) prepareVariants(n *native) (err error) {
	if s.opts.Compiled && s.roles.TrainXLA != "" {
		if n.compiled, err = s.runner(n.tf, s.roles.TrainXLA); err != nil {
			return err
		}
	}
	if s.full == nil {
		return nil
	}
	f := &stacker{}
	n.stacker = f
	if f.full, err = s.newStack(n, s.full); err == nil {
		f.rest, err = s.newStack(n, s.full)
	}
	if err == nil && s.fullXLA != nil {
		f.compiled, err = s.newStack(n, s.fullXLA)
	}
	return err
}

// compiledSignatures describes the XLA-compiled signatures for Identity.
func (s *Session) compiledSignatures() string {
	var parts []string
	if s.compiled != nil {
		parts = append(parts, s.compiled.Signature.Name)
	}
	if s.stacker != nil && s.stacker.compiled != nil {
		// The number of steps per execution determines which steps this signature runs.
		parts = append(parts, fmt.Sprintf("%s with up to %d steps per call", s.stacker.compiled.Signature.Name, s.opts.StepsPerExecution))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

func (s capable) Uncompiled(samples, most int) string {
	if !s.opts.Compiled {
		return ""
	}
	n, single := s.Stackable(most, samples), s.compiledFor(samples)
	if n < 2 {
		if single == nil {
			return fmt.Sprintf("steps run one by one through %s, which is not compiled for batches of %d samples", s.roles.Train, samples)
		}
		return ""
	}
	compiled := s.stacker.compiled
	by := s.stacker.choose(n, samples, s.opts.StepsPerExecution)
	if by == compiled {
		return ""
	}
	text := fmt.Sprintf("executions of %d steps run through %s, which is not compiled", n, by.Signature.Name)
	if compiled != nil {
		text = fmt.Sprintf("executions of %d steps run through %s, since %s is for executions of %d on batches of %d",
			n, by.Signature.Name, compiled.Signature.Name, compiled.layout.steps, compiled.layout.batch)
	}
	if single != nil {
		return text + fmt.Sprintf("; %s runs only the remaining single steps", single.Signature.Name)
	}
	return text + "; no step is compiled"
}

// stacker runs several steps per execution.
type stacker struct {
	// full and rest run the same signature. full is for the maximum number of steps and rest
	// for all other numbers, so that full does not reallocate its buffers. compiled may be nil.
	full, rest, compiled *stack
	// next is the stack that batches are added to; nil if there is none.
	next *stack
}

func (f *stacker) reset() error {
	k := f.next
	if f.next = nil; k == nil {
		return nil
	}
	joined := k.joined
	k.joined = data.Batch{}
	return k.release(joined)
}

func (f *stacker) close() {
	if f == nil {
		return
	}
	for _, k := range []*stack{f.full, f.rest, f.compiled} {
		if k != nil {
			k.Close()
		}
	}
}

// choose returns the stack for an execution of n steps; nil if there is none.
func (f *stacker) choose(n, samples, most int) *stack {
	switch {
	case f.compiled != nil && f.compiled.layout.takes(n, samples):
		return f.compiled
	case !f.full.layout.takes(n, samples):
		return nil
	case n == most:
		return f.full
	}
	return f.rest
}

// stack runs a signature of several steps. Its inputs are set batch by batch.
type stack struct {
	*runner
	layout *layout
	// metrics are the indices of the metrics of the signature train in the runner's metrics.
	metrics []int
	// have is the number of batches stacked so far, out of Step.steps. samples is the size of each
	// batch.
	have, samples int
	// joined has all batches of the execution if they are contiguous in memory. Its size is 0
	// if batches are copied one by one.
	joined data.Batch
}

func (s *Session) newStack(n *native, l *layout) (*stack, error) {
	r, err := s.runner(n.tf, l.signature.Name)
	if err != nil {
		return nil, err
	}
	k := &stack{runner: r, layout: l, metrics: r.find(n.train.names)} // layoutOf checks that none is missing
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.stacked = isStacked(in.Name); in.stacked && !in.UnknownRank {
			in.Shape = in.Shape[1:]
		}
	}
	return k, nil
}

func (s capable) StepsPerExecution() int { return s.opts.StepsPerExecution }

// Stackable returns 1 if batches are split into micro-batches, since such steps cannot run
// together.
func (s capable) Stackable(n, samples int) int {
	f := s.stacker
	n = min(n, s.opts.StepsPerExecution)
	if f == nil || n < 2 || samples < 1 || s.parts > 1 && samples > 1 {
		return 1
	}
	if c := f.compiled; c != nil && c.layout.steps <= int64(n) && c.layout.takes(int(c.layout.steps), samples) {
		return int(c.layout.steps)
	}
	l := f.full.layout
	if l.steps > 0 && l.steps <= int64(n) {
		n = int(l.steps)
	}
	if !l.takes(n, samples) {
		return 1
	}
	return n
}

// Stack returns ErrStack if the steps cannot run together. It does not allocate after the first
// execution of n steps.
func (s capable) Stack(i, n int, b data.Batch) error {
	f := s.stacker
	if f == nil {
		return option.Errorf("stack: %w: {Options.StepsPerExecution} is not above 1", ErrStack)
	}
	if i == 0 {
		if err := f.reset(); err != nil {
			return err
		}
		if s.Stackable(n, b.Size) != n || n < 2 {
			return fmt.Errorf("stack: %w: the model cannot run %d steps per execution on batches of %d samples; use the number from Stackable", ErrStack, n, b.Size)
		}
		f.next = f.choose(n, b.Size, s.opts.StepsPerExecution)
		if err := f.next.begin(n, b); err != nil {
			return errors.Join(err, f.reset())
		}
	}
	k := f.next
	if k == nil || k.have != i || k.steps != n || k.samples != b.Size {
		err := fmt.Errorf("stack: %w: batch %d of %d with %d samples is out of order, or differs in size from the batches before it", ErrStack, i, n, b.Size)
		return errors.Join(err, f.reset())
	}
	if err := k.add(b); err != nil {
		return errors.Join(err, f.reset())
	}
	return nil
}

func (k *stack) begin(n int, b data.Batch) error {
	k.steps, k.have, k.samples = n, 0, b.Size
	for len(k.seeds) < 2*n {
		k.seeds = append(k.seeds, 0)
	}
	k.seeds = k.seeds[:2*n]
	if err := k.matchTo(b.Fields); err != nil {
		return err
	}
	for i := range k.inputs {
		if in := &k.inputs[i]; in.field >= 0 && !in.stacked {
			return nil // the inputs are set with the last batch
		}
	}
	k.joined, _ = b.Join(n)
	return nil
}

func (k *stack) add(b data.Batch) error {
	if k.joined.Size > 0 && !(b.IsPart(k.have, k.joined) && k.matches(b.Fields)) {
		// The batch is not contiguous with the previous ones. Their memory is still valid.
		earlier, have := k.joined, k.have
		k.joined, k.have = data.Batch{}, 0
		for i := range have {
			if err := k.feedNext(earlier.Slice(i*b.Size, (i+1)*b.Size)); err != nil {
				return err
			}
		}
	}
	if err := k.matchTo(b.Fields); err != nil {
		return err
	}
	return k.feedNext(b)
}

// feedNext copies the next batch. If the batches are contiguous, it does nothing until the last
// batch, and then sets the inputs to all batches, in place if they are large.
func (k *stack) feedNext(b data.Batch) error {
	values, last := b, k.have == k.steps-1
	if k.joined.Size > 0 {
		values = k.joined
	}
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.field < 0 || k.joined.Size > 0 && !last {
			continue
		}
		p := whole
		if in.stacked && k.joined.Size == 0 {
			p = piece{k.have, k.steps}
		}
		if err := k.put(i, values.Fields[in.field].Values, b.Fields[in.field].Shape, p, k.joined.Size > 0); err != nil {
			return err
		}
	}
	k.have++
	return nil
}

// TrainN gives each step its own seed, and all steps the same learning_rate and loss_scale. ctx does
// not interrupt the execution.
func (s capable) TrainN(ctx context.Context, step int64, n int, out []float64) (err error) {
	f := s.stacker
	if f == nil {
		return option.Errorf("train: %w: {Options.StepsPerExecution} is not above 1", ErrStack)
	}
	k := f.next
	defer func() { err = errors.Join(err, f.reset()) }()
	switch {
	case k == nil || k.have != n || k.steps != n:
		return fmt.Errorf("train: %w: the batches of %d steps were not stacked", ErrStack, n)
	case k.joined.Size > 0 && !k.joined.Borrowable(0):
		return fmt.Errorf("train: %w: the memory of the stacked batches was reused: call TrainN before reading the next batch from the dataset", ErrStack)
	}
	if err := s.beginTrain(out); err != nil {
		return err
	}
	k.setSeeds(s.opts.Seed, step)
	for i := range k.inputs {
		if k.inputs[i].field < 0 {
			if err := k.setReserved(i, k.samples); err != nil {
				return err
			}
		}
	}
	if err := k.Run(ctx); err != nil {
		return err
	}
	applied, err := k.read(k.part)
	if err != nil {
		return err
	}
	for i, from := range k.metrics {
		out[i] = k.part[from]
	}
	s.rescale(applied, out)
	return nil
}
