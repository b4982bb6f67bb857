package savedmodels

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"steadyfit/tfbind"
)

// Severity says what a problem stops.
type Severity int

const (
	// Error: training would fail, or is refused.
	Error Severity = iota
	// Warning: training works, and something about it is likely not wanted.
	Warning
	// Note: worth knowing.
	Note
)

var severities = []string{"error", "warning", "note"}

// String is "error", "warning" or "note".
func (s Severity) String() string {
	if s >= 0 && int(s) < len(severities) {
		return severities[s]
	}
	return "severity " + strconv.Itoa(int(s))
}

// MarshalText gives the severity's String.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Problem is something about a model that keeps it from being trained, or that
// its user should know.
type Problem struct {
	Severity Severity `json:"severity"`
	// Code is stable: one of the Code constants.
	Code string `json:"code"`
	// Subject is the signature, input or operation that it is about.
	Subject string `json:"subject"`
	Message string `json:"message"`
	// Fix says what to do; empty if there is nothing to do.
	Fix string `json:"fix,omitempty"`
}

// The codes of problems.
const (
	// CodeNoTrainSignature: nothing to train with.
	CodeNoTrainSignature = "no-train-signature"
	// CodeOptimizerNotRestored: variables that only training uses get no value
	// when the model is loaded, so that the first step fails.
	CodeOptimizerNotRestored = "optimizer-not-restored"
	// CodeVariableNotRestored: the same of variables that predictions use, too.
	CodeVariableNotRestored = "variable-not-restored"
	// CodeStateNotSaved: training changes state that no checkpoint holds: variables,
	// or what operations keep of their own, such as random generators.
	CodeStateNotSaved = "state-not-saved"
	// CodeNoSaver: the model can be trained, not saved.
	CodeNoSaver = "no-saver"
	// CodeWeightsOnly: its signatures save and restore leave out variables.
	CodeWeightsOnly = "save-covers-weights-only"
	// CodeUnsafeOp: it reaches outside the computation.
	CodeUnsafeOp = "unsafe-op"
	// CodeReservedInput and CodeReservedOutput: a reserved name, used for
	// something of another type or shape.
	CodeReservedInput  = "reserved-input"
	CodeReservedOutput = "reserved-output"
	// CodeUnsupportedType: an input of a type that cannot be fed.
	CodeUnsupportedType = "unsupported-type"
	// CodeSparseInput: an input that is not one tensor.
	CodeSparseInput = "sparse-input"
	// CodeMissingTensor: a signature names a tensor that is not in the graph.
	CodeMissingTensor = "missing-tensor"
	// CodeFixedBatch: the batch size is part of the model.
	CodeFixedBatch = "fixed-batch"
	// CodeUnknownRank: shapes cannot be checked before the step.
	CodeUnknownRank = "unknown-rank"
	// CodeScalarInput: an input without a batch dimension.
	CodeScalarInput = "scalar-input"
	// CodeHalfWithoutLossScale: float16 gradients that will vanish.
	CodeHalfWithoutLossScale = "half-without-loss-scale"
	// CodeUnusableSignature: it has the name for a role and does not fit it.
	CodeUnusableSignature = "unusable-signature"
	// CodeNothingTrained: the train signature changes no variable.
	CodeNothingTrained = "nothing-trained"
	// CodeOtherMetaGraphs: the model has more than what is shown.
	CodeOtherMetaGraphs = "other-metagraphs"
	// CodeMetadata: the exporter's notes could not be read.
	CodeMetadata = "metadata-unreadable"
)

const exportFix = "export the model with scripts/export.py, which keeps every variable"

func unusable(name, why string) Problem {
	return Problem{Warning, CodeUnusableSignature, name,
		"signature " + name + " is not used: " + why, "correct it in the code that exports the model"}
}

func weightsOnly(name, verb string, missing []string, saver bool) Problem {
	p := Problem{Severity: Note, Code: CodeWeightsOnly, Subject: name,
		Message: fmt.Sprintf("signatures save and restore are not used: %s leaves out %s that training uses: %s",
			name, plural(len(missing), "variable"), enumerate(missing, 4))}
	if saver {
		p.Message += "; the model's saver is used instead"
	} else {
		p.Severity, p.Fix = Warning, exportFix
	}
	return p
}

// CheckOptions says how a model is about to be trained.
type CheckOptions struct {
	// AllowUnsafeOps accepts operations that touch files, the network or Python.
	AllowUnsafeOps bool
	// Train names the train signature; "" for the model's usual one.
	Train string
}

