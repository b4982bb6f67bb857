package savedmodels

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"steadyfit/internal/contract"
	"steadyfit/internal/dtype"
	"steadyfit/internal/manifest"
	"steadyfit/internal/texts"
)

const (
	failure = "error" // training would fail or is not allowed
	warning = "warning"
	note    = "note"
)

// Problem is a property of a model that prevents training or that the user should know.
type Problem struct {
	// Severity is "error" if training would fail or is not allowed, "warning" or "note".
	Severity string `json:"severity"`
	// Code is a stable name for the kind of problem, such as "unsafe-op".
	Code string `json:"code"`
	// Subject is the name of the signature, input or operation that has the problem.
	Subject string `json:"subject"`
	Message string `json:"message"`
	// Fix is what the user can do; empty if no action is needed.
	Fix string `json:"fix,omitempty"`
}

// The codes of problems are stable, since `inspect --json` prints them.
const (
	codeNoTrainSignature = "no-train-signature"
	// Loading the model gives no value to some variables. With the first code, only training uses
	// them; with the second, predictions do, too.
	codeOptimizerNotRestored = "optimizer-not-restored"
	codeVariableNotRestored  = "variable-not-restored"
	codeUnsafeOp             = "unsafe-op"
	// An input has a reserved name but the wrong type or shape.
	codeReservedInput = "reserved-input"
	// An input cannot be fed: its type is not supported, or it is a sparse or ragged tensor.
	codeUnsupportedType = "unsupported-type"
	codeSparseInput     = "sparse-input"
	// codeMissingTensor means that a signature names a tensor that the graph does not have.
	codeMissingTensor  = "missing-tensor"
	codeFixedBatch     = "fixed-batch"
	codeNothingTrained = "nothing-trained"
)

const (
	exportFix = "export the model with steadyfit-export, which keeps every variable"
	unsafeFix = "export the model without it; or, if you trust the model like a program, allow unsafe operations"
)

// CheckTrainable returns a *NotTrainableError with all reasons why the model cannot be trained, or nil.
// allowUnsafeOps accepts operations that access files, the network or Python.
func (m *Model) CheckTrainable(allowUnsafeOps bool) error {
	if m == nil {
		return errNoModel
	}
	reasons := slices.DeleteFunc(slices.Clone(m.Problems), func(p Problem) bool {
		return p.Severity != failure || allowUnsafeOps && p.Code == codeUnsafeOp
	})
	if len(reasons) > 0 {
		return &NotTrainableError{Dir: m.Dir, Problems: reasons}
	}
	return nil
}

// CheckSafe returns ErrUnsafeOps with the names of the unsafe operations that steadyfit would
// load or run, or nil. CheckTrainable includes this check.
func (m *Model) CheckSafe() error {
	if m == nil {
		return errNoModel
	}
	var ops []string
	for _, p := range m.Problems {
		if p.Severity == failure && p.Code == codeUnsafeOp {
			ops = append(ops, texts.Printable(p.Message))
		}
	}
	if len(ops) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w:\n  %s\n%s", texts.Printable(m.Dir), ErrUnsafeOps, strings.Join(ops, "\n  "), unsafeFix)
}

// set is a set of indices in knowledge.vars.
type set map[int]bool

func union(sets ...set) set {
	all := set{}
	for _, s := range sets {
		maps.Copy(all, s)
	}
	return all
}

func (s set) minus(others ...set) set {
	left := maps.Clone(s)
	for _, o := range others {
		maps.DeleteFunc(left, func(id int, _ bool) bool { return o[id] })
	}
	return left
}

func (m *Model) names(ids set) []string {
	var out []string
	for id := range ids {
		out = append(out, m.known.vars[id].Name)
	}
	slices.Sort(out)
	return out
}

// variables describes variables for a message: their number and the first names.
func (m *Model) variables(ids set, which string) string {
	return texts.Count(len(ids), "variable") + " " + which + ": " + texts.Some(m.names(ids))
}

