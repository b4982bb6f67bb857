package session

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/option"
	"steadyfit/savedmodels"
)

// ErrInexactSplit means that micro-batches would give another update than the whole batch.
var ErrInexactSplit = errors.New("parts of a batch would not give the update of the whole batch")

// CheckSplit returns why batches cannot be split into micro-batches, and what to do:
//   - ErrNoSignature: the model has no signatures gradients and apply that go with its
//     train signature and report all that it does.
//   - ErrInexactSplit: the update would differ, and Options.AllowInexactSplit is not set.
//     The exporter's note decides (savedmodels.Metadata.MicroBatchesExact). Without one,
//     a model whose gradients take the reserved input seed is inexact, since random
//     numbers depend on the micro-batch; any other is exact (docs/reference/contract.md).
func (p *Plan) CheckSplit() error {
	if err := p.checkSplit(); err != nil {
		return fmt.Errorf("micro-batches: %w", err)
	}
	return nil
}

func (p *Plan) checkSplit() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrNoSignature, fmt.Sprintf(format, args...))
	}
	switch {
	case p.opts.ReadOnly:
		return refuse("the session was opened to read only")
	case p.roles.Gradients == "" || p.roles.Apply == "":
		return refuse("%s", p.whyWhole())
	}
	var sigs [3]*savedmodels.Signature
	for i, name := range []string{p.roles.Train, p.roles.Gradients, p.roles.Apply} {
		var err error
		if sigs[i], err = p.model.Signature(name); err != nil {
			return err
		}
	}
	train, gradients, apply := sigs[0], sigs[1], sigs[2]
	for _, m := range train.Metrics() {
		if !slices.ContainsFunc(gradients.Metrics(), func(t savedmodels.Tensor) bool { return t.Name == m.Name }) {
			return refuse("signature %s does not report %s, which %s does; export it with the same outputs", gradients.Name, m.Name, train.Name)
		}
	}
	if in := savedmodels.InputLossScale; train.Reserved(in) != nil && gradients.Reserved(in) == nil {
		return refuse("signature %s does not take %s, which %s does, so that micro-batches would not be scaled; export it with the same inputs",
			gradients.Name, in, train.Name)
	}
	if gradsFinite(train) != nil && gradsFinite(gradients) == nil && gradsFinite(apply) == nil {
		return refuse("neither %s nor %s gives %s, which %s does, so that a skipped step would count as one; export them with it",
			gradients.Name, apply.Name, savedmodels.OutputGradsFinite, train.Name)
	}
	if why := whyInexact(p.model, gradients); why != "" && !p.opts.AllowInexactSplit {
		return option.Errorf("%w: %s; to accept that, set {Options.AllowInexactSplit}", ErrInexactSplit, why)
	}
	return nil
}

// whyWhole says why a model has no roles for micro-batches.
func (p *Plan) whyWhole() string {
	if r := p.model.Roles; r.Gradients != "" && r.Train != p.roles.Train {
		return fmt.Sprintf("%s and %s go with the signature %s, and the model is trained with %s", r.Gradients, r.Apply, r.Train, p.roles.Train)
	}
	if why := unusable(p.model, "gradients", "accumulate", "apply"); why != "" {
		return why
	}
	return "it takes gradients and apply; export the model with them, as scripts/export.py does by default, unless the model has its own train step"
}

// unusable is the problem of a signature that has one of these names and does not fit its
// role; empty if there is none.
func unusable(model *savedmodels.Model, names ...string) string {
	for _, p := range model.Problems {
		if p.Code == savedmodels.CodeUnusableSignature && slices.Contains(names, p.Subject) {
			return p.Message + "; " + p.Fix
		}
	}
	return ""
}