// CheckTrainable returns nil if the model can be trained, and otherwise a
// *NotTrainableError with all the reasons, which is ErrNotTrainable, and
// ErrUnsafeOps if unsafe operations are among them. A name in opts.Train that
// the model lacks gives ErrNoSignature.
func (m *Model) CheckTrainable(opts CheckOptions) error {
	_, err := m.RolesFor(opts)
	return err
}

// CheckSafe returns nil if what steadyfit would load and run of the model has no
// unsafe operations, and otherwise an error that is ErrUnsafeOps and names them.
// CheckTrainable includes it.
func (m *Model) CheckSafe() error {
	if m == nil {
		return errNoModel
	}
	var ops []string
	for _, p := range m.Problems {
		if p.Severity == Error && p.Code == CodeUnsafeOp {
			ops = append(ops, printable(p.Message))
		}
	}
	if len(ops) == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w:\n  %s\n%s", printable(m.Dir), ErrUnsafeOps, strings.Join(ops, "\n  "), unsafeFix)
}

const unsafeFix = "remove it from what is exported; or, if you trust the model as you would a program, allow unsafe operations"

// RolesFor is CheckTrainable that also gives the roles to train with, which
// differ from Model.Roles if opts names another train signature.
func (m *Model) RolesFor(opts CheckOptions) (Roles, error) {
	if m == nil {
		return Roles{}, errNoModel
	}
	if opts.Train != "" {
		if _, err := m.Signature(opts.Train); err != nil {
			return Roles{}, err
		}
	}
	roles, problems := m.judge(opts.Train)
	var reasons []Problem
	for _, p := range problems {
		if p.Severity == Error && !(opts.AllowUnsafeOps && p.Code == CodeUnsafeOp) {
			reasons = append(reasons, p)
		}
	}
	if len(reasons) > 0 {
		return Roles{}, &NotTrainableError{Dir: m.Dir, Problems: reasons}
	}
	return roles, nil
}

// ProblemsFor are the problems of the model if it is trained with a signature of that
// name; "" is its usual one, of which Model.Problems are.
func (m *Model) ProblemsFor(train string) []Problem {
	_, problems := m.judge(train)
	return problems
}

// settle fills in what follows from the facts.
func (m *Model) settle() {
	m.Roles, m.Problems = m.judge("")
	k := &m.known
	training := m.Roles.Training()
	trained := m.union(training, func(f facts) map[int]bool { return union(f.written, f.updated) })
	touched := map[int]bool{}
	all := []facts{k.load, k.save, k.restore}
	for _, f := range k.signature {
		all = append(all, f)
	}
	for _, f := range all {
		maps.Copy(touched, f.read)
		maps.Copy(touched, f.written)
	}
	m.Variables = []Variable{}
	for id := range touched {
		v := k.vars[id]
		m.Variables = append(m.Variables, Variable{
			Name: v.name, Container: v.container, DType: v.dtype, Shape: v.shape, UnknownRank: v.unknown,
			Restored: k.restore.written[id], Saved: k.save.read[id], Trained: trained[id],
		})
	}
	slices.SortFunc(m.Variables, func(a, b Variable) int { return cmp.Compare(a.Name, b.Name) })
}

// union joins what pick gives of the facts of signatures.
func (m *Model) union(signatures []string, pick func(facts) map[int]bool) map[int]bool {
	all := map[int]bool{}
	for _, name := range signatures {
		maps.Copy(all, pick(m.known.signature[name]))
	}
	return all
}

func union(a, b map[int]bool) map[int]bool {
	out := map[int]bool{}
	maps.Copy(out, a)
	maps.Copy(out, b)
	return out
}

func minus(a, b map[int]bool) map[int]bool {
	out := map[int]bool{}
	for id := range a {
		if !b[id] {
			out[id] = true
		}
	}
	return out
}

// names lists variables, sorted.
func (m *Model) names(ids map[int]bool) []string {
	var out []string
	for id := range ids {
		out = append(out, m.known.vars[id].name)
	}
	slices.Sort(out)
	return out
}

