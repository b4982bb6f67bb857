package session

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/option"
	"steadyfit/savedmodels"
	"steadyfit/tfbind"
)

// Plan describes how a model trains with some options: its signatures, steps per execution,
// compiled signatures and loss scale. Making a plan does not open TensorFlow.
type Plan struct {
	model *savedmodels.Model
	opts  Options
	roles savedmodels.Roles
	// scales reports whether the session has a dynamic loss scale.
	scales   bool
	parallel *savedmodels.Parallel // the train step of a rank; nil without a cluster
	// trainNames and evaluateNames are the results of TrainMetrics and EvaluateMetrics.
	trainNames, evaluateNames []string
	// stacked describes the signatures of several steps per execution, the compiled one first; nil if unused.
	stacked []*layout
}

// TrainMetrics returns the names of the results of a train step; nil if the plan is read-only. "loss"
// is first. With loss scaling, loss_scale and skipped_steps are last. Running metrics cover several
// batches (Session.ResetMetrics).
func (p *Plan) TrainMetrics() []string { return p.trainNames }

// EvaluateMetrics returns the names of the results of an evaluation, "loss" first; nil if the
// model has no evaluation signature.
func (p *Plan) EvaluateMetrics() []string { return p.evaluateNames }

// metricNames returns the names of the metrics of a signature.
func metricNames(sig *savedmodels.Signature) (names []string) {
	for _, m := range sig.Metrics() {
		names = append(names, m.Name)
	}
	return names
}

// Compile makes the plan of a model. The errors are:
//   - *savedmodels.NotTrainableError and savedmodels.ErrUnsafeOps for the model.
//   - *option.Error for Options.StepsPerExecution (ErrStack), for Options.Compiled
//     (savedmodels.ErrNoSignature), for Options.MicroBatches (the errors of CheckSplit), and for
//     Options.Cluster (savedmodels.ErrNoSignature, ErrInexactSplit).
func Compile(model *savedmodels.Model, o Options) (*Plan, error) {
	if model == nil {
		return nil, errNoModel
	}
	p := &Plan{model: model, opts: o, roles: model.Roles}
	if o.Only != nil {
		p.roles = p.roles.Only(o.Only)
	}
	if p.roles.Evaluate != "" {
		evaluate, err := model.Signature(p.roles.Evaluate)
		if err != nil {
			return nil, err
		}
		p.evaluateNames = metricNames(evaluate)
	}
	if o.ReadOnly {
		if err := model.CheckSafe(); err != nil && !o.AllowUnsafeOps {
			return nil, err
		}
		return p, nil
	}
	if err := model.CheckTrainable(o.AllowUnsafeOps); err != nil {
		return nil, err
	}
	train, err := model.Signature(p.roles.Train)
	if err != nil {
		return nil, err
	}
	p.scales = scalable(train)
	if p.trainNames = metricNames(train); p.scales {
		p.trainNames = append(p.trainNames, contract.MetricLossScale, contract.MetricSkippedSteps)
	}
	for _, check := range []func() error{func() error { return p.checkCompiled(train) }, p.layOut, p.checkCluster,
		p.checkMicroBatches} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// Model returns the model of the plan.
func (p *Plan) Model() *savedmodels.Model { return p.model }

// Roles returns the signatures that a session uses.
func (p *Plan) Roles() savedmodels.Roles { return p.roles }

// Check returns an *option.Error for savedmodels.ErrNoSignature if a training cannot run as planned:
// Options.Compiled is set and no signature is compiled for batches of that many samples, or setsRate is
// true and the model does not let a training set its learning rate.
func (p *Plan) Check(samples int, setsRate bool) error {
	if train, err := p.model.Signature(p.roles.Train); err == nil && setsRate && p.roles.SetLearningRate == "" &&
		!train.Takes(contract.InputLearningRate) {
		return &option.Error{Option: "Loop.LearningRate", Reason: errFixedRate.Error(),
			Fix: "leave it out, or export the model with a constant rate", Err: errFixedRate}
	}
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
	return compiledError(fmt.Sprintf("train on such batches, or export the model with --xla-batch %d of steadyfit-export",
		samples),
		"%s, but the batches have %d samples", strings.Join(made, ", "), samples)
}

func compiledError(fix, reason string, args ...any) error {
	return &option.Error{Option: "Options.Compiled", Reason: fmt.Sprintf(reason, args...), Fix: fix, Err: errNoSignature}
}

// ChooseSteps chooses Options.StepsPerExecution for a dataset and a batch size. It is the
// number of steps that train_n was exported for, or with Options.Compiled train_n_xla. If any
// number is possible, it is at most 50 and the inputs of an execution take at most 16 MiB. With
// a result of 1, the error is the reason: ErrStack or ErrData. The current value of
// Options.StepsPerExecution does not matter.
func (p *Plan) ChooseSteps(ds data.Dataset, batch int) (int, error) {
	fields, err := CheckData(p.model, p.roles.Train, ds, data.Pass{Batch: batch, DropRemainder: true})
	if err != nil {
		return 1, err
	}
	layouts, err := p.layouts()
	if err != nil {
		return 1, err
	}
	for _, l := range layouts {
		if l.steps >= 0 && l.takes(int(l.steps), batch) {
			return int(l.steps), nil
		}
	}
	plain := layouts[len(layouts)-1]
	if !plain.takes(max(int(plain.steps), 2), batch) {
		return 1, fmt.Errorf("%w: signature %s takes batches of %d samples, but the batches have %d", ErrStack,
			plain.signature.Name, plain.batch, batch)
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
		return 1, fmt.Errorf("%w: a batch has %d bytes, and two batches exceed the limit of %d bytes per execution", ErrStack,
			bytes, autoBytes)
	}
	return n, nil
}

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
	if p.stacked, err = p.layouts(); err != nil {
		return refuse(err.Error(), "", err)
	}
	if !slices.ContainsFunc(p.stacked, func(l *layout) bool { return l.steps <= int64(want) }) {
		plain := p.stacked[len(p.stacked)-1]
		return refuse(fmt.Sprintf("signature %s runs exactly %d steps per execution", plain.signature.Name, plain.steps),
			fmt.Sprintf("set %d or more", plain.steps), ErrStack)
	}
	return nil
}