// whyInexact says why the update of micro-batches differs; empty if it does not.
func whyInexact(model *savedmodels.Model, gradients *savedmodels.Signature) string {
	m := model.Metadata
	switch {
	case m != nil && m.MicroBatchesExact != nil && *m.MicroBatchesExact:
		return ""
	case m != nil && m.MicroBatchesExact != nil:
		return "the exporter noted that (micro_batches_exact): BatchNormalization mixes the samples of a batch, Dropout draws other numbers for each micro-batch, and an Embedding under an optimizer other than SGD without clipping counts each occurrence of a row by itself"
	case gradients.Reserved(savedmodels.InputSeed) != nil:
		return fmt.Sprintf("signature %s draws random numbers from the input seed, other ones for each micro-batch", gradients.Name)
	case slices.ContainsFunc(model.Problems, func(p savedmodels.Problem) bool { return p.Code == savedmodels.CodeMetadata }):
		return "the exporter's notes, which would say that they do, cannot be read"
	}
	return ""
}

// SetMicroBatches splits each batch of the train steps that follow into n micro-batches,
// run one after the other, whose gradients are summed for one update. A step then needs
// the memory of a micro-batch. The update is that of the whole batch, but for the order in
// which floats are added. 1 does not split; a batch of fewer samples has as many
// micro-batches. Evaluate splits, too. A model that cannot be split is the error of
// CheckSplit.
//
// The results of a step are reduced from those of its micro-batches as the model's loss is
// from its samples (savedmodels.Metadata.LossReduction): to their mean, weighted with the
// samples or with the field sample_weight, or to their sum. Without such a note, and for
// all other results, it is the mean by samples, which is not what the whole batch reports
// if the model sums, divides by weights, or masks samples. The update is right all the
// same, since the signature gradients knows its divisor.
//
// The first number of the reserved input seed differs for each micro-batch: it is
// Options.Seed for the first, and for the i-th after it output i, from 1, of SplitMix64
// seeded with Options.Seed.
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

// MicroBatches is the number that SetMicroBatches set.
func (s *Session) MicroBatches() int { return max(s.parts, 1) }

// splitter runs train steps in micro-batches.
type splitter struct {
	gradients *runner
	apply     *Step
	// finite is the output grads_finite of apply; -1 if there is none.
	finite int
	// metrics are the positions of train's metrics in those of gradients. after are the
	// outputs of apply that take precedence over them, -1 if there is none.
	metrics, after []int
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

func (s *Session) prepareMicroBatches() error {
	if s.split != nil {
		return nil
	}
	if err := s.CheckSplit(); err != nil {
		return err
	}
	p := &splitter{}
	var err error
	if p.gradients, err = s.runner(s.tf, s.roles.Gradients); err == nil {
		p.apply, err = s.Prepare(s.roles.Apply)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("micro-batches: %w", err), p.Close())
	}
	output := func(name string) int {
		return slices.IndexFunc(p.apply.outputs, func(t savedmodels.Tensor) bool { return t.Name == name })
	}
	p.finite = output(savedmodels.OutputGradsFinite)
	p.metrics = p.gradients.find(s.train.names) // CheckSplit has checked that all are there
	for _, name := range s.train.names {
		after := -1
		if name == savedmodels.MetricLossScale || name == savedmodels.MetricSkippedSteps {
			after = output(name)
		}
		p.after = append(p.after, after)
	}
	if err := s.adopt(p, func(n *native) { n.split = p }); err != nil {
		return fmt.Errorf("micro-batches: %w", err)
	}
	return nil
}

// trainParts is a train step in micro-batches.
func (s *Session) trainParts(ctx context.Context, step int64, b data.Batch, out []float64) (applied bool, err error) {
	p := s.split
	if applied, err = p.gradients.inParts(ctx, b, min(s.parts, b.Size), s.opts.Seed, step, p.metrics, out); err != nil {
		return false, err
	}
	// Rates and seeds may be inputs of apply as well.
	p.apply.setSeeds(s.opts.Seed, step)
	if err := p.apply.Feed(b); err != nil {
		return false, err
	}
	if err := p.apply.Run(ctx); err != nil {
		return false, err
	}
	for i, from := range p.after {
		if from >= 0 {
			if out[i], err = p.apply.tf.Float(from); err != nil {
				return false, err
			}
		}
	}
	if p.finite >= 0 {
		return p.apply.isFinite(p.finite)
	}
	return applied, nil
}