// judge draws roles and problems from the facts. train is CheckOptions.Train.
func (m *Model) judge(train string) (Roles, []Problem) {
	var problems []Problem
	report := func(p Problem) { problems = append(problems, p) }
	r := m.resolve(train, report)

	m.judgeTrain(r, train, report)
	m.judgeVariables(r, report)
	m.judgeFleeting(r, report)
	m.judgeUnsafe(r, report)
	training := r.Training()
	for _, name := range r.Used() {
		m.judgeTensors(m.find(name), slices.Contains(training, name), r, report)
	}
	if len(m.known.others) > 0 {
		var sets []string
		for _, tags := range m.known.others {
			sets = append(sets, "'"+strings.Join(tags, ", ")+"'")
		}
		slices.Sort(sets)
		report(Problem{Note, CodeOtherMetaGraphs, "",
			"the model also has metagraphs that are not used: " + enumerate(sets, 4), ""})
	}
	if m.notes != nil {
		report(Problem{Warning, CodeMetadata, metadataFile,
			"the exporter's notes cannot be read: " + m.notes.Error(), "delete the file, or export the model again"})
	}
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.Code, b.Code),
			cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Message, b.Message))
	})
	return r, slices.Compact(problems)
}

// judgeTrain looks at the choice of the train signature.
func (m *Model) judgeTrain(r Roles, train string, report func(Problem)) {
	if s := m.find(r.Train); s != nil {
		f := m.known.signature[r.Train]
		metrics := m.known.signature[r.ResetMetrics].written
		changed := minus(union(f.written, f.updated), metrics)
		if slices.Contains(evaluateNames, r.Train) && m.choose(trainNames, (*Signature).hasLoss) != "" {
			changed = nil // what it changes are seeds
		}
		if len(changed) == 0 && !m.known.missing[s.Output(OutputLoss).Op] {
			p := Problem{Warning, CodeNothingTrained, r.Train,
				"signature " + r.Train + " changes no weight: running it would teach the model nothing",
				"apply the gradients inside the exported function, or choose another train signature"}
			if len(f.read) > 0 {
				p.Severity = Error
			}
			report(p)
		}
		m.judgeHalf(s, f, report)
		return
	}
	candidates := trainNames
	if train != "" {
		candidates = []string{train}
	}
	p := Problem{Error, CodeNoTrainSignature, "", "",
		"export the model with scripts/export.py, or with a signature train that returns the loss"}
	for _, name := range candidates {
		s := m.find(name)
		if s == nil {
			continue
		}
		p.Subject = name
		p.Message = "signature " + name + " has no output loss"
		if outputs := s.Metrics(); len(outputs) > 0 {
			p.Message += "; its scalars are " + enumerate(tensorNames(outputs), 8)
			p.Fix = "choose the one that is the loss as the loss output"
		}
		if loss := s.Output(OutputLoss); loss != nil {
			p.Message = fmt.Sprintf("the output loss of signature %s must be %s, and is %s %s",
				name, reservedOutputs[OutputLoss].text, loss.DType, loss.shapeText())
		}
		report(p)
		return
	}
	p.Message = "none of the signatures train, learn, train_step exists"
	if names := m.signatureNames(); len(names) > 0 {
		p.Message += "; there are " + enumerate(names, 10)
		p.Fix += "; if one of these trains, choose it as the train signature"
	}
	report(p)
}

func tensorNames(ts []Tensor) []string {
	names := make([]string, len(ts))
	for i, t := range ts {
		names[i] = t.Name
	}
	return names
}

// judgeHalf looks for float16 training that nothing keeps from underflow: with
// 5 bits of exponent, gradients below 6e-8 are zero. bfloat16 has the range of
// float32 and needs no care.
func (m *Model) judgeHalf(s *Signature, f facts, report func(Problem)) {
	if s.Reserved(InputLossScale) != nil || s.Output(OutputGradsFinite) != nil || f.guarded {
		return
	}
	why := ""
	half := map[int]bool{}
	for id := range f.read {
		if m.known.vars[id].dtype == tfbind.Float16 {
			half[id] = true
		}
	}
	switch {
	case len(half) > 0:
		why = "keeps " + plural(len(half), "variable") + " in float16: " + enumerate(m.names(half), 4)
	case f.half16 != "":
		why = "computes in float16: " + f.half16
	default:
		return
	}
	report(Problem{Warning, CodeHalfWithoutLossScale, s.Name,
		"signature " + s.Name + " " + why + "; nothing scales the loss, so that small gradients become zero",
		"train in bfloat16, or give the signature an input loss_scale and an output grads_finite"})
}

