package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/gpuopts"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Plan is how a model trains with options: its signatures, the steps per execution, the
// signatures that XLA has compiled, and the scale of the loss. It is decided before
// TensorFlow is opened, and does not change.
type Plan struct {
	model *savedmodels.Model
	opts  Options
	roles savedmodels.Roles
	// lossScale is what a session begins with; nil if it does not scale the loss.
	lossScale *lossScaler
	// full and fullXLA are the layouts of several steps per execution; nil without.
	full, fullXLA *layout
}

// Compile returns the plan of a model with options, or why there is none:
//   - savedmodels.ErrNotTrainable and savedmodels.ErrUnsafeOps are about the model, and
//     ErrNoSignature about Options.TrainSignature.
//   - An *option.Error is about Options.StepsPerExecution (ErrStack), Options.Compiled or
//     Options.LossScale (ErrNoSignature).
//
// With Options.ReadOnly the model need not be trainable.
func Compile(model *savedmodels.Model, o Options) (*Plan, error) {
	if model == nil {
		return nil, errNoModel
	}
	p := &Plan{model: model, opts: o, roles: model.Roles}
	if o.ReadOnly {
		if err := model.CheckSafe(); err != nil && !o.AllowUnsafeOps {
			return nil, err
		}
		return p, nil
	}
	var err error
	if p.roles, err = model.RolesFor(savedmodels.CheckOptions{AllowUnsafeOps: o.AllowUnsafeOps, Train: o.TrainSignature}); err != nil {
		return nil, err
	}
	train, err := model.Signature(p.roles.Train)
	if err != nil {
		return nil, err
	}
	if p.lossScale, err = newLossScaler(o.LossScale, train); err != nil {
		return nil, err
	}
	if o.Compiled {
		if err := p.checkCompiled(train); err != nil {
			return nil, err
		}
	}
	if err := p.layOut(); err != nil {
		return nil, err
	}
	return p, nil
}

// Model is the model of the plan.
func (p *Plan) Model() *savedmodels.Model { return p.model }

// Roles are the signatures that a session uses.
func (p *Plan) Roles() savedmodels.Roles { return p.roles }

// Options are the options of the plan.
func (p *Plan) Options() Options { return p.opts }

// CheckBatch returns an *option.Error about Options.Compiled, which is ErrNoSignature, if
// it is set and XLA has compiled no signature for batches of that many samples.
func (p *Plan) CheckBatch(samples int) error {
	if !p.opts.Compiled {
		return nil
	}
	var made []string
	for dim, name := range []string{p.roles.TrainXLA, p.roles.TrainNXLA} {
		if name == "" {
			continue
		}
		sig, err := p.model.Signature(name)
		if err != nil {
			return err
		}
		n := batchOf(sig, dim)
		if n < 0 || n == int64(samples) {
			return nil
		}
		made = append(made, fmt.Sprintf("%s for batches of %d", name, n))
	}
	return compiledError(ErrNoSignature, fmt.Sprintf("%s, and these are of %d", strings.Join(made, ", "), samples),
		fmt.Sprintf("train on such batches, or export the model with xla_batch=%d", samples))
}

func compiledError(kind error, reason, fix string) error {
	return &option.Error{Option: "Options.Compiled", Reason: reason, Fix: fix, Err: kind}
}

// ChooseSteps chooses Options.StepsPerExecution for a dataset in batches of that many
// samples, whatever it is in the options of the plan: the number that the signature of
// several steps was made for, with Options.Compiled that of its compiled form, and else the
// most up to 50 whose inputs take 16 MiB or less. 1 comes with the reason, which is ErrStack
// or ErrData.
func (p *Plan) ChooseSteps(ds data.Dataset, batch int) (int, error) {
	fields, err := CheckData(p.model, p.roles.Train, ds, data.Pass{Batch: batch, DropRemainder: true})
	if err != nil {
		return 1, err
	}
	plain, compiled, err := p.stacks()
	if err != nil {
		return 1, err
	}
	fits := func(l *layout) bool { return l != nil && (l.batch < 0 || l.batch == int64(batch)) }
	switch {
	case fits(compiled):
		return int(compiled.steps), nil
	case !fits(plain):
		return 1, fmt.Errorf("%w: signature %s takes batches of %d, and these are of %d", ErrStack, plain.signature.Name, plain.batch, batch)
	case plain.steps >= 0:
		return int(plain.steps), nil
	}
	bytes := 1
	for _, in := range plain.signature.DataInputs() {
		for _, f := range ds.Fields() {
			if f.Name != fields[in.Name] {
				continue
			}
			n := batch * in.DType.Size()
			for _, d := range f.Shape {
				n *= d
			}
			bytes += n
		}
	}
	n := min(autoSteps, autoBytes/bytes)
	if n < 2 {
		return 1, fmt.Errorf("%w: a batch has %d bytes, and two of them more than the %d that are put into a call", ErrStack, bytes, autoBytes)
	}
	return n, nil
}

