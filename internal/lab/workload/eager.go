package workload

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"steadyfit/data"
	"steadyfit/internal/contract"
	"steadyfit/internal/eager"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tfbind"
)

// eagerModel executes each operation of a signature by itself, as Keras does under
// run_functions_eagerly, to measure the claim that this saves memory. It frees a value when no
// later operation needs it. Operations are not rewritten or fused, and do not run in parallel.
type eagerModel struct {
	model    *savedmodels.Model
	roles    savedmodels.Roles
	compiler *compiler // nil after all programs are made
	programs []*program
	context  eager.Context

	train, evaluate eagerSignature
	save, restore   *program
}

type eagerSignature struct {
	*program
	inputs  []savedmodels.Tensor
	metrics []string
}

// openEager restores the variables. More programs can be compiled until settle is called. The
// result must be closed.
func openEager(model *savedmodels.Model, options session.Options) (_ *eagerModel, err error) {
	e := &eagerModel{model: model}
	if e.roles, err = model.CheckTrainable(savedmodels.CheckOptions{}); err != nil {
		return nil, err
	}
	config, err := options.Device.ConfigProto()
	if err != nil {
		return nil, err
	}
	if e.context, err = eager.New(slices.Concat(config, options.Config)); err != nil {
		return nil, err
	}
	if e.compiler, err = newCompiler(model, e.context); err == nil {
		err = e.load()
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *eagerModel) load() (err error) {
	saver := e.model.Saver
	if saver == nil {
		return e.compiler.refuse("saver", "the model has no saver to restore its variables")
	}
	prefix := []string{saver.FilenameTensor}
	if e.save, err = e.compiler.part("save", prefix, []string{saver.SaveTensor}); err != nil {
		return err
	}
	if e.restore, err = e.compiler.part("restore", prefix, []string{saver.RestoreOp}); err != nil {
		return err
	}
	return e.withPrefix(e.restore, filepath.Join(e.model.Dir, "variables", "variables"))
}

// settle frees the graph.
func (e *eagerModel) settle() {
	if e.compiler != nil {
		e.programs, e.compiler = e.compiler.programs, nil
	}
}

// newEagerEngine opens a model. The result must be closed.
func newEagerEngine(model *savedmodels.Model, options session.Options) (engine, error) {
	e, err := openEager(model, options)
	if err != nil {
		return nil, err
	}
	e.train, err = e.signature(e.roles.Train)
	if err == nil && e.roles.Evaluate != "" {
		e.evaluate, err = e.signature(e.roles.Evaluate)
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.settle()
	return e, nil
}

func (e *eagerModel) signature(name string) (eagerSignature, error) {
	sig, err := e.model.Signature(name)
	if err != nil {
		return eagerSignature{}, err
	}
	s := eagerSignature{inputs: sig.DataInputs()}
	var want []string
	for _, m := range sig.Metrics() {
		s.metrics = append(s.metrics, m.Name)
		want = append(want, m.Op)
	}
	s.program, err = e.part(sig, want...)
	return s, err
}

func (e *eagerModel) part(sig *savedmodels.Signature, want ...string) (*program, error) {
	var feeds []string
	for _, in := range sig.Inputs {
		if contract.IsReserved(in.Name) {
			return nil, e.compiler.refuse(sig.Name, "it takes "+in.Name+", which this loop does not feed")
		}
		feeds = append(feeds, in.Op)
	}
	return e.compiler.part(sig.Name, feeds, want)
}

// Close frees all memory of the model.
func (e *eagerModel) Close() error {
	if e == nil {
		return nil
	}
	e.settle()
	for _, p := range e.programs {
		p.frame.Close()
	}
	return e.context.Close()
}

func (e *eagerModel) Roles() savedmodels.Roles { return e.roles }

func (e *eagerModel) TrainMetrics() []string { return e.train.metrics }

func (e *eagerModel) EvaluateMetrics() []string { return e.evaluate.metrics }

func (e *eagerModel) Train(ctx context.Context, _ int64, b data.Batch, out []float64) error {
	return e.step(ctx, e.train, b, out)
}

// Trace only calls do, because eager execution has no graph to trace.
func (e *eagerModel) Trace(do func() error) ([][]byte, error) { return nil, do() }

func (e *eagerModel) Evaluate(ctx context.Context, b data.Batch, out []float64) error {
	if e.evaluate.program == nil {
		return fmt.Errorf("evaluate: %w", savedmodels.ErrNoSignature)
	}
	return e.step(ctx, e.evaluate, b, out)
}

func (e *eagerModel) step(ctx context.Context, s eagerSignature, b data.Batch, out []float64) error {
	set, err := tensorsOf(s.inputs, b)
	if err != nil {
		return err
	}
	defer set.close()
	return e.scalars(ctx, s.program, set, out)
}

// scalars runs a program on tensors of the caller and reads its first results.
func (e *eagerModel) scalars(ctx context.Context, p *program, set tensors, out []float64) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return p.runOn(set, out)
}

// SetLearningRate is not supported.
func (e *eagerModel) SetLearningRate(float64) error {
	return fmt.Errorf("set the learning rate: %w in eager execution", savedmodels.ErrNoSignature)
}

func (e *eagerModel) Identity() map[string]string {
	return map[string]string{"model": e.model.Hash, "signature": e.roles.Train}
}

func (e *eagerModel) Save(ctx context.Context, prefix string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return e.withPrefix(e.save, prefix)
}

func (e *eagerModel) Restore(ctx context.Context, prefix string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return e.withPrefix(e.restore, prefix)
}

func (e *eagerModel) withPrefix(p *program, prefix string) error {
	name, err := tfbind.NewTensor([]string{prefix})
	if err != nil {
		return err
	}
	return errors.Join(p.runOn(tensors{name}, nil), name.Close())
}

// runOn runs a program on tensors and reads its first results. After an error, its frames keep
// values until the next run.
func (p *program) runOn(set tensors, out []float64) (err error) {
	for i, x := range set {
		if err := p.frame.Put(int32(i), x); err != nil {
			return err
		}
	}
	if err := p.run(); err != nil {
		return err
	}
	for i := range out {
		if out[i], err = p.frame.Float(p.results[i].place); err != nil {
			return err
		}
	}
	for _, r := range p.results {
		if err := p.frame.Drop(r.place); err != nil {
			return err
		}
	}
	return nil
}

// run executes the program. It frees the arguments and stores the results in the frame.
func (p *program) run() error {
	if err := p.frame.Drop(p.unused...); err != nil {
		return err
	}
	for i := range p.code {
		if err := p.do(&p.code[i]); err != nil {
			return fmt.Errorf("%s: %s: %w", p.name, p.code[i].node, err)
		}
	}
	return nil
}

func (p *program) do(in *instruction) (err error) {
	switch {
	case in.op != nil:
		if in.made {
			return nil
		}
		err = p.frame.Execute(in.op)
		in.made = in.variable && err == nil
		return err
	case in.condition != nil:
		err = p.loop(in)
	case in.branches != nil:
		err = p.choose(in)
	default:
		err = p.call(in.body, in.args, in.first)
	}
	if err != nil {
		return err
	}
	return p.frame.Drop(in.unneeded...)
}

// call moves arguments to a program and its results to this frame.
func (p *program) call(body *program, args []transfer, first int32) error {
	for i, a := range args {
		if err := a.pass(p.frame, body.frame, int32(i)); err != nil {
			return err
		}
	}
	if err := body.run(); err != nil {
		return err
	}
	for i, r := range body.results {
		if err := r.pass(body.frame, p.frame, first+int32(i)); err != nil {
			return err
		}
	}
	return nil
}

func (p *program) choose(in *instruction) error {
	condition := in.args[0]
	yes, err := p.frame.Float(condition.place)
	if err != nil {
		return err
	}
	if !condition.stays {
		if err := p.frame.Drop(condition.place); err != nil {
			return err
		}
	}
	branch := in.branches[0]
	if yes == 0 {
		branch = in.branches[1]
	}
	return p.call(branch, in.args[1:], in.first)
}

// loop runs a loop, and keeps the loop variables in the slots of its results.
func (p *program) loop(in *instruction) error {
	for i, a := range in.args {
		if err := a.pass(p.frame, p.frame, in.first+int32(i)); err != nil {
			return err
		}
	}
	for {
		more, err := p.holds(in)
		if err != nil || !more {
			return err
		}
		if err := p.call(in.body, in.turns, in.first); err != nil {
			return err
		}
	}
}

func (p *program) holds(in *instruction) (bool, error) {
	condition := in.condition
	for i, t := range in.turns {
		if err := p.frame.Share(t.place, condition.frame, int32(i)); err != nil {
			return false, err
		}
	}
	if err := condition.run(); err != nil {
		return false, err
	}
	yes, err := condition.frame.Float(condition.results[0].place)
	if err != nil {
		return false, err
	}
	return yes != 0, condition.frame.Drop(condition.results[0].place)
}