// evaluateIn is the number of micro-batches in which a batch is evaluated: 1 if its size
// is part of the signature.
func (s *Session) evaluateIn(size int) int {
	if s.parts <= 1 || batchOf(s.evaluate.signature, 0) >= 0 {
		return 1
	}
	return min(s.parts, size)
}

// inParts runs the role on n micro-batches, one after the other, and writes to out the
// batch's value of each metric of the runner that metrics lists.
func (r *runner) inParts(ctx context.Context, b data.Batch, n int, seed, step int64, metrics []int, out []float64) (applied bool, err error) {
	out = out[:len(metrics)]
	clear(out)
	applied = true
	weighted := r.signature.Reserved(savedmodels.InputSampleWeight) != nil
	var weights float64
	for i := range n {
		part := b.Slice(i*b.Size/n, (i+1)*b.Size/n)
		r.setSeeds(partSeed(seed, i), step)
		finite, err := r.on(ctx, part, r.part)
		if err != nil {
			return false, fmt.Errorf("part %d of %d: %w", i+1, n, err)
		}
		applied = applied && finite
		w := float64(part.Size)
		if weighted {
			w = weightOf(part)
		}
		weights += w
		for m, from := range metrics {
			v := r.part[from]
			switch r.reductions[from] {
			case byLast:
				out[m] = v
			case bySum:
				out[m] += v
			case byWeights:
				if w != 0 { // else it is 0/0
					out[m] += v * w
				}
			default:
				out[m] += v * (float64(part.Size) / float64(b.Size))
			}
		}
	}
	for m, from := range metrics {
		if r.reductions[from] == byWeights && weights != 0 {
			out[m] /= weights
		}
	}
	return applied, nil
}

// reduction is how the results of micro-batches make that of a batch.
type reduction int

const (
	bySamples reduction = iota
	byWeights           // the sum of the weights is divided out at the end
	bySum
	byLast // a running metric, which includes the micro-batches before
)

// reductionOf is that of a result of a name. The losses of single outputs are OUTPUT_loss.
func reductionOf(model *savedmodels.Model, name string) reduction {
	if slices.Contains(model.RunningMetrics(), name) {
		return byLast
	}
	m := model.Metadata
	if m == nil {
		return bySamples
	}
	output, isLoss := strings.CutSuffix(name, "_loss")
	if _, known := m.Loss[output]; name != savedmodels.OutputLoss && !(isLoss && known) {
		return bySamples
	}
	switch m.LossReduction {
	case savedmodels.ReductionSum:
		return bySum
	case savedmodels.ReductionWeighted:
		return byWeights
	}
	return bySamples
}

// weightOf is the sum of the sample weights of a batch, which are 1 if it has none.
func weightOf(b data.Batch) float64 {
	field, ok := b.Field(savedmodels.InputSampleWeight)
	if !ok {
		return float64(b.Size)
	}
	var sum float64
	switch values := field.Values.(type) {
	case []float32:
		for _, v := range values {
			sum += float64(v)
		}
	case []float64:
		for _, v := range values {
			sum += v
		}
	default:
		to := reflect.TypeFor[float64]()
		for v, i := reflect.ValueOf(values), 0; i < v.Len() && v.Index(i).CanConvert(to); i++ {
			sum += v.Index(i).Convert(to).Float()
		}
	}
	return sum
}

// partSeed is the first number of the seed of micro-batch part; see SetMicroBatches.
// SplitMix64 is from Steele, Lea and Flood, "Fast splittable pseudorandom number
// generators" (2014).
func partSeed(seed int64, part int) int64 {
	if part == 0 {
		return seed
	}
	z := uint64(seed) + uint64(part)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64(z ^ z>>31)
}
