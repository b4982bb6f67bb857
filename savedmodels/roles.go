package savedmodels

import (
	"slices"
	"strings"
)

// Roles names the signature chosen for each purpose; "" where the model has
// none that serves. Where several names are usual, the first one found wins.
type Roles struct {
	// Train runs one step: train, learn or train_step, with an output loss.
	Train string `json:"train"`
	// TrainN runs as many steps as its inputs have along their first
	// dimension: train_n.
	TrainN string `json:"train_n"`
	// Evaluate gives loss and metrics and changes nothing: evaluate or eval.
	Evaluate string `json:"evaluate"`
	// Predict is predict, infer or serving_default.
	Predict string `json:"predict"`
	// Gradients adds the gradients of a part of a batch to what Apply will
	// use: gradients or accumulate. It is chosen only together with Apply.
	Gradients string `json:"gradients"`
	// Accumulate is Gradients if the model calls it accumulate.
	Accumulate string `json:"accumulate"`
	// Apply updates the weights with the gradients added up: apply.
	Apply string `json:"apply"`
	// SetLearningRate is set_learning_rate.
	SetLearningRate string `json:"set_learning_rate"`
	// ResetMetrics is reset_metrics. It gives the variables behind running metrics the
	// values with which an epoch or an evaluation begins, and its outputs name these
	// metrics: see Model.RunningMetrics.
	ResetMetrics string `json:"reset_metrics"`
	// Finalize is finalize, which is run once at the end of training: it gives weights
	// their final values, such as averages over the steps.
	Finalize string `json:"finalize"`
	// Save and Restore are the signatures save and restore, chosen only if
	// they cover every variable that training uses. Model.Saver is preferred.
	Save    string `json:"save"`
	Restore string `json:"restore"`
	// TrainXLA and TrainNXLA are twins of Train and TrainN compiled for fixed
	// shapes: the twin's name with _xla behind.
	TrainXLA  string `json:"train_xla"`
	TrainNXLA string `json:"train_n_xla"`
	// TrainSync runs one step together with other workers: train_sync.
	TrainSync string `json:"train_sync"`
}

// The names that a role's signature may have, in order of preference.
var (
	trainNames     = []string{"train", "learn", "train_step"}
	evaluateNames  = []string{"evaluate", "eval"}
	predictNames   = []string{"predict", "infer", "serving_default"}
	gradientsNames = []string{"gradients", "accumulate"}
)

// Training lists the chosen signatures that change the model, each once.
func (r Roles) Training() []string {
	return unique(r.Train, r.TrainN, r.TrainXLA, r.TrainNXLA, r.TrainSync, r.Gradients, r.Apply)
}

// Used lists every chosen signature, each once, but Save and Restore.
func (r Roles) Used() []string {
	return unique(append(r.Training(), r.Evaluate, r.Predict, r.SetLearningRate, r.ResetMetrics, r.Finalize)...)
}

func unique(names ...string) []string {
	var out []string
	for _, n := range names {
		if n != "" && !slices.Contains(out, n) {
			out = append(out, n)
		}
	}
	return out
}

// choose finds the first of names that the model has and that suits.
func (m *Model) choose(names []string, suits func(*Signature) bool) string {
	for _, name := range names {
		if s := m.find(name); s != nil && (suits == nil || suits(s)) {
			return name
		}
	}
	return ""
}

// resolve chooses the roles. train, if not empty, names the train signature.
// What a signature lacks for its role is added to the problems.
func (m *Model) resolve(train string, report func(Problem)) Roles {
	var r Roles
	r.Train = m.choose(trainNames, (*Signature).hasLoss)
	if train != "" {
		r.Train = m.choose([]string{train}, (*Signature).hasLoss)
	}
	r.Evaluate = m.choose(evaluateNames, (*Signature).hasLoss)
	r.Predict = m.choose(predictNames, nil)
	r.SetLearningRate = m.choose([]string{"set_learning_rate"}, func(s *Signature) bool {
		return len(s.Inputs) == 1 && reservedInputs[InputLearningRate].fits(s.Inputs[0])
	})
	if s := m.find("set_learning_rate"); s != nil && r.SetLearningRate == "" {
		report(unusable("set_learning_rate", "it does not take exactly one float scalar"))
	}
	r.ResetMetrics = m.resolveAlone("reset_metrics", report)
	r.Finalize = m.resolveAlone("finalize", report)
	if s := m.find(r.Train); s != nil {
		m.resolveVariants(&r, s, report)
	}
	return r
}

// resolveAlone chooses a signature that takes no input.
func (m *Model) resolveAlone(name string, report func(Problem)) string {
	s := m.find(name)
	if s == nil {
		return ""
	}
	if len(s.Inputs) > 0 {
		report(unusable(name, "it takes the input "+s.Inputs[0].Name+", and should take none"))
		return ""
	}
	return name
}

// RunningMetrics names the outputs of train and evaluate signatures that are values over
// all batches since the signature reset_metrics ran, such as those of a Keras metric: its
// outputs have their names. The value of the last batch is that of the epoch, or of the
// evaluation. All other outputs are values of the batch alone.
func (m *Model) RunningMetrics() []string {
	var names []string
	if s := m.find(m.Roles.ResetMetrics); s != nil {
		for _, t := range s.Outputs {
			names = append(names, t.Name)
		}
	}
	return names
}

