// Package feature has the interface of a session that computes the features of a frozen base.
package feature

import (
	"context"
	"errors"
	"time"

	"steadyfit/data"
)

// ErrDiffer means that training on features differs from training on the data.
var ErrDiffer = errors.New("training on the features differs from training on the data")

// Step computes the features of batches. It must be closed.
type Step interface {
	// CheckTraining checks that the features of a sample do not depend on the other samples of its
	// batch. Then it trains a few steps on the first batch of ds, once on its data and once on its
	// features, and compares losses and trained variables. Where they differ, the error is
	// ErrDiffer. Without an error, the model has the variables that it had before. The session
	// must have a learning rate if its train signature takes one.
	CheckTraining(ctx context.Context, ds data.Dataset, batch int) (Check, error)
	// All returns the features of a dataset.
	All(ctx context.Context, ds data.Dataset, batch int) (*data.InMemory, error)
	// SampleBytes returns the size of a sample of the last features.
	SampleBytes() int
	Close() error
}

// Check is the result of Step.CheckTraining.
type Check struct {
	// Difference is the largest relative difference of a loss or a trained variable between
	// training on the data and training on the features.
	Difference float64
	// Full, Compute and Rest are the times per sample of a train step on the data, of computing
	// the features, and of a train step on the features.
	Full, Compute, Rest time.Duration
}