// layOut finds the signatures of several steps per execution, if the options ask for that.
func (p *Plan) layOut() (err error) {
	want := p.opts.StepsPerExecution
	refuse := func(reason, fix string, err error) error {
		return &option.Error{Option: "Options.StepsPerExecution", Value: want, Reason: reason, Fix: fix, Err: err}
	}
	if want < 0 {
		return refuse("expected 0 or more", "", ErrStack)
	}
	if want < 2 {
		return nil
	}
	if p.full, p.fullXLA, err = p.stacks(); err != nil {
		return refuse(err.Error(), "", err)
	}
	if least := p.full.steps; least > int64(want) && (p.fullXLA == nil || p.fullXLA.steps > int64(want)) {
		return refuse(fmt.Sprintf("signature %s runs calls of exactly %d steps", p.full.signature.Name, least), fmt.Sprintf("ask for %d or more", least), ErrStack)
	}
	return nil
}

// checkCompiled refuses what XLA has not compiled, or compiled otherwise than noted.
func (p *Plan) checkCompiled(train *savedmodels.Signature) error {
	if p.opts.Device.Deterministic {
		return gpuopts.Conflict("Options.Compiled true", "Options.Deterministic true",
			"XLA has no deterministic form of some operations (the gradient of max pooling is one), and the first compiled step of a model with one fails",
			"leave one of them out")
	}
	if p.roles.TrainXLA == "" {
		if p.roles.TrainNXLA == "" {
			return compiledError(ErrNoSignature, fmt.Sprintf("the model has neither %s_xla nor train_n_xla", p.roles.Train), "export it with xla_batch")
		}
		return nil
	}
	compiled, err := p.model.Signature(p.roles.TrainXLA)
	if err != nil {
		return err
	}
	inputs := func(s *savedmodels.Signature) string { return names(s.Inputs) }
	if inputs(compiled) != inputs(train) || names(compiled.Metrics()) != names(train.Metrics()) {
		return compiledError(ErrNoSignature, fmt.Sprintf("%s takes %s and reports %s, and %s takes %s and reports %s",
			compiled.Name, inputs(compiled), names(compiled.Metrics()), train.Name, inputs(train), names(train.Metrics())), "export the model again")
	}
	if err := asNoted(p.model, compiled.Name, map[string]int64{"batch": batchOf(compiled, 0)}); err != nil {
		return compiledError(ErrNoSignature, err.Error(), "")
	}
	return nil
}

// ErrStack: train steps that cannot run together in one call.
var ErrStack = errors.New("train steps cannot run together in one call")

const (
	// autoSteps is the most steps that ChooseSteps puts into one call.
	autoSteps = 50
	// autoBytes is the most that their stacked inputs take, in bytes.
	autoBytes = 16 << 20
)

// layout is what a signature of several steps takes.
type layout struct {
	signature *savedmodels.Signature
	// steps and batch are the sizes that it was made for; -1 is any.
	steps, batch int64
}

// takes reports whether it runs n steps on batches of that many samples.
func (l *layout) takes(n, samples int) bool {
	return (l.steps < 0 || l.steps == int64(n)) && (l.batch < 0 || l.batch == int64(samples))
}

// stacks are the signatures to run several steps with: the model's train_n, and its
// compiled twin if that is wanted and there is one.
func (p *Plan) stacks() (plain, twin *layout, err error) {
	if p.roles.TrainN == "" {
		return nil, nil, fmt.Errorf("%w: %s", ErrStack, p.whySingle())
	}
	train, err := p.model.Signature(p.roles.Train)
	if err != nil {
		return nil, nil, err
	}
	if scalable(train) {
		return nil, nil, fmt.Errorf("%w: signature %s tells by its output %s whether a step was skipped, which a dynamic loss scale goes by and skipped_steps counts, and a call of several steps does not tell how many were; export the model without loss_scale_input to have it scaled inside the graph",
			ErrStack, train.Name, savedmodels.OutputGradsFinite)
	}
	if plain, err = stackOf(p.model, p.roles.TrainN, train); err != nil {
		return nil, nil, err
	}
	if p.opts.Compiled && p.roles.TrainNXLA != "" {
		if twin, err = stackOf(p.model, p.roles.TrainNXLA, train); err != nil {
			return nil, nil, err
		}
		if err := asNoted(p.model, twin.signature.Name, map[string]int64{"steps": twin.steps, "batch": twin.batch}); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrStack, err)
		}
	}
	return plain, twin, nil
}

