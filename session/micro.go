package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/option"
	"steadyfit/savedmodels"
)

// ErrInexactSplit means that micro-batches would give another update than the whole batch.
var ErrInexactSplit = errors.New("the update would differ from that of the whole batch")

// CheckSplit returns nil if batches can be split into micro-batches. The errors are:
//   - savedmodels.ErrNoSignature: the model lacks signatures gradients and apply that report the same
//     metrics as its train signature.
//   - ErrInexactSplit: the update would differ, and Options.AllowInexactSplit is not set. The
//     update is exact if savedmodels.Metadata.MicroBatchesExact says so. If the field is nil,
//     the update is exact unless the signature gradients takes the reserved input seed, since
//     each micro-batch draws other random numbers (docs/reference/contract.md), or unless
//     savedmodels.Model.Inexact has a reason.
func (p *Plan) CheckSplit() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", errNoSignature, fmt.Sprintf(format, args...))
	}
	switch {
	case p.opts.ReadOnly:
		return refuse("the session was opened read-only")
	case p.roles.Gradients == "" || p.roles.Apply == "":
		return refuse("%s", cmp.Or(unusable(p.model, "gradients", "accumulate", "apply"), "its signatures gradients and "+
			"apply are missing; export the model with them, as steadyfit-export does by default, unless the model has its "+
			"own train step"))
	}
	var sigs [3]*savedmodels.Signature
	for i, name := range []string{p.roles.Train, p.roles.Gradients, p.roles.Apply} {
		var err error
		if sigs[i], err = p.model.Signature(name); err != nil {
			return err
		}
	}
	train, gradients, apply := sigs[0], sigs[1], sigs[2]
	const same = "; export both with the same inputs and outputs"
	for _, m := range train.Metrics() {
		if !slices.ContainsFunc(gradients.Metrics(), func(t savedmodels.Tensor) bool { return t.Name == m.Name }) {
			return refuse("signature %s does not report %s, which %s does"+same, gradients.Name, m.Name, train.Name)
		}
	}
	switch in, out := contract.InputLossScale, contract.OutputGradsFinite; {
	case train.Takes(in) && !gradients.Takes(in):
		return refuse("signature %s does not take %s, which %s does"+same, gradients.Name, in, train.Name)
	case gradsFinite(train) != nil && gradsFinite(gradients) == nil && gradsFinite(apply) == nil:
		return refuse("signature %s does not report %s, which %s does"+same, gradients.Name, out, train.Name)
	}
	if why := whyInexact(p.model, gradients); why != "" && !p.opts.AllowInexactSplit {
		return option.Errorf("%w: %s; set {Options.AllowInexactSplit} to accept that", ErrInexactSplit, why)
	}
	return nil
}

// checkMicroBatches compiles Options.MicroBatches.
func (p *Plan) checkMicroBatches() error {
	n := p.opts.MicroBatches
	refuse := func(reason, fix string, err error) error {
		return &option.Error{Option: "Options.MicroBatches", Value: n, Reason: reason, Fix: fix, Err: err}
	}
	const one = "unset one of the two options"
	switch {
	case n < 0:
		return refuse("expected 0 or more", "", nil)
	case n < 2:
		return nil
	case p.opts.Cluster != nil:
		return refuse("conflicts with {Options.Cluster}, which splits batches among its ranks only", one, nil)
	case p.opts.StepsPerExecution > 1:
		return refuse(fmt.Sprintf("conflicts with {Options.StepsPerExecution %d}: micro-batches are separate executions",
			p.opts.StepsPerExecution), one, nil)
	case p.opts.Compiled:
		return refuse("conflicts with {Options.Compiled}: no signature for micro-batches is compiled", one, nil)
	}
	if err := p.CheckSplit(); err != nil {
		return refuse(err.Error(), "", err)
	}
	return nil
}

// unusable returns the problem of a signature with one of these names; empty if there is none.
func unusable(model *savedmodels.Model, names ...string) string {
	for _, p := range model.Problems {
		if p.Code == contract.CodeUnusableSignature && slices.Contains(names, p.Subject) {
			return p.Message + "; " + p.Fix
		}
	}
	return ""
}

// whyInexact returns why the update of micro-batches differs; empty if it is exact.
func whyInexact(model *savedmodels.Model, gradients *savedmodels.Signature) string {
	m := model.Metadata
	switch {
	case m != nil && m.MicroBatchesExact != nil && *m.MicroBatchesExact:
		return ""
	case m != nil && m.MicroBatchesExact != nil:
		return cmp.Or(m.MicroBatchesInexact, "the exporter's note micro_batches_exact is false; a new export has the reason")
	case gradients.Takes(contract.InputSeed):
		return fmt.Sprintf("signature %s draws different random numbers from the input seed for each micro-batch",
			gradients.Name)
	case slices.ContainsFunc(model.Problems, func(p savedmodels.Problem) bool { return p.Code == contract.CodeMetadata }):
		return "the exporter's notes cannot be read, so it is unknown whether the update is exact"
	}
	return model.Inexact
}