// checkCompiled rejects Options.Compiled if the compiled signatures are missing or do not match
// the train signature.
func (p *Plan) checkCompiled(train *savedmodels.Signature) error {
	switch {
	case !p.opts.Compiled:
		return nil
	case p.opts.Device.Deterministic:
		return option.New("Options.Compiled true", "conflicts with {Options.Deterministic true}: "+
			"XLA cannot run some operations deterministically, such as the gradient of max pooling, and the first compiled "+
			"step with such an operation fails",
			"unset one of the two options")
	case p.roles.TrainXLA == "" && p.roles.TrainNXLA == "":
		return compiledError("export it with --xla-batch of steadyfit-export",
			"the model has neither %s_xla nor train_n_xla", p.roles.Train)
	case p.roles.TrainXLA == "":
		return nil
	}
	compiled, err := p.model.Signature(p.roles.TrainXLA)
	if err != nil {
		return err
	}
	if names(compiled.Inputs) != names(train.Inputs) || names(compiled.Metrics()) != names(train.Metrics()) {
		return compiledError("export the model again", "%s takes %s and reports %s, but %s takes %s and reports %s",
			compiled.Name,
			names(compiled.Inputs), names(compiled.Metrics()), train.Name, names(train.Inputs), names(train.Metrics()))
	}
	return nil
}

// ErrStack means that train steps cannot run together in one execution.
var ErrStack = errors.New("train steps cannot run together in one execution")