// judgeVariables looks for variables without a value, and for state that a
// checkpoint would lose.
func (m *Model) judgeVariables(r Roles, report func(Problem)) {
	k := &m.known
	read := func(f facts) map[int]bool { return f.read }
	training := m.union(r.Training(), read)
	serving := m.union(unique(r.Evaluate, r.Predict), read)
	set := union(k.restore.written, union(k.load.written, k.load.updated))

	// A function that asks whether a variable has a value gives it one.
	tested := m.union(r.Used(), func(f facts) map[int]bool { return f.tested })
	missing := minus(minus(training, set), tested)
	if len(missing) > 0 {
		names := m.names(missing)
		p := Problem{Error, CodeVariableNotRestored, r.Train, "", ""}
		if len(minus(missing, serving)) > 0 {
			p.Code = CodeOptimizerNotRestored
		}
		p.Message = fmt.Sprintf("loading the model gives no value to %s that training uses: %s; "+
			"the first step would fail with \"Could not find variable %s\" or the like",
			plural(len(names), "variable"), enumerate(names, 4), names[0])
		p.Fix = exportFix + "; or, before tf.saved_model.save, build the optimizer and keep " +
			"[v.value for v in model.variables + optimizer.variables] in an attribute of the module"
		report(p)
	}
	if unset := minus(minus(serving, set), union(missing, tested)); len(unset) > 0 {
		names := m.names(unset)
		report(Problem{Warning, CodeVariableNotRestored, cmp.Or(r.Predict, r.Evaluate),
			fmt.Sprintf("loading the model gives no value to %s that predictions use: %s",
				plural(len(names), "variable"), enumerate(names, 4)), exportFix})
	}

	if m.Saver == nil {
		if r.Train != "" && r.Save == "" {
			report(Problem{Warning, CodeNoSaver, "", "no checkpoint can be written or read: " + k.noSaver,
				"save the model with tf.saved_model.save, which adds a saver"})
		}
		return
	}
	changed := m.union(r.Training(), func(f facts) map[int]bool { return union(f.written, f.updated) })
	covered := map[int]bool{}
	for id := range k.save.read {
		if k.restore.written[id] {
			covered[id] = true
		}
	}
	if lost := minus(minus(changed, covered), missing); len(lost) > 0 {
		names := m.names(lost)
		report(Problem{Warning, CodeStateNotSaved, r.Train,
			fmt.Sprintf("training changes %s that checkpoints leave out: %s; a resumed run differs from one that was not stopped",
				plural(len(names), "variable"), enumerate(names, 4)), exportFix})
	}
}

// judgeFleeting looks for state of training that is in no variable.
func (m *Model) judgeFleeting(r Roles, report func(Problem)) {
	var ops, where []string
	for _, name := range unique(r.Train, r.Gradients, r.Apply) {
		for _, f := range m.known.signature[name].fleeting {
			if what := f.op + " " + f.does; !slices.Contains(ops, what) {
				ops, where = append(ops, what), append(where, f.where)
			}
		}
	}
	if len(ops) == 0 {
		return
	}
	slices.Sort(ops)
	slices.Sort(where)
	report(Problem{Warning, CodeStateNotSaved, r.Train,
		fmt.Sprintf("training has state in no variable, which no checkpoint holds: %s, at %s; a resumed run, and one whose model is loaded anew, differs from one that was not stopped",
			enumerate(ops, 4), enumerate(where, 3)),
		"draw random numbers with stateless operations from the input seed, or from a tf.random.Generator that the module owns; read data and look it up before it is fed"})
}

// judgeUnsafe lists the operations that reach outside the computation. They
// are errors where steadyfit would run them.
func (m *Model) judgeUnsafe(r Roles, report func(Problem)) {
	type key struct {
		severity Severity
		op, does string
	}
	runs, places := map[key][]string{}, map[key][]string{}
	note := func(s Severity, what string, f facts, allowed map[string]bool) {
		for _, u := range f.unsafe {
			if allowed[u.op] {
				continue
			}
			k := key{s, u.op, u.does}
			if !slices.Contains(runs[k], what) {
				runs[k] = append(runs[k], what)
			}
			if !slices.Contains(places[k], u.where) {
				places[k] = append(places[k], u.where)
			}
		}
	}
	k := &m.known
	note(Error, "loading the model", k.load, nil)
	note(Error, "the model's saver", k.save, checkpointOps)
	note(Error, "the model's saver", k.restore, checkpointOps)
	used := r.Used()
	for _, s := range m.Signatures {
		severity := Warning
		if slices.Contains(used, s.Name) || s.Name == r.Save || s.Name == r.Restore {
			severity = Error
		}
		var allowed map[string]bool
		if s.Name == "save" || s.Name == "restore" {
			allowed = checkpointOps
		}
		note(severity, "signature "+s.Name, k.signature[s.Name], allowed)
	}
	for k, where := range places {
		slices.Sort(where)
		p := Problem{k.severity, CodeUnsafeOp, k.op,
			fmt.Sprintf("%s %s: run by %s, at %s", k.op, k.does, enumerate(runs[k], 4), enumerate(where, 3)), ""}
		if k.severity == Error {
			p.Fix = unsafeFix
		}
		report(p)
	}
}