// fixedParts returns the number of micro-batches or ranks in the options if the update depends on
// it, or 0.
func (p *Plan) fixedParts() int {
	gradients, err := p.model.Signature(p.roles.Gradients)
	switch c := p.opts.Cluster; {
	case err != nil || whyInexact(p.model, gradients) == "":
		return 0
	case c != nil:
		return len(c.Workers)
	}
	return max(p.opts.MicroBatches, 1)
}

// SetMicroBatches makes later train steps and evaluations split each batch into n
// micro-batches. These run one after the other and sum their gradients for one update, so a
// step needs only the memory of a micro-batch. The update equals that of the whole batch except
// for the order of floating-point additions. A batch of fewer than n samples has one
// micro-batch per sample. n = 1 turns splitting off. The errors are those of CheckSplit.
//
// The loss of a step is combined from its micro-batches according to
// savedmodels.Metadata.LossReduction: a sum, or a mean weighted by samples or by sample_weight. A
// loss that signature apply reports replaces it. Metrics are means over samples. A metric that the
// model sums, weights or masks therefore differs from the metric of the whole batch, but the update
// does not.
//
// Each micro-batch has its own first number of the reserved input seed. The first micro-batch
// has Options.Seed. The i-th one after it has output i, from 1, of SplitMix64 with the seed
// Options.Seed.
func (s *Session) SetMicroBatches(n int) error {
	if n < 1 {
		return fmt.Errorf("micro-batches: expected at least 1, got %d", n)
	}
	if n > 1 {
		if err := s.prepareMicroBatches(); err != nil {
			return err
		}
	}
	s.parts = n
	return nil
}

// MicroBatches returns the number set by SetMicroBatches.
func (s *Session) MicroBatches() int { return max(s.parts, 1) }

// update is a train step in two parts: the signature gradients, on parts of a batch, and then the signature apply.
type update struct {
	gradients *runner
	apply     *Step
	// finite is the index of grads_finite in the outputs of the signature apply; -1 if there is
	// none.
	finite int
	// metrics has the index of each train metric in the metrics of the signature gradients. after
	// has the index of each train metric in the outputs of the signature apply; -1 means that the
	// signature gradients reports it.
	metrics, after []int
}

// newUpdate makes an update that reports the metrics of train.
func newUpdate(gradients *runner, apply *Step, train []string) *update {
	u := &update{gradients: gradients, apply: apply, finite: apply.index(contract.OutputGradsFinite),
		metrics: gradients.find(train)} // CheckSplit checks that none is missing
	for _, name := range train {
		from := -1
		if name == contract.OutputLoss || name == contract.MetricLossScale || name == contract.MetricSkippedSteps {
			from = apply.index(name)
		}
		u.after = append(u.after, from)
	}
	return u
}

func (u *update) Close() error {
	if u == nil {
		return nil
	}
	return errors.Join(u.gradients.Close(), u.apply.Close())
}

func (s *Session) prepareMicroBatches() error {
	if s.split != nil {
		return nil
	}
	if s.rank != nil {
		return option.Errorf("micro-batches cannot be used with {Options.Cluster}, which splits each batch among its " +
			"ranks instead")
	}
	err := s.CheckSplit()
	var gradients *runner
	var apply *Step
	if err == nil {
		gradients, err = s.runner(s.tf, s.roles.Gradients)
	}
	if err == nil {
		apply, err = s.Prepare(s.roles.Apply)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("micro-batches: %w", err), gradients.Close())
	}
	s.split = newUpdate(gradients, apply, s.train.names)
	return nil
}

func (s *Session) trainParts(ctx context.Context, step int64, b data.Batch, out []float64) (applied bool, err error) {
	p := s.split
	if applied, err = p.gradients.inParts(ctx, b, min(s.parts, b.Size), s.opts.Seed, step, p.metrics, out); err != nil {
		return false, err
	}
	// The signature apply may take the learning rate and the seed, too.
	p.apply.setSeeds(s.opts.Seed, step)
	if err := p.apply.feed(b, false); err != nil {
		return false, err
	}
	if err := p.apply.Run(ctx); err != nil {
		return false, err
	}
	return p.finish(applied, out)
}

