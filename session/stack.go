package session

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// prepareVariants prepares the signatures that options put in the place of train.
func (s *Session) prepareVariants(n *native) (err error) {
	if s.opts.Compiled && s.roles.TrainXLA != "" {
		if n.compiled, err = s.runner(n.tf, s.roles.TrainXLA); err != nil {
			return err
		}
	}
	if s.full == nil {
		return nil
	}
	n.stacker = &stacker{}
	for _, p := range []struct {
		to *(*stack)
		of *layout
	}{{&n.stacker.full, s.full}, {&n.stacker.rest, s.full}, {&n.stacker.twin, s.fullXLA}} {
		if p.of == nil {
			continue
		}
		if *p.to, err = s.stack(n, p.of); err != nil {
			return err
		}
	}
	return nil
}

// twins says which compiled signatures train the model.
func (s *Session) twins() string {
	var parts []string
	if s.compiled != nil {
		parts = append(parts, s.compiled.signature.Name)
	}
	if s.stacker != nil && s.stacker.twin != nil {
		// What goes through it depends on how steps are put into calls.
		parts = append(parts, fmt.Sprintf("%s with up to %d steps per call", s.stacker.twin.signature.Name, s.opts.StepsPerExecution))
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// loop says where several steps in a call round differently than single ones.
func (s *Session) loop() string {
	if r := s.opts.Rounding(); r.Loop {
		return fmt.Sprintf("up to %d steps per call in the single-threaded executor", r.StepsPerExecution)
	}
	return "as single steps"
}

// Uncompiled says which steps on batches of that many samples go through no compiled
// twin, and why, where Options.Compiled asks for twins; empty if all can. most is how many
// steps the training puts into a call at the most, as there may be fewer in a pass, an epoch, or
// between two checkpoints than Options.StepsPerExecution. Of calls of fewer steps, as at the end of
// an epoch, it says nothing.
func (s *Session) Uncompiled(samples, most int) string {
	if !s.opts.Compiled {
		return ""
	}
	n, single := s.Stackable(most, samples), s.twinOf(samples)
	if n < 2 {
		if single == nil {
			return fmt.Sprintf("steps run one by one through %s, which has no twin for batches of %d", s.roles.Train, samples)
		}
		return ""
	}
	twin := s.stacker.twin
	by := s.stacker.choose(n, samples, s.opts.StepsPerExecution)
	if by == twin {
		return ""
	}
	text := fmt.Sprintf("calls of %d steps run through %s, which has no twin", n, by.signature.Name)
	if twin != nil {
		text = fmt.Sprintf("calls of %d steps run through %s, since %s is for calls of %d on batches of %d", n, by.signature.Name, twin.signature.Name, twin.steps, twin.batch)
	}
	if single != nil {
		return text + fmt.Sprintf("; %s runs only what is left over as single steps", single.signature.Name)
	}
	return text + "; no step is compiled"
}

// stacker runs several steps in one call.
type stacker struct {
	// full and rest are of one signature: full is for calls of the most steps, rest for
	// those of any other number, so that neither has its buffers made anew for the
	// other. twin is compiled; nil if there is none.
	full, rest, twin *stack
	// next is the one whose batches are being gathered; nil if there is none.
	next *stack
}

// begin forgets what was gathered.
func (f *stacker) begin() error {
	k := f.next
	f.next = nil
	if k == nil {
		return nil
	}
	return k.drop()
}

func (f *stacker) close() {
	if f == nil {
		return
	}
	for _, k := range []*stack{f.full, f.rest, f.twin} {
		if k != nil {
			k.Close()
		}
	}
}

// choose finds what runs n steps; nil if nothing does.
func (f *stacker) choose(n, samples, most int) *stack {
	switch {
	case f.twin != nil && f.twin.takes(n, samples):
		return f.twin
	case !f.full.takes(n, samples):
		return nil
	case n == most:
		return f.full
	}
	return f.rest
}

// stack is a signature of several steps, whose inputs are written one batch at a time.
// The inputs of its Step have the shapes that a batch has.
type stack struct {
	*runner
	*layout
	// results are the positions of its results in the order of those of train.
	results []int
	shape   []int64 // scratch
	seeds   []int64
	// have batches of that many samples are there, of as many as the call has steps.
	have, of, samples int
	// joined are all batches of the call, where they lie in one piece and stay there until
	// it has run; its size is 0 if they are copied one by one.
	joined data.Batch
}

func (s *Session) stack(n *native, l *layout) (*stack, error) {
	r, err := s.runner(n.tf, l.signature.Name)
	if err != nil {
		return nil, err
	}
	k := &stack{runner: r, layout: l}
	for _, name := range n.train.names {
		k.results = append(k.results, slices.Index(r.names, name)) // stackOf has seen that it is there
	}
	for i := range k.inputs {
		if in := &k.inputs[i]; isStacked(in.Name) && !in.UnknownRank {
			in.Shape = in.Shape[1:]
		}
	}
	return k, nil
}

// StepsPerExecution is the most train steps of a call, as Options.StepsPerExecution has it. It
// is part of fit.Stacker.
func (s *Session) StepsPerExecution() int { return s.opts.StepsPerExecution }

// Stackable is how many train steps the next call can run, of up to n on batches of that
// many samples: 1 if they have to run one by one. It is 1, too, while batches are split
// (SetMicroBatches). It is part of fit.Stacker.
func (s *Session) Stackable(n, samples int) int {
	f := s.stacker
	n = min(n, s.opts.StepsPerExecution)
	if f == nil || n < 2 || samples < 1 || s.parts > 1 && samples > 1 {
		return 1
	}
	if t := f.twin; t != nil && t.steps <= int64(n) && t.takes(int(t.steps), samples) {
		return int(t.steps)
	}
	if p := f.full; p.steps <= int64(n) {
		if p.steps > 0 {
			n = int(p.steps)
		}
		if p.takes(n, samples) {
			return n
		}
	}
	return 1
}

// Stack takes a batch, to be the one of step i, from 0, of a call of n steps that
// TrainN then runs. It is copied, and may be reused once Stack returns; but if the batches
// of the call can be joined (data.Batch.Join), TrainN reads them where they are, and has to
// run before the dataset is asked for the batch after the last of them: else it is ErrStack.
// Batches are gathered in order, and have the same size; 0 begins anew. It runs nothing, and
// changes nothing in the model. It does not allocate once such a call of n steps has been
// gathered. After an error the call begins anew with 0. It is part of fit.Stacker.
func (s *Session) Stack(i, n int, b data.Batch) error {
	f := s.stacker
	if f == nil {
		return option.Errorf("gather: %w: {Options.StepsPerExecution} does not ask for that", ErrStack)
	}
	if i == 0 {
		if err := f.begin(); err != nil {
			return err
		}
		if s.Stackable(n, b.Size) != n || n < 2 {
			return fmt.Errorf("gather: %w: %d steps on batches of %d samples; Stackable says how many", ErrStack, n, b.Size)
		}
		f.next = f.choose(n, b.Size, s.opts.StepsPerExecution)
		f.next.have, f.next.of, f.next.samples = 0, n, b.Size
		if err := f.next.join(b); err != nil {
			return errors.Join(err, f.begin())
		}
	}
	k := f.next
	if k == nil || k.have != i || k.of != n || k.samples != b.Size {
		err := fmt.Errorf("gather: %w: batch %d of %d with %d samples is out of order, or of another size than those before", ErrStack, i, n, b.Size)
		return errors.Join(err, f.begin())
	}
	if err := k.gather(b); err != nil {
		return errors.Join(err, f.begin())
	}
	return nil
}

// join looks whether the batches of the call, of which this is the first, will lie in one
// piece.
func (k *stack) join(b data.Batch) error {
	if err := k.matchTo(b.Fields); err != nil {
		return err
	}
	for i := range k.inputs {
		if in := &k.inputs[i]; in.field >= 0 && !isStacked(in.Name) {
			return nil // it is fed what the last batch has
		}
	}
	k.joined, _ = b.Join(k.of)
	return nil
}

// drop lets go of batches that lie in one piece.
func (k *stack) drop() error {
	joined := k.joined
	k.joined = data.Batch{}
	return k.release(joined)
}

func (k *stack) gather(b data.Batch) error {
	if k.joined.Size > 0 {
		if b.IsPart(k.have, k.joined) && k.matches(b.Fields) {
			if k.have++; k.have < k.of {
				return nil
			}
			return k.feedJoined(b)
		}
		// Those before it are still where they were.
		earlier, have := k.joined, k.have
		k.joined, k.have = data.Batch{}, 0
		for i := range have {
			if err := k.copy(earlier.Slice(i*b.Size, (i+1)*b.Size)); err != nil {
				return err
			}
		}
	}
	if err := k.matchTo(b.Fields); err != nil {
		return err
	}
	return k.copy(b)
}

// copy copies the next batch.
func (k *stack) copy(b data.Batch) error {
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.field < 0 {
			continue
		}
		a := b.Fields[in.field].Array
		p := whole
		if isStacked(in.Name) {
			p = piece{k.have, k.of}
		}
		err := k.fit(in, a.Shape)
		if err == nil {
			err = store(k.tf, i, in.DType, a.Values, k.shape, p)
		}
		if err != nil {
			return k.inputError(i, err)
		}
	}
	k.have++
	return nil
}

// fit writes to k.shape the shape of an input of the call, whose batches have the given
// shape.
func (k *stack) fit(in *input, batch []int) error {
	if err := in.fit(batch); err != nil {
		return err
	}
	k.shape = k.shape[:0]
	if isStacked(in.Name) {
		k.shape = append(k.shape, int64(k.of))
	}
	k.shape = append(k.shape, in.shape...)
	return nil
}

// feedJoined feeds the batches that lie in one piece, of which this is the last, large inputs
// without a copy, until drop.
func (k *stack) feedJoined(last data.Batch) error {
	for i := range k.inputs {
		in := &k.inputs[i]
		if in.field < 0 {
			continue
		}
		err := k.fit(in, last.Fields[in.field].Shape)
		if err == nil {
			err = k.put(i, k.joined.Fields[in.field].Values, k.shape, true)
		}
		if err != nil {
			return k.inputError(i, err)
		}
	}
	return nil
}

// TrainN runs the steps whose batches were gathered, in one call, and writes to out the
// means of their scalars over the steps. They are the steps that Train would run, one
// after the other, on these batches: step counts those done before the first, and each is
// fed the seed of its own number. learning_rate and loss_scale are fed once. The call
// is not interrupted when ctx ends. After an error of TensorFlow the variables are in
// doubt, and any of the steps may have run. It is part of fit.Stacker.
func (s *Session) TrainN(ctx context.Context, step int64, n int, out []float64) error {
	f := s.stacker
	if f == nil {
		return option.Errorf("train: %w: {Options.StepsPerExecution} does not ask for that", ErrStack)
	}
	k := f.next
	if k == nil || k.have != n || k.of != n {
		return errors.Join(fmt.Errorf("train: %w: the batches of %d steps were not gathered", ErrStack, n), f.begin())
	}
	if k.joined.Stale() {
		return errors.Join(fmt.Errorf("train: %w: the batches that were gathered are no longer there: run their steps before the dataset is asked for the batch after them", ErrStack), f.begin())
	}
	if len(out) != len(s.trainNames) {
		return errors.Join(s.train.room(out), f.begin())
	}
	s.skipped, s.stuck = false, math.NaN()
	if err := errors.Join(k.train(ctx, s.opts.Seed, step, out[:len(k.results)]), f.begin()); err != nil {
		return err
	}
	s.rescale(k.applied, out)
	return nil
}

func (k *stack) train(ctx context.Context, seed, step int64, out []float64) error {
	for i := range k.inputs {
		if k.inputs[i].field >= 0 {
			continue
		}
		if err := k.reserved(i, seed, step); err != nil {
			return err
		}
	}
	if err := k.Run(ctx); err != nil {
		return err
	}
	for i, from := range k.results {
		v, err := k.tf.Float(k.metrics[from])
		if err != nil {
			return err
		}
		out[i] = v
	}
	return k.readApplied()
}

// reserved fills in an input that the data do not have.
func (k *stack) reserved(i int, seed, step int64) error {
	in := &k.inputs[i]
	switch in.Name {
	case savedmodels.InputSeed:
		k.seeds = k.seeds[:0]
		for j := range k.of {
			k.seeds = append(k.seeds, seed, step+int64(j))
		}
		return tfbind.Set(k.tf, i, k.seeds, int64(k.of), 2)
	case savedmodels.InputSampleWeight:
		return k.setOnes(i, int64(k.of), int64(k.samples))
	}
	return k.setReserved(i, k.samples)
}