// judgeTensors looks at the inputs and outputs of a signature that is used.
func (m *Model) judgeTensors(s *Signature, trains bool, r Roles, report func(Problem)) {
	severity := Warning
	if trains {
		severity = Error
	}
	about := func(t Tensor) string { return s.Name + "." + t.Name }
	for _, t := range slices.Concat(s.Inputs, s.Outputs) {
		if m.known.missing[t.Op] {
			report(Problem{severity, CodeMissingTensor, about(t),
				fmt.Sprintf("signature %s names the tensor %s, and the graph has no such node", s.Name, t.Op),
				"export the model again"})
		}
	}
	for _, c := range m.known.composite[s.Name] {
		if s.Input(c.parts[0]) != nil {
			report(Problem{severity, CodeSparseInput, s.Name + "." + c.parts[0],
				fmt.Sprintf("inputs %s of signature %s are parts of one value (%s), which cannot be fed", strings.Join(c.parts, ", "), s.Name, c.kind),
				"make its rows equally long before they are fed, and take one dense tensor"})
		}
	}
	for _, t := range s.Inputs {
		switch want, reserved := reservedInputs[t.Name]; {
		case t.Op == "":
			report(Problem{severity, CodeSparseInput, about(t),
				fmt.Sprintf("input %s of signature %s is a sparse or composite tensor, which cannot be fed", t.Name, s.Name),
				"take its parts as separate inputs"})
			continue
		case !t.DType.Supported():
			report(Problem{severity, CodeUnsupportedType, about(t),
				fmt.Sprintf("input %s of signature %s is of type %s, which cannot be fed", t.Name, s.Name, t.typeName()),
				"take another type and convert it in the exported function"})
			continue
		case reserved:
			// Several steps per call may take one value per step.
			stacked := t
			if (s.Name == r.TrainN || s.Name == r.TrainNXLA) && !t.UnknownRank && len(t.Shape) == len(want.shape)+1 {
				stacked.Shape = t.Shape[1:]
			}
			if !want.fits(stacked) {
				report(Problem{severity, CodeReservedInput, about(t),
					fmt.Sprintf("the name %s is reserved for %s, and in signature %s it is %s %s",
						t.Name, want.text, s.Name, t.DType, t.shapeText()), "give the input another name, or this form"})
			}
			continue
		}
		m.judgeData(s, t, r, report)
	}
	for _, t := range s.Outputs {
		want, reserved := reservedOutputs[t.Name]
		if trains && reserved && t.Name != OutputLoss && !want.fits(t) {
			report(Problem{Warning, CodeReservedOutput, about(t),
				fmt.Sprintf("the name %s is reserved for %s, and in signature %s it is %s %s",
					t.Name, want.text, s.Name, t.DType, t.shapeText()), "give the output another name, or this form"})
		}
	}
}

// judgeData looks at an input that comes from a dataset.
func (m *Model) judgeData(s *Signature, t Tensor, r Roles, report func(Problem)) {
	compiled := s.Name == r.TrainXLA || s.Name == r.TrainNXLA
	batch := 0 // the dimension that counts the samples
	if s.Name == r.TrainN {
		batch = 1
	}
	about := s.Name + "." + t.Name
	switch {
	case s.Name == r.SetLearningRate || s.Name == r.Apply:
	case t.UnknownRank:
		report(Problem{Warning, CodeUnknownRank, about,
			fmt.Sprintf("input %s of signature %s has no known rank: batches cannot be checked before they are fed", t.Name, s.Name),
			"give its TensorSpec a shape, with None for what varies"})
	case len(t.Shape) <= batch:
		report(Problem{Warning, CodeScalarInput, about,
			fmt.Sprintf("input %s of signature %s has shape %s, without a dimension for the samples", t.Name, s.Name, t.shapeText()),
			"give it a first dimension that counts the samples"})
	case t.Shape[batch] >= 0 && !compiled:
		report(Problem{Warning, CodeFixedBatch, about,
			fmt.Sprintf("input %s of signature %s takes batches of exactly %d", t.Name, s.Name, t.Shape[batch]),
			fmt.Sprintf("train with batches of %d and without a smaller last one, or export with None as the first dimension", t.Shape[batch])})
	}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return strconv.Itoa(n) + " " + what + "s"
}