// The method of returns the union of pick(facts) over the facts of the named signatures.
func (k *knowledge) of(signatures []string, pick func(facts) set) set {
	all := set{}
	for _, name := range signatures {
		maps.Copy(all, pick(k.signature[name]))
	}
	return all
}

// settle derives Roles, Problems, Variables and Inexact from the facts.
func (m *Model) settle() {
	m.Roles, m.Problems = m.judge()
	k := &m.known
	trained := k.of(m.Roles.Training(), facts.changed)
	touched := union(k.load.read, k.load.written, k.save.read, k.save.written, k.restore.read, k.restore.written)
	for _, f := range k.signature {
		maps.Copy(touched, f.read)
		maps.Copy(touched, f.written)
	}
	m.Variables = []Variable{}
	for id := range touched {
		v := *k.vars[id]
		v.Restored, v.Saved, v.Trained = k.restore.written[id], k.save.read[id], trained[id]
		m.markFrozen(&v, id)
		m.Variables = append(m.Variables, v)
	}
	slices.SortFunc(m.Variables, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
	m.Inexact = m.whyInexact()
}

// judgement collects the roles and problems of a model.
type judgement struct {
	*Model
	roles    Roles
	problems []Problem
}

func (j *judgement) report(severity string, code, subject, fix, format string, args ...any) {
	j.problems = append(j.problems, Problem{severity, code, subject, fmt.Sprintf(format, args...), fix})
}

// judge derives roles and problems.
func (m *Model) judge() (Roles, []Problem) {
	j := &judgement{Model: m, problems: []Problem{}}
	j.resolve()
	if s := m.find(j.roles.Train); s != nil {
		j.checkTrained(s)
	} else {
		j.noTrainSignature()
	}
	j.checkRestored()
	j.checkSaved()
	j.checkUnsafe()
	for _, name := range j.roles.used() {
		j.checkTensors(m.find(name))
	}
	if m.notes != nil {
		j.report(warning, contract.CodeMetadata, manifest.NotesFile, "delete the file, or export the model again",
			"the exporter's notes cannot be read: %v", m.notes)
	}
	rank := func(s string) int { return slices.Index([]string{failure, warning, note}, s) }
	slices.SortFunc(j.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(rank(a.Severity), rank(b.Severity)), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Message, b.Message))
	})
	return j.roles, slices.Compact(j.problems)
}

// checkTrained reports a train signature that changes no weights.
func (j *judgement) checkTrained(s *Signature) {
	f := j.known.signature[s.Name]
	changed := f.changed().minus(j.known.signature[j.roles.ResetMetrics].written)
	if len(changed) > 0 || j.known.missing[s.Output(contract.OutputLoss).Op] {
		return
	}
	severity := warning
	if len(f.read) > 0 {
		severity = failure
	}
	j.report(severity, codeNothingTrained, s.Name, "apply the gradients inside the exported function",
		"signature %s changes no weight, so the model would not learn", s.Name)
}

func (j *judgement) noTrainSignature() {
	fix := "export the model with steadyfit-export, or with a signature train that returns the loss"
	if name := j.choose(trainNames, nil); name != "" {
		s := j.find(name)
		message := "signature " + name + " has no output loss"
		if outputs := s.Metrics(); len(outputs) > 0 {
			message += "; its scalars are " + texts.Some(Names(outputs))
			fix = "set the loss output to the scalar that is the loss"
		}
		if loss := s.Output(contract.OutputLoss); loss != nil {
			message = fmt.Sprintf("the output loss of signature %s must be %s, but is %s %s",
				name, reservedOutputs[contract.OutputLoss].text, loss.DType, loss.shapeText())
		}
		j.report(failure, codeNoTrainSignature, name, fix, "%s", message)
		return
	}
	message := "none of the signatures train, learn, train_step exists"
	if names := j.signatureNames(); len(names) > 0 {
		message += "; there are " + texts.Some(names)
		fix += "; if one of these trains, export it with the name train"
	}
	if len(j.known.tags) > 1 {
		fix = "choose another metagraph by its tags: " + tagSets(j.known.tags)
	}
	j.report(failure, codeNoTrainSignature, "", fix, "%s", message)
}

