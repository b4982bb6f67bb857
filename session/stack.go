package session

import (
	"context"
	"fmt"
	"slices"
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
	for _, l := range s.stacked {
		k, err := s.newStack(n, l)
		if err != nil {
			return err
		}
		n.stacks = append(n.stacks, k)
	}
	return nil
}

// compiledSignatures describes the XLA-compiled signatures for Identity.
func (s *Session) compiledSignatures() string {
	var parts []string
	if s.compiled != nil {
		parts = append(parts, s.compiled.Signature.Name)
	}
	if len(s.stacks) > 1 {
		// The number of steps per execution determines which steps this signature runs.
		parts = append(parts, fmt.Sprintf("%s with up to %d steps per call", s.stacks[0].Signature.Name,
			s.opts.StepsPerExecution))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// stack runs a signature of several steps. Its inputs are set batch by batch.
type stack struct {
	*runner
	layout *layout
	// metrics are the indices of the metrics of the signature train in the runner's metrics.
	metrics []int
	have    int // batches in the inputs; an execution needs Step.steps
	samples int // samples in each batch
}

func (s *Session) newStack(n *native, l *layout) (*stack, error) {
	r, err := s.runner(n.tf, l.signature.Name)
	if err != nil {
		return nil, err
	}
	k := &stack{runner: r, layout: l, metrics: r.find(n.train.names)} // layoutOf checks that none is missing
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.stacked = isStacked(in.Tensor); in.stacked && !in.UnknownRank {
			in.Shape = in.Shape[1:]
		}
	}
	return k, nil
}

// StepsPerExecution returns Options.StepsPerExecution.
func (s *Session) StepsPerExecution() int { return s.opts.StepsPerExecution }

// Stackable returns the number of train steps, at most n, that the next execution can run on batches of
// this size. 1 means that steps run one by one, as with micro-batches. A later call may return another
// number.
func (s *Session) Stackable(n, samples int) int {
	n = min(n, s.opts.StepsPerExecution)
	if n < 2 || samples < 1 || s.parts > 1 && samples > 1 {
		return 1
	}
	for _, k := range s.stacks {
		steps := n
		if k.layout.steps > 0 {
			steps = int(k.layout.steps)
		}
		if steps <= n && k.layout.takes(steps, samples) {
			return steps
		}
	}
	return 1
}

// Stack copies batch i, from 0, to an execution of n steps; batch 0 starts a new execution, also after
// an error. All batches have the same size. Stack does not change the model. If the steps cannot run
// together, the error is ErrStack. Stack does not allocate if the execution before had n steps, too.
func (s *Session) Stack(i, n int, b data.Batch) (err error) {
	if s.stacks == nil {
		return option.Errorf("stack: %w: {Options.StepsPerExecution} is not above 1", ErrStack)
	}
	if i == 0 {
		s.next = nil
		if s.Stackable(n, b.Size) != n || n < 2 {
			return fmt.Errorf("stack: %w: the model cannot run %d steps per execution on batches of %d samples; use the "+
				"number from Stackable", ErrStack, n, b.Size)
		}
		k := s.stacks[slices.IndexFunc(s.stacks, func(k *stack) bool { return k.layout.takes(n, b.Size) })]
		k.steps, k.have, k.samples = n, 0, b.Size
		k.seeds = append(k.seeds, make([]int64, max(2*n-len(k.seeds), 0))...)[:2*n]
		s.next = k
	}
	k := s.next
	if k == nil || k.have != i || k.steps != n || k.samples != b.Size {
		err = fmt.Errorf("stack: %w: batch %d of %d with %d samples is out of order, or differs in size from the batches "+
			"before it", ErrStack, i, n, b.Size)
	} else {
		err = k.add(b)
	}
	if err != nil {
		s.next = nil
	}
	return err
}

// add copies the next batch. Inputs that are not stacked get the values of the last batch.
func (k *stack) add(b data.Batch) error {
	if err := k.matchTo(b.Fields); err != nil {
		return err
	}
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.field < 0 {
			continue
		}
		p := whole
		if in.stacked {
			p = piece{k.have, k.steps}
		}
		if err := k.put(i, b.Fields[in.field].Values, b.Fields[in.field].Shape, p, false); err != nil {
			return err
		}
	}
	k.have++
	return nil
}

// TrainN runs the n stacked steps and writes the means of their results to out. step is the number of
// earlier train steps. Each step has its own seed, and all steps have the same learning_rate and
// loss_scale. ctx does not interrupt the execution. After an error, any number of the steps may have
// run.
func (s *Session) TrainN(ctx context.Context, step int64, n int, out []float64) error {
	k := s.next
	s.next = nil
	if k == nil || k.have != n || k.steps != n {
		return fmt.Errorf("train: %w: the batches of %d steps were not stacked", ErrStack, n)
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