// finish reads the metrics that the signature apply reports, and grads_finite. Without grads_finite, it returns the
// argument applied.
func (u *update) finish(applied bool, out []float64) (_ bool, err error) {
	for i, from := range u.after {
		if from >= 0 {
			if out[i], err = u.apply.tf.Float(from); err != nil {
				return false, err
			}
		}
	}
	if u.finite >= 0 {
		return u.apply.isFinite(u.finite)
	}
	return applied, nil
}

// evaluateIn returns the number of parts of an evaluation, at most most. It is 1 if the signature
// has a fixed batch size, or if the exporter's notes say that the loss of the batch cannot be
// computed from the losses of parts.
func (s *Session) evaluateIn(most, size int) int {
	if m := s.model.Metadata; s.evaluate.batch >= 0 || m != nil &&
		(m.LossReduction == contract.ReductionUnknown || m.LossReduction == contract.ReductionTrainedSum) {
		return 1
	}
	return max(min(most, size), 1)
}

// inParts runs the signature on n micro-batches, one after the other. out gets the combined
// value of each metric of the runner that metrics lists by index.
func (r *runner) inParts(ctx context.Context, b data.Batch, n int, seed, step int64, metrics []int,
	out []float64) (applied bool, err error) {
	applied = true
	err = r.combine(b, n, metrics, out, func(i int, part data.Batch) error {
		r.setSeeds(partSeed(seed, i), step)
		finite, err := r.on(ctx, part, r.part)
		if err != nil {
			return fmt.Errorf("micro-batch %d of %d: %w", i+1, n, err)
		}
		applied = applied && finite
		return nil
	})
	return applied, err
}

// partOf returns part i of n parts of a batch, whose sizes differ by at most one sample.
func partOf(b data.Batch, i, n int) data.Batch { return b.Slice(i*b.Size/n, (i+1)*b.Size/n) }

// combine calls run for n parts of a batch, in their order, and combines the metrics in r.part that each call leaves.
// metrics has the index of each value of out in the metrics of the runner.
func (r *runner) combine(b data.Batch, n int, metrics []int, out []float64,
	run func(i int, part data.Batch) error) error {
	clear(out[:len(metrics)])
	weighted, total := r.Signature.Takes(contract.InputSampleWeight), 0.0
	for i := range n {
		part := partOf(b, i, n)
		if err := run(i, part); err != nil {
			return err
		}
		w := float64(part.Size)
		if weighted {
			w = weightOf(part)
		}
		total += w
		for m, from := range metrics {
			v := r.part[from]
			switch r.reductions[from] {
			case byLast:
				out[m] = v
			case bySum:
				out[m] += v
			case byWeights:
				if w != 0 { // avoids 0/0
					out[m] += v * w
				}
			default:
				out[m] += v * (float64(part.Size) / float64(b.Size))
			}
		}
	}
	for m, from := range metrics {
		if r.reductions[from] == byWeights && total != 0 {
			out[m] /= total
		}
	}
	return nil
}

// reduction combines the results of micro-batches into the result of the batch.
type reduction int

const (
	bySamples reduction = iota
	byWeights           // mean with the sample weights
	bySum
	byLast // a running metric, which includes the earlier micro-batches
)

// reductionOf returns the reduction of a metric. The loss of a single output has the name
// OUTPUT_loss.
func reductionOf(model *savedmodels.Model, name string) reduction {
	if slices.Contains(runningMetrics(model), name) {
		return byLast
	}
	m := model.Metadata
	if m == nil {
		return bySamples
	}
	output, isLoss := strings.CutSuffix(name, "_loss")
	if _, known := m.Loss[output]; name != contract.OutputLoss && !(isLoss && known) {
		return bySamples
	}
	switch m.LossReduction {
	case contract.ReductionSum, contract.ReductionTrainedSum:
		return bySum
	case contract.ReductionWeighted:
		return byWeights
	}
	return bySamples
}

// weightOf returns the sum of a batch's sample weights. Without sample weights, it is the batch
// size.
func weightOf(b data.Batch) float64 {
	field, ok := b.Field(contract.InputSampleWeight)
	if !ok {
		return float64(b.Size)
	}
	var sum float64
	to := reflect.TypeFor[float64]()
	for v, i := reflect.ValueOf(field.Values), 0; i < v.Len() && v.Index(i).CanConvert(to); i++ {
		sum += v.Index(i).Convert(to).Float()
	}
	return sum
}

// partSeed returns the first number of a micro-batch's seed; see SetMicroBatches. SplitMix64 is
// from Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014).
func partSeed(seed int64, part int) int64 {
	if part == 0 {
		return seed
	}
	z := uint64(seed) + uint64(part)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64(z ^ z>>31)
}