// unset returns the variables that training or predictions use and that have no value after
// loading. A variable whose initialization is tested (VarIsInitializedOp) counts as set,
// because such a function usually initializes it.
func (j *judgement) unset() (training, serving set) {
	k, r := &j.known, j.roles
	read := func(f facts) set { return f.read }
	tested := k.of(r.used(), func(f facts) set { return f.tested })
	given := union(k.restore.written, k.load.changed(), tested)
	return k.of(r.Training(), read).minus(given), k.of(unique(r.Evaluate, r.Predict), read).minus(given)
}

func (j *judgement) checkRestored() {
	training, serving := j.unset()
	if len(training) > 0 {
		code := codeVariableNotRestored
		if len(training.minus(serving)) > 0 {
			code = codeOptimizerNotRestored
		}
		j.report(failure, code, j.roles.Train,
			exportFix+"; or, before tf.saved_model.save, build the optimizer and keep "+
				"[v.value for v in model.variables + optimizer.variables] in an attribute of the module",
			"loading the model gives no value to %s; the first step would fail with \"Could not find variable %s\" or the like",
			j.variables(training, "that training uses"), j.names(training)[0])
	}
	if unset := serving.minus(training); len(unset) > 0 {
		j.report(warning, codeVariableNotRestored, cmp.Or(j.roles.Predict, j.roles.Evaluate), exportFix,
			"loading the model gives no value to %s", j.variables(unset, "that predictions use"))
	}
}

// checkSaved reports training state that a checkpoint would not include.
func (j *judgement) checkSaved() {
	k, r := &j.known, j.roles
	if j.Saver == nil && r.Train != "" {
		j.report(warning, contract.CodeNoSaver, "", "save the model with tf.saved_model.save, which adds a saver",
			"no checkpoint can be written or read: %s", k.noSaver)
	}
	if j.Saver != nil {
		unset, _ := j.unset()
		saved := maps.Clone(k.save.read)
		maps.DeleteFunc(saved, func(id int, _ bool) bool { return !k.restore.written[id] })
		if lost := k.of(r.Training(), facts.changed).minus(saved, unset); len(lost) > 0 {
			j.report(warning, contract.CodeStateNotSaved, r.Train, exportFix,
				"training changes %s; a resumed run differs from an uninterrupted one",
				j.variables(lost, "that checkpoints leave out"))
		}
	}
	var ops, where []string
	for _, name := range unique(r.Train, r.Gradients, r.Apply) {
		for _, f := range k.signature[name].fleeting {
			if what := f.op + " " + f.does; !slices.Contains(ops, what) {
				ops, where = append(ops, what), append(where, f.where)
			}
		}
	}
	if len(ops) > 0 {
		slices.Sort(ops)
		slices.Sort(where)
		j.report(warning, contract.CodeStateNotSaved, r.Train,
			"draw random numbers with stateless operations from the input seed, or from a tf.random.Generator that the "+
				"module owns; read data and look it up before it is fed",
			"training has state outside of variables, which checkpoints do not include: %s, at %s; a run that resumes or "+
				"reloads the model differs from an uninterrupted one",
			texts.Some(ops), texts.Some(where))
	}
}