// The limits of ChooseSteps for an execution: the number of steps, and the bytes of the inputs.
const (
	autoSteps = 50
	autoBytes = 16 << 20
)

// layout describes a signature of several steps per execution.
type layout struct {
	signature *savedmodels.Signature
	// steps and batch are the fixed sizes of the signature; -1 means any.
	steps, batch int64
}

// takes reports whether the signature can run n steps on batches of this size.
func (l *layout) takes(n, samples int) bool {
	return (l.steps < 0 || l.steps == int64(n)) && (l.batch < 0 || l.batch == int64(samples))
}

// layouts returns the layout of train_n and, before it, with Options.Compiled, the layout of train_n_xla.
func (p *Plan) layouts() (all []*layout, err error) {
	if p.roles.TrainN == "" {
		return nil, fmt.Errorf("%w: %s", ErrStack, cmp.Or(unusable(p.model, "train_n"),
			"the model has no signature train_n; export it with one, as steadyfit-export does"))
	}
	train, err := p.model.Signature(p.roles.Train)
	if err != nil {
		return nil, err
	}
	if scalable(train) {
		return nil, fmt.Errorf("%w: a dynamic loss scale needs the output %s of signature %s after each step, and an "+
			"execution of several steps does not report how many were skipped; export the model without loss_scale_input to "+
			"scale the loss inside the graph",
			ErrStack, contract.OutputGradsFinite, train.Name)
	}
	for _, name := range []string{p.roles.TrainNXLA, p.roles.TrainN} {
		if name == "" || name == p.roles.TrainNXLA && !p.opts.Compiled {
			continue
		}
		l, err := layoutOf(p.model, name, train)
		if err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

// isStacked reports whether an input has one value per step of an execution.
func isStacked(in savedmodels.Tensor) bool {
	return !in.IsReserved() || in.Name == contract.InputSampleWeight || in.Name == contract.InputSeed
}

// layoutOf reads the layout of a signature that runs several steps. Each of its steps must take the
// inputs of train and report its metrics.
func layoutOf(model *savedmodels.Model, name string, train *savedmodels.Signature) (*layout, error) {
	sig, err := model.Signature(name)
	if err != nil {
		return nil, err
	}
	l := &layout{signature: sig, steps: batchOf(sig, 0), batch: batchOf(sig, 1)}
	if why := l.differs(train); why != "" {
		return nil, fmt.Errorf("%w: signature %s %s; export it as steadyfit-export does", ErrStack, name, why)
	}
	return l, nil
}

// differs returns how the steps of the layout differ from train; empty if they do not.
func (l *layout) differs(train *savedmodels.Signature) string {
	sig := l.signature
	if names(sig.Inputs) != names(train.Inputs) {
		return fmt.Sprintf("takes %s, but %s takes %s", names(sig.Inputs), train.Name, names(train.Inputs))
	}
	for _, m := range train.Metrics() {
		if sig.Output(m.Name) == nil {
			return fmt.Sprintf("does not report %s, which %s does", m.Name, train.Name)
		}
	}
	for _, in := range sig.Inputs {
		switch {
		case in.DType == tfbind.String:
			return fmt.Sprintf("takes strings (%s), which are fed one step at a time", in.Name)
		case isStacked(in) && !in.UnknownRank && len(in.Shape) < 2:
			return fmt.Sprintf("takes %s without dimensions for steps and samples", in.Name)
		}
	}
	if l.steps == 0 || l.steps == 1 {
		return fmt.Sprintf("runs %d steps per execution, expected more", l.steps)
	}
	return ""
}

// batchOf returns the fixed batch size of a signature, which is dimension dim of its data
// inputs; -1 means any.
func batchOf(sig *savedmodels.Signature, dim int) int64 {
	for _, t := range sig.DataInputs() {
		if !t.UnknownRank && len(t.Shape) > dim && t.Shape[dim] >= 0 {
			return t.Shape[dim]
		}
	}
	return -1
}
