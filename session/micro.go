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

// ErrInexactSplit: a model whose update from the parts of a batch is another one than
// from the whole batch.
var ErrInexactSplit = errors.New("parts of a batch would not give the update of the whole batch")

// CheckSplit returns why batches cannot be split (SetMicroBatches), and what to do:
//   - ErrNoSignature: the model has no signatures gradients and apply that go with its
//     train signature, or its gradients do not report all that it does, do not take its
//     loss_scale, or do not tell, nor does apply, by grads_finite what it tells.
//   - ErrInexactSplit: the update would be another one, and Options.AllowInexactSplit is
//     not set. What the exporter noted decides (savedmodels.Metadata.MicroBatchesExact).
//     Where there is no such note, a model that takes the reserved input seed to its
//     gradients is inexact, since what it draws for a sample depends on the part; any
//     other is exact: that is what the two signatures are for (docs/reference/contract.md).
func (p *Plan) CheckSplit() error {
	model, roles, o := p.model, p.roles, p.opts
	if o.ReadOnly {
		return fmt.Errorf("micro-batches: %w: the session was opened to read only", ErrNoSignature)
	}
	if roles.Gradients == "" || roles.Apply == "" {
		return fmt.Errorf("micro-batches: %w: %s", ErrNoSignature, whyWhole(model, roles))
	}
	train, err := model.Signature(roles.Train)
	if err != nil {
		return fmt.Errorf("micro-batches: %w", err)
	}
	gradients, err := model.Signature(roles.Gradients)
	if err != nil {
		return fmt.Errorf("micro-batches: %w", err)
	}
	for _, m := range train.Metrics() {
		if !slices.ContainsFunc(gradients.Metrics(), func(t savedmodels.Tensor) bool { return t.Name == m.Name }) {
			return fmt.Errorf("micro-batches: %w: signature %s does not report %s, which %s does; export it with the same outputs",
				ErrNoSignature, gradients.Name, m.Name, train.Name)
		}
	}
	if in := savedmodels.InputLossScale; train.Reserved(in) != nil && gradients.Reserved(in) == nil {
		return fmt.Errorf("micro-batches: %w: signature %s does not take %s, which %s does, so that the parts would not be scaled; export it with the same inputs",
			ErrNoSignature, gradients.Name, in, train.Name)
	}
	apply, err := model.Signature(roles.Apply)
	if err != nil {
		return fmt.Errorf("micro-batches: %w", err)
	}
	if gradsFinite(train) != nil && gradsFinite(gradients) == nil && gradsFinite(apply) == nil {
		return fmt.Errorf("micro-batches: %w: neither %s nor %s gives %s, which %s does, so that a skipped step would count as one; export them with it",
			ErrNoSignature, gradients.Name, apply.Name, savedmodels.OutputGradsFinite, train.Name)
	}
	if o.AllowInexactSplit {
		return nil
	}
	if why := whyInexact(model, gradients); why != "" {
		return option.Errorf("micro-batches: %w: %s; if that is as good to you, set {Options.AllowInexactSplit}", ErrInexactSplit, why)
	}
	return nil
}

// whyWhole says why a model has no roles to split with.
func whyWhole(model *savedmodels.Model, roles savedmodels.Roles) string {
	if r := model.Roles; r.Gradients != "" && r.Train != roles.Train {
		return fmt.Sprintf("%s and %s go with the signature %s, and %s is what is trained", r.Gradients, r.Apply, r.Train, roles.Train)
	}
	for _, p := range model.Problems {
		if p.Code == savedmodels.CodeUnusableSignature && slices.Contains([]string{"gradients", "accumulate", "apply"}, p.Subject) {
			return p.Message + "; " + p.Fix
		}
	}
	return "it takes gradients and apply; export the model with them, as scripts/export.py does by default, unless the model has its own train step"
}