// resolveVariants chooses what must match the train signature s.
func (m *Model) resolveVariants(r *Roles, s *Signature, report func(Problem)) {
	// A train signature of another name than usual has variants of its own: to
	// run train_n in its place would train something else.
	usual := r.Train == m.choose(trainNames, (*Signature).hasLoss)
	take := func(name string, wrong func(*Signature) string) string {
		v := m.find(name)
		if v == nil {
			return ""
		}
		if why := wrong(v); why != "" {
			report(unusable(name, why))
			return ""
		}
		return name
	}
	many := func(v *Signature) string { return v.differs(s, 1) }
	same := func(v *Signature) string { return v.differs(s, 0) }
	if usual {
		r.TrainN = take("train_n", many)
	} else {
		r.TrainN = take(r.Train+"_n", many)
	}
	compiled := func(base string) func(*Signature) string {
		return func(v *Signature) string {
			if why := v.differs(m.find(base), 0); why != "" {
				return why
			}
			for _, t := range v.DataInputs() {
				if !t.Static() {
					return "its input " + t.Name + " has no fixed shape, and a compiled signature needs one"
				}
			}
			return ""
		}
	}
	r.TrainXLA = take(r.Train+"_xla", compiled(r.Train))
	if r.TrainN != "" {
		r.TrainNXLA = take(r.TrainN+"_xla", compiled(r.TrainN))
	}
	if v := m.choose(evaluateNames, (*Signature).hasLoss); v != "" {
		r.Evaluate = take(v, same)
	}
	if usual {
		m.resolveShared(r, same, take, report)
	}
	m.resolveSaving(r, report)
}

// resolveShared chooses what divides a step among workers or over time.
func (m *Model) resolveShared(r *Roles, same func(*Signature) string,
	take func(string, func(*Signature) string) string, report func(Problem)) {
	r.TrainSync = take("train_sync", func(v *Signature) string {
		if v.Reserved(InputGroupSize) == nil {
			return "it has no input " + InputGroupSize
		}
		return same(v)
	})

	gradients := m.choose(gradientsNames, nil)
	switch apply := m.find("apply"); {
	case gradients != "" && apply == nil:
		report(unusable(gradients, "there is no signature apply to go with it"))
	case gradients == "" && apply != nil:
		report(unusable("apply", "there is no signature gradients or accumulate to go with it"))
	case gradients != "":
		if g := take(gradients, same); g != "" {
			r.Apply = take("apply", func(v *Signature) string {
				if d := v.DataInputs(); len(d) > 0 {
					return "it takes data: " + d[0].Name
				}
				return ""
			})
			if r.Apply != "" {
				r.Gradients = g
				if g == "accumulate" {
					r.Accumulate = g
				}
			}
		}
	}
}

// resolveSaving chooses the model's own save and restore. A pair that leaves
// out a variable would restore another model than it saved.
func (m *Model) resolveSaving(r *Roles, report func(Problem)) {
	uses := m.union(r.Training(), func(f facts) map[int]bool { return f.read })
	if save, restore := m.find("save"), m.find("restore"); save != nil && restore != nil {
		lost := minus(uses, m.known.signature["save"].read)
		unset := minus(uses, m.known.signature["restore"].written)
		switch {
		case len(lost) > 0:
			report(weightsOnly("save", "save", m.names(lost), m.Saver != nil))
		case len(unset) > 0:
			report(weightsOnly("restore", "restore", m.names(unset), m.Saver != nil))
		default:
			r.Save, r.Restore = "save", "restore"
		}
	}
}

// differs says in what the signature departs from base, of which it should be
// a variant with more leading dimensions; "" if in nothing that counts.
func (s *Signature) differs(base *Signature, more int) string {
	for _, t := range base.DataInputs() {
		v := s.Input(t.Name)
		switch {
		case v == nil:
			return "it has no input " + t.Name + ", which " + base.Name + " has"
		case v.DType != t.DType:
			return "its input " + t.Name + " is " + v.DType.String() + ", and that of " + base.Name + " is " + t.DType.String()
		case !v.UnknownRank && !t.UnknownRank && len(v.Shape) != len(t.Shape)+more:
			return "its input " + t.Name + " is " + v.shapeText() + ", and that of " + base.Name + " is " + t.shapeText()
		}
	}
	for _, t := range s.DataInputs() {
		if base.Input(t.Name) == nil {
			return "it has an input " + t.Name + " that " + base.Name + " does not have"
		}
	}
	if s.Name != "apply" && !s.hasLoss() {
		return "it has no output loss that is a float scalar"
	}
	return ""
}

// shapeText is the tensor's shape, with "?" for what may vary: "[?,3]".
func (t Tensor) shapeText() string {
	if t.UnknownRank {
		return "[...]"
	}
	dims := make([]string, len(t.Shape))
	for i, d := range t.Shape {
		dims[i] = sizeText(d)
	}
	return "[" + strings.Join(dims, ",") + "]"
}
