package tune_test

import (
	"context"
	"errors"
	"log"
	"os"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
	"steadyfit/tune"
)

// A program that trains in the way that is fastest here.
func ExampleChoose() {
	ctx := context.Background()
	// The processes of a race run this program, too, and end here.
	child, err := tune.Child(ctx)
	if !child {
		err = train(ctx, "path/to/model", "train.npz", "out/model")
	}
	if err != nil {
		log.Print(err) // in main: log.Fatal
	}
}

func train(ctx context.Context, from, samples, to string) (err error) {
	model, err := savedmodels.Open(from)
	if err != nil {
		return err
	}
	ds, err := data.OpenNPZ(samples)
	if err != nil {
		return err
	}
	const batch, epochs = 32, 100
	steps := ds.Len() / batch
	options := session.Options{}
	choice, err := tune.Choose(ctx, tune.Plan{
		Model: model, Options: options, Data: ds, Batch: batch, Steps: int64(epochs * steps),
		Limits: tune.Limits{Fuse: steps, Compiled: true, Threads: true},
		Cache:  tune.CacheDir(),
	})
	if err != nil {
		return err
	}
	log.Print(choice.Why)

	plan, err := session.Compile(model, choice.Candidate.Apply(options))
	if err != nil {
		return err
	}
	s, err := session.Open(ctx, plan)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	loop := fit.Loop{Session: s, Batch: batch, Epochs: epochs}
	loop.Hook(fit.Progress(os.Stderr))
	if _, err := loop.Run(ctx, ds.Shuffle(1)); err != nil {
		return err
	}
	return s.SaveModel(ctx, to)
}