// whyInexact says why the update of parts is another one; "" if it is the same.
func whyInexact(model *savedmodels.Model, gradients *savedmodels.Signature) string {
	m := model.Metadata
	switch {
	case m != nil && m.MicroBatchesExact != nil && *m.MicroBatchesExact:
		return ""
	case m != nil && m.MicroBatchesExact != nil:
		return "the exporter noted that (micro_batches_exact), as of a model with BatchNormalization, which mixes the samples of a batch, Dropout, which draws other numbers for each part, or an Embedding under an optimizer other than SGD without clipping, which counts each occurrence of a row by itself"
	case gradients.Reserved(savedmodels.InputSeed) != nil:
		return fmt.Sprintf("signature %s draws random numbers from the input seed, other ones for each part", gradients.Name)
	case slices.ContainsFunc(model.Problems, func(p savedmodels.Problem) bool { return p.Code == savedmodels.CodeMetadata }):
		return "the exporter's notes, which would say that they do, cannot be read"
	}
	return ""
}

// CanSplit reports whether the model's batches can be split. If not, CheckSplit says why.
func (s *Session) CanSplit() bool { return s.CheckSplit() == nil }

// SetMicroBatches has the train steps that follow split each batch into n parts,
// run one after the other, whose gradients are summed for one update. A step then
// needs the memory of a part. The update is that of the whole batch, but for the
// order in which floats are added. 1 is not to split. A batch of fewer samples is
// split into as many parts. Evaluate splits, too.
//
// The results of a step are made of those of its parts, as the model's loss is of those
// of its samples (savedmodels.Metadata.LossReduction): as their mean, weighted with
// their samples; as their mean, weighted with the field sample_weight; or as their sum.
// Without such a note, and for all other results, it is the first, which is not what
// the whole batch reports where the model sums, divides by weights, or leaves masked
// samples out. The update is right all the same: gradients knows what it divides by.
//
// The reserved input seed is fed to each part with another first number, and to the
// first one with the same as to a whole batch: with s for Options.Seed and i > 0 for the
// part, it is the output number i, from 1, of SplitMix64 seeded with s. It depends on
// nothing else, so that a resumed run draws what the run would have drawn.
//
// A model that cannot be split gives the error of CheckSplit.
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
	// finite is the output grads_finite of apply, -1 if there is none.
	finite int
	// metric is the position in the results of gradients of each result of train, and
	// after the output of apply that goes before it, -1 if there is none.
	metric, after []int
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
	if err := s.CheckSplit(); err != nil {
		return err
	}
	p := &splitter{}
	var err error
	if p.gradients, err = s.runner(s.tf, s.roles.Gradients); err != nil {
		return fmt.Errorf("micro-batches: %w", err)
	}
	for _, name := range s.train.names {
		p.metric = append(p.metric, slices.Index(p.gradients.names, name)) // checkSplit has seen that it is there
	}
	if p.apply, err = s.Prepare(s.roles.Apply); err != nil {
		return errors.Join(fmt.Errorf("micro-batches: %w", err), p.Close())
	}
	for _, name := range s.train.names {
		after := -1
		if name == savedmodels.MetricLossScale || name == savedmodels.MetricSkippedSteps {
			after = slices.IndexFunc(p.apply.outputs, func(t savedmodels.Tensor) bool { return t.Name == name })
		}
		p.after = append(p.after, after)
	}
	p.finite = slices.IndexFunc(p.apply.outputs, func(t savedmodels.Tensor) bool { return t.Name == savedmodels.OutputGradsFinite })
	if err := s.adopt(p, func(n *native) { n.split = p }); err != nil {
		return fmt.Errorf("micro-batches: %w", err)
	}
	return nil
}