// whySingle says why a model has no role for several steps.
func (p *Plan) whySingle() string {
	for _, problem := range p.model.Problems {
		if problem.Code == savedmodels.CodeUnusableSignature && problem.Subject == "train_n" {
			return problem.Message + "; " + problem.Fix
		}
	}
	if r := p.model.Roles; r.TrainN != "" {
		return fmt.Sprintf("%s goes with the signature %s, and %s is what is trained", r.TrainN, r.Train, p.roles.Train)
	}
	return "the model has no signature train_n; export it with one, as scripts/export.py does"
}

// unstacked are the reserved inputs of which a call takes one, whatever its steps.
var unstacked = []string{savedmodels.InputLearningRate, savedmodels.InputLossScale, savedmodels.InputGroupSize}

// isStacked reports whether a signature of several steps takes an input once per step.
func isStacked(input string) bool { return !slices.Contains(unstacked, input) }

// stackOf reads the layout of a signature that runs several of train's steps, and
// refuses one whose steps would be other steps.
func stackOf(model *savedmodels.Model, name string, train *savedmodels.Signature) (*layout, error) {
	sig, err := model.Signature(name)
	if err != nil {
		return nil, err
	}
	refuse := func(format string, args ...any) (*layout, error) {
		return nil, fmt.Errorf("%w: signature %s %s; export it as scripts/export.py does", ErrStack, name, fmt.Sprintf(format, args...))
	}
	for _, m := range train.Metrics() {
		at := slices.IndexFunc(sig.Metrics(), func(t savedmodels.Tensor) bool { return t.Name == m.Name })
		if at < 0 {
			return refuse("does not report %s, which %s does", m.Name, train.Name)
		}
		if t := sig.Metrics()[at].DType; t == tfbind.Float16 || t == tfbind.BFloat16 {
			return refuse("adds up %s over its steps in %s, which rounds too much", m.Name, t)
		}
	}
	for _, in := range train.Inputs {
		if sig.Input(in.Name) == nil {
			return refuse("does not take %s, which %s does", in.Name, train.Name)
		}
	}
	l := &layout{signature: sig, steps: -1, batch: -1}
	for _, in := range sig.Inputs {
		one := train.Input(in.Name)
		if one == nil {
			return refuse("takes %s, which %s does not", in.Name, train.Name)
		}
		if in.DType == tfbind.String {
			return nil, fmt.Errorf("%w: signature %s takes strings (%s), which are fed one step at a time", ErrStack, name, in.Name)
		}
		if in.UnknownRank {
			continue
		}
		rank := 0
		switch {
		case !isStacked(in.Name):
		case in.Name == savedmodels.InputSeed:
			rank = 2
		case len(in.Shape) >= 2:
			rank = len(in.Shape)
		default:
			return refuse("takes %s without dimensions for steps and samples", in.Name)
		}
		if len(in.Shape) != rank {
			return refuse("takes %s with %d dimensions, expected %d: %s", in.Name, len(in.Shape), rank, "what a step takes is stacked, but for learning_rate, loss_scale and group_size")
		}
		if rank == 0 {
			continue
		}
		for _, d := range []struct {
			size *int64
			of   int64
			what string
		}{{&l.steps, in.Shape[0], "steps"}, {&l.batch, in.Shape[1], "samples"}} {
			if d.of < 0 || d.what == "samples" && in.Name == savedmodels.InputSeed {
				continue
			}
			if *d.size >= 0 && *d.size != d.of {
				return refuse("takes %d %s of %s, and %d of another input", d.of, d.what, in.Name, *d.size)
			}
			*d.size = d.of
		}
	}
	if l.steps == 0 || l.steps == 1 {
		return refuse("runs calls of %d steps, expected more", l.steps)
	}
	return l, nil
}

// batchOf is the number of samples that a signature was made for, which dimension dim
// of its data counts; -1 is any.
func batchOf(sig *savedmodels.Signature, dim int) int64 {
	for _, t := range sig.DataInputs() {
		if !t.UnknownRank && len(t.Shape) > dim && t.Shape[dim] >= 0 {
			return t.Shape[dim]
		}
	}
	return -1
}

// asNoted refuses a twin whose sizes are not what the exporter has noted.
func asNoted(model *savedmodels.Model, name string, sizes map[string]int64) error {
	if model.Metadata == nil {
		return nil
	}
	for what, noted := range model.Metadata.Compiled[name] {
		if have, ok := sizes[what]; ok && have != noted {
			return fmt.Errorf("signature %s is compiled for a size (%s) of %d, and the exporter's notes say %d; export the model again", name, what, have, noted)
		}
	}
	return nil
}
