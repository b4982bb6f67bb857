package savedmodels

import (
	"fmt"
	"slices"
	"strings"

	"steadyfit/internal/contract"
)

// Roles has the name of the signature chosen for each purpose. A name is empty if the model has no
// suitable signature. The comments of the fields list the possible names in order of preference.
type Roles struct {
	// Train runs one step and returns the loss: train, learn or train_step.
	Train string `json:"train"`
	// TrainN runs several steps, with their inputs stacked along the first dimension: train_n.
	TrainN string `json:"train_n"`
	// Evaluate returns the loss and metrics without training: evaluate or eval.
	Evaluate string `json:"evaluate"`
	// Predict returns predictions: predict, infer or serving_default.
	Predict string `json:"predict"`
	// Gradients sums the gradients of micro-batches: gradients or accumulate. Apply updates the
	// weights with the sum: apply. A model needs both.
	Gradients string `json:"gradients"`
	Apply     string `json:"apply"`
	// SetLearningRate sets the learning rate: set_learning_rate.
	SetLearningRate string `json:"set_learning_rate"`
	// ResetMetrics resets running metrics before an epoch or an evaluation: reset_metrics. Its
	// outputs are the metrics that train and evaluate accumulate over batches.
	ResetMetrics string `json:"reset_metrics"`
	// Finalize gives the weights their final values after training, such as moving averages:
	// finalize.
	Finalize string `json:"finalize"`
	// TrainXLA and TrainNXLA are Train and TrainN compiled by XLA for fixed shapes: train_xla
	// and train_n_xla.
	TrainXLA  string `json:"train_xla"`
	TrainNXLA string `json:"train_n_xla"`
}

// The signature names for a role, in order of preference.
var (
	trainNames     = []string{"train", "learn", "train_step"}
	evaluateNames  = []string{"evaluate", "eval"}
	predictNames   = []string{"predict", "infer", "serving_default"}
	gradientsNames = []string{"gradients", "accumulate"}
)

// Only returns the roles without the signatures that are not in names.
func (r Roles) Only(names []string) Roles {
	for _, role := range []*string{&r.Train, &r.TrainN, &r.Evaluate, &r.Predict, &r.Gradients, &r.Apply,
		&r.SetLearningRate, &r.ResetMetrics, &r.Finalize, &r.TrainXLA, &r.TrainNXLA} {
		if !slices.Contains(names, *role) {
			*role = ""
		}
	}
	return r
}

// Training returns the names of the signatures that change the model, without duplicates.
func (r Roles) Training() []string {
	return unique(r.Train, r.TrainN, r.TrainXLA, r.TrainNXLA, r.Gradients, r.Apply)
}

// used returns the names of all signatures, without duplicates.
func (r Roles) used() []string {
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

// choose returns the first of names for which the model has a signature that suits accepts.
func (m *Model) choose(names []string, suits func(*Signature) bool) string {
	for _, name := range names {
		if s := m.find(name); s != nil && (suits == nil || suits(s)) {
			return name
		}
	}
	return ""
}

// resolve chooses the roles and reports signatures that have the name of a role but cannot be
// used.
func (j *judgement) resolve() {
	r := &j.roles
	r.Train = j.choose(trainNames, (*Signature).HasLoss)
	r.Evaluate = j.choose(evaluateNames, (*Signature).HasLoss)
	r.Predict = j.choose(predictNames, nil)
	r.SetLearningRate = j.take("set_learning_rate", func(s *Signature) string {
		if len(s.Inputs) == 1 && reservedInputs[contract.InputLearningRate].fits(s.Inputs[0]) {
			return ""
		}
		return "it does not take exactly one float scalar"
	})
	noInputs := func(s *Signature) string {
		if len(s.Inputs) == 0 {
			return ""
		}
		return "it takes the input " + s.Inputs[0].Name + ", and should take none"
	}
	r.ResetMetrics, r.Finalize = j.take("reset_metrics", noInputs), j.take("finalize", noInputs)

	s := j.find(r.Train)
	if s == nil {
		return
	}
	same := func(v *Signature) string { return v.differs(s, 0) }
	r.Evaluate = j.take(r.Evaluate, same)
	r.TrainN = j.take("train_n", func(v *Signature) string { return v.differs(s, 1) })
	r.TrainXLA = j.takeCompiled(r.Train)
	r.TrainNXLA = j.takeCompiled(r.TrainN)
	j.resolveMicroBatches(same)
}

// take returns name if wrong accepts that signature by returning "". Otherwise it reports the
// result of wrong.
func (j *judgement) take(name string, wrong func(*Signature) string) string {
	s := j.find(name)
	if s == nil {
		return ""
	}
	if why := wrong(s); why != "" {
		j.unusable(name, why)
		return ""
	}
	return name
}

func (j *judgement) unusable(name, why string) {
	j.report(warning, contract.CodeUnusableSignature, name, "correct it in the code that exports the model",
		"signature %s is not used: %s", name, why)
}

func (j *judgement) takeCompiled(base string) string {
	if base == "" {
		return ""
	}
	return j.take(base+"_xla", func(v *Signature) string {
		if why := v.differs(j.find(base), 0); why != "" {
			return why
		}
		for _, t := range v.DataInputs() {
			if t.UnknownRank || slices.ContainsFunc(t.Shape, func(d int64) bool { return d < 0 }) {
				return "its input " + t.Name + " has no fixed shape, which a compiled signature needs"
			}
		}
		return ""
	})
}

func (j *judgement) resolveMicroBatches(same func(*Signature) string) {
	gradients, apply := j.choose(gradientsNames, nil), j.choose([]string{"apply"}, nil)
	switch {
	case gradients == "" && apply == "":
	case apply == "":
		j.unusable(gradients, "the model has no signature apply for it")
	case gradients == "":
		j.unusable(apply, "the model has no signature gradients or accumulate for it")
	case j.take(gradients, same) != "":
		r := &j.roles
		if r.Apply = j.take(apply, func(v *Signature) string {
			if d := v.DataInputs(); len(d) > 0 {
				return "it takes data: " + d[0].Name
			}
			return ""
		}); r.Apply != "" {
			r.Gradients = gradients
		}
	}
}

// differs returns the first difference between the data inputs of s and of base; empty if there is
// none. more is the number of additional leading dimensions that the data inputs of s must have.
func (s *Signature) differs(base *Signature, more int) string {
	for _, t := range base.DataInputs() {
		v := s.Input(t.Name)
		switch {
		case v == nil:
			return "it has no input " + t.Name + ", which " + base.Name + " has"
		case v.DType != t.DType:
			return "its input " + t.Name + " is " + v.DType.String() + ", but in " + base.Name + " it is " + t.DType.String()
		case !v.UnknownRank && !t.UnknownRank && len(v.Shape) != len(t.Shape)+more:
			return "its input " + t.Name + " is " + v.shapeText() + ", but in " + base.Name + " it is " + t.shapeText()
		}
	}
	for _, t := range s.DataInputs() {
		if base.Input(t.Name) == nil {
			return "it has an input " + t.Name + " that " + base.Name + " does not have"
		}
	}
	if s.Name != "apply" && !s.HasLoss() {
		return "it has no output loss that is a float scalar"
	}
	return ""
}

// shapeText returns the shape with "?" for an unknown dimension, as in "[?,3]".
func (t Tensor) shapeText() string {
	if t.UnknownRank {
		return "[...]"
	}
	dims := make([]string, len(t.Shape))
	for i, d := range t.Shape {
		if dims[i] = fmt.Sprint(d); d < 0 {
			dims[i] = "?"
		}
	}
	return "[" + strings.Join(dims, ",") + "]"
}
