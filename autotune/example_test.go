package autotune_test

import (
	"context"
	"errors"
	"log"
	"os"

	"steadyfit/autotune"
	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

// A program that trains with the configuration that is fastest on this machine.
func ExampleChoose() {
	ctx := context.Background()
	autotune.Child(ctx) // trials run this program, too, and end here
	if err := train(ctx, "path/to/model", "train.npz", "out/model"); err != nil {
		log.Print(err) // in main: log.Fatal
	}
}

func train(ctx context.Context, from, samples, to string) (err error) {
	model, err := savedmodels.Open(from)
	if err != nil {
		return err
	}
	ds, err := data.Open(samples, data.Options{})
	if err != nil {
		return err
	}
	const batch, epochs = 32, 100
	steps := ds.Len() / batch
	options := session.Options{}
	choice, err := autotune.Choose(ctx, autotune.Plan{
		Model: model, Options: options, Data: ds, Batch: batch, Steps: int64(epochs * steps),
		Limits: autotune.Limits{StepsPerExecution: steps, Compiled: true, Threads: true},
		Cache:  autotune.CacheDir(),
	})
	if err != nil {
		return err
	}
	log.Print(choice.Reason)

	plan, err := session.Compile(model, choice.Configuration.Apply(options))
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
