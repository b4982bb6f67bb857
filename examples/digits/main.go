// Command digits fine-tunes the built-in model of handwritten digits and saves the result. It
// is the smallest complete program with the fit loop.
//
//	go run ./examples/digits out/digits
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"steadyfit/data"
	"steadyfit/fit"
	"steadyfit/savedmodels"
	"steadyfit/session"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	out := "out/digits"
	if len(os.Args) > 1 {
		out = os.Args[1]
	}
	// Ctrl-C completes the current step and then ends the loop.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	model, err := savedmodels.Builtin("digits") // or savedmodels.Open("path/to/model")
	if err != nil {
		return err
	}
	train, test, err := data.Builtin("digits") // or data.Open
	if err != nil {
		return err
	}

	s, err := session.OpenModel(ctx, model, session.Options{})
	if err != nil {
		return err
	}
	defer s.Close() // frees graph, variables and buffers, which the garbage collector cannot

	loop := fit.Loop{Session: s, Batch: 32, Epochs: 20, Validation: test}
	loop.Hook(fit.Progress(os.Stderr), fit.EarlyStop{Metric: "val_loss", Patience: 3}.Hook())
	history, err := loop.Run(ctx, train.Shuffle(1))
	if err != nil {
		return err
	}
	if err := s.SaveModel(ctx, out); err != nil {
		return err
	}
	accuracy, _ := history.Final().Metrics.Get("val_accuracy")
	fmt.Printf("test accuracy %.1f%%, trained model in %s\n", 100*accuracy, out)
	return nil
}
