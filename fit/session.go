package fit

import (
	"context"

	"steadyfit/data"
)

// Session is the model that a Loop trains; *session.Session is one. A Loop calls it from one
// goroutine at a time. With a *session.Session, also embedded in another type, it also uses several
// steps per execution, loss scales, running metrics and ranks, and writes checkpoints while steps run
// (session.Session.Capabilities).
type Session interface {
	// TrainMetrics returns the names of the results of a train step, "loss" first.
	TrainMetrics() []string
	// Train runs one train step and writes its results to out, in the order of TrainMetrics.
	// step is the number of earlier train steps; sessions derive random seeds from it. The
	// batch may be reused after Train returns. After an error, the state of the model is
	// undefined unless the error says otherwise.
	Train(ctx context.Context, step int64, b data.Batch, out []float64) error
	// EvaluateMetrics returns the names of the results of an evaluation step, "loss" first; nil
	// if the model has no evaluation signature.
	EvaluateMetrics() []string
	// Evaluate evaluates one batch without changing the weights.
	Evaluate(ctx context.Context, b data.Batch, out []float64) error
	// Save writes the state of the model and its optimizer to files whose names begin with
	// prefix (prefix.index, prefix.data-00000-of-00001).
	Save(ctx context.Context, prefix string) error
	// Restore reads the files that Save wrote.
	Restore(ctx context.Context, prefix string) error
	// SetLearningRate sets the rate of later train steps.
	SetLearningRate(rate float64) error
	// Identity returns the values, by key (model, signature, tensorflow, ...), that a
	// checkpoint must match for this session to resume from it.
	Identity() map[string]string
}