// checkUnsafe reports operations that access files, the network or Python, or are unknown. Such an
// operation is an error if steadyfit would run it.
func (j *judgement) checkUnsafe() {
	type key struct {
		severity string
		op, does string
	}
	runs, places := map[key][]string{}, map[key][]string{}
	add := func(s string, what string, f facts, allowed map[string]bool) {
		for _, u := range f.unsafe {
			if !allowed[u.op] {
				k := key{s, u.op, u.does}
				runs[k], places[k] = unique(append(runs[k], what)...), unique(append(places[k], u.where)...)
			}
		}
	}
	k, r := &j.known, j.roles
	add(failure, "loading the model", k.load, nil)
	add(failure, "the model's saver", k.save, checkpointOps)
	add(failure, "the model's saver", k.restore, checkpointOps)
	used := r.used()
	for _, s := range j.Signatures {
		severity := warning
		if slices.Contains(used, s.Name) {
			severity = failure
		}
		var allowed map[string]bool
		if s.Name == "save" || s.Name == "restore" {
			allowed = checkpointOps
		}
		add(severity, "signature "+s.Name, k.signature[s.Name], allowed)
	}
	for k, where := range places {
		slices.Sort(where)
		fix := ""
		if k.severity == failure {
			fix = unsafeFix
		}
		j.report(k.severity, codeUnsafeOp, k.op, fix, "%s %s: run by %s, at %s", k.op, k.does, texts.Some(runs[k]),
			texts.Some(where))
	}
}

// ofOneStep returns a reserved input without the dimension for steps that it may have in a
// signature of several steps.
func (j *judgement) ofOneStep(s *Signature, t Tensor, want form) Tensor {
	if (s.Name == j.roles.TrainN || s.Name == j.roles.TrainNXLA) && !t.UnknownRank && len(t.Shape) == len(want.shape)+1 {
		t.Shape = t.Shape[1:]
	}
	return t
}

func (j *judgement) checkTensors(s *Signature) {
	severity := warning
	if slices.Contains(j.roles.Training(), s.Name) {
		severity = failure
	}
	for _, t := range slices.Concat(s.Inputs, s.Outputs) {
		if j.known.missing[t.Op] {
			j.report(severity, codeMissingTensor, s.Name+"."+t.Name, "export the model again",
				"signature %s names the tensor %s, but the graph has no such node", s.Name, t.Op)
		}
	}
	for _, t := range s.Inputs {
		about := s.Name + "." + t.Name
		switch want := reservedInputs[t.Name]; {
		case t.Op == "":
			j.report(severity, codeSparseInput, about, "take its parts as separate inputs",
				"input %s of signature %s is a sparse or composite tensor, which cannot be fed", t.Name, s.Name)
		case t.DType.Size() == 0 && t.DType != dtype.String:
			j.report(severity, codeUnsupportedType, about, "take another type and convert it in the exported function",
				"input %s of signature %s is of type %s, which cannot be fed", t.Name, s.Name, t.typeName())
		case t.IsReserved():
			if !want.fits(j.ofOneStep(s, t, want)) {
				j.report(severity, codeReservedInput, about, "give the input another name, or this form",
					"the name %s is reserved for %s, but in signature %s it is %s %s", t.Name, want.text, s.Name,
					t.DType, t.shapeText())
			}
		default:
			j.checkData(s, t)
		}
	}
}

// checkData reports a data input that takes batches of one size only.
func (j *judgement) checkData(s *Signature, t Tensor) {
	r := j.roles
	batch := 0 // the dimension that counts the samples
	if s.Name == r.TrainN {
		batch = 1
	}
	if slices.Contains([]string{r.SetLearningRate, r.Apply, r.TrainXLA, r.TrainNXLA}, s.Name) || len(t.Shape) <= batch ||
		t.Shape[batch] < 0 {
		return
	}
	j.report(warning, codeFixedBatch, s.Name+"."+t.Name,
		fmt.Sprintf("train with batches of %d and without a smaller last one, or export with None as the first dimension",
			t.Shape[batch]),
		"input %s of signature %s takes batches of exactly %d", t.Name, s.Name, t.Shape[batch])
}

var errNoModel = errors.New("the model is nil; pass one from Open")

// Names returns the names of inputs or outputs.
func Names(ts []Tensor) []string {
	names := make([]string, len(ts))
	for i, t := range ts {
		names[i] = t.Name
	}
	return names
}