// trainParts is a train step in parts.
func (s *Session) trainParts(ctx context.Context, seed [2]int64, b data.Batch, out []float64) (err error) {
	p, n := s.split, min(s.parts, b.Size)
	if err := p.gradients.inParts(ctx, b, n, seed, p.metric, out[:len(p.metric)]); err != nil {
		return err
	}
	// Rates and seeds may be inputs of apply as well.
	p.apply.seed = seed
	if err := p.apply.Feed(b); err != nil {
		return err
	}
	if err := p.apply.Run(ctx); err != nil {
		return err
	}
	for i, from := range p.after {
		if from < 0 {
			continue
		}
		if out[i], err = p.apply.tf.Float(from); err != nil {
			return err
		}
	}
	applied := p.gradients.applied
	if p.finite >= 0 {
		v, err := p.apply.tf.Float(p.finite)
		if err != nil {
			return err
		}
		applied = v != 0
	}
	s.rescale(applied, out)
	return nil
}

// evaluateIn is in how many parts a batch is evaluated.
func (s *Session) evaluateIn(size int) int {
	switch {
	case s.parts <= 1:
		return 1
	case slices.ContainsFunc(s.evaluate.signature.DataInputs(), func(t savedmodels.Tensor) bool {
		return !t.UnknownRank && len(t.Shape) > 0 && t.Shape[0] >= 0
	}):
		return 1
	}
	return min(s.parts, size)
}

// inParts runs the role on n parts of a batch, one after the other, and writes to out
// what their results make for the batch. at are the positions in the results of those
// that are wanted.
func (r *runner) inParts(ctx context.Context, b data.Batch, n int, seed [2]int64, at []int, out []float64) error {
	if len(out) != len(at) {
		return r.room(out)
	}
	clear(out)
	applied := true
	weighted := r.signature.Reserved(savedmodels.InputSampleWeight) != nil
	var weights float64
	for i := range n {
		part := b.Slice(i*b.Size/n, (i+1)*b.Size/n)
		r.seed = [2]int64{partSeed(seed[0], i), seed[1]}
		err := r.feed(part, true)
		if err == nil {
			err = r.runFed(ctx, part, r.part)
		}
		if err != nil {
			return fmt.Errorf("part %d of %d: %w", i+1, n, err)
		}
		applied = applied && r.applied
		w := float64(part.Size)
		if weighted {
			w = weightOf(part)
		}
		weights += w
		for m, from := range at {
			if r.means[from] == byLast {
				out[m] = r.part[from]
				continue
			}
			// A part without weight reports 0/0.
			if share := r.means[from].share(part.Size, b.Size, w); share != 0 {
				out[m] += r.part[from] * share
			}
		}
	}
	for m, from := range at {
		if r.means[from] == byWeights && weights != 0 {
			out[m] /= weights
		}
	}
	r.applied = applied
	return nil
}

// mean is how the results of the parts make that of a batch.
type mean int

const (
	bySamples mean = iota
	byWeights      // their sum is divided out at the end
	bySum
	byLast // the parts before it are in it
)

// share is what the result of a part counts with.
func (m mean) share(part, batch int, weight float64) float64 {
	switch m {
	case bySum:
		return 1
	case byWeights:
		return weight
	default:
		return float64(part) / float64(batch)
	}
}

// meanOf is that of a result of a name. The losses of single outputs are OUTPUT_loss.
func meanOf(model *savedmodels.Model, name string) mean {
	if slices.Contains(model.RunningMetrics(), name) {
		return byLast
	}
	m := model.Metadata
	if m == nil {
		return bySamples
	}
	output, _ := strings.CutSuffix(name, "_loss")
	if _, ofOutput := m.Loss[output]; name != savedmodels.OutputLoss && !(ofOutput && output != name) {
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

// partSeed is the first of the two numbers that a part, counted from 0, is fed as its
// seed: SetMicroBatches says which. SplitMix64 is that of Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators" (2014).
func partSeed(seed int64, part int) int64 {
	if part == 0 {
		return seed
	}
	z := uint64(seed) + uint64(part)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int64(z ^ z>>31)
}
